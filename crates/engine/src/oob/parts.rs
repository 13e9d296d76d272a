//! The parts of the engine that a message changes: the queues of endpoints, their connections, and the states
//! of their peers.

use towpath_protocol::apertures::ApertureState;
use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::oob::{OobMessage, PeerState};

use super::connection::{Connection, EndpointName};
use super::queue::{ANSWER_SLOTS, NoRoom, OobQueue};
use crate::apertures::ApertureTable;
use crate::demux::Destination;
use crate::notifier::Notifier;
use crate::remote::table::RemoteTable;
use crate::sessions::SessionTable;

/// A queue has no room for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The parts of the engine that an out-of-band message, a request, or a packet of another host changes, borrowed for it.
pub(crate) struct OobParts<'a> {
    pub(crate) sessions: &'a mut SessionTable,
    pub(crate) notifier: &'a mut Notifier,
    /// What ends with a connection.
    pub(crate) apertures: &'a mut ApertureTable,
    /// Connections with other hosts.
    pub(crate) remote: &'a mut RemoteTable,
}

impl OobParts<'_> {
    /// Returns an endpoint's queue, if the endpoint is open and takes messages.
    pub(crate) fn open_queue(&mut self, at: Destination) -> Option<&mut OobQueue> {
        let session = self.sessions.get_mut(at.session)?;
        if session.violation().is_some() || !session.receive.endpoints.takes_oob(at.endpoint) {
            return None;
        }
        session.extras.oob.queue(at.endpoint)
    }

    /// Returns where an endpoint is, and its queue, if the endpoint is open.
    pub(super) fn peer_queue(
        &mut self,
        peer: EndpointName,
    ) -> Option<(Destination, &mut OobQueue)> {
        let session = self.sessions.key(peer.session)?;
        let at = Destination { session, endpoint: peer.endpoint };
        Some((at, self.open_queue(at)?))
    }

    /// Changes what an endpoint knows of its peer, and tells its application.
    pub(crate) fn set_state(&mut self, at: Destination, state: PeerState) {
        let Some(session) = self.sessions.get_mut(at.session) else { return };
        if let Some(queue) = session.extras.oob.queue(at.endpoint) {
            queue.set_state(state);
            self.notifier.touch_oob(session, at.session, at.endpoint);
        }
    }

    /// Begins with a request of an endpoint. Returns its peer, if the endpoint is open and has one.
    pub(crate) fn begin_request(&mut self, at: Destination) -> Option<EndpointName> {
        let queue = self.open_queue(at)?;
        // No later message is the one that a predecessor was handling.
        queue.may_repeat_once();
        match queue.connection {
            Connection::Connected(peer) => Some(peer),
            _ => None,
        }
    }

    /// Puts a message of an endpoint of another host into a queue. `sender`: the number that stands
    /// for the connection where a session's is expected; `record`: records the message's index
    /// before it is there.
    pub(crate) fn push_remote(
        &mut self,
        to: Destination,
        sender: u32,
        message: &OobMessage,
        record: impl FnOnce(&mut RemoteTable, u32),
    ) -> Result<(), Full> {
        self.push_with_room(to, |queue| queue.check_room(sender, ANSWER_SLOTS), message, record)
    }

    /// Puts the answer of an endpoint of another host into a queue, which keeps a slot for it.
    pub(crate) fn push_answer(
        &mut self,
        to: Destination,
        message: &OobMessage,
    ) -> Result<(), Full> {
        self.push_with_room(to, |queue| queue.check_room(message.session, 0), message, |_, _| {})
    }

    fn push_with_room(
        &mut self,
        to: Destination,
        check: impl FnOnce(&mut OobQueue) -> Result<(), NoRoom>,
        message: &OobMessage,
        record: impl FnOnce(&mut RemoteTable, u32),
    ) -> Result<(), Full> {
        let queue = self.open_queue(to).ok_or(Full)?;
        let index = queue.producer.next_index();
        let violation = match check(queue) {
            Ok(()) => None,
            Err(NoRoom::Full | NoRoom::Share) => return Err(Full),
            Err(NoRoom::Violates(violation)) => Some(violation),
        };
        if let Some(violation) = violation {
            self.sessions.condemn(to.session, violation);
            return Err(Full);
        }
        record(self.remote, index);
        if let Some(queue) = self.open_queue(to) {
            queue.push(message);
        }
        if let Some(session) = self.sessions.get_mut(to.session) {
            self.notifier.touch_oob(session, to.session, to.endpoint);
        }
        Ok(())
    }

    /// Connects an endpoint with one of another host.
    pub(crate) fn set_connected(&mut self, at: Destination, peer: EndpointName) {
        if let Some(queue) = self.open_queue(at) {
            queue.set_connection(Connection::Connected(peer));
        }
        if let Some(session) = self.sessions.get_mut(at.session) {
            session.extras.apertures.connect(at.endpoint);
        }
    }

    /// Tells an endpoint that it has no connection any more. The state comes first: if the server
    /// is killed in between, its successor finds the connection, and ends it again.
    pub(crate) fn end(&mut self, at: Destination, state: PeerState) {
        if let Some(session) = self.sessions.get(at.session) {
            let name = EndpointName { session: session.number(), endpoint: at.endpoint };
            let ends =
                if state == PeerState::Gone { ApertureState::Gone } else { ApertureState::Closed };
            self.apertures.end_connection(name, ends, self.sessions);
        }
        self.set_state(at, state);
        self.clear_connection(at);
    }

    pub(super) fn clear_connection(&mut self, at: Destination) {
        let queue =
            self.sessions.get_mut(at.session).and_then(|one| one.extras.oob.queue(at.endpoint));
        if let Some(queue) = queue {
            queue.set_connection(Connection::None);
        }
    }

    pub(super) fn forget_request(&mut self, listener: EndpointName, requester: EndpointName) {
        if let Some((_, queue)) = self.peer_queue(listener) {
            queue.requests.retain(|one| *one != requester);
        }
    }

    pub(crate) fn count(&mut self, at: Destination, count: Count) {
        let queue =
            self.sessions.get_mut(at.session).and_then(|one| one.extras.oob.queue(at.endpoint));
        if let Some(queue) = queue {
            queue.count(count);
        }
    }
}
