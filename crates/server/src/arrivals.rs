//! Connections that the control thread has accepted and not admitted yet, in turn for each user.
//!
//! The kernel serves a listening socket in the order of arrival, so one user that connects again and again would delay all
//! others. Accepting is cheap and admitting is not. So the control thread accepts every connection of the kernel's short queue,
//! and admits one connection of each user in turn.
//!
//! There are three lines, which are served in turn: that of the administrators' socket, that of users whom the policy has
//! admitted before, and that of all others. So a program with thousands of user numbers (`subuid(5)`) delays users that
//! come for the first time, and no known users.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use crate::policy::Entrance;
use crate::turns::Turns;

/// The most users that the server remembers as admitted.
const MOST_KNOWN: usize = 4096;

/// A connection that waits for admission.
pub(crate) type Arrival = (OwnedFd, Entrance);

/// A user by number; `None` if the kernel does not say which.
type Uid = Option<u32>;

/// The connections that wait for admission.
#[derive(Debug)]
pub(crate) struct Arrivals {
    lines: [Line; 3],
    /// The line whose turn is next.
    next: usize,
    /// Users whom the policy has admitted.
    known: HashSet<u32>,
}

const ADMINISTRATORS: usize = 0;
const KNOWN: usize = 1;
const OTHERS: usize = 2;

impl Arrivals {
    /// Creates empty lines for at most `limit` connections each.
    pub(crate) fn new(limit: usize) -> Arrivals {
        let lines = [Line::new(limit), Line::new(limit), Line::new(limit)];
        Arrivals { lines, next: 0, known: HashSet::new() }
    }

    /// Returns `true` if no connection waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.users.is_empty())
    }

    /// Returns `true` if the line of a socket's known users is full, and each waiting connection is of another user. The
    /// control thread then leaves further connections in the kernel's queue.
    pub(crate) fn is_full(&self, entrance: Entrance) -> bool {
        let line = if entrance == Entrance::Administrators { ADMINISTRATORS } else { KNOWN };
        self.lines[line].is_full()
    }

    /// Remembers that the policy admits a user.
    pub(crate) fn know(&mut self, uid: u32) {
        if self.known.len() < MOST_KNOWN {
            self.known.insert(uid);
        }
    }

    /// Forgets which users the policy admits.
    pub(crate) fn forget_all(&mut self) {
        self.known.clear();
    }

    /// Adds a connection behind the user's other connections. If the line is full, closes the newest connection
    /// of the user with the most connections in the line, and returns that user.
    pub(crate) fn add(&mut self, uid: Uid, arrival: Arrival) -> Option<Uid> {
        let line = match (arrival.1, uid) {
            (Entrance::Administrators, _) => ADMINISTRATORS,
            (_, Some(uid)) if self.known.contains(&uid) => KNOWN,
            _ => OTHERS,
        };
        self.lines[line].add(uid, arrival)
    }

    /// Takes the oldest connection of the user whose turn it is.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        for _ in 0..self.lines.len() {
            let line = self.next;
            self.next = (line + 1) % self.lines.len();
            if let Some(arrival) = self.lines[line].next() {
                return Some(arrival);
            }
        }
        None
    }
}

/// Connections of several users, which are served in turn.
#[derive(Debug)]
struct Line {
    users: Turns<Uid, Arrival>,
    waiting: usize,
    limit: usize,
}

impl Line {
    fn new(limit: usize) -> Line {
        Line { users: Turns::default(), waiting: 0, limit }
    }

    /// Returns `true` if the line is full and no user has more than one connection in it.
    fn is_full(&self) -> bool {
        self.waiting >= self.limit && self.users.parties() >= self.waiting
    }

    fn add(&mut self, uid: Uid, arrival: Arrival) -> Option<Uid> {
        self.users.push(uid, arrival);
        if self.waiting < self.limit {
            self.waiting += 1;
            return None;
        }
        self.users.take_last_of_longest().map(|(uid, _)| uid)
    }

    fn next(&mut self) -> Option<Arrival> {
        let (_, arrival) = self.users.take_next()?;
        self.waiting -= 1;
        Some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn arrival(entrance: Entrance) -> Arrival {
        let (socket, _) = UnixStream::pair().unwrap();
        (socket.into(), entrance)
    }

    fn ordinary() -> Arrival {
        arrival(Entrance::Applications)
    }

    fn order(line: &Line) -> Vec<(Uid, usize)> {
        line.users.counts()
    }

    #[test]
    fn users_take_turns() {
        let mut line = Line::new(100);
        for uid in [Some(7), Some(7), Some(7), Some(8), None] {
            assert_eq!(line.add(uid, ordinary()), None);
        }
        assert_eq!(order(&line), [(Some(7), 3), (Some(8), 1), (None, 1)]);
        assert!(line.next().is_some());
        assert_eq!(order(&line), [(Some(8), 1), (None, 1), (Some(7), 2)]);
        assert!(line.next().is_some() && line.next().is_some());
        assert_eq!(order(&line), [(Some(7), 2)]);
        while line.next().is_some() {}
        assert_eq!((order(&line), line.waiting), (vec![], 0));
    }

    #[test]
    fn a_flooding_user_loses_its_own_connections() {
        let mut line = Line::new(10);
        let lost: Vec<_> = (0..12).filter_map(|_| line.add(Some(7), ordinary())).collect();
        assert_eq!(lost, [Some(7), Some(7)]);
        assert_eq!(line.add(Some(8), ordinary()), Some(Some(7)), "another user has room");
        assert_eq!(order(&line), [(Some(7), 9), (Some(8), 1)]);
        assert!(!line.is_full());
    }

    #[test]
    fn a_line_of_single_connections_is_full_and_closes_none() {
        let mut arrivals = Arrivals::new(10);
        for uid in 0..10 {
            arrivals.know(uid);
            assert!(!arrivals.is_full(Entrance::Applications));
            assert_eq!(arrivals.add(Some(uid), ordinary()), None);
        }
        assert!(arrivals.is_full(Entrance::Applications), "the kernel's queue holds further ones");
        assert!(!arrivals.is_full(Entrance::Administrators));
    }

    /// Neither administrators nor known users wait behind users that come for the first time.
    #[test]
    fn lines_take_turns() {
        let mut arrivals = Arrivals::new(10);
        arrivals.know(7);
        for uid in 100..110 {
            arrivals.add(Some(uid), ordinary());
        }
        arrivals.add(Some(0), ordinary());
        arrivals.add(Some(0), arrival(Entrance::Administrators));
        arrivals.add(Some(7), ordinary());
        let lens = |arrivals: &Arrivals| arrivals.lines.each_ref().map(|line| line.waiting);
        assert_eq!(lens(&arrivals), [1, 1, 10], "root at the applications' socket is like others");
        for _ in 0..3 {
            assert!(arrivals.next().is_some());
        }
        assert_eq!(lens(&arrivals), [0, 0, 9]);
        arrivals.forget_all();
        arrivals.add(Some(7), ordinary());
        assert_eq!(lens(&arrivals), [0, 0, 10]);
    }
}
