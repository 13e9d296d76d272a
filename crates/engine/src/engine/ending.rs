//! The end of sessions and endpoints: the last packets, the flow rules, and the packets in flight.

use towpath_protocol::counters::Device as Count;
use towpath_protocol::oob::PeerState;

use super::Engine;
use crate::clock::clock_ns;
use crate::closing::{CLOSED_PER_ITERATION, Closed};
use crate::commands::EngineReport;
use crate::demux::Destination;
use crate::draining::{Draining, Step};
use crate::own::Own;
use crate::session::endpoints::Endpoint;

impl Engine {
    /// Ends a session: after its last packets, or `at_once`, even if the engine drains it already.
    pub(super) fn remove_session(&mut self, number: u32, reason: u32, at_once: bool) {
        let Some(key) = self.sessions.key(number) else { return };
        if at_once || !self.begin_draining(key) {
            self.begin_closing(key, reason);
        }
    }

    /// Begins to drain a session whose application has ended. Returns `false` if the session must close at once.
    fn begin_draining(&mut self, key: u32) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let may = session.is_claimed() && session.violation().is_none() && !session.is_closing();
        if !may || !self.tx.is_link_up() {
            return false;
        }
        self.draining.push(Draining::new(key, session.number(), clock_ns()));
        true
    }

    /// Looks for the last packets of draining sessions, and begins to close the sessions without any. `has_worked`:
    /// `true` if the poll iteration did some work. Returns the amount of work done.
    pub(super) fn continue_draining(&mut self, has_worked: bool) -> usize {
        let (now, waits) = (clock_ns(), self.tx.waits_for_device());
        self.draining.begin(has_worked, now);
        let (mut work, mut left) = (0, CLOSED_PER_ITERATION);
        while left > 0
            && let Some(draining) = self.draining.current()
        {
            left -= 1;
            let (key, number) = (draining.key, draining.number);
            let session = self.sessions.get_mut(key).filter(|one| one.number() == number);
            // The engine has closed, or is about to close, a session that broke the protocol.
            let Some(session) =
                session.filter(|one| !one.is_closing() && one.violation().is_none())
            else {
                self.draining.remove();
                continue;
            };
            let step = draining.step(session, waits, now).and_then(|step| {
                let Step::Found(queue_pair) = step else { return Ok(step) };
                self.tx.found_news(session, queue_pair).map(|()| step)
            });
            match step {
                Ok(Step::Waits) => {
                    self.draining.pass();
                    continue;
                }
                Ok(Step::Found(_) | Step::Empty) if left > 0 => {}
                Ok(Step::Found(_) | Step::Empty) => self.draining.interrupt(),
                Ok(Step::Over) => {
                    self.draining.remove();
                    self.begin_closing(key, 0);
                }
                Err(violation) => {
                    self.draining.remove();
                    self.sessions.condemn(key, violation);
                }
            }
            work += 1;
        }
        work
    }

    /// Ends a session, which from now on receives and sends nothing. The engine waits for the
    /// session's packets in flight, and removes its flow rules and queue pairs a few per poll iteration.
    /// Counts and reports a violation, whatever made the session end. `reason` is for the
    /// application, if there is no violation.
    pub(super) fn begin_closing(&mut self, key: u32, reason: u32) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.is_closing() {
            return;
        }
        let (number, violation) = (session.number(), session.violation());
        // An application that learns of the violation also finds it counted.
        self.counters.add(Count::Violations, u64::from(violation.is_some()));
        let doorbell = session.close(violation.map_or(reason, |violation| violation as u32));
        let (endpoints, shapes) =
            (session.receive.endpoints.take_all(), session.transmit.take_shapes());
        self.closing.push(key, session.shape().queue_pairs, endpoints, shapes);
        self.sessions.deactivate(key);
        // This completes packets, and touches their queue pairs once more.
        self.tx.forget(key, &mut self.sessions, &mut self.notifier, &mut self.counters);
        self.notifier.forget(key);
        if let Some(doorbell) = doorbell {
            self.commands.tell(EngineReport::Closed { session: number, doorbell });
        }
        if let Some(violation) = violation {
            self.commands.tell(EngineReport::Violated { session: number, violation });
        }
    }

    /// Closes the sessions that violated the protocol. Returns their number.
    pub(super) fn close_condemned(&mut self) -> usize {
        let mut closed = 0;
        while let Some(key) = self.sessions.take_condemned() {
            self.begin_closing(key, 0);
            closed += 1;
        }
        closed
    }

    /// Removes flow rules of ending sessions, and sessions that have ended. Returns the amount of
    /// work done.
    pub(super) fn continue_closing(&mut self) -> usize {
        while let Some(key) = self.tx.take_closing_done() {
            self.remove_ended(key);
        }
        let mut work = 0;
        while work < CLOSED_PER_ITERATION
            && let Some(step) = self.closing.next()
        {
            match step {
                Closed::Endpoint { key, number, endpoint, shape } => {
                    if let Some(shape) = shape {
                        self.tx.drop_shape(&shape);
                    }
                    if let Some(endpoint) = endpoint {
                        let destination = Destination { session: key, endpoint: number };
                        work += self.forget(&endpoint, destination, PeerState::Gone);
                    }
                    work += 1;
                }
                Closed::QueuePair { key, number } => {
                    self.remove_queue_pair(key, number);
                    work += 1;
                }
                Closed::Emptied(key) => {
                    if let Some(session) = self.sessions.get_mut(key) {
                        session.set_emptied();
                    }
                    self.remove_ended(key);
                    work += 1;
                }
            }
        }
        work
    }

    /// Removes a queue pair of an ending session from the scheduler, and counts the packets left there.
    fn remove_queue_pair(&mut self, key: u32, number: u32) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let queue = session.transmit.queue(number);
        let left = queue.consumer.observe().unwrap_or(0);
        self.counters.add(Count::TxEnded, left.into());
        self.tx.remove_unit(queue.unit);
    }

    /// Stops delivery to an endpoint. `state`: what the peer of its out-of-band messages is told.
    /// Returns the number of requests for a connection that it had.
    pub(super) fn forget(
        &mut self,
        endpoint: &Endpoint,
        destination: Destination,
        state: PeerState,
    ) -> usize {
        if endpoint.captures {
            self.flows.remove_captures(destination);
        } else if endpoint.requests_left.is_none() {
            self.flows.remove(&endpoint.rule, destination);
        }
        if endpoint.oob.is_empty() {
            return 0;
        }
        self.oob.remove(&endpoint.oob, destination);
        let requests = self.oob_parts().forget(destination, state);
        self.remote.remove_addresses(&endpoint.reachable);
        requests
    }

    /// Removes a session of which nothing is left, and hands it back.
    fn remove_ended(&mut self, key: u32) {
        let Some(mut session) = self.sessions.take_ended(key) else { return };
        debug_assert!(!self.notifier.knows(key), "another session may get the key now");
        if let Some(wake) = session.events.wake() {
            self.wait.wakes().forget(wake);
        }
        if let Some(own) = session.extras.own.place() {
            if let Some(fd) = self.port.own_sleep_fd(own.number) {
                self.wait.wakes().forget_own(fd);
            }
            let queue = self.port.remove_own(own.number);
            session.extras.own = queue.map_or(Own::None, |queue| Own::Queue(Box::new(queue)));
            self.own_rx.forget(own.number);
        }
        self.port.remove_space(session.transmit.sends_from.space);
        self.memories.remove(key);
        self.commands.tell(EngineReport::Removed(session));
    }
}
