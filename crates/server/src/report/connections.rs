//! The connections of endpoints, as the ledgers have them.

use std::cell::OnceCell;
use std::collections::HashMap;

use serde::Serialize;
use towpath_protocol::oob::OobAddress;
use towpath_queue::PeerWords;

use crate::engine::oob::connection::{Connection, EndpointName};
use crate::engine::remote;

/// An endpoint's connection for out-of-band messages and requests.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EndpointConnection {
    /// `requested` by the endpoint, without an answer yet, or `connected`.
    state: &'static str,
    /// The peer: an endpoint of this server, or the address of one of another host.
    peer: String,
}

/// The peers on other hosts, which are read once they are needed.
#[derive(Debug)]
pub(crate) struct OtherHosts {
    ledger: Option<PeerWords>,
    peers: OnceCell<HashMap<u32, OobAddress>>,
}

impl OtherHosts {
    /// `ledger`: that of connections with other hosts; `None` if there are none.
    pub(crate) fn new(ledger: Option<PeerWords>) -> OtherHosts {
        OtherHosts { ledger, peers: OnceCell::new() }
    }

    fn address(&self, qpn: u32) -> Option<OobAddress> {
        let read = || self.ledger.as_ref().map(remote::peers).unwrap_or_default();
        self.peers.get_or_init(read).get(&qpn).copied()
    }
}

impl EndpointConnection {
    /// Returns the connection that a word of a session's ledger records.
    pub(super) fn read(word: u64, hosts: &OtherHosts) -> Option<EndpointConnection> {
        let (state, peer) = match Connection::from_word(word) {
            Connection::None => return None,
            Connection::Requested(peer) => ("requested", peer),
            Connection::Connected(peer) => ("connected", peer),
        };
        let peer = match peer.qpn() {
            None => {
                let EndpointName { session, endpoint } = peer;
                format!("session {session} endpoint {endpoint}")
            }
            // A half-open connection has no place in the ledger.
            Some(qpn) => hosts
                .address(qpn)
                .map_or_else(|| "another host".to_owned(), |address| address.to_string()),
        };
        Some(EndpointConnection { state, peer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_both_kinds_are_named() {
        let read = |connection: Connection| {
            EndpointConnection::read(connection.to_word(), &OtherHosts::new(None))
        };
        assert_eq!(read(Connection::None), None);
        let peer = |state, peer: &str| Some(EndpointConnection { state, peer: peer.to_owned() });
        let local = EndpointName { session: 3, endpoint: 70_000 };
        assert_eq!(
            read(Connection::Requested(local)),
            peer("requested", "session 3 endpoint 70000")
        );
        let other = EndpointName::of_other_host(17);
        assert_eq!(read(Connection::Connected(other)), peer("connected", "another host"));
    }
}
