//! What a packet needs on its way out, beside the transmit path itself, and what becomes of it.

use towpath_queue::Violation;

use crate::engine::apertures::ApertureTable;
use crate::engine::delivery::Delivery;
use crate::engine::demux::FlowTable;
use crate::engine::device_counters::DeviceCounters;
use crate::engine::memories::TransmitMemories;
use crate::engine::oob::OobTable;
use crate::engine::port::DevicePort;
use crate::engine::remote::table::RemoteTable;
use crate::engine::schedule::Stop;

/// The other parts of the engine that a packet needs on its way out, borrowed for a poll iteration.
pub(crate) struct TxContext<'a> {
    pub(crate) port: &'a mut DevicePort,
    pub(crate) memories: &'a TransmitMemories,
    pub(crate) flows: &'a mut FlowTable,
    pub(crate) oob: &'a OobTable,
    pub(crate) apertures: &'a mut ApertureTable,
    pub(crate) remote: &'a mut RemoteTable,
    pub(crate) delivery: Delivery<'a>,
    pub(crate) counters: &'a mut DeviceCounters,
}

/// The result for a packet.
pub(super) enum Sent {
    /// The packet is done: dropped, or delivered here.
    Now,
    /// The packet is handed off: the device has it, or the backlog.
    Later,
    /// Either of these, with more than one copy: see [`TxPath::spent`].
    Costly {
        /// `true` if the packet is handed off.
        later: bool,
    },
    /// The device has no room for the packet now.
    NoRoom,
    /// No correct application sends such a packet.
    Violates(Violation),
}

/// The result of a unit's turn.
pub(super) struct Round {
    /// Packets taken.
    pub(super) taken: usize,
    /// Packets taken, plus each packet's copies beyond the first.
    pub(super) used: usize,
    pub(super) served: Served,
}

/// The way in which a unit's turn ended.
pub(super) enum Served {
    /// The unit has nothing more to send.
    Idle,
    /// The unit has more to send. The fields give the reason for the turn's end, and the bytes sent
    /// so far of the current message.
    More(Stop, u64),
    /// The unit's next packet belongs in another line.
    OtherLine,
    /// The unit's session is gone or about to end.
    Gone,
}
