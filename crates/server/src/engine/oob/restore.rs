//! The start of a successor: it restores the connections, and records the last message of its
//! predecessor.

use towpath_protocol::oob::PeerState;

use super::connection::{Connection, EndpointName};
use super::table::Parts;
use crate::engine::demux::Destination;

impl Parts<'_> {
    /// Restores the connections of all sessions, and records the message that the earlier server had
    /// published last as handled. The engine calls this once, before it serves a session.
    pub(crate) fn restore(&mut self) {
        for key in 0..self.sessions.keys() as u32 {
            self.note_handled(key);
        }
        for key in 0..self.sessions.keys() as u32 {
            let Some(session) = self.sessions.get_mut(key) else { continue };
            let own = session.number;
            for endpoint in 0..session.oob.queues.len() as u32 {
                self.restore_connection(Destination { session: key, endpoint }, own);
            }
        }
    }

    /// Records a session's last message as handled, if it is in the queue that it was for.
    fn note_handled(&mut self, key: u32) {
        let Some(intent) = self.sessions.get(key).and_then(|session| session.oob.intent()) else {
            return;
        };
        let receiver = self.sessions.key(intent.to.session);
        let receiver = receiver.and_then(|key| self.sessions.get_mut(key));
        let queue = receiver.and_then(|session| session.oob.queue(intent.to.endpoint));
        if queue.is_none_or(|queue| queue.producer.next_index() != intent.index.wrapping_add(1)) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.oob.handled(intent.queue_pair, intent.slot);
        }
    }

    fn restore_connection(&mut self, at: Destination, session: u32) {
        let own = EndpointName { session, endpoint: at.endpoint };
        let Some(queue) = self.open_queue(at) else { return };
        let connection = queue.connection;
        let (Connection::Requested(peer) | Connection::Connected(peer)) = connection else {
            return;
        };
        let Some((_, theirs)) = self.peer_queue(peer) else {
            return self.end(at, PeerState::Gone);
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
        if queue.producer.state() as u32 != state.number() {
            queue.set_state(state);
        }
    }
}
