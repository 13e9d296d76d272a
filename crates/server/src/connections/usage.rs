//! The use of connections, sessions and memory by each user, each group, and all users together; its limits.

use towpath_engine::account::{Account, Party};
use towpath_engine::shares::{Exceeded, ShareLimits, Shares, Whose};
use towpath_protocol::layout::ALLOCATES_SINCE;

use crate::policy::{Limits, Policy};

/// The share of a group's and of granted users' memory that older applications may take for good: an
/// eighth.
const OLDER_SHARE: usize = 8;

/// Returns the limits of memory, of which all sessions together may have `total` bytes. Half is left to other users, and
/// an eighth to administrators.
fn shares(total: usize) -> ShareLimits {
    ShareLimits { binds_administrators: false, ..ShareLimits::of(total, total / 2) }
}

/// The resources that each account uses.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// The number of connections of each account.
    pub(super) connections: Shares,
    /// The number of sessions of each account.
    pub(super) sessions: Shares,
    /// The bytes of each account, those of its `unfreeable` included.
    pub(super) bytes: Shares,
    /// The bytes of sessions that have ended, which the server cannot free.
    pub(super) unfreeable: Shares,
    /// The bytes of `unfreeable`, and those that the end of sessions may add.
    pub(super) older: Shares,
}

/// The memory of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionMemory {
    /// The size of the session.
    pub(crate) bytes: usize,
    /// The part of `bytes` that may stay the account's after the session's end.
    pub(crate) unfreeable: usize,
}

impl Usage {
    /// Adds a session.
    pub(super) fn begin_session(&mut self, account: Account, memory: SessionMemory) {
        self.sessions.add(account);
        self.bytes.add_amount(account, memory.bytes);
        self.older.add_amount(account, memory.unfreeable);
    }

    /// Removes a session, of whose memory `kept` bytes stay the account's.
    pub(super) fn end_session(&mut self, account: Account, memory: SessionMemory, kept: usize) {
        self.sessions.give_back(account);
        self.bytes.give_back_amount(account, memory.bytes - kept);
        self.older.give_back_amount(account, memory.unfreeable - kept);
        self.unfreeable.add_amount(account, kept);
    }

    /// Returns the bytes of memory that all sessions have together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.all()
    }

    /// Returns `true` if there is room for one more connection of this account.
    pub(crate) fn has_room(&self, policy: &Policy, account: Account) -> bool {
        let limits = ShareLimits {
            user: policy.connections_per_user(),
            // However many user numbers a group's member has, half of the connections are left for
            // other users.
            group: (policy.sessions_per_group * 2).min(policy.connections.div_ceil(2)),
            granted: usize::MAX,
            all: policy.connections,
            binds_administrators: true,
        };
        self.connections.check_within(limits, account, 1).is_ok()
    }

    /// Returns the limit that one more session of an account would exceed.
    fn exceeds_sessions(
        &self,
        policy: &Policy,
        limits: &Limits,
        account: Account,
        addresses: usize,
    ) -> Option<String> {
        let limits = ShareLimits {
            user: limits.sessions_per_user,
            // However many user numbers a group's member has, half of the addresses are left for other
            // users.
            group: policy.sessions_per_group.min(addresses.div_ceil(2)),
            binds_administrators: true,
            ..ShareLimits::NONE
        };
        let Exceeded { whose, wanted, .. } =
            self.sessions.check_within(limits, account, 1).err()?;
        let count = wanted - 1;
        Some(match whose {
            Whose::Party(Party::Group(group)) => format!(
                "the users let in by group {group} have {count} sessions, the most allowed \
                 (sessions-per-group); end one"
            ),
            Whose::Party(_) | Whose::Granted | Whose::All => format!(
                "user {} has {count} sessions, the most allowed (sessions-per-user of the server \
                 or the policy); end one",
                account.uid
            ),
        })
    }

    /// Returns the reason for which there is no room for one more session of this account.
    pub(crate) fn is_full(
        &self,
        policy: &Policy,
        limits: &Limits,
        account: Account,
        memory: SessionMemory,
        addresses: usize,
    ) -> Option<String> {
        if let Some(text) = self.exceeds_sessions(policy, limits, account, addresses) {
            return Some(text);
        }
        if let Some(text) = self.exceeds(limits, account, memory.bytes) {
            return Some(format!(
                "with this session, {text}; end another session, or ask for less"
            ));
        }
        self.exceeds_unfreeable(limits, account, memory.unfreeable)
    }

    /// Returns the limit that `bytes` more bytes of an account would exceed.
    pub(super) fn exceeds(
        &self,
        limits: &Limits,
        account: Account,
        bytes: usize,
    ) -> Option<String> {
        let shares = shares(limits.total_bytes);
        let own = limits.bytes_per_user.min(shares.user);
        let exceeded = self.bytes.check_within(ShareLimits { user: own, ..shares }, account, bytes);
        let Exceeded { whose, most, wanted } = exceeded.err()?;
        let half = "(half of total-bytes of the server; towpath serve --total-bytes raises it)";
        Some(match whose {
            Whose::Party(party @ Party::Group(group)) => {
                let kept = self.unfreeable_of(party);
                format!(
                    "the sessions of the users let in by group {group} would have {wanted} bytes; at \
                     most {most} are allowed {half}{kept}"
                )
            }
            Whose::Party(party @ (Party::User(uid) | Party::Administrator(uid))) => {
                let kept = self.unfreeable_of(party);
                let setting = if limits.bytes_per_user <= shares.user {
                    "(bytes-per-user of the server or the policy)"
                } else {
                    half
                };
                format!(
                    "the sessions of user {uid} would have {wanted} bytes; at most {most} are allowed \
                     {setting}{kept}"
                )
            }
            Whose::Granted => format!(
                "all sessions of granted users would have {wanted} bytes together; at most {most} are \
                 allowed (seven eighths of total-bytes of the server; towpath serve --total-bytes raises it)"
            ),
            Whose::All => format!(
                "all sessions would have {wanted} bytes together; at most {most} are allowed (total-bytes \
                 of the server, by default half of the memory of the machine or of its control group; towpath serve \
                 --total-bytes raises it)"
            ),
        })
    }

    /// Returns the end of a refusal's text: the bytes of a party that no end of a session frees.
    fn unfreeable_of(&self, party: Party) -> String {
        match self.unfreeable.of(party) {
            0 => String::new(),
            bytes => format!(
                "; {bytes} of these bytes are of ended sessions, whose applications had the server allocate \
                 their memory: build them with this version of Towpath, or restart the server"
            ),
        }
    }

    /// Returns the limit that `bytes` more bytes of an older application would exceed. Their charge
    /// may never end, so they leave most of the memory to other users.
    pub(super) fn exceeds_unfreeable(
        &self,
        limits: &Limits,
        account: Account,
        bytes: usize,
    ) -> Option<String> {
        if bytes == 0 {
            return None;
        }
        let ShareLimits { group, granted, .. } = shares(limits.total_bytes);
        let limits = ShareLimits {
            group: group / OLDER_SHARE,
            granted: granted / OLDER_SHARE,
            ..ShareLimits::NONE
        };
        let Exceeded { whose, most, wanted } =
            self.older.check_within(limits, account, bytes).err()?;
        let of = match whose {
            Whose::Party(Party::Group(group)) => format!("the users let in by group {group}"),
            Whose::Party(_) | Whose::Granted | Whose::All => "all granted users".to_owned(),
        };
        Some(format!(
            "applications of protocol versions before {ALLOCATES_SINCE} have the server allocate their \
             memory, which then stays counted after their sessions; that of {of} would be {wanted} \
             bytes; at most {most} are allowed (an eighth of their part of total-bytes of the server); \
             rebuild the application with this version of Towpath, or restart the server"
        ))
    }

    /// Adds memory that two users shared to that of both, half to each.
    pub(crate) fn charge_both(&mut self, accounts: [Account; 2], bytes: usize) {
        accounts.into_iter().for_each(|one| self.bytes.add_amount(one, bytes / 2));
    }

    /// Takes memory that two users shared off that of both.
    pub(crate) fn discharge_both(&mut self, accounts: [Account; 2], bytes: usize) {
        accounts.into_iter().for_each(|one| self.bytes.give_back_amount(one, bytes / 2));
    }
}
