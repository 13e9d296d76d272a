//! VLAN tags beside a frame's bytes.

use crate::numbers::{ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN};

/// The kind of a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagProtocol {
    /// A customer's tag (IEEE 802.1Q, ethertype 0x8100).
    Customer,
    /// A service provider's tag (IEEE 802.1ad, ethertype 0x88a8).
    Service,
}

/// A VLAN tag that a device removed from a frame. In a frame, the tag follows the two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// The kind.
    pub protocol: TagProtocol,
    /// The tag control information: priority, drop eligibility and VLAN number (IEEE 802.1Q, 9.6).
    pub control: u16,
}

impl VlanTag {
    /// The offset of the tag in a frame, in bytes.
    pub const OFFSET: usize = 12;
    /// The size of the tag in a frame, in bytes.
    pub const BYTES: usize = 4;

    /// Returns `true` if the tag carries only a priority, and names no VLAN (IEEE 802.1Q, 9.6).
    #[must_use]
    pub fn is_priority_tag(self) -> bool {
        self.control & 0xfff == 0
    }

    /// Returns the tag as it is in a frame.
    #[must_use]
    pub fn to_bytes(self) -> [u8; VlanTag::BYTES] {
        let ethertype = match self.protocol {
            TagProtocol::Customer => ETHERTYPE_VLAN,
            TagProtocol::Service => ETHERTYPE_SERVICE_VLAN,
        };
        let ([a, b], [c, d]) = (ethertype.to_be_bytes(), self.control.to_be_bytes());
        [a, b, c, d]
    }

    /// Returns the outer tag of a frame; `None` for an untagged frame, and for one that ends within
    /// the tag.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<VlanTag> {
        let tag = frame.get(VlanTag::OFFSET..VlanTag::OFFSET + VlanTag::BYTES)?;
        let protocol = match u16::from_be_bytes([tag[0], tag[1]]) {
            ETHERTYPE_VLAN => TagProtocol::Customer,
            ETHERTYPE_SERVICE_VLAN => TagProtocol::Service,
            _ => return None,
        };
        Some(VlanTag { protocol, control: u16::from_be_bytes([tag[2], tag[3]]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_as_it_was_written() {
        for protocol in [TagProtocol::Customer, TagProtocol::Service] {
            let tag = VlanTag { protocol, control: 0xe007 };
            let mut frame = [0; 20];
            frame[12..16].copy_from_slice(&tag.to_bytes());
            assert_eq!(VlanTag::of(&frame), Some(tag));
            assert_eq!(VlanTag::of(&frame[..15]), None, "cut off");
            assert!(!tag.is_priority_tag() && VlanTag { control: 0xf000, ..tag }.is_priority_tag());
        }
        assert_eq!(VlanTag::of(&[0; 60]), None);
    }
}
