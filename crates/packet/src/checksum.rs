//! The Internet checksum (RFC 1071): summing, completing partial checksums, verifying.

use std::fmt;

use crate::headers::{
    Fragment, Headers, Ip, Network, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
};
use crate::transport::Transport;

/// A running one's complement sum over bytes, possibly in several pieces, also of odd lengths.
///
/// ```
/// # use towpath_packet::checksum::Sum;
/// let mut sum = Sum::default();
/// sum.add(&[0x00, 0x01, 0xf2]);
/// sum.add(&[0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
/// assert_eq!(sum.folded(), 0xddf2); // RFC 1071, section 3
/// ```
#[derive(Clone, Copy, Default)]
pub struct Sum {
    /// The unfolded sum of 16-bit words in this machine's byte order: less than 2^36 for a
    /// pseudo-header, plus less than 2^16 per piece, so it never overflows.
    words: u64,
    /// `true` after an odd number of bytes: the next piece's first byte is the second byte of a
    /// word.
    odd: bool,
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sum({:#06x}{})", self.folded(), if self.odd { ", odd" } else { "" })
    }
}

impl PartialEq for Sum {
    fn eq(&self, other: &Sum) -> bool {
        self.folded() == other.folded() && self.odd == other.odd
    }
}

impl Eq for Sum {}

#[inline]
const fn fold(words: u64) -> u16 {
    let words = (words >> 32) + (words & 0xffff_ffff);
    let words = (words >> 16) + (words & 0xffff);
    let words = (words >> 16) + (words & 0xffff);
    let words = (words >> 16) + (words & 0xffff);
    words as u16
}

/// The bytes that one step of the vector loop sums, and the 64-bit words in them.
const BLOCK_BYTES: usize = 64;
const BLOCK_WORDS: usize = BLOCK_BYTES / 8;

/// Returns the sum of the bytes as 16-bit words of this machine's order, not folded. Since 2^16 is
/// 1 in one's complement arithmetic of 16 bits, wide words sum to the same, in any byte order (RFC
/// 1071, section 2). Folding the result takes away all that is beyond 16 bits.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    let mut sum = if blocks.is_empty() { 0 } else { sum_blocks(blocks) };
    let mut carries = 0;
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        let (next, carry) = sum.overflowing_add(u64::from_ne_bytes(*word));
        (sum, carries) = (next, carries + u64::from(carry));
    }
    sum = (sum >> 32) + (sum & 0xffff_ffff) + carries;
    let (words, rest) = rest.as_chunks::<2>();
    for word in words {
        sum += u64::from(u16::from_ne_bytes(*word));
    }
    if let [last] = rest {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum
}

/// Returns the sum of the upper and lower halves of all 64-bit words: exact for less than 8 GiB.
///
/// The compiler makes vector instructions of the loop, also for an x86-64 that has only SSE2. They
/// have no carry. So one sum per lane wraps around, and another one is of the upper halves alone,
/// which cannot: the difference of both is the sum of the lower halves. This takes four
/// instructions for 16 bytes, where widening each half to 64 bits takes six.
#[inline]
fn sum_blocks(blocks: &[[u8; BLOCK_BYTES]]) -> u64 {
    let (mut wrapped, mut upper) = ([0_u64; BLOCK_WORDS], [0_u64; BLOCK_WORDS]);
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for ((wrapped, upper), word) in wrapped.iter_mut().zip(&mut upper).zip(words) {
            let word = u64::from_ne_bytes(*word);
            *wrapped = wrapped.wrapping_add(word);
            *upper += word >> 32;
        }
    }
    let wrapped = wrapped.into_iter().fold(0, u64::wrapping_add);
    let upper: u64 = upper.into_iter().sum();
    wrapped.wrapping_sub(upper << 32) + upper
}

impl Sum {
    /// Appends bytes to those already added.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let sum = fold(sum_words(bytes));
        self.words += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds one 16-bit word. The number of bytes added so far must be even.
    #[inline]
    pub(crate) fn add_word(&mut self, word: u16) {
        debug_assert!(!self.odd);
        self.words += u64::from(word.to_be());
    }

    /// Returns the sum of the pseudo-header of TCP, UDP and so on over IPv4 (RFC 9293, 3.1). `len`:
    /// transport header and payload, in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo4(source: u32, destination: u32, protocol: u8, len: u16) -> Sum {
        let words = u64::from(source.to_be())
            + u64::from(destination.to_be())
            + u64::from(u16::from(protocol).to_be())
            + u64::from(len.to_be());
        Sum { words, odd: false }
    }

    /// Returns the sum of the pseudo-header over IPv6 (RFC 8200, 8.1). `len`: transport header and
    /// payload, in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo6(source: u128, destination: u128, protocol: u8, len: u32) -> Sum {
        let mut sum = Sum::default();
        sum.words += sum_words(&source.to_be_bytes());
        sum.words += sum_words(&destination.to_be_bytes());
        sum.words += u64::from(len.to_be()) + u64::from(u32::from(protocol).to_be());
        sum
    }

    /// Returns the sum, folded into 16 bits. For a pseudo-header this is the checksum field of a
    /// packet with a partial checksum.
    #[inline]
    #[must_use]
    pub fn folded(self) -> u16 {
        u16::from_be(fold(self.words))
    }

    /// Returns the checksum for the header: the sum's complement.
    #[inline]
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// Returns the checksum for a UDP header. It is never 0, which would mean no checksum (RFC 768).
    /// In one's complement 0xffff equals 0.
    #[inline]
    #[must_use]
    pub fn nonzero_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }

    /// Returns `true` if the sum of the added bytes, including the checksum field, is right.
    #[inline]
    #[must_use]
    pub fn is_right(self) -> bool {
        self.folded() == 0xffff
    }
}

/// Offset of the checksum in a UDP header, in bytes.
const UDP_FIELD: u16 = 6;

/// The checksum field is not inside the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checksum from byte {start}, to be written at {start}+{offset}, in {len} bytes")]
pub struct OutsidePacket {
    /// Where summing starts.
    pub start: u16,
    /// Offset of the checksum field from there.
    pub offset: u16,
    /// Length of the packet.
    pub len: usize,
}

/// Checks that a checksum field is inside a packet of `len` bytes. Returns the field's offset.
///
/// # Errors
/// If the field is not inside the packet.
#[inline]
pub fn field_at(start: u16, offset: u16, len: usize) -> Result<usize, OutsidePacket> {
    let field = usize::from(start) + usize::from(offset);
    if field + 2 > len { Err(OutsidePacket { start, offset, len }) } else { Ok(field) }
}

/// Completes a packet with a [`Partial`](crate::Checksum::Partial) checksum, with that variant's
/// `start` and `offset`. The field holds the pseudo-header's sum. The function writes 0xffff instead
/// of 0 where the field is at UDP's offset, 6: in UDP 0 means no checksum (RFC 768). Elsewhere the
/// computed 0 stays (RFC 1624): analyzers report 0xffff in TCP as wrong.
///
/// # Errors
/// If the field is outside the packet; then nothing was written.
#[inline]
pub fn complete(frame: &mut [u8], start: u16, offset: u16) -> Result<(), OutsidePacket> {
    let (field, value) = completed(&[frame], start, offset)?;
    frame[field..field + 2].copy_from_slice(&value);
    Ok(())
}

/// Sums a packet as [`complete`] does, in one part or several, and writes nothing. Returns the
/// offset and the bytes of the checksum. The field may span two parts.
///
/// # Errors
/// If the field is outside the packet.
#[inline]
pub fn completed(
    parts: &[&[u8]],
    start: u16,
    offset: u16,
) -> Result<(usize, [u8; 2]), OutsidePacket> {
    let len = parts.iter().map(|part| part.len()).sum();
    let field = field_at(start, offset, len)?;
    let mut sum = Sum::default();
    let mut skip = usize::from(start);
    for part in parts {
        sum.add(part.get(skip..).unwrap_or_default());
        skip = skip.saturating_sub(part.len());
    }
    let value = if offset == UDP_FIELD { sum.nonzero_checksum() } else { sum.checksum() };
    Ok((field, value.to_be_bytes()))
}

/// Returns `true` if an IPv4 header's own checksum is right. `header`: the header with its options.
#[inline]
#[must_use]
pub fn ipv4_header_is_right(header: &[u8]) -> bool {
    let mut sum = Sum::default();
    sum.add(header);
    sum.is_right()
}

/// The result of verifying a frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All present checksums are right.
    Right,
    /// The IPv4 header's checksum is wrong.
    WrongHeader,
    /// The checksum of TCP, UDP or ICMP is wrong.
    WrongTransport,
    /// The transport checksum cannot be verified: it is absent, the protocol is unknown, or the
    /// packet is a fragment or malformed. The IPv4 header's checksum, if any, is right.
    NotCovered,
}

/// Verifies a whole frame's checksums: the IPv4 header's, and TCP's, UDP's and ICMP's. `headers`
/// must come from the same frame.
#[must_use]
pub fn verify(frame: &[u8], headers: &Headers) -> Verdict {
    let (from, pseudo) = match &headers.network {
        Network::Ipv4(ip) => {
            let header = usize::from(headers.l3_offset)..usize::from(ip.l4_offset);
            if !frame.get(header).is_some_and(ipv4_header_is_right) {
                return Verdict::WrongHeader;
            }
            let len = ip.total_bytes - (ip.l4_offset - headers.l3_offset);
            match covered(ip) {
                // ICMP over IPv4 has no pseudo-header.
                Some(PROTOCOL_ICMP) => (ip.l4_offset, Sum::default()),
                Some(protocol) => {
                    let field = usize::from(ip.l4_offset + UDP_FIELD);
                    if protocol == PROTOCOL_UDP && frame.get(field..field + 2) == Some(&[0, 0]) {
                        return Verdict::NotCovered;
                    }
                    (ip.l4_offset, Sum::pseudo4(ip.source, ip.destination, protocol, len))
                }
                None => return Verdict::NotCovered,
            }
        }
        Network::Ipv6(ip) => {
            let len = u32::from(ip.total_bytes) - u32::from(ip.l4_offset - headers.l3_offset);
            let Some(protocol) = covered(ip) else { return Verdict::NotCovered };
            (ip.l4_offset, Sum::pseudo6(ip.source, ip.destination, protocol, len))
        }
        Network::Arp(_) | Network::Other => return Verdict::NotCovered,
    };
    let end = headers.ip_end().unwrap_or_default();
    let Some(bytes) = frame.get(usize::from(from)..end) else { return Verdict::NotCovered };
    let mut sum = pseudo;
    sum.add(bytes);
    if sum.is_right() { Verdict::Right } else { Verdict::WrongTransport }
}

/// Returns the protocol, if its checksum is known and the whole packet is here.
fn covered<Address>(ip: &Ip<Address>) -> Option<u8> {
    let whole = matches!(ip.fragment, Fragment::Whole) && ip.transport != Transport::None;
    let known =
        matches!(ip.protocol, PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_ICMP | PROTOCOL_ICMPV6);
    (whole && known).then_some(ip.protocol)
}
