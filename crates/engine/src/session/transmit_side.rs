//! The sending part of a session.

use std::sync::Arc;

use towpath_device::{Registration, SpaceId};
use towpath_memory::Mapping;
use towpath_queue::buffers::BufferLedger;
use towpath_queue::transmit::TransmitConsumer;

use crate::coalescing::Values;
use crate::schedule::arrivals::Arrivals;
use crate::schedule::shape::{Class, Shape};

/// A transmit queue, and the engine's own state for it.
#[derive(Debug)]
pub(crate) struct TransmitQueue {
    pub(crate) consumer: TransmitConsumer,
    /// The queue pair's number in the scheduler; the engine assigns it.
    pub(crate) unit: u32,
    /// Number of endpoints with settings of their own that use the queue.
    shapes: u32,
    /// The maximum delays of such endpoints, in microseconds.
    delays: Values,
    /// The arrival times of packets, if an endpoint that uses the queue has a maximum delay.
    arrivals: Option<Box<Arrivals>>,
}

impl TransmitQueue {
    /// Returns `true` if an endpoint that uses the queue has settings of its own. The engine then checks the queue's
    /// packets one by one.
    #[inline(always)]
    pub(crate) fn is_shaped(&self) -> bool {
        self.shapes > 0
    }

    /// Records the arrival of the packets that the engine has seen, at a time in nanoseconds.
    #[inline]
    pub(crate) fn note_arrivals(&mut self, now: u64) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.note(self.consumer.seen(), now);
        }
    }

    /// Looks for new packets and records their arrival, if that matters to an endpoint.
    #[inline]
    pub(crate) fn observe_arrivals(&mut self, now: u64) {
        if self.arrivals.is_some() && self.consumer.observe().is_ok() {
            self.note_arrivals(now);
        }
    }

    /// Returns the time at which the packet at an index arrived, or the present time if that does not matter.
    #[inline]
    pub(crate) fn arrival(&mut self, index: u32, now: u64) -> u64 {
        let Some(arrivals) = &mut self.arrivals else { return now };
        arrivals.note(self.consumer.seen(), now);
        arrivals.of(index, now)
    }

    /// Records that the settings of an endpoint that uses the queue changed.
    fn note_shape(&mut self, old: Option<&Shape>, new: Option<&Shape>) {
        let delay = |shape: &Shape| match shape.set.max_delay_us {
            0 => u32::MAX,
            delay => delay,
        };
        if let Some(old) = old {
            self.shapes -= 1;
            self.delays.remove(delay(old));
        }
        if let Some(new) = new {
            self.shapes += 1;
            self.delays.add(delay(new));
        }
        let least_us = self.delays.least(self.shapes);
        self.arrivals =
            (least_us < u32::MAX).then(|| Box::new(Arrivals::new(u64::from(least_us) * 1000)));
    }
}

/// The place from which the device sends a session's packets; the engine assigns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendsFrom {
    /// The transmit buffer pool as a data space.
    pub(crate) space: SpaceId,
    /// `true` if the device sends directly from the transmit buffer pool.
    pub(crate) in_place: bool,
}

/// The transmit queues of a session, and the memory with packets to send. Only the application writes this memory.
#[derive(Debug)]
pub(crate) struct TransmitSide {
    queues: Vec<TransmitQueue>,
    /// The owner of each buffer.
    ledger: BufferLedger,
    memory: Arc<Mapping>,
    /// The registration of the memory with a device that needs it.
    pub(crate) registration: Option<Registration>,
    pub(crate) sends_from: SendsFrom,
    /// The sending state of the endpoints with settings of their own, by endpoint number.
    shapes: Vec<Option<Box<Shape>>>,
    /// Number of queue pairs that the engine must check again because settings changed, and the
    /// first of them.
    to_recheck: (u32, u32),
    /// Packets in flight.
    in_flight: u32,
}

impl TransmitSide {
    pub(super) fn new(
        queues: impl Iterator<Item = TransmitConsumer>,
        ledger: BufferLedger,
        memory: Arc<Mapping>,
        endpoints: u32,
    ) -> TransmitSide {
        let queue = |consumer| TransmitQueue {
            consumer,
            unit: u32::MAX,
            shapes: 0,
            delays: Values::new(u32::MAX),
            arrivals: None,
        };
        TransmitSide {
            queues: queues.map(queue).collect(),
            ledger,
            memory,
            registration: None,
            sends_from: SendsFrom { space: SpaceId(u32::MAX), in_place: false },
            shapes: (0..endpoints).map(|_| None).collect(),
            to_recheck: (0, 0),
            in_flight: 0,
        }
    }

    /// Returns the memory with packets to send.
    #[inline]
    pub(crate) fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Returns the queue of a queue pair.
    #[inline(always)]
    pub(crate) fn queue(&mut self, queue_pair: u32) -> &mut TransmitQueue {
        &mut self.queues[queue_pair as usize]
    }

    /// Returns the queue of a queue pair, if there is one with this number.
    #[inline]
    pub(crate) fn get(&self, queue_pair: u32) -> Option<&TransmitQueue> {
        self.queues.get(queue_pair as usize)
    }

    /// Returns the queue of a queue pair, if there is one with this number.
    #[inline]
    pub(crate) fn get_mut(&mut self, queue_pair: u32) -> Option<&mut TransmitQueue> {
        self.queues.get_mut(queue_pair as usize)
    }

    /// Returns all queues, by the numbers of their queue pairs.
    pub(crate) fn queues(&mut self) -> impl Iterator<Item = &mut TransmitQueue> {
        self.queues.iter_mut()
    }

    /// Returns a queue, the owners of buffers, and the sending state of endpoints.
    #[inline(always)]
    pub(crate) fn parts(
        &mut self,
        queue_pair: u32,
    ) -> (&mut TransmitQueue, &mut BufferLedger, &[Option<Box<Shape>>]) {
        (&mut self.queues[queue_pair as usize], &mut self.ledger, &self.shapes)
    }

    /// Completes packets of a queue: slots beginning with `first`.
    #[inline]
    pub(crate) fn complete(&mut self, queue_pair: u32, first: u32, slots: u32) {
        let queue = &mut self.queues[queue_pair as usize];
        queue.consumer.complete(&mut self.ledger, first, slots);
    }

    /// Puts packets back that the engine took out of a queue, from slot `first` on.
    pub(crate) fn put_back(&mut self, queue_pair: u32, first: u32) {
        let queue = &mut self.queues[queue_pair as usize];
        queue.consumer.put_back(&mut self.ledger, first);
    }

    /// Publishes the completed packets of a queue.
    #[inline]
    pub(crate) fn publish(&mut self, queue_pair: u32) {
        self.queues[queue_pair as usize].consumer.publish();
    }

    /// Returns the number of packets in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Records one more packet in flight.
    #[inline]
    pub(crate) fn begin_in_flight(&mut self) {
        self.in_flight += 1;
    }

    /// Records one packet in flight less. Returns how many are left.
    #[inline]
    pub(crate) fn end_in_flight(&mut self) -> u32 {
        self.in_flight -= 1;
        self.in_flight
    }

    /// Records that no packet is in flight any more.
    pub(crate) fn forget_in_flight(&mut self) {
        self.in_flight = 0;
    }

    /// Returns the sending state of an endpoint with settings of its own.
    #[inline]
    pub(crate) fn shape(&mut self, endpoint: u32) -> Option<&mut Shape> {
        self.shapes.get_mut(endpoint as usize)?.as_deref_mut()
    }

    /// Replaces the sending state of an endpoint that uses a queue pair. Returns the old state.
    pub(crate) fn set_shape(
        &mut self,
        endpoint: u32,
        queue_pair: u32,
        new: Option<Shape>,
    ) -> Option<Shape> {
        let slot = self.shapes.get_mut(endpoint as usize)?;
        if slot.is_none() && new.is_none() {
            return None;
        }
        let old = std::mem::replace(slot, new.map(Box::new)).map(|old| *old);
        self.queues[queue_pair as usize].note_shape(old.as_ref(), new.as_ref());
        old
    }

    /// Takes the sending states out, at the session's end.
    pub(crate) fn take_shapes(&mut self) -> Vec<Option<Box<Shape>>> {
        std::mem::take(&mut self.shapes)
    }

    /// Returns the scheduler's line for an endpoint's packets.
    #[must_use]
    pub(crate) fn class(&self, endpoint: u32) -> Class {
        let shape = self.shapes.get(endpoint as usize).and_then(Option::as_deref);
        shape.map_or_else(Class::default, |shape| shape.set.class())
    }

    /// Makes the engine check all queue pairs again. Returns `false` if it has to check some already.
    pub(crate) fn recheck_all(&mut self) -> bool {
        let was_idle = self.to_recheck.0 == 0;
        self.to_recheck.0 = self.queues.len() as u32;
        was_idle
    }

    /// Passes at most `most` queue pairs that the engine must check again, by their numbers in the scheduler. Returns
    /// how many, and whether some are left.
    pub(crate) fn recheck(&mut self, most: u32, mut check: impl FnMut(u32)) -> (u32, bool) {
        let (left, mut next) = self.to_recheck;
        let count = left.min(most);
        for _ in 0..count {
            check(self.queues[next as usize].unit);
            next = (next + 1) % self.queues.len() as u32;
        }
        self.to_recheck = (left - count, next);
        (count, left > count)
    }
}
