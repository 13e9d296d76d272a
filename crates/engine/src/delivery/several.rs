//! The delivery of several packets to one session, each copied into one buffer.

use std::ops::Range;

use towpath_device::Meta;
use towpath_memory::{Mapping, Region};
use towpath_protocol::counters::Endpoint as EndpointCount;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, prefetch_distance};

use crate::copy::count_delivered;
use crate::delivery::endpoint::{Budget, admit, count};
use crate::notifier::Notifier;
use crate::session::events::Events;
use crate::session::receive_side::{Buffers, ReceiveSide};
use crate::source::{Piece, Source};

/// The receiver of several packets, none of which needs checksums or segmentation.
pub(crate) struct Receiver<'a> {
    pub(super) key: u32,
    pub(super) side: &'a mut ReceiveSide,
    pub(super) events: &'a Events,
    pub(super) notifier: &'a mut Notifier,
    pub(super) budget: Budget,
}

/// A packet that needs neither checksums nor segmentation.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'p> {
    /// The endpoint that receives it.
    pub(crate) endpoint: u32,
    /// Its beginning, in private memory.
    pub(crate) beginning: &'p [u8],
    /// The rest, in the memory that it is sent from; of no bytes for a packet that is whole.
    pub(crate) rest: Piece,
}

impl Frame<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.beginning.len() + self.rest.len as usize
    }
}

impl Receiver<'_> {
    /// Delivers packets, by their numbers in a batch. `memory`: where they are sent from.
    #[inline]
    pub(crate) fn deliver_all<'p>(
        &mut self,
        packets: Range<usize>,
        memory: &Mapping,
        frame: impl Fn(usize) -> Frame<'p>,
    ) {
        let mut next = packets.start;
        while next < packets.end {
            let first = frame(next);
            let Some(endpoint) = self.side.endpoints.get(first.endpoint) else {
                next += 1;
                continue;
            };
            let queue_pair = endpoint.queue_pair;
            let delivered = self.fill(queue_pair, next..packets.end, memory, &frame);
            if delivered == next {
                // There is no buffer, or the packet needs several.
                let pieces: &[Piece] = if first.rest.len > 0 { &[first.rest] } else { &[] };
                let source = Source { prefix: first.beginning, memory, pieces };
                self.deliver_alone(first.endpoint, source);
            }
            next = delivered.max(next + 1);
        }
    }

    /// Delivers packets of one queue pair, each in one buffer. Returns the number of the first that
    /// is not among them.
    #[inline(always)]
    fn fill<'p>(
        &mut self,
        queue_pair: u32,
        packets: Range<usize>,
        memory: &Mapping,
        frame: &impl Fn(usize) -> Frame<'p>,
    ) -> usize {
        let side = &mut *self.side;
        let mut next = packets.start;
        if side.violation.is_some() {
            return next;
        }
        if side.queue(queue_pair).available() == 0 && !side.observe(queue_pair, 1) {
            // The notifier condemns the session if the application violated the protocol.
            self.notifier.touch(side, self.key, queue_pair);
            return next;
        }
        let Buffers { queue, memory: buffers, pool, endpoints } = side.buffers(queue_pair);
        // The notifier writes these lines at the end of the poll iteration; the application has
        // them.
        queue.prefetch_publication();
        self.events.prefetch(queue_pair);
        let mut filling = queue.fill();
        while next < packets.end
            && let Some(buffer) = filling.buffer(0)
        {
            let one = frame(next);
            let Some(endpoint) = endpoints.get_mut(one.endpoint) else { break };
            if endpoint.queue_pair != queue_pair || one.len() > pool.data_bytes() as usize {
                break;
            }
            next += 1;
            if self.budget.admit(endpoint).is_none() {
                count(endpoints, one.endpoint, EndpointCount::RxOverBudget);
                continue;
            }
            if let Some(later) = filling.buffer(prefetch_distance(one.len())) {
                let start = pool.buffer_offset(later) + HEADROOM_BYTES as usize;
                buffers.prefetch_to_write(start, one.len());
            }
            let start = pool.buffer_offset(buffer) + HEADROOM_BYTES as usize;
            if !copy(&one, memory, buffers, start) {
                count(endpoints, one.endpoint, EndpointCount::RxUnusable);
                continue;
            }
            filling.push(Descriptor {
                buffer,
                start: HEADROOM_BYTES,
                len: one.len() as u32,
                endpoint: one.endpoint,
                flags: 0,
            });
            count_delivered(endpoints.counters(), one.endpoint, one.len());
        }
        drop(filling);
        self.notifier.touch(side, self.key, queue_pair);
        next
    }

    /// Delivers a packet that [`Receiver::fill`] does not deliver.
    #[inline(never)]
    fn deliver_alone(&mut self, endpoint: u32, source: Source<'_>) {
        self.deliver(endpoint, source);
    }

    /// Delivers one packet.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, endpoint: u32, source: Source<'_>) {
        let Some((mut to, _)) = admit(self.side, endpoint, self.budget) else { return };
        let outcome = to.one(source, Meta::FULL, None);
        to.count(outcome);
        self.notifier.touch(to.side, self.key, to.queue_pair);
    }
}

/// Copies a packet into a buffer that has room for it. Returns `false` if a range is out of bounds.
#[inline(always)]
fn copy(one: &Frame<'_>, memory: &Mapping, buffers: &mut Region, start: usize) -> bool {
    let Piece { offset, len } = one.rest;
    buffers.copy_in(start, one.beginning)
        && (len == 0
            || buffers.copy_from(
                start + one.beginning.len(),
                memory,
                offset as usize,
                len as usize,
            ))
}
