//! The start of a successor: what the messages and connections of an earlier server were like when
//! it was killed.

use towpath_protocol::oob::PeerState;

use super::link::{Link, Peer};
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
                self.restore_link(Destination { session: key, endpoint }, own);
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
        if queue.is_none_or(|queue| queue.producer.next() != intent.index.wrapping_add(1)) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.oob.handled(intent.queue_pair, intent.slot);
        }
    }

    fn restore_link(&mut self, at: Destination, session: u32) {
        let own = Peer { session, endpoint: at.endpoint };
        let Some(queue) = self.open_queue(at) else { return };
        let link = queue.link;
        let (Link::Requested(peer) | Link::Connected(peer)) = link else { return };
        let Some((_, theirs)) = self.peer_queue(peer) else {
            return self.end(at, PeerState::Gone);
        };
        let state = match (link, theirs.link) {
            (Link::Requested(_), _) => {
                theirs.requests.push(own);
                PeerState::Requested
            }
            // The answer that was about to connect both comes again.
            (_, Link::Requested(asked)) if asked.session == session => return,
            (_, Link::Connected(with)) if with == own => PeerState::Connected,
            // The peer had closed the connection.
            _ => return self.end(at, PeerState::Closed),
        };
        let Some(queue) = self.open_queue(at) else { return };
        if queue.producer.state() as u32 != state.number() {
            queue.set_state(state);
        }
    }
}
