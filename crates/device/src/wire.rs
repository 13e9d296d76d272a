//! Packets in one piece of private memory, for the wrappers that look at or keep them.

use crate::{Part, Spaces};

/// Memory in which a wrapper puts a packet together, kept from packet to packet.
#[derive(Default)]
pub(crate) struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Returns the packet's bytes; `None` when a part is not inside of its space. The parts
    /// together are as long as the driver's limits let them be, so this stays as small.
    pub(crate) fn assemble(&mut self, spaces: &Spaces, parts: &[Part]) -> Option<&[u8]> {
        let mut at = 0;
        for part in parts {
            // Checked before the memory grows: a part may claim to be of any length.
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
