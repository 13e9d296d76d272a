//! Packets from one session to another of the same server: UDP over IPv4, with headers that are
//! made once.

use anyhow::Context;
use towpath_client::Session;
use towpath_packet::build::Flow;

/// Ethernet, IPv4 and UDP.
pub(crate) const HEADER_BYTES: usize = 42;
/// The offset of the UDP checksum.
const CHECKSUM: std::ops::Range<usize> = 40..42;

/// Returns the flow from one session to another, with the addresses that the server gave them.
pub(crate) fn between(from: &Session, to: &Session, ports: (u16, u16)) -> anyhow::Result<Flow> {
    let address = |session: &Session| {
        session.info().ipv4.map(|(ip, _)| ip).context("a session without an IPv4 address")
    };
    Ok(Flow::v4()
        .macs(from.info().mac, to.info().mac)
        .addresses(address(from)?, address(to)?)
        .ports(ports.0, ports.1))
}

/// Makes headers for a payload of this size. They have no UDP checksum (RFC 768), because the
/// payload changes from packet to packet.
pub(crate) fn headers(flow: &Flow, payload_bytes: usize) -> anyhow::Result<[u8; HEADER_BYTES]> {
    let mut frame = flow.udp(&vec![0; payload_bytes]);
    frame[CHECKSUM].fill(0);
    Ok(*frame.first_chunk().context("a frame without headers")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_match_the_payload_and_no_checksum_is_set() {
        let headers = headers(&Flow::v4().ports(1, 2), 100).unwrap();
        assert_eq!(headers[CHECKSUM], [0, 0]);
        assert_eq!(u16::from_be_bytes([headers[16], headers[17]]), 128, "IPv4");
        assert_eq!(u16::from_be_bytes([headers[38], headers[39]]), 108, "UDP");
    }
}
