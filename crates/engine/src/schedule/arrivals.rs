//! The arrival times of waiting packets, without a time per packet. The record keeps the times at
//! which the engine checked the queue, and the end of the queue at each check.

/// Checks that the record keeps: those of two maximum delays.
const MARKS: usize = 32;
/// Checks that the record tells apart per maximum delay.
const STEPS: u64 = 16;

/// The arrival times of one queue's packets, to a sixteenth of the shortest maximum delay of its
/// endpoints. A returned time is never later than the check that first saw the packet, and earlier
/// by at most that sixteenth. For packets that have waited for nearly two such delays, only the
/// fact that they have waited for longer than one is kept.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    /// The end of the queue and the time of the check, in nanoseconds; the oldest first.
    marks: [(u32, u64); MARKS],
    start: usize,
    count: usize,
    step_ns: u64,
}

impl Arrivals {
    /// Returns an empty record. `max_delay_ns` is the shortest maximum delay of the endpoints that
    /// use the queue.
    #[must_use]
    pub(crate) fn new(max_delay_ns: u64) -> Arrivals {
        let step_ns = (max_delay_ns / STEPS).max(1);
        Arrivals { marks: [(0, 0); MARKS], start: 0, count: 0, step_ns }
    }

    /// Records that the queue ends before the index `end`, at `now`.
    #[inline]
    pub(crate) fn note(&mut self, end: u32, now: u64) {
        if let Some(last) = self.count.checked_sub(1) {
            let (seen, at) = &mut self.marks[(self.start + last) % MARKS];
            if *seen == end {
                return;
            }
            if now < *at + self.step_ns {
                *seen = end;
                return;
            }
        }
        if self.count == MARKS {
            // Packets before the second oldest mark have waited for nearly two delays: they are
            // late anyway.
            self.start = (self.start + 1) % MARKS;
            self.count -= 1;
        }
        self.marks[(self.start + self.count) % MARKS] = (end, now);
        self.count += 1;
    }

    /// Returns the arrival time of the packet at `index`. Callers do not ask for earlier packets
    /// again.
    #[inline]
    pub(crate) fn of(&mut self, index: u32, now: u64) -> u64 {
        while self.count > 0 {
            let (end, at) = self.marks[self.start];
            if (end.wrapping_sub(index) as i32) > 0 {
                return at;
            }
            self.start = (self.start + 1) % MARKS;
            self.count -= 1;
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn recent_packets_behind_old_ones_are_not_late() {
        const MS: u64 = 1_000_000;
        let mut arrivals = Arrivals::new(10 * MS);
        for number in 0..=100 {
            arrivals.note(number + 1, u64::from(number) * MS);
        }
        let now = 100 * MS;
        let late = (0..=100).filter(|number| now - arrivals.of(*number, now) > 10 * MS);
        assert_eq!(late.collect::<Vec<_>>(), (0..90).collect::<Vec<_>>());
    }

    proptest! {
        /// Compares the record with a time noted for each packet.
        #[test]
        fn arrival_times_match_a_time_for_each_packet(
            first: u32,
            steps in prop::collection::vec((0u32..50, 0u64..400, 0u32..45), 1..300),
        ) {
            let mut arrivals = Arrivals::new(1600);
            let (mut came, mut taken, mut now) = (Vec::<u64>::new(), 0usize, 1_000u64);
            for (more, later, take) in steps {
                now += later;
                came.resize(came.len() + more as usize, now);
                arrivals.note(first.wrapping_add(came.len() as u32), now);
                for _ in 0..take.min((came.len() - taken) as u32) {
                    let index = first.wrapping_add(taken as u32);
                    let (said, was) = (arrivals.of(index, now), came[taken]);
                    let near = said <= was && was - said < 100;
                    let late = now - said > 1600 && now - was > 1600;
                    prop_assert!(near || late, "said {said}, came {was}, now {now}");
                    taken += 1;
                }
            }
        }
    }
}
