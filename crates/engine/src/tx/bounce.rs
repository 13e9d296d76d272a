//! The bounce buffers: the server's private memory for packets to send. Each one is a slot.
//!
//! A batch has fetched a packet's headers, or all of a small packet, from the application's memory. The engine moves
//! them into a slot, checks the packet there, and sends it from there.

use towpath_device::{MAX_PARTS, Meta, Part, SpaceId, TX_METADATA_BYTES, TxHeadroom, VlanTag};
use towpath_memory::{Mapping, Region};
use towpath_packet::checksum;
use towpath_queue::PoolShape;
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN};

use crate::own::OwnPlace;
use crate::port::BounceMemory;
use crate::source::{Reader, Source, WHOLE_BYTES};

/// A packet's parts are its bounce buffer and at most `MAX_CHAIN` buffers of the application.
const _: () = assert!(MAX_CHAIN < MAX_PARTS);

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
    /// The VLAN tag that the device inserts.
    pub tag: Option<VlanTag>,
    /// The in-flight entry that the slot belongs to.
    pub in_flight_slot: u32,
}

/// The server's memory for packets to send: one slot per packet, from the check until the device
/// completes it.
#[derive(Debug)]
pub(crate) struct BounceBuffers {
    /// The slots' memory. The device reads it, too.
    memory: Region,
    /// The distance from one slot to the next, and the room for a packet in each, behind its
    /// headroom.
    slot_bytes: usize,
    room_bytes: usize,
    headroom: TxHeadroom,
    /// The slots.
    pub slots: Vec<Slot>,
    free: towpath_queue::buffers::FreeBuffers,
    space: SpaceId,
}

impl BounceBuffers {
    /// Creates as many slots as the memory has room for.
    #[must_use]
    pub(crate) fn new(memory: BounceMemory) -> BounceBuffers {
        let BounceMemory { region: memory, space, slots, slot_bytes, headroom, .. } = memory;
        let slot = || Slot {
            len: 0,
            copies: 0,
            parts: Vec::with_capacity(MAX_PARTS),
            meta: Meta::FULL,
            tag: None,
            in_flight_slot: 0,
        };
        BounceBuffers {
            memory,
            slot_bytes,
            room_bytes: slot_bytes - headroom.bytes(),
            headroom,
            slots: (0..slots).map(|_| slot()).collect(),
            free: towpath_queue::buffers::FreeBuffers::new(0, slots),
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
    pub(crate) fn release(&mut self, slot: u32) {
        self.free.release(slot);
    }

    #[inline]
    fn start(&self, slot: u32) -> usize {
        slot as usize * self.slot_bytes + self.headroom.bytes()
    }

    /// Fills a slot with a packet's beginning, which the engine has fetched, and for which every
    /// slot has room.
    #[inline]
    pub(crate) fn hold(&mut self, slot: u32, beginning: &[u8]) {
        let entry = &mut self.slots[slot as usize];
        (entry.len, entry.copies) = (beginning.len() as u32, 1);
        let start = self.start(slot);
        if !self.memory.copy_in(start, beginning) {
            self.slots[slot as usize].len = 0;
        }
    }

    /// Fetches the first `len` bytes of a packet into a slot, and replaces its former content. The
    /// engine checks the copy, which no other process can change. Returns `false` if the bytes do
    /// not fit, or do not exist.
    fn fetch(
        &mut self,
        slot: u32,
        from: &Mapping,
        pool: &PoolShape,
        packet: &[Descriptor],
        len: usize,
    ) -> bool {
        if len > self.room_bytes {
            return false;
        }
        let entry = &mut self.slots[slot as usize];
        (entry.len, entry.copies) = (len as u32, 1);
        let start = self.start(slot);
        let mut at = 0;
        for one in packet {
            let now = (one.len as usize).min(len - at);
            if !self.memory.copy_from(start + at, from, one.pool_offset(pool), now) {
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
        from: &Mapping,
        pool: &PoolShape,
        packet: &[Descriptor],
        len: usize,
    ) -> bool {
        let copies = self.slots[slot as usize].copies;
        let fetched = self.fetch(slot, from, pool, packet, len);
        self.slots[slot as usize].copies += copies;
        fetched
    }

    /// Inserts bytes into a slot's content, at an offset inside it. Returns `false` if they do not
    /// fit, or the content is longer than a fetched beginning.
    pub(crate) fn insert(&mut self, slot: u32, at: usize, bytes: &[u8]) -> bool {
        let mut behind = [0; WHOLE_BYTES];
        let held = self.bytes(slot);
        let (Some(moved), len) = (held.get(at..), held.len() + bytes.len()) else { return false };
        let Some(behind) = behind.get_mut(..moved.len()) else { return false };
        if len > self.room_bytes {
            return false;
        }
        behind.copy_from_slice(moved);
        let start = self.start(slot) + at;
        self.slots[slot as usize].len = len as u32;
        self.memory.copy_in(start, bytes) && self.memory.copy_in(start + bytes.len(), behind)
    }

    /// Appends payload to a slot's content, and completes a checksum over the whole. Returns
    /// `false` if the payload does not fit, or a range is out of bounds.
    pub(crate) fn append(
        &mut self,
        slot: u32,
        rest: Source<'_>,
        complete: Option<(u16, u16)>,
    ) -> bool {
        let start = self.start(slot);
        let held = self.slots[slot as usize].len as usize;
        let len = held + rest.len();
        if len > self.room_bytes
            || !Reader::new(rest).copy(len - held, &mut self.memory, start + held)
        {
            return false;
        }
        self.slots[slot as usize].len = len as u32;
        self.complete(slot, complete)
    }

    fn complete(&mut self, slot: u32, complete: Option<(u16, u16)>) -> bool {
        let Some((checksum_start, offset)) = complete else { return true };
        let completed = checksum::completed(&[self.bytes(slot)], checksum_start, offset);
        completed.is_ok_and(|(field, value)| self.memory.copy_in(self.start(slot) + field, &value))
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
        complete: Option<(u16, u16)>,
    ) -> bool {
        let len = header.len() + payload;
        let start = self.start(slot);
        if len > self.room_bytes || !self.memory.copy_in(start, header) {
            return false;
        }
        let mut reader = Reader::new(source);
        if !reader.skip(from) || !reader.copy(payload, &mut self.memory, start + header.len()) {
            return false;
        }
        self.slots[slot as usize].len = len as u32;
        self.complete(slot, complete)
    }

    /// Writes what the device reads in front of a packet with offload work.
    #[inline]
    pub(crate) fn prepare(&mut self, slot: u32, meta: &Meta) {
        if self.headroom != TxHeadroom::None && !meta.is_full() {
            let at = self.start(slot) - TX_METADATA_BYTES;
            let written = self.memory.copy_in(at, &self.headroom.metadata(meta));
            debug_assert!(written, "a slot's headroom is inside");
        }
    }

    /// Returns the position of a slot's content in its data space, as a part to send; or in that of
    /// the sender's own queue.
    #[inline]
    #[must_use]
    pub(crate) fn part(&self, slot: u32, own: Option<OwnPlace>) -> Part {
        if let Some(own) = own {
            return own.bounce_part(self.start(slot) as u32, self.slots[slot as usize].len);
        }
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
    fn a_slot_holds_the_fetched_bytes() {
        let memory = region(b"0123456789");
        let pieces = [Piece { offset: 0, len: 10 }];
        let source = Source { prefix: &[], memory: memory.mapping(), pieces: &pieces };
        let pool = PoolShape::new(4, 256).unwrap();
        let chain = [(0, 4), (1, 6)].map(|(buffer, len)| Descriptor {
            buffer,
            start: HEADROOM_BYTES,
            len,
            ..Descriptor::default()
        });
        let mut pool_bytes = vec![0; pool.pool_bytes()];
        for (one, text) in chain.iter().zip([b"0123".as_slice(), b"456789"]) {
            pool_bytes[one.pool_offset(&pool)..][..text.len()].copy_from_slice(text);
        }
        let buffers = region(&pool_bytes);
        let mut slots = Region::private(4096).unwrap();
        let _pool = slots.split_off_front(1024);
        let memory = BounceMemory {
            region: slots,
            space: SpaceId(0),
            slots: 2,
            slot_bytes: 256,
            headroom: TxHeadroom::None,
            file: None,
        };
        let mut bounce = BounceBuffers::new(memory);
        let slot = bounce.take().unwrap();
        let words = buffers.mapping();
        assert!(bounce.fetch(slot, words, &pool, &chain, 9));
        assert_eq!(bounce.bytes(slot), b"012345678");
        assert!(!bounce.fetch(slot, words, &pool, &chain, 257));
        assert!(!bounce.fetch(slot, words, &pool, &chain, 11), "more than there is");
        bounce.hold(slot, b"0123");
        assert_eq!(bounce.bytes(slot), b"0123");
        let rest = [Piece { offset: 8, len: 2 }];
        assert!(bounce.append(slot, Source { pieces: &rest, ..source }, None));
        assert_eq!(bounce.bytes(slot), b"012389");
        assert!(bounce.build(slot, b"head", source, 8, 2, None));
        assert_eq!(bounce.bytes(slot), b"head89");
        assert!(!bounce.build(slot, b"head", source, 8, 3, None));
        assert!(bounce.build(slot, &[0, 1, 0, 2, 0, 0], source, 8, 0, Some((0, 4))));
        assert_eq!(bounce.bytes(slot), [0, 1, 0, 2, 0xff, 0xfc], "its checksum is full");
        assert_eq!(bounce.part(slot, None).offset, 1024 + slot * 256);
        bounce.release(slot);
        assert_eq!(bounce.free(), 2);
    }

    #[test]
    fn a_slot_has_its_headroom_in_front_of_the_packet() {
        let mut region = Region::private(4096).unwrap();
        let whole = region.mapping().clone();
        let _pool = region.split_off_front(1024);
        let headroom = TxHeadroom::Xsk;
        let memory = BounceMemory {
            region,
            space: SpaceId(0),
            slots: 2,
            slot_bytes: 512,
            headroom,
            file: None,
        };
        let mut bounce = BounceBuffers::new(memory);
        let _first = bounce.take().unwrap();
        let slot = bounce.take().unwrap();
        bounce.hold(slot, b"beginning");
        let start = 1024 + slot * 512 + 64;
        assert_eq!(bounce.part(slot, None).offset, start);
        let in_front = || {
            let mut bytes = [0; TX_METADATA_BYTES];
            assert!(whole.copy_out(start as usize - TX_METADATA_BYTES, &mut bytes));
            bytes
        };
        bounce.prepare(slot, &Meta::FULL);
        assert_eq!(in_front(), [0; TX_METADATA_BYTES]);
        let checksum = towpath_device::Checksum::Partial { start: 34, offset: 6 };
        let meta = Meta { checksum, segmentation: None };
        bounce.prepare(slot, &meta);
        assert_eq!(in_front(), headroom.metadata(&meta));
        assert_eq!(bounce.bytes(slot), b"beginning");
        // A packet has the rest of the slot.
        let source = Source { prefix: &[7; 448], memory: &whole, pieces: &[] };
        assert!(bounce.build(slot, &[], source, 0, 448, None));
        assert!(!bounce.build(slot, &[7], source, 0, 448, None));
        assert_eq!(in_front(), headroom.metadata(&meta));
    }
}
