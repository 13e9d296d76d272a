//! The execution of commands, and the end of sessions.

use towpath_device::{HardwareQueue, Meta};
use towpath_protocol::counters::Device as Count;
use towpath_protocol::layout::ENDPOINT_COUNTERS;
use towpath_protocol::oob::PeerState;
use towpath_protocol::settings::{Scope, Setting};

use crate::clock::clock_ns;
use crate::engine::Engine;
use crate::engine::closing::{CLOSED_PER_ITERATION, Closed};
use crate::engine::commands::{Claim, Command, EngineReport, Listening};
use crate::engine::delivery::{Delivery, Packet};
use crate::engine::demux::{Destination, FlowCache};
use crate::engine::draining::{Draining, Step};
use crate::engine::forbidden::Forbidden;
use crate::engine::neighbours::MAX_REQUESTS;
use crate::engine::oob::Parts;
use crate::engine::own::Own;
use crate::engine::session::{Endpoint, Session};
use crate::engine::source::Source;
use crate::reach::Reach;

/// Commands that the engine executes per poll iteration, so that a connection that opens or sets
/// endlessly does not delay other sessions. An engine with commands left does not sleep.
const COMMANDS_PER_ITERATION: usize = 16;

impl Engine {
    /// Executes commands, a few per poll iteration, and returns the amount of work done.
    pub(super) fn execute_commands(&mut self) -> usize {
        let mut work = 0;
        while work < COMMANDS_PER_ITERATION
            && let Some((ticket, command)) = self.commands.next()
        {
            self.execute(command);
            self.commands.tell(EngineReport::Done { ticket });
            work += 1;
        }
        self.stop |= self.commands.is_disconnected();
        work + self.tx.go_on_hurrying(&mut self.sessions)
    }

    /// Returns `true` if commands, or work that follows from them, continue in the next poll
    /// iteration. The engine must then not wait for a notification or a tick: it may have consumed
    /// the notification of the remaining commands already.
    pub(super) fn has_commands_left(&self) -> bool {
        self.commands.has_left()
            || !self.closing.is_empty()
            || self.draining.has_left()
            || self.tx.is_hurrying()
            || self.apertures.has_ending()
            || self.sessions.has_condemned()
            // The end of a session is news for the peers of its endpoints.
            || self.notifier.has_unpublished()
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::AddSession(session) => self.add_session(session),
            Command::RemoveSession { number, reason, at_once } => {
                self.remove_session(number, reason, at_once);
            }
            Command::AddEndpoint { session, number, endpoint, listening, group } => {
                if let Some(key) = self.sessions.key(session) {
                    self.add_endpoint(key, number, endpoint, listening, group);
                }
            }
            Command::RemoveEndpoint { session, number } => {
                if let Some(key) = self.sessions.key(session) {
                    self.remove_endpoint(key, number);
                }
            }
            Command::RevokeEndpoint { session, number } => {
                if let Some(key) = self.sessions.key(session) {
                    self.revoke_endpoint(key, number);
                }
            }
            Command::TellRevoked { session, number } => {
                if let Some(session) = self.session_mut(session) {
                    session.tell_revoked(number);
                }
            }
            Command::AnswerNeighbour { session, endpoint, packet, answered } => {
                if let Some(key) = self.sessions.key(session) {
                    self.answer_neighbour(key, endpoint, packet.as_deref(), answered);
                }
            }
            Command::SetTerms { session, forbidden, reach } => {
                if let Some(key) = self.sessions.key(session) {
                    self.set_terms(key, forbidden, reach);
                }
            }
            Command::Set { setting, session, endpoint, value } => {
                if setting.spec().scope == Scope::Device {
                    // A value out of range leaves the old one.
                    let _ = self.values.set(setting, value);
                    self.set(setting, value);
                } else if let Some(key) = self.sessions.key(session) {
                    self.set_endpoint(key, endpoint, setting, value);
                }
            }
            Command::Notify { directly } => self.notifier.set_directly(directly),
            Command::AddFlag { user, flag } => self.wait.add_flag(user, *flag),
            Command::RemoveFlag { user } => self.wait.remove_flag(user),
            Command::Link { up } => {
                self.port.set_link(up);
                self.tx.set_link(up);
            }
            Command::Mtu { bytes } => self.set_mtu(bytes),
            Command::CedeQueue { hardware } => {
                let queue = self.port.cede(hardware);
                self.commands.tell(EngineReport::Ceded { hardware, queue });
            }
            Command::RestoreQueue(queue) => self.restore_queue(queue),
            Command::ClaimSession(claim) => self.claim_session(*claim),
            Command::Aperture(command) => {
                let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
                let report = self.apertures.execute(command, sessions, notifier);
                report.into_iter().for_each(|one| self.commands.tell(EngineReport::Aperture(one)));
            }
            Command::AnswerFor(freed) => self.flows.freed_mut().insert(freed),
            Command::StopAnsweringFor { mac } => self.flows.freed_mut().remove(mac),
            Command::Stop => self.stop = true,
            Command::Leave => (self.stop, self.leaves) = (true, true),
        }
    }

    fn set_mtu(&mut self, bytes: usize) {
        self.port.set_mtu(bytes);
        // The bounce buffers limit it.
        self.remote.set_mtu(self.port.mtu());
    }

    /// Serves a hardware queue again.
    fn restore_queue(&mut self, queue: HardwareQueue) {
        let mut buffers = Vec::new();
        self.port.restore(queue, &mut buffers);
        self.rx.take_back(&self.port, &buffers);
    }

    /// Returns the session with a number.
    fn session_mut(&mut self, number: u32) -> Option<&mut Session> {
        self.sessions.key(number).and_then(|key| self.sessions.get_mut(key))
    }

    /// Applies the terms of a session. Ends the connections that they do not allow any more.
    fn set_terms(&mut self, key: u32, forbidden: Option<u32>, reach: Reach) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.forbidden = forbidden.map(Forbidden::new);
        if std::mem::replace(&mut session.oob.reach, reach) != reach {
            self.oob_parts().enforce(key);
        }
    }

    /// Applies a setting of the device, which the sender of the command has checked.
    fn set(&mut self, setting: Setting, value: u64) {
        match setting {
            Setting::Watchdog | Setting::WatchdogMs => self.port.set_watchdog(&self.values),
            Setting::RxBatch => {
                self.rx.set_batch(value as usize);
                self.own_rx.set_batch(value as usize);
            }
            Setting::FlowCache => self.flows.set_cache(FlowCache::of(value)),
            Setting::Scheduler | Setting::Handoff | Setting::Expedited | Setting::LinkDown => {
                self.tx.set(setting, value);
            }
            Setting::NotificationSuppression | Setting::EarlyNotification | Setting::Notify => {
                self.notifier.set(&self.values);
            }
            Setting::Wait
            | Setting::TickHz
            | Setting::LatencyUs
            | Setting::CpuPercent
            | Setting::TimerSlackUs => {
                self.notifier.set(&self.values);
                self.wait.set(setting, &self.values, &self.port);
            }
            // These are settings of endpoints.
            Setting::RxFrames
            | Setting::RxUsecs
            | Setting::Priority
            | Setting::Weight
            | Setting::RateBps
            | Setting::RatePps
            | Setting::BurstBytes
            | Setting::BurstPackets
            | Setting::Pacing
            | Setting::MaxDelayUs
            | Setting::MaxMessageBytes
            | Setting::Quota
            | Setting::TickMultiple => {}
        }
    }

    /// Applies a setting of an endpoint, which the sender of the command has checked.
    fn set_endpoint(&mut self, key: u32, number: u32, setting: Setting, value: u64) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if matches!(setting, Setting::RxFrames | Setting::RxUsecs) {
            session.set_coalescing(number, setting, value as u32);
            self.notifier.hurry(key);
            return;
        }
        if let Err(violation) = self.tx.set_shape(key, session, number, setting, value) {
            self.sessions.condemn(key, violation);
        }
    }

    fn add_session(&mut self, mut session: Box<Session>) {
        let key = self.sessions.reserve();
        self.notifier.reserve(self.sessions.keys());
        self.port.add_space(key, &mut session);
        if let Some(own) = session.own.place()
            && let Some(fd) = self.port.own_sleep_fd(own.number)
        {
            self.wait.watch_own(fd);
        }
        self.memories.insert(key, &session.transmit_pool);
        self.tx.add(key, &mut session);
        self.sessions.insert(key, session);
    }

    /// Gives a session of an earlier server to its application. The application has checks of its
    /// own for what happened before: it marks every queue pair with packets to send, and looks into
    /// every receive queue.
    fn claim_session(&mut self, claim: Claim) {
        let key = self.sessions.key(claim.session);
        let session = key.and_then(|key| Some((key, self.sessions.serve(key)?)));
        let Some((key, session)) = session.filter(|(_, session)| !session.closing) else {
            // Its memory broke the protocol meanwhile.
            if let Some(doorbell) = claim.doorbell.into_socket() {
                self.commands.tell(EngineReport::Closed { session: claim.session, doorbell });
            }
            return;
        };
        session.oob.account = claim.account.unwrap_or(session.oob.account);
        if let Err(violation) = session.claim(claim.doorbell, claim.wake) {
            self.sessions.condemn(key, violation);
        }
        self.sessions.position.serve(0);
    }

    fn add_endpoint(
        &mut self,
        key: u32,
        number: u32,
        endpoint: Box<Endpoint>,
        listening: Option<Listening>,
        group: bool,
    ) {
        // The control thread sends commands for a session that ends with a violation until it
        // learns of the end. A rule entered now would outlive the session and lead to the next
        // session with its key.
        let Some(session) = self.sessions.get_mut(key).filter(|one| !one.closing) else { return };
        let destination = Destination { session: key, endpoint: number };
        match listening {
            // The answers that it receives come from the control thread.
            None if endpoint.requests_left.is_some() => {}
            None => {
                self.flows.insert(&endpoint.rule, group, destination);
            }
            Some(Listening::Promiscuous) => self.flows.add_promiscuous(destination),
            Some(Listening::Capture) => self.flows.add_capture(destination),
        }
        // The counters of a reused number start at zero.
        if !endpoint.is_resumed {
            let first = number as usize * ENDPOINT_COUNTERS;
            for word in first..first + ENDPOINT_COUNTERS {
                session.counters.store(word, 0);
            }
            if let Some(queue) = session.oob.queue(number) {
                queue.reset();
            }
            session.apertures.reset(number);
        }
        self.oob.insert(&endpoint.oob, destination);
        self.remote.add_addresses(&endpoint.reachable);
        session.put_in(number, endpoint);
    }

    fn remove_endpoint(&mut self, key: u32, number: u32) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let destination = Destination { session: key, endpoint: number };
        let Some(endpoint) = session.take_out(number) else {
            // The session ends. The control thread gives the port away when this command is
            // executed.
            if let Some(endpoint) = self.closing.take_out(key, number) {
                self.forget(&endpoint, destination, PeerState::Gone);
            }
            return;
        };
        self.forget(&endpoint, destination, PeerState::Closed);
        let Some(session) = self.sessions.get_mut(key) else { return };
        let forgotten = self.tx.forget_shape(key, session, number, endpoint.queue_pair);
        if let Err(violation) = forgotten {
            self.sessions.condemn(key, violation);
        }
    }

    /// Delivers an answer to an endpoint that asks for link addresses.
    fn answer_neighbour(&mut self, key: u32, number: u32, packet: Option<&[u8]>, answered: u32) {
        let Some(session) = self.sessions.get_mut(key).filter(|one| !one.closing) else { return };
        let Some(left) = session.requests_left(number) else { return };
        *left = (*left + answered).min(MAX_REQUESTS);
        let Some(packet) = packet else { return };
        let destination = Destination { session: key, endpoint: number };
        let mut delivery = Delivery::new(
            &mut self.sessions,
            &mut self.notifier,
            &mut self.software,
            self.receive_budget,
            self.iteration,
        );
        let source = Source { prefix: packet, memory: self.port.memory(), pieces: &[] };
        delivery.deliver(destination, &Packet { source, beginning: packet, meta: Meta::FULL }, 0);
    }

    /// Removes an endpoint that the policy does not grant any more, and tells the application.
    fn revoke_endpoint(&mut self, key: u32, number: u32) {
        let endpoint = |session: &Session| {
            session.endpoints.get(number as usize)?.as_ref().map(|endpoint| endpoint.queue_pair)
        };
        let Some(queue_pair) = self.sessions.get(key).and_then(endpoint) else { return };
        self.remove_endpoint(key, number);
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.tell_revoked(number);
        self.notifier.touch(session, key, queue_pair);
    }

    /// Ends a session: after its last packets, or `at_once`, even if the engine drains it already.
    fn remove_session(&mut self, number: u32, reason: u32, at_once: bool) {
        let Some(key) = self.sessions.key(number) else { return };
        if at_once || !self.begin_draining(key) {
            self.begin_closing(key, reason);
        }
    }

    /// Begins to drain a session whose application has ended. Returns `false` if the session must close at once.
    fn begin_draining(&mut self, key: u32) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let may = session.is_claimed() && session.violation.is_none() && !session.closing;
        if !may || !self.tx.is_link_up() {
            return false;
        }
        self.draining.push(Draining::new(key, session.number, clock_ns()));
        true
    }

    /// Looks for the last packets of draining sessions, and begins to close the sessions without any. `has_worked`:
    /// `true` if the poll iteration did some work. Returns the amount of work done.
    pub(super) fn go_on_draining(&mut self, has_worked: bool) -> usize {
        let (now, waits) = (clock_ns(), self.tx.waits_for_device());
        self.draining.begin(has_worked, now);
        let (mut work, mut left) = (0, CLOSED_PER_ITERATION);
        while left > 0
            && let Some(draining) = self.draining.current()
        {
            left -= 1;
            let (key, number) = (draining.key, draining.number);
            let session = self.sessions.get_mut(key).filter(|one| one.number == number);
            // The engine has closed, or is about to close, a session that broke the protocol.
            let Some(session) = session.filter(|one| !one.closing && one.violation.is_none())
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
    fn begin_closing(&mut self, key: u32, reason: u32) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.closing {
            return;
        }
        let (number, violation) = (session.number, session.violation);
        // An application that learns of the violation also finds it counted.
        self.counters.add(Count::Violations, u64::from(violation.is_some()));
        let doorbell = session.close(violation.map_or(reason, |violation| violation as u32));
        let endpoints = std::mem::take(&mut session.endpoints);
        let queue_pairs = session.shape.queue_pairs;
        self.closing.push(key, queue_pairs, endpoints, std::mem::take(&mut session.shapes));
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
    pub(super) fn go_on_closing(&mut self) -> usize {
        while let Some(key) = self.tx.take_landed() {
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
                        session.emptied = true;
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
        let set = &mut session.queue_pairs[number as usize];
        let left = set.transmit.observe().unwrap_or(0);
        self.counters.add(Count::TxEnded, left.into());
        self.tx.remove_unit(set.unit);
    }

    /// Stops delivery to an endpoint. `state`: what the peer of its out-of-band messages is told.
    /// Returns the number of requests for a connection that it had.
    fn forget(&mut self, endpoint: &Endpoint, destination: Destination, state: PeerState) -> usize {
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

    /// Returns the parts of the engine that changes of connections need.
    pub(super) fn oob_parts(&mut self) -> Parts<'_> {
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let (apertures, remote) = (&mut self.apertures, &mut self.remote);
        Parts { sessions, notifier, apertures, remote }
    }

    /// Removes a session of which nothing is left, and hands it back.
    fn remove_ended(&mut self, key: u32) {
        let Some(mut session) = self.sessions.take_ended(key) else { return };
        debug_assert!(!self.notifier.knows(key), "another session may get the key now");
        if let Some(wake) = &session.wake {
            self.wait.forget(wake);
        }
        if let Some(own) = session.own.place() {
            if let Some(fd) = self.port.own_sleep_fd(own.number) {
                self.wait.forget_own(fd);
            }
            let queue = self.port.remove_own(own.number);
            session.own = queue.map_or(Own::None, |queue| Own::Queue(Box::new(queue)));
            self.own_rx.forget(own.number);
        }
        self.port.remove_space(session.transmit_space);
        self.memories.remove(key);
        self.commands.tell(EngineReport::Removed(session));
    }
}

#[cfg(test)]
mod tests;
