//! What applications here ask of connections with other hosts: requests, answers, and ends.

use towpath_packet::roce::cm::{self, CmMessage, Mad, reason};
use towpath_protocol::oob::{Kind, OobAddress, OobMessage, PeerState, Refused};

use super::connection::{Attempt, State};
use super::setup;
use crate::account::Account;
use crate::demux::Destination;
use crate::oob::connection::{Connection, EndpointName};
use crate::oob::{OobParts, Sender};

/// How long a connection that an application closed goes on for what was sent before, in
/// nanoseconds.
const LINGER_NS: u64 = 2_000_000_000;

impl OobParts<'_> {
    /// Handles a message of an endpoint here to an address of another host.
    ///
    /// # Errors
    /// The reason why it is not sent.
    pub(crate) fn send_remote(
        &mut self,
        sender: &Sender,
        kind: Kind,
        to: OobAddress,
        message: &OobMessage,
    ) -> Result<(), Refused> {
        let session = self.sessions.get(sender.from.session).ok_or(Refused::NoEndpoint)?;
        let is_reachable = session.receive.endpoints.is_reachable(sender.from.endpoint);
        let is_here = self.remote.own.contains_key(&to.ip);
        if !self.remote.is_on() || is_here || !setup::is_peer(to.ip) {
            return Err(Refused::NoEndpoint);
        }
        if !is_reachable {
            return Err(Refused::Policy);
        }
        let own = session.receive.endpoints.oob_address(sender.from.endpoint, to.ip);
        let is_of_family = |own: &OobAddress| own.ip.is_ipv4() == to.ip.is_ipv4();
        let own = own.filter(|own| is_of_family(own) && self.remote.own.contains_key(&own.ip));
        let own = own.ok_or(Refused::NoEndpoint)?;
        let connection = self.open_queue(sender.from).ok_or(Refused::State)?.connection();
        match kind {
            Kind::Request if self.remote.path_mtu().is_none() => Err(Refused::Mtu),
            Kind::Request if connection == Connection::None => {
                let payload = message.payload();
                let account = self.account_of(sender).ok_or(Refused::State)?;
                let qpn = self.remote.request(sender.name(), account, own, to, payload);
                let qpn = qpn.ok_or(Refused::Full)?;
                if let Some(queue) = self.open_queue(sender.from) {
                    queue.set_requested(EndpointName::of_other_host(qpn));
                }
                self.set_state(sender.from, PeerState::Requested);
                Ok(())
            }
            // An earlier server had accepted it.
            Kind::Accept if sender.may_repeat && self.is_restored(connection) => Ok(()),
            Kind::Accept if connection == Connection::None => {
                let qpn = self.asked_by(sender, to).ok_or(Refused::State)?;
                self.accept_remote(sender, qpn, message.payload())
            }
            Kind::Reject => {
                let qpn = self.asked_by(sender, to).ok_or(Refused::State)?;
                let Some(one) = self.remote.take(qpn) else { return Err(Refused::State) };
                let (why, payload) = (reason::CONSUMER_DEFINED, message.payload());
                setup::reject_taken(qpn, &one, why, payload, self);
                Ok(())
            }
            // Those to the endpoint's peer go another way.
            Kind::Plain => Err(Refused::NoEndpoint),
            _ => Err(Refused::State),
        }
    }

    /// Returns the QPN of the connection that a message of an endpoint here is for, if it is
    /// one with another host.
    pub(crate) fn other_host(&mut self, from: Destination, message: &OobMessage) -> Option<u32> {
        let (Kind::Plain, to) = message.check()? else { return None };
        let Connection::Connected(peer) = self.open_queue(from)?.connection() else { return None };
        let qpn = peer.qpn()?;
        let one = self.remote.connections.get(&qpn)?;
        (one.peer == to).then_some(qpn)
    }

    fn account_of(&self, sender: &Sender) -> Option<Account> {
        Some(self.sessions.get(sender.from.session)?.extras.oob.account)
    }

    /// Returns the request of another host's endpoint that waits for an answer of a session.
    fn asked_by(&self, sender: &Sender, from: OobAddress) -> Option<u32> {
        let all = self.remote.waiting_requests(|listener, theirs| {
            listener.session == sender.session && theirs == from
        });
        all.first().copied()
    }

    /// Accepts the request of another host's endpoint: both sides are connected.
    fn accept_remote(&mut self, sender: &Sender, qpn: u32, payload: &[u8]) -> Result<(), Refused> {
        if self.apertures.is_ending([sender.name(), EndpointName::of_other_host(qpn)]) {
            return Err(Refused::State);
        }
        let account = self.account_of(sender).ok_or(Refused::State)?;
        if !self.remote.has_account_room(account) {
            return Err(Refused::Full);
        }
        let Some(mut one) = self.remote.take(qpn) else { return Err(Refused::State) };
        let State::Asked { request, .. } = &one.state else { return Err(Refused::State) };
        let request = request.clone();
        (one.owner, one.account) = (Some(sender.name()), Some(account));
        one.expected_psn = self.remote.random() & 0xff_ffff;
        let reads = request.responder_resources;
        one.open(qpn, request.starting_psn, Some(request.path_mtu), reads, self.remote);
        let mut private = [0; 196];
        private[..payload.len()].copy_from_slice(payload);
        let reply = cm::Reply {
            local_id: one.local_id,
            remote_id: one.remote_id,
            local_qpn: qpn,
            starting_psn: one.expected_psn,
            responder_resources: request.initiator_depth.min(setup::READS),
            initiator_depth: request.responder_resources.min(setup::READS),
            target_ack_delay: 15,
            rnr_retry_count: 7,
            local_guid: setup::guid(one.path.source_mac),
            private,
        };
        let message = CmMessage::Reply(Box::new(reply));
        let mad = Mad { transaction: one.transaction, message };
        one.state = State::Answered(Attempt::new(mad, self.remote.now));
        self.remote.put(qpn, one);
        self.remote.make_ready(qpn);
        self.set_connected(sender.from, EndpointName::of_other_host(qpn));
        self.set_state(sender.from, PeerState::Connected);
        Ok(())
    }

    /// Ends a connection with another host from this side. What was sent before goes out.
    pub(crate) fn close_remote(&mut self, qpn: u32) {
        let now = self.remote.now;
        let Some(mut one) = self.remote.take(qpn) else { return };
        match one.state {
            // The answer goes out, and what was sent before.
            State::Open | State::Answered(_) => one.leaves_at = Some(now + LINGER_NS),
            State::Asking(_) | State::Asked { .. } => {
                self.remote.take_back(&one);
                return self.remote.drop_taken(qpn, &one);
            }
            State::Left(_) => {}
        }
        self.remote.put(qpn, one);
        self.remote.make_ready(qpn);
    }
}

impl OobParts<'_> {
    /// Rejects the requests of other hosts that wait for an answer of an endpoint, which is removed.
    pub(crate) fn reject_waiting(&mut self, listener: EndpointName) {
        for qpn in self.remote.waiting_requests(|other, _| other == listener) {
            if let Some(one) = self.remote.take(qpn) {
                setup::reject_taken(qpn, &one, reason::INVALID_SERVICE_ID, &[], self);
            }
        }
    }
}
