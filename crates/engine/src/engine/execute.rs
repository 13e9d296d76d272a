//! The execution of commands.

use towpath_device::{HardwareQueue, Meta};
use towpath_protocol::oob::PeerState;
use towpath_protocol::settings::{Scope, Setting};

use super::Engine;
use crate::commands::{Claim, Command, EngineReport, Listening};
use crate::delivery::Delivery;
use crate::demux::{Destination, FlowCache};
use crate::forbidden::Forbidden;
use crate::neighbours::MAX_REQUESTS;
use crate::reach::Reach;
use crate::session::Session;
use crate::session::endpoints::Endpoint;
use crate::source::{Packet, Source};

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
        work + self.tx.recheck_queue_pairs(&mut self.sessions)
    }

    /// Returns `true` if commands, or work that follows from them, continue in the next poll
    /// iteration. The engine must then not wait for a notification or a tick: it may have consumed
    /// the notification of the remaining commands already.
    pub(super) fn has_commands_left(&self) -> bool {
        self.commands.has_left()
            || !self.closing.is_empty()
            || self.draining.has_left()
            || self.tx.has_to_recheck()
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
                self.with_key(session, |engine, key| {
                    engine.add_endpoint(key, number, endpoint, listening, group);
                });
            }
            Command::TakeOverEndpoint { from, session, number, endpoint, group } => {
                self.with_key(from.0, |engine, key| engine.revoke_endpoint(key, from.1));
                self.with_key(session, |engine, key| {
                    engine.add_endpoint(key, number, endpoint, None, group);
                });
            }
            Command::RemoveEndpoint { session, number } => {
                self.with_key(session, |engine, key| engine.remove_endpoint(key, number));
            }
            Command::RevokeEndpoint { session, number } => {
                self.with_key(session, |engine, key| engine.revoke_endpoint(key, number));
            }
            Command::TellRevoked { session, number } => {
                if let Some(session) = self.session_mut(session) {
                    session.tell_revoked(number);
                }
            }
            Command::AnswerNeighbour { session, endpoint, packet, answered } => {
                self.with_key(session, |engine, key| {
                    engine.answer_neighbour(key, endpoint, packet.as_deref(), answered);
                });
            }
            Command::SetTerms { session, forbidden, reach } => {
                self.with_key(session, |engine, key| engine.set_terms(key, forbidden, reach));
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

    /// Calls `f` with the key of the session with a number, if there is one.
    fn with_key(&mut self, number: u32, f: impl FnOnce(&mut Engine, u32)) {
        if let Some(key) = self.sessions.key(number) {
            f(self, key);
        }
    }

    /// Returns the session with a number.
    fn session_mut(&mut self, number: u32) -> Option<&mut Session> {
        self.sessions.key(number).and_then(|key| self.sessions.get_mut(key))
    }

    /// Applies the terms of a session. Ends the connections that they do not allow any more.
    fn set_terms(&mut self, key: u32, forbidden: Option<u32>, reach: Reach) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.extras.forbidden = forbidden.map(Forbidden::new);
        if std::mem::replace(&mut session.extras.oob.reach, reach) != reach {
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
            self.notifier.make_due(key);
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
        if let Some(own) = session.extras.own.place()
            && let Some(fd) = self.port.own_sleep_fd(own.number)
        {
            self.wait.wakes().watch_own(fd);
        }
        self.memories.insert(key, session.transmit.memory());
        self.tx.add(key, &mut session);
        self.sessions.insert(key, session);
    }

    /// Gives a session of an earlier server to its application. The application has checks of its
    /// own for what happened before: it marks every queue pair with packets to send, and looks into
    /// every receive queue.
    fn claim_session(&mut self, claim: Claim) {
        let key = self.sessions.key(claim.session);
        let session = key.and_then(|key| Some((key, self.sessions.serve(key)?)));
        let Some((key, session)) = session.filter(|(_, session)| !session.is_closing()) else {
            // Its memory broke the protocol meanwhile.
            if let Some(doorbell) = claim.doorbell.into_socket() {
                self.commands.tell(EngineReport::Closed { session: claim.session, doorbell });
            }
            return;
        };
        session.extras.oob.account = claim.account.unwrap_or(session.extras.oob.account);
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
        let Some(session) = self.sessions.get_mut(key).filter(|one| !one.is_closing()) else {
            return;
        };
        let destination = Destination { session: key, endpoint: number };
        match listening {
            // The answers that it receives come from the control thread.
            None if endpoint.requests_left.is_some() => {}
            None => {
                self.flows.insert(&endpoint.rule, group, destination);
            }
            Some(Listening::Promiscuous) => self.flows.add_promiscuous(destination),
            Some(Listening::Capture) => self.flows.add_capture(destination),
            Some(Listening::LinkControl) => {
                self.flows.add_companion(&endpoint.rule, destination);
            }
        }
        // The counters of a reused number start at zero.
        if !endpoint.is_resumed {
            session.receive.endpoints.reset_counters(number);
            if let Some(queue) = session.extras.oob.queue(number) {
                queue.reset();
            }
            session.extras.apertures.reset(number);
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
        let Some(session) = self.sessions.get_mut(key).filter(|one| !one.is_closing()) else {
            return;
        };
        let Some(left) = session.receive.endpoints.requests_left(number) else { return };
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
            session.receive.endpoints.get(number).map(|endpoint| endpoint.queue_pair)
        };
        let queue_pair = self.sessions.get(key).and_then(endpoint);
        self.remove_endpoint(key, number);
        let Some(queue_pair) = queue_pair else { return };
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.tell_revoked(number);
        self.notifier.touch(&mut session.receive, key, queue_pair);
    }
}

#[cfg(test)]
mod tests;
