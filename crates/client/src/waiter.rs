//! A client's wait strategy, with its state.

use std::time::Instant;

use towpath_waiting::clock::Ticks;
use towpath_waiting::{Clock, Costs, Spinner, Step};

use crate::clock;
use crate::options::WaitStrategy;

/// Polls without news after which a polling client checks whether the server lives. Each takes
/// about ten nanoseconds.
const POLLS_PER_CHECK: u32 = 65_536;
/// How often a client that spins between ticks checks whether the server lives, in nanoseconds.
const CHECK_INTERVAL: u64 = 1_000_000;
/// The distance between ticks from which the client always sleeps between them, in nanoseconds. The
/// client then measures nothing.
const ALWAYS_SLEPT: u64 = 100_000;

/// The wait strategy of [`Session::wait`](crate::Session::wait), with its state.
#[derive(Debug)]
pub(crate) struct Waiter {
    strategy: Strategy,
    began: Instant,
    polls: u32,
    /// When a client that spins between ticks last checked whether the server lives.
    checked_at: u64,
}

#[derive(Debug)]
enum Strategy {
    Block,
    Poll,
    Spin(Spinner),
    /// Spins for `limit` nanoseconds from the first poll without news.
    SpinFor {
        limit: u64,
        since: Option<u64>,
    },
    TimerDriven(Clock),
    /// A clock so fast that the first wait measures the shortest sleep; its ticks per second.
    NotMeasured(u64),
}

/// Returns the shortest time between ticks for which the client sleeps. Unlike the engine, the
/// client does not change its thread's timer slack.
fn least_sleep() -> u64 {
    let costs = Costs::of_this_machine();
    costs.least_sleep().max(costs.tick_late).min(ALWAYS_SLEPT)
}

impl Waiter {
    pub(crate) fn new(waiting: WaitStrategy) -> Waiter {
        let strategy = match waiting {
            WaitStrategy::Block => Strategy::Block,
            WaitStrategy::Poll => Strategy::Poll,
            WaitStrategy::SpinThenBlock => {
                Strategy::Spin(Spinner::new(Costs::of_this_machine().wake_up))
            }
            WaitStrategy::SpinFor(limit) => {
                Strategy::SpinFor { limit: limit.as_nanos() as u64, since: None }
            }
            WaitStrategy::TimerDriven(hz) => {
                let clock = Clock::new(u64::from(hz), 0, 0);
                if clock.period() < ALWAYS_SLEPT {
                    Strategy::NotMeasured(u64::from(hz))
                } else {
                    Strategy::TimerDriven(clock)
                }
            }
        };
        Waiter { strategy, began: clock::now(), polls: 0, checked_at: 0 }
    }

    /// Returns the counts of the clock's ticks.
    pub(crate) fn ticks(&self) -> Ticks {
        if let Strategy::TimerDriven(clock) = &self.strategy {
            clock.counts
        } else {
            Ticks::default()
        }
    }

    /// Returns the time on the waiter's own clock, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    pub(crate) fn idle(&mut self) -> Step {
        if matches!(self.strategy, Strategy::Block) {
            return Step::Block;
        }
        if let Strategy::NotMeasured(hz) = self.strategy {
            self.measured(hz, least_sleep());
        }
        let now = if matches!(self.strategy, Strategy::Poll) { 0 } else { self.now() };
        match &mut self.strategy {
            Strategy::Block | Strategy::NotMeasured(_) => Step::Block,
            Strategy::Poll => Step::Poll,
            Strategy::Spin(spinner) => {
                if spinner.poll_again(now) {
                    Step::Spin { until: now }
                } else {
                    Step::Block
                }
            }
            Strategy::SpinFor { limit, since } => {
                let began = *since.get_or_insert(now);
                if now.saturating_sub(began) < *limit {
                    Step::Spin { until: now }
                } else {
                    Step::Block
                }
            }
            Strategy::TimerDriven(clock) => clock.step(now),
        }
    }

    /// Starts the clock with the measured shortest sleep.
    fn measured(&mut self, hz: u64, least_sleep: u64) {
        self.strategy = Strategy::TimerDriven(Clock::new(hz, least_sleep, self.now()));
    }

    pub(crate) fn is_timer_driven(&self) -> bool {
        matches!(self.strategy, Strategy::TimerDriven(_))
    }

    pub(crate) fn found(&mut self, slept: bool) {
        if let Strategy::SpinFor { since, .. } = &mut self.strategy {
            *since = None;
        }
        if matches!(self.strategy, Strategy::Spin(_)) {
            let now = self.now();
            if let Strategy::Spin(spinner) = &mut self.strategy {
                spinner.found(now, slept);
            }
        }
    }

    pub(crate) fn woke(&mut self) {
        let now = self.now();
        if let Strategy::TimerDriven(clock) = &mut self.strategy {
            clock.woke(now);
        }
    }

    pub(crate) fn is_time_to_poll(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(POLLS_PER_CHECK)
    }

    pub(crate) fn is_time_to_check(&mut self) -> bool {
        let now = self.now();
        let is_time = now - self.checked_at >= CHECK_INTERVAL;
        if is_time {
            self.checked_at = now;
        }
        is_time
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fixed_limit_of_spinning_counts_from_the_first_poll_without_news() {
        let mut never = Waiter::new(WaitStrategy::SpinFor(Duration::ZERO));
        assert!(matches!(never.idle(), Step::Block));
        let limit = Duration::from_millis(5);
        let mut waiter = Waiter::new(WaitStrategy::SpinFor(limit));
        for slept in [false, true] {
            assert!(matches!(waiter.idle(), Step::Spin { .. }), "the time begins here");
            std::thread::sleep(limit);
            assert!(matches!(waiter.idle(), Step::Block));
            assert!(matches!(waiter.idle(), Step::Block), "until there are news");
            waiter.found(slept);
        }
        let too_long = WaitStrategy::SpinFor(Duration::from_millis(11)).check();
        assert!(too_long.unwrap_err().contains("at most 10ms"));
        assert_eq!(WaitStrategy::SpinFor(Duration::from_millis(10)).check(), Ok(()));
    }

    #[test]
    fn only_a_clock_faster_than_sleep_spins() {
        for (hz, least_sleep, spins) in [
            (100_000, 10_001, true),
            (100_000, 10_000, false),
            (20_000, 60_000, true),
            (20_000, 40_000, false),
        ] {
            let mut waiter = Waiter::new(WaitStrategy::TimerDriven(hz));
            assert!(
                matches!(waiter.strategy, Strategy::NotMeasured(_)),
                "attaching measures nothing"
            );
            waiter.measured(u64::from(hz), least_sleep);
            let step = waiter.idle();
            assert_eq!(matches!(step, Step::Spin { .. }), spins, "{hz} Hz: {step:?}");
            assert_eq!(matches!(step, Step::SleepUntil { .. }), !spins, "{hz} Hz: {step:?}");
        }
        // The longest time for which a client spins between ticks.
        for hz in [1, 1000, 10_000] {
            let mut waiter = Waiter::new(WaitStrategy::TimerDriven(hz));
            assert!(
                matches!(waiter.strategy, Strategy::TimerDriven(_)),
                "{hz} Hz needs no measuring"
            );
            assert!(matches!(waiter.idle(), Step::SleepUntil { .. }), "{hz} Hz");
        }
        assert!((10_000..=ALWAYS_SLEPT).contains(&least_sleep()));
    }
}
