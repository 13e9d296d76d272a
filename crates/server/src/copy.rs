//! The trust boundary: where bytes change from one side's memory to another's.
//!
//! On transmit a packet's headers, or all of a small packet, are copied from the application's
//! memory into the server's ([`Stage`]), checked there and sent from there. On receive a packet is
//! copied once, into frames of a heap that only the server writes. Copies are counted here and
//! nowhere else.
//!
//! Unsafe lives here because checksums are finished in place, in memory that only the server
//! writes: the stage, which is private, and receive heaps, which applications have mapped for
//! reading alone.

use std::io;
use std::sync::Arc;

use towpath_device::{Meta, Part, SpaceId};
use towpath_packet::checksum;
use towpath_protocol::memory::Mapping;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN, META};
use towpath_queue::frames::Ledger;
use towpath_queue::{HeapShape, PeerWords, Violation};

use crate::session::{QueueSet, Session};
use towpath_protocol::counters::{self, Endpoint as Count};

/// Bytes in one memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    /// From where.
    pub offset: u32,
    /// How many.
    pub len: u32,
}

/// Where a packet's bytes are: a checked beginning in private memory, and pieces of one other
/// memory, in order.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The beginning, private.
    pub prefix: &'a [u8],
    /// The memory that the rest is in.
    pub memory: &'a Mapping,
    /// The rest.
    pub pieces: &'a [Piece],
}

impl Source<'_> {
    /// Length of the packet, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a packet is never empty")]
    pub fn len(&self) -> usize {
        self.prefix.len() + self.pieces.iter().map(|piece| piece.len as usize).sum::<usize>()
    }
}

/// Reads a source from front to back.
struct Reader<'a> {
    source: Source<'a>,
    at: usize,
    piece: usize,
    within: usize,
}

impl<'a> Reader<'a> {
    fn new(source: Source<'a>) -> Reader<'a> {
        Reader { source, at: 0, piece: 0, within: 0 }
    }

    /// Copies the next `len` bytes to a place; `false` when there are not so many, or no such
    /// place.
    #[inline]
    fn copy(&mut self, mut len: usize, to: &Mapping, mut offset: usize) -> bool {
        if self.at < self.source.prefix.len() {
            let now = len.min(self.source.prefix.len() - self.at);
            if !to.copy_in(offset, &self.source.prefix[self.at..self.at + now]) {
                return false;
            }
            self.at += now;
            len -= now;
            offset += now;
        }
        while len > 0 {
            let Some(piece) = self.source.pieces.get(self.piece) else { return false };
            let now = len.min(piece.len as usize - self.within);
            let from = piece.offset as usize + self.within;
            if !to.copy_from(offset, self.source.memory, from, now) {
                return false;
            }
            self.within += now;
            if self.within == piece.len as usize {
                self.piece += 1;
                self.within = 0;
            }
            len -= now;
            offset += now;
        }
        true
    }
}

/// What became of a packet on its way to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It is in the receive queue.
    Yes,
    /// The application had provided too few frames.
    NoFrames,
    /// It is longer than any chain, or its places contradict each other.
    Unusable,
}

/// Copies one packet into the next provided frames of a queue set. `finish`: where a checksum is
/// to be finished in the copy, as [`towpath_device::Checksum::Unfinished`] has it.
#[inline]
pub fn deliver(
    session: &mut Session,
    endpoint: u32,
    queue_set: usize,
    source: Source<'_>,
    meta: Meta,
    finish: Option<(u16, u16)>,
    flags: u16,
) -> Delivered {
    let len = source.len();
    let one_frame = len.wrapping_sub(1) < session.shape.receive_heap.data_bytes() as usize;
    let outcome = if one_frame && finish.is_none() && meta == Meta::FINISHED {
        deliver_frame(session, endpoint, queue_set, source, len, flags)
    } else {
        deliver_chain(session, endpoint, queue_set, source, meta, finish, flags)
    };
    if outcome == Delivered::Yes {
        for (count, by) in
            [(Count::RxPackets, 1), (Count::RxBytes, len as u64), (Count::RxCopies, 1)]
        {
            counters::add(&mut session.counters, session_word(endpoint, count), by);
        }
    }
    outcome
}

/// What most packets are: finished, and in one frame.
#[inline]
fn deliver_frame(
    session: &mut Session,
    endpoint: u32,
    queue_set: usize,
    source: Source<'_>,
    len: usize,
    flags: u16,
) -> Delivered {
    let heap = session.shape.receive_heap;
    let set = &mut session.queue_sets[queue_set];
    let available = set.receive.available();
    if available == 0 && !observe(set, &mut session.receive_ledger, &mut session.violation, 1) {
        return Delivered::NoFrames;
    }
    let memory: &Mapping = &session.receive_heap;
    if available > AHEAD {
        let frame = set.receive.frame(AHEAD);
        memory.prefetch_to_write(heap.frame_offset(frame) + HEADROOM_BYTES as usize);
    }
    let frame = set.receive.frame(0);
    let mut at = heap.frame_offset(frame) + HEADROOM_BYTES as usize;
    let mut copied = memory.copy_in(at, source.prefix);
    at += source.prefix.len();
    for piece in source.pieces {
        let (from, len) = (piece.offset as usize, piece.len as usize);
        copied &= memory.copy_from(at, source.memory, from, len);
        at += len;
    }
    if !copied {
        return Delivered::Unusable;
    }
    let descriptor = Descriptor { frame, start: HEADROOM_BYTES, len: len as u32, endpoint, flags };
    set.receive.push(&mut session.receive_ledger, descriptor);
    Delivered::Yes
}

/// Looks what the application has provided since. Whether there are `frames`.
#[inline(never)]
fn observe(
    set: &mut QueueSet,
    ledger: &mut Ledger,
    violated: &mut Option<Violation>,
    frames: usize,
) -> bool {
    match set.receive.observe(ledger) {
        Ok(available) => available as usize >= frames,
        Err(violation) => {
            violated.get_or_insert(violation);
            false
        }
    }
}

fn deliver_chain(
    session: &mut Session,
    endpoint: u32,
    queue_set: usize,
    source: Source<'_>,
    meta: Meta,
    finish: Option<(u16, u16)>,
    flags: u16,
) -> Delivered {
    let len = source.len();
    let heap = session.shape.receive_heap;
    let data_bytes = heap.data_bytes() as usize;
    let frames = len.div_ceil(data_bytes);
    if frames == 0 || frames > MAX_CHAIN {
        return Delivered::Unusable;
    }
    let set = &mut session.queue_sets[queue_set];
    if (set.receive.available() as usize) < frames
        && !observe(set, &mut session.receive_ledger, &mut session.violation, frames)
    {
        return Delivered::NoFrames;
    }
    let memory: &Mapping = &session.receive_heap;
    let mut reader = Reader::new(source);
    for place in 0..frames {
        let offset = heap.frame_offset(set.receive.frame(place as u32)) + HEADROOM_BYTES as usize;
        let now = data_bytes.min(len - place * data_bytes);
        if !reader.copy(now, memory, offset) {
            return Delivered::Unusable;
        }
    }
    if let Some((start, offset)) = finish
        && !finish_in_heap(memory, &heap, len, start, offset, |place| set.receive.frame(place))
    {
        return Delivered::Unusable;
    }
    let has_meta = meta != Meta::FINISHED;
    for place in 0..frames {
        let frame = set.receive.frame(0);
        let first = place == 0;
        if first && has_meta {
            let words = meta.to_words();
            let start = heap.frame_offset(frame);
            if !memory.copy_in(start, &words[0].to_ne_bytes())
                || !memory.copy_in(start + 8, &words[1].to_ne_bytes())
            {
                return Delivered::Unusable;
            }
        }
        let more = if place + 1 < frames { towpath_queue::descriptor::MORE } else { 0 };
        let descriptor = Descriptor {
            frame,
            start: HEADROOM_BYTES,
            len: data_bytes.min(len - place * data_bytes) as u32,
            endpoint,
            flags: flags | more | if first && has_meta { META } else { 0 },
        };
        set.receive.push(&mut session.receive_ledger, descriptor);
    }
    Delivered::Yes
}

/// How many frames ahead of the one being filled are brought near.
const AHEAD: u32 = 8;

/// Where an endpoint's counter stands among its session's.
#[inline]
pub fn session_word(endpoint: u32, count: Count) -> usize {
    endpoint as usize * towpath_protocol::layout::ENDPOINT_COUNTERS + count as usize
}

fn finish_in_heap(
    memory: &Mapping,
    heap: &towpath_queue::HeapShape,
    len: usize,
    start: u16,
    offset: u16,
    frame: impl Fn(u32) -> u32,
) -> bool {
    let data_bytes = heap.data_bytes() as usize;
    let frames = len.div_ceil(data_bytes);
    let slice = |place: usize| {
        let at = heap.frame_offset(frame(place as u32)) + HEADROOM_BYTES as usize;
        let now = data_bytes.min(len - place * data_bytes);
        // SAFETY: a receive heap is written by the engine's thread alone, and these are frames
        // that it has not given to the application yet. The frames of a packet are distinct: the
        // ledger took each of them once.
        unsafe { memory.bytes_mut(at, now) }
    };
    if frames == 1 {
        return slice(0).is_some_and(|bytes| checksum::finish(bytes, start, offset).is_ok());
    }
    let mut parts: [&mut [u8]; MAX_CHAIN] = std::array::from_fn(|_| &mut [][..]);
    for (place, part) in parts.iter_mut().enumerate().take(frames) {
        match slice(place) {
            Some(bytes) => *part = bytes,
            None => return false,
        }
    }
    checksum::finish_parts(&mut parts[..frames], start, offset).is_ok()
}

/// Bytes of a packet's beginning that are copied and checked when the rest is sent in place.
pub const PREFIX_BYTES: usize = 128;
/// Packets up to this length are copied whole.
pub const WHOLE_BYTES: usize = 256;

/// A place in the stage, with what is sent from it.
#[derive(Debug)]
pub struct Slot {
    /// How many bytes of the slot's memory count.
    pub len: u32,
    /// All parts of the packet; the first is in the stage.
    pub parts: Vec<Part>,
    /// What is left to the device.
    pub meta: Meta,
    /// Which flight it belongs to.
    pub flight: u32,
}

/// The server's memory for what it sends: one slot a packet, from the check until the device is
/// done with it.
#[derive(Debug)]
pub struct Stage {
    memory: Arc<Mapping>,
    slot_bytes: usize,
    /// The slots.
    pub slots: Vec<Slot>,
    free: towpath_queue::frames::FreeFrames,
    /// Which data space the memory is.
    pub space: SpaceId,
}

impl Stage {
    /// A stage of `slots` slots of `slot_bytes` each.
    ///
    /// # Errors
    /// When the memory is not to be had.
    pub fn new(slots: u32, slot_bytes: usize) -> io::Result<Stage> {
        let memory = Mapping::private(slots as usize * slot_bytes)?;
        let slot = || Slot {
            len: 0,
            parts: Vec::with_capacity(towpath_device::MAX_PARTS + 1),
            meta: Meta::FINISHED,
            flight: 0,
        };
        Ok(Stage {
            memory: Arc::new(memory),
            slot_bytes,
            slots: (0..slots).map(|_| slot()).collect(),
            free: towpath_queue::frames::FreeFrames::new(0, slots),
            space: SpaceId(u32::MAX),
        })
    }

    /// The memory, to be made a data space.
    #[must_use]
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// How long a slot is, in bytes.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Free slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free slot.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.free.take()
    }

    /// Gives a slot back.
    #[inline]
    pub fn give_back(&mut self, slot: u32) {
        self.free.give_back(slot);
    }

    #[inline]
    fn start(&self, slot: u32) -> usize {
        slot as usize * self.slot_bytes
    }

    /// Fetches the first `len` bytes of a packet into a slot; what was there before is not kept.
    /// They will be checked, so they come by the fetch function. `false` when they do not fit, or
    /// are not there.
    #[inline]
    pub fn fetch(
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
        self.slots[slot as usize].len = len as u32;
        // SAFETY: the stage is private memory, and `&mut self` is the only way to it here. The
        // device does not have this slot: it was taken for this packet.
        let Some(bytes) = (unsafe { self.memory.bytes_mut(self.start(slot), len) }) else {
            return false;
        };
        let mut at = 0;
        for one in packet {
            let now = (one.len as usize).min(len - at);
            if !from.fetch_bytes(one.heap_offset(heap), &mut bytes[at..at + now]) {
                return false;
            }
            at += now;
            if at == len {
                return true;
            }
        }
        at == len
    }

    /// Appends payload to what a slot holds, and finishes a checksum in the whole. `false` when
    /// it does not fit, or something is not inside.
    pub fn append(&mut self, slot: u32, rest: Source<'_>, finish: Option<(u16, u16)>) -> bool {
        let start = self.start(slot);
        let held = self.slots[slot as usize].len as usize;
        let len = held + rest.len();
        if len > self.slot_bytes || !Reader::new(rest).copy(len - held, &self.memory, start + held)
        {
            return false;
        }
        self.slots[slot as usize].len = len as u32;
        self.finish(slot, finish)
    }

    fn finish(&mut self, slot: u32, finish: Option<(u16, u16)>) -> bool {
        let Some((checksum_start, offset)) = finish else { return true };
        let len = self.slots[slot as usize].len as usize;
        // SAFETY: as in `fetch`.
        unsafe { self.memory.bytes_mut(self.start(slot), len) }
            .is_some_and(|bytes| checksum::finish(bytes, checksum_start, offset).is_ok())
    }

    /// What is in a slot.
    #[inline]
    #[must_use]
    pub fn bytes(&self, slot: u32) -> &[u8] {
        let len = self.slots[slot as usize].len as usize;
        // SAFETY: the stage is private memory, written only through `&mut self`.
        unsafe { self.memory.bytes(self.start(slot), len) }.unwrap_or(&[])
    }

    /// Makes a slot a frame of `header` and of `payload` bytes of the source from `from` on, and
    /// finishes its checksum. `false` when something is not inside.
    pub fn build(
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
        if !reader.skip(from) || !reader.copy(payload, &self.memory, start + header.len()) {
            return false;
        }
        self.slots[slot as usize].len = len as u32;
        self.finish(slot, finish)
    }

    /// Where a slot's memory is, as a part to be sent.
    #[inline]
    #[must_use]
    pub fn part(&self, slot: u32) -> Part {
        Part {
            space: self.space,
            offset: self.start(slot) as u32,
            len: self.slots[slot as usize].len,
        }
    }
}

impl Reader<'_> {
    fn skip(&mut self, mut len: usize) -> bool {
        let now = len.min(self.source.prefix.len() - self.at);
        self.at += now;
        len -= now;
        while len > 0 {
            let Some(piece) = self.source.pieces.get(self.piece) else { return false };
            let now = len.min(piece.len as usize - self.within);
            self.within += now;
            if self.within == piece.len as usize {
                self.piece += 1;
                self.within = 0;
            }
            len -= now;
        }
        true
    }
}

/// Delivers a part of a source behind a header of its own: one segment of a large packet.
#[derive(Debug, Default)]
pub struct SegmentPieces {
    pieces: Vec<Piece>,
}

impl SegmentPieces {
    /// Room for the pieces of any packet.
    #[must_use]
    pub fn new() -> SegmentPieces {
        SegmentPieces { pieces: Vec::with_capacity(MAX_CHAIN + 1) }
    }

    /// The pieces that hold bytes `from` to `to` of a source, counted behind its prefix; `None`
    /// when the range reaches into the prefix or over the end.
    pub fn cut(&mut self, source: &Source<'_>, from: usize, to: usize) -> Option<&[Piece]> {
        self.pieces.clear();
        let mut skip = from.checked_sub(source.prefix.len())?;
        let mut left = to.checked_sub(from)?;
        for piece in source.pieces {
            let len = piece.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let now = left.min(len - skip);
            self.pieces.push(Piece { offset: piece.offset + skip as u32, len: now as u32 });
            skip = 0;
            left -= now;
            if left == 0 {
                break;
            }
        }
        (left == 0).then_some(&self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(bytes: &[u8]) -> Mapping {
        let mapping = Mapping::private(4096).unwrap();
        assert!(mapping.copy_in(0, bytes));
        mapping
    }

    #[test]
    fn a_source_is_read_in_order() {
        let memory = mapping(b"0123456789");
        let pieces = [Piece { offset: 8, len: 2 }, Piece { offset: 0, len: 3 }];
        let source = Source { prefix: b"ab", memory: &memory, pieces: &pieces };
        assert_eq!(source.len(), 7);
        let to = Mapping::private(4096).unwrap();
        let mut reader = Reader::new(source);
        assert!(reader.copy(1, &to, 0) && reader.copy(3, &to, 1) && reader.copy(3, &to, 4));
        assert!(!reader.copy(1, &to, 7), "past the end");
        let mut out = [0; 7];
        assert!(to.copy_out(0, &mut out));
        assert_eq!(&out, b"ab89012");
        let mut reader = Reader::new(source);
        assert!(reader.skip(3) && reader.copy(2, &to, 0));
        assert!(to.copy_out(0, &mut out[..2]));
        assert_eq!(&out[..2], b"90");
        let mut cut = SegmentPieces::new();
        let got: Vec<_> =
            cut.cut(&source, 3, 6).unwrap().iter().map(|p| (p.offset, p.len)).collect();
        assert_eq!(got, [(9, 1), (0, 2)]);
        assert!(cut.cut(&source, 3, 8).is_none() && cut.cut(&source, 1, 3).is_none());
    }

    #[test]
    fn a_slot_holds_what_was_put_there() {
        let memory = Arc::new(mapping(b"0123456789"));
        let pieces = [Piece { offset: 0, len: 10 }];
        let source = Source { prefix: &[], memory: &memory, pieces: &pieces };
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
        let frames = Arc::new(mapping(&heap_bytes));
        let mut stage = Stage::new(2, 256).unwrap();
        let slot = stage.take().unwrap();
        let words = towpath_protocol::layout::peer_words(&frames);
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
        stage.give_back(slot);
        assert_eq!(stage.free(), 2);
    }
}
