//! Whole frames for tests, benchmarks and demonstrations, with right checksums.
//!
//! The functions favour readable callers over speed: each frame is a new `Vec`. Addresses are those
//! that documents may use (RFC 5737, RFC 3849), hardware addresses are locally administered.
//!
//! ```
//! use towpath_packet::{Headers, build::Flow};
//! let frame = Flow::v4().ports(4000, 53).udp(b"who is there?");
//! let headers = Headers::parse(&frame, frame.len()).unwrap();
//! assert_eq!(headers.ports(), Some((4000, 53)));
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{Sum, complete};
use crate::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTOCOL_ICMP, PROTOCOL_ICMPV6,
    PROTOCOL_TCP, PROTOCOL_UDP,
};
use crate::mac_addr::MacAddr;
use crate::meta::{Checksum, Meta, Segmentation, SegmentationKind};
use crate::transport::tcp_flags;

/// Source and destination of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The Ethernet source.
    pub source_mac: [u8; 6],
    /// The Ethernet destination.
    pub destination_mac: [u8; 6],
    /// A VLAN tag, with priority and number.
    pub tag: Option<u16>,
    /// The source address.
    pub source: IpAddr,
    /// The destination address, of the same family.
    pub destination: IpAddr,
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
}

/// Fields of a TCP header beyond the flow's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp<'a> {
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgement number.
    pub acknowledgement: u32,
    /// The flags: [`tcp_flags`].
    pub flags: u8,
    /// The window, not scaled.
    pub window: u16,
    /// The options: a multiple of 4 bytes, at most 40.
    pub options: &'a [u8],
}

impl Default for Tcp<'_> {
    fn default() -> Self {
        Tcp {
            sequence: 1000,
            acknowledgement: 2000,
            flags: tcp_flags::ACK,
            window: 0xffff,
            options: &[],
        }
    }
}

impl Flow {
    /// Creates a flow from 192.0.2.1, port 1000, to 192.0.2.2, port 2000; untagged.
    #[must_use]
    pub fn v4() -> Flow {
        Flow {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            tag: None,
            source: Ipv4Addr::new(192, 0, 2, 1).into(),
            destination: Ipv4Addr::new(192, 0, 2, 2).into(),
            source_port: 1000,
            destination_port: 2000,
        }
    }

    /// Creates a flow from 2001:db8::1, port 1000, to 2001:db8::2, port 2000; untagged.
    #[must_use]
    pub fn v6() -> Flow {
        Flow {
            source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
            destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2).into(),
            ..Flow::v4()
        }
    }

    /// Sets the hardware addresses.
    #[must_use]
    pub fn macs(self, source: impl Into<MacAddr>, destination: impl Into<MacAddr>) -> Flow {
        let (source, destination): (MacAddr, MacAddr) = (source.into(), destination.into());
        Flow { source_mac: source.octets(), destination_mac: destination.octets(), ..self }
    }

    /// Sets the addresses, of one family.
    #[must_use]
    pub fn addresses(self, source: impl Into<IpAddr>, destination: impl Into<IpAddr>) -> Flow {
        Flow { source: source.into(), destination: destination.into(), ..self }
    }

    /// Sets the ports.
    #[must_use]
    pub fn ports(self, source_port: u16, destination_port: u16) -> Flow {
        Flow { source_port, destination_port, ..self }
    }

    /// Sets a VLAN tag.
    #[must_use]
    pub fn vlan(self, tag: u16) -> Flow {
        Flow { tag: Some(tag), ..self }
    }

    /// Returns the reverse flow.
    #[must_use]
    pub fn reversed(self) -> Flow {
        Flow {
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            tag: self.tag,
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }

    /// Makes a frame of an Ethernet header, the VLAN tag if there is one, and the payload.
    #[must_use]
    pub fn ethernet(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(18 + payload.len());
        frame.extend_from_slice(&self.destination_mac);
        frame.extend_from_slice(&self.source_mac);
        if let Some(tag) = self.tag {
            frame.extend_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            frame.extend_from_slice(&tag.to_be_bytes());
        }
        frame.extend_from_slice(&ethertype.to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    /// Makes an IP packet with the given payload.
    ///
    /// # Panics
    /// If the addresses are of two families, or the packet is over 65 535 bytes.
    #[must_use]
    pub fn ip(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = u16::try_from(20 + payload.len()).expect("an IPv4 packet's length");
                let mut packet = vec![0x45, 0];
                packet.extend_from_slice(&total.to_be_bytes());
                packet.extend_from_slice(&[0, 1, 0x40, 0, 64, protocol, 0, 0]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
                let mut sum = Sum::default();
                sum.add(&packet);
                packet[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
                packet.extend_from_slice(payload);
                self.ethernet(ETHERTYPE_IPV4, &packet)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let len = u16::try_from(payload.len()).expect("an IPv6 payload's length");
                assert!(len <= 0xffff - 40, "an IPv6 packet's length");
                let mut packet = vec![0x60, 0, 0, 0];
                packet.extend_from_slice(&len.to_be_bytes());
                packet.extend_from_slice(&[protocol, 64]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
                packet.extend_from_slice(payload);
                self.ethernet(ETHERTYPE_IPV6, &packet)
            }
            _ => panic!("addresses of two families"),
        }
    }

    /// Returns the sum of this flow's pseudo-header.
    ///
    /// # Panics
    /// If the addresses are of two families, or `len` is over 65 535 bytes.
    #[must_use]
    pub fn pseudo(&self, protocol: u8, len: usize) -> Sum {
        let len = u16::try_from(len).expect("a transport packet's length");
        match (self.source, self.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => Sum::pseudo4(s.to_bits(), d.to_bits(), protocol, len),
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                Sum::pseudo6(s.to_bits(), d.to_bits(), protocol, len.into())
            }
            _ => panic!("addresses of two families"),
        }
    }

    fn l3_bytes(&self) -> usize {
        let ethernet = if self.tag.is_some() { 18 } else { 14 };
        ethernet + if self.source.is_ipv4() { 20 } else { 40 }
    }

    /// Makes an IP packet whose payload's checksum field, at `offset`, holds a partial checksum, as
    /// from a sender with checksum offload.
    fn partial(&self, protocol: u8, mut payload: Vec<u8>, offset: u16) -> (Vec<u8>, Meta) {
        let sum = self.pseudo(protocol, payload.len()).folded();
        let field = usize::from(offset);
        payload[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        let checksum = Checksum::Partial { start: self.l3_bytes() as u16, offset };
        (self.ip(protocol, &payload), Meta { checksum, segmentation: None })
    }

    fn finished(&self, protocol: u8, payload: Vec<u8>, offset: u16) -> Vec<u8> {
        let (mut frame, _) = self.partial(protocol, payload, offset);
        complete(&mut frame, self.l3_bytes() as u16, offset).expect("the field is in the frame");
        frame
    }

    fn udp_datagram(&self, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(8 + payload.len()).expect("a UDP datagram's length");
        let mut datagram = Vec::with_capacity(len.into());
        for word in [self.source_port, self.destination_port, len, 0] {
            datagram.extend_from_slice(&word.to_be_bytes());
        }
        datagram.extend_from_slice(payload);
        datagram
    }

    /// Makes a UDP datagram.
    ///
    /// # Panics
    /// If it is longer than IP allows.
    #[must_use]
    pub fn udp(&self, payload: &[u8]) -> Vec<u8> {
        self.finished(PROTOCOL_UDP, self.udp_datagram(payload), 6)
    }

    /// Makes a UDP datagram with a partial checksum, which the device completes.
    ///
    /// # Panics
    /// If it is longer than IP allows.
    #[must_use]
    pub fn udp_partial(&self, payload: &[u8]) -> (Vec<u8>, Meta) {
        self.partial(PROTOCOL_UDP, self.udp_datagram(payload), 6)
    }

    fn tcp_segment(&self, tcp: &Tcp<'_>, payload: &[u8]) -> Vec<u8> {
        let options = tcp.options.len();
        assert!(options.is_multiple_of(4) && options <= 40, "TCP options of {options} bytes");
        let mut segment = Vec::with_capacity(20 + options + payload.len());
        segment.extend_from_slice(&self.source_port.to_be_bytes());
        segment.extend_from_slice(&self.destination_port.to_be_bytes());
        segment.extend_from_slice(&tcp.sequence.to_be_bytes());
        segment.extend_from_slice(&tcp.acknowledgement.to_be_bytes());
        segment.extend_from_slice(&[((20 + options) as u8 / 4) << 4, tcp.flags]);
        segment.extend_from_slice(&tcp.window.to_be_bytes());
        segment.extend_from_slice(&[0; 4]);
        segment.extend_from_slice(tcp.options);
        segment.extend_from_slice(payload);
        segment
    }

    /// Makes a TCP segment.
    ///
    /// # Panics
    /// If it is longer than IP allows, or the options have a length that TCP does not allow.
    #[must_use]
    pub fn tcp(&self, tcp: &Tcp<'_>, payload: &[u8]) -> Vec<u8> {
        self.finished(PROTOCOL_TCP, self.tcp_segment(tcp, payload), 16)
    }

    /// Makes a TCP segment with a partial checksum, which the device completes.
    ///
    /// # Panics
    /// As [`Flow::tcp`].
    #[must_use]
    pub fn tcp_partial(&self, tcp: &Tcp<'_>, payload: &[u8]) -> (Vec<u8>, Meta) {
        self.partial(PROTOCOL_TCP, self.tcp_segment(tcp, payload), 16)
    }

    /// Makes a large TCP packet, for segmentation into `segment_bytes` payload bytes each.
    ///
    /// # Panics
    /// As [`Flow::tcp`].
    #[must_use]
    pub fn tcp_large(&self, tcp: &Tcp<'_>, payload: &[u8], segment_bytes: u16) -> (Vec<u8>, Meta) {
        let (frame, mut meta) = self.tcp_partial(tcp, payload);
        let v4 = self.source.is_ipv4();
        meta.segmentation = Some(Segmentation {
            kind: if v4 { SegmentationKind::Tcp4 } else { SegmentationKind::Tcp6 },
            segment_bytes,
            header_bytes: (frame.len() - payload.len()) as u16,
            ecn: tcp.flags & tcp_flags::CWR != 0,
        });
        (frame, meta)
    }

    /// Makes an echo request or reply: ICMP or ICMPv6, depending on the addresses.
    ///
    /// # Panics
    /// If it is longer than IP allows.
    #[must_use]
    pub fn echo(&self, request: bool, id: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
        let v4 = self.source.is_ipv4();
        let kind = match (v4, request) {
            (true, true) => 8,
            (true, false) => 0,
            (false, true) => 128,
            (false, false) => 129,
        };
        let mut message = vec![kind, 0, 0, 0];
        message.extend_from_slice(&id.to_be_bytes());
        message.extend_from_slice(&sequence.to_be_bytes());
        message.extend_from_slice(payload);
        self.icmp(message)
    }

    /// Makes an ICMP or ICMPv6 message, depending on the addresses. Its bytes 2 and 3 are the
    /// checksum field.
    ///
    /// # Panics
    /// If it is shorter than 4 bytes or longer than IP allows.
    #[must_use]
    pub fn icmp(&self, mut message: Vec<u8>) -> Vec<u8> {
        message[2..4].fill(0);
        if self.source.is_ipv6() {
            return self.finished(PROTOCOL_ICMPV6, message, 2);
        }
        let mut sum = Sum::default();
        sum.add(&message);
        message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
        self.ip(PROTOCOL_ICMP, &message)
    }

    /// Makes the request for the hardware address of this flow's destination: ARP, or a neighbour
    /// solicitation.
    ///
    /// # Panics
    /// If the addresses are of two families.
    #[must_use]
    pub fn who_has(&self) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let flow = Flow { destination_mac: [0xff; 6], ..*self };
                flow.arp(1, self.source_mac, source, [0; 6], target)
            }
            (IpAddr::V6(_), IpAddr::V6(target)) => {
                let group = target.to_bits() & 0xff_ffff;
                let [.., m3, m2, m1] = (group as u32).to_be_bytes();
                let to = Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | group);
                let flow = self
                    .macs(self.source_mac, [0x33, 0x33, 0xff, m3, m2, m1])
                    .addresses(self.source, to);
                flow.neighbour(135, 0, target, 1)
            }
            _ => panic!("addresses of two families"),
        }
    }

    /// Makes the answer to [`Flow::who_has`]: this flow's source announces its own address.
    ///
    /// # Panics
    /// If the addresses are of two families.
    #[must_use]
    pub fn i_have(&self) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                self.arp(2, self.source_mac, source, self.destination_mac, target)
            }
            (IpAddr::V6(source), IpAddr::V6(_)) => self.neighbour(136, 0x60, source, 2),
            _ => panic!("addresses of two families"),
        }
    }

    /// Makes an ARP packet with arbitrary fields.
    #[must_use]
    pub fn arp(
        &self,
        operation: u16,
        sender_mac: [u8; 6],
        sender: Ipv4Addr,
        target_mac: [u8; 6],
        target: Ipv4Addr,
    ) -> Vec<u8> {
        let mut packet = vec![0, 1, 8, 0, 6, 4];
        packet.extend_from_slice(&operation.to_be_bytes());
        packet.extend_from_slice(&sender_mac);
        packet.extend_from_slice(&sender.octets());
        packet.extend_from_slice(&target_mac);
        packet.extend_from_slice(&target.octets());
        self.ethernet(ETHERTYPE_ARP, &packet)
    }

    /// Makes a neighbour solicitation (`kind` 135) or advertisement (136) with the source's
    /// hardware address in the option `option`: 1 (source's) or 2 (target's).
    ///
    /// # Panics
    /// If the addresses are not IPv6.
    #[must_use]
    pub fn neighbour(&self, kind: u8, flags: u8, target: Ipv6Addr, option: u8) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
        message.extend_from_slice(&target.octets());
        message.extend_from_slice(&[option, 1]);
        message.extend_from_slice(&self.source_mac);
        let mut frame = self.icmp(message);
        // The checksum does not cover the hop limit.
        let hops = self.l3_bytes() - 40 + 7;
        frame[hops] = 255;
        frame
    }
}
