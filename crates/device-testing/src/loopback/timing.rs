//! The times of a device that is slower than its driver: late and batched completions.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use towpath_device::{Completion, Outcome};

/// How late a device reports, and what a kick costs. By default, a device reports at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The device reports completions once so many of them are due, 1 or more. Above 1,
    /// `completion_delay` must not be zero.
    pub completion_batch: usize,
    /// The device reports fewer completions this long after the first one of them.
    pub completion_delay: Duration,
    /// The least time between two wake-ups through [`sleep_fd`](towpath_device::DeviceQueue::sleep_fd).
    pub interrupt_delay: Duration,
    /// How long a kick with new packets keeps its caller, as a write to a device register does.
    pub kick_time: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            completion_batch: 1,
            completion_delay: Duration::ZERO,
            interrupt_delay: Duration::ZERO,
            kick_time: Duration::ZERO,
        }
    }
}

impl Timing {
    pub(super) fn check(&self) -> io::Result<()> {
        let batch_ends = self.completion_batch == 1 || !self.completion_delay.is_zero();
        if self.completion_batch > 0 && batch_ends {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
    }

    /// `true` if completions may come later than the calls that send the packets.
    pub(super) fn is_late(&self) -> bool {
        self.completion_batch > 1
    }

    /// `true` if the device wakes its engine at set times.
    pub(super) fn needs_timer(&self) -> bool {
        self.is_late() || !self.interrupt_delay.is_zero()
    }

    /// Takes the time of a kick.
    #[inline]
    pub(super) fn kick(&self) {
        if !self.kick_time.is_zero() {
            let start = Instant::now();
            while start.elapsed() < self.kick_time {
                std::hint::spin_loop();
            }
        }
    }
}

/// A completion, and the descriptors that its packet took.
pub(super) struct Done {
    pub(super) token: u64,
    pub(super) outcome: Outcome,
    pub(super) descriptors: u32,
}

impl Done {
    #[inline]
    pub(super) fn completion(&self) -> Completion {
        Completion { token: self.token, outcome: self.outcome }
    }
}

/// Completions that the engine has not fetched.
pub(super) struct Completions {
    timing: Timing,
    /// Those that the device reports.
    reported: VecDeque<Done>,
    /// Those that it reports later, since the time of the first one.
    late: VecDeque<Done>,
    since: Option<Instant>,
}

impl Completions {
    pub(super) fn new(timing: Timing, packets: usize) -> Completions {
        let late = if timing.is_late() { packets } else { 0 };
        Completions {
            timing,
            reported: VecDeque::with_capacity(packets),
            late: VecDeque::with_capacity(late),
            since: None,
        }
    }

    /// Returns the number of completions, also of those that the device does not report yet.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.reported.len() + self.late.len()
    }

    #[inline]
    pub(super) fn has_reported(&self) -> bool {
        !self.reported.is_empty()
    }

    #[inline]
    pub(super) fn push(&mut self, done: Done) {
        self.open().push_back(done);
        self.note_time();
    }

    /// Returns the queue for completions of this moment. [`Completions::note_time`] follows.
    #[inline]
    pub(super) fn open(&mut self) -> &mut VecDeque<Done> {
        if self.timing.is_late() { &mut self.late } else { &mut self.reported }
    }

    /// Notes the time of the first late completion.
    #[inline]
    pub(super) fn note_time(&mut self) {
        if !self.late.is_empty() && self.since.is_none() {
            self.since = Some(Instant::now());
        }
    }

    /// Reports completions that are due.
    #[inline]
    pub(super) fn advance(&mut self) {
        if !self.late.is_empty()
            && (self.late.len() >= self.timing.completion_batch
                || self.due().is_some_and(|due| due <= Instant::now()))
        {
            self.report_all();
        }
    }

    /// Reports all completions now.
    pub(super) fn report_all(&mut self) {
        self.reported.append(&mut self.late);
        self.since = None;
    }

    /// Adds the completion of a packet that a reset ended.
    pub(super) fn push_returned(&mut self, done: Done) {
        self.reported.push_back(done);
    }

    /// Returns when the device reports the next completions at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.timing.completion_delay)
    }

    /// Takes reported completions.
    #[inline]
    pub(super) fn take(&mut self, budget: usize) -> impl Iterator<Item = Done> {
        let count = self.reported.len().min(budget);
        self.reported.drain(..count)
    }
}
