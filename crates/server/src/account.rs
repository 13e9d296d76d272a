//! Whom the server charges for what applications have.

/// The accounts that a connection counts against. A user admitted as a member of a group counts for
/// that group, too. A member with many user numbers (`subuid(5)`) thereby gains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) group: Option<u32>,
    /// `true` if the memory of the account's sessions is limited: the user is no administrator.
    pub(crate) is_limited: bool,
}

/// A party that shares limits: one user, or all users that a group lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    User(u32),
    Group(u32),
}

impl Account {
    /// Returns the parties of the account: its user, and the group that lets it in.
    pub(crate) fn parties(self) -> impl Iterator<Item = Party> {
        [Party::User(self.uid)].into_iter().chain(self.group.map(Party::Group))
    }

    /// Returns the account's group where there is one, else its user.
    pub(crate) fn party(self) -> Party {
        self.group.map_or(Party::User(self.uid), Party::Group)
    }
}

/// Two users, in either order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pair {
    lower: u32,
    higher: u32,
}

impl Pair {
    pub(crate) fn of(one: u32, other: u32) -> Pair {
        Pair { lower: one.min(other), higher: one.max(other) }
    }
}
