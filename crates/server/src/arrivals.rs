//! Connections that the control thread has accepted and not admitted yet, in turn for each user.
//!
//! The kernel serves a listening socket in the order of arrival, so one user that connects again and again would delay all
//! others. Accepting is cheap and admitting is not. So the control thread accepts every connection of the kernel's short queue,
//! and admits one connection of each party in turn.
//!
//! There are three lines, which are served in turn: that of the administrators' socket, that of users whom the policy has
//! admitted before, and that of all others. So a program with thousands of user numbers (`subuid(5)`) delays users that
//! come for the first time, and no known users.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use towpath_engine::account::{Account, Party};

use crate::known_users::KnownUsers;
use crate::policy::Entrance;
use crate::turns::Turns;

/// A connection that waits for admission.
pub(crate) type Arrival = (OwnedFd, Entrance);

/// A user by number; `None` if the kernel does not say which.
pub(crate) type Uid = Option<u32>;

/// The connections that wait for admission.
#[derive(Debug)]
pub(crate) struct Arrivals {
    lines: [Line; 3],
    /// The line whose turn is next.
    next: usize,
    known: KnownUsers,
}

const ADMINISTRATORS: usize = 0;
const KNOWN: usize = 1;
const OTHERS: usize = 2;

impl Arrivals {
    /// Creates empty lines for at most `limit` connections each.
    pub(crate) fn new(limit: usize) -> Arrivals {
        let lines = [Line::new(limit), Line::new(limit), Line::new(limit)];
        Arrivals { lines, next: 0, known: KnownUsers::default() }
    }

    /// Returns `true` if no connection waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.parties.is_empty())
    }

    /// Returns `true` if the line of a socket's known users is full, and each waiting connection is of another party. The
    /// control thread then leaves further connections in the kernel's queue.
    pub(crate) fn is_full(&self, entrance: Entrance) -> bool {
        let line = if entrance == Entrance::Administrators { ADMINISTRATORS } else { KNOWN };
        self.lines[line].is_full()
    }

    /// Remembers that the policy admits a user.
    pub(crate) fn know(&mut self, account: Account) {
        self.known.add(account.uid, account.party());
    }

    /// Forgets which users the policy admits.
    pub(crate) fn forget_all(&mut self) {
        self.known = KnownUsers::default();
    }

    /// Returns `true` if a user is remembered.
    #[cfg(test)]
    pub(crate) fn knows(&self, uid: u32) -> bool {
        self.known.party_of(uid).is_some()
    }

    /// Adds a connection behind the user's other connections. If the line is full, returns the connection that gives way:
    /// the newest of the user with the most connections, of the party with the most connections.
    pub(crate) fn add(&mut self, uid: Uid, arrival: Arrival) -> Option<(Uid, Arrival)> {
        let known = uid.and_then(|uid| self.known.party_of(uid));
        let (line, party) = match (arrival.1, known) {
            (Entrance::Administrators, _) => (ADMINISTRATORS, None),
            (_, Some(party)) => (KNOWN, Some(party)),
            (_, None) => (OTHERS, None),
        };
        // A user without a known group is a party of its own.
        let party = party.or(uid.map(Party::User));
        self.lines[line].add(party, uid, arrival)
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

/// Connections of several parties, which are served in turn. The users of a group are served in turn within the group's
/// turns.
#[derive(Debug)]
struct Line {
    parties: VecDeque<(Option<Party>, Turns<Uid, Arrival>)>,
    waiting: usize,
    limit: usize,
}

impl Line {
    fn new(limit: usize) -> Line {
        Line { parties: VecDeque::new(), waiting: 0, limit }
    }

    /// Returns `true` if the line is full and no party has more than one connection in it.
    fn is_full(&self) -> bool {
        self.waiting >= self.limit && self.parties.len() >= self.waiting
    }

    fn add(&mut self, party: Option<Party>, uid: Uid, arrival: Arrival) -> Option<(Uid, Arrival)> {
        let at = self.parties.iter().position(|(other, _)| *other == party);
        let at = at.unwrap_or_else(|| {
            self.parties.push_back((party, Turns::default()));
            self.parties.len() - 1
        });
        self.parties[at].1.push(uid, arrival);
        if self.waiting < self.limit {
            self.waiting += 1;
            return None;
        }
        let longest = (0..self.parties.len()).max_by_key(|at| self.parties[*at].1.len())?;
        let gives_way = self.parties[longest].1.take_last_of_longest();
        if self.parties[longest].1.is_empty() {
            self.parties.remove(longest);
        }
        gives_way
    }

    fn next(&mut self) -> Option<Arrival> {
        let (party, mut users) = self.parties.pop_front()?;
        let (_, arrival) = users.take_next()?;
        if !users.is_empty() {
            self.parties.push_back((party, users));
        }
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

    fn account(uid: u32, group: Option<u32>) -> Account {
        Account { uid, group, is_limited: true }
    }

    /// Adds a connection of a user without a group, and returns the user whose connection gives way.
    fn add(line: &mut Line, uid: Uid) -> Option<Uid> {
        line.add(uid.map(Party::User), uid, ordinary()).map(|(uid, _)| uid)
    }

    fn order(line: &Line) -> Vec<(Uid, usize)> {
        line.parties.iter().flat_map(|(_, users)| users.counts()).collect()
    }

    #[test]
    fn users_take_turns() {
        let mut line = Line::new(100);
        for uid in [Some(7), Some(7), Some(7), Some(8), None] {
            assert_eq!(add(&mut line, uid), None);
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
        let lost: Vec<_> = (0..12).filter_map(|_| add(&mut line, Some(7))).collect();
        assert_eq!(lost, [Some(7), Some(7)]);
        assert_eq!(add(&mut line, Some(8)), Some(Some(7)), "another user has room");
        assert_eq!(order(&line), [(Some(7), 9), (Some(8), 1)]);
        assert!(!line.is_full());
    }

    #[test]
    fn a_line_of_single_connections_is_full_and_closes_none() {
        let mut arrivals = Arrivals::new(10);
        for uid in 0..10 {
            arrivals.know(account(uid, None));
            assert!(!arrivals.is_full(Entrance::Applications));
            assert!(arrivals.add(Some(uid), ordinary()).is_none());
        }
        assert!(arrivals.is_full(Entrance::Applications), "the kernel's queue holds further ones");
        assert!(!arrivals.is_full(Entrance::Administrators));
    }

    /// A member of a group with many user numbers takes the places and turns of its group only. The other members of the
    /// group have their turns within those of the group.
    #[test]
    fn the_users_of_a_group_share_its_turns() {
        let mut arrivals = Arrivals::new(10);
        for uid in 100..120 {
            arrivals.know(account(uid, Some(5)));
        }
        arrivals.know(account(7, None));
        let gave_way: Vec<_> = (100..120)
            .filter_map(|uid| arrivals.add(Some(uid), ordinary()).map(|(uid, _)| uid))
            .collect();
        assert_eq!(gave_way.len(), 10);
        assert!(!arrivals.is_full(Entrance::Applications));
        let (gives_way, _) = arrivals.add(Some(7), ordinary()).unwrap();
        assert!(gives_way.is_some_and(|uid| uid >= 100), "{gives_way:?}");
        assert!(arrivals.add(Some(100), ordinary()).is_some());
        assert!(arrivals.next().is_some() && arrivals.next().is_some());
        assert!(!order(&arrivals.lines[KNOWN]).iter().any(|(uid, _)| *uid == Some(7)));
    }

    /// Neither administrators nor known users wait behind users that come for the first time.
    #[test]
    fn lines_take_turns() {
        let mut arrivals = Arrivals::new(10);
        arrivals.know(account(7, None));
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
