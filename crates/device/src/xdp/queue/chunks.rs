//! The receive buffers of a queue, as chunks of its memory: where each begins, and what holds it. A
//! ledger notes the holders for the next server.

use crate::xdp::ledger::ChunkLedger;
use crate::xdp::socket::{Umem, XdpSocket};

/// The holder of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The engine, or nothing yet.
    Engine,
    /// The socket of a hardware queue.
    Socket(u32),
    /// The driver, for packets of the packet sockets.
    Rings,
}

impl Holder {
    fn word(self) -> u64 {
        match self {
            Holder::Engine => 0,
            Holder::Rings => 1,
            Holder::Socket(hardware) => 2 + u64::from(hardware),
        }
    }
}

/// At most one in so many buffers may be in no ring. The kernel may have a few of these; a server that
/// is killed between two stores leaves up to a batch.
const MISSING_ONE_IN: u32 = 8;

/// The bits of an address with an offset, in memory whose buffers begin anywhere
/// (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`, `linux/if_xdp.h`).
const OFFSET_SHIFT: u32 = 48;

/// The chunks that may be receive buffers.
pub(super) struct Chunks {
    /// The distance from one to the next, in bytes.
    bytes: u32,
    /// The bytes of the registered memory.
    memory_bytes: u64,
    /// `true` if addresses of received data have an offset of their own.
    unaligned: bool,
    holders: Vec<Holder>,
    ledger: Option<ChunkLedger>,
}

impl Chunks {
    pub(super) fn new(umem: &Umem, ledger: Option<ChunkLedger>) -> Chunks {
        Chunks {
            bytes: umem.chunk_bytes,
            memory_bytes: umem.bytes(),
            unaligned: umem.own_buffers.is_some(),
            holders: vec![Holder::Engine; umem.buffers() as usize],
            ledger,
        }
    }

    /// Finds the holders of an earlier server's buffers, whose sockets go on. A buffer that its ledger
    /// gives to a socket is that socket's until a packet comes in it; what the rings name is the
    /// sockets' in any case. Returns `false` if too many buffers are in no ring: then the caller binds
    /// new sockets.
    pub(super) fn go_on(&mut self, sockets: &mut [XdpSocket]) -> bool {
        for chunk in 0..self.holders.len() {
            let word = self.ledger.as_ref().map_or(0, |ledger| ledger.get(chunk));
            let of_socket = sockets.iter().map(|one| Holder::Socket(one.hardware));
            let holder = of_socket.into_iter().find(|holder| holder.word() == word);
            self.set(chunk, holder.unwrap_or(Holder::Engine));
        }
        let mut in_rings = 0;
        for socket in sockets.iter_mut() {
            let received = socket.rx.available(u32::MAX);
            let received = (0..received).map(|ahead| socket.rx.peek(ahead).address);
            for address in socket.fill.waiting().chain(received) {
                let chunk = (address / u64::from(self.bytes)) as usize;
                if chunk < self.holders.len() {
                    self.set(chunk, Holder::Socket(socket.hardware));
                    in_rings += 1;
                }
            }
        }
        let mut held = 0;
        for (at, socket) in sockets.iter_mut().enumerate() {
            let holder = Holder::Socket(socket.hardware);
            socket.held = self.holders.iter().filter(|one| **one == holder).count() as u32;
            socket.kernel_drops = self.ledger.as_ref().map_or(0, |ledger| ledger.drops(at));
            held += socket.held;
        }
        held.saturating_sub(in_rings) <= self.holders.len() as u32 / MISSING_ONE_IN
    }

    /// Notes the kernel's count of dropped packets of a socket, by its place among the sockets.
    pub(super) fn note_drops(&mut self, socket: usize, drops: u64) {
        if let Some(ledger) = &mut self.ledger {
            ledger.note_drops(socket, drops);
        }
    }

    /// Returns `true` if the engine does not have the chunk at an offset.
    pub(super) fn is_held(&self, offset: u32) -> bool {
        self.at(offset).is_some_and(|chunk| self.holders[chunk] != Holder::Engine)
    }

    /// Returns the most bytes of a descriptor to send that begins at an address.
    #[inline]
    pub(super) fn room_at(&self, address: u64) -> u64 {
        let bytes = u64::from(self.bytes);
        if self.unaligned { bytes } else { bytes - address % bytes }
    }

    /// Returns `true` if so many bytes are in front of an address, in its chunk.
    #[inline]
    pub(super) fn has_in_front(&self, address: u64, bytes: u64) -> bool {
        self.unaligned || address % u64::from(self.bytes) >= bytes
    }

    /// Returns `true` if an address is in the memory.
    #[inline]
    pub(super) fn has(&self, address: u64) -> bool {
        address < self.memory_bytes
    }

    /// Returns the chunk that begins at an offset, if the engine has it.
    pub(super) fn of_engine(&self, offset: u32) -> Option<usize> {
        self.at(offset).filter(|chunk| self.holders[*chunk] == Holder::Engine)
    }

    /// Returns the chunk in which a socket put data, and the data's offset in the memory. `None`
    /// for a chunk that no socket has, which is a fault of a driver.
    pub(super) fn received(&self, address: u64) -> Option<(usize, u32)> {
        let (base, data) = if self.unaligned {
            let base = address & ((1 << OFFSET_SHIFT) - 1);
            (base, base + (address >> OFFSET_SHIFT))
        } else {
            (address, address)
        };
        let chunk = (base / u64::from(self.bytes)) as usize;
        matches!(self.holders.get(chunk)?, Holder::Socket(_)).then_some((chunk, data as u32))
    }

    /// Returns the chunk that begins at an offset.
    pub(super) fn at(&self, offset: u32) -> Option<usize> {
        let chunk = (offset / self.bytes) as usize;
        (chunk < self.holders.len() && self.offset(chunk) == offset).then_some(chunk)
    }

    /// Returns the offset of a chunk.
    pub(super) fn offset(&self, chunk: usize) -> u32 {
        chunk as u32 * self.bytes
    }

    /// Records what holds a chunk.
    pub(super) fn set(&mut self, chunk: usize, holder: Holder) {
        self.holders[chunk] = holder;
        if let Some(ledger) = &mut self.ledger {
            ledger.set(chunk, holder.word());
        }
    }

    /// Records that the engine has the buffer at an offset again.
    pub(super) fn take(&mut self, offset: u32) {
        self.set((offset / self.bytes) as usize, Holder::Engine);
    }

    /// Gives the engine the buffers of the holders that `which` selects. Appends their offsets to
    /// `buffers`.
    pub(super) fn take_all(&mut self, buffers: &mut Vec<u32>, which: impl Fn(Holder) -> bool) {
        for chunk in 0..self.holders.len() {
            let holder = self.holders[chunk];
            if holder != Holder::Engine && which(holder) {
                self.set(chunk, Holder::Engine);
                buffers.push(chunk as u32 * self.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use towpath_memory::Region;

    use super::*;
    use crate::xdp::socket::TxChecksum;

    fn chunks(chunk_bytes: u32, own_buffers: Option<u32>) -> Chunks {
        let memory: Arc<_> = Region::private(16 * 4096).unwrap().mapping().clone();
        let umem = Umem { memory, chunk_bytes, tx_checksum: TxChecksum::Engine, own_buffers };
        Chunks::new(&umem, None)
    }

    #[test]
    fn data_lies_in_the_chunk_of_its_address() {
        let mut chunks = chunks(2048, None);
        assert_eq!((chunks.of_engine(2048), chunks.of_engine(2047)), (Some(1), None));
        assert_eq!(chunks.received(2048 + 256), None, "no socket has the chunk");
        chunks.set(1, Holder::Socket(0));
        assert_eq!(chunks.of_engine(2048), None);
        assert_eq!(chunks.received(2048 + 256), Some((1, 2048 + 256)));
        chunks.take(2048);
        assert_eq!(chunks.of_engine(2048), Some(1));
        assert_eq!((chunks.room_at(2048 + 256), chunks.room_at(4096)), (2048 - 256, 2048));
    }

    /// The buffers of a session are at the front of its queue's memory, at any distance.
    #[test]
    fn a_session_has_buffers_at_the_front_and_addresses_with_offsets() {
        let mut chunks = chunks(2176, Some(3));
        assert_eq!((chunks.of_engine(2 * 2176), chunks.of_engine(3 * 2176)), (Some(2), None));
        chunks.set(2, Holder::Socket(5));
        let address = (2 * 2176) | (256 << OFFSET_SHIFT);
        assert_eq!(chunks.received(address), Some((2, 2 * 2176 + 256)));
        assert_eq!(chunks.room_at(100), 2176);
        assert!(chunks.has(16 * 4096 - 1) && !chunks.has(16 * 4096));
        let mut buffers = Vec::new();
        chunks.take_all(&mut buffers, |holder| holder != Holder::Socket(5));
        assert!(buffers.is_empty());
        chunks.take_all(&mut buffers, |_| true);
        assert_eq!(buffers, [2 * 2176]);
    }
}
