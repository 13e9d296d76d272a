//! Closed connections whose late segments may still arrive (TIME-WAIT, RFC 9293 3.6.1).
//!
//! An entry has the four-tuple and two sequence numbers, and no buffer.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::connection::Tuple;
use super::ports::LocalPorts;
use crate::{Counters, Instant};

/// The remaining state of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remains {
    /// The next sequence number that we would have sent.
    pub(super) send_next: u32,
    /// The next sequence number that we would have accepted.
    pub(super) receive_next: u32,
    until: Instant,
}

/// The table.
pub(super) struct TimeWait {
    entries: HashMap<Tuple, Remains>,
    order: VecDeque<(Instant, Tuple)>,
    limit: usize,
    time: Duration,
}

impl TimeWait {
    pub(super) fn new(limit: usize, time: Duration) -> Self {
        TimeWait { entries: HashMap::new(), order: VecDeque::new(), limit, time }
    }

    /// Adds a connection: its tuple, and the next sequence numbers to send and to accept.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        tuple: Tuple,
        (send_next, receive_next): (u32, u32),
        ports: &mut LocalPorts,
        counters: &mut Counters,
    ) {
        counters.tcp_time_wait += 1;
        if self.limit == 0 {
            return;
        }
        while self.order.len() >= self.limit {
            if let Some((at, oldest)) = self.order.pop_front()
                && self.entries.get(&oldest).is_some_and(|entry| entry.until == at)
            {
                self.remove(&oldest, ports);
                counters.tcp_time_wait_evicted += 1;
            }
        }
        let until = now + self.time;
        let remains = Remains { send_next, receive_next, until };
        if self.entries.insert(tuple, remains).is_none() {
            ports.add(tuple.local);
        }
        self.order.push_back((until, tuple));
    }

    /// Returns the remaining state of a connection, unless it has expired. The stack removes
    /// expired entries at its polls, since removal is not worth a wake-up.
    pub(super) fn get(&self, now: Instant, tuple: &Tuple) -> Option<Remains> {
        self.entries.get(tuple).copied().filter(|remains| now < remains.until)
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
                    if self.entries.get(&tuple).is_some_and(|entry| entry.until == at) {
                        self.remove(&tuple, ports);
                    }
                }
                _ => return,
            }
        }
    }
}
