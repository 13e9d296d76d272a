//! Connections that the control thread has accepted and not admitted yet, served in turn for each party.
//!
//! The kernel serves a listening socket in the order of arrival, so one user that connects again and again would delay all
//! others. Accepting is cheap and admitting is not. So the control thread accepts every connection of the kernel's short queue,
//! and admits one connection of each party in turn.
//!
//! The control thread serves three lines in turn: connections at the administration socket, connections of known users, and
//! all other connections. So a program with thousands of user numbers (`subuid(5)`) delays only users that are not known.

use std::os::fd::OwnedFd;
use std::time::Duration;

use towpath_engine::account::{Account, Party};

use crate::known_users::KnownUsers;
use crate::policy::Entrance;
use crate::turns::PartyTurns;

/// A connection that waits for admission.
pub(crate) type Arrival = (OwnedFd, Entrance);

/// A user by number; `None` if the kernel does not report it.
pub(crate) type Uid = Option<u32>;

/// A connection that gives way to others in a full line.
#[derive(Debug)]
pub(crate) struct Displaced {
    pub(crate) socket: OwnedFd,
    /// The user, if it has more connections in the line, and its party, if the user is known.
    pub(crate) culprit: Option<(u32, Option<Party>)>,
}

/// The connections that wait for admission.
#[derive(Debug)]
pub(crate) struct Arrivals {
    lines: [Line; 3],
    /// The line whose turn is next.
    next: usize,
    /// The place of the connection that was taken last.
    taken: Option<Place>,
    /// `true` if that connection was put back.
    is_put_back: bool,
    known: KnownUsers,
}

/// A place in a line: the line, the party and the user.
type Place = (usize, Option<Party>, Uid);

/// The pause before the next attempt to admit a connection that was put back.
const PAUSE: Duration = Duration::from_millis(1);

const ADMINISTRATORS: usize = 0;
const KNOWN: usize = 1;
const OTHERS: usize = 2;

impl Arrivals {
    /// Creates empty lines for at most `limit` connections each.
    pub(crate) fn new(limit: usize) -> Arrivals {
        let lines = [Line::new(limit), Line::new(limit), Line::new(limit)];
        let known = KnownUsers::default();
        Arrivals { lines, next: 0, taken: None, is_put_back: false, known }
    }

    /// Returns when the next connection is to be admitted, from now on; `None` if none waits.
    pub(crate) fn next_admission(&self) -> Option<Duration> {
        let waits = self.lines.iter().any(|line| line.len > 0);
        waits.then_some(if self.is_put_back { PAUSE } else { Duration::ZERO })
    }

    /// Returns `true` if the line of a socket's known users is full, and no party has two connections in it. The
    /// control thread then leaves further connections in the kernel's queue.
    pub(crate) fn is_full(&self, entrance: Entrance) -> bool {
        let line = if entrance == Entrance::Administrators { ADMINISTRATORS } else { KNOWN };
        self.lines[line].is_full()
    }

    /// Makes a user known.
    pub(crate) fn remember(&mut self, account: Account) {
        self.known.add(account.uid, account.party());
    }

    /// Forgets all known users.
    pub(crate) fn forget_all(&mut self) {
        self.known = KnownUsers::default();
    }

    /// Returns `true` if a user is remembered.
    #[cfg(test)]
    pub(crate) fn knows(&self, uid: u32) -> bool {
        self.known.party_of(uid).is_some()
    }

    /// Forgets a user that the policy does not admit any more.
    pub(crate) fn forget(&mut self, uid: u32) {
        self.known.remove(uid);
    }

    /// Adds a connection behind the user's other connections. If the line is full, returns the connection that gives way:
    /// the newest of the user with the most connections, of the party with the most connections.
    pub(crate) fn add(&mut self, uid: Uid, arrival: Arrival) -> Option<Displaced> {
        let (line, known) = self.line_of(uid, arrival.1);
        // A user without a known group is a party of its own.
        let party = known.or(uid.map(Party::User));
        let ((socket, _), several) = self.lines[line].add(party, uid, arrival)?;
        let culprit = several.map(|uid| (uid, self.known.party_of(uid).filter(|_| line == KNOWN)));
        Some(Displaced { socket, culprit })
    }

    /// Puts the connection back that was taken last, and that cannot be admitted now: it is the user's next one.
    pub(crate) fn put_back(&mut self, arrival: Arrival) {
        if let Some((line, party, uid)) = self.taken.take() {
            self.lines[line].put_back(party, uid, arrival);
            self.is_put_back = true;
        }
    }

    fn line_of(&self, uid: Uid, entrance: Entrance) -> (usize, Option<Party>) {
        match (entrance, uid.and_then(|uid| self.known.party_of(uid))) {
            (Entrance::Administrators, _) => (ADMINISTRATORS, None),
            (_, Some(party)) => (KNOWN, Some(party)),
            (_, None) => (OTHERS, None),
        }
    }

    /// Takes the oldest connection of the user whose turn it is.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        for _ in 0..self.lines.len() {
            let line = self.next;
            self.next = (line + 1) % self.lines.len();
            if let Some((party, uid, arrival)) = self.lines[line].next() {
                (self.taken, self.is_put_back) = (Some((line, party, uid)), false);
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
    waiting: PartyTurns<Option<Party>, Uid, Arrival>,
    len: usize,
    limit: usize,
}

impl Line {
    fn new(limit: usize) -> Line {
        Line { waiting: PartyTurns::default(), len: 0, limit }
    }

    /// Returns `true` if the line is full and no party has more than one connection in it.
    fn is_full(&self) -> bool {
        self.len >= self.limit && self.waiting.parties() >= self.len
    }

    /// Adds a connection. Returns the one that gives way, and its user if that has more of them.
    fn add(&mut self, party: Option<Party>, uid: Uid, arrival: Arrival) -> Option<(Arrival, Uid)> {
        self.waiting.push(party, uid, arrival);
        self.len += 1;
        if self.len <= self.limit {
            return None;
        }
        let (_, uid, arrival, has_several) = self.waiting.take_last_of_longest()?;
        self.len -= 1;
        Some((arrival, uid.filter(|_| has_several)))
    }

    fn put_back(&mut self, party: Option<Party>, uid: Uid, arrival: Arrival) {
        self.waiting.push_front(party, uid, arrival);
        self.len += 1;
    }

    fn next(&mut self) -> Option<(Option<Party>, Uid, Arrival)> {
        let taken = self.waiting.take_next()?;
        self.len -= 1;
        Some(taken)
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

    /// Adds a connection of a user without a group, and returns the user of the connection that gives way.
    fn add(line: &mut Line, uid: Uid) -> Option<Uid> {
        line.add(uid.map(Party::User), uid, ordinary()).map(|(_, uid)| uid)
    }

    fn order(line: &Line) -> Vec<(Uid, usize)> {
        line.waiting.counts()
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
        assert_eq!((order(&line), line.len), (vec![], 0));
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
            arrivals.remember(account(uid, None));
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
            arrivals.remember(account(uid, Some(5)));
        }
        arrivals.remember(account(7, None));
        let gave_way = (100..120).filter_map(|uid| arrivals.add(Some(uid), ordinary()));
        assert_eq!(gave_way.filter(|one| one.culprit.is_none()).count(), 10, "each has only one");
        assert!(!arrivals.is_full(Entrance::Applications));
        assert!(arrivals.add(Some(7), ordinary()).is_some(), "one of the group gives way");
        let is_waiting = |arrivals: &Arrivals, uid| {
            order(&arrivals.lines[KNOWN]).iter().any(|(other, _)| *other == Some(uid))
        };
        assert!(is_waiting(&arrivals, 7));
        assert!(arrivals.next().is_some() && arrivals.next().is_some());
        assert!(!is_waiting(&arrivals, 7), "its turn is the second one");
        let (one, zero) = (Some(PAUSE), Some(Duration::ZERO));
        assert_eq!(arrivals.next_admission(), zero);
        // The policy does not admit it any more, and it keeps its place all the same.
        arrivals.forget(7);
        arrivals.put_back(ordinary());
        assert!(is_waiting(&arrivals, 7));
        assert_eq!((arrivals.next_admission(), arrivals.lines[KNOWN].len), (one, 9));
        assert!(!arrivals.knows(7));
    }

    /// The user with several connections in a full line loses the newest one, and the log names that user.
    #[test]
    fn a_flood_displaces_no_other_user() {
        let mut arrivals = Arrivals::new(10);
        arrivals.remember(account(7, Some(5)));
        for uid in [7, 8] {
            let displaced = (0..10).filter_map(|_| arrivals.add(Some(uid), ordinary()));
            assert_eq!(displaced.count(), 0);
        }
        let mut culprit = |uid| arrivals.add(Some(uid), ordinary()).unwrap().culprit;
        assert_eq!(culprit(9), Some((8, None)), "neither is known");
        assert_eq!(culprit(8), Some((8, None)));
        assert_eq!(culprit(7), Some((7, Some(Party::Group(5)))));
        assert_eq!(order(&arrivals.lines[OTHERS]), [(Some(8), 9), (Some(9), 1)]);
    }

    /// Neither administrators nor known users wait behind users that come for the first time.
    #[test]
    fn lines_take_turns() {
        let mut arrivals = Arrivals::new(10);
        arrivals.remember(account(7, None));
        for uid in 100..110 {
            arrivals.add(Some(uid), ordinary());
        }
        arrivals.add(Some(0), ordinary());
        arrivals.add(Some(0), arrival(Entrance::Administrators));
        arrivals.add(Some(7), ordinary());
        let lens = |arrivals: &Arrivals| arrivals.lines.each_ref().map(|line| line.len);
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
