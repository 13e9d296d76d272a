//! Packets in contiguous private memory, for code that inspects or keeps them.

use crate::{Meta, Part, Received, Spaces, VlanTag};

/// Memory in which a packet is assembled, reused from packet to packet.
#[derive(Debug, Default)]
pub struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Returns memory that need not grow for packets of up to `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Assembly {
        Assembly { bytes: Vec::with_capacity(bytes) }
    }

    /// Returns memory that holds a copy of a packet.
    #[must_use]
    pub fn copied(packet: &[u8]) -> Assembly {
        Assembly { bytes: packet.to_vec() }
    }

    /// Returns the first `len` bytes of the last packet, or all if that has fewer.
    #[must_use]
    pub fn first(&self, len: usize) -> &[u8] {
        &self.bytes[..len.min(self.bytes.len())]
    }

    /// Returns the packet's bytes; `None` when a part is not inside of its space. The caller's
    /// limits on the length of all parts also bound this memory.
    pub fn assemble(&mut self, spaces: &Spaces, parts: &[Part]) -> Option<&[u8]> {
        let mut at = 0;
        for part in parts {
            at = self.append(spaces, at, *part)?;
        }
        Some(&self.bytes[..at])
    }

    /// Returns the bytes and the metadata of a received packet, with a removed VLAN tag in its
    /// place. `buffers` are all of the packet's. Returns `None` when a buffer is not inside of its
    /// space, or when the packet ends before its tag's place.
    pub fn received(&mut self, spaces: &Spaces, buffers: &[Received]) -> Option<(&[u8], Meta)> {
        let first = buffers.first()?;
        let mut at = 0;
        for Received { space, offset, len, .. } in buffers.iter().copied() {
            at = self.append(spaces, at, Part { space, offset, len })?;
        }
        let Some(tag) = first.tag else { return Some((&self.bytes[..at], first.meta)) };
        let end = at + VlanTag::BYTES;
        if at < VlanTag::OFFSET {
            return None;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let behind = VlanTag::OFFSET + VlanTag::BYTES;
        self.bytes.copy_within(VlanTag::OFFSET..at, behind);
        self.bytes[VlanTag::OFFSET..behind].copy_from_slice(&tag.to_bytes());
        Some((&self.bytes[..end], first.meta.with_tag(VlanTag::BYTES as u16)))
    }

    /// Appends a part at an offset. Returns the offset of its end.
    fn append(&mut self, spaces: &Spaces, at: usize, part: Part) -> Option<usize> {
        // This checks before the memory grows, since a part may claim any length.
        spaces.readable(part.space, part.offset, part.len).ok()?;
        let end = at + part.len as usize;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        spaces.copy_out(part.space, part.offset, &mut self.bytes[at..end]).ok()?;
        Some(end)
    }
}
