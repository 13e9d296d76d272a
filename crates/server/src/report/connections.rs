//! The connections of endpoints, as the ledgers have them.

use std::cell::OnceCell;
use std::collections::HashMap;

use serde::Serialize;
use towpath_engine::oob::connection::{Connection, EndpointName};
use towpath_engine::remote;
use towpath_protocol::oob::OobAddress;
use towpath_queue::PeerWords;

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
    peers: OnceCell<HashMap<u32, (EndpointName, OobAddress)>>,
}

impl OtherHosts {
    /// `ledger`: that of connections with other hosts; `None` if there are none.
    pub(crate) fn new(ledger: Option<PeerWords>) -> OtherHosts {
        OtherHosts { ledger, peers: OnceCell::new() }
    }

    /// Returns the address of an endpoint's peer, by this side's QPN.
    fn address(&self, own: EndpointName, qpn: u32) -> Option<OobAddress> {
        let read = || self.ledger.as_ref().map(remote::peers).unwrap_or_default();
        let (owner, peer) = self.peers.get_or_init(read).get(&qpn)?;
        (*owner == own).then_some(*peer)
    }
}

impl EndpointConnection {
    /// Returns the connection of an endpoint, which a word of its session's ledger records.
    pub(super) fn read(
        own: EndpointName,
        word: u64,
        hosts: &OtherHosts,
    ) -> Option<EndpointConnection> {
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
            // A connection has a place in the ledger once it is accepted, and until it ends.
            Some(qpn) => hosts
                .address(own, qpn)
                .map_or_else(|| "another host".to_owned(), |address| address.to_string()),
        };
        Some(EndpointConnection { state, peer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: EndpointName = EndpointName { session: 7, endpoint: 0 };

    fn read(connection: Connection, hosts: &OtherHosts) -> Option<(&'static str, String)> {
        let read = EndpointConnection::read(OWN, connection.to_word(), hosts)?;
        Some((read.state, read.peer))
    }

    #[test]
    fn peers_on_this_host_are_named() {
        let hosts = OtherHosts::new(None);
        assert_eq!(read(Connection::None, &hosts), None);
        let peer = EndpointName { session: 3, endpoint: 70_000 };
        let named = |state| Some((state, "session 3 endpoint 70000".to_owned()));
        assert_eq!(read(Connection::Requested(peer), &hosts), named("requested"));
        assert_eq!(read(Connection::Connected(peer), &hosts), named("connected"));
    }

    #[test]
    fn peers_on_other_hosts_are_those_of_the_endpoint() {
        let ip = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into();
        let peer = OobAddress { ip, protocol: 17, port: 4000 };
        let other = EndpointName { session: 8, endpoint: 0 };
        let hosts = OtherHosts::new(None);
        hosts.peers.set(HashMap::from([(17, (OWN, peer)), (18, (other, peer))])).unwrap();
        let shown = |qpn| {
            let peer = EndpointName::of_other_host(qpn);
            read(Connection::Connected(peer), &hosts).map(|(_, peer)| peer)
        };
        assert_eq!(shown(17).unwrap(), "udp:[2001:db8::1]:4000");
        assert_eq!([shown(18).unwrap(), shown(19).unwrap()], ["another host", "another host"]);
    }
}
