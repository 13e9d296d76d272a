//! Sessions under removal that still have flow rules or queue pairs. The engine removes these a few per poll
//! iteration, so that ten thousand of one session do not delay other sessions.

use std::collections::VecDeque;

use crate::schedule::shape::Shape;
use crate::session::endpoints::Endpoint;

/// Endpoints and queue pairs of ending sessions, and sessions without any, that the engine removes per poll iteration,
/// so that ten thousand of one session do not delay other sessions. Also limits, per poll iteration:
/// - the queue pairs of draining sessions at which the engine looks;
/// - the turns of queue pairs of ending sessions, once among expedited packets and once among others;
/// - the queue pairs of ending sessions whose wait for a time or a tick is over.
pub(super) const CLOSED_PER_ITERATION: usize = 64;

/// An ending session, its endpoints that still have flow rules, and its queue pairs.
#[derive(Debug)]
struct Closing {
    key: u32,
    /// The number of the next endpoint.
    number: u32,
    endpoints: Vec<Option<Box<Endpoint>>>,
    shapes: std::vec::IntoIter<Option<Box<Shape>>>,
    /// The numbers of the queue pairs that the engine has yet to remove.
    queue_pairs: std::ops::Range<u32>,
}

/// The next step of a removal.
#[derive(Debug)]
pub(super) enum Closed {
    /// To remove an endpoint.
    Endpoint {
        /// The session key.
        key: u32,
        /// The endpoint's number.
        number: u32,
        endpoint: Option<Box<Endpoint>>,
        shape: Option<Box<Shape>>,
    },
    /// To remove a queue pair of a session without endpoints.
    QueuePair {
        /// The session key.
        key: u32,
        /// The queue pair's number.
        number: u32,
    },
    /// The session with this key has no endpoints and queue pairs left.
    Emptied(u32),
}

/// The ending sessions, in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct ClosingSessions {
    queue: VecDeque<Closing>,
}

impl ClosingSessions {
    /// Enters a session with its number of queue pairs, its endpoints and their sending state.
    pub(super) fn push(
        &mut self,
        key: u32,
        queue_pairs: u32,
        endpoints: Vec<Option<Box<Endpoint>>>,
        shapes: Vec<Option<Box<Shape>>>,
    ) {
        let shapes = shapes.into_iter();
        let queue_pairs = 0..queue_pairs;
        self.queue.push_back(Closing { key, number: 0, endpoints, shapes, queue_pairs });
    }

    /// Takes an endpoint out before its turn.
    pub(super) fn take_out(&mut self, key: u32, number: u32) -> Option<Box<Endpoint>> {
        let closing = self.queue.iter_mut().find(|closing| closing.key == key)?;
        closing.endpoints.get_mut(number as usize)?.take()
    }

    /// Returns `true` if no session is under removal.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the next step. The sessions take turns, one endpoint or queue pair each, so that a session does not wait
    /// for ten thousand endpoints of another session.
    pub(super) fn next(&mut self) -> Option<Closed> {
        let mut closing = self.queue.pop_front()?;
        let (key, number) = (closing.key, closing.number);
        let step = if let Some(endpoint) = closing.endpoints.get_mut(number as usize) {
            let endpoint = endpoint.take();
            closing.number += 1;
            let shape = closing.shapes.next().flatten();
            Closed::Endpoint { key, number, endpoint, shape }
        } else if let Some(number) = closing.queue_pairs.next() {
            Closed::QueuePair { key, number }
        } else {
            return Some(Closed::Emptied(key));
        };
        self.queue.push_back(closing);
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::endpoint;

    #[test]
    fn all_endpoints_of_a_session_come_before_its_end() {
        let mut closing = ClosingSessions::default();
        closing.push(2, 1, vec![Some(Box::new(endpoint(1)))], vec![None]);
        assert!(closing.take_out(2, 1).is_none() && closing.take_out(3, 0).is_none());
        assert!(closing.take_out(2, 0).is_some() && closing.take_out(2, 0).is_none());
        closing.push(4, 0, vec![Some(Box::new(endpoint(1))), None], vec![None, None]);
        let one = |step| match step {
            Some(Closed::Endpoint { key, number, endpoint, .. }) => {
                (key, number, endpoint.is_some())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(one(closing.next()), (2, 0, false));
        assert_eq!(one(closing.next()), (4, 0, true));
        assert!(matches!(closing.next(), Some(Closed::QueuePair { key: 2, number: 0 })));
        assert_eq!(one(closing.next()), (4, 1, false));
        assert!(matches!(closing.next(), Some(Closed::Emptied(2))));
        assert!(matches!(closing.next(), Some(Closed::Emptied(4))));
        assert!(closing.next().is_none() && closing.is_empty());
    }

    #[test]
    fn a_small_session_does_not_wait_for_a_large_one() {
        let mut closing = ClosingSessions::default();
        let endpoints = |count| (0..count).map(|_| None).collect::<Vec<_>>();
        closing.push(1, 0, endpoints(10_000), Vec::new());
        closing.push(2, 0, endpoints(2), Vec::new());
        closing.push(3, 0, endpoints(0), Vec::new());
        let ends = (0..8).filter_map(|step| match closing.next() {
            Some(Closed::Emptied(key)) => Some((step, key)),
            _ => None,
        });
        assert_eq!(ends.collect::<Vec<_>>(), [(2, 3), (6, 2)]);
        assert!(!closing.is_empty());
    }
}
