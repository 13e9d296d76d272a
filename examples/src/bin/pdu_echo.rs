//! Sends every PDU of up to 64 KiB back to where it came from, on the channel that it came on.
//!
//! ```text
//! cargo run -p towpath-examples --bin pdu_echo -- /run/towpath/tap0.sock
//! ```
//!
//! PDUs are cut to the MTU and put together again; the format on the wire is in docs/pdu.md.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use towpath_pdu::{Options, PduEndpoint, SendError, Session, SessionOptions};

/// Answers kept while there is no room; more are not given, as on any network.
const KEPT: usize = 64;

fn main() -> ExitCode {
    towpath_examples::run("pdu_echo SOCKET", "Sends every PDU back, on its channel.", serve)
}

fn serve([path]: [OsString; 1]) -> Result<(), Box<dyn Error>> {
    let session = Session::attach(path, &SessionOptions::default())?;
    let mut pdus = PduEndpoint::open(session, &Options::default())?;
    let mac = pdus.session().info().mac;
    println!("answering PDUs of up to {} bytes to {mac:02x?}", pdus.max_pdu_bytes());

    let mut answers: VecDeque<([u8; 6], u32, Vec<u8>)> = VecDeque::new();
    loop {
        // Sleeps until there is something; fragments that wait for their turn go on meanwhile.
        pdus.wait(None)?;
        pdus.receive(64, |pdu| {
            if answers.len() < KEPT {
                let mut bytes = Vec::new();
                pdu.append_to(&mut bytes);
                answers.push_back((pdu.source(), pdu.channel(), bytes));
            }
        })?;
        while let Some((to, channel, bytes)) = answers.front() {
            // Into the frames that it is sent from; `message` lets it be written there at once.
            match pdus.send_bytes(*to, *channel, bytes) {
                Ok(_) => drop(answers.pop_front()),
                // All of it or nothing: it waits for room.
                Err(SendError::Full) => {
                    pdus.want_room();
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
