//! Limits the log lines that one party can cause, for example a user: a burst, then some lines per second. Counts
//! suppressed lines, and logs the count before the user's next line.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use tracing::warn;

/// Lines that a user may log at once by default.
const BURST: u32 = 20;
/// Users that the limit remembers. Beyond that, it forgets users that have been quiet.
const USERS: usize = 1024;

/// The lines of one user.
#[derive(Debug)]
struct LineBudget {
    left: u32,
    since: Instant,
    suppressed: u64,
}

/// The lines of all users. `P` tells users apart, and names each by a number.
#[derive(Debug)]
pub struct LogLimit<P> {
    users: HashMap<P, LineBudget>,
    burst: u32,
    per_second: u32,
}

impl<P> Default for LogLimit<P> {
    fn default() -> LogLimit<P> {
        LogLimit::new(BURST, 1)
    }
}

impl<P> LogLimit<P> {
    /// Returns a limit of `burst` lines at once per user, then `per_second` lines per second. Each is at least 1.
    #[must_use]
    pub fn new(burst: u32, per_second: u32) -> LogLimit<P> {
        LogLimit { users: HashMap::new(), burst: burst.max(1), per_second: per_second.max(1) }
    }

    /// Returns the number of seconds after which a user may log the whole burst again.
    fn quiet_seconds(&self) -> u64 {
        self.burst.div_ceil(self.per_second).into()
    }
}

impl<P: Copy + Eq + Hash + Into<u32>> LogLimit<P> {
    /// Returns `true` if the server may log a line because of this user now.
    #[must_use]
    pub fn allows(&mut self, user: P) -> bool {
        match self.take(user, Instant::now()) {
            None => false,
            Some(0) => true,
            Some(lines) => {
                warn!(uid = user.into(), lines, "log lines because of this user were left out");
                true
            }
        }
    }
}

impl<P: Copy + Eq + Hash> LogLimit<P> {
    /// Takes a line from the user's budget. Returns how many lines were suppressed before it, or
    /// `None` if the budget is used up.
    #[must_use]
    pub fn take(&mut self, user: P, now: Instant) -> Option<u64> {
        let quiet = self.quiet_seconds();
        if self.users.len() >= USERS && !self.users.contains_key(&user) {
            self.users.retain(|_, one| one.seconds(now) < quiet);
            if self.users.len() >= USERS {
                return None;
            }
        }
        let fresh = LineBudget { left: self.burst, since: now, suppressed: 0 };
        let budget = self.users.entry(user).or_insert(fresh);
        let seconds = budget.seconds(now);
        if seconds > 0 {
            let more = seconds.min(quiet) as u32 * self.per_second;
            budget.left = budget.left.saturating_add(more).min(self.burst);
            budget.since = now;
        }
        if budget.left == 0 {
            budget.suppressed += 1;
            return None;
        }
        budget.left -= 1;
        Some(std::mem::take(&mut budget.suppressed))
    }
}

impl<P: Copy + Eq + Hash> LogLimit<P> {
    /// Counts a line of a user that another limit has left out.
    pub fn leave_out(&mut self, user: P, now: Instant) {
        let fresh = LineBudget { left: self.burst, since: now, suppressed: 0 };
        if self.users.len() < USERS || self.users.contains_key(&user) {
            self.users.entry(user).or_insert(fresh).suppressed += 1;
        }
    }
}

impl LineBudget {
    /// Returns the whole seconds since the budget last grew.
    fn seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn log_lines_beyond_the_limit_are_counted() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        let lines = |limit: &mut LogLimit<u32>, uid, at: u64| {
            limit.take(uid, start + Duration::from_millis(at))
        };
        for _ in 0..BURST {
            assert_eq!(lines(&mut limit, 1, 0), Some(0));
        }
        for _ in 0..60_000 {
            assert_eq!(lines(&mut limit, 1, 900), None);
        }
        assert_eq!(lines(&mut limit, 2, 900), Some(0), "another user's lines are its own");
        assert_eq!(lines(&mut limit, 1, 1000), Some(60_000));
        assert_eq!(lines(&mut limit, 1, 1000), None);
        // The length of the quiet time makes no difference.
        for _ in 0..BURST {
            assert!(lines(&mut limit, 1, 1_000_000).is_some());
        }
        assert_eq!(lines(&mut limit, 1, 1_000_000), None);
    }

    #[test]
    fn another_limit_has_its_own_burst_and_rate() {
        let mut limit = LogLimit::new(4, 2);
        let start = Instant::now();
        let mut lines = |seconds| {
            let now = start + Duration::from_secs(seconds);
            (0..9).filter(|_| limit.take(1, now).is_some()).count()
        };
        assert_eq!([0, 0, 1, 2, 60].map(&mut lines), [4, 0, 2, 2, 4]);
    }

    #[test]
    fn lines_that_another_limit_left_out_are_counted() {
        let mut limit = LogLimit::new(4, 2);
        let now = Instant::now();
        (0..7).for_each(|_| limit.leave_out((), now));
        assert_eq!([(); 2].map(|()| limit.take((), now)), [Some(7), Some(0)]);
    }

    #[test]
    fn log_memory_for_many_users_is_bounded() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        let logged = (0..100_000_u32).filter(|uid| limit.take(*uid, start).is_some()).count();
        assert_eq!((logged, limit.users.len()), (USERS, USERS));
        let later = start + Duration::from_secs(60);
        assert_eq!(limit.take(100_000, later), Some(0));
        assert_eq!(limit.users.len(), 1);
    }
}
