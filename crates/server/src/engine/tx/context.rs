//! What a packet needs on its way out, beside the transmit path itself, and what becomes of it.

use towpath_queue::Violation;

use crate::engine::delivery::Delivery;
use crate::engine::demux::FlowTable;
use crate::engine::device_counters::DeviceCounters;
use crate::engine::memories::TransmitMemories;
use crate::engine::port::DevicePort;

/// The other parts of the engine that a packet needs on its way out, borrowed for a poll iteration.
pub(crate) struct TxContext<'a> {
    pub(crate) port: &'a mut DevicePort,
    pub(crate) memories: &'a TransmitMemories,
    pub(crate) flows: &'a mut FlowTable,
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
