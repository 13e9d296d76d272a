//! The TCP header (RFC 9293, 3.1).

use super::options::Options;
use super::sequence::Seq;

/// The shortest header, in bytes.
pub(crate) const HEADER_BYTES: usize = 20;
/// Offset of the checksum, in bytes from the header's start.
pub(crate) const CHECKSUM_AT: usize = 16;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const URG: u8 = 32;
/// "ECN echo": a router marked a packet of the receiver of this segment (RFC 3168, 6.1).
pub(crate) const ECE: u8 = 64;
/// "Congestion window reduced", the answer to [`ECE`].
pub(crate) const CWR: u8 = 128;

/// A received header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) sequence: Seq,
    pub(crate) acknowledgement: Seq,
    pub(crate) flags: u8,
    /// The field's value, not scaled.
    pub(crate) window: u16,
    /// The urgent pointer: bytes from the segment's start to the end of the urgent data.
    pub(crate) urgent: u16,
    pub(crate) options: Options,
    pub(crate) payload_bytes: usize,
    /// `true` if a router marked the packet as having met congestion (CE; RFC 3168, 5).
    pub(crate) congested: bool,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Segment {
    /// Parses a header and its options. Returns `None` for an invalid header: shorter than it states, or a port of
    /// zero.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Segment> {
        if bytes.len() < HEADER_BYTES {
            return None;
        }
        let header_bytes = usize::from(bytes[12] >> 4) * 4;
        if header_bytes < HEADER_BYTES || header_bytes > bytes.len() {
            return None;
        }
        let segment = Segment {
            src_port: be16(bytes, 0),
            dst_port: be16(bytes, 2),
            sequence: Seq(be32(bytes, 4)),
            acknowledgement: Seq(be32(bytes, 8)),
            flags: bytes[13],
            window: be16(bytes, 14),
            urgent: be16(bytes, 18),
            options: Options::parse(&bytes[HEADER_BYTES..header_bytes]),
            payload_bytes: bytes.len() - header_bytes,
            congested: false,
        };
        (segment.src_port != 0 && segment.dst_port != 0).then_some(segment)
    }

    /// Returns `true` if the flags contradict each other: more than one of SYN, FIN and RST.
    pub(crate) fn is_contradictory(&self) -> bool {
        (self.flags & (SYN | FIN | RST)).count_ones() > 1
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the number of sequence numbers that the segment occupies.
    pub(crate) fn len(&self) -> u32 {
        self.payload_bytes as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }

    /// Returns the sequence number after the segment's last.
    pub(crate) fn end(&self) -> Seq {
        self.sequence + self.len()
    }
}

/// The fields of a header to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// The sender's port, and the receiver's.
    pub(crate) ports: (u16, u16),
    pub(crate) sequence: Seq,
    pub(crate) acknowledgement: Seq,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
}

impl Header {
    /// Writes the header and its `options`, whose length is a multiple of four, with a checksum
    /// field of zero.
    pub(crate) fn write(&self, to: &mut [u8], options: &[u8]) {
        to[..2].copy_from_slice(&self.ports.0.to_be_bytes());
        to[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        to[4..8].copy_from_slice(&self.sequence.0.to_be_bytes());
        to[8..12].copy_from_slice(&self.acknowledgement.0.to_be_bytes());
        let words = (HEADER_BYTES + options.len()) / 4;
        to[12..14].copy_from_slice(&[(words as u8) << 4, self.flags]);
        to[14..16].copy_from_slice(&self.window.to_be_bytes());
        to[16..18].fill(0);
        to[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        to[HEADER_BYTES..HEADER_BYTES + options.len()].copy_from_slice(options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8) -> [u8; 24] {
        let mut bytes = [0; 24];
        let header = Header {
            ports: (1, 2),
            sequence: Seq(0x0102_0304),
            acknowledgement: Seq(5),
            flags,
            window: 6,
            urgent: 7,
        };
        header.write(&mut bytes, &[2, 4, 5, 180]);
        bytes
    }

    #[test]
    fn a_written_header_reads_back() {
        let segment = Segment::parse(&header(ACK | SYN)).unwrap();
        assert_eq!((segment.src_port, segment.dst_port), (1, 2));
        assert_eq!((segment.sequence, segment.acknowledgement), (Seq(0x0102_0304), Seq(5)));
        assert_eq!((segment.window, segment.urgent, segment.options.mss), (6, 7, Some(1460)));
        assert_eq!((segment.len(), segment.end(), segment.payload_bytes), (1, Seq(0x0102_0305), 0));
    }

    #[test]
    fn flags_that_contradict_each_other_are_found() {
        for (flags, ok) in [(SYN, true), (FIN | ACK, true), (SYN | FIN, false), (SYN | RST, false)]
        {
            assert_eq!(Segment::parse(&header(flags)).unwrap().is_contradictory(), !ok);
        }
    }

    #[test]
    fn headers_that_lie_about_their_length_are_refused() {
        let mut bytes = header(ACK);
        assert!(Segment::parse(&bytes[..19]).is_none());
        bytes[12] = 4 << 4;
        assert!(Segment::parse(&bytes).is_none());
        bytes[12] = 7 << 4;
        assert!(Segment::parse(&bytes).is_none());
        bytes[12] = 6 << 4;
        bytes[..2].fill(0);
        assert!(Segment::parse(&bytes).is_none(), "port zero");
    }
}
