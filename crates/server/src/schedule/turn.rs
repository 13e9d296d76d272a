//! What scheduler and engine say to each other: whose turn it is, and why it ended.

use crate::schedule::shape::Class;

/// A unit's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Whose.
    pub unit: u32,
    /// Its session's place.
    pub place: u32,
    /// Its queue set.
    pub queue_set: u32,
    /// Packets at most.
    pub packets: usize,
    /// Bytes; the packet that uses up the last of them goes whole.
    pub bytes: i64,
    /// Bytes of the message that it is in the middle of.
    pub run: u64,
}

/// Why a unit's turn ended while it had more to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has had what it may, or the engine's turn is over.
    Over,
    /// The device has no room; `at_once`: for nothing of it.
    Blocked {
        /// Nothing was sent.
        at_once: bool,
        /// Its next packet takes more than one place of the device.
        large: bool,
    },
    /// Its next packet is of another class.
    Class(Class),
    /// It waits until this time, in nanoseconds.
    Until(u64),
    /// It waits until this tick.
    Tick(u64),
}

/// A unit that waited, and waits no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Which.
    pub unit: u32,
    /// Its session's place.
    pub place: u32,
    /// Its queue set.
    pub queue_set: u32,
}
