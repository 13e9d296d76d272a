//! The time, which the caller passes as an argument.

use std::time::Duration;

/// A point in time: microseconds since an origin of the caller's choice. It must never run
/// backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin, from which all others count.
    pub const ZERO: Instant = Instant(0);

    /// Returns the time this many microseconds after [`Instant::ZERO`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Instant(micros)
    }

    /// Returns the time this many milliseconds after [`Instant::ZERO`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Instant(millis.saturating_mul(1000))
    }

    /// Returns the microseconds since [`Instant::ZERO`].
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero if `earlier` is not before this.
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}
