//! Whose turn it is: one fragment of each channel that has something to send, then again.

use std::collections::{HashMap, VecDeque};

/// What waits to be sent, in a queue for each channel. What is made for a channel is used again for
/// the next one, so that nothing is allocated once as much has waited as ever waits.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    queues: Vec<VecDeque<T>>,
    /// Queues that no channel uses.
    spare: Vec<usize>,
    /// The queue of each channel that has something.
    of_channel: HashMap<u32, usize>,
    /// Those channels and their queues, the next one first.
    order: VecDeque<(u32, usize)>,
    len: usize,
}

impl<T> Turns<T> {
    /// For at most `most` at a time.
    pub(crate) fn new(most: usize) -> Turns<T> {
        Turns {
            queues: Vec::new(),
            spare: Vec::new(),
            of_channel: HashMap::with_capacity(most * 2),
            order: VecDeque::with_capacity(most),
            len: 0,
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether something of a channel waits.
    pub(crate) fn has(&self, channel: u32) -> bool {
        self.len > 0 && self.of_channel.contains_key(&channel)
    }

    /// Puts several behind what waits of their channel.
    pub(crate) fn push(&mut self, channel: u32, all: impl Iterator<Item = T>) {
        let queue = match self.of_channel.get(&channel) {
            Some(queue) => *queue,
            None => {
                let queue = self.spare.pop().unwrap_or_else(|| {
                    self.queues.push(VecDeque::new());
                    self.queues.len() - 1
                });
                self.of_channel.insert(channel, queue);
                self.order.push_back((channel, queue));
                queue
            }
        };
        let before = self.queues[queue].len();
        self.queues[queue].extend(all);
        self.len += self.queues[queue].len() - before;
        debug_assert!(!self.queues[queue].is_empty(), "a channel in line has something");
    }

    /// The next one, left where it is.
    pub(crate) fn front(&self) -> Option<&T> {
        self.order.front().and_then(|(_, queue)| self.queues[*queue].front())
    }

    /// Takes the next one; its channel goes behind the others.
    pub(crate) fn next(&mut self) -> Option<T> {
        let (channel, queue) = self.order.pop_front()?;
        let next = self.queues[queue].pop_front();
        if self.queues[queue].is_empty() {
            self.of_channel.remove(&channel);
            self.spare.push(queue);
        } else {
            self.order.push_back((channel, queue));
        }
        self.len -= usize::from(next.is_some());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_one_does_not_hold_up_a_short_one() {
        let mut turns = Turns::new(64);
        turns.push(1, (0..45).map(|step| (1, step)));
        turns.push(2, std::iter::once((2, 0)));
        turns.push(1, (45..47).map(|step| (1, step)));
        turns.push(3, (0..2).map(|step| (3, step)));
        assert_eq!(turns.len(), 50);
        assert!(turns.has(2) && !turns.has(4));
        let all: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(all[..6], [(1, 0), (2, 0), (3, 0), (1, 1), (3, 1), (1, 2)]);
        let first: Vec<_> = all.iter().filter(|one| one.0 == 1).map(|one| one.1).collect();
        assert_eq!(first, (0..47).collect::<Vec<_>>(), "a channel's own order is kept");
        assert_eq!((turns.len(), turns.order.len(), turns.of_channel.len()), (0, 0, 0));
        assert_eq!(turns.spare.len(), 3);
    }

    #[test]
    fn queues_are_used_again() {
        let mut turns = Turns::new(8);
        for channel in 0..1000 {
            turns.push(channel, 0..3);
            while turns.next().is_some() {}
        }
        assert_eq!(turns.queues.len(), 1);
    }
}
