//! The TCP header fields that the demultiplexer needs (RFC 9293, 3.1).

/// The shortest header, in bytes.
pub(crate) const HEADER_BYTES: usize = 20;
/// Offset of the checksum, in bytes from the header's start.
pub(crate) const CHECKSUM_AT: usize = 16;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// Fields of a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) header_bytes: usize,
    pub(crate) payload_bytes: usize,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Segment {
    /// Parses a header. Returns `None` for an invalid header: shorter than it states, a port of
    /// zero, or flags that contradict each other.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Segment> {
        if bytes.len() < HEADER_BYTES {
            return None;
        }
        let header_bytes = usize::from(bytes[12] >> 4) * 4;
        let segment = Segment {
            src_port: be16(bytes, 0),
            dst_port: be16(bytes, 2),
            sequence: be32(bytes, 4),
            acknowledgement: be32(bytes, 8),
            flags: bytes[13],
            window: be16(bytes, 14),
            header_bytes,
            payload_bytes: bytes.len().checked_sub(header_bytes)?,
        };
        let control = segment.flags & (SYN | FIN | RST);
        let ok = header_bytes >= HEADER_BYTES
            && segment.src_port != 0
            && segment.dst_port != 0
            && (control & control.wrapping_sub(1)) == 0;
        ok.then_some(segment)
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the number of sequence numbers that the segment occupies.
    pub(crate) fn len(&self) -> u32 {
        self.payload_bytes as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }
}

/// Returns the offset of an option's value in a header, if it has one. `wanted_len` is the option's
/// full length.
fn option_at(header: &[u8], wanted: u8, wanted_len: usize) -> Option<usize> {
    let mut at = HEADER_BYTES;
    while at < header.len() {
        match header[at] {
            0 => return None,
            1 => at += 1,
            kind => {
                let len = usize::from(*header.get(at + 1)?);
                if len < 2 || at + len > header.len() {
                    return None;
                }
                if kind == wanted {
                    return (len == wanted_len).then_some(at + 2);
                }
                at += len;
            }
        }
    }
    None
}

/// Returns `true` if selective acknowledgements report data received beyond `at` (RFC 2018, 3).
/// Data before it arrived twice (RFC 2883).
pub(crate) fn selects_beyond(header: &[u8], at: u32) -> bool {
    let blocks = (1..=4).find_map(|count| {
        let start = option_at(header, 5, 2 + 8 * count)?;
        header.get(start..start + 8 * count)
    });
    blocks.is_some_and(|blocks| blocks.chunks_exact(8).any(|block| before(at, be32(block, 0))))
}

/// Returns the offset of the maximum segment size.
pub(crate) fn mss_at(header: &[u8]) -> Option<usize> {
    option_at(header, 2, 4)
}

/// Returns `true` if a SYN has the window scale option.
pub(crate) fn scales_windows(header: &[u8]) -> bool {
    option_at(header, 3, 3).is_some()
}

/// Returns the window shift, at most 14 (RFC 7323, 2.3); 0 without the option.
pub(crate) fn window_shift(header: &[u8]) -> u8 {
    option_at(header, 3, 3).map_or(0, |at| header[at].min(14))
}

/// Lowers the segment size option in a SYN's header to at most `most`. Returns the resulting value,
/// if the option is present.
pub(crate) fn clamp_mss(header: &mut [u8], most: usize) -> Option<usize> {
    let at = mss_at(header)?;
    let value = usize::from(be16(header, at)).min(most);
    header[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    Some(value)
}

/// Makes a segment without payload, its checksum field zero.
pub(crate) fn bare(
    ports: (u16, u16),
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
    window: u16,
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&ports.0.to_be_bytes());
    header[2..4].copy_from_slice(&ports.1.to_be_bytes());
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    header[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    header[12..14].copy_from_slice(&[5 << 4, flags]);
    header[14..16].copy_from_slice(&window.to_be_bytes());
    header
}

/// Returns `true` if `a` comes before `b` (RFC 9293, 3.4).
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for (flags, ok) in [(SYN, true), (FIN | ACK, true), (SYN | FIN, false), (SYN | RST, false)]
        {
            assert_eq!(Segment::parse(&bare((1, 2), 0, 0, flags, 0)).is_some(), ok);
        }
        assert!(Segment::parse(&bare((0, 2), 0, 0, SYN, 0)).is_none());
    }

    #[test]
    fn selective_acknowledgements_are_found() {
        let mut header = bare((1, 2), 0, 0, ACK, 0).to_vec();
        assert!(!selects_beyond(&header, 100));
        header.extend_from_slice(&[1, 1, 5, 18]);
        for edge in [50_u32, 90, 200, 300] {
            header.extend_from_slice(&edge.to_be_bytes());
        }
        assert!(selects_beyond(&header, 100));
        // Neither of two blocks lies beyond, or both do.
        assert!(!selects_beyond(&header, 200));
        assert!(selects_beyond(&header, u32::MAX));
        // A length that no number of blocks has, and a length beyond the header.
        header[23] = 17;
        assert!(!selects_beyond(&header, 100));
        header[23] = 26;
        assert!(!selects_beyond(&header, 100));
    }

    #[test]
    fn the_segment_size_option_is_found_and_lowered() {
        let mut header = bare((1, 2), 0, 0, SYN, 0).to_vec();
        header.extend_from_slice(&[1, 3, 3, 7, 2, 4, 0x23, 0x28]);
        assert_eq!(clamp_mss(&mut header, 1460), Some(1460));
        assert_eq!(clamp_mss(&mut header, 9000), Some(1460));
        header[21] = 0;
        header[20] = 3;
        assert_eq!(mss_at(&header), None);
    }
}
