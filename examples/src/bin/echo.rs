//! Answers every frame of ethertype 0x88B5, which IEEE 802 reserves for experiments.
//!
//! ```text
//! cargo run -p towpath-examples --bin echo -- /run/towpath/tap0.sock
//! ```
//!
//! This is Towpath at its lowest level: frames in, frames out, and one call that sleeps. The program reads
//! each frame where the server put it, and writes the answer where the server takes it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use towpath_client::{
    Endpoint, MacAddr, Meta, Options, QueuePairError, Received, Rule, SendError, Sender, Session,
};

const ETHERTYPE: u16 = 0x88b5;

fn main() -> ExitCode {
    towpath_examples::run("echo SOCKET", "Answers every frame of ethertype 0x88B5.", serve)
}

fn serve([path]: [OsString; 1]) -> Result<(), Box<dyn Error>> {
    let mut session = Session::attach(path, &Options::default())?;
    let endpoint = session.open(&Rule::new().ethertype(ETHERTYPE))?;
    let mac = session.info().mac;
    println!("answering frames of ethertype {ETHERTYPE:#06x} to {mac}");
    loop {
        // Sleeps until a frame arrives.
        session.wait(None)?;
        while answer_all(&mut session, endpoint, mac)? > 0 {}
    }
}

/// Answers frames that wait, as many as there is room for. Returns their number.
fn answer_all(
    session: &mut Session,
    endpoint: Endpoint,
    mac: MacAddr,
) -> Result<usize, Box<dyn Error>> {
    let pair = endpoint.queue_pair();
    // The two halves work at once: the program sends from inside the callback of a receive.
    let (mut sender, mut receiver) = session.split();
    let room = room(&mut sender, endpoint)?;
    let mut outcome = Ok(());
    let got = receiver.receive(pair, room, |frame| {
        if let Err(error) = answer(&mut sender, endpoint, mac, &frame) {
            outcome = Err(error);
        }
    })?;
    outcome?;
    if room == 0 {
        // The next wait also ends when there is room.
        sender.want_room(pair)?;
    }
    // At most one wake-up of the server for all sent frames.
    sender.flush()?;
    Ok(got)
}

/// Returns how many frames of one buffer each the transmit queue takes now.
fn room(sender: &mut Sender<'_>, endpoint: Endpoint) -> Result<usize, QueuePairError> {
    let pair = endpoint.queue_pair();
    Ok((sender.slots(pair)? - sender.unsent(pair)?) as usize)
}

/// Sends a frame back to its sender, from our address, with one copy.
fn answer(
    sender: &mut Sender<'_>,
    endpoint: Endpoint,
    mac: MacAddr,
    frame: &Received<'_>,
) -> Result<(), SendError> {
    // A frame up to the size of a buffer is in one piece. This example answers no others.
    let Some(frame) = frame.contiguous() else { return Ok(()) };
    let Some((source, rest)) = frame.get(6..).and_then(|after| after.split_at_checked(6)) else {
        return Ok(());
    };
    sender.send(endpoint, frame.len(), Meta::FULL, |parts| {
        if let [answer] = parts {
            answer[..6].copy_from_slice(source);
            answer[6..12].copy_from_slice(&mac.octets());
            answer[12..].copy_from_slice(rest);
        }
    })
}
