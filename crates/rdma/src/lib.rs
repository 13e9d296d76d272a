//! Reliable connections of RoCEv2, without I/O: packets, bytes of memory and the time are arguments.
//!
//! A [`Connection`] has two sides. The [`requester`] sends this side's requests, and sends them again
//! until the peer has acknowledged them. The [`responder`] carries out the peer's requests, each
//! once and in order, and answers them. A [`Host`] has the memory that both work on.
//!
//! Source: Linux's soft-RoCE (`drivers/infiniband/sw/rxe`).
#![forbid(unsafe_code)]

mod connection;
mod psn;
pub mod rate;
pub mod requester;
pub mod responder;

pub use connection::{Connection, Ended, PROBE, Timing};
pub use psn::Psn;

/// The memory that a connection reads and writes, and the queue of its endpoint.
pub trait Host {
    /// Checks an access of the peer to `len` bytes, at least 1.
    ///
    /// # Errors
    /// The peer has no right to it.
    fn check(&mut self, range: Range, access: Access) -> Result<(), Refused>;

    /// Places bytes that the peer writes, the later ones last.
    ///
    /// # Errors
    /// The peer has no right to it, any more; or the bytes are not placed yet.
    fn place(&mut self, range: Range, bytes: &[u8]) -> Result<(), NotCopied>;

    /// Copies bytes that the peer reads; as many as `to` has room for.
    ///
    /// # Errors
    /// The peer has no right to it, any more; or the bytes are not here yet.
    fn fetch(&mut self, range: Range, to: &mut [u8]) -> Result<(), NotCopied>;

    /// Puts a message of the peer into the endpoint's queue, once. `psn`: the packet that it came
    /// with, the same if it comes again.
    ///
    /// # Errors
    /// The queue has no room now.
    fn deliver(&mut self, psn: Psn, message: Delivery<'_>) -> Result<(), NotReady>;

    /// Copies bytes of a request of this side, from its byte `offset` on; as many as `to` has room
    /// for.
    ///
    /// # Errors
    /// The memory is gone; or the bytes are not here yet.
    fn load(&mut self, id: u64, offset: u64, to: &mut [u8]) -> Result<(), NotCopied>;

    /// Places bytes that a request of this side reads, from its byte `offset` on.
    ///
    /// # Errors
    /// The memory is gone; or the bytes are not placed yet.
    fn store(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), NotCopied>;

    /// Records that a request of this side is complete, and all before it. `next`: the number of the
    /// first packet behind it. `id` is [`PROBE`] for a request of the connection itself.
    fn complete(&mut self, id: u64, next: Psn);
}

/// A range of this side's memory, as the peer names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The key.
    pub key: u32,
    /// Where the range begins, in bytes.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// An access of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// The peer has no right to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Why bytes are not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCopied {
    /// The peer has no right to the range any more, or the memory is gone.
    Refused,
    /// The copy is under way. The connection makes the same call again, and changes nothing before.
    Later,
}

impl From<Refused> for NotCopied {
    fn from(_: Refused) -> NotCopied {
        NotCopied::Refused
    }
}

/// The queue of the endpoint has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReady;

/// What a peer puts into the endpoint's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// A message.
    Message(&'a [u8]),
    /// The value of a write, with the number of bytes that it wrote.
    Value(u32, u32),
}

#[cfg(test)]
mod congestion_tests;
#[cfg(test)]
mod tests;
