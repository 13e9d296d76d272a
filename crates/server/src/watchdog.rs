//! The watchdog: when a device that keeps what it was given is taken for stalled.
//!
//! Nothing but arithmetic: what is with the device, how much ever came back, and the time, are
//! told; the engine acts on the answer (`revive.rs`). Frames to be received are not watched: nobody
//! may be sending any.
//!
//! Two ways of being armed, for comparison (Tracey and Banerji, "Device Driver Issues in
//! High-Performance Networking", 3.1). The *eager* one sets a deadline when frames go out, moves it
//! when some come back, and clears it when all are back. The *lazy* one lets frames go and come, and
//! looks once a window whether any came back since it looked last: it needs nothing of their way,
//! and takes up to two windows to notice. The paper's driver did either for every frame; an engine
//! that works in turns does it once a turn, for all frames of the turn.

use towpath_protocol::settings::{Setting, Values};

/// Turns between two looks at the clock while something is watched, when no sleep lies between.
const TURNS: u32 = 64;

/// How it is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arming {
    /// Not at all.
    Off,
    /// By a check once a window.
    Lazy,
    /// By a deadline.
    Eager,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to be done.
    Fine,
    /// Nothing came back for a window: the device is to be reset. `new`: it worked since it was
    /// reset last.
    Stalled {
        /// It is no stall that was told of before.
        new: bool,
    },
    /// Frames come back again, after so many resets.
    Recovered {
        /// Resets of this stall.
        resets: u64,
    },
}

/// What it counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that a deadline was set, or a check was scheduled while none was.
    pub arms: u64,
    /// Times that the clock was compared with the deadline, or that a check was made.
    pub checks: u64,
    /// Stalls noticed.
    pub stalls: u64,
    /// Resets that were ordered.
    pub resets: u64,
}

/// The watchdog of one device.
#[derive(Debug)]
pub struct Watchdog {
    arming: Arming,
    window: u64,
    /// Eager: the deadline. Lazy: the next check.
    at: Option<u64>,
    /// What had come back when it was set, or last looked.
    seen: u64,
    turns: u32,
    /// Resets since something came back; 0: it works.
    resets: u64,
    /// What it counted.
    pub counts: Counts,
}

impl Watchdog {
    /// One that is armed so, and takes a device for stalled after a `window` in nanoseconds; 0: off.
    #[must_use]
    pub fn new(arming: Arming, window: u64) -> Watchdog {
        Watchdog {
            arming: if window == 0 { Arming::Off } else { arming },
            window,
            at: None,
            seen: 0,
            turns: 0,
            resets: 0,
            counts: Counts::default(),
        }
    }

    /// As the settings say.
    pub(crate) fn of(values: &Values) -> Watchdog {
        let arming = match values.get(Setting::Watchdog) {
            0 => Arming::Off,
            1 => Arming::Lazy,
            _ => Arming::Eager,
        };
        Watchdog::new(arming, values.get(Setting::WatchdogMs) * 1_000_000)
    }

    /// Goes on with another arming and window. What is out is watched from now on.
    pub fn change(&mut self, to: Watchdog) {
        // A stall goes on: only what comes back ends it.
        let (resets, seen, counts) = (self.resets, self.seen, self.counts);
        *self = Watchdog { resets, seen, counts, ..to };
    }

    /// After each turn: `out` packets are with the device, and `returned` ever came back. The time
    /// is asked for only where it is needed, in nanoseconds.
    #[inline]
    pub fn after_turn(&mut self, out: u64, returned: u64, now: impl FnOnce() -> u64) -> Verdict {
        if out == 0 && self.resets == 0 && (self.at.is_none() || self.arming == Arming::Lazy) {
            return Verdict::Fine;
        }
        match self.arming {
            Arming::Off => Verdict::Fine,
            Arming::Lazy => self.lazy(out, returned, now),
            Arming::Eager => self.eager(out, returned, now),
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
        if !self.is_time_to_look() {
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

    fn eager(&mut self, out: u64, returned: u64, now: impl FnOnce() -> u64) -> Verdict {
        let came = returned != self.seen;
        if out == 0 {
            self.at = None;
        } else if came || self.at.is_none() {
            self.counts.arms += 1;
            self.at = Some(now() + self.window);
        } else if self.is_time_to_look() {
            self.counts.checks += 1;
            let now = now();
            if self.at.is_some_and(|at| at <= now) {
                self.at = Some(now + self.window);
                return self.stalled();
            }
        }
        if came && self.resets > 0 {
            return self.recovered(returned);
        }
        self.seen = returned;
        Verdict::Fine
    }

    fn is_time_to_look(&mut self) -> bool {
        self.turns += 1;
        let look = self.turns >= TURNS;
        if look {
            self.turns = 0;
        }
        look
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

    /// The device was reset: what came back by that, `returned` in all, is no sign of life, and
    /// nothing is out.
    pub fn was_reset(&mut self, returned: u64) {
        (self.at, self.seen) = (None, returned);
    }

    /// The engine has slept: the next turn looks at the clock.
    pub fn slept(&mut self) {
        self.turns = TURNS;
    }

    /// When it must look next, in nanoseconds, if `out` packets are with the device. Nothing out:
    /// never.
    #[must_use]
    pub fn next_due(&self, out: u64) -> Option<u64> {
        if out == 0 { None } else { self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1000;

    /// A device in simulated time: a turn each 7 ns at the most, sleep where nothing is due.
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

        fn turn(&mut self) -> Verdict {
            let now = self.now;
            self.now += 7;
            self.dog.after_turn(self.out, self.returned, || now)
        }

        fn back(&mut self, count: u64) {
            self.out -= count;
            self.returned += count;
        }

        /// Sleeps as long as it may, and takes the turn after it.
        fn sleep(&mut self, most: u64) -> Verdict {
            let due = self.dog.next_due(self.out).unwrap_or(u64::MAX);
            self.now = self.now.max(due.min(self.now + most));
            self.dog.slept();
            self.turn()
        }

        /// How long it takes to notice the stall that begins with the frames of this turn, by a
        /// side that sleeps or one that does not.
        fn noticed(&mut self, sleeps: bool) -> u64 {
            let begin = self.now;
            assert_eq!(self.turn(), Verdict::Fine);
            while self.now < begin + 10 * WINDOW {
                let verdict = if sleeps { self.sleep(u64::MAX / 2) } else { self.turn() };
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
            self.dog.was_reset(self.returned);
        }
    }

    /// A stall is noticed after a window, and before two are over; an eager one at once after it.
    /// Turns come 64 to a look.
    #[test]
    fn a_stall_is_noticed_in_time() {
        let grain = 7 * u64::from(TURNS + 1);
        for (arming, looks) in [(Arming::Eager, 1), (Arming::Lazy, 2)] {
            for sleeps in [false, true] {
                // It begins at any moment of a window, and after any traffic before it.
                for before in 0..400 {
                    let mut device = Simulated::new(arming);
                    for packet in 0..before {
                        device.out += 1 + packet % 3;
                        assert_eq!(device.turn(), Verdict::Fine);
                        device.back(device.out - packet % 2);
                        assert_eq!(device.turn(), Verdict::Fine);
                        device.back(device.out);
                        assert_eq!(device.turn(), Verdict::Fine);
                    }
                    device.out += 3;
                    let took = device.noticed(sleeps);
                    let range = WINDOW..=looks * (WINDOW + grain);
                    assert!(range.contains(&took), "{arming:?} {before} {sleeps}: {took}");
                    assert_eq!((device.dog.counts.stalls, device.dog.counts.resets), (1, 1));
                }
            }
        }
    }

    /// As long as something comes back within each window, nothing is reset: also when there is
    /// always something out, and when long silence lies between.
    #[test]
    fn what_is_slow_is_not_stalled() {
        for arming in [Arming::Lazy, Arming::Eager] {
            let mut device = Simulated::new(arming);
            device.out = 5;
            for round in 0..200 {
                let until = device.now + WINDOW - 20;
                while device.now < until {
                    let verdict = if round % 2 == 0 { device.turn() } else { device.sleep(10) };
                    assert_eq!(verdict, Verdict::Fine, "{arming:?}, round {round}");
                }
                device.back(1);
                device.out += 1;
                assert_eq!(device.turn(), Verdict::Fine);
                if round % 10 == 9 {
                    device.back(device.out);
                    assert_eq!(device.turn(), Verdict::Fine);
                    assert_eq!(device.dog.next_due(device.out), None, "an idle system never wakes");
                    device.now += 50 * WINDOW;
                    device.out = 5;
                    assert_eq!(device.turn(), Verdict::Fine);
                }
            }
            assert_eq!(device.dog.counts.resets, 0);
            assert!(device.dog.counts.arms > 0);
        }
    }

    /// One that does not come back to life is reset once a window, and told of once; what comes back
    /// afterwards ends the stall, and the next one is new.
    #[test]
    fn a_stall_is_told_of_once() {
        for arming in [Arming::Lazy, Arming::Eager] {
            let mut device = Simulated::new(arming);
            device.out = 4;
            device.noticed(true);
            device.reset();
            for _ in 0..3 {
                device.out = 4;
                let verdicts: Vec<_> = (0..1000)
                    .map(|_| device.turn())
                    .filter(|verdict| *verdict != Verdict::Fine)
                    .take(1)
                    .collect();
                assert_eq!(verdicts, [Verdict::Stalled { new: false }], "{arming:?}");
                device.reset();
            }
            assert_eq!((device.dog.counts.stalls, device.dog.counts.resets), (1, 4));
            device.out = 4;
            assert_eq!(device.turn(), Verdict::Fine);
            device.back(4);
            assert_eq!(device.turn(), Verdict::Recovered { resets: 4 }, "{arming:?}");
            assert_eq!(device.turn(), Verdict::Fine);
            device.out = 1;
            device.noticed(false);
            assert_eq!((device.dog.counts.stalls, device.dog.counts.resets), (2, 5));
        }
    }

    /// The lazy one does nothing for frames that go and come between its checks; the eager one
    /// arms for each.
    #[test]
    fn what_they_do_for_frames() {
        let run = |arming| {
            let mut device = Simulated::new(arming);
            for _ in 0..1000 {
                device.out = 1;
                assert_eq!(device.turn(), Verdict::Fine);
                device.back(1);
                assert_eq!(device.turn(), Verdict::Fine);
            }
            device.dog.counts
        };
        let (lazy, eager) = (run(Arming::Lazy), run(Arming::Eager));
        assert_eq!((lazy.arms, eager.arms, eager.checks), (1, 1000, 0));
        assert!((1..=14).contains(&lazy.checks), "{} checks in 14 windows", lazy.checks);
        assert_eq!(run(Arming::Off), Counts::default());
    }

    #[test]
    fn what_is_changed_in_a_stall_does_not_end_it() {
        for (from, to) in [(Arming::Eager, Arming::Lazy), (Arming::Lazy, Arming::Eager)] {
            let mut device = Simulated::new(from);
            device.out = 1;
            device.noticed(true);
            // What the reset gave back goes out again.
            device.reset();
            device.out = 1;
            device.dog.change(Watchdog::new(to, 2 * WINDOW));
            for _ in 0..100 {
                assert!(!matches!(device.turn(), Verdict::Recovered { .. }), "nothing came back");
            }
            device.back(1);
            let ends = (0..100).any(|_| matches!(device.turn(), Verdict::Recovered { .. }));
            assert!(ends, "it came back");
            assert_eq!(device.dog.counts.stalls, 1);
        }
    }

    #[test]
    fn what_is_changed_counts_on() {
        let mut device = Simulated::new(Arming::Eager);
        device.out = 1;
        device.turn();
        device.dog.change(Watchdog::new(Arming::Lazy, 0));
        for _ in 0..1000 {
            assert_eq!(device.turn(), Verdict::Fine, "0 is off");
        }
        assert_eq!(device.dog.next_due(device.out), None);
        device.dog.change(Watchdog::new(Arming::Eager, WINDOW));
        assert!((WINDOW..WINDOW + 600).contains(&device.noticed(true)));
        assert_eq!(device.dog.counts.arms, 2);
    }
}
