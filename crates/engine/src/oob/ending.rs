//! The ends of connections, of both kinds: those between endpoints of this host, and those with other hosts.

use towpath_protocol::oob::{PeerState, Refused};

use super::OobParts;
use super::connection::{Connection, EndpointName};
use crate::demux::Destination;

impl OobParts<'_> {
    /// Forgets an endpoint that is removed: ends its connection, and refuses the requests that it
    /// has, with `NoEndpoint`. `state`: that of its peer from now on. Returns the number of
    /// requests.
    pub(crate) fn forget(&mut self, at: Destination, state: PeerState) -> usize {
        let Some(session) = self.sessions.get_mut(at.session) else { return 0 };
        let own = EndpointName { session: session.number(), endpoint: at.endpoint };
        let Some(queue) = session.extras.oob.queue(at.endpoint) else { return 0 };
        let requests = std::mem::take(&mut queue.requests);
        let is_connected = queue.connection != Connection::None;
        self.reject_waiting(own);
        for one in &requests {
            if let Some((at, queue)) = self.peer_queue(*one)
                && queue.connection == Connection::Requested(own)
            {
                self.end(at, PeerState::Refused(Refused::NoEndpoint));
            }
        }
        if is_connected {
            self.disconnect(at, state, PeerState::Closed);
        }
        self.remote.remove_owner(own);
        requests.len()
    }

    /// `true` if an endpoint is open and has a peer.
    fn is_connected(&mut self, at: Destination) -> bool {
        let queue = self.open_queue(at);
        queue.is_some_and(|queue| matches!(queue.connection, Connection::Connected(_)))
    }

    /// Ends the connection of an endpoint of which a request failed. Both sides learn that it is
    /// closed.
    pub(crate) fn close_failed(&mut self, at: Destination) {
        if self.is_connected(at) {
            self.disconnect(at, PeerState::Closed, PeerState::Closed);
        }
    }

    /// Ends the connection of an endpoint, or takes its request back. `state`: that of its peer
    /// from now on; `own_state`: its own.
    pub(super) fn disconnect(&mut self, at: Destination, state: PeerState, own_state: PeerState) {
        let Some(session) = self.sessions.get_mut(at.session) else { return };
        let own = EndpointName { session: session.number(), endpoint: at.endpoint };
        let Some(queue) = session.extras.oob.queue(at.endpoint) else { return };
        match queue.connection {
            Connection::None => {}
            Connection::Requested(peer) => match peer.qpn() {
                Some(qpn) => self.close_remote(qpn),
                None => self.forget_request(peer, own),
            },
            Connection::Connected(peer) => {
                if let Some(qpn) = peer.qpn() {
                    self.close_remote(qpn);
                } else if let Some((at, queue)) = self.peer_queue(peer)
                    && queue.connection == Connection::Connected(own)
                {
                    self.end(at, state);
                }
            }
        }
        // Last: if the server is killed before this, its successor repeats all of the above.
        self.end(at, own_state);
    }

    /// Ends the connections and requests of a session's endpoints, and with them, that the policy
    /// does not allow any more.
    pub(crate) fn enforce(&mut self, key: u32) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let endpoints = session.extras.oob.len();
        for endpoint in 0..endpoints {
            let at = Destination { session: key, endpoint };
            let Some(queue) = self.open_queue(at) else { continue };
            let own = match queue.connection {
                Connection::None => None,
                Connection::Requested(peer) | Connection::Connected(peer) => Some(peer),
            };
            let mut requests = queue.requests.clone();
            requests.retain(|one| !self.allows(key, *one));
            let refused = PeerState::Refused(Refused::Policy);
            if own.is_some_and(|peer| !self.allows(key, peer)) {
                self.disconnect(at, refused, refused);
            }
            for one in requests {
                if let Some((requester, _)) = self.peer_queue(one) {
                    self.disconnect(requester, refused, refused);
                }
            }
        }
    }

    /// Returns `true` if a session and the one of another endpoint may exchange messages.
    fn allows(&self, key: u32, other: EndpointName) -> bool {
        let other = self.sessions.key(other.session).and_then(|key| self.sessions.get(key));
        let (Some(one), Some(other)) = (self.sessions.get(key), other) else { return true };
        one.extras.oob.reaches(&other.extras.oob)
    }
}
