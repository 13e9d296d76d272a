//! One direction of the wire: a bottleneck with a queue, then a delay with faults. Time is an
//! argument.
//!
//! The wrappers of `towpath_device` inject faults into a device, but they have no rate and no
//! queue: TCP's congestion control needs both.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use fastrand::Rng;

use super::frame::Frame;

/// The most frames under way in one direction.
const MOST_FRAMES: usize = 1 << 16;

/// What the wire does to the frames of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Conditions {
    /// The bottleneck's rate, in bits of Ethernet frames per second; `None` for no bottleneck.
    pub(super) rate_bit_s: Option<u64>,
    /// The queue in front of the bottleneck, which drops what does not fit.
    pub(super) queue_bytes: u64,
    /// The time of a frame behind the bottleneck.
    pub(super) delay: Duration,
    /// The part of frames that are lost behind the bottleneck.
    pub(super) loss: f64,
    /// The part of frames that are late.
    pub(super) reordered: f64,
    /// The additional time of a late frame: at least, and at most.
    pub(super) late: [Duration; 2],
    /// The part of frames that arrive twice.
    pub(super) duplicated: f64,
}

impl Conditions {
    /// Returns a wire without delay, bottleneck and faults.
    pub(super) const NONE: Conditions = Conditions {
        rate_bit_s: None,
        queue_bytes: 0,
        delay: Duration::ZERO,
        loss: 0.0,
        reordered: 0.0,
        late: [Duration::ZERO; 2],
        duplicated: 0.0,
    };

    /// Returns a bottleneck of `rate_bit_s` with a queue of one bandwidth-delay product.
    pub(super) fn bottleneck(rate_bit_s: u64, delay: Duration) -> Conditions {
        let round_trip_us = 2 * delay.as_micros() as u64;
        let queue_bytes = rate_bit_s / 8 * round_trip_us / 1_000_000;
        Conditions { rate_bit_s: Some(rate_bit_s), queue_bytes, delay, ..Conditions::NONE }
    }
}

/// What became of the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Frames that entered.
    pub(super) entered: u64,
    /// Frames that found no room in the queue.
    pub(super) queue_full: u64,
    /// Frames lost behind the bottleneck.
    pub(super) lost: u64,
    /// Frames made late.
    pub(super) reordered: u64,
    /// Frames that arrived twice.
    pub(super) duplicated: u64,
    /// Frames that the far end did not take.
    pub(super) refused: u64,
}

impl Counts {
    /// Adds those of another run.
    pub(super) fn add(&mut self, other: Counts) {
        self.entered += other.entered;
        self.queue_full += other.queue_full;
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.refused += other.refused;
    }
}

/// A late frame, in the order of times.
struct Late {
    due: u64,
    /// Late frames of one time stay in order.
    number: u64,
    frame: Frame,
}

impl PartialEq for Late {
    fn eq(&self, other: &Late) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for Late {}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Late) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Late {
    fn cmp(&self, other: &Late) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// One direction. All times are nanoseconds of one clock.
pub(super) struct Path {
    conditions: Conditions,
    random: Rng,
    /// The time at which the bottleneck has sent all frames of its queue.
    free_at: u64,
    /// Frames that keep their order, with their times.
    in_order: VecDeque<(u64, Frame)>,
    late: BinaryHeap<Reverse<Late>>,
    pub(super) counts: Counts,
}

impl Path {
    /// Makes an empty direction. The same seed and the same sequence of frames give the same
    /// faults.
    pub(super) fn new(conditions: Conditions, seed: u64) -> Path {
        Path {
            conditions,
            random: Rng::with_seed(seed),
            free_at: 0,
            in_order: VecDeque::with_capacity(1024),
            late: BinaryHeap::new(),
            counts: Counts::default(),
        }
    }

    /// Takes a frame that enters now. `spare` receives dropped frames, and gives those for copies.
    pub(super) fn admit(&mut self, frame: Frame, now: u64, spare: &mut Vec<Frame>) {
        self.counts.entered += 1;
        let conditions = &self.conditions;
        // A frame takes its numbers whatever happens to it, so one fault does not shift another.
        let lost = self.random.f64() < conditions.loss;
        let reordered = self.random.f64() < conditions.reordered;
        let [least, most] = conditions.late.map(|time| time.as_nanos() as u64);
        let late = least + self.random.u64(..(most - least.min(most)).saturating_add(1));
        let duplicated = self.random.f64() < conditions.duplicated;

        let start = self.free_at.max(now);
        let bytes = frame.data().len() as u64;
        let rate = conditions.rate_bit_s.unwrap_or(u64::MAX).max(1);
        let waiting = u128::from(start - now) * u128::from(rate) / 8_000_000_000;
        let fits = waiting + u128::from(bytes) <= u128::from(conditions.queue_bytes);
        let is_full = conditions.rate_bit_s.is_some() && !fits;
        if is_full || self.in_order.len() + self.late.len() >= MOST_FRAMES {
            self.counts.queue_full += 1;
            return spare.push(frame);
        }
        self.free_at = start + bytes * 8_000_000_000 / rate;
        if lost {
            self.counts.lost += 1;
            return spare.push(frame);
        }
        let due = self.free_at + conditions.delay.as_nanos() as u64;
        if duplicated {
            self.counts.duplicated += 1;
            let mut copy = spare.pop().unwrap_or_else(Frame::new);
            copy.copy(&frame);
            self.in_order.push_back((due, copy));
        }
        if reordered {
            self.counts.reordered += 1;
            let number = self.counts.reordered;
            self.late.push(Reverse(Late { due: due + late, number, frame }));
        } else {
            self.in_order.push_back((due, frame));
        }
    }

    /// Returns the time at which the next frame leaves.
    pub(super) fn next_due(&self) -> Option<u64> {
        let in_order = self.in_order.front().map(|(due, _)| *due);
        let late = self.late.peek().map(|late| late.0.due);
        in_order.into_iter().chain(late).min()
    }

    /// Returns the next frame that leaves by `now`, with its time.
    pub(super) fn take(&mut self, now: u64) -> Option<(u64, Frame)> {
        let due = self.next_due().filter(|due| *due <= now)?;
        if self.in_order.front().is_some_and(|(time, _)| *time == due) {
            return self.in_order.pop_front();
        }
        self.late.pop().map(|Reverse(late)| (late.due, late.frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn frame(number: u32) -> Frame {
        let mut frame = Frame::new();
        frame.resized(1000)[..4].copy_from_slice(&number.to_be_bytes());
        frame
    }

    /// Sends frames, one each `apart` ns, and returns what arrives: time and number.
    fn sent(path: &mut Path, count: u32, apart: u64) -> Vec<(u64, u32)> {
        let mut spare = Vec::new();
        for number in 0..count {
            path.admit(frame(number), u64::from(number) * apart, &mut spare);
        }
        let all = std::iter::from_fn(|| path.take(u64::MAX));
        let number = |frame: &Frame| u32::from_be_bytes(frame.data()[..4].try_into().unwrap());
        all.map(|(due, frame)| (due, number(&frame))).collect()
    }

    #[test]
    fn frames_leave_at_the_rate_after_the_delay() {
        // 8 Mbit/s: a frame of 1000 bytes takes a millisecond; the queue has room for 20.
        let conditions = Conditions::bottleneck(8_000_000, Duration::from_millis(10));
        assert_eq!(conditions.queue_bytes, 20_000);
        let mut path = Path::new(conditions, 1);
        let got = sent(&mut path, 30, 0);
        let expected: Vec<_> = (0..20).map(|n| ((u64::from(n) + 11) * MS, n)).collect();
        assert_eq!(got, expected);
        assert_eq!(path.counts, Counts { entered: 30, queue_full: 10, ..Counts::default() });
        // A queue that has drained takes frames again, and a rate below the bottleneck waits never.
        let mut path = Path::new(conditions, 1);
        let got = sent(&mut path, 100, 2 * MS);
        let expected: Vec<_> = (0..100).map(|n| ((2 * u64::from(n) + 11) * MS, n)).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn nothing_leaves_before_its_time() {
        let mut path = Path::new(Conditions::bottleneck(8_000_000, Duration::from_millis(10)), 1);
        path.admit(frame(7), 0, &mut Vec::new());
        assert_eq!(path.next_due(), Some(11 * MS));
        assert!(path.take(11 * MS - 1).is_none() && path.take(11 * MS).is_some());
        assert_eq!(path.next_due(), None);
    }

    #[test]
    fn faults_have_their_rates_and_are_the_same_for_a_seed() {
        let conditions = Conditions {
            loss: 0.01,
            reordered: 0.02,
            late: [Duration::from_millis(1), Duration::from_millis(3)],
            duplicated: 0.005,
            ..Conditions::NONE
        };
        let run = |seed| {
            let mut path = Path::new(conditions, seed);
            let got = sent(&mut path, 50_000, MS / 10);
            (got, path.counts)
        };
        let (got, counts) = run(5);
        assert_eq!((got.clone(), counts), run(5));
        assert_ne!(got, run(6).0);
        let near = |count: u64, rate: f64| {
            let expected = rate * 50_000.0;
            assert!((count as f64 - expected).abs() < expected * 0.25, "{count}, not {expected}");
        };
        near(counts.lost, 0.01);
        near(counts.reordered, 0.02 * 0.99);
        near(counts.duplicated, 0.005 * 0.99);
        assert_eq!(got.len() as u64, 50_000 - counts.lost + counts.duplicated);
        assert!(got.windows(2).all(|pair| pair[0].0 <= pair[1].0), "in the order of times");
        let mut late = 0;
        for (due, number) in got {
            let by = due - u64::from(number) * MS / 10;
            assert!(by == 0 || (MS..=3 * MS).contains(&by), "{by}");
            late += u64::from(by > 0);
        }
        assert_eq!(late, counts.reordered);
    }

    #[test]
    fn one_fault_does_not_shift_another() {
        let lost = |duplicated: f64| {
            let conditions = Conditions { loss: 0.1, duplicated, ..Conditions::NONE };
            let mut all: Vec<_> = sent(&mut Path::new(conditions, 3), 1000, 0);
            all.dedup();
            all
        };
        assert_eq!(lost(0.0), lost(0.5));
    }
}
