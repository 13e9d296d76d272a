//! A received packet in memory of its own, which a driver and readers exchange.

use towpath_device::{Assembly, Meta, Received, Spaces};

/// A received packet.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    memory: Assembly,
    len: usize,
    meta: Meta,
}

impl Packet {
    /// Returns memory that need not grow for packets of up to `bytes` bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Packet {
        Packet { memory: Assembly::with_capacity(bytes), ..Packet::default() }
    }

    #[cfg(test)]
    pub(crate) fn copied(bytes: &[u8]) -> Packet {
        let (memory, len) = (Assembly::copied(bytes), bytes.len());
        Packet { memory, len, meta: Meta::FULL }
    }

    /// Copies a packet out of its buffers. Returns `false` if it is not inside of them.
    pub(crate) fn copy(&mut self, spaces: &Spaces, buffers: &[Received]) -> bool {
        let Some((bytes, meta)) = self.memory.received(spaces, buffers) else { return false };
        (self.len, self.meta) = (bytes.len(), meta);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.first(self.len)
    }

    pub(crate) fn meta(&self) -> Meta {
        self.meta
    }
}
