//! The start of a successor: it restores the connections, and records the last message of its
//! predecessor.

use towpath_protocol::oob::{PeerState, Refused};

use super::connection::{Connection, EndpointName};
use super::parts::OobParts;
use super::queue::OobQueue;
use crate::demux::Destination;

impl OobParts<'_> {
    /// Restores the connections of all sessions, and records the message that the earlier server had
    /// published last as handled. The engine calls this once, before it serves a session.
    pub(crate) fn restore(&mut self) {
        for key in 0..self.sessions.keys() as u32 {
            self.record_last(key);
        }
        for key in 0..self.sessions.keys() as u32 {
            let Some(session) = self.sessions.get_mut(key) else { continue };
            let own = session.number();
            for endpoint in 0..session.extras.oob.len() {
                self.restore_connection(Destination { session: key, endpoint }, own);
            }
        }
    }

    /// Records a session's last message as handled, if it is in the queue that it was for. Prepares for
    /// the messages that come again.
    fn record_last(&mut self, key: u32) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let (number, capacity) = (session.number(), session.shape().queues.transmit());
        if let Some(intent) = session.extras.oob.intent()
            && !session.extras.oob.is_recorded(intent.queue_pair, intent.slot, capacity)
            && let Some((at, queue)) = self.any_queue(intent.to)
            && queue.producer.next_index() == intent.index.wrapping_add(1)
        {
            let waits =
                matches!(queue.connection, Connection::Requested(to) if to.session == number);
            if intent.rejects && waits {
                self.end(at, PeerState::Refused(Refused::Rejected));
            }
            if let Some(session) = self.sessions.get_mut(key) {
                session.extras.oob.handled(intent.queue_pair, intent.slot);
            }
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        // Another server must not take a later message at this index for this one.
        session.extras.oob.clear_intent();
        for (queue_pair, queue) in (0..).zip(session.transmit.queues()) {
            session.extras.oob.expect_repeats(queue_pair, queue.consumer.next_index(), capacity);
        }
    }

    /// Returns an endpoint's queue, whether or not the endpoint is open.
    fn any_queue(&mut self, name: EndpointName) -> Option<(Destination, &mut OobQueue)> {
        let session = self.sessions.key(name.session)?;
        let queue = self.sessions.get_mut(session)?.extras.oob.queue(name.endpoint)?;
        Some((Destination { session, endpoint: name.endpoint }, queue))
    }

    fn restore_connection(&mut self, at: Destination, session: u32) {
        let own = EndpointName { session, endpoint: at.endpoint };
        let Some(queue) = self.open_queue(at) else { return };
        let connection = queue.connection;
        let (Connection::Requested(peer) | Connection::Connected(peer)) = connection else {
            // The server was killed while it closed or opened the endpoint.
            if [PeerState::Requested, PeerState::Connected].contains(&queue.state()) {
                queue.set_state(PeerState::None);
            }
            return;
        };
        queue.may_repeat = true;
        if self.is_restored(connection) {
            return;
        }
        let Some((_, theirs)) = self.peer_queue(peer) else {
            let lives = self.sessions.key(peer.session).is_some();
            return self.end(at, if lives { PeerState::Closed } else { PeerState::Gone });
        };
        let state = match (connection, theirs.connection) {
            (Connection::Requested(_), _) => {
                theirs.requests.push(own);
                PeerState::Requested
            }
            // The answer that was about to connect both comes again.
            (_, Connection::Requested(asked)) if asked.session == session => return,
            (_, Connection::Connected(with)) if with == own => PeerState::Connected,
            // The peer had closed the connection.
            _ => return self.end(at, PeerState::Closed),
        };
        let Some(queue) = self.open_queue(at) else { return };
        if queue.state() != state {
            queue.set_state(state);
        }
    }
}
