//! The sessions of an earlier server that wait for their applications.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The sessions that this server resumed, by the tokens of their connections.
#[derive(Debug)]
pub(crate) struct UnclaimedSessions {
    /// Each with the time by which its application must have claimed it. An entry may be stale.
    all: VecDeque<(Instant, u64)>,
    /// How long a session waits.
    timeout: Duration,
}

impl UnclaimedSessions {
    /// Begins without sessions, each of which is to wait for `timeout`.
    pub(crate) fn new(timeout: Duration) -> UnclaimedSessions {
        UnclaimedSessions { all: VecDeque::new(), timeout }
    }

    /// Adds a session, which waits from now on.
    pub(crate) fn push(&mut self, token: u64) {
        self.all.push_back((Instant::now() + self.timeout, token));
    }

    /// Returns the tokens of all sessions, among them some that their applications have claimed.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u64> {
        self.all.iter().map(|(_, token)| *token)
    }

    /// Returns the time until a session has waited long enough.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let (deadline, _) = self.all.front()?;
        Some(deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Takes a session that has waited long enough.
    pub(crate) fn take_expired(&mut self) -> Option<u64> {
        let (deadline, token) = *self.all.front()?;
        if deadline > Instant::now() {
            return None;
        }
        self.all.pop_front();
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_waits_for_a_time() {
        let mut sessions = UnclaimedSessions::new(Duration::from_secs(60));
        assert!(sessions.next_deadline().is_none());
        sessions.push(7);
        assert!(sessions.next_deadline().unwrap() > Duration::from_secs(50));
        assert_eq!((sessions.take_expired(), sessions.tokens().count()), (None, 1));
        let mut sessions = UnclaimedSessions::new(Duration::ZERO);
        sessions.push(7);
        sessions.push(8);
        assert_eq!(sessions.tokens().collect::<Vec<_>>(), [7, 8]);
        assert_eq!((sessions.take_expired(), sessions.take_expired()), (Some(7), Some(8)));
        assert_eq!(sessions.take_expired(), None);
    }
}
