//! Segmentation of a large packet in software, for a device that does not segment it.

use towpath_device::{DeviceError, Meta};
use towpath_packet::offload;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_protocol::counters::Endpoint as EndpointCount;

use crate::delivery::partial;
use crate::port::BOUNCE_SLOTS;
use crate::source::{Source, TAGGED_BYTES};
use crate::tx::TxPath;
use crate::tx::context::TxContext;
use crate::tx::handoff::BACKLOG_SLOTS;
use crate::tx::outcome::EntryOutcome;
use crate::tx::outgoing::Outgoing;

// A packet segmented in software has room behind those that wait, and in the bounce buffers.
const _: () = assert!(offload::MAX_SENT_SEGMENTS <= BACKLOG_SLOTS / 2);
const _: () = assert!(offload::MAX_SENT_SEGMENTS <= BOUNCE_SLOTS as usize / 2);

impl TxPath {
    /// Sends a large packet as segments with full checksums.
    pub(super) fn send_segments(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        context: &mut TxContext<'_>,
    ) -> Result<EntryOutcome, DeviceError> {
        let mut beginning = [0; TAGGED_BYTES];
        let held = self.bounce.bytes(one.slot).len();
        beginning[..held].copy_from_slice(self.bounce.bytes(one.slot));
        let Ok(mut segmenter) = Segmenter::new(&beginning[..held], one.len, &meta) else {
            return Ok(one.refuse(EndpointCount::TxMalformed, context));
        };
        let Some(memory) = context.sender_memory(one.key) else { return Ok(EntryOutcome::Done) };
        let packets = segmenter.remaining() as u32;
        let in_flight = one.begin_in_flight(packets, &mut self.in_flight, context);
        let Some(in_flight_slot) = in_flight else {
            return Ok(EntryOutcome::NoRoom);
        };
        let pieces = std::mem::take(&mut self.pieces);
        let source =
            Source { prefix: &beginning[..held], memory: memory.mapping(), pieces: &pieces };
        let mut header = [0; MAX_HEADER_BYTES];
        let own = context.sender(one.key).and_then(|session| session.extras.own.place());
        let mut own_slot = Some(one.slot);
        let mut outcome = Ok(EntryOutcome::HandedOff);
        while let Some(segment) = segmenter.next(&mut header) {
            let payload = segment.payload.clone();
            let (header_bytes, meta) = segment.leave_partial(&mut header);
            // The first segment takes the packet's own slot. The engine has checked before that
            // there are enough.
            let slot = own_slot.take().or_else(|| self.bounce.take());
            debug_assert!(slot.is_some(), "a segment without a bounce buffer");
            let Some(slot) = slot else { break };
            let (header, complete) = (&header[..header_bytes], partial(&meta));
            let built =
                self.bounce.build(slot, header, source, payload.start, payload.len(), complete);
            let part = self.bounce.part(slot, own);
            let entry = &mut self.bounce.slots[slot as usize];
            entry.parts.clear();
            entry.parts.push(part);
            entry.meta = Meta::FULL;
            entry.tag = None;
            entry.in_flight_slot = in_flight_slot;
            if !built {
                one.refuse(EndpointCount::TxTooLong, context);
                let (sessions, notifier) = context.delivery.parts();
                self.complete_slot(slot, sessions, notifier);
                continue;
            }
            if let Err(error) = self.handoff.hand_off(slot, false, &self.bounce, context.port) {
                outcome = Err(error);
                break;
            }
        }
        self.pieces = pieces;
        outcome
    }
}
