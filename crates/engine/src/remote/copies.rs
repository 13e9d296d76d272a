//! The copies of a connection with another host, whose memory a worker may have to reach
//! ([`crate::apertures::memory`]). A packet whose bytes are not placed yet waits with those behind it, and the
//! other host learns of it once they are placed.

use std::collections::VecDeque;
use std::ops::Range;

use towpath_protocol::requests::LocalRange;
use towpath_rdma::{NotCopied, Refused};

use crate::apertures::memory::{Copied, Copying, EngineMemory, Place};
use crate::apertures::states::SessionApertures;

/// The most packets of a connection that wait. The other host sends further ones again.
pub(super) const MOST_WAITING: usize = 16;

/// The copies of a connection.
#[derive(Debug, Default)]
pub(super) struct RemoteCopies {
    /// Of packets that arrive.
    pub(super) received: Copying,
    /// Of packets that go out.
    pub(super) sent: Copying,
    /// How far the local ranges of a packet are read or written.
    loading: Ranges,
    /// The bytes of the parts that are read.
    loaded: Vec<u8>,
    storing: Ranges,
    /// Packets that wait for the one before them.
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// `true` if the first of them was handled once: its congestion mark is known.
    pub(super) is_first_tried: bool,
    /// When to look for the workers' answers, in nanoseconds.
    pub(super) looks_at: Option<u64>,
}

/// A range of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestRange {
    /// The request's number.
    id: u64,
    offset: u64,
    len: usize,
}

/// How far the parts of a range of a request are copied.
#[derive(Debug, Default)]
struct Ranges {
    of: Option<RequestRange>,
    done: usize,
}

impl Ranges {
    /// Begins with another range, or goes on with the last one. Returns `true` if it begins.
    fn begin(&mut self, of: RequestRange) -> bool {
        let is_new = self.of != Some(of);
        if is_new {
            *self = Ranges { of: Some(of), done: 0 };
        }
        is_new
    }

    /// Copies the parts that are yet to be copied by `copy`, which gets the part's place and its range of the packet's
    /// bytes.
    fn continue_with(
        &mut self,
        apertures: &SessionApertures,
        parts: &[LocalRange],
        mut copy: impl FnMut(Place<'_>, Range<usize>) -> Copied,
    ) -> Result<(), NotCopied> {
        let mut start = 0;
        for part in parts {
            let range = start..start + part.len as usize;
            start = range.end;
            if start <= self.done {
                continue;
            }
            let memory = apertures.memory(part.memory).ok_or(Refused)?;
            checked(copy(Place { memory, offset: part.offset as usize }, range))?;
            self.done = start;
        }
        let RequestRange { len, .. } = std::mem::take(self).of.unwrap_or_default();
        if start == len { Ok(()) } else { Err(NotCopied::Refused) }
    }
}

impl RemoteCopies {
    /// Reads the parts of a range of a request, by its number and the offset there.
    pub(super) fn load(
        &mut self,
        apertures: &SessionApertures,
        id: u64,
        offset: u64,
        parts: &[LocalRange],
        to: &mut [u8],
    ) -> Result<(), NotCopied> {
        if self.loading.begin(RequestRange { id, offset, len: to.len() }) {
            self.loaded.clear();
        }
        to[..self.loaded.len()].copy_from_slice(&self.loaded);
        let by_worker = |part: &LocalRange| {
            apertures.memory(part.memory).is_some_and(EngineMemory::is_by_worker)
        };
        let takes_calls = parts.iter().any(by_worker);
        let (sent, loaded) = (&mut self.sent, &mut self.loaded);
        self.loading.continue_with(apertures, parts, |place, range| {
            let Some(bytes) = to.get_mut(range) else { return Copied::No };
            let copied = sent.read(place, bytes);
            if takes_calls && copied == Copied::Yes {
                loaded.extend_from_slice(bytes);
            }
            copied
        })
    }

    /// Writes the parts of a range of a request, as [`RemoteCopies::load`] reads them.
    pub(super) fn store(
        &mut self,
        apertures: &SessionApertures,
        id: u64,
        offset: u64,
        parts: &[LocalRange],
        from: &[u8],
    ) -> Result<(), NotCopied> {
        self.storing.begin(RequestRange { id, offset, len: from.len() });
        let received = &mut self.received;
        self.storing.continue_with(apertures, parts, |place, range| {
            from.get(range).map_or(Copied::No, |bytes| received.write(place, bytes))
        })
    }

    /// Returns `true` if a worker may still write bytes of a packet that has arrived.
    pub(super) fn is_placing(&self) -> bool {
        !self.received.is_idle()
    }

    /// Begins a turn of the connection. Returns the copies that are finished, for [`RemoteCopies::end_turn`].
    pub(super) fn begin_turn(&mut self) -> [Option<u64>; 2] {
        [self.received.begin_turn(), self.sent.begin_turn()]
    }

    /// Ends a turn. Forgets copies that were finished before it, and whose outcomes it has not taken. Decides when to look
    /// for the workers' answers.
    pub(super) fn end_turn(&mut self, [received, sent]: [Option<u64>; 2], now: u64) {
        self.received.forget(received);
        self.sent.forget(sent);
        self.set_next_look(now);
    }

    /// Returns `true` if a packet or a copy waits for a worker.
    fn is_waiting(&self) -> bool {
        let is_copying = self.received.is_under_way() || self.sent.is_under_way();
        is_copying || !self.waiting.is_empty()
    }

    /// Decides when to look for the workers' answers.
    pub(super) fn set_next_look(&mut self, now: u64) {
        let next = || self.received.next_look(now).min(self.sent.next_look(now));
        self.looks_at = self.is_waiting().then(next);
    }
}

/// Returns the outcome of a copy as the connection needs it.
pub(super) fn checked(copied: Copied) -> Result<(), NotCopied> {
    match copied {
        Copied::Yes => Ok(()),
        Copied::Later => Err(NotCopied::Later),
        Copied::No | Copied::TooLate | Copied::Refused => Err(NotCopied::Refused),
    }
}
