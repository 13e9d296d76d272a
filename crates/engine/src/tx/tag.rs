//! Inserts the VLAN tag into packets of endpoints within a VLAN, where the device does not. The engine
//! checks such a packet without a tag, and then inserts the tag into the checked headers, which lie in
//! private memory. From there on the packet is one with a tag: for flow rules, captures, segmentation
//! and the device.

use towpath_device::{Meta, VlanTag};
use towpath_packet::headers::Headers;

use crate::tx::bounce::BounceBuffers;

/// Inserts a tag into a checked packet of `len` bytes without one, whose beginning is in a slot, and
/// reads its headers again. Returns the length of the packet with its tag, and its metadata. Returns
/// `None` if the slot has no room for the tag.
#[cold]
pub(super) fn insert_tag(
    bounce: &mut BounceBuffers,
    slot: u32,
    len: usize,
    tag: VlanTag,
    meta: Meta,
    headers: &mut Headers,
) -> Option<(usize, Meta)> {
    if !bounce.insert(slot, VlanTag::OFFSET, &tag.to_bytes()) {
        return None;
    }
    let len = len + VlanTag::BYTES;
    let is_whole = headers.read(bounce.bytes(slot), len).is_ok() && headers.malformed.is_none();
    is_whole.then(|| (len, meta.with_tag(VlanTag::BYTES as u16)))
}
