//! Items of several parties, which are served in turn.

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

    /// Returns the number of items of all parties.
    pub(crate) fn len(&self) -> usize {
        self.parties.iter().map(|(_, items)| items.len()).sum()
    }

    /// Takes the last item of the party with the most items.
    pub(crate) fn take_last_of_longest(&mut self) -> Option<(P, T)> {
        let longest = (0..self.parties.len()).max_by_key(|at| self.parties[*at].1.len())?;
        let (party, items) = &mut self.parties[longest];
        let taken = (*party, items.pop_back()?);
        if items.is_empty() {
            self.parties.remove(longest);
        }
        Some(taken)
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
        assert_eq!((turns.take_last_of_longest(), turns.len()), (Some((8, 3)), 3));
        for left in (0..3).rev() {
            assert!(turns.take_last_of_longest().is_some());
            assert_eq!(turns.len(), left);
        }
        assert!(turns.take_last_of_longest().is_none() && turns.is_empty());
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
