//! Requests for link addresses from sessions that share the host's addresses.
//!
//! Such a session has one endpoint for its ARP requests and neighbour solicitations. The engine
//! passes what they ask for to the control thread, and delivers its answers.

use std::net::IpAddr;

use towpath_packet::headers::{Headers, Network};
use towpath_packet::transport::{NEIGHBOUR_SOLICITATION, Transport};

/// The requests of an endpoint that may wait for their answers.
pub const MAX_REQUESTS: u32 = 64;

/// The requests that the engine passes to the control thread per poll iteration. It drops more.
pub(crate) const REQUESTS_PER_ITERATION: usize = 64;

/// A request for a link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NeighbourRequest {
    /// The session's number.
    pub session: u32,
    /// The endpoint's number in the session.
    pub endpoint: u32,
    /// The destination whose link address the session asks for.
    pub target: IpAddr,
}

/// Returns the address that a packet asks for, if it is an ARP request or a neighbour solicitation.
pub(crate) fn target(headers: &Headers) -> Option<IpAddr> {
    match &headers.network {
        Network::Arp(arp) if arp.operation == 1 => Some(IpAddr::V4(arp.target_ip.into())),
        Network::Ipv6(ip) => match ip.transport {
            Transport::Neighbour { kind: NEIGHBOUR_SOLICITATION, target } => {
                Some(IpAddr::V6(target.into()))
            }
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use towpath_packet::build::Flow;

    use super::*;

    fn of(frame: &[u8]) -> Option<IpAddr> {
        target(&Headers::parse(frame, frame.len()).unwrap())
    }

    #[test]
    fn only_requests_ask_for_an_address() {
        for flow in [Flow::v4(), Flow::v6()] {
            assert_eq!(of(&flow.who_has()), Some(flow.destination));
            assert_eq!(of(&flow.i_have()), None);
            assert_eq!(of(&flow.udp(b"x")), None);
        }
    }
}
