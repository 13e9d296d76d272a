//! The ends of servers: how one ended, and when the next one starts.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::options::KeeperOptions;

/// The pause before another start, after a server that ended before it served. It doubles with each
/// such end, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The least time that a server has to serve, after an earlier one has served.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a server has to serve which begins anew, for a device that is tried again and again.
pub(super) const ANEW_TIMEOUT: Duration = Duration::from_secs(30);
/// A crash so soon after a start is one of a series.
const EARLY: Duration = Duration::from_secs(10);
/// Crashes of such a series after which the next server starts at once.
const CRASHES_AT_ONCE: u32 = 2;

/// Returns how a server ended, in words.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the server was killed by signal {signal}"),
        (None, code) => format!("the server ended with exit code {}", code.unwrap_or(-1)),
    }
}

/// Returns `true` if a server ended by a defect, and not because another process killed it.
pub(super) fn is_defect(status: ExitStatus) -> bool {
    // The exit code of a program of Rust that has panicked.
    const PANICKED: i32 = 101;
    const DEFECTS: [i32; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGABRT,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    let by_signal = status.signal().is_some_and(|signal| DEFECTS.contains(&signal));
    by_signal || status.code() == Some(PANICKED)
}

/// Returns the pause after so many ends in a row; `None` without one.
fn pause_after(count: u32) -> Option<Duration> {
    let doublings = count.checked_sub(1)?;
    let pause = FIRST_PAUSE * 2u32.saturating_pow(doublings).min(1 << 10);
    Some(pause.min(LONGEST_PAUSE))
}

/// The ends of servers so far, which decide when the next one starts.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Servers in a row that ended before they served.
    failed_starts: u32,
    /// Servers in a row that crashed soon after their start.
    crashes: u32,
    /// The time until which a server has served.
    served_until: Option<Instant>,
}

impl Ends {
    /// Returns a record without ends. The time of `--hold` counts from now.
    pub(super) fn from_now() -> Ends {
        Ends { served_until: Some(Instant::now()), ..Ends::default() }
    }

    /// Returns `true` if a server has served.
    pub(super) fn has_served(&self) -> bool {
        self.served_until.is_some()
    }

    /// Returns the time by which the next server must serve, which starts now.
    pub(super) fn serve_by(&self, hold: Duration) -> Option<Instant> {
        Some(self.held_until(hold)?.max(Instant::now() + START_TIMEOUT))
    }

    /// Returns the time after which no other server starts.
    pub(super) fn held_until(&self, hold: Duration) -> Option<Instant> {
        self.served_until.map(|last| last + hold)
    }

    /// Adds the end of a server. Returns when the next one starts. `started`: the time of its start.
    /// `hold`: the longest time without a server that serves; zero: no other server starts.
    pub(super) fn add(
        &mut self,
        has_served: bool,
        has_crashed: bool,
        started: Instant,
        hold: Duration,
    ) -> Next {
        let now = Instant::now();
        if has_served {
            let is_early = has_crashed && started + EARLY > now;
            self.crashes = if is_early { self.crashes + 1 } else { 0 };
            (self.failed_starts, self.served_until) = (0, Some(now));
        } else {
            self.failed_starts += 1;
        }
        let left = self.held_until(hold).map(|until| until.saturating_duration_since(now));
        let Some(left) = left.filter(|left| !left.is_zero()) else { return Next::None };
        // The last attempt comes before the time is over.
        let pause = |count: u32| Some(pause_after(count)?.min(left.mul_f64(0.9)));
        let (attempt, crashes) = (self.failed_starts, self.crashes);
        match (pause(attempt), pause(crashes.saturating_sub(CRASHES_AT_ONCE))) {
            (Some(pause), _) => Next::AfterFailedStarts { attempt, pause },
            (None, Some(pause)) => Next::AfterCrashes { crashes, pause },
            (None, None) => Next::AtOnce,
        }
    }

    /// Begins anew after an end that [`Ends::add`] has counted. Returns when a server starts that gets no
    /// object of the earlier ones.
    pub(super) fn begin_anew(&mut self) -> Next {
        (self.crashes, self.served_until) = (0, None);
        let attempt = self.failed_starts.max(1);
        Next::Anew { attempt, pause: pause_after(attempt).unwrap_or(LONGEST_PAUSE) }
    }
}

/// When the next server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    AtOnce,
    /// After so many crashes in a row, each soon after a start.
    AfterCrashes {
        crashes: u32,
        pause: Duration,
    },
    /// After so many starts in a row that failed.
    AfterFailedStarts {
        attempt: u32,
        pause: Duration,
    },
    /// After so many ends in a row before a server served. It gets no object of the servers before.
    Anew {
        attempt: u32,
        pause: Duration,
    },
    /// No server follows: the keeper ends.
    None,
}

impl Next {
    /// Tells the operator what follows the end of a server.
    pub(super) fn log(&self, options: &KeeperOptions, end: &str) {
        let device = &options.interface;
        match self {
            Next::AtOnce => {
                tracing::warn!(device, "{end}: another server starts, and resumes the sessions");
            }
            Next::AfterCrashes { crashes, pause } => tracing::error!(
                device,
                "{end}: {crashes} crashes in a row, each soon after a start; another start in {} ms",
                pause.as_millis()
            ),
            Next::AfterFailedStarts { attempt, pause } => tracing::error!(
                device,
                "{end} before it served (attempt {attempt}): another start in {} ms",
                pause.as_millis()
            ),
            Next::Anew { attempt, pause } => tracing::error!(
                device,
                "{end}: the device has failed, and its sessions end (attempt {attempt}): another start \
                 in {} ms; remove the cause that the lines before give",
                pause.as_millis()
            ),
            Next::None => {
                let why = match options.hold.as_secs() {
                    0 => "with --hold 0, no other server follows it".to_owned(),
                    hold => format!("no server has served for {hold} s"),
                };
                tracing::error!(
                    device,
                    "{end}: {why}, and the keeper ends; remove the cause that the lines before \
                     give, and start towpath serve again"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(3600);

    #[test]
    fn starts_that_fail_are_repeated_after_growing_pauses() {
        let mut ends = Ends::from_now();
        let now = Instant::now();
        let pauses: Vec<_> = (0..8)
            .map(|_| match ends.add(false, false, now, HOLD) {
                Next::AfterFailedStarts { pause, .. } => pause.as_millis(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(ends.add(true, false, now, HOLD), Next::AtOnce);
        assert_eq!(ends.add(true, false, now, Duration::ZERO), Next::None);
        assert_eq!(Ends::default().add(false, false, now, HOLD), Next::None);
    }

    #[test]
    fn a_device_that_fails_is_tried_again_after_growing_pauses() {
        let mut ends = Ends::default();
        let now = Instant::now();
        let mut pause = |has_served| {
            ends.add(has_served, false, now, Duration::ZERO);
            match ends.begin_anew() {
                Next::Anew { pause, .. } => pause.as_millis(),
                other => panic!("{other:?}"),
            }
        };
        let pauses: Vec<_> = (0..8).map(|_| pause(false)).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!([pause(true), pause(false)], [100, 100]);
        assert!(!ends.has_served());
    }

    #[test]
    fn crashes_one_soon_after_the_other_are_slowed_down() {
        let mut ends = Ends::from_now();
        let now = Instant::now();
        let mut next = || ends.add(true, true, now, HOLD);
        assert_eq!((next(), next()), (Next::AtOnce, Next::AtOnce));
        let pause = Duration::from_millis(100);
        assert_eq!(next(), Next::AfterCrashes { crashes: 3, pause });
        assert_eq!(next(), Next::AfterCrashes { crashes: 4, pause: pause * 2 });
        let long_ago = now.checked_sub(EARLY * 2).unwrap();
        assert_eq!(ends.add(true, true, long_ago, HOLD), Next::AtOnce);
    }
}
