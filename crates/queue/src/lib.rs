//! Asynchronous queues, doorbells, events and buffers in memory that two processes share.
//!
//! This crate holds every shared-memory atomic of the project, and little else. The crate allocates
//! a little private memory, makes no system call and depends on nothing. Its rules:
//!
//! 1. Every word has exactly one writer: [`OwnWords`] on its writer's side, [`PeerWords`] on the
//!    other's.
//! 2. Capacity, layout and a side's own index live in private memory; the shared words are a copy
//!    for the other side.
//! 3. A side fetches each word that a peer can write once, by [`PeerWords::fetch`], into private
//!    memory; then checks it; then uses it.
//! 4. A failed check is a [`Violation`], and the side that finds one closes the session.
//!
//! | module | holds |
//! |---|---|
//! | [`word`] | the views of shared words, the only loads and stores of words |
//! | [`copy`](mod@copy) | payload into and out of shared memory, the only copies |
//! | [`layout`] | where a queue pair's words are |
//! | [`descriptor`] | the entries of a queue, and their check |
//! | [`spsc`] | the two indices of a queue, published and observed |
//! | [`transmit`] | application to server: descriptors one way, one commit word back |
//! | [`receive`] | server to application: empty buffers one way, descriptors and one commit word back |
//! | [`doorbell`] | which side sleeps, and whether to notify it |
//! | [`events`] | which queues have news |
//! | [`oob`] | small messages from endpoint to endpoint, and whether the peer is there |
//! | [`ring`] | messages between two applications, in memory of the receiver |
//! | [`tripwire`] | whether another side accessed a place in memory |
//! | [`optimistic`] | a section of one process for which no thread waits; not in shared memory |
//! | [`buffers`] | which side holds a buffer, and which to use next |
#![cfg_attr(not(any(test, loom)), no_std)]

extern crate alloc;

pub mod buffers;
pub mod copy;
pub mod descriptor;
pub mod doorbell;
pub mod events;
pub mod handoff;
pub mod layout;
pub mod oob;
pub mod optimistic;
pub mod receive;
pub mod ring;
#[cfg(towpath_simulation)]
pub mod simulation;
pub mod spsc;
pub mod transmit;
pub mod tripwire;
pub mod word;

#[cfg(all(test, not(loom)))]
mod hostile_tests;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod oracle_tests;
#[cfg(all(test, not(loom)))]
mod race_tests;
#[cfg(all(test, not(loom)))]
mod ring_tests;
#[cfg(all(test, not(loom)))]
mod stop_tests;
#[cfg(test)]
mod test_memory;
#[cfg(test)]
mod test_ring;

pub use descriptor::{Descriptor, PoolShape};
pub use word::{OwnWords, PeerWords};

/// An act of a peer that no correct peer commits. The side that finds it closes the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Violation {
    /// An index further ahead than the capacity, or behind what was seen before.
    Index = 1,
    /// A buffer number outside of the pool.
    Buffer = 2,
    /// Data outside of its buffer, or of no length.
    Range = 3,
    /// A buffer handed over twice without a return in between.
    Ownership = 4,
    /// A packet of more than [`descriptor::MAX_CHAIN`] buffers, or one whose end was not published.
    Chain = 5,
    /// An endpoint that does not belong to this queue pair.
    Endpoint = 6,
    /// Flags or metadata that have no meaning.
    Flags = 7,
    /// An event for a queue pair that does not exist, or more events than queue pairs.
    Event = 8,
    /// More packets that the sender's rights forbid than its user's policy allows per second.
    Forbidden = 9,
}

impl Violation {
    /// Returns the violation of a number; `None` for a number of a later version.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Violation> {
        use Violation::{
            Buffer, Chain, Endpoint, Event, Flags, Forbidden, Index, Ownership, Range,
        };
        [Index, Buffer, Range, Ownership, Chain, Endpoint, Flags, Event, Forbidden]
            .into_iter()
            .find(|violation| *violation as u32 == number)
    }
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Violation::Index => "a queue index out of bounds",
            Violation::Buffer => "a buffer outside of the pool",
            Violation::Range => "data outside of its buffer",
            Violation::Ownership => "a buffer handed over twice",
            Violation::Chain => "a broken or too long chain of buffers",
            Violation::Endpoint => "an endpoint of another session or queue pair",
            Violation::Flags => "flags or metadata without a meaning",
            Violation::Event => "an impossible event",
            Violation::Forbidden => "too many packets that the session's rights forbid",
        })
    }
}

impl core::error::Error for Violation {}
