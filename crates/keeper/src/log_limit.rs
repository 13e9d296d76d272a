//! Limits the log lines that one party can cause, for example a user: a burst, then one per second. Counts suppressed
//! lines, and logs the count before the user's next line.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use tracing::warn;

/// Lines that a user may log at once.
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
}

impl<P> Default for LogLimit<P> {
    fn default() -> LogLimit<P> {
        LogLimit { users: HashMap::new() }
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

    /// Takes a line from the user's budget. Returns how many lines were suppressed before it, or
    /// `None` if the budget is used up.
    fn take(&mut self, user: P, now: Instant) -> Option<u64> {
        if self.users.len() >= USERS && !self.users.contains_key(&user) {
            self.users.retain(|_, one| !one.is_quiet(now));
            if self.users.len() >= USERS {
                return None;
            }
        }
        let fresh = LineBudget { left: BURST, since: now, suppressed: 0 };
        let budget = self.users.entry(user).or_insert(fresh);
        let seconds = now.saturating_duration_since(budget.since).as_secs();
        if seconds > 0 {
            budget.left =
                budget.left.saturating_add(seconds.min(u64::from(BURST)) as u32).min(BURST);
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

impl LineBudget {
    fn is_quiet(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since).as_secs() >= u64::from(BURST)
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
