//! Sends every PDU of up to 64 KiB back to its sender, on the same channel.
//!
//! ```text
//! cargo run -p towpath-examples --bin pdu_echo -- /run/towpath/tap0.sock
//! ```
//!
//! The library splits PDUs into fragments that fit the MTU, and reassembles them; docs/pdu.md has
//! the format on the wire.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use towpath_pdu::{MacAddr, Options, PduEndpoint, SendError, Session, SessionOptions};

/// The maximum number of answers kept while there is no room; the program drops further ones, as
/// any network does.
const KEPT: usize = 64;

fn main() -> ExitCode {
    towpath_examples::run("pdu_echo SOCKET", "Sends every PDU back, on its channel.", serve)
}

fn serve([path]: [OsString; 1]) -> Result<(), Box<dyn Error>> {
    let session = Session::attach(path, &SessionOptions::default())?;
    let mut pdus = PduEndpoint::open(session, &Options::default())?;
    let mac = pdus.session().info().mac;
    println!("answering PDUs of up to {} bytes to {mac}", pdus.max_pdu_bytes());

    let mut answers: VecDeque<(MacAddr, u32, Vec<u8>)> = VecDeque::new();
    loop {
        // Sleeps until a PDU arrives; meanwhile the endpoint sends waiting fragments.
        pdus.wait(None)?;
        pdus.receive(64, |pdu| {
            if answers.len() < KEPT {
                let mut bytes = Vec::new();
                pdu.append_to(&mut bytes);
                answers.push_back((pdu.source(), pdu.channel(), bytes));
            }
        })?;
        while let Some((to, channel, bytes)) = answers.front() {
            // Copies into the transmit buffers; `message` would allow writing there directly.
            match pdus.send_bytes(*to, *channel, bytes) {
                Ok(_) => drop(answers.pop_front()),
                // All of the PDU or nothing is sent: wait for room.
                Err(SendError::Full) => {
                    pdus.want_room();
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
