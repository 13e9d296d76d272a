//! The comparison of a frame's beginning with that of an earlier plain frame: faster than reading
//! the headers, where the packets of one flow follow each other.
//!
//! A frame that [matches](Pattern::matches) has the same [`Plain`] fields as the earlier one. The
//! bytes that differ from packet to packet of a flow (lengths, identification, time to live,
//! checksums) are not compared, and the lengths are checked as [`crate::plain::read`] checks them.

use crate::headers::{ETHERTYPE_IPV6, PROTOCOL_TCP};
use crate::plain::Plain;

/// Bytes of a frame's beginning that a comparison needs, valid or not: bytes behind the end of a
/// short frame do not change its result.
pub const BEGINNING_BYTES: usize = 128;

/// Compared bytes, in words of 8.
const WORDS: usize = 8;

/// The layouts of plain frames, by the positions of their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    UdpOverIpv4,
    TcpOverIpv4,
    UdpOverIpv6,
    TcpOverIpv6,
}

/// The compared bits of a frame without VLAN tag: addresses (0 to 11), ethertype (12, 13), then the
/// fields of each version that [`Plain`] has or requires.
const fn mask(is_ipv6: bool) -> [u64; WORDS] {
    let mut bytes = [0u8; WORDS * 8];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = match at {
            0..14 => 0xff,
            // IPv6: version, next header, addresses, ports (RFC 8200, 3).
            14 if is_ipv6 => 0xf0,
            20 | 22..58 if is_ipv6 => 0xff,
            _ if is_ipv6 => 0,
            // IPv4: version and header length, fragment (not "do not fragment"), protocol,
            // addresses, ports (RFC 791, 3.1).
            20 => 0x3f,
            14 | 21 | 23 | 26..38 => 0xff,
            _ => 0,
        };
        at += 1;
    }
    let mut words = [0; WORDS];
    let mut word = 0;
    while word < WORDS {
        let mut byte = 0;
        while byte < 8 {
            words[word] |= (bytes[word * 8 + byte] as u64) << (byte * 8);
            byte += 1;
        }
        word += 1;
    }
    words
}

/// Words in which IPv4's mask has bits.
const IPV4_WORDS: usize = 5;
const _: () = assert!(mask(false)[IPV4_WORDS] == 0 && mask(false)[IPV4_WORDS + 1] == 0);
const _: () = assert!(mask(false)[IPV4_WORDS + 2] == 0);

const MASKS: [[u64; WORDS]; 2] = [mask(false), mask(true)];

/// The compared fields of a plain frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    words: [u64; WORDS],
    layout: Layout,
}

impl Default for Pattern {
    /// Returns a pattern that no frame matches.
    fn default() -> Pattern {
        // No masked word has this value: the masks leave bits out.
        Pattern { words: [u64::MAX; WORDS], layout: Layout::UdpOverIpv4 }
    }
}

#[inline(always)]
fn word(beginning: &[u8; BEGINNING_BYTES], index: usize) -> u64 {
    let (words, _) = beginning.as_chunks::<8>();
    u64::from_le_bytes(words[index])
}

#[inline(always)]
fn number(beginning: &[u8; BEGINNING_BYTES], at: usize) -> usize {
    usize::from(u16::from_be_bytes([beginning[at], beginning[at + 1]]))
}

/// Returns `true` if a frame of `len` bytes holds an IP packet of `total` bytes with a header of
/// `header`, and the packet holds the transport's header (TCP) or datagram (UDP), of which `least`
/// is the minimum.
#[inline(always)]
fn fits(header: usize, total: usize, least: usize, transport: usize, len: usize) -> bool {
    // The sum is at least that of both minima, so that `total` is not below `header`.
    transport >= least && header + transport <= total && total + 14 <= len && total <= 0xffff
}

impl Pattern {
    /// Returns the pattern of a plain frame, whose fields are `plain`.
    #[must_use]
    pub fn of(plain: &Plain, beginning: &[u8; BEGINNING_BYTES]) -> Pattern {
        let kind = plain.source[1];
        let is_ipv6 = kind as u16 == ETHERTYPE_IPV6;
        let layout = match (is_ipv6, (kind >> 16) as u8 == PROTOCOL_TCP) {
            (false, false) => Layout::UdpOverIpv4,
            (false, true) => Layout::TcpOverIpv4,
            (true, false) => Layout::UdpOverIpv6,
            (true, true) => Layout::TcpOverIpv6,
        };
        let mask = &MASKS[usize::from(is_ipv6)];
        Pattern { words: std::array::from_fn(|at| word(beginning, at) & mask[at]), layout }
    }

    /// Returns `true` if a frame of `len` bytes is plain and has the fields of the pattern's frame.
    #[inline(always)]
    #[must_use]
    pub fn matches(&self, beginning: &[u8; BEGINNING_BYTES], len: usize) -> bool {
        let tcp_header_bytes = |at: usize| usize::from(beginning[at] >> 4) * 4;
        let ipv4_bytes = || number(beginning, 16);
        let ipv6_payload_bytes = || number(beginning, 18);
        match self.layout {
            Layout::UdpOverIpv4 => {
                self.same::<IPV4_WORDS>(beginning, &MASKS[0])
                    && fits(20, ipv4_bytes(), 8, number(beginning, 38), len)
            }
            Layout::TcpOverIpv4 => {
                self.same::<IPV4_WORDS>(beginning, &MASKS[0])
                    && fits(20, ipv4_bytes(), 20, tcp_header_bytes(46), len)
            }
            Layout::UdpOverIpv6 => {
                self.same::<WORDS>(beginning, &MASKS[1])
                    && fits(40, 40 + ipv6_payload_bytes(), 8, number(beginning, 58), len)
            }
            Layout::TcpOverIpv6 => {
                self.same::<WORDS>(beginning, &MASKS[1])
                    && fits(40, 40 + ipv6_payload_bytes(), 20, tcp_header_bytes(66), len)
            }
        }
    }

    /// Returns `true` if the compared bits of the first `N` words are the pattern's.
    #[inline(always)]
    fn same<const N: usize>(&self, beginning: &[u8; BEGINNING_BYTES], mask: &[u64; WORDS]) -> bool {
        let differing = |at: usize| word(beginning, at) & mask[at] ^ self.words[at];
        (0..N).fold(0, |all, at| all | differing(at)) == 0
    }
}
