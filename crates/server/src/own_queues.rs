//! The hardware queues that sessions have to themselves, as the control thread knows them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use towpath_engine::own::BounceFile;
use towpath_queue::PoolShape;

use crate::prepare::Mapped;
use crate::queue_opener::{Done, QueueOpener, Task};

/// The pause before the control thread asks the kernel for a hardware queue again.
const PAUSE: Duration = Duration::from_secs(1);

/// The most bytes of a session's receive and transmit buffers. The kernel pins all of them at once.
pub(crate) const MAX_BYTES: usize = 32 << 20;

/// The hardware queues that sessions have, or are about to have.
#[derive(Debug)]
pub(crate) struct OwnQueues {
    /// The bounce buffers, from which the device sends; `None` for a device without such queues.
    bounce_file: Option<BounceFile>,
    /// The thread that opens and closes them; `None` for a device without such queues.
    opener: Option<QueueOpener>,
    /// The hardware queues that sessions have, by number.
    taken: HashSet<u32>,
    /// Those without a session that the thread tries to take back.
    tried: HashSet<u32>,
    /// Sessions that wait until the engine has ceded their hardware queue, by that queue's number;
    /// each with the token of its connection.
    waiting: HashMap<u32, (u64, Mapped)>,
    /// Hardware queues that the kernel did not give back yet, and the time of the next attempt.
    late: Vec<u32>,
    next_attempt: Option<Instant>,
    /// The open queues, and the one that receives all packets.
    open: HashSet<u32>,
    directed: Option<u32>,
}

impl OwnQueues {
    pub(crate) fn new(bounce_file: Option<BounceFile>, opener: Option<QueueOpener>) -> OwnQueues {
        OwnQueues {
            bounce_file,
            opener,
            taken: HashSet::new(),
            tried: HashSet::new(),
            waiting: HashMap::new(),
            late: Vec::new(),
            next_attempt: None,
            open: HashSet::new(),
            directed: None,
        }
    }

    /// Records that a session's hardware queue is open.
    pub(crate) fn opened(&mut self, hardware: u32) {
        self.open.insert(hardware);
    }

    /// Records that a session's hardware queue is about to be closed.
    pub(crate) fn closes(&mut self, hardware: u32) {
        self.open.remove(&hardware);
    }

    /// Returns `true` if a session's hardware queue is open.
    pub(crate) fn is_open(&self, hardware: u32) -> bool {
        self.open.contains(&hardware)
    }

    /// Records the queue that is to receive all packets. Returns `true` if that changes.
    pub(crate) fn direct(&mut self, wanted: Option<u32>) -> bool {
        std::mem::replace(&mut self.directed, wanted) != wanted
    }

    /// Returns the bounce buffers.
    pub(crate) fn bounce_file(&self) -> Option<&BounceFile> {
        self.bounce_file.as_ref()
    }

    /// Returns `true` if sessions can have hardware queues, as found at the start.
    pub(crate) fn are_ready(&self) -> bool {
        self.bounce_file.is_some() && self.opener.is_some()
    }

    /// Records that a session is to have a hardware queue.
    pub(crate) fn reserve(&mut self, hardware: u32) {
        self.taken.insert(hardware);
    }

    /// Records that no session has a hardware queue, and that it is not open.
    pub(crate) fn release(&mut self, hardware: u32) {
        self.taken.remove(&hardware);
    }

    /// Returns `true` if no session has a hardware queue or is about to have one, and the kernel has given all back.
    pub(crate) fn are_all_back(&self) -> bool {
        self.taken.is_empty() && self.tried.is_empty() && self.late.is_empty()
    }

    /// Returns `true` if a session may have a hardware queue.
    pub(crate) fn is_free(&self, hardware: u32) -> bool {
        !self.taken.contains(&hardware) && !self.tried.contains(&hardware)
    }

    /// Gives the thread a task.
    pub(crate) fn push(&self, task: Task) {
        if let Some(opener) = &self.opener {
            opener.push(task);
        }
    }

    /// Returns the next result of the thread.
    pub(crate) fn next_done(&self) -> Option<Done> {
        self.opener.as_ref()?.next_done()
    }

    /// Records that the kernel does not give a hardware queue back yet.
    pub(crate) fn try_later(&mut self, hardware: u32) {
        self.late.push(hardware);
        self.next_attempt = Some(Instant::now() + PAUSE);
    }

    /// Records that the thread has tried to take a hardware queue back.
    pub(crate) fn tried(&mut self, hardware: u32) {
        self.tried.remove(&hardware);
    }

    /// Returns the time until the next attempt.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        Some(self.next_attempt?.saturating_duration_since(Instant::now()))
    }

    /// Takes the hardware queues to try again now. Those that a session is to have wait for it.
    pub(crate) fn take_late(&mut self) -> Vec<u32> {
        if self.next_attempt.is_none_or(|attempt| attempt > Instant::now()) {
            return Vec::new();
        }
        let (wait, now): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.late).into_iter().partition(|late| self.taken.contains(late));
        self.next_attempt = (!wait.is_empty()).then(|| Instant::now() + PAUSE);
        self.late = wait;
        self.tried.extend(&now);
        now
    }

    /// Keeps a session that waits for its hardware queue. The server asks for that queue when the
    /// session ends.
    pub(crate) fn wait(&mut self, hardware: u32, token: u64, mapped: Mapped) {
        self.late.retain(|late| *late != hardware);
        self.waiting.insert(hardware, (token, mapped));
    }

    /// Takes the session that waits for a hardware queue, and its connection.
    pub(crate) fn take_waiting(&mut self, hardware: u32) -> Option<(u64, Mapped)> {
        self.waiting.remove(&hardware)
    }
}

/// Returns the least and the most data bytes of receive buffers. The range has the possible
/// distances from the start of one buffer to the start of the next.
pub(crate) fn data_bytes(buffer_bytes: std::ops::RangeInclusive<u32>) -> (u32, u32) {
    let fits = |data: &u32| {
        let shape = PoolShape::new(1, *data);
        shape.is_some_and(|shape| buffer_bytes.contains(&shape.frame_bytes()))
    };
    let most = *buffer_bytes.end();
    let least = (1..=most).find(fits).unwrap_or(0);
    (least, (least..=most).rev().find(fits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_queue_is_asked_for_once_after_a_pause() {
        let mut queues = OwnQueues::new(None, None);
        assert_eq!((queues.next_deadline(), queues.take_late()), (None, vec![]));
        queues.try_later(3);
        assert!(queues.next_deadline().unwrap() <= PAUSE && queues.take_late().is_empty());
        queues.next_attempt = Some(Instant::now());
        assert_eq!((queues.take_late(), queues.next_deadline()), (vec![3], None));
        assert!(queues.take_late().is_empty() && !queues.is_free(3) && !queues.are_all_back());
        queues.tried(3);
        assert!(queues.is_free(3) && queues.are_all_back());
        // A session that is to have it may yet give up.
        queues.reserve(3);
        queues.try_later(3);
        queues.next_attempt = Some(Instant::now());
        assert!(queues.take_late().is_empty() && queues.next_deadline().is_some());
        queues.release(3);
        queues.next_attempt = Some(Instant::now());
        assert_eq!(queues.take_late(), [3]);
    }

    #[test]
    fn the_data_bytes_of_buffers_that_fit() {
        let (least, most) = data_bytes(2048..=4096);
        let distance = |data| PoolShape::new(1, data).unwrap().frame_bytes();
        assert!(distance(least) >= 2048 && distance(least - 1) < 2048);
        assert!(distance(most) <= 4096 && distance(most + 1) > 4096);
        assert!((least..=most).contains(&2048), "the default of applications");
    }
}
