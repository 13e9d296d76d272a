//! Reassembly of PDUs from fragments that may be lost, duplicated, out of order, or an attack.

use std::time::Instant;

use crate::aged::Aged;
use crate::buffers::Buffers;
use crate::counters::ReceiveCounters;
use crate::finished::Finished;
use crate::format::{Fragment, Malformed};
use crate::limits::Limits;
use crate::partial::{Identity, Key, Partial};
use crate::pieces::{self, Pieces};
use crate::ranges::Placed;

/// The outcome of a fragment.
#[derive(Debug)]
pub enum Accepted<'a> {
    /// Its PDU is still incomplete.
    Waits,
    /// It holds its whole PDU, which lies in the fragment's own frame ([`Pieces::after_headers`]).
    InPlace(Fragment),
    /// It completed its PDU.
    Reassembled(Fragment, &'a [u8]),
    /// It completed its PDU, which waits in the queue of its channel ([`crate::Channels`]).
    Queued(Fragment),
}

/// The reason why a fragment was dropped. Each has a counter ([`ReceiveCounters`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// The frame is not a valid fragment.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Its PDU is longer than the receiver accepts.
    #[error("its PDU is too long")]
    TooLong,
    /// It is a duplicate.
    #[error("it is a duplicate")]
    Duplicate,
    /// Its PDU was already delivered or given up.
    #[error("its PDU was already delivered or given up")]
    Late,
    /// It completed its PDU, and the CRC is wrong.
    #[error("the CRC of its PDU is wrong")]
    Damaged,
    /// It contradicts earlier fragments; the receiver gives its PDU up.
    #[error("it contradicts earlier fragments")]
    Conflict,
    /// Its PDU has too many holes; the receiver gives it up.
    #[error("its PDU has too many holes")]
    Holes,
    /// The queue of its channel is full of complete PDUs; the receiver gives its PDU up.
    #[error("the queue of its channel is full")]
    NoRoom,
}

/// Reassembles PDUs. It does no input or output, and has no clock: the time is an argument.
///
/// No bytes from the network can make it panic or allocate more than its [`Limits`]. The lengths of
/// a fragment and of the tables bound its loops.
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    partials: Aged<Key, Partial>,
    buffers: Buffers,
    finished: Finished,
    /// The last delivered PDU, until the next fragment.
    delivered: Option<Box<[u8]>>,
    /// `true` if the owner keeps complete PDUs in these buffers.
    keeps: bool,
    /// The number of complete PDUs that the owner keeps.
    kept: usize,
    counters: ReceiveCounters,
}

impl Reassembler {
    /// Creates a reassembler. Limits out of range become the nearest value in range.
    ///
    /// ```
    /// # use towpath_pdu::{Limits, Reassembler};
    /// // Room for 256 incomplete PDUs, and at most 16 MiB.
    /// let limits = Limits { partials: 256, bytes: 16 << 20, ..Limits::default() };
    /// let reassembler = Reassembler::new(limits);
    /// assert_eq!(reassembler.held_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(limits: Limits) -> Reassembler {
        let limits = limits.in_range();
        Reassembler {
            partials: Aged::new(limits.partials),
            buffers: Buffers::new(limits.bytes),
            finished: Finished::new(limits.finished),
            delivered: None,
            keeps: false,
            kept: 0,
            counters: ReceiveCounters::default(),
            limits,
        }
    }

    /// Creates a reassembler whose owner keeps each complete PDU ([`Reassembler::keep`]), also one
    /// of a single fragment. Kept PDUs count towards [`Limits::partials`] and [`Limits::bytes`].
    pub(crate) fn keeping(limits: Limits) -> Reassembler {
        Reassembler { keeps: true, ..Reassembler::new(limits) }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes a frame in pieces. A time before that of an earlier call does no harm.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut reassembler = Reassembler::new(Limits::default());
    /// // The fragments may come in any order.
    /// let (last, first) = (frame(1, 3, b"lo"), frame(1, 0, b"hel"));
    /// assert!(matches!(reassembler.accept(now, std::iter::once(&last[..])), Ok(Accepted::Waits)));
    /// let outcome = reassembler.accept(now, std::iter::once(&first[..]));
    /// assert!(matches!(outcome, Ok(Accepted::Reassembled(_, b"hello"))));
    /// ```
    ///
    /// # Errors
    /// [`Dropped`] gives the reason for a dropped fragment.
    pub fn accept<'f>(
        &mut self,
        now: Instant,
        frame: impl Iterator<Item = &'f [u8]> + Clone,
    ) -> Result<Accepted<'_>, Dropped> {
        self.expire(now);
        let fragment = parse(frame.clone()).inspect_err(|_| self.count_malformed())?;
        let part = Pieces::after_headers(frame, fragment.len as usize);
        self.accept_part(now, &fragment, part)
    }

    /// Takes a parsed fragment, and its part of the PDU in pieces.
    pub(crate) fn accept_part<'f>(
        &mut self,
        now: Instant,
        fragment: &Fragment,
        part: impl Iterator<Item = &'f [u8]> + Clone,
    ) -> Result<Accepted<'_>, Dropped> {
        self.counters.fragments += 1;
        if fragment.total as usize > self.limits.pdu_bytes {
            self.counters.too_long += 1;
            return Err(Dropped::TooLong);
        }
        let key = Key::of(fragment);
        let place = match self.partials.find(&key) {
            Some(place) => place,
            None if self.finished.has(key, Identity::of(fragment)) => {
                self.counters.late += 1;
                return Err(Dropped::Late);
            }
            None if fragment.is_whole() => return self.take_whole(now, fragment, part),
            None => self.start(now, fragment)?,
        };
        self.place(now, place, fragment, part)
    }

    /// Takes a fragment that holds its whole PDU.
    fn take_whole<'f>(
        &mut self,
        now: Instant,
        fragment: &Fragment,
        part: impl Iterator<Item = &'f [u8]> + Clone,
    ) -> Result<Accepted<'_>, Dropped> {
        if part.clone().fold(0, crc32c::crc32c_append) != fragment.crc {
            // The receiver does not remember it: an undamaged copy may still come.
            self.counters.damaged_in_place += 1;
            return Err(Dropped::Damaged);
        }
        if !self.keeps {
            self.finished.note(now, Key::of(fragment), Identity::of(fragment));
            self.counters.in_place += 1;
            return Ok(Accepted::InPlace(*fragment));
        }
        let mut buffer = self.make_room(now, fragment)?;
        copy(&mut buffer, part);
        self.finished.note(now, Key::of(fragment), Identity::of(fragment));
        self.counters.started += 1;
        self.counters.copied += 1;
        self.counters.copied_bytes += u64::from(fragment.len);
        self.counters.reassembled += 1;
        let buffer = self.delivered.insert(buffer);
        Ok(Accepted::Reassembled(*fragment, &buffer[..fragment.len as usize]))
    }

    /// Makes room for a PDU, and begins it.
    fn start(&mut self, now: Instant, fragment: &Fragment) -> Result<usize, Dropped> {
        let (count, oldest) = self.partials.matching(|key| key.source == fragment.source);
        if let Some(oldest) = oldest
            && count >= self.limits.partials_of_source
        {
            self.counters.gave_way_of_source += 1;
            self.finish(now, oldest);
        }
        let buffer = self.make_room(now, fragment)?;
        self.counters.started += 1;
        let place = self.partials.insert(Key::of(fragment), now);
        self.partials.get(place).begin(Identity::of(fragment), buffer);
        Ok(place)
    }

    /// Takes a buffer for a PDU. Evicts the oldest incomplete PDUs for it. An evicted PDU counts as
    /// finished: if its remaining fragments began it anew, PDUs would evict each other for ever.
    fn make_room(&mut self, now: Instant, fragment: &Fragment) -> Result<Box<[u8]>, Dropped> {
        if self.partials.len() + self.kept >= self.limits.partials {
            let Some((oldest, _)) = self.partials.oldest() else {
                return Err(self.refuse(now, fragment));
            };
            self.counters.gave_way += 1;
            self.finish(now, oldest);
        }
        let len = fragment.total as usize;
        // Without incomplete and kept PDUs all memory is free, and the limit is enough for one.
        while !self.buffers.has_room(len) {
            let Some((oldest, _)) = self.partials.oldest() else {
                return Err(self.refuse(now, fragment));
            };
            self.counters.gave_way_for_bytes += 1;
            self.finish(now, oldest);
        }
        Ok(self.buffers.take(len))
    }

    /// Gives up a PDU for which kept PDUs leave no room, and remembers it: later fragments of it
    /// begin nothing.
    fn refuse(&mut self, now: Instant, fragment: &Fragment) -> Dropped {
        self.counters.no_room += 1;
        self.finished.note(now, Key::of(fragment), Identity::of(fragment));
        Dropped::NoRoom
    }

    /// Gives the PDU that the last fragment completed to the owner, with its buffer.
    pub(crate) fn keep(&mut self) -> Option<Box<[u8]>> {
        let buffer = self.delivered.take()?;
        self.kept += 1;
        Some(buffer)
    }

    /// Takes back the buffer of a kept PDU.
    pub(crate) fn take_back(&mut self, buffer: Box<[u8]>) {
        self.kept -= 1;
        self.buffers.release(buffer);
    }

    fn place<'f>(
        &mut self,
        now: Instant,
        place: usize,
        fragment: &Fragment,
        part: impl Iterator<Item = &'f [u8]>,
    ) -> Result<Accepted<'_>, Dropped> {
        let partial = self.partials.get(place);
        if partial.identity != Identity::of(fragment) {
            self.counters.conflicts += 1;
            self.finish(now, place);
            return Err(Dropped::Conflict);
        }
        let (start, end) = (fragment.offset, fragment.offset + u32::from(fragment.len));
        // Both are inside the buffer: the parser has checked them against the PDU's length.
        let at = &mut partial.buffer[start as usize..end as usize];
        match partial.ranges.place(start, end) {
            Placed::New => {}
            Placed::Known if is_same(at, part) => {
                self.counters.duplicates += 1;
                return Err(Dropped::Duplicate);
            }
            Placed::Known | Placed::Overlaps => {
                self.counters.conflicts += 1;
                self.finish(now, place);
                return Err(Dropped::Conflict);
            }
            Placed::TooMany => {
                self.counters.holes += 1;
                self.finish(now, place);
                return Err(Dropped::Holes);
            }
        }
        copy(at, part);
        self.counters.copied += 1;
        self.counters.copied_bytes += u64::from(fragment.len);
        if !partial.ranges.is_whole(fragment.total) {
            return Ok(Accepted::Waits);
        }
        let whole = fragment.total as usize;
        if crc32c::crc32c(&partial.buffer[..whole]) != fragment.crc {
            self.counters.damaged += 1;
            self.finish(now, place);
            return Err(Dropped::Damaged);
        }
        self.counters.reassembled += 1;
        self.finished.note(now, Key::of(fragment), Identity::of(fragment));
        let buffer = std::mem::take(&mut self.partials.remove(place).buffer);
        let buffer = self.delivered.insert(buffer);
        Ok(Accepted::Reassembled(*fragment, &buffer[..whole]))
    }

    /// Gives up PDUs whose time has expired, and reclaims the buffer of the last delivered PDU.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let limits = Limits { time: Duration::from_secs(2), ..Limits::default() };
    /// let mut reassembler = Reassembler::new(limits);
    /// reassembler.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// reassembler.expire(now + Duration::from_secs(2));
    /// assert_eq!((reassembler.waiting(), reassembler.counters().expired), (0, 1));
    /// ```
    pub fn expire(&mut self, now: Instant) {
        if let Some(buffer) = self.delivered.take() {
            self.buffers.release(buffer);
        }
        self.finished.forget_older(now, self.limits.time);
        while let Some(oldest) = self.partials.expired(now, self.limits.time) {
            self.counters.expired += 1;
            self.finish(now, oldest);
        }
    }

    /// Returns the time at which the oldest incomplete PDU expires.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let limits = Limits { time: Duration::from_secs(2), ..Limits::default() };
    /// let mut reassembler = Reassembler::new(limits);
    /// reassembler.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// // The program waits for frames until then, and calls `expire`.
    /// assert_eq!(reassembler.deadline(), Some(now + Duration::from_secs(2)));
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.partials.deadline(self.limits.time)
    }

    /// Returns the number of incomplete PDUs.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut reassembler = Reassembler::new(Limits::default());
    /// reassembler.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// assert_eq!(reassembler.waiting(), 1);
    /// ```
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.partials.len()
    }

    /// Returns the bytes of reassembly memory, in use or kept for reuse.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut reassembler = Reassembler::new(Limits::default());
    /// reassembler.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// // A PDU of 5 bytes takes the smallest buffer.
    /// assert_eq!(reassembler.held_bytes(), 256);
    /// ```
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.buffers.held()
    }

    /// Returns the counters.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut reassembler = Reassembler::new(Limits::default());
    /// let first = frame(1, 0, b"hel");
    /// reassembler.accept(now, std::iter::once(&first[..])).unwrap();
    /// assert!(reassembler.accept(now, std::iter::once(&first[..])).is_err());
    /// assert_eq!(reassembler.counters().duplicates, 1);
    /// ```
    #[must_use]
    pub fn counters(&self) -> ReceiveCounters {
        self.counters
    }

    pub(crate) fn count_other_endpoint(&mut self) {
        self.counters.other_endpoints += 1;
    }

    pub(crate) fn count_malformed(&mut self) {
        self.counters.fragments += 1;
        self.counters.malformed += 1;
    }

    /// Gives a PDU up, and remembers it as finished.
    fn finish(&mut self, now: Instant, place: usize) {
        let key = self.partials.key(place);
        let partial = self.partials.remove(place);
        self.finished.note(now, key, partial.identity);
        self.buffers.release(std::mem::take(&mut partial.buffer));
    }
}

/// Parses a frame's headers.
pub(crate) fn parse<'f>(frame: impl Iterator<Item = &'f [u8]>) -> Result<Fragment, Malformed> {
    let (headers, frame_bytes) = pieces::headers(frame).ok_or(Malformed::Short)?;
    Fragment::parse(&headers, frame_bytes)
}

/// Copies a fragment's part, the only copy of the receive path. Both have the same length.
fn copy<'f>(mut to: &mut [u8], part: impl Iterator<Item = &'f [u8]>) {
    for piece in part {
        let (here, rest) = to.split_at_mut(piece.len());
        here.copy_from_slice(piece);
        to = rest;
    }
}

fn is_same<'f>(mut with: &[u8], part: impl Iterator<Item = &'f [u8]>) -> bool {
    for piece in part {
        let (here, rest) = with.split_at(piece.len());
        if here != piece {
            return false;
        }
        with = rest;
    }
    true
}
