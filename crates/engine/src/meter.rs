//! The engine's time for each session. The engine measures one of sixteen poll iterations, so that
//! the clock costs little, and counts its time sixteenfold.
//!
//! A turn of a session's queue pair is measured by itself. The time to receive packets is divided
//! among the sessions that received some, by their numbers. The rest of an iteration belongs to no
//! session.

use crate::clock::clock_ns;

/// Of so many poll iterations, the engine measures one: 2^4.
const MEASURED_SHIFT: u32 = 4;
/// Spreads the measured iterations: those of an engine that always finds work in every second one,
/// for example, would otherwise be all or none (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the engine measures in a poll iteration.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    measures: bool,
    receive_ns: u64,
}

impl Meter {
    /// Begins a poll iteration.
    #[inline]
    pub(crate) fn begin(&mut self, iteration: u64) {
        self.measures = is_measured(iteration);
        self.receive_ns = 0;
    }

    /// Returns the time, if this iteration is measured.
    #[inline]
    pub(crate) fn now(&self) -> Option<u64> {
        self.measures.then(clock_ns)
    }

    /// Returns what to count for the time since then, in nanoseconds.
    #[inline]
    pub(crate) fn since(&self, began: Option<u64>) -> u64 {
        began.map_or(0, |began| clock_ns().saturating_sub(began) << MEASURED_SHIFT)
    }

    /// Records the time to receive packets, which began then.
    #[inline]
    pub(crate) fn received(&mut self, began: Option<u64>) {
        self.receive_ns = self.since(began);
    }

    /// Returns what to count for the packets received in this iteration, in nanoseconds.
    #[inline]
    pub(crate) fn receive_ns(&self) -> u64 {
        self.receive_ns
    }
}

fn is_measured(iteration: u64) -> bool {
    iteration.wrapping_mul(SPREAD) >> (u64::BITS - MEASURED_SHIFT) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_sixteen_iterations_is_measured_in_any_pattern() {
        for step in [1, 2, 3, 4, 8, 16, 32, 1000] {
            let measured = (0..16_000).filter(|number| is_measured(number * step)).count();
            assert!((900..1100).contains(&measured), "{measured} of 16000 in steps of {step}");
        }
    }

    #[test]
    fn only_measured_iterations_count() {
        let mut meter = Meter::default();
        let measured = (0..).find(|number| is_measured(*number)).unwrap();
        meter.begin(measured);
        let began = meter.now();
        assert!(began.is_some());
        while clock_ns() == began.unwrap() {}
        meter.received(began);
        assert!(meter.receive_ns() >= 1 << MEASURED_SHIFT);
        meter.begin((0..).find(|number| !is_measured(*number)).unwrap());
        assert_eq!((meter.now(), meter.since(meter.now()), meter.receive_ns()), (None, 0, 0));
    }
}
