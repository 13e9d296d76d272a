//! The memories of sessions, as the engine reaches them.
//!
//! The engine maps the memory of a user that cannot make it wait. It has the worker of any other user copy
//! ([`crate::copying`]). A copy then takes several calls: the first one asks the worker, and the later ones see whether
//! the worker has copied. The request, or the connection with another host, waits until then.

use std::sync::Arc;

use towpath_memory::CommonMemory;

use crate::account::Account;
use crate::clock::clock_ns;
use crate::copying::{COPY_BYTES, CopyArea, Direction, Ticket};

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
    pub(crate) id: u64,
    pub(crate) len: usize,
    pub(crate) area: Arc<CopyArea>,
    /// The worker's number, and the account of the memory's owner.
    pub(crate) worker: (u64, Account),
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
}

impl WorkerMemory {
    /// Returns the reason why the worker does not copy.
    fn not_copied(&self) -> Copied {
        if self.area.is_lost() { Copied::TooLate } else { Copied::No }
    }
}

/// A range of a memory, from a byte on.
pub(crate) type Place<'a> = (&'a EngineMemory, usize);

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
struct What {
    from: (u64, usize),
    to: (u64, usize),
    len: usize,
}

#[derive(Debug)]
struct UnderWay {
    what: What,
    direction: Direction,
    ticket: Ticket,
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
    step: Result<Ticket, Copied>,
    take: impl FnOnce(&CommonMemory, usize) -> bool,
) -> Copied {
    step.map_or_else(
        |copied| copied,
        |ticket| {
            let (bytes, at) = ticket.bytes();
            Copied::from_bool(take(bytes, at))
        },
    )
}

impl Copying {
    /// Copies bytes out of a memory.
    pub(crate) fn read(&mut self, (memory, offset): Place<'_>, to: &mut [u8]) -> Copied {
        let memory = match memory {
            EngineMemory::Mapped(memory) => return Copied::from_bool(memory.read(offset, to)),
            EngineMemory::Refused(_) => return Copied::Refused,
            EngineMemory::ByWorker(memory) => memory,
        };
        let what = What { from: (memory.id, offset), to: (0, 0), len: to.len() };
        let step = self.step(what, Direction::Read, memory, offset, |_, _| true);
        concluded(step, |bytes, at| bytes.read(at, to))
    }

    /// Copies bytes into a memory, in ascending order.
    pub(crate) fn write(&mut self, (memory, offset): Place<'_>, from: &[u8]) -> Copied {
        let memory = match memory {
            EngineMemory::Mapped(memory) => return Copied::from_bool(memory.write(offset, from)),
            EngineMemory::Refused(_) => return Copied::Refused,
            EngineMemory::ByWorker(memory) => memory,
        };
        let what = What { from: (0, 0), to: (memory.id, offset), len: from.len() };
        let fill = |bytes: &CommonMemory, at| bytes.write_unordered(at, from);
        concluded(self.step(what, Direction::Write, memory, offset, fill), |_, _| true)
    }

    /// Copies from one memory to another one, in ascending order.
    pub(crate) fn transfer(&mut self, to: Place<'_>, from: Place<'_>, len: usize) -> Copied {
        let what = What { from: (id(from.0), from.1), to: (id(to.0), to.1), len };
        match (to, from) {
            ((EngineMemory::Refused(_), _), _) | (_, (EngineMemory::Refused(_), _)) => {
                Copied::Refused
            }
            ((EngineMemory::Mapped(to), at), (EngineMemory::Mapped(from), start)) => {
                Copied::from_bool(to.copy_from(at, from, start, len))
            }
            ((EngineMemory::Mapped(to), at), (EngineMemory::ByWorker(from), start)) => {
                let step = self.step(what, Direction::Read, from, start, |_, _| true);
                concluded(step, |bytes, place| to.copy_from(at, bytes, place, len))
            }
            ((EngineMemory::ByWorker(to), at), (EngineMemory::Mapped(from), start)) => {
                let fill = |bytes: &CommonMemory, place| bytes.copy_from(place, from, start, len);
                concluded(self.step(what, Direction::Write, to, at, fill), |_, _| true)
            }
            ((EngineMemory::ByWorker(to), at), (EngineMemory::ByWorker(from), start)) => {
                self.transfer_by_workers(what, (to, at), (from, start))
            }
        }
    }

    /// Copies by two workers, the second one after the first one. The first one does not begin while the second one has
    /// no free slot: it would copy in vain.
    fn transfer_by_workers(
        &mut self,
        what: What,
        (to, at): (&WorkerMemory, usize),
        (from, start): (&WorkerMemory, usize),
    ) -> Copied {
        let is_writing = self
            .under_way
            .as_ref()
            .is_some_and(|one| one.what == what && one.direction == Direction::Write);
        let mut read = None;
        if !is_writing {
            if self.under_way.is_none() && !to.area.has_free_slot() {
                return self.wait_for_slot();
            }
            match self.step(what, Direction::Read, from, start, |_, _| true) {
                Ok(ticket) => read = Some(ticket),
                Err(copied) => return copied,
            }
        }
        let fill = |bytes: &CommonMemory, place| {
            let source = read.as_ref().map(Ticket::bytes);
            source.is_some_and(|(from, start)| bytes.copy_from(place, from, start, what.len))
        };
        concluded(self.step(what, Direction::Write, to, at, fill), |_, _| true)
    }

    /// Records that the copy waits for a slot.
    fn wait_for_slot(&mut self) -> Copied {
        let since = self.waits_since.or(self.waited_since).unwrap_or_else(clock_ns);
        self.waits_since = Some(since);
        let is_late = clock_ns().saturating_sub(since) >= MOST_TIME_NS;
        if is_late { Copied::TooLate } else { Copied::Later }
    }

    /// Asks a worker for a copy, after `fill` has put the bytes of a write into the slot, or sees whether it has made
    /// it. Returns the ticket of a copy that is made; else what to tell the caller.
    fn step(
        &mut self,
        what: What,
        direction: Direction,
        memory: &WorkerMemory,
        offset: usize,
        fill: impl FnOnce(&CommonMemory, usize) -> bool,
    ) -> Result<Ticket, Copied> {
        if let Some(one) = &self.under_way {
            let Some(is_copied) = one.ticket.outcome() else {
                return Err(if one.is_late() { Copied::TooLate } else { Copied::Later });
            };
            let is_this = one.what == what && one.direction == direction;
            let one = self.under_way.take().map(|one| *one);
            if let Some(one) = one.filter(|_| is_this) {
                return if is_copied { Ok(one.ticket) } else { Err(memory.not_copied()) };
            }
        }
        let is_inside = offset <= memory.len && what.len <= memory.len - offset;
        if !is_inside || what.len > COPY_BYTES {
            return Err(Copied::No);
        }
        if memory.area.is_lost() {
            return Err(memory.not_copied());
        }
        let Some(ticket) = memory.area.claim() else { return Err(self.wait_for_slot()) };
        (self.waits_since, self.waited_since) = (None, None);
        let (bytes, place) = ticket.bytes();
        if !fill(bytes, place) {
            return Err(Copied::No);
        }
        ticket.ask(direction, (memory.id, offset as u64, what.len as u64));
        let since = clock_ns();
        self.under_way = Some(Box::new(UnderWay { what, direction, ticket, since }));
        Err(Copied::Later)
    }

    /// Returns `true` if no worker copies for this, or if it has taken too long.
    pub(crate) fn is_idle(&self) -> bool {
        let ends = |one: &UnderWay| one.ticket.outcome().is_some() || one.is_late();
        self.under_way.as_deref().is_none_or(ends)
    }

    /// Returns `true` if a copy waits for a slot, or was asked for and no call has taken its outcome.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some() || self.waits_since.is_some()
    }

    /// Returns when a copy began that is finished and whose outcome no call has taken, in nanoseconds: its name.
    fn finished(&self) -> Option<u64> {
        let one = self.under_way.as_deref().filter(|one| one.ticket.outcome().is_some());
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
