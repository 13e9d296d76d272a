//! ARP (RFC 826) over Ethernet and IPv4.

use std::net::Ipv4Addr;

use crate::ethernet;

/// Length of a frame with an ARP packet, in bytes.
pub(crate) const FRAME_BYTES: usize = ethernet::HEADER_BYTES + 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    /// `true` for a request, `false` for a reply.
    pub(crate) request: bool,
    pub(crate) sender: ([u8; 6], Ipv4Addr),
    pub(crate) target: ([u8; 6], Ipv4Addr),
}

impl Arp {
    /// Parses the bytes after the Ethernet header.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Arp> {
        let [0, 1, 8, 0, 6, 4, 0, operation @ (1 | 2), rest @ ..] = bytes else { return None };
        let side = |at: usize| {
            let bytes = rest.get(at..at + 10)?;
            let mac = [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]];
            Some((mac, Ipv4Addr::new(bytes[6], bytes[7], bytes[8], bytes[9])))
        };
        Some(Arp { request: *operation == 1, sender: side(0)?, target: side(10)? })
    }

    /// Appends a whole frame to `frame`.
    pub(crate) fn write(&self, frame: &mut Vec<u8>, dst: [u8; 6]) {
        frame.resize(ethernet::HEADER_BYTES, 0);
        ethernet::write(frame, dst, self.sender.0, ethernet::ARP);
        frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, if self.request { 1 } else { 2 }]);
        for (mac, ip) in [self.sender, self.target] {
            frame.extend_from_slice(&mac);
            frame.extend_from_slice(&ip.octets());
        }
        debug_assert_eq!(frame.len(), FRAME_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_packets_read_back() {
        let arp = Arp {
            request: true,
            sender: ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1)),
            target: ([0; 6], Ipv4Addr::new(10, 0, 0, 2)),
        };
        let mut frame = Vec::new();
        arp.write(&mut frame, ethernet::BROADCAST);
        assert_eq!(Arp::parse(&frame[14..]), Some(arp));
        assert_eq!(Arp::parse(&frame[14..41]), None);
    }
}
