//! The invariant CRC: over all of a packet that no router or switch changes.
//!
//! It is the CRC-32 of Ethernet, over 8 bytes of ones that stand for InfiniBand's local route
//! header, the IP packet up to the CRC, with ones in the fields that change on the way, and is sent
//! with its lowest byte first (Linux, `drivers/infiniband/sw/rxe/rxe_icrc.c`).

use crc32fast::Hasher;

use super::bth::BTH_BYTES;
use super::path::{IPV4_BYTES, IPV6_BYTES, UDP_BYTES};
use crate::bytes::piece;
use crate::numbers::PROTOCOL_UDP;

/// The length of the invariant CRC, in bytes.
pub(super) const ICRC_BYTES: usize = 4;

/// The CRC-32 of 8 bytes of ones. It is the complement of the seed in Linux's `rxe_icrc.c`.
const LINK_HEADER_CRC: u32 = 0x2144_df1c;

const MAX_MASKED_BYTES: usize = IPV6_BYTES + UDP_BYTES + BTH_BYTES;

/// Returns the length of the IP header, in bytes, if this is UDP right behind an IPv4 header
/// without options or an IPv6 header without extension headers.
#[inline]
fn ip_header_bytes(packet: &[u8]) -> Option<usize> {
    match packet.first()? {
        0x45 => (*packet.get(9)? == PROTOCOL_UDP).then_some(IPV4_BYTES),
        0x60..=0x6f => (*packet.get(6)? == PROTOCOL_UDP).then_some(IPV6_BYTES),
        _ => None,
    }
}

/// Returns the offset of the base transport header, in bytes, if the packet has one and the CRC.
#[inline]
pub(super) fn bth_offset(packet: &[u8]) -> Option<usize> {
    let at = ip_header_bytes(packet)? + UDP_BYTES;
    (packet.len() >= at + BTH_BYTES + ICRC_BYTES).then_some(at)
}

/// Computes the CRC of an IP packet whose last 4 bytes are for it. `None` as for [`bth_offset`].
#[inline]
pub(super) fn compute(packet: &[u8]) -> Option<u32> {
    let bth = bth_offset(packet)?;
    // The headers are few: a copy of them is masked. The rest is hashed where it is.
    let headers = bth + BTH_BYTES;
    let mut copy = [0; MAX_MASKED_BYTES];
    let masked = &mut copy[..headers];
    masked.copy_from_slice(&packet[..headers]);
    if bth == IPV4_BYTES + UDP_BYTES {
        // The type of service, the time to live and the header's checksum.
        masked[1] = 0xff;
        masked[8] = 0xff;
        masked[10..12].fill(0xff);
    } else {
        // The traffic class, the flow label and the hop limit.
        masked[0] |= 0x0f;
        masked[1..4].fill(0xff);
        masked[7] = 0xff;
    }
    // The UDP checksum, then the byte with the congestion bits and reserved ones.
    masked[bth - 2..bth].fill(0xff);
    masked[bth + 4] = 0xff;

    let mut hasher = Hasher::new_with_initial(LINK_HEADER_CRC);
    hasher.update(masked);
    hasher.update(&packet[headers..packet.len() - ICRC_BYTES]);
    Some(hasher.finalize())
}

/// Returns `true` if an IP packet ends with its invariant CRC. The bytes are exactly those from the
/// IP header to the CRC: [`ip_packet`](super::ip_packet) cuts Ethernet's padding off.
///
/// A packet that is not UDP, has IPv4 options or IPv6 extension headers, or is too short has none.
#[inline]
#[must_use]
pub fn has_good_icrc(ip_packet: &[u8]) -> bool {
    compute(ip_packet).is_some_and(|crc| {
        crc == u32::from_le_bytes(piece(ip_packet, ip_packet.len() - ICRC_BYTES))
    })
}
