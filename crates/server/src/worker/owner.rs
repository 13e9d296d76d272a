//! The users that a worker works for.

use towpath_engine::account::{Account, Party};

use super::pair::Pair;

/// The owner of a worker. A user that is also an administrator has two workers: the worker of the grant may hang, and its
/// end is not the administrator's. The worker of two users has no connection, and its hang ends no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// A user, by its grant.
    User(u32),
    Administrator(u32),
    /// All users that may not attach.
    Refused,
    /// All users whose connections the server closes unread.
    Unread,
    /// Two users that share memory for writing.
    Pair(Pair),
}

impl Owner {
    /// Returns the owner for an account.
    pub(crate) fn of(account: Account) -> Owner {
        if account.is_limited {
            Owner::User(account.uid)
        } else {
            Owner::Administrator(account.uid)
        }
    }

    /// Returns the user; `None` for several users.
    pub(crate) fn user(self) -> Option<Party> {
        match self {
            Owner::User(uid) => Some(Party::User(uid)),
            Owner::Administrator(uid) => Some(Party::Administrator(uid)),
            Owner::Refused | Owner::Unread | Owner::Pair(_) => None,
        }
    }
}
