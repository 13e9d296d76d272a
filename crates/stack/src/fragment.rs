//! Makes packets, and fragments those that exceed the path's MTU.

use crate::ethernet::HEADER_BYTES;
use crate::ip::{FragmentOf, Header};
use crate::outbox::{Frame, NextHop, Outbox};
use crate::{Counters, Meta};

/// The properties that all fragments of a packet share.
pub(crate) struct Making {
    pub(crate) header: Header,
    pub(crate) to: NextHop,
    /// The path's MTU, in bytes.
    pub(crate) mtu: usize,
    /// The identification, used if the packet is fragmented.
    pub(crate) id: u32,
    /// The metadata of the whole packet. A packet that needs fragmentation must have a full
    /// checksum.
    pub(crate) meta: Meta,
}

/// Estimates the bytes of all frames of a packet with `payload` bytes after its IP header.
pub(crate) fn frame_bytes(header: &Header, payload: usize, mtu: usize) -> usize {
    let len = header.len() + payload;
    if len <= mtu { len } else { len + payload.div_ceil((mtu - 48) & !7) * (48 + HEADER_BYTES) }
}

/// Makes the packet of `parts` and appends it, fragmented if necessary. Returns `true` if the
/// outbox took all of it.
pub(crate) fn push(
    making: &Making,
    parts: &[&[u8]],
    outbox: &mut Outbox,
    counters: &mut Counters,
) -> bool {
    let payload: usize = parts.iter().map(|part| part.len()).sum();
    let mut header = making.header;
    header.fragment = None;
    header.payload_bytes = payload;
    if header.len() + payload <= making.mtu {
        let frame = frame(&header, making, making.meta, parts, 0, payload, outbox);
        return outbox.push(frame);
    }
    let mut offset = 0;
    while offset < payload {
        header.fragment = Some(FragmentOf { id: making.id, offset, more: true });
        let extra = header.len() - crate::ip::header_len(header.src);
        let len = (making.mtu - header.len()) & !7;
        let len = len.min(payload - offset);
        let more = offset + len < payload;
        header.fragment = Some(FragmentOf { id: making.id, offset, more });
        header.payload_bytes = len + extra;
        let frame = frame(&header, making, Meta::FULL, parts, offset, len, outbox);
        if !outbox.push(frame) {
            return false;
        }
        counters.fragments_sent += 1;
        offset += len;
    }
    true
}

/// Makes one frame with `len` bytes of the parts from `offset` on.
fn frame(
    header: &Header,
    making: &Making,
    meta: Meta,
    parts: &[&[u8]],
    offset: usize,
    len: usize,
    outbox: &mut Outbox,
) -> Frame {
    let mut bytes = outbox.buffer();
    bytes.resize(HEADER_BYTES + header.len(), 0);
    header.write(&mut bytes[HEADER_BYTES..]);
    let (mut skip, mut left) = (offset, len);
    for part in parts {
        let from = skip.min(part.len());
        let to = (from + left).min(part.len());
        bytes.extend_from_slice(&part[from..to]);
        skip -= from;
        left -= to - from;
    }
    Frame { bytes, meta, to: making.to }
}
