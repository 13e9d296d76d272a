//! Writing a frame: its headers, then around its payload the pad and the invariant CRC.

use std::net::IpAddr;

use super::bth::{BTH_BYTES, Bth, stated_pad};
use super::extension::Extension;
use super::icrc::{self, ICRC_BYTES};
use super::opcode::{MAX_EXTENSION_BYTES, Opcode};
use super::path::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, Path, UDP_BYTES, UDP_PORT, ip_packet};
use crate::bytes::piece;
use crate::checksum::Sum;
use crate::numbers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_UDP};

/// The longest headers of a frame, in bytes: Ethernet, IPv6, UDP, and InfiniBand's.
pub const MAX_FRAME_HEADER_BYTES: usize =
    ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + BTH_BYTES + MAX_EXTENSION_BYTES;

/// Hops, also of IPv6, that a frame may take.
const TTL: u8 = 64;
/// The sender understands explicit congestion notification: ECT(0) (RFC 3168, section 5).
const ECT0: u8 = 2;

/// Returns the number of pad bytes behind a payload of `payload` bytes. All headers are multiples
/// of 4 bytes long.
const fn pad_bytes(payload: usize) -> usize {
    payload.wrapping_neg() % 4
}

fn l3_bytes(path: &Path) -> usize {
    ETHERNET_BYTES + if path.source.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES }
}

/// Returns the length of a whole frame with `payload` payload bytes, with the pad and the CRC. It
/// may be under Ethernet's least length: the device adds that padding.
#[inline]
#[must_use]
pub fn frame_bytes(path: &Path, opcode: Opcode, payload: usize) -> usize {
    let headers = l3_bytes(path) + UDP_BYTES + BTH_BYTES + opcode.extension_bytes();
    headers + payload + pad_bytes(payload) + ICRC_BYTES
}

/// Writes the IPv4 header: with a total length of `total` bytes, never to be fragmented, and
/// therefore without an identification (RFC 6864, section 4.1).
fn write_ipv4(path: &Path, addresses: [u32; 2], total: u16, to: &mut [u8]) -> Option<()> {
    let header = to.first_chunk_mut::<IPV4_BYTES>()?;
    let service = if path.ecn { ECT0 } else { 0 };
    let [t0, t1] = total.to_be_bytes();
    header[..12].copy_from_slice(&[0x45, service, t0, t1, 0, 0, 0x40, 0, TTL, PROTOCOL_UDP, 0, 0]);
    header[12..16].copy_from_slice(&addresses[0].to_be_bytes());
    header[16..].copy_from_slice(&addresses[1].to_be_bytes());
    let mut sum = Sum::default();
    sum.add(header);
    header[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
    Some(())
}

/// Writes the IPv6 header, with flow label 0 as Linux's `rxe_net.c` does, and `payload` bytes
/// behind it.
fn write_ipv6(path: &Path, addresses: [u128; 2], payload: u16, to: &mut [u8]) -> Option<()> {
    let header = to.first_chunk_mut::<IPV6_BYTES>()?;
    let class = if path.ecn { ECT0 << 4 } else { 0 };
    let [p0, p1] = payload.to_be_bytes();
    header[..8].copy_from_slice(&[0x60, class, 0, 0, p0, p1, PROTOCOL_UDP, TTL]);
    header[8..24].copy_from_slice(&addresses[0].to_be_bytes());
    header[24..].copy_from_slice(&addresses[1].to_be_bytes());
    Some(())
}

/// Writes all headers of a frame with `payload` payload bytes: Ethernet, IP, UDP, the base transport
/// header and those of `extension` that its opcode has. Returns their length, in bytes: the payload
/// begins there. The frame ends at [`frame_bytes`]; [`seal`] completes it.
///
/// The UDP checksum is 0, which means none, over both families, as in Linux's `rxe_net.c`: the
/// invariant CRC covers the packet.
///
/// `None` if `to` is too short for the headers, the addresses are of two families, the packet is
/// longer than IP allows, or `extension` lacks a header of the opcode. The opcodes of atomic
/// operations, and those that invalidate, always lack one.
#[inline]
pub fn write_headers(
    path: &Path,
    bth: &Bth,
    extension: &Extension,
    payload: usize,
    to: &mut [u8],
) -> Option<usize> {
    let pad = pad_bytes(payload);
    let headers = UDP_BYTES + BTH_BYTES + bth.opcode.extension_bytes();
    let udp = payload.checked_add(headers + pad + ICRC_BYTES)?;
    let (ethernet, rest) = to.split_first_chunk_mut::<ETHERNET_BYTES>()?;
    ethernet[..6].copy_from_slice(&path.destination_mac);
    ethernet[6..12].copy_from_slice(&path.source_mac);
    let (ethertype, ip_bytes) = match (path.source, path.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = u16::try_from(udp.checked_add(IPV4_BYTES)?).ok()?;
            write_ipv4(path, [source.to_bits(), destination.to_bits()], total, rest)?;
            (ETHERTYPE_IPV4, IPV4_BYTES)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let payload = u16::try_from(udp).ok()?;
            write_ipv6(path, [source.to_bits(), destination.to_bits()], payload, rest)?;
            (ETHERTYPE_IPV6, IPV6_BYTES)
        }
        _ => return None,
    };
    ethernet[12..].copy_from_slice(&ethertype.to_be_bytes());
    let (header, rest) = rest.get_mut(ip_bytes..)?.split_first_chunk_mut::<UDP_BYTES>()?;
    header[..2].copy_from_slice(&path.source_port.to_be_bytes());
    header[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
    header[4..6].copy_from_slice(&(udp as u16).to_be_bytes());
    header[6..].fill(0);
    let (header, rest) = rest.split_first_chunk_mut::<BTH_BYTES>()?;
    *header = bth.to_bytes(pad);
    extension.write(bth.opcode, rest)?;
    Some(ETHERNET_BYTES + ip_bytes + headers)
}

/// Completes a frame whose headers and payload are in place, and whose length is that of
/// [`frame_bytes`]: writes zeros into the pad, and the invariant CRC. Returns `false`, and writes
/// nothing, if the frame is no such one.
#[inline]
pub fn seal(frame: &mut [u8]) -> bool {
    let whole = frame.len();
    let Some(packet) = ip_packet(frame).filter(|packet| ETHERNET_BYTES + packet.len() == whole)
    else {
        return false;
    };
    let Some(bth) = icrc::bth_offset(packet) else { return false };
    let pad = stated_pad(&piece(packet, bth));
    let crc_at = whole - ICRC_BYTES;
    if crc_at < ETHERNET_BYTES + bth + BTH_BYTES + pad {
        return false;
    }
    frame[crc_at - pad..crc_at].fill(0);
    let Some(crc) = icrc::compute(&frame[ETHERNET_BYTES..]) else { return false };
    frame[crc_at..].copy_from_slice(&crc.to_le_bytes());
    true
}
