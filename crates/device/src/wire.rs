//! Packets in contiguous private memory, for the wrappers that inspect or keep them.

use crate::{Part, Spaces};

/// Memory in which a wrapper assembles a packet, reused from packet to packet.
#[derive(Default)]
pub(crate) struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Returns the packet's bytes; `None` when a part is not inside of its space. The caller's
    /// limits on the length of all parts also bound this memory.
    pub(crate) fn assemble(&mut self, spaces: &Spaces, parts: &[Part]) -> Option<&[u8]> {
        let mut at = 0;
        for part in parts {
            // This checks before the memory grows, since a part may claim any length.
            spaces.readable(part.space, part.offset, part.len).ok()?;
            let end = at + part.len as usize;
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            spaces.copy_out(part.space, part.offset, &mut self.bytes[at..end]).ok()?;
            at = end;
        }
        Some(&self.bytes[..at])
    }
}
