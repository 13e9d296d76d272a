//! The watchdog: it decides when a device that keeps packets is stalled.
//!
//! This module is only arithmetic. The engine passes in the number of packets in flight, the number
//! ever completed, and the time, and acts on the verdict (`port.rs`). The watchdog ignores
//! receive buffers, because there may be no traffic to receive.
//!
//! There are three ways of arming, for comparison (Tracey and Banerji, "Device Driver Issues in
//! High-Performance Networking", 3.1, 4.2). The *eager* watchdog is the paper's original driver: it
//! starts a timer for each packet that the device takes, and stops it for each packet that the
//! device completes. The *timestamp* watchdog is the paper's modification: for each packet it reads
//! the clock, compares that with the timer's start, and starts the timer again only if too little
//! of it is left. The *lazy* watchdog, which the paper does not have, checks once per window
//! whether the device completed any packet since the last check. It costs nothing per packet. The
//! lazy and the timestamp watchdog take up to two windows to notice a stall. Packets that a stalled
//! device still takes start the timer of the eager and of the timestamp watchdog again.

use towpath_protocol::settings::{Setting, Values};

/// Poll iterations between two readings of the clock while the watchdog is armed, if no sleep lies
/// between.
const ITERATIONS: u32 = 64;

/// The way of arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arming {
    /// The watchdog is off.
    Off,
    /// The watchdog checks once per window.
    Lazy,
    /// The watchdog starts and stops a timer for each packet.
    Eager,
    /// The watchdog compares the clock with its timer for each packet.
    Timestamp,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The engine need not act.
    Fine,
    /// The device completed nothing for a window, and the engine must reset it.
    Stalled {
        /// `true` if the device worked since its last reset, so this stall was not reported before.
        new: bool,
    },
    /// The device completes packets again.
    Recovered {
        /// Resets of this stall.
        resets: u64,
    },
}

/// Counts of the watchdog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that the watchdog started its timer, or scheduled a check while none was scheduled.
    pub arms: u64,
    /// Times that the watchdog stopped its timer for a completed packet.
    pub stops: u64,
    /// Times that the watchdog compared the clock with its timer, or made a check.
    pub checks: u64,
    /// Stalls noticed.
    pub stalls: u64,
    /// Resets that the watchdog asked for.
    pub resets: u64,
}

/// The watchdog of one device.
#[derive(Debug)]
pub struct Watchdog {
    arming: Arming,
    window: u64,
    /// The time at which the timer expires; for the lazy watchdog, the time of the next check.
    at: Option<u64>,
    /// Packets completed at the last check.
    seen: u64,
    iterations: u32,
    /// Resets since the last completion; 0: the device works.
    resets: u64,
    /// The counts.
    pub counts: Counts,
}

impl Watchdog {
    /// Creates a watchdog that takes a device for stalled after `window`, in nanoseconds; 0: off.
    #[must_use]
    pub fn new(arming: Arming, window: u64) -> Watchdog {
        Watchdog {
            arming: if window == 0 { Arming::Off } else { arming },
            window,
            at: None,
            seen: 0,
            iterations: 0,
            resets: 0,
            counts: Counts::default(),
        }
    }

    /// Creates a watchdog for the settings.
    pub(crate) fn of(values: &Values) -> Watchdog {
        let arming = match values.get(Setting::Watchdog) {
            0 => Arming::Off,
            1 => Arming::Lazy,
            2 => Arming::Eager,
            _ => Arming::Timestamp,
        };
        Watchdog::new(arming, values.get(Setting::WatchdogMs) * 1_000_000)
    }

    /// Creates a watchdog with the same arming and window.
    #[must_use]
    pub(crate) fn fresh(&self) -> Watchdog {
        Watchdog::new(self.arming, self.window)
    }

    /// Changes the arming and the window. The watchdog then also watches packets already in flight.
    pub fn change(&mut self, to: Watchdog) {
        // A stall continues: only a completion ends it.
        let (resets, seen, counts) = (self.resets, self.seen, self.counts);
        *self = Watchdog { resets, seen, counts, ..to };
    }

    /// Notes packets that the device took. The watchdog calls `now` only when it needs the time, in
    /// nanoseconds: once per packet, or never.
    #[inline]
    pub fn sent(&mut self, packets: usize, now: impl Fn() -> u64) {
        match self.arming {
            Arming::Off | Arming::Lazy => {}
            Arming::Eager => (0..packets).for_each(|_| self.start(now(), self.window)),
            Arming::Timestamp => (0..packets).for_each(|_| self.compare(now())),
        }
    }

    /// Notes packets that the device completed; it keeps `out` others.
    #[inline]
    pub fn completed(&mut self, packets: usize, out: u64, now: impl Fn() -> u64) {
        match self.arming {
            Arming::Off | Arming::Lazy => {}
            Arming::Eager => {
                for _ in 0..packets {
                    self.counts.stops += 1;
                    self.at = None;
                }
                if packets > 0 && out > 0 {
                    self.start(now(), self.window);
                }
            }
            // Without a packet in flight the timer runs on, and its expiry means nothing.
            Arming::Timestamp => (0..packets).for_each(|_| self.compare(now())),
        }
    }

    fn start(&mut self, now: u64, time: u64) {
        self.counts.arms += 1;
        self.at = Some(now + time);
    }

    /// Starts the timer again, over two windows, if less than a window of it is left.
    fn compare(&mut self, now: u64) {
        self.counts.checks += 1;
        if self.at.is_none_or(|at| at < now + self.window) {
            self.start(now, 2 * self.window);
        }
    }

    /// Checks after each poll iteration. `out` packets are in flight, and `returned` packets were
    /// ever completed. The watchdog calls `now` only when it needs the time, in nanoseconds.
    #[inline]
    pub fn after_iteration(
        &mut self,
        out: u64,
        returned: u64,
        now: impl FnOnce() -> u64,
    ) -> Verdict {
        if out == 0 && self.resets == 0 {
            return Verdict::Fine;
        }
        match self.arming {
            Arming::Off => Verdict::Fine,
            Arming::Lazy => self.lazy(out, returned, now),
            Arming::Eager => self.timer(out, returned, self.window, now),
            Arming::Timestamp => self.timer(out, returned, 2 * self.window, now),
        }
    }

    fn lazy(&mut self, out: u64, returned: u64, now: impl FnOnce() -> u64) -> Verdict {
        if self.resets > 0 && returned != self.seen {
            return self.recovered(returned);
        }
        if out == 0 {
            return Verdict::Fine;
        }
        let Some(at) = self.at else {
            self.counts.arms += 1;
            (self.at, self.seen) = (Some(now() + self.window), returned);
            return Verdict::Fine;
        };
        if !self.is_time_to_poll() {
            return Verdict::Fine;
        }
        let now = now();
        if now < at {
            return Verdict::Fine;
        }
        self.counts.checks += 1;
        let stalled = returned == self.seen;
        (self.at, self.seen) = (Some(now + self.window), returned);
        if stalled { self.stalled() } else { Verdict::Fine }
    }

    /// Checks the timer, and starts it over `time` if packets are in flight and it does not run.
    fn timer(&mut self, out: u64, returned: u64, time: u64, now: impl FnOnce() -> u64) -> Verdict {
        if out > 0 && self.at.is_none() {
            self.start(now(), time);
        } else if out > 0 && self.is_time_to_poll() {
            self.counts.checks += 1;
            let now = now();
            if self.at.is_some_and(|at| at <= now) {
                self.at = Some(now + time);
                return self.stalled();
            }
        }
        if returned != self.seen && self.resets > 0 {
            return self.recovered(returned);
        }
        self.seen = returned;
        Verdict::Fine
    }

    fn is_time_to_poll(&mut self) -> bool {
        self.iterations += 1;
        let due = self.iterations >= ITERATIONS;
        if due {
            self.iterations = 0;
        }
        due
    }

    fn stalled(&mut self) -> Verdict {
        let new = self.resets == 0;
        self.counts.stalls += u64::from(new);
        self.counts.resets += 1;
        self.resets += 1;
        Verdict::Stalled { new }
    }

    fn recovered(&mut self, returned: u64) -> Verdict {
        self.seen = returned;
        Verdict::Recovered { resets: std::mem::take(&mut self.resets) }
    }

    /// Begins anew, after a reset of the device, or when its link comes up. Packets that a reset
    /// returned (`returned` in all) are no sign of life.
    pub fn restart(&mut self, returned: u64) {
        (self.at, self.seen) = (None, returned);
    }

    /// Records a sleep of the engine: the next poll iteration reads the clock.
    pub fn slept(&mut self) {
        self.iterations = ITERATIONS;
    }

    /// Returns the time of the next check, in nanoseconds, if `out` packets are in flight. Without
    /// packets in flight there is none.
    #[must_use]
    pub fn next_due(&self, out: u64) -> Option<u64> {
        if out == 0 { None } else { self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1000;
    const ARMINGS: [Arming; 3] = [Arming::Lazy, Arming::Eager, Arming::Timestamp];

    /// A device in simulated time: poll iterations are at most 7 ns apart, and the engine sleeps
    /// when nothing is due.
    struct Simulated {
        dog: Watchdog,
        now: u64,
        out: u64,
        returned: u64,
    }

    impl Simulated {
        fn new(arming: Arming) -> Simulated {
            Simulated { dog: Watchdog::new(arming, WINDOW), now: 5, out: 0, returned: 0 }
        }

        fn poll_once(&mut self) -> Verdict {
            let now = self.now;
            self.now += 7;
            self.dog.after_iteration(self.out, self.returned, || now)
        }

        fn send(&mut self, count: u64) {
            self.out += count;
            let now = self.now;
            self.dog.sent(count as usize, || now);
        }

        fn back(&mut self, count: u64) {
            self.out -= count;
            self.returned += count;
            let now = self.now;
            self.dog.completed(count as usize, self.out, || now);
        }

        /// Sleeps as long as permitted, and runs the poll iteration after it.
        fn sleep(&mut self, most: u64) -> Verdict {
            let due = self.dog.next_due(self.out).unwrap_or(u64::MAX);
            self.now = self.now.max(due.min(self.now + most));
            self.dog.slept();
            self.poll_once()
        }

        /// Returns the time to notice a stall that begins with the packets of this iteration, for
        /// an engine that sleeps or one that does not.
        fn noticed(&mut self, sleeps: bool) -> u64 {
            let begin = self.now;
            assert_eq!(self.poll_once(), Verdict::Fine);
            while self.now < begin + 10 * WINDOW {
                let verdict = if sleeps { self.sleep(u64::MAX / 2) } else { self.poll_once() };
                match verdict {
                    Verdict::Fine => {}
                    Verdict::Stalled { new: true } => return self.now - begin,
                    other => panic!("{other:?}"),
                }
            }
            panic!("not noticed");
        }

        fn reset(&mut self) {
            self.returned += self.out;
            self.out = 0;
            self.dog.restart(self.returned);
        }
    }

    /// The watchdog notices a stall after one window and before two are over; the eager one
    /// directly after one window. The engine reads the clock every 64 poll iterations.
    #[test]
    fn a_stall_is_noticed_in_time() {
        let grain = 7 * u64::from(ITERATIONS + 1);
        for (arming, looks) in [(Arming::Eager, 1), (Arming::Lazy, 2), (Arming::Timestamp, 2)] {
            for sleeps in [false, true] {
                // The stall begins at any moment of a window, and after any traffic.
                for before in 0..400 {
                    let mut device = Simulated::new(arming);
                    for packet in 0..before {
                        device.send(1 + packet % 3);
                        assert_eq!(device.poll_once(), Verdict::Fine);
                        device.back(device.out - packet % 2);
                        assert_eq!(device.poll_once(), Verdict::Fine);
                        device.back(device.out);
                        assert_eq!(device.poll_once(), Verdict::Fine);
                    }
                    device.send(3);
                    let took = device.noticed(sleeps);
                    let range = WINDOW..=looks * (WINDOW + grain);
                    assert!(range.contains(&took), "{arming:?} {before} {sleeps}: {took}");
                    assert_eq!((device.dog.counts.stalls, device.dog.counts.resets), (1, 1));
                }
            }
        }
    }

    /// While the device completes a packet within each window, the watchdog resets nothing. That
    /// also holds if packets are always in flight, and after long silence.
    #[test]
    fn a_slow_device_is_not_stalled() {
        for arming in ARMINGS {
            let mut device = Simulated::new(arming);
            device.send(5);
            for round in 0..200 {
                let until = device.now + WINDOW - 20;
                while device.now < until {
                    let verdict =
                        if round % 2 == 0 { device.poll_once() } else { device.sleep(10) };
                    assert_eq!(verdict, Verdict::Fine, "{arming:?}, round {round}");
                }
                device.back(1);
                device.send(1);
                assert_eq!(device.poll_once(), Verdict::Fine);
                if round % 10 == 9 {
                    device.back(device.out);
                    assert_eq!(device.poll_once(), Verdict::Fine);
                    assert_eq!(device.dog.next_due(device.out), None, "an idle system never wakes");
                    device.now += 50 * WINDOW;
                    device.send(5);
                    assert_eq!(device.poll_once(), Verdict::Fine);
                }
            }
            assert_eq!(device.dog.counts.resets, 0);
            assert!(device.dog.counts.arms > 0);
        }
    }

    /// The watchdog resets a device that stays stalled once per window, and reports the stall once.
    /// A later completion ends the stall, and the next one is new.
    #[test]
    fn a_stall_is_reported_once() {
        for arming in ARMINGS {
            let mut device = Simulated::new(arming);
            device.send(4);
            device.noticed(true);
            device.reset();
            for _ in 0..3 {
                device.send(4);
                let verdicts: Vec<_> = (0..1000)
                    .map(|_| device.poll_once())
                    .filter(|verdict| *verdict != Verdict::Fine)
                    .take(1)
                    .collect();
                assert_eq!(verdicts, [Verdict::Stalled { new: false }], "{arming:?}");
                device.reset();
            }
            assert_eq!((device.dog.counts.stalls, device.dog.counts.resets), (1, 4));
            device.send(4);
            assert_eq!(device.poll_once(), Verdict::Fine);
            device.back(4);
            assert_eq!(device.poll_once(), Verdict::Recovered { resets: 4 }, "{arming:?}");
            assert_eq!(device.poll_once(), Verdict::Fine);
            device.send(1);
            device.noticed(false);
            assert_eq!((device.dog.counts.stalls, device.dog.counts.resets), (2, 5));
        }
    }

    /// The eager watchdog starts its timer for each packet that the device takes and stops it for
    /// each that it completes, also for packets of one poll iteration. The timestamp watchdog
    /// compares the clock for each of both, and starts its timer once per window. The lazy one does
    /// nothing per packet.
    #[test]
    fn each_arming_does_its_work_per_packet() {
        const BURST: u64 = 4;
        let run = |arming| {
            let mut device = Simulated::new(arming);
            for _ in 0..1000 {
                device.send(BURST);
                assert_eq!(device.poll_once(), Verdict::Fine);
                device.back(BURST);
                assert_eq!(device.poll_once(), Verdict::Fine);
            }
            device.dog.counts
        };
        let [lazy, eager, timestamp] = ARMINGS.map(run);
        let packets = 1000 * BURST;
        // Each also checks every 64 poll iterations whether the timer has expired.
        let polls = 2000 / u64::from(ITERATIONS);
        assert_eq!((eager.arms, eager.stops), (packets, packets));
        assert!(eager.checks <= polls, "{}", eager.checks);
        assert_eq!(timestamp.stops, 0);
        assert!((2 * packets..=2 * packets + polls).contains(&timestamp.checks));
        assert!((12..=15).contains(&timestamp.arms), "{} starts in 14 windows", timestamp.arms);
        assert_eq!((lazy.arms, lazy.stops), (1, 0));
        assert!((1..=14).contains(&lazy.checks), "{} checks in 14 windows", lazy.checks);
        assert_eq!(run(Arming::Off), Counts::default());
    }

    /// Packets that the device keeps while it completes others start the eager timer again.
    #[test]
    fn the_eager_timer_goes_on_for_packets_that_are_left() {
        let mut device = Simulated::new(Arming::Eager);
        device.send(3);
        assert_eq!((device.dog.counts.arms, device.dog.next_due(3)), (3, Some(5 + WINDOW)));
        device.now += WINDOW / 2;
        device.back(2);
        let due = Some(5 + WINDOW / 2 + WINDOW);
        assert_eq!((device.dog.counts.stops, device.dog.next_due(1)), (2, due));
        device.back(1);
        assert_eq!((device.dog.counts.arms, device.dog.next_due(0)), (4, None));
    }

    #[test]
    fn a_change_during_a_stall_does_not_end_it() {
        for (from, to) in [
            (Arming::Eager, Arming::Lazy),
            (Arming::Lazy, Arming::Eager),
            (Arming::Eager, Arming::Timestamp),
            (Arming::Timestamp, Arming::Lazy),
        ] {
            let mut device = Simulated::new(from);
            device.send(1);
            device.noticed(true);
            // The engine again sends the packets that the reset returned.
            device.reset();
            device.send(1);
            device.dog.change(Watchdog::new(to, 2 * WINDOW));
            for _ in 0..100 {
                assert!(
                    !matches!(device.poll_once(), Verdict::Recovered { .. }),
                    "the device completed nothing"
                );
            }
            device.back(1);
            let ends = (0..100).any(|_| matches!(device.poll_once(), Verdict::Recovered { .. }));
            assert!(ends, "the device completed a packet");
            assert_eq!(device.dog.counts.stalls, 1);
        }
    }

    #[test]
    fn a_changed_watchdog_keeps_its_counts() {
        let mut device = Simulated::new(Arming::Eager);
        device.send(1);
        device.poll_once();
        device.dog.change(Watchdog::new(Arming::Lazy, 0));
        for _ in 0..1000 {
            assert_eq!(device.poll_once(), Verdict::Fine, "0 is off");
        }
        assert_eq!(device.dog.next_due(device.out), None);
        device.dog.change(Watchdog::new(Arming::Eager, WINDOW));
        assert!((WINDOW..WINDOW + 600).contains(&device.noticed(true)));
        assert_eq!(device.dog.counts.arms, 2);
    }
}
