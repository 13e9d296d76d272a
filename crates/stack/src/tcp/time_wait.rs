//! Closed connections whose late segments may still arrive (TIME-WAIT, RFC 9293 3.6.1).
//!
//! An entry has the four-tuple and two sequence numbers, and no buffer.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::ports::LocalPorts;
use super::segment::Segment;
use super::sequence::Seq;
use super::tuple::Tuple;
use crate::{Counters, Instant};

/// The least time between two answers to segments for one entry.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);

/// The remaining state of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remains {
    /// The next sequence number that we would have sent.
    pub(super) send_next: Seq,
    /// The next sequence number that we would have accepted.
    pub(super) receive_next: Seq,
    /// The origin of our timestamp clock, and the peer's last timestamp, if both used them.
    pub(super) stamps: Option<(u32, u32)>,
}

impl Remains {
    /// Returns `true` if a SYN is newer than all segments of the connection: by its timestamp if
    /// both sides used them (RFC 6191, 2), else by its number (RFC 9293, 3.6.1).
    pub(super) fn is_older_than(&self, syn: &Segment) -> bool {
        let is_beyond = syn.sequence.after(self.receive_next - 1);
        match (self.stamps, syn.options.timestamps) {
            (Some((_, recent)), Some((clock, _))) if clock != recent => {
                clock.wrapping_sub(recent) as i32 > 0
            }
            _ => is_beyond,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    remains: Remains,
    until: Instant,
    /// The time at which the entry stands in the order.
    queued: Instant,
    /// The time of the last answer to a segment.
    answered: Option<Instant>,
}

/// The table.
pub(super) struct TimeWait {
    entries: HashMap<Tuple, Entry>,
    order: VecDeque<(Instant, Tuple)>,
    limit: usize,
    time: Duration,
}

impl TimeWait {
    pub(super) fn new(limit: usize, time: Duration) -> Self {
        TimeWait { entries: HashMap::new(), order: VecDeque::new(), limit, time }
    }

    /// Adds a connection.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        tuple: Tuple,
        remains: Remains,
        ports: &mut LocalPorts,
        counters: &mut Counters,
    ) {
        counters.tcp_time_wait += 1;
        if self.limit == 0 {
            return;
        }
        while self.order.len() >= self.limit {
            if let Some((at, oldest)) = self.order.pop_front()
                && self.entries.get(&oldest).is_some_and(|entry| entry.queued == at)
            {
                self.remove(&oldest, ports);
                counters.tcp_time_wait_evicted += 1;
            }
        }
        let until = now + self.time;
        if self
            .entries
            .insert(tuple, Entry { remains, until, queued: until, answered: None })
            .is_none()
        {
            ports.add(tuple.local);
        }
        self.order.push_back((until, tuple));
    }

    /// Returns the remaining state of a connection, unless it has expired. The stack removes
    /// expired entries at its polls, since removal is not worth a wake-up.
    pub(super) fn get(&self, now: Instant, tuple: &Tuple) -> Option<Remains> {
        self.entries.get(tuple).filter(|entry| now < entry.until).map(|entry| entry.remains)
    }

    /// Returns `true` if an answer for the entry is within its own rate.
    pub(super) fn may_answer(&mut self, now: Instant, tuple: &Tuple) -> bool {
        let Some(entry) = self.entries.get_mut(tuple) else { return false };
        let may = entry.answered.is_none_or(|at| now.since(at) >= ANSWER_PAUSE);
        if may {
            entry.answered = Some(now);
        }
        may
    }

    /// Begins the time of an entry again, since the peer repeats its FIN (RFC 9293, 3.10.7.4).
    pub(super) fn restart(&mut self, now: Instant, tuple: &Tuple) {
        if let Some(entry) = self.entries.get_mut(tuple) {
            entry.until = now + self.time;
        }
    }

    pub(super) fn remove(&mut self, tuple: &Tuple, ports: &mut LocalPorts) {
        if self.entries.remove(tuple).is_some() {
            ports.remove(tuple.local);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes at most `work` expired entries.
    pub(super) fn expire(&mut self, now: Instant, work: usize, ports: &mut LocalPorts) {
        for _ in 0..work {
            match self.order.front() {
                Some(&(at, tuple)) if at <= now => {
                    self.order.pop_front();
                    let Some(entry) = self.entries.get_mut(&tuple) else { continue };
                    if entry.queued != at {
                        continue;
                    }
                    if entry.until <= now {
                        self.remove(&tuple, ports);
                    } else {
                        // Its time began again meanwhile.
                        entry.queued = entry.until;
                        self.order.push_back((entry.until, tuple));
                    }
                }
                _ => return,
            }
        }
    }
}
