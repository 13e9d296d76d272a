//! The queue pairs that may have news, in the order in which the client learned of them.

use std::collections::VecDeque;

/// A list of queue pairs, each in it at most once.
pub(crate) struct Ready {
    queue: VecDeque<u32>,
    /// `true` for each queue pair in the list.
    is_entered: Box<[bool]>,
}

impl Ready {
    /// Creates an empty list for so many queue pairs.
    pub(crate) fn new(units: usize) -> Ready {
        let is_entered = vec![false; units].into_boxed_slice();
        Ready { queue: VecDeque::with_capacity(units), is_entered }
    }

    /// Enters a queue pair for a check. Ignores a queue pair that the session does not have.
    #[inline]
    pub(crate) fn enter(&mut self, unit: u32) {
        if let Some(is_entered) = self.is_entered.get_mut(unit as usize)
            && !std::mem::replace(is_entered, true)
        {
            self.queue.push_back(unit);
        }
    }

    /// Enters every queue pair.
    pub(crate) fn enter_all(&mut self) {
        (0..self.is_entered.len() as u32).for_each(|unit| self.enter(unit));
    }

    /// Returns the first queue pair.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        self.queue.front().copied()
    }

    /// Removes the first queue pair.
    pub(crate) fn pop(&mut self) {
        if let Some(unit) = self.queue.pop_front() {
            self.is_entered[unit as usize] = false;
        }
    }

    /// `true` if no queue pair may have news.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
