//! All control connections, found by their various keys at a cost that does not grow with their
//! number; and the resources of each user and each group ([`memory`] counts their memory).

mod memory;

use std::collections::{BTreeMap, HashMap};

use crate::account::{Account, Party};
use crate::connection::{Connection, Progress};
use crate::policy::{Limits, Policy};

/// The resources that a user or a group uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    connections: usize,
    sessions: usize,
    /// All of its bytes, including `unfreeable_bytes`.
    bytes: usize,
    /// Bytes of sessions that have ended, which the server cannot free.
    unfreeable_bytes: usize,
    /// `unfreeable_bytes`, and those that the end of sessions may add.
    older_bytes: usize,
}

impl Usage {
    /// Returns the end of a refusal's text: the bytes that no end of a session frees.
    fn unfreeable(&self) -> String {
        match self.unfreeable_bytes {
            0 => String::new(),
            bytes => format!(
                "; {bytes} of these bytes are of ended sessions, whose applications had the server allocate \
                 their memory: build them with this version of Towpath, or restart the server"
            ),
        }
    }
}

/// The memory of an older application that a worker seals and perhaps allocates.
#[derive(Clone, Copy, Debug)]
struct Preparation {
    worker: u64,
    account: Account,
    bytes: usize,
}

/// The connections by their tokens.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    all: BTreeMap<u64, Connection>,
    /// Tokens by session number.
    numbers: HashMap<u32, u64>,
    users: HashMap<Party, Usage>,
    groups: HashMap<Party, Usage>,
    /// The bytes of all sessions together.
    bytes: usize,
    /// The bytes of granted users' sessions.
    granted_bytes: usize,
    /// The part of `granted_bytes` that no end of a session frees, or may free.
    older_bytes: usize,
    /// The memory of older applications that workers seal and perhaps allocate, by the token.
    preparing: HashMap<u64, Preparation>,
}

impl Connections {
    /// Enters a new connection that has yet to attach.
    pub(crate) fn insert(&mut self, token: u64, connection: Connection) {
        self.charge(connection.account, |held| held.connections += 1);
        self.all.insert(token, connection);
    }

    /// Removes a connection and its resources.
    pub(crate) fn remove(&mut self, token: u64) -> Option<Connection> {
        self.take_number(token);
        let connection = self.all.remove(&token)?;
        self.charge(connection.account, |held| held.connections -= 1);
        Some(connection)
    }

    /// Changes the usage of a user and its group.
    fn charge(&mut self, account: Account, change: impl Fn(&mut Usage)) {
        let apply = |all: &mut HashMap<Party, Usage>, key| {
            let held = all.entry(key).or_default();
            change(held);
            if held.connections == 0 && held.sessions == 0 && held.bytes == 0 {
                all.remove(&key);
            }
        };
        apply(&mut self.users, account.user());
        if let Some(group) = account.group {
            apply(&mut self.groups, Party::Group(group));
        }
    }

    pub(crate) fn get(&self, token: u64) -> Option<&Connection> {
        self.all.get(&token)
    }

    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut Connection> {
        self.all.get_mut(&token)
    }

    /// Returns the connections whose tokens are `first` or more, in order.
    pub(crate) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &Connection)> {
        self.all.range(first..).map(|(token, connection)| (*token, connection))
    }

    /// Returns the connections that have sessions, in any order.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Connection> {
        self.numbers.values().filter_map(|token| self.all.get(token))
    }

    /// Returns the tokens of a worker's connections.
    pub(crate) fn of_worker(&self, worker: u64) -> Vec<u64> {
        self.from(0).filter(|(_, one)| one.worker == worker).map(|(token, _)| token).collect()
    }

    /// Returns the tokens of all connections.
    pub(crate) fn of_all(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }

    /// Returns `true` if there is room for one more connection of this account.
    pub(crate) fn has_room(&self, policy: &Policy, account: Account) -> bool {
        let connections = |held: Option<&Usage>| held.map_or(0, |held| held.connections);
        let theirs = connections(self.users.get(&account.user()));
        let groups = account.group.and_then(|group| self.groups.get(&Party::Group(group)));
        // However many user numbers a group's member has, half of the connections are left for
        // other users.
        let most = (policy.sessions_per_group * 2).min(policy.connections.div_ceil(2));
        self.all.len() < policy.connections
            && theirs < policy.connections_per_user()
            && connections(groups) < most
    }

    /// Returns the reason for which there is no room for one more session of this account, of
    /// `bytes` bytes. `unfreeable` of these may stay the account's after the session's end.
    pub(crate) fn is_full(
        &self,
        (policy, limits): (&Policy, &Limits),
        account: Account,
        (bytes, unfreeable): (usize, usize),
        addresses: usize,
    ) -> Option<String> {
        let uid = account.uid;
        let held = self.users.get(&account.user()).copied().unwrap_or_default();
        if held.sessions >= limits.sessions_per_user {
            let count = held.sessions;
            return Some(format!(
                "user {uid} has {count} sessions, the most allowed (sessions-per-user of the server \
                 or the policy); end one"
            ));
        }
        if let Some(text) = self.exceeds(limits, account, bytes) {
            return Some(format!(
                "with this session, {text}; end another session, or ask for less"
            ));
        }
        if let Some(text) = self.exceeds_unfreeable(limits, account, unfreeable) {
            return Some(text);
        }
        let group = account.group?;
        let held = self.groups.get(&Party::Group(group)).copied().unwrap_or_default();
        // However many user numbers a group's member has, half of the addresses are left for other
        // users.
        let most = policy.sessions_per_group.min(addresses.div_ceil(2));
        (held.sessions >= most).then(|| {
            let count = held.sessions;
            format!(
                "the users let in by group {group} have {count} sessions, the most allowed \
                 (sessions-per-group); end one"
            )
        })
    }

    /// Returns the token of a session's connection.
    pub(crate) fn token_of(&self, number: u32) -> Option<u64> {
        self.numbers.get(&number).copied()
    }

    /// Records that a connection has a session, of `bytes` bytes.
    pub(crate) fn give_number(&mut self, token: u64, number: u32, bytes: usize) {
        let Some(connection) = self.all.get_mut(&token) else { return };
        (connection.number, connection.bytes) = (number, bytes);
        let (account, older) = (connection.account, connection.unfreeable_bytes.min(bytes));
        connection.unfreeable_bytes = older;
        self.numbers.insert(number, token);
        self.older_bytes += older;
        self.charge(account, |held| {
            held.sessions += 1;
            held.older_bytes += older;
        });
        self.charge_memory(account, bytes);
    }

    /// Records that a connection has no session any more. Returns the session's former number; 0:
    /// none.
    pub(crate) fn take_number(&mut self, token: u64) -> u32 {
        let Some(connection) = self.all.get_mut(&token) else { return 0 };
        let number = std::mem::take(&mut connection.number);
        if number != 0 {
            let account = connection.account;
            let older = std::mem::take(&mut connection.unfreeable_bytes);
            let kept = if std::mem::take(&mut connection.is_unfreeable) { older } else { 0 };
            let bytes = connection.bytes - kept;
            self.numbers.remove(&number);
            self.discharge_memory(account, bytes);
            self.older_bytes -= older - kept;
            self.charge(account, |held| {
                held.sessions -= 1;
                held.older_bytes -= older - kept;
                held.unfreeable_bytes += kept;
            });
        }
        number
    }

    /// Returns the connection of a live session, by its number.
    pub(crate) fn living(&mut self, number: u32) -> Option<&mut Connection> {
        let token = self.token_of(number)?;
        self.all.get_mut(&token).filter(|one| matches!(one.progress, Progress::Lives))
    }

    /// Returns `true` if a user has sessions by its grant.
    pub(crate) fn has_granted_sessions(&self, uid: u32) -> bool {
        self.users.get(&Party::User(uid)).is_some_and(|held| held.sessions > 0)
    }

    /// Returns the account of a user that has a connection by a grant.
    pub(crate) fn granted_account_of(&self, uid: u32) -> Option<Account> {
        let mut accounts = self.all.values().map(|one| one.account);
        accounts.find(|account| account.uid == uid && account.is_limited)
    }

    /// Returns `true` if sessions of more than one user exist.
    pub(crate) fn serve_several(&self) -> bool {
        self.users.values().filter(|held| held.sessions > 0).nth(1).is_some()
    }
}
