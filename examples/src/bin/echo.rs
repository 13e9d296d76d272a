//! Answers every frame of ethertype 0x88B5, which IEEE 802 reserves for experiments.
//!
//! ```text
//! cargo run -p towpath-examples --bin echo -- /run/towpath/tap0.sock
//! ```
//!
//! This is Towpath at its lowest level: frames in, frames out, and one call that sleeps.
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
    println!("answering frames of ethertype {ETHERTYPE:#06x} to {mac}");

    let mut frame = Vec::new();
    loop {
        // Sleeps until a frame arrives.
        session.wait(None)?;
        loop {
            frame.clear();
            // The session reads the packet where the server put it, possibly in several pieces.
            if session.receive(0, 1, |packet| packet.append_to(&mut frame))? == 0 {
                break;
            }
            // Back to its sender, from our address.
            frame.copy_within(6..12, 0);
            frame[6..12].copy_from_slice(&mac.octets());
            send(&mut session, endpoint, &frame)?;
        }
        // At most one wake-up of the server for all sent frames.
        session.flush()?;
    }
}

/// Sends a frame; waits while there is no room.
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
