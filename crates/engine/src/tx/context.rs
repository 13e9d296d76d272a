//! The parts of the engine that a packet needs on its way out, beside the transmit path itself.

use crate::apertures::ApertureTable;
use crate::delivery::Delivery;
use crate::demux::FlowTable;
use crate::device_counters::DeviceCounters;
use crate::memories::{TransmitMemories, TransmitMemory};
use crate::oob::OobTable;
use crate::port::DevicePort;
use crate::remote::table::RemoteTable;
use crate::session::Session;

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

impl<'a> TxContext<'a> {
    /// Returns the session whose turn it is. No session ends before its turn does, so `None` is an error of the
    /// engine; the caller then drops the packet.
    #[inline]
    pub(super) fn sender(&mut self, key: u32) -> Option<&mut Session> {
        let session = self.delivery.session(key);
        debug_assert!(session.is_some(), "session {key} ended in its turn");
        session
    }

    /// Returns the memory from which the session sends whose turn it is; as [`TxContext::sender`].
    #[inline]
    pub(super) fn sender_memory(&self, key: u32) -> Option<&'a TransmitMemory> {
        let memory = self.memories.get(key);
        debug_assert!(memory.is_some(), "the memory of session {key} is gone in its turn");
        memory
    }
}
