//! The PDUs that the receiver has finished, so that repeated fragments of them start nothing.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::partial::{Identity, Key};

/// The PDUs that the receiver finished lately: a bounded number, each for a bounded time. If a
/// sender reuses a number, the new PDU matches only if its length and CRC are also the same.
#[derive(Debug)]
pub(crate) struct Finished {
    known: HashSet<(Key, Identity)>,
    order: VecDeque<(Instant, (Key, Identity))>,
    limit: usize,
}

impl Finished {
    pub(crate) fn new(limit: usize) -> Finished {
        Finished {
            // Twice the room: a table that is at most half full cleans up in place and never grows.
            known: HashSet::with_capacity(limit * 2),
            order: VecDeque::with_capacity(limit),
            limit,
        }
    }

    pub(crate) fn has(&self, key: Key, identity: Identity) -> bool {
        self.known.contains(&(key, identity))
    }

    /// Records a PDU; forgets the oldest one at the limit.
    pub(crate) fn note(&mut self, now: Instant, key: Key, identity: Identity) {
        if self.limit == 0 || !self.known.insert((key, identity)) {
            return;
        }
        if self.order.len() == self.limit {
            self.forget_oldest();
        }
        self.order.push_back((now, (key, identity)));
    }

    pub(crate) fn forget_older(&mut self, now: Instant, time: Duration) {
        while let Some((since, _)) = self.order.front()
            && now.saturating_duration_since(*since) >= time
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, one)) = self.order.pop_front() {
            self.known.remove(&one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_pdus_are_bounded_in_number_and_time() {
        let mut finished = Finished::new(3);
        let start = Instant::now();
        let (time, identity) = (Duration::from_secs(2), Identity { total: 1, crc: 2 });
        let key = |id| Key { source: [2; 6].into(), channel: 0, id };
        let known = |finished: &Finished| -> Vec<u32> {
            assert_eq!(finished.known.len(), finished.order.len());
            (0..5).filter(|id| finished.has(key(*id), identity)).collect()
        };
        for id in 0..5 {
            for _ in 0..2 {
                finished.note(start + Duration::from_secs(id.into()), key(id), identity);
            }
        }
        assert_eq!(known(&finished), [2, 3, 4]);
        assert!(!finished.has(key(4), Identity { crc: 3, ..identity }));
        finished.forget_older(start + Duration::from_secs(5), time);
        assert_eq!(known(&finished), [4]);
        finished.forget_older(start + Duration::from_secs(6), time);
        assert_eq!(known(&finished), [0; 0]);
        let mut none = Finished::new(0);
        none.note(start, key(0), identity);
        assert_eq!(known(&none), [0; 0]);
    }
}
