//! The receiving part of a session: what delivery and the receive queues' publication need.

use towpath_memory::Region;
use towpath_queue::buffers::BufferLedger;
use towpath_queue::receive::ReceiveProducer;
use towpath_queue::{PoolShape, Violation};

use crate::coalescing::{self, Coalescing};
use crate::session::endpoints::Endpoints;

/// A receive queue, and the engine's own state for it.
#[derive(Debug)]
struct ReceiveQueue {
    producer: ReceiveProducer,
    /// Received packets after which the engine notifies the application.
    rx_frames: u32,
    /// The longest deferral of a notification for received packets, in microseconds; 0 for none.
    rx_usecs: u32,
    /// The coalescing settings of the endpoints that use the queue.
    coalescing: Coalescing,
    /// `true` if the queue pair is in the list of those that the engine publishes at the end of the
    /// poll iteration; from its publication on, `true` if it has new packets.
    touched: bool,
}

/// The endpoints of a session, its receive queues, and the memory for received packets, which only the engine writes:
/// all that delivery needs.
#[derive(Debug)]
pub(crate) struct ReceiveSide {
    queues: Vec<ReceiveQueue>,
    /// The owner of each buffer.
    ledger: BufferLedger,
    pool: PoolShape,
    memory: Region,
    pub(crate) endpoints: Endpoints,
    /// The application's violation. The engine finds it within a poll iteration and acts on it at
    /// the end.
    pub(crate) violation: Option<Violation>,
}

/// A receive queue, with the memory, the pool and the endpoints that a delivery needs.
pub(crate) struct Buffers<'a> {
    pub(crate) queue: &'a mut ReceiveProducer,
    pub(crate) memory: &'a mut Region,
    pub(crate) pool: PoolShape,
    pub(crate) endpoints: &'a mut Endpoints,
}

/// What the engine published of a receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    /// The number of packets.
    pub(crate) packets: u32,
    /// Packets after which the engine notifies the application.
    pub(crate) rx_frames: u32,
    /// The longest deferral of a notification, in microseconds; 0 for none.
    pub(crate) rx_usecs: u32,
}

impl ReceiveSide {
    pub(super) fn new(
        queues: impl Iterator<Item = ReceiveProducer>,
        ledger: BufferLedger,
        pool: PoolShape,
        memory: Region,
        endpoints: Endpoints,
    ) -> ReceiveSide {
        let queue = |producer| ReceiveQueue {
            producer,
            rx_frames: coalescing::UNSET.0,
            rx_usecs: coalescing::UNSET.1,
            coalescing: Coalescing::default(),
            touched: false,
        };
        let queues = queues.map(queue).collect();
        ReceiveSide { queues, ledger, pool, memory, endpoints, violation: None }
    }

    /// Returns the shape of the pool of receive buffers.
    #[inline(always)]
    pub(crate) fn pool(&self) -> PoolShape {
        self.pool
    }

    /// Returns the memory of the buffers.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &Region {
        &self.memory
    }

    /// Returns a queue.
    #[inline(always)]
    pub(crate) fn queue(&mut self, queue_pair: u32) -> &mut ReceiveProducer {
        &mut self.queues[queue_pair as usize].producer
    }

    /// Returns a queue with the memory of its buffers.
    #[inline(always)]
    pub(crate) fn buffers(&mut self, queue_pair: u32) -> Buffers<'_> {
        let queue = &mut self.queues[queue_pair as usize].producer;
        let (memory, endpoints) = (&mut self.memory, &mut self.endpoints);
        Buffers { queue, memory, pool: self.pool, endpoints }
    }

    /// Reads the buffers that the application has provided for a queue since the last call. Returns `true` if at least
    /// `buffers` are available. Records a violation, unless there is one already.
    #[inline(never)]
    pub(crate) fn observe(&mut self, queue_pair: u32, buffers: usize) -> bool {
        match self.queues[queue_pair as usize].producer.observe(&mut self.ledger) {
            Ok(available) => available as usize >= buffers,
            Err(violation) => {
                self.violation.get_or_insert(violation);
                false
            }
        }
    }

    /// Records that the engine has to publish a queue pair. Returns `false` if it knew that already.
    #[inline]
    pub(crate) fn touch(&mut self, queue_pair: u32) -> bool {
        !std::mem::replace(&mut self.queues[queue_pair as usize].touched, true)
    }

    /// Records that the engine has published a queue pair. Returns `true` if the queue pair has new packets.
    #[inline]
    pub(crate) fn untouch(&mut self, queue_pair: u32) -> bool {
        std::mem::take(&mut self.queues[queue_pair as usize].touched)
    }

    /// Publishes the packets of a queue.
    #[inline]
    pub(crate) fn publish(&mut self, queue_pair: u32) -> Published {
        let queue = &mut self.queues[queue_pair as usize];
        let packets = queue.producer.publish(&mut self.ledger);
        queue.touched = packets > 0;
        Published { packets, rx_frames: queue.rx_frames, rx_usecs: queue.rx_usecs }
    }

    /// Returns `true` if the application has half of a queue's buffers or less left. By the state that the engine last
    /// read, this may seem so; the engine then reads the queue again, which it otherwise does when it has no buffers
    /// left.
    #[inline]
    pub(crate) fn is_half_used(&mut self, queue_pair: u32) -> bool {
        self.queue(queue_pair).is_half_used() && {
            self.observe(queue_pair, 0);
            self.queue(queue_pair).is_half_used()
        }
    }

    /// Changes the coalescing settings of an endpoint that uses a queue: from `old` to `new`, of which `None` stands
    /// for no endpoint. The lowest settings of the endpoints that share a queue apply.
    pub(super) fn coalesce(
        &mut self,
        queue_pair: u32,
        old: Option<(u32, u32)>,
        new: Option<(u32, u32)>,
    ) {
        let queue = &mut self.queues[queue_pair as usize];
        old.into_iter().for_each(|old| queue.coalescing.remove(old));
        new.into_iter().for_each(|new| queue.coalescing.add(new));
        (queue.rx_frames, queue.rx_usecs) = queue.coalescing.least();
    }
}
