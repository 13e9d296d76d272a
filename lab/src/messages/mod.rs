//! Messages of any size in one direction, as fast as possible: through a server from one session to
//! another, and through the kernel's sockets.
//!
//! The sender writes and the receiver reads every byte. Every carrier splits a message longer than
//! [`amount::PIECE_BYTES`] into several packets.

mod amount;
mod credit;
mod kernel;
mod stream;

pub(crate) use amount::{Amount, MTU_BYTES, Moved, PATIENCE, Pace, add};
pub(crate) use kernel::{tcp, udp, udp_alone};
pub(crate) use stream::Stream;
