//! The memories of sessions, as the engine reaches them.
//!
//! The engine maps the memory of a user that cannot make it wait. It has the worker of any other user copy
//! ([`towpath_memory::copying`]). A copy then takes several calls: the first one asks the worker, and the later ones see
//! whether the worker has copied. The request, or the connection with another host, waits until then.

use std::sync::Arc;

use towpath_memory::CommonMemory;
use towpath_memory::copying::{self, CopyArea, CopySlot, Direction};

use crate::account::Account;
use crate::clock::clock_ns;

/// The time from one look for the worker's answer to the next one, in nanoseconds: as long as the copy has taken,
/// within these limits.
const LEAST_PAUSE_NS: u64 = 20_000;
const MOST_PAUSE_NS: u64 = 2_000_000;
/// How long a worker may take for a copy, in nanoseconds. Then it fails.
const MOST_TIME_NS: u64 = 10_000_000_000;

/// A memory of a session.
#[derive(Clone, Debug)]
pub enum EngineMemory {
    /// The engine maps the memory.
    Mapped(CommonMemory),
    /// The worker of the memory's user maps it.
    ByWorker(WorkerMemory),
    /// Two users can take its pages away: requests to this memory are refused. With its length.
    Refused(usize),
}

/// A memory that only the worker of its user maps.
#[derive(Clone, Debug)]
pub struct WorkerMemory {
    /// The number by which the worker knows the memory.
    pub id: u64,
    /// The length in bytes.
    pub len: usize,
    /// The memory by which the worker copies.
    pub area: Arc<CopyArea>,
    /// The worker's number, and the account of the memory's owner.
    pub worker: (u64, Account),
}

impl EngineMemory {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            EngineMemory::Mapped(memory) => memory.len(),
            EngineMemory::ByWorker(memory) => memory.len,
            EngineMemory::Refused(len) => *len,
        }
    }

    /// Returns `true` if a copy may take several calls.
    pub(crate) fn is_by_worker(&self) -> bool {
        matches!(self, EngineMemory::ByWorker(_))
    }

    /// Returns the most bytes of one copy between two memories if it may take several calls: if a worker copies. One
    /// worker for both copies directly, and more at a time.
    pub(crate) fn most_by_worker(&self, other: &EngineMemory) -> Option<usize> {
        match (self, other) {
            (EngineMemory::ByWorker(one), EngineMemory::ByWorker(other)) if one.shares(other) => {
                Some(copying::TRANSFER_BYTES)
            }
            (EngineMemory::ByWorker(_), _) | (_, EngineMemory::ByWorker(_)) => {
                Some(copying::COPY_BYTES)
            }
            _ => None,
        }
    }
}

impl WorkerMemory {
    /// Returns `true` if one worker maps both memories.
    fn shares(&self, other: &WorkerMemory) -> bool {
        Arc::ptr_eq(&self.area, &other.area)
    }

    /// Returns the reason why the worker does not copy.
    fn not_copied(&self) -> Copied {
        if self.area.is_lost() { Copied::TooLate } else { Copied::No }
    }
}

/// A range of a memory, from a byte on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) memory: &'a EngineMemory,
    pub(crate) offset: usize,
}

/// The same of a memory that a worker maps.
#[derive(Clone, Copy)]
struct WorkerPlace<'a> {
    memory: &'a WorkerMemory,
    offset: usize,
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    Yes,
    /// The worker has yet to copy: make the same call again.
    Later,
    /// The range is not inside, or the memory cannot be reached.
    No,
    /// The worker has taken too long.
    TooLate,
    /// Requests may not reach the memory.
    Refused,
}

impl Copied {
    fn from_bool(is_copied: bool) -> Copied {
        if is_copied { Copied::Yes } else { Copied::No }
    }
}

/// What a call copies: from a memory's place, to a memory's place, and how much. The server's own memory has the id 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyRequest {
    from: (u64, usize),
    to: (u64, usize),
    len: usize,
}

#[derive(Debug)]
struct UnderWay {
    request: CopyRequest,
    direction: Direction,
    slot: CopySlot,
    since: u64,
}

impl UnderWay {
    fn is_late(&self) -> bool {
        clock_ns().saturating_sub(self.since) >= MOST_TIME_NS
    }
}

/// The copies of one request or connection, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    under_way: Option<Box<UnderWay>>,
    /// Since when the copy waits for a slot, in nanoseconds.
    waits_since: Option<u64>,
    /// The same before this turn of the caller.
    waited_since: Option<u64>,
}

fn id(memory: &EngineMemory) -> u64 {
    match memory {
        EngineMemory::Mapped(_) | EngineMemory::Refused(_) => 0,
        EngineMemory::ByWorker(memory) => memory.id,
    }
}

/// Returns what to tell the caller after a step. `take`: takes the bytes of a copy that is made.
fn concluded(
    step: Result<CopySlot, Copied>,
    take: impl FnOnce(&CommonMemory, usize) -> bool,
) -> Copied {
    step.map_or_else(
        |copied| copied,
        |slot| {
            let (bytes, at) = slot.bytes();
            Copied::from_bool(take(bytes, at))
        },
    )
}

impl Copying {
    /// Copies bytes out of a memory.
    pub(crate) fn read(&mut self, from: Place<'_>, to: &mut [u8]) -> Copied {
        let Place { memory, offset } = from;
        let memory = match memory {
            EngineMemory::Mapped(memory) => return Copied::from_bool(memory.read(offset, to)),
            EngineMemory::Refused(_) => return Copied::Refused,
            EngineMemory::ByWorker(memory) => memory,
        };
        let request = CopyRequest { from: (memory.id, offset), to: (0, 0), len: to.len() };
        let step = self.step(request, Direction::Read, memory, offset, |_, _| true);
        concluded(step, |bytes, at| bytes.read(at, to))
    }

    /// Copies bytes into a memory, in ascending order.
    pub(crate) fn write(&mut self, to: Place<'_>, from: &[u8]) -> Copied {
        let Place { memory, offset } = to;
        let memory = match memory {
            EngineMemory::Mapped(memory) => return Copied::from_bool(memory.write(offset, from)),
            EngineMemory::Refused(_) => return Copied::Refused,
            EngineMemory::ByWorker(memory) => memory,
        };
        let request = CopyRequest { from: (0, 0), to: (memory.id, offset), len: from.len() };
        let fill = |bytes: &CommonMemory, at| bytes.write_unordered(at, from);
        concluded(self.step(request, Direction::Write, memory, offset, fill), |_, _| true)
    }

    /// Copies from one memory to another one, in ascending order.
    pub(crate) fn transfer(&mut self, to: Place<'_>, from: Place<'_>, len: usize) -> Copied {
        let (at, start) = (to.offset, from.offset);
        let request = CopyRequest { from: (id(from.memory), start), to: (id(to.memory), at), len };
        match (to.memory, from.memory) {
            (EngineMemory::Refused(_), _) | (_, EngineMemory::Refused(_)) => Copied::Refused,
            (EngineMemory::Mapped(to), EngineMemory::Mapped(from)) => {
                Copied::from_bool(to.copy_from(at, from, start, len))
            }
            (EngineMemory::Mapped(to), EngineMemory::ByWorker(from)) => {
                let step = self.step(request, Direction::Read, from, start, |_, _| true);
                concluded(step, |bytes, place| to.copy_from(at, bytes, place, len))
            }
            (EngineMemory::ByWorker(to), EngineMemory::Mapped(from)) => {
                let fill = |bytes: &CommonMemory, place| bytes.copy_from(place, from, start, len);
                concluded(self.step(request, Direction::Write, to, at, fill), |_, _| true)
            }
            (EngineMemory::ByWorker(to), EngineMemory::ByWorker(from)) if to.shares(from) => {
                concluded(self.step(request, Direction::Transfer, to, at, |_, _| true), |_, _| true)
            }
            (EngineMemory::ByWorker(to), EngineMemory::ByWorker(from)) => {
                let to = WorkerPlace { memory: to, offset: at };
                let from = WorkerPlace { memory: from, offset: start };
                self.transfer_by_workers(request, to, from)
            }
        }
    }

    /// Copies by two workers, the second one after the first one. The first one does not begin while the second one has
    /// no free slot: it would copy in vain.
    fn transfer_by_workers(
        &mut self,
        request: CopyRequest,
        to: WorkerPlace<'_>,
        from: WorkerPlace<'_>,
    ) -> Copied {
        let is_writing = self
            .under_way
            .as_ref()
            .is_some_and(|one| one.request == request && one.direction == Direction::Write);
        let mut read = None;
        if !is_writing {
            if self.under_way.is_none() && !to.memory.area.has_free_slot() {
                return self.wait_for_slot();
            }
            match self.step(request, Direction::Read, from.memory, from.offset, |_, _| true) {
                Ok(slot) => read = Some(slot),
                Err(copied) => return copied,
            }
        }
        let fill = |bytes: &CommonMemory, place| {
            let source = read.as_ref().map(CopySlot::bytes);
            source.is_some_and(|(from, start)| bytes.copy_from(place, from, start, request.len))
        };
        let step = self.step(request, Direction::Write, to.memory, to.offset, fill);
        concluded(step, |_, _| true)
    }

    /// Records that the copy waits for a slot.
    fn wait_for_slot(&mut self) -> Copied {
        let since = self.waits_since.or(self.waited_since).unwrap_or_else(clock_ns);
        self.waits_since = Some(since);
        let is_late = clock_ns().saturating_sub(since) >= MOST_TIME_NS;
        if is_late { Copied::TooLate } else { Copied::Later }
    }

    /// Asks a worker for a copy, after `fill` has put the bytes of a write into the slot, or sees whether it has made
    /// it. Returns the slot of a finished copy, or the outcome for the caller.
    fn step(
        &mut self,
        request: CopyRequest,
        direction: Direction,
        memory: &WorkerMemory,
        offset: usize,
        fill: impl FnOnce(&CommonMemory, usize) -> bool,
    ) -> Result<CopySlot, Copied> {
        if let Some(one) = &self.under_way {
            let Some(is_copied) = one.slot.outcome() else {
                return Err(if one.is_late() { Copied::TooLate } else { Copied::Later });
            };
            let is_this = one.request == request && one.direction == direction;
            let one = self.under_way.take().map(|one| *one);
            if let Some(one) = one.filter(|_| is_this) {
                return if is_copied { Ok(one.slot) } else { Err(memory.not_copied()) };
            }
        }
        let is_inside = offset <= memory.len && request.len <= memory.len - offset;
        if !is_inside || request.len > direction.most_bytes() {
            return Err(Copied::No);
        }
        if memory.area.is_lost() {
            return Err(memory.not_copied());
        }
        let Some(slot) = memory.area.claim() else { return Err(self.wait_for_slot()) };
        (self.waits_since, self.waited_since) = (None, None);
        let (bytes, place) = slot.bytes();
        if !fill(bytes, place) {
            return Err(Copied::No);
        }
        let range = (memory.id, offset as u64, request.len as u64);
        slot.ask(direction, range, (request.from.0, request.from.1 as u64));
        let since = clock_ns();
        self.under_way = Some(Box::new(UnderWay { request, direction, slot, since }));
        Err(Copied::Later)
    }

    /// Returns `true` if no worker copies for this, or if it has taken too long.
    pub(crate) fn is_idle(&self) -> bool {
        let ends = |one: &UnderWay| one.slot.outcome().is_some() || one.is_late();
        self.under_way.as_deref().is_none_or(ends)
    }

    /// Returns `true` if a copy waits for a slot, or was asked for and no call has taken its outcome.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some() || self.waits_since.is_some()
    }

    /// Returns when a copy began that is finished and whose outcome no call has taken, in nanoseconds: its name.
    fn finished(&self) -> Option<u64> {
        let one = self.under_way.as_deref().filter(|one| one.slot.outcome().is_some());
        one.map(|one| one.since)
    }

    /// Begins a turn of the caller, which asks again for a slot if it still needs one. Returns what
    /// [`Copying::finished`] does.
    pub(crate) fn begin_turn(&mut self) -> Option<u64> {
        self.waited_since = self.waits_since.take();
        self.finished()
    }

    /// Forgets a copy by the name that [`Copying::begin_turn`] returned: no call wants its outcome.
    pub(crate) fn forget(&mut self, finished: Option<u64>) {
        if finished.is_some() && finished == self.finished() {
            self.under_way = None;
        }
    }

    /// Returns the time of the next look for the worker's answer, in nanoseconds.
    pub(crate) fn next_look(&self, now: u64) -> u64 {
        let since = self.under_way.as_ref().map(|one| one.since).or(self.waits_since);
        let taken = since.map_or(0, |since| now.saturating_sub(since));
        now + taken.clamp(LEAST_PAUSE_NS, MOST_PAUSE_NS)
    }
}
