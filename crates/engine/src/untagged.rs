//! Removes the outer VLAN tag of packets for endpoints that lie within the VLAN, and of packets whose tag carries only
//! a priority: the copy into the receive buffers leaves the tag out. `tx/tag.rs` inserts the tag into packets that
//! endpoints within a VLAN send.

use towpath_device::{TagProtocol, VlanTag};

use crate::source::{Packet, SegmentPieces, Source, TAGGED_BYTES};

/// Bytes of the private beginning of a packet without its tag.
pub(crate) const UNTAGGED_BYTES: usize = TAGGED_BYTES - VlanTag::BYTES;
/// The end of a tag in a packet.
const END: usize = VlanTag::OFFSET + VlanTag::BYTES;

/// Returns a tagged packet without its outer tag. Returns `None` for the
/// tag of a service provider's VLAN (IEEE 802.1ad), unless it is a priority tag: customers' VLANs have the same numbers,
/// and the application could not tell the two kinds apart. Also returns `None` if the packet or its metadata leave no
/// room for a tag. `room` and `pieces` are memory for the result.
pub(crate) fn without_tag<'a>(
    packet: &Packet<'a>,
    room: &'a mut [u8; UNTAGGED_BYTES],
    pieces: &'a mut SegmentPieces,
) -> Option<Packet<'a>> {
    let &Packet { source, beginning, meta } = packet;
    let tag = VlanTag::of(beginning)?;
    if tag.protocol == TagProtocol::Service && !tag.is_priority_tag() {
        return None;
    }
    let meta = meta.without_tag(VlanTag::BYTES as u16)?;
    let (addresses, kept) = (beginning.get(..VlanTag::OFFSET)?, beginning.get(END..)?);
    room.get_mut(..VlanTag::OFFSET)?.copy_from_slice(addresses);
    room.get_mut(VlanTag::OFFSET..)?.get_mut(..kept.len())?.copy_from_slice(kept);
    let beginning = room.get(..VlanTag::OFFSET + kept.len())?;
    // The private beginning of a packet of the device is only a copy, of which the source has the
    // first bytes at most.
    let inside = source.prefix.len().max(END);
    let prefix = beginning.get(..inside - VlanTag::BYTES)?;
    let pieces = pieces.cut_behind(&source, inside)?;
    let source = Source { prefix, memory: source.memory, pieces };
    Some(Packet { source, beginning, meta })
}

#[cfg(test)]
mod tests {
    use towpath_memory::Region;
    use towpath_packet::build::Flow;
    use towpath_packet::segment::MAX_HEADER_BYTES;

    use super::*;
    use crate::source::{Piece, WHOLE_BYTES};

    /// Packets lose exactly their tag, whatever the lengths of the private prefix and of the pieces.
    #[test]
    fn a_tag_is_left_out_wherever_the_packet_lies() {
        let flow = Flow::v4();
        let payload: Vec<u8> = (0..400).map(|at| at as u8).collect();
        let (tagged, meta) = flow.vlan(0xe007).udp_partial(&payload);
        let (expected, expected_meta) = flow.udp_partial(&payload);
        let mut memory = Region::private(4096).unwrap();
        assert!(memory.copy_in(0, &tagged));
        let mut to = Region::private(4096).unwrap();
        let prefixes = [0, END, END + 1, 60, MAX_HEADER_BYTES, WHOLE_BYTES, TAGGED_BYTES];
        for (prefix, first) in
            prefixes.iter().flat_map(|prefix| [(prefix, 1), (prefix, 7), (prefix, 100)])
        {
            let (offset, first) = (*prefix as u32, first.min((tagged.len() - prefix) as u32));
            let all = [
                Piece { offset, len: first },
                Piece { offset: offset + first, len: tagged.len() as u32 - offset - first },
            ];
            let read = if *prefix > END { *prefix } else { 128 };
            let source =
                Source { prefix: &tagged[..*prefix], memory: memory.mapping(), pieces: &all };
            let packet = Packet { source, beginning: &tagged[..read], meta };
            let (mut room, mut pieces) = ([0; UNTAGGED_BYTES], SegmentPieces::new());
            let untagged = without_tag(&packet, &mut room, &mut pieces);
            let Packet { source, beginning, meta } = untagged.unwrap();
            assert_eq!(meta, expected_meta);
            assert_eq!(beginning, &expected[..read - VlanTag::BYTES]);
            assert_eq!(source.len(), expected.len());
            let mut reader = crate::source::Reader::new(source);
            assert!(reader.copy(expected.len(), &mut to, 0), "{prefix} {first}");
            assert_eq!(to.bytes(0, expected.len()), Some(&expected[..]), "{prefix} {first}");
        }
    }

    #[test]
    fn a_service_providers_tag_stays() {
        let memory = Region::private(4096).unwrap();
        let mut tagged = Flow::v4().vlan(7).udp(b"tagged");
        for (ethertype, is_removed) in [([0x81, 0x00], true), ([0x88, 0xa8], false)] {
            tagged[VlanTag::OFFSET..VlanTag::OFFSET + 2].copy_from_slice(&ethertype);
            let source = Source { prefix: &tagged, memory: memory.mapping(), pieces: &[] };
            let meta = towpath_device::Meta::FULL;
            let packet = Packet { source, beginning: &tagged, meta };
            let (mut room, mut pieces) = ([0; UNTAGGED_BYTES], SegmentPieces::new());
            assert_eq!(without_tag(&packet, &mut room, &mut pieces).is_some(), is_removed);
        }
    }

    #[test]
    fn a_packet_too_short_for_a_tag_has_no_form_without() {
        let memory = Region::private(4096).unwrap();
        let pieces = [Piece { offset: 0, len: 15 }];
        let source = Source { prefix: &[], memory: memory.mapping(), pieces: &pieces };
        let meta = towpath_device::Meta::FULL;
        let packet = Packet { source, beginning: &[0; 15], meta };
        let (mut room, mut pieces) = ([0; UNTAGGED_BYTES], SegmentPieces::new());
        assert!(without_tag(&packet, &mut room, &mut pieces).is_none());
    }
}
