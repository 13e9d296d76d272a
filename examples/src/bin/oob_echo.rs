//! Answers out-of-band messages; or connects, and sends the lines that it reads.
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
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use towpath_client::{
    Endpoint, EndpointId, OobAddress, OobKind, Options, PeerState, QueuePair, QueuePairError, Rule,
    SendError, Session,
};

fn main() -> ExitCode {
    let about = "Sends out-of-band messages back; with an address, sends lines there.";
    towpath_examples::run("oob_echo SOCKET [ADDRESS:PORT]", about, act)
}

fn act([path, to]: [OsString; 2]) -> Result<(), Box<dyn Error>> {
    let options = Options { oob_slots: 16, endpoints: 64, ..Options::default() };
    let session = Session::attach(path, &options)?;
    if to.is_empty() {
        return serve(session);
    }
    let to = to.to_string_lossy();
    let at: SocketAddr = to.parse().map_err(|_| format!("{to}: not as 10.77.0.2:7"))?;
    // Protocol 6 is TCP.
    ask(session, OobAddress { ip: at.ip(), protocol: 6, port: at.port() })
}

/// Accepts connections, each at an endpoint of its own, and answers.
fn serve(mut session: Session) -> Result<(), Box<dyn Error>> {
    let listener = session.open(&Rule::new().tcp(7).out_of_band())?;
    println!("answering at {}, port 7", session.info().ipv4.ok_or("no IPv4 address")?.0);
    let mut peers: HashMap<EndpointId, Endpoint> = HashMap::new();
    while !session.is_revoked(listener) {
        session.wait(None)?;
        drop_packets(&mut session)?;
        while let Some(number) = session.oob().ready()? {
            let endpoint = peers.get(&number).copied().unwrap_or(listener);
            while let Some(message) = session.oob().receive(endpoint)? {
                let from = message.from();
                let sent = match message.kind() {
                    OobKind::Request => match session.open(&Rule::new().tcp(0).out_of_band()) {
                        Ok(accepting) => {
                            peers.insert(accepting.id(), accepting);
                            session.oob().accept_connection(accepting, from, b"welcome")
                        }
                        // A request has no time limit: the requester must get an answer.
                        Err(_) => session.oob().reject_connection(listener, from, b"too many"),
                    },
                    _ => session.oob().send(endpoint, from, message.payload()),
                };
                // Without room to send, this example drops the answer.
                sent.or_else(|error| if error == SendError::Full { Ok(()) } else { Err(error) })?;
            }
            if endpoint != listener && !is_there(session.peer_state(endpoint)) {
                peers.remove(&number);
                session.close(endpoint)?;
            }
        }
    }
    Err("the policy of the server grants the endpoint no more".into())
}

/// Connects, sends each line, and prints the answers.
fn ask(mut session: Session, to: OobAddress) -> Result<(), Box<dyn Error>> {
    let endpoint = session.open(&Rule::new().tcp(0).out_of_band())?;
    session.oob().request_connection(endpoint, to, b"oob_echo")?;
    let mut lines = io::stdin().lines();
    while is_there(session.peer_state(endpoint)) {
        session.wait(None)?;
        drop_packets(&mut session)?;
        while let Some(message) = session.oob().receive(endpoint)? {
            let text = String::from_utf8_lossy(message.payload());
            writeln!(io::stdout(), "{}", text.trim_end_matches('\0'))?;
            let Some(line) = lines.next().transpose()? else {
                session.oob().disconnect(endpoint)?;
                return Ok(session.sender().flush()?);
            };
            session.oob().send(endpoint, message.from(), line.as_bytes())?;
        }
    }
    Err(format!("{to}: {}", session.peer_state(endpoint)).into())
}

/// One load tells whether a peer is still there.
fn is_there(state: PeerState) -> bool {
    matches!(state, PeerState::Requested | PeerState::Connected)
}

/// Drops packets: anyone can send some to the port, and they end each wait.
fn drop_packets(session: &mut Session) -> Result<(), QueuePairError> {
    session.receiver().receive(QueuePair::FIRST, usize::MAX, |_| {}).map(|_| ())
}
