//! Sends a stream of bytes from one application to another, through a channel.
//!
//! ```text
//! cargo run -p towpath-examples --bin channel -- /run/towpath/tap0.sock > copy
//! cargo run -p towpath-examples --bin channel -- /run/towpath/tap0.sock 10.77.0.2:9 < file
//! ```
//!
//! The first program writes what it receives to its standard output, and ends at the end of it. The
//! second one sends what it reads from its standard input, to the address that the first one prints.
//! The server moves no byte. docs/channels.md describes channels.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use towpath_client::{Channel, OobAddress, Options, QueuePair, Rule, Session};
use towpath_examples::apertures::{accept, address, connect};

/// The length of the ring that each side offers the other one, in bytes.
const RING_BYTES: usize = 1 << 20;
/// How long a side waits for the other one to open the channel.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn main() -> ExitCode {
    let about =
        "Receives, and prints where; then, with that address, sends its standard input there.";
    towpath_examples::run("channel SOCKET [ADDRESS:PORT]", about, act)
}

fn act([path, to]: [OsString; 2]) -> Result<(), Box<dyn Error>> {
    let to = to.to_string_lossy();
    let to = if to.is_empty() { None } else { Some(address(&to)?) };
    let options = Options { oob_slots: 16, apertures: 2, tripwires: 2, ..Options::default() };
    let session = Session::attach(path, &options)?;
    match to {
        None => receive(session),
        Some(to) => send(session, to),
    }
}

fn receive(mut session: Session) -> Result<(), Box<dyn Error>> {
    let listener = session.open(&Rule::new().tcp(9).out_of_band())?;
    let own = session.info().ipv4.ok_or("no IPv4 address")?.0;
    eprintln!("receiving at {own}, port 9");
    let endpoint = loop {
        if session.is_revoked(listener) {
            return Err("the policy of the server grants the endpoint no more".into());
        }
        session.wait(None)?;
        session.receiver().receive(QueuePair::FIRST, usize::MAX, |_| {})?;
        if let Some(request) = session.oob().receive(listener)?
            && let Some(endpoint) = accept(&mut session, &request)?
        {
            break endpoint;
        }
    };
    let mut channel = Channel::open(&mut session, endpoint, RING_BYTES, PATIENCE)?;
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    copy(&mut channel.stream(&mut session, None), &mut output)
        .map_err(|error| format!("{error}; the copy is incomplete"))?;
    // The other side goes on once it knows that all has arrived.
    channel.finish()?;
    Ok(channel.flush(&mut session)?)
}

fn send(mut session: Session, to: OobAddress) -> Result<(), Box<dyn Error>> {
    let (endpoint, _) = connect(&mut session, to)?;
    let mut channel = Channel::open(&mut session, endpoint, RING_BYTES, PATIENCE)?;
    let mut stream = channel.stream(&mut session, None);
    copy(&mut File::from(io::stdin().as_fd().try_clone_to_owned()?), &mut stream)?;
    stream.finish()?;
    // Waits until the other side has received all.
    Ok(copy(&mut stream, &mut io::sink())?)
}

/// Copies all bytes, each as soon as it is there.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 17];
    loop {
        match from.read(&mut bytes)? {
            0 => return Ok(()),
            count => to.write_all(&bytes[..count])?,
        }
    }
}
