//! The numbers that the control thread gives: to connections, to sessions, and to their notifications.

/// The next numbers.
#[derive(Debug)]
pub(crate) struct Numbers {
    token: u64,
    session: u32,
    /// Notification counters that no session uses.
    counters: Vec<u32>,
}

impl Numbers {
    /// Begins with the first numbers, and with `counters` notification counters.
    pub(crate) fn new(counters: u32) -> Numbers {
        // No connection has token 0: a report's cursor starts there.
        Numbers { token: 1, session: 1, counters: (0..counters).rev().collect() }
    }

    /// Returns the token of a new connection.
    pub(crate) fn take_token(&mut self) -> u64 {
        self.token += 1;
        self.token - 1
    }

    /// Returns the number of the next session.
    pub(crate) fn next_session(&self) -> u32 {
        self.session
    }

    /// Takes the number that [`Numbers::next_session`] returns. No session has number 0.
    pub(crate) fn take_session(&mut self) {
        self.session = self.session.wrapping_add(1).max(1);
    }

    /// Gives no new session the number of an earlier server's, or a lower one.
    pub(crate) fn skip_session(&mut self, number: u32) {
        self.session = self.session.max(number.wrapping_add(1)).max(1);
    }

    /// Takes a notification counter, if there is one.
    pub(crate) fn take_counter(&mut self) -> Option<u32> {
        self.counters.pop()
    }

    /// Takes a notification counter back from a session that had one.
    pub(crate) fn give_back_counter(&mut self, counter: Option<u32>) {
        self.counters.extend(counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_sessions_begin_with_one() {
        let mut numbers = Numbers::new(0);
        assert_eq!((numbers.take_token(), numbers.take_token()), (1, 2));
        assert_eq!((numbers.next_session(), numbers.next_session()), (1, 1));
        numbers.take_session();
        assert_eq!(numbers.next_session(), 2);
        numbers.skip_session(7);
        numbers.skip_session(5);
        assert_eq!(numbers.next_session(), 8);
        numbers.skip_session(u32::MAX - 1);
        numbers.take_session();
        assert_eq!(numbers.next_session(), 1, "not 0");
    }

    #[test]
    fn a_counter_is_that_of_one_session_at_a_time() {
        let mut numbers = Numbers::new(2);
        assert_eq!((numbers.take_counter(), numbers.take_counter()), (Some(0), Some(1)));
        assert_eq!(numbers.take_counter(), None);
        numbers.give_back_counter(None);
        numbers.give_back_counter(Some(0));
        assert_eq!((numbers.take_counter(), numbers.take_counter()), (Some(0), None));
    }
}
