//! Whose turn it is: one fragment of each channel that has something to send, then again.

use std::collections::{HashMap, VecDeque};

/// What waits to be sent, in a line for each channel. All lines are made of the same places, so that
/// memory follows from how much waits, whatever channels it is of.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    places: Vec<Place<T>>,
    /// Places that nothing is in.
    free: Vec<usize>,
    /// The last place of each channel that has something.
    last: HashMap<u32, usize>,
    /// Those channels and their first places, the next one first.
    order: VecDeque<(u32, usize)>,
}

#[derive(Debug)]
struct Place<T> {
    item: Option<T>,
    /// The place behind it, unless it is its channel's last.
    next: usize,
}

impl<T> Turns<T> {
    /// With room for so many from the start.
    pub(crate) fn new(most: usize) -> Turns<T> {
        Turns {
            places: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            // Twice the room: a table at most half full clears up in place and never grows.
            last: HashMap::with_capacity(most * 2),
            order: VecDeque::with_capacity(most),
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether something of a channel waits.
    pub(crate) fn has(&self, channel: u32) -> bool {
        self.last.contains_key(&channel)
    }

    /// Puts one behind what waits of its channel.
    pub(crate) fn push(&mut self, channel: u32, item: T) {
        let item = Some(item);
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place].item = item;
                place
            }
            None => {
                self.places.push(Place { item, next: 0 });
                self.places.len() - 1
            }
        };
        match self.last.insert(channel, place) {
            Some(before) => self.places[before].next = place,
            None => self.order.push_back((channel, place)),
        }
    }

    /// The next one, left where it is.
    pub(crate) fn front(&self) -> Option<&T> {
        self.order.front().and_then(|(_, first)| self.places[*first].item.as_ref())
    }

    /// Takes the next one; its channel goes behind the others.
    pub(crate) fn next(&mut self) -> Option<T> {
        let (channel, first) = self.order.pop_front()?;
        if self.last.get(&channel) == Some(&first) {
            self.last.remove(&channel);
        } else {
            self.order.push_back((channel, self.places[first].next));
        }
        self.free.push(first);
        self.places[first].item.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_one_does_not_hold_up_a_short_one() {
        let mut turns = Turns::new(64);
        (0..45).for_each(|step| turns.push(1, (1, step)));
        turns.push(2, (2, 0));
        (45..47).for_each(|step| turns.push(1, (1, step)));
        (0..2).for_each(|step| turns.push(3, (3, step)));
        assert_eq!(turns.len(), 50);
        assert!(turns.has(2) && !turns.has(4));
        let all: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(all[..6], [(1, 0), (2, 0), (3, 0), (1, 1), (3, 1), (1, 2)]);
        let first: Vec<_> = all.iter().filter(|one| one.0 == 1).map(|one| one.1).collect();
        assert_eq!(first, (0..47).collect::<Vec<_>>(), "a channel's own order is kept");
        assert_eq!((turns.len(), turns.order.len(), turns.last.len()), (0, 0, 0));
    }

    #[test]
    fn memory_follows_from_how_much_waits() {
        let mut turns = Turns::new(8);
        for round in 0..1000 {
            for step in 0..8 {
                turns.push(round * (step % 3), (round, step));
            }
            assert_eq!(turns.front(), Some(&(round, 0)));
            let mut all: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..8).map(|step| (round, step)).collect::<Vec<_>>());
        }
        assert_eq!((turns.places.len(), turns.free.len(), turns.order.capacity()), (8, 8, 8));
    }
}
