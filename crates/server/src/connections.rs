//! All control connections, found by what they are asked for by, at a cost that does not follow how
//! many there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use crate::connection::{Connection, Progress};

/// What a user has.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    connections: usize,
    sessions: usize,
}

/// The connections by their tokens.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    all: BTreeMap<u64, Connection>,
    /// Tokens by the numbers of sessions.
    numbers: HashMap<u32, u64>,
    /// What each user has, by its uid.
    held: HashMap<u32, Held>,
    /// Those that have not finished attaching, and since when each is at its step.
    attaching: BTreeSet<(Instant, u64)>,
}

impl Connections {
    /// A new one, that has yet to attach.
    pub(crate) fn insert(&mut self, token: u64, connection: Connection) {
        self.held.entry(connection.peer.uid).or_default().connections += 1;
        self.attaching.insert((connection.since, token));
        self.all.insert(token, connection);
    }

    /// Takes one away, and what goes with it.
    pub(crate) fn remove(&mut self, token: u64) -> Option<Connection> {
        self.settle(token);
        self.take_number(token);
        let connection = self.all.remove(&token)?;
        let uid = connection.peer.uid;
        if let Some(held) = self.held.get_mut(&uid) {
            held.connections -= 1;
            if held.connections == 0 {
                self.held.remove(&uid);
            }
        }
        Some(connection)
    }

    pub(crate) fn get(&self, token: u64) -> Option<&Connection> {
        self.all.get(&token)
    }

    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut Connection> {
        self.all.get_mut(&token)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Connection> {
        self.all.values()
    }

    /// How many a user has.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.held.get(&uid).map_or(0, |held| held.connections)
    }

    /// How many sessions a user has.
    pub(crate) fn sessions_of_user(&self, uid: u32) -> usize {
        self.held.get(&uid).map_or(0, |held| held.sessions)
    }

    /// Whose session it is.
    pub(crate) fn token_of(&self, number: u32) -> Option<u64> {
        self.numbers.get(&number).copied()
    }

    /// A connection has a session now.
    pub(crate) fn give_number(&mut self, token: u64, number: u32) {
        let Some(connection) = self.all.get_mut(&token) else { return };
        connection.number = number;
        self.numbers.insert(number, token);
        self.held.entry(connection.peer.uid).or_default().sessions += 1;
    }

    /// A connection has no session any more; answers which it had, 0: none.
    pub(crate) fn take_number(&mut self, token: u64) -> u32 {
        let Some(connection) = self.all.get_mut(&token) else { return 0 };
        let number = std::mem::take(&mut connection.number);
        if number != 0 {
            self.numbers.remove(&number);
            if let Some(held) = self.held.get_mut(&connection.peer.uid) {
                held.sessions -= 1;
            }
        }
        number
    }

    /// It said something: whoever attaches has time for the next step from now on.
    pub(crate) fn step(&mut self, token: u64) {
        let Some(connection) = self.all.get_mut(&token) else { return };
        if self.attaching.remove(&(connection.since, token)) {
            connection.since = Instant::now();
            self.attaching.insert((connection.since, token));
        }
    }

    /// It attaches no more, since it has, or since it is over.
    pub(crate) fn settle(&mut self, token: u64) {
        if let Some(connection) = self.all.get(&token) {
            self.attaching.remove(&(connection.since, token));
        }
    }

    /// Of those that attach, the one that has been at its step for the longest time, and since when.
    pub(crate) fn slowest(&self) -> Option<(Instant, u64)> {
        self.attaching.first().copied()
    }

    /// A session that lives, by its number.
    pub(crate) fn living(&mut self, number: u32) -> Option<&mut Connection> {
        let token = self.token_of(number)?;
        self.all.get_mut(&token).filter(|one| matches!(one.progress, Progress::Lives))
    }
}
