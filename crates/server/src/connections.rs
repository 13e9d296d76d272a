//! All control connections, found by their various keys at a cost that does not grow with their
//! number; and the resources of each user and each group ([`usage`] has their limits, [`memory`] the charge for
//! memory).

mod memory;
mod usage;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use towpath_engine::account::{Account, Party};
use towpath_engine::session::Session;
use towpath_protocol::message::Refusal;

use crate::apertures::objects::Entry;
use crate::apertures::tables::ApertureTables;
use crate::application::Application;
use crate::connection::{Connection, State, WithSession};
use crate::control_session::{Attaching, ControlSession, MappedSession, SessionPhase};
use crate::mapping_jobs::Job;
use crate::numbers::Numbers;
use crate::refusal::Refused;
use crate::unclaimed::UnclaimedSessions;
use usage::Usage;

pub(crate) use usage::SessionMemory;

/// The memory of an older application that a worker seals and perhaps allocates.
#[derive(Clone, Copy, Debug)]
struct Preparation {
    worker: u64,
    account: Account,
    bytes: usize,
}

/// The connections by their tokens.
#[derive(Debug)]
pub(crate) struct Connections {
    all: BTreeMap<u64, Connection>,
    /// Tokens by session number.
    tokens: HashMap<u32, u64>,
    usage: Usage,
    numbers: Numbers,
    unclaimed: UnclaimedSessions,
    /// The memory of older applications that workers seal and perhaps allocate, by the token.
    preparing: HashMap<u64, Preparation>,
}

impl Connections {
    /// Begins without connections. `counters`: the number of notification counters. `claim_timeout`: how long a session
    /// of an earlier server waits for its application.
    pub(crate) fn new(counters: u32, claim_timeout: Duration) -> Connections {
        Connections {
            all: BTreeMap::new(),
            tokens: HashMap::new(),
            usage: Usage::default(),
            numbers: Numbers::new(counters),
            unclaimed: UnclaimedSessions::new(claim_timeout),
            preparing: HashMap::new(),
        }
    }

    /// Returns the use of resources, and its limits.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the use of resources for changes.
    pub(crate) fn usage_mut(&mut self) -> &mut Usage {
        &mut self.usage
    }

    /// Returns the numbers for connections and sessions.
    pub(crate) fn numbers_mut(&mut self) -> &mut Numbers {
        &mut self.numbers
    }

    /// Returns the sessions of an earlier server that wait for their applications.
    pub(crate) fn unclaimed(&self) -> &UnclaimedSessions {
        &self.unclaimed
    }

    /// Returns the sessions of an earlier server for changes.
    pub(crate) fn unclaimed_mut(&mut self) -> &mut UnclaimedSessions {
        &mut self.unclaimed
    }

    /// Enters a new connection that has yet to attach.
    pub(crate) fn insert(&mut self, token: u64, connection: Connection) {
        self.usage.connections.add(connection.application.account);
        self.all.insert(token, connection);
    }

    /// Removes a connection and its resources.
    pub(crate) fn remove(&mut self, token: u64) -> Option<Connection> {
        self.take_number(token);
        let connection = self.all.remove(&token)?;
        self.usage.connections.give_back(connection.application.account);
        Some(connection)
    }

    pub(crate) fn get(&self, token: u64) -> Option<&Connection> {
        self.all.get(&token)
    }

    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut Connection> {
        self.all.get_mut(&token)
    }

    /// Returns the application and the session of a connection, if there is a session.
    pub(crate) fn with_session(&mut self, token: u64) -> Option<WithSession<'_>> {
        self.get_mut(token)?.with_session()
    }

    /// Returns the application and the session of a connection, if the application uses the session.
    pub(crate) fn live(&mut self, token: u64) -> Option<WithSession<'_>> {
        self.get_mut(token).filter(|one| one.live().is_some())?.with_session()
    }

    /// Returns the application of a connection that has had no session yet. `what`: the name of the request.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn without_session(&self, token: u64, what: &str) -> Result<&Application, Refused> {
        let new = self.get(token).filter(|one| matches!(one.state, State::New));
        new.map(|one| &one.application).ok_or_else(|| {
            (Refusal::State, format!("{what}: this connection has a session already"))
        })
    }

    /// Records that a connection has a session, whose memory its application is about to map.
    pub(crate) fn begin_attaching(
        &mut self,
        token: u64,
        memory: SessionMemory,
        attaching: Attaching,
    ) {
        self.give_number(token, attaching.session.number, memory);
        if let Some(connection) = self.get_mut(token) {
            connection.state = State::Attaching(Box::new(attaching));
        }
    }

    /// Records that an application has mapped the memory of its session, and takes a notification counter for the
    /// session, if one is left. Returns `None` if the application was given nothing to map.
    pub(crate) fn begin_mapping(&mut self, token: u64) -> Option<&Attaching> {
        match &mut self.all.get_mut(&token)?.state {
            State::Attaching(attaching) if attaching.counter.is_none() => {
                attaching.counter = self.numbers.take_counter();
                Some(attaching)
            }
            _ => None,
        }
    }

    /// Takes the session of a connection, if the server has yet to map the session's memory.
    pub(crate) fn take_attaching(&mut self, token: u64) -> Option<(Account, Attaching)> {
        let connection = self.get_mut(token)?;
        Some((connection.application.account, connection.take_attaching()?))
    }

    /// Returns the connection of a session, by the session's number.
    pub(crate) fn of_session(&self, number: u32) -> Option<&Connection> {
        self.get(self.token_of(number)?)
    }

    /// Returns the connection of a session for changes, and its token, by the session's number.
    pub(crate) fn of_session_mut(&mut self, number: u32) -> Option<(u64, &mut Connection)> {
        let token = self.token_of(number)?;
        Some((token, self.get_mut(token)?))
    }

    /// Records that an engine has returned its part of a session. Returns the job that unmaps the session, and the account
    /// of the job, once all engines of `lanes` lanes have returned their parts.
    pub(crate) fn return_part(&mut self, part: Session, lanes: usize) -> Option<(Account, Job)> {
        let (token, connection) = self.of_session_mut(part.number())?;
        let account = connection.application.account;
        let mapped = connection.mapped_mut()?;
        mapped.phase = SessionPhase::Over;
        mapped.returned.push(part);
        if mapped.returned.len() < lanes {
            return None;
        }
        let (mappings, sessions) = (mapped.mappings.clone(), std::mem::take(&mut mapped.returned));
        Some((account, Job::Release { token, mappings, sessions }))
    }

    /// Moves a session from the connection `old`, which stood for the session's application, to the application's own
    /// connection. Returns what stood for the application, and the application's own connection.
    pub(crate) fn move_session(
        &mut self,
        old: u64,
        token: u64,
        counter: u32,
    ) -> Option<(Application, &mut Connection)> {
        let unclaimed = self.get_mut(old)?;
        // The charge moves to the other connection.
        let is_unfreeable = std::mem::take(&mut unclaimed.is_unfreeable);
        let unfreeable = unclaimed.unfreeable_bytes;
        let memory = SessionMemory { bytes: unclaimed.bytes, unfreeable };
        let mut unclaimed = self.remove(old)?;
        let MappedSession { session, mappings, pins, .. } = unclaimed.take_mapped()?;
        self.give_number(token, session.number, memory);
        let (phase, counter) = (SessionPhase::Live, Some(counter));
        let mapped = MappedSession::new(session, phase, mappings, pins, counter);
        let connection = self.get_mut(token)?;
        connection.is_unfreeable = is_unfreeable;
        connection.state = State::Mapped(Box::new(mapped));
        Some((unclaimed.application, connection))
    }

    /// Returns the memories, apertures and tripwires of a session, also if its application has yet to claim it.
    pub(crate) fn apertures_of(&self, number: u32) -> Option<&ApertureTables> {
        self.of_session(number)?.apertures()
    }

    /// Returns an aperture of a session for changes.
    pub(crate) fn aperture_mut(&mut self, session: u32, number: u32) -> Option<&mut Entry> {
        let (_, connection) = self.of_session_mut(session)?;
        connection.apertures_mut()?.aperture_mut(number)
    }

    /// Takes a session whose memory is unmapped.
    pub(crate) fn take_mapped(&mut self, token: u64) -> Option<(u64, Account, MappedSession)> {
        let connection = self.get_mut(token)?;
        let Application { worker, account, .. } = connection.application;
        Some((worker, account, connection.take_mapped()?))
    }

    /// Returns the memories, apertures and tripwires of a connection's session for changes, if it can have some.
    pub(crate) fn apertures_mut(&mut self, token: u64) -> Option<&mut ApertureTables> {
        self.get_mut(token)?.apertures_mut()
    }

    /// Takes the session whose memory a worker has sealed and allocated, unless the application has gone meanwhile.
    pub(crate) fn take_prepared(&mut self, token: u64) -> Option<(&mut Connection, Attaching)> {
        let connection = self.get_mut(token)?;
        if !matches!(&connection.state, State::Attaching(attaching) if attaching.counter.is_some())
        {
            return None;
        }
        let attaching = connection.take_attaching()?;
        Some((connection, attaching))
    }

    /// Returns the session of a connection, if there is one.
    pub(crate) fn session(&self, token: u64) -> Option<&ControlSession> {
        self.get(token)?.session()
    }

    /// Returns the session of a connection for changes, if there is one.
    pub(crate) fn session_mut(&mut self, token: u64) -> Option<&mut ControlSession> {
        self.get_mut(token)?.session_mut()
    }

    /// Returns the connections whose tokens are `first` or more, in order.
    pub(crate) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &Connection)> {
        self.all.range(first..).map(|(token, connection)| (*token, connection))
    }

    /// Returns the connections that have sessions, in any order.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Connection> {
        self.tokens.values().filter_map(|token| self.all.get(token))
    }

    /// Returns the tokens of a worker's connections.
    pub(crate) fn of_worker(&self, worker: u64) -> Vec<u64> {
        self.from(0)
            .filter(|(_, one)| one.application.worker == worker)
            .map(|(token, _)| token)
            .collect()
    }

    /// Returns the tokens of all connections.
    pub(crate) fn of_all(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }

    /// Returns the token of a session's connection.
    pub(crate) fn token_of(&self, number: u32) -> Option<u64> {
        self.tokens.get(&number).copied()
    }

    /// Records that a connection has a session.
    pub(crate) fn give_number(&mut self, token: u64, number: u32, memory: SessionMemory) {
        let Some(connection) = self.all.get_mut(&token) else { return };
        let SessionMemory { bytes, unfreeable } = memory;
        let memory = SessionMemory { bytes, unfreeable: unfreeable.min(bytes) };
        connection.number = number;
        (connection.bytes, connection.unfreeable_bytes) = (bytes, memory.unfreeable);
        self.tokens.insert(number, token);
        self.usage.begin_session(connection.application.account, memory);
    }

    /// Records that a connection has no session any more. Returns the session's former number; 0:
    /// none.
    pub(crate) fn take_number(&mut self, token: u64) -> u32 {
        let Some(connection) = self.all.get_mut(&token) else { return 0 };
        let number = std::mem::take(&mut connection.number);
        if number != 0 {
            let account = connection.application.account;
            let older = std::mem::take(&mut connection.unfreeable_bytes);
            let kept = if std::mem::take(&mut connection.is_unfreeable) { older } else { 0 };
            let memory = SessionMemory { bytes: connection.bytes, unfreeable: older };
            self.tokens.remove(&number);
            self.usage.end_session(account, memory, kept);
        }
        number
    }

    /// Returns a live session, by its number.
    pub(crate) fn living(&mut self, number: u32) -> Option<&mut ControlSession> {
        let token = self.token_of(number)?;
        self.live(token).map(|one| one.session)
    }

    /// Returns `true` if a user has sessions by its grant.
    pub(crate) fn has_granted_sessions(&self, uid: u32) -> bool {
        self.usage.sessions.of(Party::User(uid)) > 0
    }

    /// Returns the account of a user that has a connection by a grant.
    pub(crate) fn granted_account_of(&self, uid: u32) -> Option<Account> {
        let mut accounts = self.all.values().map(|one| one.application.account);
        accounts.find(|account| account.uid == uid && account.is_limited)
    }

    /// Returns `true` if sessions of more than one user exist.
    pub(crate) fn serve_several(&self) -> bool {
        self.usage.sessions.users() > 1
    }
}
