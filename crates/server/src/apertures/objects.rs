//! A session's memories, apertures and tripwires by their numbers, and their record for a
//! successor.
//!
//! The aperture record is a memory file with a place for each object that the session may have. The
//! first word of a place is stored last, and cleared first, so a successor finds whole entries.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_memory::{SharedFile, own_words, peer_words};
use towpath_protocol::apertures::MAX_MEMORIES;
use towpath_protocol::layout::SessionShape;
use towpath_queue::OwnWords;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::numbered::Numbered;

/// A kind of objects, which has numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Memory,
    Aperture,
    Tripwire,
}

/// A memory, aperture or tripwire of a session. The meaning of some fields depends on the kind.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) kind: u32,
    /// The number of the request that created it.
    pub(crate) sequence: u32,
    /// The key of an aperture, or of the one that an imported tripwire is in; 0 once the owner has
    /// released that tripwire.
    pub(crate) key: u32,
    /// The number of the memory of an exported aperture or a tripwire; of the imported aperture
    /// that an imported tripwire is in.
    pub(crate) memory: u32,
    /// The endpoint of an aperture. Of a memory, one more than the number of another user whose session got a
    /// descriptor to write by; 0 for none.
    pub(crate) endpoint: u32,
    /// The access of an aperture or a tripwire; the sharing of a memory. 0 for an aperture of which
    /// the engine has said that it is not valid.
    pub(crate) access: u32,
    /// The session at the other end: the importer of an exported aperture, the owner of an imported
    /// aperture or tripwire, the one session that may map a memory for writing. 0 for none.
    pub(crate) other_session: u32,
    /// The endpoint of the importer of an exported aperture; the number of an imported aperture or
    /// tripwire in the session of its owner.
    pub(crate) other: u32,
    /// Where the range of an exported aperture or a tripwire begins in the memory, in bytes; the id
    /// of a memory, or of that of an imported aperture, which no other memory has.
    pub(crate) offset: u64,
    /// The length of that range, or of a memory, in bytes; the length of the memory that the
    /// session maps for an imported aperture, 0 for none.
    pub(crate) len: u64,
}

/// A word of an entry that changes by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryWord {
    Key = 1,
    Endpoint = 2,
    Other = 3,
}

const ENTRY_WORDS: usize = size_of::<Entry>() / 8;
/// "Aperture", and the layout's version.
const LAYOUT: u64 = u64::from_le_bytes(*b"Apertur1");
const HEADER_WORDS: usize = 8;

impl Entry {
    pub(crate) const MEMORY: u32 = 1;
    pub(crate) const EXPORTED: u32 = 2;
    pub(crate) const IMPORTED: u32 = 3;
    pub(crate) const TRIPWIRE: u32 = 4;
    pub(crate) const IMPORTED_TRIPWIRE: u32 = 5;

    fn object_kind(&self) -> Option<ObjectKind> {
        match self.kind {
            Entry::MEMORY => Some(ObjectKind::Memory),
            Entry::EXPORTED | Entry::IMPORTED => Some(ObjectKind::Aperture),
            Entry::TRIPWIRE | Entry::IMPORTED_TRIPWIRE => Some(ObjectKind::Tripwire),
            _ => None,
        }
    }

    /// Returns the other user whose processes can write to the file of this memory.
    pub(crate) fn writer(&self) -> Option<u32> {
        self.endpoint.checked_sub(1).filter(|_| self.kind == Entry::MEMORY)
    }

    /// Returns `true` if this aperture exports a range of a memory.
    pub(crate) fn exports(&self, memory: u32) -> bool {
        self.kind == Entry::EXPORTED && self.memory == memory
    }

    /// Returns `true` if the ranges of two entries have a byte in common.
    pub(crate) fn overlaps(&self, other: &Entry) -> bool {
        self.offset < other.offset.saturating_add(other.len)
            && other.offset < self.offset.saturating_add(self.len)
    }
}

/// All objects of a session.
#[derive(Debug)]
pub(crate) struct Objects {
    /// The session's number.
    pub(crate) session: u32,
    kinds: [Numbered<Entry>; 3],
    /// The last request that created an object, and the object.
    last: Option<(u32, ObjectKind, u32)>,
    record: Option<OwnWords>,
}

impl Objects {
    /// Creates the tables of a session.
    pub(crate) fn new(session: u32, shape: &SessionShape) -> Objects {
        let most = [MAX_MEMORIES, shape.apertures(), shape.tripwires().tripwires()];
        let kinds = most.map(Numbered::new);
        Objects { session, kinds, last: None, record: None }
    }

    /// Makes the record. Returns its file for the store.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(crate) fn create_record(&mut self) -> io::Result<OwnedFd> {
        let file = SharedFile::create("towpath-apertures", self.words() * 8)?;
        file.seal_seals()?;
        let region = file.map_writable()?;
        region.mapping().keep_from_children()?;
        let mut words = own_words(region);
        words.publish(0, LAYOUT);
        self.record = Some(words);
        Ok(file.into())
    }

    /// Reads a record that an earlier server left, and continues it. Leaves out entries that
    /// contradict themselves.
    ///
    /// # Errors
    /// Fails with the reason why the record cannot be used.
    pub(crate) fn adopt(
        session: u32,
        shape: &SessionShape,
        file: BorrowedFd<'_>,
    ) -> io::Result<Objects> {
        let mut objects = Objects::new(session, shape);
        let file = SharedFile::adopt(file.try_clone_to_owned()?)?;
        let wrong = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if file.len() < objects.words() * 8 {
            return wrong("the record of apertures is too short");
        }
        let reader = file.map_readable()?;
        reader.keep_from_children()?;
        let reader = peer_words(&Arc::new(reader));
        if reader.observe(0) != LAYOUT {
            return wrong("the record of apertures has another layout");
        }
        for kind in [ObjectKind::Memory, ObjectKind::Aperture, ObjectKind::Tripwire] {
            for number in 0..objects.kinds[kind as usize].most() {
                let at = objects.place(kind, number);
                let mut bytes = [0; size_of::<Entry>()];
                for (index, eight) in (at..).zip(bytes.as_chunks_mut::<8>().0) {
                    *eight = reader.fetch(index).to_ne_bytes();
                }
                let entry = Entry::read_from_bytes(&bytes).unwrap_or_default();
                if entry.object_kind() == Some(kind) {
                    objects.enter(kind, number, entry);
                }
            }
            objects.kinds[kind as usize].find_free();
        }
        let region = file.map_writable()?;
        region.mapping().keep_from_children()?;
        objects.record = Some(own_words(region));
        Ok(objects)
    }

    fn words(&self) -> usize {
        let entries: usize = self.kinds.iter().map(|one| one.most() as usize).sum();
        HEADER_WORDS + entries * ENTRY_WORDS
    }

    /// Returns the first word of an object's place in the record.
    fn place(&self, kind: ObjectKind, number: u32) -> usize {
        let before = self.kinds[..kind as usize].iter().map(|one| one.most() as usize);
        HEADER_WORDS + (before.sum::<usize>() + number as usize) * ENTRY_WORDS
    }

    fn enter(&mut self, kind: ObjectKind, number: u32, entry: Entry) {
        self.kinds[kind as usize].enter(number, entry);
        if entry.sequence != 0 && self.last.is_none_or(|(last, ..)| last < entry.sequence) {
            self.last = Some((entry.sequence, kind, number));
        }
    }

    /// Returns the number for a new object: the lowest that is free; `None` if the session has as
    /// many as it may have.
    pub(crate) fn free(&self, kind: ObjectKind) -> Option<u32> {
        self.kinds[kind as usize].free()
    }

    /// Enters an object under the number that [`Objects::free`] returned.
    pub(crate) fn put(&mut self, kind: ObjectKind, number: u32, entry: Entry) {
        self.enter(kind, number, entry);
        if entry.sequence != 0 {
            self.last = Some((entry.sequence, kind, number));
        }
    }

    /// Records an object for a successor.
    pub(crate) fn record(&mut self, kind: ObjectKind, number: u32) {
        let (at, entry) = (self.place(kind, number), self.get(kind, number));
        let (Some(words), Some(entry)) = (&mut self.record, entry) else { return };
        let words_of: [u64; ENTRY_WORDS] = zerocopy::transmute!(entry);
        words.publish(at, 0);
        for (index, word) in (at..).zip(words_of).skip(1) {
            words.store(index, word);
        }
        words.publish(at, words_of[0]);
    }

    /// Records one word of an object: one store.
    pub(crate) fn record_word(&mut self, kind: ObjectKind, number: u32, word: EntryWord) {
        let (at, entry) = (self.place(kind, number) + word as usize, self.get(kind, number));
        let (Some(words), Some(entry)) = (&mut self.record, entry) else { return };
        let words_of: [u64; ENTRY_WORDS] = zerocopy::transmute!(entry);
        words.publish(at, words_of[word as usize]);
    }

    /// Returns an object.
    pub(crate) fn get(&self, kind: ObjectKind, number: u32) -> Option<Entry> {
        self.kinds[kind as usize].get(number).copied()
    }

    /// Changes an object.
    pub(crate) fn get_mut(&mut self, kind: ObjectKind, number: u32) -> Option<&mut Entry> {
        self.kinds[kind as usize].get_mut(number)
    }

    /// Removes an object, and frees its number.
    pub(crate) fn remove(&mut self, kind: ObjectKind, number: u32) -> Option<Entry> {
        let place = self.place(kind, number);
        let entry = self.kinds[kind as usize].remove(number)?;
        self.last = self.last.filter(|(_, of, last)| (*of, *last) != (kind, number));
        if let Some(words) = &mut self.record {
            words.publish(place, 0);
        }
        Some(entry)
    }

    /// Returns all objects of a kind, with their numbers.
    pub(crate) fn all(&self, kind: ObjectKind) -> impl Iterator<Item = (u32, &Entry)> {
        self.kinds[kind as usize].all()
    }

    /// Returns the object of this kind that an earlier request with this number created: the last
    /// request, if the server was killed before it answered.
    pub(crate) fn repeated(&self, sequence: u32, kind: u32) -> Option<u32> {
        let (_, what, number) = self.last.filter(|(last, ..)| *last == sequence)?;
        self.get(what, number).filter(|one| one.kind == kind).map(|_| number)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    fn shape() -> SessionShape {
        let shape = SessionShape::new(1, 2, 8, 8, 64, 64).unwrap();
        shape.with_oob(8).and_then(|shape| shape.with_apertures(3, 2)).unwrap()
    }

    fn entry(kind: u32, sequence: u32) -> Entry {
        Entry { kind, sequence, key: 7, offset: 64, len: 8, ..Entry::default() }
    }

    #[test]
    fn a_successor_finds_the_objects_and_their_free_numbers() {
        let mut objects = Objects::new(5, &shape());
        let file = objects.create_record().unwrap();
        for (number, sequence) in [(0, 1), (1, 2), (2, 3)] {
            assert_eq!(objects.free(ObjectKind::Aperture), Some(number));
            objects.put(ObjectKind::Aperture, number, entry(Entry::EXPORTED, sequence));
            objects.record(ObjectKind::Aperture, number);
        }
        assert_eq!(objects.free(ObjectKind::Aperture), None);
        objects.put(ObjectKind::Tripwire, 0, entry(Entry::TRIPWIRE, 4));
        assert_eq!(objects.repeated(4, Entry::TRIPWIRE), Some(0));
        assert_eq!(objects.repeated(4, Entry::IMPORTED_TRIPWIRE), None);
        assert_eq!(objects.repeated(3, Entry::EXPORTED), None, "not the last");
        assert!(objects.remove(ObjectKind::Aperture, 1).is_some());
        assert!(objects.remove(ObjectKind::Aperture, 1).is_none());
        let mut next = Objects::adopt(5, &shape(), file.as_fd()).unwrap();
        assert_eq!(next.all(ObjectKind::Aperture).count(), 2);
        assert_eq!(next.get(ObjectKind::Aperture, 2), Some(entry(Entry::EXPORTED, 3)));
        assert_eq!(next.all(ObjectKind::Tripwire).count(), 0, "not recorded");
        assert_eq!(next.repeated(3, Entry::EXPORTED), Some(2));
        next.get_mut(ObjectKind::Aperture, 2).unwrap().other_session = 9;
        next.record_word(ObjectKind::Aperture, 2, EntryWord::Other);
        let again = Objects::adopt(5, &shape(), file.as_fd()).unwrap();
        let expected = Entry { other_session: 9, ..entry(Entry::EXPORTED, 3) };
        assert_eq!(again.get(ObjectKind::Aperture, 2), Some(expected));
        assert_eq!(next.free(ObjectKind::Aperture), Some(1));
        assert!(next.remove(ObjectKind::Aperture, 2).is_some());
        let third = Objects::adopt(5, &shape(), file.as_fd()).unwrap();
        assert_eq!(third.all(ObjectKind::Aperture).count(), 1);
        assert_eq!(third.free(ObjectKind::Aperture), Some(1));
    }

    #[test]
    fn ranges_overlap_or_not() {
        let range = |offset, len| Entry { offset, len, ..Entry::default() };
        assert!(range(0, 8).overlaps(&range(7, 1)) && range(4, 1).overlaps(&range(0, 8)));
        assert!(!range(0, 8).overlaps(&range(8, 1)) && !range(8, 1).overlaps(&range(0, 8)));
    }

    proptest! {
        #[test]
        fn any_record_is_read_or_refused(
            changed in proptest::collection::vec((1..300_usize, any::<u64>()), 0..60)
        ) {
            let mut objects = Objects::new(5, &shape());
            let file = objects.create_record().unwrap();
            if let Some(words) = &mut objects.record {
                for (word, value) in changed {
                    words.store(word, value);
                }
            }
            let read = Objects::adopt(5, &shape(), file.as_fd()).unwrap();
            prop_assert!(read.all(ObjectKind::Memory).count() <= MAX_MEMORIES as usize);
            prop_assert!(read.all(ObjectKind::Aperture).count() <= 3);
            prop_assert!(read.all(ObjectKind::Tripwire).all(|(_, one)| one.kind >= Entry::TRIPWIRE));
        }
    }
}
