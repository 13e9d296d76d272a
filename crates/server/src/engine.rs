//! The engine: one thread, one turn after the other.
//!
//! A turn: commands of the control thread; receive (`receive.rs`); transmit (`transmit.rs`);
//! complete (`complete.rs`); publish and ring (`publish.rs`); and when nothing was done, what the
//! mode says. Every loop has a budget, and nothing on the way of a packet allocates, locks, logs or
//! makes a system call but the driver.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use rustix::event::epoll;
use towpath_device::{Device, DeviceError, POOL_HEADROOM_BYTES, Received, Space, SpaceId, Spaces};
use towpath_memory::{Mapping, Region, own_words};
use towpath_protocol::layout::{
    DEVICE_COUNTERS, STATE_COUNTERS_WORD, STATE_EPOCH_WORD, STATE_HEARTBEAT_WORD, STATE_SLEEP_WORD,
};
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::descriptor::MAX_CHAIN;
use towpath_queue::doorbell::Sleeper;
use towpath_queue::frames::FreeFrames;
use towpath_queue::word::LINE_WORDS;
use towpath_queue::{OwnWords, PeerWords};
use towpath_waiting::Found;

use crate::demux::{Destination, FlowCache, FlowTable};
use crate::due::DueHeap;
use crate::handoff::{Handoff, HandoffMode};
use crate::orders::{Closing, Event, Order};
use crate::publish::{Finished, Rings};
use crate::relays::Relays;
use crate::resting::{DEVICE, ORDERS, Watch};
use crate::schedule::Schedule;
use crate::session::Session;
use crate::shaping;
use crate::source::{Piece, SegmentPieces};
use crate::stage::{Stage, WHOLE_BYTES};
use crate::transmit::{EVENTS, Group};
use crate::wait::clock_ns;
use crate::waiter::{Counted, Waiter};
use crate::watchdog::Watchdog;
use crate::work::Spent;
use towpath_protocol::counters::{self, Device as Count};

/// How the engine waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It never sleeps.
    Poll,
    /// It sleeps when there is nothing to do, and is rung.
    Interrupt,
    /// It spins a while before it sleeps, if work is likely to come so soon: at most as long as a
    /// wake-up takes.
    Adaptive,
    /// It looks so many times a second, and is not rung.
    Clocked,
    /// Whichever costs least within bounds on latency and processor time.
    Auto,
}

impl Mode {
    const ALL: [Mode; 5] = [Mode::Poll, Mode::Interrupt, Mode::Adaptive, Mode::Clocked, Mode::Auto];

    /// As the setting's value has it.
    pub(crate) fn of(value: u64) -> Mode {
        Mode::ALL.get(value as usize).copied().unwrap_or(Mode::Interrupt)
    }
}

impl From<Mode> for Values {
    /// Everything as nobody set it, but the mode.
    fn from(mode: Mode) -> Values {
        let mut values = Values::default();
        let set = values.set(Setting::Mode, mode as u64);
        debug_assert!(set.is_ok(), "the table has all modes");
        values
    }
}

/// How much is done in one turn; see [`crate::Config`].
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Packets taken from the device in one turn.
    pub batch: usize,
    /// Packets, and segments of large ones, that an endpoint may receive in one turn.
    pub receive_budget: u32,
    /// Packets taken in one turn for each queue set in line. A packet that is copied several times, or
    /// cut, counts as often.
    pub transmit_budget: usize,
    /// Packets taken from all queue sets in one turn, counted so.
    pub turn_budget: usize,
}

/// A packet on its way through the device: which slots of which queue it came from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flight {
    pub(crate) session: u32,
    pub(crate) queue_set: u32,
    pub(crate) first: u32,
    pub(crate) chain: u32,
    /// Device packets that it was made into and that are not back.
    pub(crate) remaining: u32,
}

/// The engine of a device.
pub struct Engine {
    pub(crate) device: Box<dyn Device>,
    pub(crate) spaces: Spaces,
    /// Pool and stage, for reading.
    pub(crate) pool: Arc<Mapping>,
    pub(crate) pool_space: SpaceId,
    pub(crate) empty: FreeFrames,
    pub(crate) pool_frame_bytes: u32,
    pub(crate) sessions: Vec<Option<Box<Session>>>,
    /// Their places by their numbers.
    pub(crate) places: HashMap<u32, u32>,
    /// Places that are nobody's.
    pub(crate) free_places: Vec<u32>,
    pub(crate) watch: Watch,
    /// Transmit heaps by their session's place: read while sessions change.
    pub(crate) heaps: Vec<Option<(Arc<Mapping>, PeerWords)>>,
    pub(crate) flows: FlowTable,
    pub(crate) stage: Stage,
    pub(crate) handoff: Handoff,
    /// Packets that the device gave back, of those that [`crate::handoff::Counts::taken`] counts.
    pub(crate) returned: u64,
    pub(crate) watchdog: Watchdog,
    pub(crate) flights: Vec<Flight>,
    pub(crate) free_flights: FreeFrames,
    pub(crate) schedule: Schedule,
    /// Queue sets with news, while they are looked at.
    pub(crate) discovered: Vec<u32>,
    /// Small packets that go past others in one turn.
    pub(crate) small_share: usize,
    /// Endpoints whose settings need the clock; without them it is not read to send.
    pub(crate) timed: usize,
    /// What quotas count: the clock's ticks, or turns where there is no clock.
    pub(crate) tick: u64,
    /// Of the clock's ticks, those that count in `tick` already.
    clock_ticks: u64,
    pub(crate) touched: Vec<(u32, u32)>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) received: Vec<Received>,
    /// Of the received packets, those that are done with: the rest waits for the next turn.
    pub(crate) received_done: usize,
    pub(crate) tokens: Vec<u64>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) segment: SegmentPieces,
    pub(crate) found: Vec<Destination>,
    /// Taken out while packets are sent.
    pub(crate) group: Option<Box<Group>>,
    /// What the group that is sent costs beyond its own bytes.
    pub(crate) spent: Spent,
    /// Bytes that this turn may still send, by what they cost.
    pub(crate) turn_bytes: i64,
    pub(crate) counters: OwnWords,
    pub(crate) budgets: Budgets,
    pub(crate) turn: u64,
    /// Packets of the last turn.
    pub(crate) packets: Found,
    header: OwnWords,
    pub(crate) sleeper: Sleeper,
    pub(crate) values: Values,
    pub(crate) waiter: Waiter,
    /// Packets that may wait in the device: half of those that it keeps.
    pub(crate) most_waiting: u64,
    /// What waiters that are left again had counted.
    pub(crate) counted: Counted,
    /// The last sleep was ended by a ring.
    pub(crate) rung: bool,
    /// The device ends the engine's sleep.
    pub(crate) device_watched: bool,
    /// The monotonic clock as last read, in nanoseconds.
    pub(crate) now: u64,
    pub(crate) held: DueHeap,
    pub(crate) rings: Rings,
    /// Applications are notified by the engine itself, not by the workers of their users.
    pub(crate) notifies_directly: bool,
    /// Even those that are trusted, or alone, are notified by their workers.
    pub(crate) always_by_worker: bool,
    pub(crate) relays: Relays,
    /// Packets taken from the device in one turn.
    pub(crate) batch: usize,
    /// Who is awake is not rung.
    pub(crate) ring_saving: bool,
    /// Whether half of their frames used is a reason to ring those who wait for a time.
    pub(crate) ring_half: bool,
    pub(crate) orders: Receiver<(u64, Order)>,
    events: Sender<Event>,
    control_wake: Arc<OwnedFd>,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) epoll: OwnedFd,
    /// There may be orders that were not looked at.
    pub(crate) orders_left: bool,
    /// Sessions whose queue sets are to be asked again, since settings changed.
    pub(crate) hurrying: VecDeque<u32>,
    /// Sessions to be taken away that have flow rules yet.
    pub(crate) closing: VecDeque<Closing>,
    /// Sessions to be taken away of which nothing is with the device any more.
    pub(crate) landed: Vec<u32>,
    pub(crate) stop: bool,
}

/// Slots of the stage: packets between their check and their completion. At most 960 of them are with the
/// device or on their way to it, 32 more are kept for small packets (`SMALL_PLACES`), and 32 for packets
/// that are being checked (`GROUP`).
pub(crate) const STAGE_SLOTS: u32 = 1024;

/// Small packets of a turn at most, whatever the setting `small` says: small packets go past all others,
/// and must not starve them.
const MOST_SMALL: usize = 32;

/// What the engine's epoll says when a session's application notifies it.
#[must_use]
pub(crate) fn wake_data(session: u32) -> u64 {
    crate::resting::SESSIONS + u64::from(session)
}

/// What connects an engine with its control thread.
#[derive(Debug)]
pub struct Link {
    /// Orders, each with a ticket. After sending one, `wake` is written.
    pub orders: Receiver<(u64, Order)>,
    /// Answers. After sending one, `control_wake` is written.
    pub events: Sender<Event>,
    /// Wakes the engine.
    pub wake: Arc<OwnedFd>,
    /// Wakes the control thread.
    pub control_wake: Arc<OwnedFd>,
    /// Has workers notify applications.
    pub relays: Relays,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("device", &self.device.info().name).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine that serves `device`, with its state page.
    ///
    /// # Errors
    /// When memory, or the device's start, fails.
    pub fn new(
        mut device: Box<dyn Device>,
        state: Region,
        epoch: u64,
        seed: u64,
        values: &Values,
        budgets: Budgets,
        link: Link,
    ) -> Result<Engine, DeviceError> {
        let info = device.info().clone();
        let failed = |what: &'static str| {
            let name = info.name.clone();
            move |cause: io::Error| DeviceError::Failed { name, what, cause }
        };
        let mut spaces = Spaces::default();
        let pool_frame_bytes = info.rx_frame_bytes.next_multiple_of(128) as u32;
        let pool_frames = (budgets.batch * 2).clamp(64, 4096) as u32;
        let can = info.can;
        let most_waiting = info.rx_queue_packets as u64 / 2;
        let slot_bytes = if can.tx_in_place && can.tx_checksum && can.tx_segmentation {
            WHOLE_BYTES
        } else {
            (info.mtu + 18).next_multiple_of(128).max(WHOLE_BYTES)
        };
        // One space for both: a device that does not send in place sends out of this one alone.
        let pool_bytes = pool_frames as usize * pool_frame_bytes as usize;
        let mut memory = Region::private(pool_bytes + STAGE_SLOTS as usize * slot_bytes)
            .map_err(failed("memory for its packets"))?;
        let pool = memory.mapping().clone();
        // The device writes the pool, and only reads the stage behind it.
        let pool_space = spaces.add(Space::writable(memory.split_off_front(pool_bytes)));
        let stage = Stage::new(memory, pool_space, STAGE_SLOTS, slot_bytes);
        device.start(&mut spaces)?;
        let mut words = own_words(state);
        let mut header = words.split_off_front(LINE_WORDS);
        let flag = words.split_off_front(STATE_COUNTERS_WORD - STATE_SLEEP_WORD);
        let counters = words.split_off_front(DEVICE_COUNTERS);
        header.publish(STATE_EPOCH_WORD, epoch);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| failed("epoll")(error.into()))?;
        let watch = |fd: &dyn AsFd, data| {
            let data = epoll::EventData::new_u64(data);
            epoll::add(&epoll, fd.as_fd(), data, epoll::EventFlags::IN)
                .map_err(|error| failed("epoll")(error.into()))
        };
        watch(&link.wake, ORDERS)?;
        if let Some(fd) = device.sleep_fd() {
            watch(&fd, DEVICE)?;
        }
        let small_share = values.get(Setting::Small) as usize;
        Ok(Engine {
            device,
            spaces,
            pool,
            pool_space,
            empty: FreeFrames::new(0, pool_frames),
            pool_frame_bytes,
            sessions: Vec::new(),
            places: HashMap::new(),
            free_places: Vec::new(),
            watch: Watch::new(),
            heaps: Vec::new(),
            flows: FlowTable::new(seed, FlowCache::of(values.get(Setting::FlowCache))),
            stage,
            handoff: Handoff::new(HandoffMode::of(values.get(Setting::Handoff)), small_share),
            returned: 0,
            watchdog: Watchdog::of(values),
            flights: vec![Flight::default(); STAGE_SLOTS as usize],
            free_flights: FreeFrames::new(0, STAGE_SLOTS),
            schedule: Schedule::new(shaping::policy(values.get(Setting::Scheduler), &budgets)),
            discovered: Vec::with_capacity(EVENTS as usize),
            small_share,
            timed: 0,
            tick: 0,
            clock_ticks: 0,
            touched: Vec::with_capacity(1024),
            finished: Vec::with_capacity(budgets.turn_budget + MOST_SMALL),
            received: Vec::with_capacity(budgets.batch),
            received_done: 0,
            tokens: Vec::with_capacity(STAGE_SLOTS as usize),
            pieces: Vec::with_capacity(MAX_CHAIN + 1),
            segment: SegmentPieces::new(),
            found: Vec::with_capacity(64),
            group: None,
            spent: Spent::default(),
            turn_bytes: 0,
            counters,
            budgets,
            turn: 0,
            packets: Found::default(),
            header,
            sleeper: Sleeper::new(flag),
            values: values.clone(),
            waiter: Waiter::new(values, most_waiting, clock_ns()),
            counted: Counted::default(),
            most_waiting,
            rung: false,
            device_watched: true,
            now: clock_ns(),
            held: DueHeap::default(),
            rings: Rings::default(),
            notifies_directly: true,
            relays: link.relays,
            batch: budgets.batch.min(values.get(Setting::RxBatch) as usize),
            ring_saving: values.is_on(Setting::RingSaving),
            ring_half: values.is_on(Setting::RingHalf),
            always_by_worker: values.is_on(Setting::Notify),
            orders: link.orders,
            events: link.events,
            control_wake: link.control_wake,
            wake: link.wake,
            epoll,
            orders_left: false,
            hurrying: VecDeque::new(),
            closing: VecDeque::new(),
            landed: Vec::new(),
            stop: false,
        })
    }

    /// Where sessions are entered by their number, with [`wake_data`], to be heard of.
    #[must_use]
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Runs until it is told to stop, or the device fails; then closes every session.
    pub fn run(mut self) {
        self.set_timer_slack();
        self.say_whether_it_spins();
        let outcome = loop {
            let work = match self.turn() {
                Ok(_) if self.stop => break Ok(()),
                Ok(work) => work,
                Err(error) => break Err(error),
            };
            if work > 0 {
                counters::add(&mut self.counters, Count::BusyTurns as usize, 1);
            }
            if let Err(error) = self.pause(work) {
                break Err(error);
            }
        };
        for mut session in std::mem::take(&mut self.sessions).into_iter().flatten() {
            if let Some(doorbell) = session.close(0) {
                self.tell(Event::Closed { session: session.number, doorbell });
            }
            self.tell(Event::Removed(session));
        }
        self.tell(Event::Ended(outcome));
    }

    /// One turn. Answers how much was done.
    ///
    /// # Errors
    /// When the device as a whole fails.
    pub fn turn(&mut self) -> Result<usize, DeviceError> {
        self.turn += 1;
        self.count_tick();
        let mut work = self.follow_orders();
        let received = self.receive()?;
        let taken = self.transmit()?;
        self.packets = Found { packets: received + taken, received, work: 0 };
        work += received + taken;
        work += self.complete()?;
        work += self.look_after_device()?;
        self.publish_and_ring();
        self.ring_the_held();
        work += self.go_on_closing();
        work += usize::from(self.has_orders_left());
        self.watch.passed(work);
        if work > 0 {
            self.header.store(STATE_HEARTBEAT_WORD, self.turn);
        }
        // An engine that never sleeps publishes what only the driver counts every so often.
        if self.turn.is_multiple_of(4096) {
            self.publish_device_counters();
        }
        Ok(work)
    }

    fn count_tick(&mut self) {
        let Waiter::Clocked(clock) = &self.waiter else {
            self.tick += 1;
            return;
        };
        let ticks = clock.counts.kept + clock.counts.missed;
        // A clock that was set anew starts at nothing.
        self.tick += ticks.saturating_sub(self.clock_ticks);
        self.clock_ticks = ticks;
    }

    pub(crate) fn tell(&self, event: Event) {
        // Nobody listens any more when the control thread is gone; then the engine ends too.
        if self.events.send(event).is_ok() {
            let _ = rustix::io::write(&*self.control_wake, &1u64.to_ne_bytes());
        }
    }

    /// Where a pool frame starts, in bytes.
    pub(crate) fn pool_offset(&self, frame: u32) -> u32 {
        frame * self.pool_frame_bytes
    }
}

const _: () = assert!(POOL_HEADROOM_BYTES.is_multiple_of(64));
