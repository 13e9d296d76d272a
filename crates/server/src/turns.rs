//! Items of several parties, which are served in turn; and of the users of parties, in turn for each party and, within its
//! turns, for each of its users.

use std::collections::VecDeque;

/// The items of each party, in order, and the parties in the order of their turns.
#[derive(Debug)]
pub(crate) struct Turns<P, T> {
    parties: VecDeque<(P, VecDeque<T>)>,
}

impl<P, T> Default for Turns<P, T> {
    fn default() -> Turns<P, T> {
        Turns { parties: VecDeque::new() }
    }
}

impl<P: Copy + PartialEq, T> Turns<P, T> {
    /// Returns `true` if there is no item.
    pub(crate) fn is_empty(&self) -> bool {
        self.parties.is_empty()
    }

    /// Adds an item behind the party's other items.
    pub(crate) fn push(&mut self, party: P, item: T) {
        self.items_of(party).push_back(item);
    }

    /// Adds an item before the party's other items.
    pub(crate) fn push_front(&mut self, party: P, item: T) {
        self.items_of(party).push_front(item);
    }

    /// Takes the first item of the party whose turn it is. The party's next turn comes after the other parties'.
    pub(crate) fn take_next(&mut self) -> Option<(P, T)> {
        let (party, mut items) = self.parties.pop_front()?;
        let item = items.pop_front()?;
        if !items.is_empty() {
            self.parties.push_back((party, items));
        }
        Some((party, item))
    }

    /// Takes the last item of the party with the most items. Also returns whether it had several.
    fn take_last_of_longest(&mut self) -> Option<(P, T, bool)> {
        let longest = any_longest(self.parties.iter().map(|(_, items)| items.len()))?;
        let (party, items) = &mut self.parties[longest];
        let (party, item) = (*party, items.pop_back()?);
        let had_several = !items.is_empty();
        if !had_several {
            self.parties.remove(longest);
        }
        Some((party, item, had_several))
    }

    /// Keeps the items for which `keeps` returns `true`.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        self.parties.retain_mut(|(_, items)| {
            items.retain(&keeps);
            !items.is_empty()
        });
    }

    /// Returns all items for changes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.parties.iter_mut().flat_map(|(_, items)| items)
    }

    /// Returns how many items each party has, in the order of their turns.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> Vec<(P, usize)> {
        self.parties.iter().map(|(party, items)| (*party, items.len())).collect()
    }

    fn items_of(&mut self, party: P) -> &mut VecDeque<T> {
        let at = self.parties.iter().position(|(other, _)| *other == party);
        let at = at.unwrap_or_else(|| {
            self.parties.push_back((party, VecDeque::new()));
            self.parties.len() - 1
        });
        &mut self.parties[at].1
    }
}

/// Returns the place of one of the largest numbers: of several, a random one.
fn any_longest(lengths: impl Iterator<Item = usize>) -> Option<usize> {
    let (mut longest, mut most, mut equal) = (None, 0, 0);
    for (at, len) in lengths.enumerate() {
        if longest.is_none() || len > most {
            (longest, most, equal) = (Some(at), len, 1);
        } else if len == most {
            equal += 1;
            if fastrand::usize(..equal) == 0 {
                longest = Some(at);
            }
        }
    }
    longest
}

/// The items of the users of each party.
#[derive(Debug)]
pub(crate) struct PartyTurns<P, U, T> {
    parties: VecDeque<Party<P, U, T>>,
}

#[derive(Debug)]
struct Party<P, U, T> {
    party: P,
    users: Turns<U, T>,
    items: usize,
}

impl<P, U, T> Default for PartyTurns<P, U, T> {
    fn default() -> PartyTurns<P, U, T> {
        PartyTurns { parties: VecDeque::new() }
    }
}

impl<P: Copy + PartialEq, U: Copy + PartialEq, T> PartyTurns<P, U, T> {
    /// Returns `true` if there is no item.
    pub(crate) fn is_empty(&self) -> bool {
        self.parties.is_empty()
    }

    /// Returns the number of parties that have items.
    pub(crate) fn parties(&self) -> usize {
        self.parties.len()
    }

    /// Adds an item behind the user's other items.
    pub(crate) fn push(&mut self, party: P, user: U, item: T) {
        let party = self.party(party);
        party.users.push(user, item);
        party.items += 1;
    }

    /// Adds an item before the user's other items.
    pub(crate) fn push_front(&mut self, party: P, user: U, item: T) {
        let party = self.party(party);
        party.users.push_front(user, item);
        party.items += 1;
    }

    /// Takes the first item of the user whose turn it is, of the party whose turn it is. The party's next turn comes after
    /// the other parties'.
    pub(crate) fn take_next(&mut self) -> Option<(P, U, T)> {
        let mut next = self.parties.pop_front()?;
        let (party, (user, item)) = (next.party, next.users.take_next()?);
        next.items -= 1;
        if next.items > 0 {
            self.parties.push_back(next);
        }
        Some((party, user, item))
    }

    /// Takes the last item of the user with the most items, of the party with the most items; of several, of a random one.
    /// Also returns whether that user had several.
    pub(crate) fn take_last_of_longest(&mut self) -> Option<(P, U, T, bool)> {
        let longest = any_longest(self.parties.iter().map(|one| one.items))?;
        let of = &mut self.parties[longest];
        let (party, (user, item, had_several)) = (of.party, of.users.take_last_of_longest()?);
        of.items -= 1;
        if of.items == 0 {
            self.parties.remove(longest);
        }
        Some((party, user, item, had_several))
    }

    /// Returns all items for changes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.parties.iter_mut().flat_map(|party| party.users.iter_mut())
    }

    /// Returns how many items each user has, in the order of their turns.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> Vec<(U, usize)> {
        self.parties.iter().flat_map(|party| party.users.counts()).collect()
    }

    fn party(&mut self, party: P) -> &mut Party<P, U, T> {
        let at = self.parties.iter().position(|other| other.party == party);
        let at = at.unwrap_or_else(|| {
            self.parties.push_back(Party { party, users: Turns::default(), items: 0 });
            self.parties.len() - 1
        });
        &mut self.parties[at]
    }
}

#[cfg(test)]
mod tests {
    use towpath_engine::account::Party;

    use super::*;

    #[test]
    fn the_longest_party_gives_way() {
        let mut turns = Turns::default();
        for (party, item) in [(7, 1), (8, 2), (8, 3), (9, 4)] {
            turns.push(party, item);
        }
        assert_eq!(turns.take_last_of_longest(), Some((8, 3, true)));
        for _ in 0..3 {
            assert!(turns.take_last_of_longest().is_some_and(|(.., had_several)| !had_several));
        }
        assert!(turns.take_last_of_longest().is_none() && turns.is_empty());
    }

    /// The one that came last is no more likely to give way than the others.
    #[test]
    fn any_of_the_longest_gives_way() {
        let mut chosen = [0; 4];
        for _ in 0..1000 {
            chosen[any_longest([3, 1, 3, 3].into_iter()).unwrap()] += 1;
        }
        assert_eq!(chosen[1], 0);
        assert!([0, 2, 3].into_iter().all(|at| chosen[at] > 200), "{chosen:?}");
        assert_eq!(any_longest([].into_iter()), None);
    }

    #[test]
    fn users_of_a_party_share_its_turns() {
        let mut turns = PartyTurns::default();
        for (party, user, item) in [(1, 10, 1), (1, 10, 2), (1, 11, 3), (2, 20, 4), (2, 20, 5)] {
            turns.push(party, user, item);
        }
        assert_eq!((turns.parties(), turns.counts()), (2, vec![(10, 2), (11, 1), (20, 2)]));
        assert_eq!(turns.take_next(), Some((1, 10, 1)));
        assert_eq!(turns.take_next(), Some((2, 20, 4)));
        assert_eq!(turns.take_next(), Some((1, 11, 3)));
        turns.push_front(1, 10, 0);
        turns.iter_mut().for_each(|item| *item *= 10);
        assert_eq!(turns.take_last_of_longest(), Some((1, 10, 20, true)));
        assert_eq!(turns.take_next(), Some((2, 20, 50)));
        assert_eq!(turns.take_next(), Some((1, 10, 0)));
        assert!(turns.take_next().is_none() && turns.is_empty());
    }

    #[test]
    fn each_party_has_its_turn() {
        let (one, other) = (Party::User(7), Party::User(8));
        let mut turns = Turns::default();
        for (party, item) in [(one, 1), (one, 2), (one, 3), (other, 4)] {
            turns.push(party, item);
        }
        assert_eq!((turns.take_next(), turns.take_next()), (Some((one, 1)), Some((other, 4))));
        turns.push_front(other, 4);
        turns.iter_mut().for_each(|item| *item *= 10);
        turns.retain(|item| *item != 20);
        assert_eq!((turns.take_next(), turns.take_next()), (Some((one, 30)), Some((other, 40))));
        assert!(turns.take_next().is_none() && turns.is_empty());
    }
}
