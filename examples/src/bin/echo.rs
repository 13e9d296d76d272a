//! Answers every frame of ethertype 0x88B5, which IEEE 802 keeps for experiments.
//!
//! ```text
//! cargo run -p towpath-examples --bin echo -- /run/towpath/tap0.sock
//! ```
//!
//! This is Towpath at its lowest: frames in, frames out, and one place to sleep.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use towpath_client::{Endpoint, Options, Rule, SendError, Session};

const ETHERTYPE: u16 = 0x88b5;

fn main() -> ExitCode {
    towpath_examples::run("echo SOCKET", "Answers every frame of ethertype 0x88B5.", serve)
}

fn serve([path]: [OsString; 1]) -> Result<(), Box<dyn Error>> {
    let mut session = Session::attach(path, &Options::default())?;
    let endpoint = session.open(&Rule::new().ethertype(ETHERTYPE))?;
    let mac = session.info().mac;
    println!("answering frames of ethertype {ETHERTYPE:#06x} to {mac:02x?}");

    let mut frame = Vec::new();
    loop {
        // Sleeps until there is something.
        session.wait(None)?;
        loop {
            frame.clear();
            // The packet is read where the server put it; it may lie in several pieces.
            if session.receive(0, 1, |packet| packet.append_to(&mut frame))? == 0 {
                break;
            }
            // To where it came from, and from us.
            frame.copy_within(6..12, 0);
            frame[6..12].copy_from_slice(&mac);
            send(&mut session, endpoint, &frame)?;
        }
        // One wake-up of the server, at most, for all that was sent.
        session.flush()?;
    }
}

/// Sends a frame; where there is no room, waits for it.
fn send(session: &mut Session, endpoint: Endpoint, frame: &[u8]) -> Result<(), SendError> {
    loop {
        match session.send_bytes(endpoint, frame) {
            Err(SendError::Full) => {
                session.want_room(endpoint.queue_pair())?;
                session.wait(None)?;
            }
            sent => return sent,
        }
    }
}
