//! Segmentation of large TCP packets and completion of checksums in software (GSO), as the hardware
//! or the kernel would do it.
//!
//! The headers are small, and the caller has copied them to private memory; the payload may lie
//! anywhere, in pieces. So the [`Segmenter`] only makes each segment's headers and returns the
//! range of its payload. The caller copies the payload, adds it to the segment's sum and completes
//! the checksum. [`complete_into`] does all of this for a packet in one piece.

use std::ops::Range;

use crate::bytes::be16;
use crate::checksum::{OutsidePacket, Sum, complete};
use crate::headers::{Headers, Network, PREFIX_BYTES, PROTOCOL_TCP};
use crate::meta::{Checksum, Meta, SegmentationKind};
use crate::offload::{Large, OffloadError, check_large};
use crate::transport::tcp_flags;

/// Makes the headers of a large packet's segments, one after the other.
///
/// ```
/// use towpath_packet::build::{Flow, Tcp};
/// use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
/// let (packet, meta) = Flow::v4().tcp_large(&Tcp::default(), &[7; 3000], 1460);
/// let mut segmenter = Segmenter::new(&packet, packet.len(), &meta).unwrap();
/// let mut header = [0; MAX_HEADER_BYTES];
/// let mut lengths = Vec::new();
/// while let Some(mut segment) = segmenter.next(&mut header) {
///     let payload = &packet[segment.payload.clone()];
///     segment.sum.add(payload);
///     let header_bytes = segment.complete(&mut header);
///     lengths.push(header_bytes + payload.len()); // header[..header_bytes], then payload: send
/// }
/// assert_eq!(lengths, [1514, 1514, 134]);
/// ```
#[derive(Clone, Debug)]
pub struct Segmenter {
    header: [u8; MAX_HEADER_BYTES],
    large: Large,
    /// The pseudo-header's sum without the length, which differs by segment.
    pseudo: Sum,
    /// Start of the next segment's payload; `None` after the last segment.
    at: Option<usize>,
    made: u16,
}

/// The longest headers of a segment, in bytes.
pub const MAX_HEADER_BYTES: usize = PREFIX_BYTES;

const FIELD: usize = 16;

/// A segment with complete headers but for the TCP checksum.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The range of the large packet's bytes that follow the header, counted from its first byte.
    pub payload: Range<usize>,
    /// The sum of pseudo-header and TCP header. The caller adds the payload, in as many pieces as
    /// it has.
    pub sum: Sum,
    /// The sum of the pseudo-header alone.
    pseudo: Sum,
    header_bytes: usize,
    l4: usize,
}

/// The places of a large packet's headers, in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHeaders {
    /// Start of the IP header.
    pub l3: usize,
    /// Start of the TCP header.
    pub l4: usize,
    /// End of the TCP header: the length of all headers.
    pub header_bytes: usize,
    /// The number of bytes behind the headers.
    pub payload_bytes: usize,
}

impl Segment {
    /// Returns the length of the header, in bytes: Ethernet, VLAN, IP and TCP.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Writes the checksum into the header, after the caller added the payload to the sum. Returns
    /// the header's length. The frame may still need padding to Ethernet's 60 bytes.
    pub fn complete(self, header: &mut [u8; MAX_HEADER_BYTES]) -> usize {
        self.write(header, self.sum.checksum())
    }

    /// Leaves the checksum partial, for a device to complete. Returns the header's length, and the
    /// metadata for the device. The caller need not add the payload.
    pub fn leave_partial(self, header: &mut [u8; MAX_HEADER_BYTES]) -> (usize, Meta) {
        let checksum = Checksum::Partial { start: self.l4 as u16, offset: FIELD as u16 };
        (self.write(header, self.pseudo.folded()), Meta { checksum, segmentation: None })
    }

    fn write(&self, header: &mut [u8; MAX_HEADER_BYTES], value: u16) -> usize {
        put16(header, self.l4 + FIELD, value);
        self.header_bytes
    }
}

fn put16(header: &mut [u8; MAX_HEADER_BYTES], at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

impl Segmenter {
    /// Prepares to segment a packet of `packet_len` bytes of which `prefix` are the first: all of
    /// them, or at least [`PREFIX_BYTES`].
    ///
    /// # Errors
    /// If `meta` requests no segmentation, or contradicts the packet's own headers.
    pub fn new(prefix: &[u8], packet_len: usize, meta: &Meta) -> Result<Segmenter, OffloadError> {
        let headers = Headers::parse(prefix, packet_len).map_err(|_| OffloadError::Headers)?;
        let large = check_large(meta, &headers)?;
        let pseudo = match &headers.network {
            Network::Ipv4(ip) => Sum::pseudo4(ip.source, ip.destination, PROTOCOL_TCP, 0),
            Network::Ipv6(ip) => Sum::pseudo6(ip.source, ip.destination, PROTOCOL_TCP, 0),
            Network::Arp(_) | Network::Other => return Err(OffloadError::Kind),
        };
        let mut header = [0; MAX_HEADER_BYTES];
        // The prefix must hold all headers: a caller may claim any length of a packet.
        let real = prefix.get(..large.payload).ok_or(OffloadError::Headers)?;
        header[..large.payload].copy_from_slice(real);
        Ok(Segmenter { header, large, pseudo, at: Some(large.payload), made: 0 })
    }

    /// Writes the headers for a device that segments. The length in the IP header and the checksum of IPv4
    /// are 0. The TCP checksum is the sum of the pseudo-header without its length. Linux's `e1000_tso`
    /// (drivers/net/ethernet/intel/e1000e/netdev.c) writes the same. Returns the places of the headers.
    #[must_use]
    pub fn for_device(&self, out: &mut [u8; MAX_HEADER_BYTES]) -> DeviceHeaders {
        let Large { l3, l4, payload, end, segmentation } = self.large;
        out[..payload].copy_from_slice(&self.header[..payload]);
        match segmentation.kind {
            SegmentationKind::Tcp4 => {
                put16(out, l3 + 2, 0);
                put16(out, l3 + 10, 0);
            }
            SegmentationKind::Tcp6 => put16(out, l3 + 4, 0),
        }
        put16(out, l4 + FIELD, self.pseudo.folded());
        DeviceHeaders { l3, l4, header_bytes: payload, payload_bytes: end - payload }
    }

    /// Returns the length of the longest segment's frame, in bytes. It has to fit the device's MTU
    /// plus an Ethernet header.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        let whole = self.large.end - self.large.payload;
        self.large.payload + whole.min(self.large.segmentation.segment_bytes.into())
    }

    /// Returns the number of segments that remain.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.at.map_or(0, |at| {
            (self.large.end - at).div_ceil(self.large.segmentation.segment_bytes.into()).max(1)
        })
    }

    /// Makes the next segment's header; returns `None` after the last. Bytes after
    /// [`Segment::header_bytes`] are meaningless.
    pub fn next(&mut self, out: &mut [u8; MAX_HEADER_BYTES]) -> Option<Segment> {
        let Large { l3, l4, payload: header_bytes, end, segmentation } = self.large;
        let at = self.at?;
        let stop = end.min(at + usize::from(segmentation.segment_bytes));
        let (first, last) = (at == header_bytes, stop == end);
        self.at = (!last).then_some(stop);

        out[..header_bytes].copy_from_slice(&self.header[..header_bytes]);
        let total = header_bytes - l3 + (stop - at);
        match segmentation.kind {
            SegmentationKind::Tcp4 => {
                put16(out, l3 + 2, total as u16);
                let id = be16(out[l3 + 4], out[l3 + 5]).wrapping_add(self.made);
                put16(out, l3 + 4, id);
                put16(out, l3 + 10, 0);
                let mut sum = Sum::default();
                sum.add(&out[l3..l4]);
                put16(out, l3 + 10, sum.checksum());
            }
            SegmentationKind::Tcp6 => put16(out, l3 + 4, (total - 40) as u16),
        }
        let tcp = &mut out[l4..header_bytes];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let sequence = sequence.wrapping_add((at - header_bytes) as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if !first {
            tcp[13] &= !tcp_flags::CWR;
        }
        if !last {
            tcp[13] &= !(tcp_flags::FIN | tcp_flags::PSH);
        }
        tcp[FIELD..FIELD + 2].fill(0);

        let mut pseudo = self.pseudo;
        pseudo.add_word((header_bytes - l4 + (stop - at)) as u16);
        let mut sum = pseudo;
        sum.add(tcp);
        self.made = self.made.wrapping_add(1);
        Some(Segment { payload: at..stop, sum, pseudo, header_bytes, l4 })
    }
}

/// The reason why a packet cannot be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The segmentation request is invalid.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// The checksum field is not inside the packet.
    #[error(transparent)]
    Outside(#[from] OutsidePacket),
}

/// Completes a packet that lies in one piece, and passes the complete frames to `emit`, one by one.
/// A packet that is already complete passes as it is; else the frames are made in `scratch`, which
/// callers keep to avoid further allocations. Returns the number of frames.
///
/// The function completes a partial checksum at any offset inside the packet that `meta` names,
/// also inside tunnels, since the kernel passes such packets. [`check`](crate::offload::check)
/// decides whether the sender may choose that offset.
///
/// # Errors
/// If that is impossible; then `emit` was not called.
pub fn complete_into(
    packet: &[u8],
    meta: &Meta,
    scratch: &mut Vec<u8>,
    mut emit: impl FnMut(&[u8]),
) -> Result<usize, CompletionError> {
    match (meta.segmentation, meta.checksum) {
        (Some(_), _) => Ok(segment_into(packet, meta, scratch, emit)?),
        (None, Checksum::Partial { start, offset }) => {
            scratch.clear();
            scratch.extend_from_slice(packet);
            complete(scratch, start, offset)?;
            emit(scratch);
            Ok(1)
        }
        (None, Checksum::Full | Checksum::Verified) => {
            emit(packet);
            Ok(1)
        }
    }
}

/// Segments a large packet that lies in one piece, as [`complete_into`] does.
///
/// # Errors
/// If `meta` requests no segmentation, or contradicts the packet's own headers; then `emit` was not
/// called.
pub fn segment_into(
    packet: &[u8],
    meta: &Meta,
    scratch: &mut Vec<u8>,
    mut emit: impl FnMut(&[u8]),
) -> Result<usize, OffloadError> {
    let mut segmenter = Segmenter::new(packet, packet.len(), meta)?;
    let mut header = [0; MAX_HEADER_BYTES];
    let mut made = 0;
    while let Some(mut segment) = segmenter.next(&mut header) {
        let payload = &packet[segment.payload.clone()];
        segment.sum.add(payload);
        let header_bytes = segment.complete(&mut header);
        scratch.clear();
        scratch.extend_from_slice(&header[..header_bytes]);
        scratch.extend_from_slice(payload);
        emit(scratch);
        made += 1;
    }
    Ok(made)
}
