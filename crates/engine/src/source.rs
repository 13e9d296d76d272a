//! The location of a packet's bytes before the copy: a checked beginning in private memory, and
//! pieces of one other memory.

use towpath_device::{Meta, VlanTag};
use towpath_memory::{Mapping, Region};
use towpath_queue::descriptor::MAX_CHAIN;

/// Bytes of a packet's beginning that the engine copies and checks when it sends the rest in place.
pub(crate) const PREFIX_BYTES: usize = 128;
/// The engine copies packets up to this length whole.
pub(crate) const WHOLE_BYTES: usize = 256;

/// The most bytes of a packet that the engine copies whole, with the VLAN tag that it inserts for an endpoint
/// within a VLAN.
pub(crate) const TAGGED_BYTES: usize = WHOLE_BYTES + VlanTag::BYTES;

/// Bytes in one memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    /// The offset of the first byte.
    pub offset: u32,
    /// The number of bytes.
    pub len: u32,
}

/// The location of a packet's bytes: a checked beginning in private memory, and pieces of one other
/// memory, in order.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The beginning, private.
    pub prefix: &'a [u8],
    /// The memory that the rest is in.
    pub memory: &'a Mapping,
    /// The pieces of the rest.
    pub pieces: &'a [Piece],
}

impl Source<'_> {
    /// Returns the length of the packet, in bytes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.prefix.len() + self.pieces.iter().map(|piece| piece.len as usize).sum::<usize>()
    }

    /// Copies the packet's first bytes. Returns `false` if there are fewer than `to` holds, or a
    /// piece is out of bounds.
    pub(crate) fn copy_beginning(&self, to: &mut [u8]) -> bool {
        let own = to.len().min(self.prefix.len());
        let (front, mut rest) = to.split_at_mut(own);
        front.copy_from_slice(&self.prefix[..own]);
        for piece in self.pieces {
            if rest.is_empty() {
                break;
            }
            let now = rest.len().min(piece.len as usize);
            let (part, after) = rest.split_at_mut(now);
            if !self.memory.copy_out(piece.offset as usize, part) {
                return false;
            }
            rest = after;
        }
        rest.is_empty()
    }
}

/// A packet under delivery.
pub(crate) struct Packet<'a> {
    pub(crate) source: Source<'a>,
    /// A private copy of the packet's beginning, from which the engine read the headers.
    pub(crate) beginning: &'a [u8],
    pub(crate) meta: Meta,
}

/// Reads a source from front to back.
pub(crate) struct Reader<'a> {
    source: Source<'a>,
    at: usize,
    piece: usize,
    within: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: Source<'a>) -> Reader<'a> {
        Reader { source, at: 0, piece: 0, within: 0 }
    }

    /// Copies the next `len` bytes to an offset. Returns `false` if there are fewer bytes, or the
    /// target is out of bounds.
    #[inline]
    pub(crate) fn copy(&mut self, mut len: usize, to: &mut Region, mut offset: usize) -> bool {
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

    /// Skips the next `len` bytes. Returns `false` if there are fewer.
    pub(crate) fn skip(&mut self, mut len: usize) -> bool {
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

/// Selects a part of a source for delivery behind its own header: one segment of a large packet.
#[derive(Debug, Default)]
pub(crate) struct SegmentPieces {
    pieces: Vec<Piece>,
}

impl SegmentPieces {
    /// Creates room for the pieces of any packet.
    #[must_use]
    pub(crate) fn new() -> SegmentPieces {
        SegmentPieces { pieces: Vec::with_capacity(MAX_CHAIN + 1) }
    }

    /// Returns the pieces that hold a source's bytes from `from` on, as [`SegmentPieces::cut`] does.
    pub(crate) fn cut_behind(&mut self, source: &Source<'_>, from: usize) -> Option<&[Piece]> {
        self.cut(source, from, source.len())
    }

    /// Returns the pieces that hold bytes `from` to `to` of a source, counted from behind its
    /// prefix. Returns `None` if the range reaches into the prefix or beyond the end.
    pub(crate) fn cut(&mut self, source: &Source<'_>, from: usize, to: usize) -> Option<&[Piece]> {
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

/// Memory for segments, and a count, of deliveries to endpoints that take no offloads.
#[derive(Debug, Default)]
pub(crate) struct SoftwareOffloads {
    /// Memory for the pieces of a segment.
    pub(crate) pieces: SegmentPieces,
    /// Memory for the pieces of a packet without its VLAN tag.
    pub(crate) untagged: SegmentPieces,
    /// The number of deliveries for which the engine completed a checksum or made segments.
    pub(crate) packets: u64,
}

impl SoftwareOffloads {
    /// Creates room for the pieces of any packet.
    pub(crate) fn new() -> SoftwareOffloads {
        let (pieces, untagged) = (SegmentPieces::new(), SegmentPieces::new());
        SoftwareOffloads { pieces, untagged, packets: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: &[u8]) -> Region {
        let mut region = Region::private(4096).unwrap();
        assert!(region.copy_in(0, bytes));
        region
    }

    #[test]
    fn a_source_is_read_in_order() {
        let region = region(b"0123456789");
        let pieces = [Piece { offset: 8, len: 2 }, Piece { offset: 0, len: 3 }];
        let source = Source { prefix: b"ab", memory: region.mapping(), pieces: &pieces };
        assert_eq!(source.len(), 7);
        let mut beginning = [0; 8];
        for len in 0..=7 {
            assert!(source.copy_beginning(&mut beginning[..len]));
            assert_eq!(&beginning[..len], &b"ab89012"[..len]);
        }
        assert!(!source.copy_beginning(&mut beginning), "past the end");
        let mut to = Region::private(4096).unwrap();
        let mut reader = Reader::new(source);
        assert!(
            reader.copy(1, &mut to, 0) && reader.copy(3, &mut to, 1) && reader.copy(3, &mut to, 4)
        );
        assert!(!reader.copy(1, &mut to, 7), "past the end");
        assert_eq!(to.bytes(0, 7), Some(b"ab89012".as_slice()));
        let mut reader = Reader::new(source);
        assert!(reader.skip(3) && reader.copy(2, &mut to, 0));
        assert_eq!(to.bytes(0, 2), Some(b"90".as_slice()));
        let mut cut = SegmentPieces::new();
        let got: Vec<_> =
            cut.cut(&source, 3, 6).unwrap().iter().map(|p| (p.offset, p.len)).collect();
        assert_eq!(got, [(9, 1), (0, 2)]);
        assert!(cut.cut(&source, 3, 8).is_none() && cut.cut(&source, 1, 3).is_none());
    }
}
