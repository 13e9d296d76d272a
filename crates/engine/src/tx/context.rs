//! The parts of the engine that a packet needs on its way out, beside the transmit path itself.

use towpath_queue::Violation;

use crate::apertures::ApertureTable;
use crate::delivery::Delivery;
use crate::demux::{Destination, FlowTable};
use crate::device_counters::DeviceCounters;
use crate::memories::{TransmitMemories, TransmitMemory};
use crate::oob::{OobParts, OobTable, Sender};
use crate::port::DevicePort;
use crate::remote::table::RemoteTable;
use crate::session::Session;
use crate::tx::batch::Batch;

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

    /// Returns the parts of the engine that an out-of-band message or a request needs.
    pub(super) fn parts(&mut self) -> OobParts<'_> {
        let (sessions, notifier) = self.delivery.parts();
        OobParts { sessions, notifier, apertures: self.apertures, remote: self.remote }
    }

    /// Returns the sender of an entry of a batch that is no packet; `None` as [`TxContext::sender`].
    ///
    /// # Errors
    /// The violation of an entry whose endpoint is not of its queue pair.
    pub(super) fn entry_sender(
        &mut self,
        batch: &Batch,
        index: usize,
    ) -> Result<Option<Sender>, Violation> {
        let (endpoint, slot) = (batch.packets[index].endpoint, batch.packets[index].first);
        let (session, queue_pair) = (batch.key, batch.queue_pair);
        let Some(sender) = self.sender(session) else { return Ok(None) };
        let named = sender.receive.endpoints.named(endpoint)?;
        if named.is_some_and(|named| named.queue_pair != queue_pair) {
            return Err(Violation::Endpoint);
        }
        let (from, session) = (Destination { session, endpoint }, sender.number());
        Ok(Some(Sender { from, session, queue_pair, slot, may_repeat: false }))
    }
}
