//! PDU endpoints: protocol data units of up to 64 KiB between endpoints over Ethernet, cut to the
//! MTU without copying, many multiplexed by channel number, put together again by the receiver.
//!
//! It is what Smith and Traw's host interface does with cells ("Giving Applications Access to Gb/s
//! Networking", segmentation and reassembly of variable-size PDUs, multiplexed by VCI and MID, loss
//! detected), done with frames; and a [`Message`] is what Tracey and Banerji's x-kernel messages
//! are: chunks that do not lie together, fitted to the MTU. The format on the wire is in
//! `docs/pdu.md`, byte by byte.
//!
//! ```no_run
//! use std::io::Write;
//! use towpath_pdu::{Options, PduEndpoint, Session};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let session = Session::attach("/run/towpath/tap0.sock", &Default::default())?;
//! let mut pdus = PduEndpoint::open(session, &Options::default())?;
//! let mut message = pdus.message([2, 0, 0, 0, 0, 9], 7, 40_000)?;
//! message.write_all(&[0x5a; 40_000])?;
//! message.send()?;
//! loop {
//!     pdus.wait(None)?;
//!     pdus.receive(64, |pdu| println!("{} bytes on channel {}", pdu.len(), pdu.channel()))?;
//! }
//! # }
//! ```
//!
//! A PDU arrives whole or not at all; there is no retransmission, and no order between PDUs that
//! the network does not keep. Copies: none when sending but the application's own writing; when
//! receiving, one from the receive frames into the place where a PDU is put together, and none for
//! a PDU that came in one fragment, which is read in place.
//!
//! [`Fragment`] and [`Reassembler`] do no input or output and know no clock: the time is an argument.
#![forbid(unsafe_code)]

mod buffers;
mod counters;
mod endpoint;
mod finished;
mod format;
mod message;
mod partial;
mod pdu;
mod pieces;
mod ranges;
mod reassembler;
mod turns;

pub use counters::{ReceiveCounters, SendCounters};
pub use endpoint::{MAX_AHEAD, OpenError, Options, PduEndpoint, SendError};
pub use format::{
    ETHERTYPE, Fragment, HEADER_BYTES, MAX_PDU_BYTES, Malformed, OVERHEAD_BYTES, VERSION,
};
pub use message::Message;
pub use pdu::{Parts, Pdu};
pub use pieces::Pieces;
pub use reassembler::{Accepted, Dropped, Limits, Reassembler};
pub use towpath_client::{Lost, Options as SessionOptions, Session};
