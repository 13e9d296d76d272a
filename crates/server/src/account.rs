//! Whom the server charges for what applications have.

/// The accounts that a connection counts against. A user admitted as a member of a group also counts for
/// that group. A member with many user numbers (`subuid(5)`) thereby gains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) group: Option<u32>,
    /// `true` if the memory of the account's sessions is limited: the connection is no administrator's.
    pub(crate) is_limited: bool,
}

/// A party that shares limits: one user, or all users that a group lets in.
///
/// Root as an administrator is another party than root with a grant, which may be the root of a container. So the
/// container's root uses up nothing of the administrator's, and does not hold the administrator up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Party {
    /// A user by its grant, or a user that the server refuses.
    User(u32),
    Administrator(u32),
    Group(u32),
}

impl Account {
    /// Returns the account's user as a party.
    pub(crate) fn user(self) -> Party {
        if self.is_limited { Party::User(self.uid) } else { Party::Administrator(self.uid) }
    }

    /// Returns the parties of the account: its user, and the group that lets it in.
    pub(crate) fn parties(self) -> impl Iterator<Item = Party> {
        [self.user()].into_iter().chain(self.group.map(Party::Group))
    }

    /// Returns the account's group where there is one, else its user.
    pub(crate) fn party(self) -> Party {
        self.group.map_or(self.user(), Party::Group)
    }
}

impl Party {
    /// Returns the number of the user or the group, for people to read.
    pub(crate) fn number(self) -> u32 {
        let (Party::User(number) | Party::Administrator(number) | Party::Group(number)) = self;
        number
    }
}

/// Returns `true` if a user has all rights over the administration socket. `own`: the server's user.
pub(crate) fn may_administer(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own
}

/// Two users, in either order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pair {
    lower: Party,
    higher: Party,
}

impl Pair {
    pub(crate) fn of(one: Account, other: Account) -> Pair {
        let [one, other] = [one.user(), other.user()];
        Pair { lower: one.min(other), higher: one.max(other) }
    }
}
