//! Whom the server charges for what applications have.

/// The accounts that a connection counts against. A user admitted as a member of a group also counts for
/// that group. A member with many user numbers (`subuid(5)`) thereby gains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub uid: u32,
    /// The group that lets the user in.
    pub group: Option<u32>,
    /// `true` if the memory of the account's sessions is limited: the connection is no administrator's.
    pub is_limited: bool,
}

/// A party that shares limits: one user, or all users that a group lets in.
///
/// Root as an administrator is another party than root with a grant, which may be the root of a container. So the
/// container's root uses up nothing of the administrator's, and does not hold the administrator up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A user by its grant, or a user that the server refuses.
    User(u32),
    /// An administrator, by its user number.
    Administrator(u32),
    /// All users that a group lets in.
    Group(u32),
}

impl Account {
    /// Returns the account's user as a party.
    pub fn user(self) -> Party {
        if self.is_limited { Party::User(self.uid) } else { Party::Administrator(self.uid) }
    }

    /// Returns the parties of the account: its user, and the group that lets it in.
    pub(crate) fn parties(self) -> impl Iterator<Item = Party> {
        [self.user()].into_iter().chain(self.group.map(Party::Group))
    }

    /// Returns the account's group where there is one, else its user.
    pub fn party(self) -> Party {
        self.group.map_or(self.user(), Party::Group)
    }
}

impl From<Party> for u32 {
    /// Returns the number of the user or the group, for people to read.
    fn from(party: Party) -> u32 {
        let (Party::User(number) | Party::Administrator(number) | Party::Group(number)) = party;
        number
    }
}
