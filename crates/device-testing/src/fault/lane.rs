//! One direction: the faults of each frame, and the frames that wait.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use towpath_device::{SpaceId, Spaces};

use crate::random::Random;

use super::spec::Faults;

/// The longest time for which a frame waits until others overtake it.
const REORDER_WAIT: Duration = Duration::from_millis(10);
/// The maximum number of frames that wait until others overtake them; further frames stay in order.
const MAX_DISPLACED: usize = 64;

/// A handle with which any thread reads the counts of injected faults.
#[derive(Clone, Debug, Default)]
pub struct FaultCounters {
    pub(super) rx: Arc<SharedLaneCounters>,
    pub(super) tx: Arc<SharedLaneCounters>,
}

impl FaultCounters {
    /// Returns the faults of received frames.
    #[must_use]
    pub fn rx(&self) -> Injected {
        self.rx.read()
    }

    /// Returns the faults of sent frames.
    #[must_use]
    pub fn tx(&self) -> Injected {
        self.tx.read()
    }
}

/// The counts of one direction's frames and faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Frames that entered the lane.
    pub frames: u64,
    /// Frames lost.
    pub dropped: u64,
    /// Frames that passed twice.
    pub duplicated: u64,
    /// Frames held back so that others overtake them.
    pub reordered: u64,
    /// Frames with a flipped bit.
    pub flipped: u64,
    /// Frames delayed.
    pub delayed: u64,
    /// Stalls begun.
    pub stalls: u64,
    /// Frames for which the driver names a wrong address.
    pub elsewhere: u64,
    /// Frames lost because there was no free slot, or because they waited when the device was
    /// reset.
    pub overflowed: u64,
}

/// The counters, as another thread may read them.
#[derive(Debug, Default)]
pub(super) struct SharedLaneCounters {
    frames: AtomicU64,
    dropped: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    flipped: AtomicU64,
    delayed: AtomicU64,
    stalls: AtomicU64,
    elsewhere: AtomicU64,
    overflowed: AtomicU64,
}

/// Adds to a counter. Only the engine's thread adds, so a store is enough.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

impl SharedLaneCounters {
    pub(super) fn read(&self) -> Injected {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Injected {
            frames: read(&self.frames),
            dropped: read(&self.dropped),
            duplicated: read(&self.duplicated),
            reordered: read(&self.reordered),
            flipped: read(&self.flipped),
            delayed: read(&self.delayed),
            stalls: read(&self.stalls),
            elsewhere: read(&self.elsewhere),
            overflowed: read(&self.overflowed),
        }
    }
}

/// A slot that holds one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) space: SpaceId,
    pub(super) offset: u32,
}

/// A frame that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frame {
    pub(super) place: Place,
    pub(super) len: u32,
    /// `true` if the driver names a wrong address for it.
    pub(super) is_elsewhere: bool,
}

struct Displaced {
    /// The number of frames that will still overtake it.
    behind: u64,
    due: Instant,
    frame: Frame,
}

pub(super) struct Lane {
    faults: Faults,
    random: Random,
    /// The longest frame that a slot holds, in bytes.
    place_bytes: usize,
    pub(super) free: Vec<Place>,
    /// Frames that may go, in this order.
    ready: VecDeque<Frame>,
    displaced: Vec<Displaced>,
    /// Delayed frames by time, then by order of arrival.
    delayed: BinaryHeap<Reverse<(Instant, u64, Frame)>>,
    arrivals: u64,
    stalled_until: Option<Instant>,
    pub(super) counters: Arc<SharedLaneCounters>,
}

impl Lane {
    pub(super) fn new(
        faults: Faults,
        seed: u64,
        place_bytes: usize,
        counters: Arc<SharedLaneCounters>,
    ) -> Lane {
        Lane {
            faults,
            random: Random::new(seed),
            place_bytes,
            free: Vec::new(),
            ready: VecDeque::new(),
            displaced: Vec::with_capacity(MAX_DISPLACED),
            delayed: BinaryHeap::new(),
            arrivals: 0,
            stalled_until: None,
            counters,
        }
    }

    /// Reserves memory for the slots, so that no frame needs an allocation.
    pub(super) fn reserve(&mut self, places: usize) {
        self.free.reserve(places);
        self.ready.reserve(places);
        self.delayed.reserve(places);
    }

    /// Counts a frame that found no slot.
    pub(super) fn overflow(&self) {
        add(&self.counters.overflowed, 1);
    }

    /// Takes a frame of the wire. Returns `false` if it is empty or too long. Without a free slot
    /// the lane loses the frame and counts it, and makes no duplicate.
    pub(super) fn admit(&mut self, spaces: &mut Spaces, bytes: &[u8], now: Instant) -> bool {
        if bytes.is_empty() || bytes.len() > self.place_bytes {
            return false;
        }
        add(&self.counters.frames, 1);
        self.fail();
        // The lane draws all numbers for each frame, so that each fault of a frame is independent
        // of the other configured faults.
        let faults = self.faults;
        let stall = self.random.chance(faults.stall);
        let drop = self.random.chance(faults.drop);
        let duplicate = self.random.chance(faults.duplicate);
        let flip = self.random.chance(faults.flip);
        let reorder = self.random.chance(faults.reorder);
        let delay = self.random.chance(faults.delay);
        let bit = self.random.below(bytes.len() as u64 * 8);
        let behind = 1 + self.random.below(3);
        if stall && self.stalled_until.is_none() {
            add(&self.counters.stalls, 1);
            self.stalled_until = Some(now + faults.stall_time);
        }
        if drop {
            add(&self.counters.dropped, 1);
            return true;
        }
        let Some(mut frame) = self.store(spaces, bytes, flip.then_some(bit)) else {
            self.overflow();
            return true;
        };
        // No number is drawn without this fault, so that the other faults of a seed stay the same.
        if faults.elsewhere > 0.0 && self.random.chance(faults.elsewhere) {
            add(&self.counters.elsewhere, 1);
            frame.is_elsewhere = true;
        }
        if flip {
            add(&self.counters.flipped, 1);
        }
        let twin = if duplicate { self.store(spaces, bytes, flip.then_some(bit)) } else { None };
        if delay {
            add(&self.counters.delayed, 1);
            self.arrivals += 1;
            self.delayed.push(Reverse((now + faults.delay_time, self.arrivals, frame)));
        } else if reorder && self.displaced.len() < MAX_DISPLACED {
            add(&self.counters.reordered, 1);
            self.displaced.push(Displaced { behind, due: now + REORDER_WAIT, frame });
        } else {
            self.pass(frame);
        }
        if let Some(twin) = twin {
            add(&self.counters.duplicated, 1);
            self.pass(twin);
        }
        true
    }

    /// Fails as a driver with a defect does. Draws no number without such a fault, so that the other
    /// faults of a seed stay the same.
    fn fail(&mut self) {
        let Faults { crash, hang, block, .. } = self.faults;
        if crash > 0.0 && self.random.chance(crash) {
            panic!("the fault of --fault crash");
        }
        if hang > 0.0 && self.random.chance(hang) {
            loop {
                std::hint::spin_loop();
            }
        }
        if block > 0.0 && self.random.chance(block) {
            loop {
                std::thread::park();
            }
        }
    }

    fn store(&mut self, spaces: &mut Spaces, bytes: &[u8], bit: Option<u64>) -> Option<Frame> {
        let place = self.free.pop()?;
        let mut stored = spaces.copy_in(place.space, place.offset, bytes);
        if let Some(bit) = bit {
            let at = (bit / 8) as usize;
            let other = [bytes[at] ^ (1 << (bit % 8))];
            stored = stored.and(spaces.copy_in(place.space, place.offset + at as u32, &other));
        }
        // The lane does not use a slot again if the server removed its memory.
        stored.ok().map(|()| Frame { place, len: bytes.len() as u32, is_elsewhere: false })
    }

    /// Releases a frame, and after it the frames that needed only this frame to overtake them.
    fn pass(&mut self, frame: Frame) {
        self.ready.push_back(frame);
        let ready = &mut self.ready;
        self.displaced.retain_mut(|displaced| {
            displaced.behind -= 1;
            if displaced.behind == 0 {
                ready.push_back(displaced.frame);
            }
            displaced.behind > 0
        });
    }

    /// Releases the frames that are due.
    pub(super) fn advance(&mut self, now: Instant) {
        if self.stalled_until.is_some_and(|until| until <= now) {
            self.stalled_until = None;
        }
        while let Some(Reverse((due, _, frame))) = self.delayed.peek() {
            if *due > now {
                break;
            }
            let frame = *frame;
            self.delayed.pop();
            self.pass(frame);
        }
        let ready = &mut self.ready;
        self.displaced.retain(|displaced| {
            let due = displaced.due <= now;
            if due {
                ready.push_back(displaced.frame);
            }
            !due
        });
    }

    /// Returns the first frame that may go now.
    pub(super) fn next(&self) -> Option<Frame> {
        if self.stalled_until.is_some() { None } else { self.ready.front().copied() }
    }

    /// Returns the frames that may go now, from the first.
    pub(super) fn ready(&self) -> impl Iterator<Item = Frame> {
        let count = if self.stalled_until.is_some() { 0 } else { self.ready.len() };
        self.ready.iter().take(count).copied()
    }

    /// Removes the first `count` ready frames, which have left the lane.
    pub(super) fn gone(&mut self, count: usize) {
        self.ready.drain(..count);
    }

    /// Returns how many frames wait, for any reason.
    pub(super) fn waiting(&self) -> usize {
        self.ready.len() + self.displaced.len() + self.delayed.len()
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_until.is_some()
    }

    /// Returns when the next frame is due or the stall ends; `None` if there is neither.
    pub(super) fn due(&self) -> Option<Instant> {
        let delayed = self.delayed.peek().map(|Reverse((due, ..))| *due);
        let displaced = self.displaced.iter().map(|displaced| displaced.due).min();
        [delayed, displaced, self.stalled_until].into_iter().flatten().min()
    }

    /// Drops and counts all waiting frames, frees their slots, and ends a stall.
    pub(super) fn clear(&mut self) {
        add(&self.counters.overflowed, self.waiting() as u64);
        let waiting = self
            .ready
            .drain(..)
            .chain(self.displaced.drain(..).map(|displaced| displaced.frame))
            .chain(self.delayed.drain().map(|Reverse((_, _, frame))| frame));
        self.free.extend(waiting.map(|frame| frame.place));
        self.stalled_until = None;
    }
}
