//! The bounce buffers: the server's private memory for packets to send. Each one is a slot.
//!
//! The engine fetches a packet's headers, or all of a small packet, from the application's memory
//! into a slot. It checks the packet there, and sends it from there.

use towpath_device::{Meta, Part, SpaceId};
use towpath_memory::Region;
use towpath_packet::checksum;
use towpath_queue::descriptor::Descriptor;
use towpath_queue::{HeapShape, PeerWords};

use crate::source::{Reader, Source};

/// Bytes of a packet's beginning that the engine copies and checks when it sends the rest in place.
pub(crate) const PREFIX_BYTES: usize = 128;
/// The engine copies packets up to this length whole.
pub(crate) const WHOLE_BYTES: usize = 256;

/// A bounce buffer, with the packet sent from it.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Valid bytes in the slot's memory.
    pub len: u32,
    /// Number of fetches of the packet's bytes.
    pub copies: u32,
    /// All parts of the packet; the first is in the slot.
    pub parts: Vec<Part>,
    /// The offload work left to the device.
    pub meta: Meta,
    /// The in-flight entry that the slot belongs to.
    pub flight: u32,
}

/// The server's memory for packets to send: one slot per packet, from the check until the device
/// completes it.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The slots' memory. The device reads it, too.
    memory: Region,
    slot_bytes: usize,
    /// The slots.
    pub slots: Vec<Slot>,
    free: towpath_queue::frames::FreeFrames,
    space: SpaceId,
}

impl Stage {
    /// Creates `slots` slots of `slot_bytes` each, in a region of private memory. The data space
    /// `space` is the mapping that contains the region.
    #[must_use]
    pub(crate) fn new(memory: Region, space: SpaceId, slots: u32, slot_bytes: usize) -> Stage {
        let slot = || Slot {
            len: 0,
            copies: 0,
            parts: Vec::with_capacity(towpath_device::MAX_PARTS + 1),
            meta: Meta::FINISHED,
            flight: 0,
        };
        Stage {
            memory,
            slot_bytes,
            slots: (0..slots).map(|_| slot()).collect(),
            free: towpath_queue::frames::FreeFrames::new(0, slots),
            space,
        }
    }

    /// Returns the number of free slots.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free slot.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.take()
    }

    /// Frees a slot.
    #[inline]
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.free.give_back(slot);
    }

    #[inline]
    fn start(&self, slot: u32) -> usize {
        slot as usize * self.slot_bytes
    }

    /// Fetches the first `len` bytes of a packet into a slot, and replaces its former content. The
    /// engine will check them, so they come by the fetch function. Returns `false` if the bytes do
    /// not fit, or do not exist.
    #[inline]
    pub(crate) fn fetch(
        &mut self,
        slot: u32,
        from: &PeerWords,
        heap: &HeapShape,
        packet: &[Descriptor],
        len: usize,
    ) -> bool {
        if len > self.slot_bytes {
            return false;
        }
        let entry = &mut self.slots[slot as usize];
        (entry.len, entry.copies) = (len as u32, 1);
        let start = self.start(slot);
        let mut at = 0;
        for one in packet {
            let now = (one.len as usize).min(len - at);
            if !self.memory.fetch(start + at, from, one.heap_offset(heap), now) {
                return false;
            }
            at += now;
            if at == len {
                return true;
            }
        }
        at == len
    }

    /// Fetches a packet's beginning again, and more of it, because the first fetch was too short.
    pub(crate) fn fetch_again(
        &mut self,
        slot: u32,
        from: &PeerWords,
        heap: &HeapShape,
        packet: &[Descriptor],
        len: usize,
    ) -> bool {
        let copies = self.slots[slot as usize].copies;
        let fetched = self.fetch(slot, from, heap, packet, len);
        self.slots[slot as usize].copies += copies;
        fetched
    }

    /// Appends payload to a slot's content, and completes a checksum over the whole. Returns
    /// `false` if the payload does not fit, or a range is out of bounds.
    pub(crate) fn append(
        &mut self,
        slot: u32,
        rest: Source<'_>,
        finish: Option<(u16, u16)>,
    ) -> bool {
        let start = self.start(slot);
        let held = self.slots[slot as usize].len as usize;
        let len = held + rest.len();
        if len > self.slot_bytes
            || !Reader::new(rest).copy(len - held, &mut self.memory, start + held)
        {
            return false;
        }
        self.slots[slot as usize].len = len as u32;
        self.finish(slot, finish)
    }

    fn finish(&mut self, slot: u32, finish: Option<(u16, u16)>) -> bool {
        let Some((checksum_start, offset)) = finish else { return true };
        let finished = checksum::finished(&[self.bytes(slot)], checksum_start, offset);
        finished.is_ok_and(|(field, value)| self.memory.copy_in(self.start(slot) + field, &value))
    }

    /// Returns a slot's content.
    #[inline]
    #[must_use]
    pub(crate) fn bytes(&self, slot: u32) -> &[u8] {
        let len = self.slots[slot as usize].len as usize;
        self.memory.bytes(self.start(slot), len).unwrap_or(&[])
    }

    /// Fills a slot with a frame of `header` and of `payload` bytes of the source from `from` on,
    /// and completes its checksum. Returns `false` if a range is out of bounds.
    pub(crate) fn build(
        &mut self,
        slot: u32,
        header: &[u8],
        source: Source<'_>,
        from: usize,
        payload: usize,
        finish: Option<(u16, u16)>,
    ) -> bool {
        let len = header.len() + payload;
        let start = self.start(slot);
        if len > self.slot_bytes || !self.memory.copy_in(start, header) {
            return false;
        }
        let mut reader = Reader::new(source);
        if !reader.skip(from) || !reader.copy(payload, &mut self.memory, start + header.len()) {
            return false;
        }
        self.slots[slot as usize].len = len as u32;
        self.finish(slot, finish)
    }

    /// Returns the place of a slot's memory, as a part to send.
    #[inline]
    #[must_use]
    pub(crate) fn part(&self, slot: u32) -> Part {
        Part {
            space: self.space,
            offset: (self.memory.offset() + self.start(slot)) as u32,
            len: self.slots[slot as usize].len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_queue::descriptor::HEADROOM_BYTES;

    use crate::source::Piece;

    fn region(bytes: &[u8]) -> Region {
        let mut region = Region::private(4096).unwrap();
        assert!(region.copy_in(0, bytes));
        region
    }

    #[test]
    fn a_slot_holds_what_was_put_there() {
        let memory = region(b"0123456789");
        let pieces = [Piece { offset: 0, len: 10 }];
        let source = Source { prefix: &[], memory: memory.mapping(), pieces: &pieces };
        let heap = HeapShape::new(4, 256).unwrap();
        let chain = [(0, 4), (1, 6)].map(|(frame, len)| Descriptor {
            frame,
            start: HEADROOM_BYTES,
            len,
            ..Descriptor::default()
        });
        let mut heap_bytes = vec![0; heap.heap_bytes()];
        for (one, text) in chain.iter().zip([b"0123".as_slice(), b"456789"]) {
            heap_bytes[one.heap_offset(&heap)..][..text.len()].copy_from_slice(text);
        }
        let frames = region(&heap_bytes);
        let mut slots = Region::private(4096).unwrap();
        let _pool = slots.split_off_front(1024);
        let mut stage = Stage::new(slots, SpaceId(0), 2, 256);
        let slot = stage.take().unwrap();
        let words = towpath_memory::peer_words(frames.mapping());
        assert!(stage.fetch(slot, &words, &heap, &chain, 9));
        assert_eq!(stage.bytes(slot), b"012345678");
        assert!(!stage.fetch(slot, &words, &heap, &chain, 257));
        assert!(!stage.fetch(slot, &words, &heap, &chain, 11), "more than there is");
        assert!(stage.fetch(slot, &words, &heap, &chain, 4));
        assert_eq!(stage.bytes(slot), b"0123");
        let rest = [Piece { offset: 8, len: 2 }];
        assert!(stage.append(slot, Source { pieces: &rest, ..source }, None));
        assert_eq!(stage.bytes(slot), b"012389");
        assert!(stage.build(slot, b"head", source, 8, 2, None));
        assert_eq!(stage.bytes(slot), b"head89");
        assert!(!stage.build(slot, b"head", source, 8, 3, None));
        assert!(stage.build(slot, &[0, 1, 0, 2, 0, 0], source, 8, 0, Some((0, 4))));
        assert_eq!(stage.bytes(slot), [0, 1, 0, 2, 0xff, 0xfc], "its checksum is finished");
        assert_eq!(stage.part(slot).offset, 1024 + slot * 256);
        stage.give_back(slot);
        assert_eq!(stage.free(), 2);
    }
}
