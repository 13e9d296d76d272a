//! Frames of the peer and of the stack. The code is independent of the stack's own.

use towpath_stack::{Checksum, Meta};

/// The stack's Ethernet address.
pub(crate) const STACK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The peer's Ethernet address.
pub(crate) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The stack's IP address.
pub(crate) const STACK_IP: [u8; 4] = [10, 0, 0, 1];
/// The peer's IP address.
pub(crate) const PEER_IP: [u8; 4] = [10, 0, 0, 2];

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const URG: u8 = 32;
pub(crate) const ECE: u8 = 64;
pub(crate) const CWR: u8 = 128;

/// A TCP option. Sequence numbers are those of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TcpOption {
    Nop,
    Mss(u16),
    SackPermitted,
    WindowScale(u8),
    Timestamps {
        val: u32,
        ecr: u32,
    },
    Sack(Vec<(u32, u32)>),
    /// Bytes as they are.
    Raw(Vec<u8>),
}

/// A TCP segment with its IP header's ECN bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The ECN bits: 0 not ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub(crate) ecn: u8,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<TcpOption>,
    pub(crate) payload: Vec<u8>,
    /// The data offset to write instead of the right one, in words.
    pub(crate) offset: Option<u8>,
    /// `true` to write a wrong checksum.
    pub(crate) corrupt: bool,
}

impl Segment {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the sequence number after the segment.
    pub(crate) fn end(&self) -> u32 {
        let len = self.payload.len() as u32;
        self.sequence.wrapping_add(len + u32::from(self.has(SYN)) + u32::from(self.has(FIN)))
    }

    pub(crate) fn timestamps(&self) -> Option<(u32, u32)> {
        self.options.iter().find_map(|option| match option {
            TcpOption::Timestamps { val, ecr } => Some((*val, *ecr)),
            _ => None,
        })
    }

    pub(crate) fn sack(&self) -> Option<&[(u32, u32)]> {
        self.options.iter().find_map(|option| match option {
            TcpOption::Sack(blocks) => Some(&blocks[..]),
            _ => None,
        })
    }

    /// Returns the bytes of the options, padded to whole words.
    fn option_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for option in &self.options {
            match option {
                TcpOption::Nop => bytes.push(1),
                TcpOption::Mss(mss) => {
                    bytes.extend_from_slice(&[2, 4]);
                    bytes.extend_from_slice(&mss.to_be_bytes());
                }
                TcpOption::SackPermitted => bytes.extend_from_slice(&[4, 2]),
                TcpOption::WindowScale(shift) => bytes.extend_from_slice(&[3, 3, *shift]),
                TcpOption::Timestamps { val, ecr } => {
                    bytes.extend_from_slice(&[8, 10]);
                    bytes.extend_from_slice(&val.to_be_bytes());
                    bytes.extend_from_slice(&ecr.to_be_bytes());
                }
                TcpOption::Sack(blocks) => {
                    bytes.extend_from_slice(&[5, 2 + 8 * blocks.len() as u8]);
                    for (from, to) in blocks {
                        bytes.extend_from_slice(&from.to_be_bytes());
                        bytes.extend_from_slice(&to.to_be_bytes());
                    }
                }
                TcpOption::Raw(raw) => bytes.extend_from_slice(raw),
            }
        }
        while bytes.len() % 4 != 0 {
            bytes.push(1);
        }
        bytes
    }

    /// Returns the frame of this segment from the peer to the stack.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let options = self.option_bytes();
        let words = self.offset.unwrap_or(5 + options.len() as u8 / 4);
        let mut tcp = Vec::new();
        tcp.extend_from_slice(&self.src_port.to_be_bytes());
        tcp.extend_from_slice(&self.dst_port.to_be_bytes());
        tcp.extend_from_slice(&self.sequence.to_be_bytes());
        tcp.extend_from_slice(&self.acknowledgement.to_be_bytes());
        tcp.extend_from_slice(&[words << 4, self.flags]);
        tcp.extend_from_slice(&self.window.to_be_bytes());
        tcp.extend_from_slice(&[0, 0]);
        tcp.extend_from_slice(&self.urgent.to_be_bytes());
        tcp.extend_from_slice(&options);
        tcp.extend_from_slice(&self.payload);
        let check = !sum(&[&pseudo(PEER_IP, STACK_IP, tcp.len())[..], &tcp].concat());
        let check = if self.corrupt { check ^ 0x1234 } else { check };
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        packet(6, self.ecn, &tcp)
    }
}

/// Returns the frame of an IP packet from the peer to the stack.
pub(crate) fn packet(protocol: u8, ecn: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&STACK_MAC[..], &PEER_MAC, &[8, 0, 0x45, ecn]].concat();
    frame.extend_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend_from_slice(&PEER_IP);
    frame.extend_from_slice(&STACK_IP);
    let check = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Returns the peer's answer to a frame, if the frame is an ARP request for its address.
pub(crate) fn arp_answer(frame: &[u8]) -> Option<Vec<u8>> {
    if frame.get(12..14)? != [8, 6] || frame.get(20..22)? != [0, 1] || frame.get(38..42)? != PEER_IP
    {
        return None;
    }
    let mut answer = [&STACK_MAC[..], &PEER_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    answer.extend_from_slice(&PEER_MAC);
    answer.extend_from_slice(&PEER_IP);
    answer.extend_from_slice(&STACK_MAC);
    answer.extend_from_slice(&STACK_IP);
    Some(answer)
}

fn pseudo(src: [u8; 4], dst: [u8; 4], len: usize) -> Vec<u8> {
    [&src[..], &dst, &[0, 6], &(len as u16).to_be_bytes()].concat()
}

pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Parses a frame that the stack sent, and checks its headers, lengths and checksums. Returns the
/// TCP segments as they are on the wire, after segmentation; none if the frame is not TCP.
pub(crate) fn parse(frame: &[u8], meta: Meta, mtu: usize) -> Result<Vec<Segment>, String> {
    let ensure = |right: bool, what: &str| {
        if right { Ok(()) } else { Err(format!("{what}: {frame:02x?}, {meta:?}")) }
    };
    if frame[12..14] != [8, 0] || frame[23] != 6 {
        return Ok(Vec::new());
    }
    ensure(frame[..6] == PEER_MAC && frame[6..12] == STACK_MAC, "a wrong Ethernet address")?;
    let ip = &frame[14..];
    ensure(ip[0] == 0x45, "an IP header with options")?;
    ensure(usize::from(word(ip, 2)) == ip.len(), "a wrong length of the IP packet")?;
    ensure(ip[8] > 0, "a TTL of zero")?;
    ensure(sum(&ip[..20]) == 0xffff, "a wrong IP checksum")?;
    ensure(ip[12..16] == STACK_IP && ip[16..20] == PEER_IP, "a wrong IP address")?;
    let tcp = &ip[20..];
    let header = usize::from(tcp[12] >> 4) * 4;
    ensure(header >= 20 && header <= tcp.len(), "a wrong data offset")?;
    ensure(tcp[12] & 15 == 0, "reserved bits are set")?;
    let pseudo = pseudo(STACK_IP, PEER_IP, tcp.len());
    match meta.checksum {
        Checksum::Partial { start, offset } => {
            ensure(start == 34 && offset == 16, "a wrong place of the checksum")?;
            ensure(word(tcp, 16) == sum(&pseudo), "a wrong sum of the pseudo-header")?;
        }
        _ => ensure(sum(&[&pseudo[..], tcp].concat()) == 0xffff, "a wrong TCP checksum")?,
    }
    let segment = Segment {
        ecn: ip[1] & 3,
        src_port: word(tcp, 0),
        dst_port: word(tcp, 2),
        sequence: long(tcp, 4),
        acknowledgement: long(tcp, 8),
        flags: tcp[13],
        window: word(tcp, 14),
        urgent: word(tcp, 18),
        options: options(&tcp[20..header])?,
        payload: tcp[header..].to_vec(),
        ..Segment::default()
    };
    let Some(large) = meta.segmentation else {
        ensure(ip.len() <= mtu, "a packet larger than the MTU")?;
        return Ok(vec![segment]);
    };
    ensure(matches!(meta.checksum, Checksum::Partial { .. }), "segmentation without checksum")?;
    let size = usize::from(large.segment_bytes);
    ensure(size > 0 && 20 + header + size <= mtu, "segments larger than the MTU")?;
    ensure(usize::from(large.header_bytes) == 34 + header, "a wrong length of the headers")?;
    ensure(segment.flags & (SYN | RST | URG) == 0, "flags that no device segments")?;
    let count = segment.payload.len().div_ceil(size);
    Ok(segment
        .payload
        .chunks(size)
        .zip(0..)
        .map(|(part, index)| {
            let mut one = segment.clone();
            one.payload = part.to_vec();
            one.sequence = segment.sequence.wrapping_add((index * size) as u32);
            if index > 0 {
                one.flags &= !CWR;
            }
            if index + 1 < count {
                one.flags &= !(FIN | PSH);
            }
            one
        })
        .collect())
}

/// Parses the options of the stack's segment, which must be well formed.
fn options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, String> {
    let mut found = Vec::new();
    while let Some(&kind) = bytes.first() {
        if kind == 0 {
            break;
        }
        if kind == 1 {
            found.push(TcpOption::Nop);
            bytes = &bytes[1..];
            continue;
        }
        let len = usize::from(*bytes.get(1).ok_or("an option without length")?);
        if len < 2 || len > bytes.len() {
            return Err(format!("an option of length {len}"));
        }
        let (option, rest) = bytes.split_at(len);
        bytes = rest;
        found.push(match (kind, len) {
            (2, 4) => TcpOption::Mss(word(option, 2)),
            (3, 3) => TcpOption::WindowScale(option[2]),
            (4, 2) => TcpOption::SackPermitted,
            (5, 10 | 18 | 26 | 34) => TcpOption::Sack(
                option[2..].chunks(8).map(|block| (long(block, 0), long(block, 4))).collect(),
            ),
            (8, 10) => TcpOption::Timestamps { val: long(option, 2), ecr: long(option, 6) },
            _ => return Err(format!("an unknown option: {option:02x?}")),
        });
    }
    Ok(found)
}
