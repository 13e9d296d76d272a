//! The interface between scheduler and engine: the next turn, and the reason for its end.

use crate::schedule::shape::Class;

/// A unit's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The unit.
    pub unit: u32,
    /// The session key of the unit.
    pub key: u32,
    /// The queue pair of the unit.
    pub queue_pair: u32,
    /// The maximum number of packets.
    pub packets: usize,
    /// The limit in bytes; the packet that uses up the last of them goes whole.
    pub bytes: i64,
    /// Bytes of the message that the unit is in the middle of.
    pub message_bytes: u64,
}

/// The reason for the end of a unit's turn while it had more to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The unit has used up its share, or the poll iteration is over.
    Over,
    /// The device has no room.
    Blocked {
        /// `true` if the unit sent nothing.
        at_once: bool,
        /// `true` if the unit's next packet takes more than one slot of the device.
        large: bool,
    },
    /// The unit's next packet is of another class.
    Class(Class),
    /// The unit waits until this time, in nanoseconds.
    Until(u64),
    /// The unit waits until this tick.
    Tick(u64),
}

/// A unit whose wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The unit.
    pub unit: u32,
    /// The session key of the unit.
    pub key: u32,
    /// The queue pair of the unit.
    pub queue_pair: u32,
}
