//! Keeps values under keys, for other applications to look up; or looks a key up.
//!
//! ```text
//! echo sky blue | cargo run -p towpath-examples --bin kv -- /run/towpath/tap0.sock
//! cargo run -p towpath-examples --bin kv -- /run/towpath/tap0.sock 10.77.0.2:9 sky
//! ```
//!
//! A lookup is a request to read from the table: the server carries it out, and the owner of the
//! table does not even wake up. docs/apertures.md describes requests.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use towpath_client::{
    Access, Memory, Options, QueuePair, Request, RequestState, Rule, Session, Sharing,
};
use towpath_examples::apertures::{address, admit, ask, close_gone};

/// The places of the table, each with a key and its value, padded with zeros.
const PLACES: usize = 1024;
const KEY_BYTES: usize = 24;
const PLACE_BYTES: usize = 64;
/// A key is in one of so many places, from its hash on: one request reads them all.
const PROBED: usize = 8;
const BYTES: usize = (PLACES + PROBED) * PLACE_BYTES;

fn main() -> ExitCode {
    let about = "Keeps the lines of key and value that it reads; with an address, looks a key up.";
    towpath_examples::run("kv SOCKET [ADDRESS:PORT KEY]", about, |arguments: [OsString; 3]| {
        let [path, to, key] = arguments;
        let options = Options { oob_slots: 16, apertures: 64, endpoints: 64, ..Options::default() };
        let session = Session::attach(path, &options)?;
        if to.is_empty() {
            return keep(session);
        }
        look_up(session, &to.to_string_lossy(), &key.to_string_lossy())
    })
}

/// Returns where the places of a key begin in the table (FNV-1a).
fn first_place(key: &str) -> usize {
    let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    key.as_bytes().iter().fold(0x811c_9dc5, hash) as usize % PLACES * PLACE_BYTES
}

fn fill(table: &Memory) -> Result<(), Box<dyn Error>> {
    for line in io::stdin().lines() {
        let line = line?;
        let (key, value) = line.split_once(' ').ok_or_else(|| format!("{line}: no value"))?;
        if key.len() > KEY_BYTES || value.len() > PLACE_BYTES - KEY_BYTES {
            return Err(format!("{line}: too long").into());
        }
        let places = (0..PROBED).map(|place| first_place(key) + place * PLACE_BYTES);
        let mut free = places.filter(|at| table.load(*at) == Ok(0) && !key.is_empty());
        let at = free.next().ok_or_else(|| format!("{line}: no place left for this key"))?;
        table.write(at + KEY_BYTES, value.as_bytes())?;
        table.write(at, key.as_bytes())?;
    }
    Ok(())
}

fn keep(mut session: Session) -> Result<(), Box<dyn Error>> {
    let table = session.memories().create(BYTES, Sharing::Requests)?;
    fill(&table)?;
    let listener = session.open(&Rule::new().tcp(9).out_of_band())?;
    println!("answering at {}, port 9", session.info().ipv4.ok_or("no IPv4 address")?.0);
    let mut peers = Vec::new();
    while !session.is_revoked(listener) {
        session.wait(None)?;
        session.receiver().receive(QueuePair::FIRST, usize::MAX, |_| {})?;
        while let Some(request) = session.oob().receive(listener)? {
            peers.extend(admit(&mut session, &request, (&table, BYTES, Access::Read))?);
        }
        close_gone(&mut session, &mut peers)?;
    }
    Err("the policy of the server grants the endpoint no more".into())
}

fn look_up(mut session: Session, to: &str, key: &str) -> Result<(), Box<dyn Error>> {
    let (endpoint, table) = ask(&mut session, address(to)?)?;
    let memory = session.memories().create(PROBED * PLACE_BYTES, Sharing::Requests)?;
    let mut places = [0; PROBED * PLACE_BYTES];
    let read = Request::read(table, first_place(key) as u64).local(&memory, 0..places.len());
    let id = session.requests().queue(endpoint, &read)?;
    while session.requests().state(id) == RequestState::Pending {
        session.wait(None)?;
    }
    if let RequestState::Failed(fault) = session.requests().state(id) {
        return Err(format!("{to}: {fault}").into());
    }
    memory.read(0, &mut places)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let mut found = places.chunks(PLACE_BYTES).map(|place| place.split_at(KEY_BYTES));
    let found = found.find(|(one, _)| text(one) == key && !key.is_empty()).ok_or("no such key")?;
    Ok(writeln!(io::stdout(), "{}", text(found.1))?)
}
