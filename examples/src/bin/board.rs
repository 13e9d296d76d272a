//! Shows counters to other applications, which map them; or reads those of another one.
//!
//! ```text
//! cargo run -p towpath-examples --bin board -- /run/towpath/tap0.sock
//! cargo run -p towpath-examples --bin board -- /run/towpath/tap0.sock 10.77.0.2:9
//! ```
//!
//! A reader loads the counters from the owner's memory: no message, no system call, and the owner
//! executes nothing. docs/apertures.md describes apertures.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use towpath_client::{Access, OobAddress, Options, QueuePair, Rule, Session, Sharing};
use towpath_examples::apertures::{address, admit, ask, close_gone};

/// Where the counters are in the memory, in bytes: each is an aligned word.
const TICKS: usize = 0;
const READERS: usize = 8;
const BYTES: usize = 16;

fn main() -> ExitCode {
    let about = "Shows counters; with an address, reads those of the board there.";
    towpath_examples::run("board SOCKET [ADDRESS:PORT]", about, act)
}

fn act([path, to]: [OsString; 2]) -> Result<(), Box<dyn Error>> {
    let to = to.to_string_lossy();
    let to = if to.is_empty() { None } else { Some(address(&to)?) };
    let options = Options { oob_slots: 16, apertures: 64, endpoints: 64, ..Options::default() };
    let session = Session::attach(path, &options)?;
    match to {
        None => show(session),
        Some(to) => read(session, to),
    }
}

/// Counts, and lets each application that connects read the counters.
fn show(mut session: Session) -> Result<(), Box<dyn Error>> {
    let listener = session.open(&Rule::new().tcp(9).out_of_band())?;
    println!("showing at {}, port 9", session.info().ipv4.ok_or("no IPv4 address")?.0);
    let board = session.memories().create(BYTES, Sharing::MapRead)?;
    let mut readers = Vec::new();
    while !session.is_revoked(listener) {
        session.wait(Some(Duration::from_millis(10)))?;
        session.receiver().receive(QueuePair::FIRST, usize::MAX, |_| {})?;
        board.store(TICKS, board.load(TICKS)? + 1)?;
        while let Some(request) = session.oob().receive(listener)? {
            readers.extend(admit(&mut session, &request, (&board, BYTES, Access::Read))?);
        }
        close_gone(&mut session, &mut readers)?;
        board.store(READERS, readers.len() as u64)?;
    }
    Err("the policy of the server grants the endpoint no more".into())
}

/// Reads the counters a few times.
fn read(mut session: Session, to: OobAddress) -> Result<(), Box<dyn Error>> {
    let (endpoint, key) = ask(&mut session, to)?;
    let board = session.memories().import(endpoint, key)?;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        writeln!(io::stdout(), "{} ticks, {} readers", board.load(TICKS)?, board.load(READERS)?)?;
    }
    Ok(session.memories().release_aperture(board)?)
}
