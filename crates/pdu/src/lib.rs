//! PDU endpoints: protocol data units of up to 64 KiB between endpoints over Ethernet. The sender
//! splits them into fragments that fit the MTU, without a copy, and multiplexes them by channel
//! number. The receiver reassembles them.
//!
//! The crate does with frames what Smith and Traw's host interface does with cells ("Giving
//! Applications Access to Gb/s Networking", segmentation and reassembly of variable-size PDUs,
//! multiplexed by VCI and MID, loss detected). A [`Message`] corresponds to Tracey and Banerji's
//! x-kernel messages: separate chunks, fitted to the MTU. `docs/pdu.md` describes the format on the
//! wire, byte by byte.
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
//! A PDU arrives whole or not at all. There is no retransmission, and no order between PDUs beyond
//! the network's. Sending copies nothing beyond the application's own writing. Receiving makes one
//! copy, from the receive buffers into the reassembly buffer. A PDU of one fragment is not copied:
//! the application reads it in place.
//!
//! A channel can have a receive queue of its own ([`PduEndpoint::open_queue`]): a bound on its
//! buffers, and a weight by which the application takes PDUs of several channels.
//!
//! The module [`atm`] segments PDUs into ATM cells, as that host interface does, and reassembles
//! them.
//!
//! [`Fragment`], [`Reassembler`] and [`Channels`] do no input or output and have no clock: the time is an
//! argument.
#![forbid(unsafe_code)]

mod aged;
pub mod atm;
mod buffers;
mod channels;
mod counters;
mod endpoint;
mod finished;
mod format;
mod limits;
mod message;
mod partial;
mod pdu;
mod pieces;
mod ranges;
mod reassembler;
mod sender;
mod shares;
mod turns;

pub use channels::{ChannelQueue, Channels, MAX_QUEUES, QueueError, QueueState};
pub use counters::{ReceiveCounters, SendCounters};
pub use endpoint::{MAX_AHEAD, OpenError, Options, PduEndpoint};
pub use format::{
    ETHERTYPE, Fragment, HEADER_BYTES, MAX_PDU_BYTES, Malformed, OVERHEAD_BYTES, VERSION,
};
pub use limits::Limits;
pub use message::Message;
pub use pdu::{Pdu, PduParts};
pub use pieces::Pieces;
pub use reassembler::{Accepted, Dropped, Reassembler};
pub use sender::SendError;
/// Compiles the example of `docs/pdu.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/pdu.md")]
struct Page;

pub use towpath_client::{Lost, MacAddr, Options as SessionOptions, Session};
