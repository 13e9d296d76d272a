//! Answers out-of-band messages of connected endpoints; or connects, and sends the lines that it
//! reads.
//!
//! ```text
//! cargo run -p towpath-examples --bin oob_echo -- /run/towpath/tap0.sock
//! echo hello | cargo run -p towpath-examples --bin oob_echo -- /run/towpath/tap0.sock 10.77.0.2:7
//! ```
//!
//! docs/messages.md describes the messages and the connections.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;

use towpath_client::{Endpoint, OobAddress, OobKind, Options, PeerState, Rule, SendError, Session};

const TCP: u8 = 6;

fn main() -> ExitCode {
    let about = "Sends out-of-band messages back; or with an address, lines to such a program.";
    towpath_examples::run("oob_echo SOCKET [ADDRESS:PORT]", about, act)
}

fn act([path, to]: [OsString; 2]) -> Result<(), Box<dyn Error>> {
    let options = Options { oob_slots: 16, endpoints: 64, ..Options::default() };
    let session = Session::attach(path, &options)?;
    if to.is_empty() {
        return serve(session);
    }
    let to = to.to_string_lossy();
    let at: SocketAddr =
        to.parse().map_err(|_| format!("{to}: no address, such as 10.77.0.2:7"))?;
    ask(session, OobAddress { ip: at.ip(), protocol: TCP, port: at.port() })
}

/// Accepts connections, each at an endpoint of its own, and answers.
fn serve(mut session: Session) -> Result<(), Box<dyn Error>> {
    let listener = session.open(&Rule::new().tcp(7).out_of_band())?;
    println!("answering at {:?}, port 7", session.info().ipv4.map(|(ip, _)| ip));
    let mut peers: HashMap<u32, (Endpoint, OobAddress)> = HashMap::new();
    loop {
        session.wait(None)?;
        while let Some(number) = session.ready_oob()? {
            let at = peers.get(&number).copied();
            let endpoint = at.map_or(listener, |(endpoint, _)| endpoint);
            while let Some(message) = session.receive_oob(endpoint)? {
                match message.kind() {
                    OobKind::Request => {
                        let accepting = session.open(&Rule::new().tcp(0).out_of_band());
                        let Ok(accepting) = accepting else { continue };
                        session.accept(accepting, message.from(), b"welcome")?;
                        peers.insert(accepting.number(), (accepting, message.from()));
                    }
                    // A full transmit queue: this example drops the answer.
                    _ => match session.send_oob(endpoint, message.from(), message.payload()) {
                        Ok(()) | Err(SendError::Full) => {}
                        Err(error) => return Err(error.into()),
                    },
                }
            }
            // One load tells whether the peer is still there.
            if let Some((endpoint, _)) = at
                && !matches!(session.peer(endpoint), PeerState::Requested | PeerState::Connected)
            {
                peers.remove(&number);
                session.close(endpoint)?;
            }
        }
        session.flush()?;
    }
}

/// Connects, sends each line, and prints the answers.
fn ask(mut session: Session, to: OobAddress) -> Result<(), Box<dyn Error>> {
    let endpoint = session.open(&Rule::new().tcp(0).out_of_band())?;
    session.request(endpoint, to, b"oob_echo")?;
    let mut peer = None;
    let mut lines = std::io::stdin().lines();
    loop {
        session.wait(None)?;
        while let Some(message) = session.receive_oob(endpoint)? {
            println!("{}", String::from_utf8_lossy(message.payload()));
            peer = Some(message.from());
            let Some(line) = lines.next().transpose()? else {
                session.disconnect(endpoint)?;
                session.flush()?;
                return Ok(());
            };
            session.send_oob(endpoint, peer.unwrap_or(to), line.as_bytes())?;
        }
        match session.peer(endpoint) {
            PeerState::Requested | PeerState::Connected => {}
            state => return Err(format!("{}: {state}", peer.unwrap_or(to)).into()),
        }
    }
}
