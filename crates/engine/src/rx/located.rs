//! The location of a received packet's bytes in the device's pool: one buffer or several, and a
//! VLAN tag that the device removed.

use towpath_device::{MAX_PARTS, Meta, Received, VlanTag};
use towpath_memory::Mapping;
use towpath_protocol::counters::Device as Count;

use crate::source::{Piece, Source};

/// Bytes up to the end of a tag: two addresses, and the tag.
pub(super) const FRONT_BYTES: usize = VlanTag::OFFSET + VlanTag::BYTES;

/// Returns the number of buffers of the first packet of a batch.
#[inline]
pub(super) fn packet_buffers(batch: &[Received]) -> usize {
    batch.iter().position(|one| !one.continues).map_or(batch.len(), |last| last + 1)
}

/// Returns the location of the packet in `buffers`, and its metadata. A removed tag is back in its
/// place, so that flow rules, applications and captures find the packet as it was on the wire.
/// `pieces` and `front` are memory for the location.
///
/// # Errors
/// The counter of the reason why the engine drops the packet.
pub(super) fn locate<'a>(
    buffers: &[Received],
    memory: &'a Mapping,
    pieces: &'a mut Vec<Piece>,
    front: &'a mut [u8; FRONT_BYTES],
) -> Result<(Source<'a>, Meta), Count> {
    if buffers.len() > MAX_PARTS {
        return Err(Count::RxTooManyBuffers);
    }
    let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else {
        return Err(Count::RxMalformed);
    };
    if last.continues {
        return Err(Count::RxMalformed);
    }
    pieces.clear();
    pieces.extend(buffers.iter().map(|one| Piece { offset: one.offset, len: one.len }));
    let Some(tag) = first.tag else {
        return Ok((Source { prefix: &[], memory, pieces }, first.meta));
    };
    let (addresses, place) = front.split_at_mut(VlanTag::OFFSET);
    let Some(behind) = first.len.checked_sub(VlanTag::OFFSET as u32) else {
        return Err(Count::RxMalformed);
    };
    if !memory.copy_out(first.offset as usize, addresses) {
        return Err(Count::RxMalformed);
    }
    place.copy_from_slice(&tag.to_bytes());
    pieces[0] = Piece { offset: first.offset + VlanTag::OFFSET as u32, len: behind };
    Ok((Source { prefix: front, memory, pieces }, first.meta.with_tag(VlanTag::BYTES as u16)))
}
