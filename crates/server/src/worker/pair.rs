//! Two users whose worker frees the memory that they share for writing.

use towpath_engine::account::{Account, Party};

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
