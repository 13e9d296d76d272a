//! The order of sending: round-robin over the channels, one fragment each. A limit bounds the PDUs
//! of several fragments that are begun at a time, since a receiver keeps a bounded number of
//! incomplete PDUs.

use std::collections::{HashMap, VecDeque};

use crate::limits::PARTIALS_OF_SOURCE;

/// The maximum number of begun and unfinished PDUs of several fragments, to all receivers together:
/// a PDU to a group is incomplete at each of its receivers. It is half of the PDUs that a receiver
/// keeps per source. The other half is for PDUs that lost a fragment or arrive out of order.
pub(crate) const MAX_BEGUN: usize = PARTIALS_OF_SOURCE / 2;

/// The position of a fragment in its PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The only one.
    Whole,
    First,
    Middle,
    Last,
}

impl Part {
    /// Returns the position of fragment `number`, from 0, of `count`.
    pub(crate) fn of(number: usize, count: usize) -> Part {
        match (number == 0, number + 1 == count) {
            (true, true) => Part::Whole,
            (true, false) => Part::First,
            (false, false) => Part::Middle,
            (false, true) => Part::Last,
        }
    }
}

/// Fragments waiting to be sent, in one queue per channel. All queues share the same slots, so
/// memory depends on the number of fragments and not of channels.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    places: Vec<Place<T>>,
    /// Free slots.
    free: Vec<usize>,
    /// The last slot of each channel with waiting fragments.
    last: HashMap<u32, usize>,
    /// The channels in the order of their turns, the next one first.
    order: VecDeque<Turn>,
    /// Channels whose next PDU may not begin yet, in the order in which they will. While this is
    /// not empty, the limit of begun PDUs is reached.
    held: VecDeque<Turn>,
    /// The number of begun PDUs, and of PDUs that may begin in their next turn.
    begun: usize,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    channel: u32,
    /// The first slot of its queue.
    first: usize,
    /// `true` if its present or next PDU counts as begun.
    begun: bool,
}

#[derive(Debug)]
struct Place<T> {
    item: Option<T>,
    part: Part,
    /// The slot behind this one, unless it is the channel's last.
    next: usize,
}

impl<T> Turns<T> {
    /// Creates a queue that allocates room for `most` fragments at the start.
    pub(crate) fn new(most: usize) -> Turns<T> {
        Turns {
            places: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            // Twice the room: a table that is at most half full cleans up in place and never grows.
            last: HashMap::with_capacity(most * 2),
            order: VecDeque::with_capacity(most),
            held: VecDeque::with_capacity(most),
            begun: 0,
        }
    }

    /// Returns the number of waiting fragments.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns `true` if fragments of a channel wait.
    pub(crate) fn has(&self, channel: u32) -> bool {
        self.last.contains_key(&channel)
    }

    /// Appends a fragment to its channel's queue. The parts of a PDU follow each other.
    pub(crate) fn push(&mut self, channel: u32, part: Part, item: T) {
        let item = Some(item);
        let place = match self.free.pop() {
            Some(place) => {
                (self.places[place].item, self.places[place].part) = (item, part);
                place
            }
            None => {
                self.places.push(Place { item, part, next: 0 });
                self.places.len() - 1
            }
        };
        match self.last.insert(channel, place) {
            Some(before) => self.places[before].next = place,
            None => self.order.push_back(Turn { channel, first: place, begun: false }),
        }
    }

    /// Returns the next fragment without removing it.
    pub(crate) fn front(&mut self) -> Option<&mut T> {
        self.choose();
        self.order.front().and_then(|turn| self.places[turn.first].item.as_mut())
    }

    /// Removes the next fragment; its channel goes behind the others.
    pub(crate) fn next(&mut self) -> Option<T> {
        self.choose();
        let Turn { channel, first, mut begun } = self.order.pop_front()?;
        let Place { part, next, .. } = self.places[first];
        if part == Part::Last {
            begun = false;
            // A channel that waited to begin goes before the next PDU of the ending channel.
            match self.held.pop_front() {
                Some(waited) => self.order.push_back(Turn { begun: true, ..waited }),
                None => self.begun -= 1,
            }
        }
        if self.last.get(&channel) == Some(&first) {
            self.last.remove(&channel);
        } else {
            self.order.push_back(Turn { channel, first: next, begun });
        }
        self.free.push(first);
        self.places[first].item.take()
    }

    /// Ensures that the first channel in order may send, and holds channels that would exceed the
    /// limit of begun PDUs. A channel is held at most once per PDU.
    fn choose(&mut self) {
        while let Some(turn) = self.order.front_mut() {
            if self.places[turn.first].part != Part::First || turn.begun {
                return;
            }
            if self.begun < MAX_BEGUN {
                self.begun += 1;
                turn.begun = true;
                return;
            }
            self.held.extend(self.order.pop_front());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes a PDU of `count` parts.
    fn push(turns: &mut Turns<(u32, usize)>, channel: u32, count: usize) {
        (0..count).for_each(|step| turns.push(channel, Part::of(step, count), (channel, step)));
    }

    #[test]
    fn channels_alternate_and_keep_their_own_order() {
        let mut turns = Turns::new(64);
        push(&mut turns, 1, 45);
        push(&mut turns, 2, 1);
        push(&mut turns, 1, 2);
        push(&mut turns, 3, 2);
        assert_eq!(turns.len(), 50);
        assert!(turns.has(2) && !turns.has(4));
        let all: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(all[..6], [(1, 0), (2, 0), (3, 0), (1, 1), (3, 1), (1, 2)]);
        let first: Vec<_> = all.iter().filter(|one| one.0 == 1).map(|one| one.1).collect();
        assert_eq!(first, (0..45).chain(0..2).collect::<Vec<_>>(), "a channel's own order is kept");
        assert_eq!((turns.len(), turns.order.len(), turns.last.len()), (0, 0, 0));
    }

    #[test]
    fn begun_pdus_are_bounded_and_none_starves() {
        let mut turns = Turns::new(1024);
        // Three long PDUs on each of 24 channels, and two short ones.
        for _ in 0..3 {
            (0..24).for_each(|channel| push(&mut turns, channel, 5));
        }
        (100..102).for_each(|channel| push(&mut turns, channel, 1));
        let (mut begun, mut most, mut ended) = (0, 0, Vec::new());
        let mut place = 0;
        while turns.len() > 0 {
            let front = *turns.front().unwrap();
            let (channel, step) = turns.next().unwrap();
            assert_eq!(front, (channel, step), "next() takes what front() showed");
            match (channel, step) {
                (100.., _) => assert!(place < MAX_BEGUN + 2, "a short one at {place}"),
                (_, 0) => begun += 1,
                (_, 4) => {
                    begun -= 1;
                    ended.push(channel);
                }
                _ => {}
            }
            most = most.max(begun);
            place += 1;
        }
        assert_eq!((most, begun, ended.len()), (MAX_BEGUN, 0, 72));
        // Each channel's first PDU comes before any channel's second, and so on.
        for round in ended.chunks(24) {
            let mut round = round.to_vec();
            round.sort_unstable();
            assert_eq!(round, (0..24).collect::<Vec<_>>());
        }
        assert_eq!((turns.begun, turns.held.len(), turns.order.len()), (0, 0, 0));
        // A PDU that comes when the limit is reached begins when the first of them has ended.
        (0..MAX_BEGUN as u32 + 1).for_each(|channel| push(&mut turns, channel, 2));
        let all: Vec<_> = std::iter::from_fn(|| turns.next()).map(|one| one.0).collect();
        let expected: Vec<_> = (0..8).chain(0..8).chain([8, 8]).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn memory_is_bounded_by_the_waiting_fragments() {
        let mut turns = Turns::new(8);
        for round in 0..1000 {
            for step in 0..8 {
                turns.push(round * (step % 3), Part::Whole, (round, step));
            }
            assert_eq!(turns.front(), Some(&mut (round, 0)));
            let mut all: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..8).map(|step| (round, step)).collect::<Vec<_>>());
        }
        assert_eq!((turns.places.len(), turns.free.len(), turns.order.capacity()), (8, 8, 8));
    }
}
