//! The engine: one thread that runs one poll iteration after the other.
//!
//! Steps of a poll iteration:
//!
//! 1. Execute commands of the control thread.
//! 2. Receive packets (`receive.rs`).
//! 3. Transmit packets (`transmit.rs`).
//! 4. Complete packets (`complete.rs`).
//! 5. Publish and notify (`publish.rs`).
//! 6. If there was no work, wait as the strategy says.
//!
//! Every loop has a budget. The engine itself does not allocate, lock, log or make a system call
//! per packet; only the driver may.

pub(crate) mod bounce;
pub(crate) mod coalescing;
pub(crate) mod commands;
pub(crate) mod complete;
#[allow(unsafe_code)]
pub(crate) mod copy;
pub(crate) mod deadlines;
pub(crate) mod demux;
pub(crate) mod device_counters;
pub(crate) mod handoff;
pub(crate) mod local;
pub(crate) mod parking;
pub(crate) mod publish;
pub(crate) mod receive;
pub(crate) mod relays;
pub(crate) mod revive;
pub(crate) mod schedule;
pub(crate) mod send;
pub(crate) mod session;
pub(crate) mod shaping;
pub(crate) mod solo;
pub(crate) mod source;
pub(crate) mod take;
pub(crate) mod transmit;
pub(crate) mod wait;
pub(crate) mod waiter;
pub(crate) mod watchdog;
pub(crate) mod work;

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
use towpath_queue::buffers::FreeBuffers;
use towpath_queue::descriptor::MAX_CHAIN;
use towpath_queue::doorbell::Sleeper;
use towpath_queue::word::LINE_WORDS;
use towpath_queue::{OwnWords, PeerWords};
use towpath_waiting::Found;

use crate::engine::bounce::{BounceBuffers, WHOLE_BYTES};
use crate::engine::commands::{Closing, Command, EngineReport};
use crate::engine::deadlines::Deadlines;
use crate::engine::demux::{Destination, FlowCache, FlowTable};
use crate::engine::handoff::{Handoff, HandoffMode};
use crate::engine::parking::{ActiveSessions, COMMANDS, DEVICE};
use crate::engine::publish::{Completed, Notifications};
use crate::engine::relays::Relays;
use crate::engine::schedule::Schedule;
use crate::engine::session::Session;
use crate::engine::source::{Piece, SegmentPieces};
use crate::engine::transmit::{Batch, EVENTS};
use crate::engine::wait::clock_ns;
use crate::engine::waiter::{Counted, Waiter};
use crate::engine::watchdog::Watchdog;
use crate::engine::work::Spent;
use towpath_protocol::counters::{self, Device as Count};

/// The engine's wait strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStrategy {
    /// The engine never sleeps.
    Poll,
    /// The engine sleeps when it finds nothing to do, and clients notify it.
    Block,
    /// The engine spins before it sleeps if work is likely to come within the time of a wake-up. It
    /// spins at most that long.
    SpinThenBlock,
    /// The engine polls at a fixed rate per second, and clients do not notify it.
    TimerDriven,
    /// The engine picks the cheapest strategy within bounds on latency and processor time.
    Auto,
}

impl WaitStrategy {
    /// All strategies, in the order of the setting's values.
    pub const ALL: [WaitStrategy; 5] = [
        WaitStrategy::Poll,
        WaitStrategy::Block,
        WaitStrategy::SpinThenBlock,
        WaitStrategy::TimerDriven,
        WaitStrategy::Auto,
    ];

    /// Returns the strategy that the setting's value stands for.
    pub(crate) fn of(value: u64) -> WaitStrategy {
        WaitStrategy::ALL.get(value as usize).copied().unwrap_or(WaitStrategy::Block)
    }
}

impl From<WaitStrategy> for Values {
    /// Returns the default values, except for the strategy.
    fn from(strategy: WaitStrategy) -> Values {
        let mut values = Values::default();
        let set = values.set(Setting::Wait, strategy as u64);
        debug_assert!(set.is_ok(), "the table has all strategies");
        values
    }
}

/// Limits of one poll iteration; see [`crate::Config`].
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Packets that the engine takes from the device per poll iteration.
    pub batch: usize,
    /// Packets, and segments of large ones, that an endpoint may receive per poll iteration.
    pub receive_budget: u32,
    /// Packets that the engine takes per poll iteration for each queue pair in line. A packet that
    /// the engine copies or segments counts once per copy or segment.
    pub transmit_budget: usize,
    /// Packets that the engine takes from all queue pairs per poll iteration, counted the same way.
    pub iteration_budget: usize,
}

/// A packet in flight, with the slots of the queue that it came from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlight {
    pub(crate) session: u32,
    pub(crate) queue_pair: u32,
    pub(crate) first: u32,
    pub(crate) chain: u32,
    /// Device packets made from this packet that the device has not completed.
    pub(crate) remaining: u32,
}

/// The engine of a device.
pub struct Engine {
    pub(crate) device: Box<dyn Device>,
    pub(crate) spaces: Spaces,
    /// The device's pool and the bounce buffers, for reading.
    pub(crate) pool: Arc<Mapping>,
    pub(crate) pool_space: SpaceId,
    pub(crate) empty: FreeBuffers,
    pub(crate) pool_buffer_bytes: u32,
    pub(crate) sessions: Vec<Option<Box<Session>>>,
    /// Session keys by session number.
    pub(crate) keys: HashMap<u32, u32>,
    /// Free session keys.
    pub(crate) free_keys: Vec<u32>,
    pub(crate) active: ActiveSessions,
    /// Transmit buffer pools by session key; the engine reads them while sessions change.
    pub(crate) transmit_pools: Vec<Option<(Arc<Mapping>, PeerWords)>>,
    pub(crate) flows: FlowTable,
    pub(crate) bounce: BounceBuffers,
    pub(crate) handoff: Handoff,
    /// Packets that the device completed, of those that [`crate::engine::handoff::Counts::taken`] counts.
    pub(crate) returned: u64,
    pub(crate) watchdog: Watchdog,
    pub(crate) in_flight: Vec<InFlight>,
    pub(crate) free_in_flight: FreeBuffers,
    pub(crate) schedule: Schedule,
    /// Queue pairs that a session's events name, while the engine checks them.
    pub(crate) discovered: Vec<u32>,
    /// Expedited packets that precede others per poll iteration.
    pub(crate) expedited_share: usize,
    /// Endpoints whose settings need the clock; without any, the engine does not read the clock to
    /// send.
    pub(crate) timed: usize,
    /// The count of ticks for quotas: those of the clock, or poll iterations without a clock.
    pub(crate) tick: u64,
    /// The clock's ticks that `tick` already counts.
    clock_ticks: u64,
    pub(crate) touched: Vec<(u32, u32)>,
    pub(crate) completed: Vec<Completed>,
    pub(crate) received: Vec<Received>,
    /// Received packets of the batch that are done; the rest waits for the next poll iteration.
    pub(crate) received_done: usize,
    pub(crate) tokens: Vec<u64>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) segment: SegmentPieces,
    pub(crate) found: Vec<Destination>,
    /// The batch; `None` while the engine sends its packets.
    pub(crate) tx_batch: Option<Box<Batch>>,
    /// The cost of the current batch beyond its own bytes.
    pub(crate) spent: Spent,
    /// Bytes that this poll iteration may still send, weighted by their cost.
    pub(crate) iteration_bytes: i64,
    pub(crate) counters: OwnWords,
    pub(crate) budgets: Budgets,
    pub(crate) iteration: u64,
    /// Packets of the last poll iteration.
    pub(crate) packets: Found,
    header: OwnWords,
    pub(crate) sleeper: Sleeper,
    pub(crate) values: Values,
    pub(crate) waiter: Waiter,
    /// Packets that may wait in the device: half of those that the device keeps.
    pub(crate) most_waiting: u64,
    /// Counts of waiters that the engine has replaced.
    pub(crate) counted: Counted,
    /// `true` if the engine has just woken from a sleep that a notification can end.
    pub(crate) woken_by_notification: bool,
    /// `true` if the device can end the engine's sleep.
    pub(crate) device_watched: bool,
    /// The monotonic clock's last reading, in nanoseconds.
    pub(crate) now: u64,
    pub(crate) deferred: Deadlines,
    pub(crate) notifications: Notifications,
    /// `true` if the engine itself notifies applications, instead of the workers of their users.
    pub(crate) notifies_directly: bool,
    /// `true` if workers also notify the applications that are trusted or alone.
    pub(crate) always_by_worker: bool,
    pub(crate) relays: Relays,
    /// Packets that the engine takes from the device per poll iteration.
    pub(crate) rx_batch: usize,
    /// `true` if the engine suppresses notifications to clients that are awake.
    pub(crate) notification_suppression: bool,
    /// `true` if the engine notifies coalescing clients early, once half of their buffers are used.
    pub(crate) early_notification: bool,
    pub(crate) commands: Receiver<(u64, Command)>,
    events: Sender<EngineReport>,
    control_wake: Arc<OwnedFd>,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) epoll: OwnedFd,
    /// `true` if there may be commands that the engine has not read.
    pub(crate) commands_left: bool,
    /// Sessions whose queue pairs the engine must check again, because settings changed.
    pub(crate) hurrying: VecDeque<u32>,
    /// Sessions under removal that still have flow rules.
    pub(crate) closing: VecDeque<Closing>,
    /// Sessions under removal that have nothing in flight any more.
    pub(crate) landed: Vec<u32>,
    pub(crate) stop: bool,
}

/// Number of bounce buffers, which hold packets between their check and their completion. At most
/// 960 of them hold packets in the backlog or in flight. The engine reserves 32 more for expedited
/// packets (`EXPEDITED_SLOTS`), and 32 for packets under check (`BATCH`).
pub(crate) const BOUNCE_SLOTS: u32 = 1024;

/// Upper limit of expedited packets per poll iteration, whatever the value of the setting `expedited`.
/// Expedited packets precede all others, and must not starve them.
const MAX_EXPEDITED: usize = 32;

/// Returns the data that the engine's epoll set reports when a session's application notifies the
/// engine.
#[must_use]
pub(crate) fn wake_data(session: u32) -> u64 {
    crate::engine::parking::SESSIONS + u64::from(session)
}

/// The channels between an engine and its control thread.
#[derive(Debug)]
pub struct Link {
    /// Commands, each with a ticket. The control thread writes `wake` after sending one.
    pub commands: Receiver<(u64, Command)>,
    /// Replies and reports. The engine writes `control_wake` after sending one.
    pub events: Sender<EngineReport>,
    /// Wakes the engine.
    pub wake: Arc<OwnedFd>,
    /// Wakes the control thread.
    pub control_wake: Arc<OwnedFd>,
    /// Asks workers to notify applications.
    pub relays: Relays,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("device", &self.device.info().name).finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine that serves `device`, with its state page.
    ///
    /// # Errors
    /// Fails if memory cannot be allocated or the device does not start.
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
        let pool_buffer_bytes = info.rx_buffer_bytes.next_multiple_of(128) as u32;
        let pool_buffers = (budgets.batch * 2).clamp(64, 4096) as u32;
        let can = info.can;
        let most_waiting = info.rx_queue_packets as u64 / 2;
        let slot_bytes = if can.tx_in_place && can.tx_checksum && can.tx_segmentation {
            WHOLE_BYTES
        } else {
            (info.mtu + 18).next_multiple_of(128).max(WHOLE_BYTES)
        };
        // Pool and bounce buffers share one space: a device that does not send in place sends from
        // this space alone.
        let pool_bytes = pool_buffers as usize * pool_buffer_bytes as usize;
        let mut memory = Region::private(pool_bytes + BOUNCE_SLOTS as usize * slot_bytes)
            .map_err(failed("memory for its packets"))?;
        let pool = memory.mapping().clone();
        // The device writes the pool and only reads the bounce buffers behind it.
        let pool_space = spaces.add(Space::writable(memory.split_off_front(pool_bytes)));
        let bounce = BounceBuffers::new(memory, pool_space, BOUNCE_SLOTS, slot_bytes);
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
        watch(&link.wake, COMMANDS)?;
        if let Some(fd) = device.sleep_fd() {
            watch(&fd, DEVICE)?;
        }
        let expedited_share = values.get(Setting::Expedited) as usize;
        Ok(Engine {
            device,
            spaces,
            pool,
            pool_space,
            empty: FreeBuffers::new(0, pool_buffers),
            pool_buffer_bytes,
            sessions: Vec::new(),
            keys: HashMap::new(),
            free_keys: Vec::new(),
            active: ActiveSessions::new(),
            transmit_pools: Vec::new(),
            flows: FlowTable::new(seed, FlowCache::of(values.get(Setting::FlowCache))),
            bounce,
            handoff: Handoff::new(HandoffMode::of(values.get(Setting::Handoff)), expedited_share),
            returned: 0,
            watchdog: Watchdog::of(values),
            in_flight: vec![InFlight::default(); BOUNCE_SLOTS as usize],
            free_in_flight: FreeBuffers::new(0, BOUNCE_SLOTS),
            schedule: Schedule::new(shaping::policy(values.get(Setting::Scheduler), &budgets)),
            discovered: Vec::with_capacity(EVENTS as usize),
            expedited_share,
            timed: 0,
            tick: 0,
            clock_ticks: 0,
            touched: Vec::with_capacity(1024),
            completed: Vec::with_capacity(budgets.iteration_budget + MAX_EXPEDITED),
            received: Vec::with_capacity(budgets.batch),
            received_done: 0,
            tokens: Vec::with_capacity(BOUNCE_SLOTS as usize),
            pieces: Vec::with_capacity(MAX_CHAIN + 1),
            segment: SegmentPieces::new(),
            found: Vec::with_capacity(64),
            tx_batch: None,
            spent: Spent::default(),
            iteration_bytes: 0,
            counters,
            budgets,
            iteration: 0,
            packets: Found::default(),
            header,
            sleeper: Sleeper::new(flag),
            values: values.clone(),
            waiter: Waiter::new(values, most_waiting, clock_ns()),
            counted: Counted::default(),
            most_waiting,
            woken_by_notification: false,
            device_watched: true,
            now: clock_ns(),
            deferred: Deadlines::default(),
            notifications: Notifications::default(),
            notifies_directly: true,
            relays: link.relays,
            rx_batch: budgets.batch.min(values.get(Setting::RxBatch) as usize),
            notification_suppression: values.is_on(Setting::NotificationSuppression),
            early_notification: values.is_on(Setting::EarlyNotification),
            always_by_worker: values.is_on(Setting::Notify),
            commands: link.commands,
            events: link.events,
            control_wake: link.control_wake,
            wake: link.wake,
            epoll,
            commands_left: false,
            hurrying: VecDeque::new(),
            closing: VecDeque::new(),
            landed: Vec::new(),
            stop: false,
        })
    }

    /// Returns the epoll set in which the workers enter each session's `Session::wake`, with
    /// [`wake_data`].
    #[must_use]
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Runs until the control thread stops the engine or the device fails; then closes every
    /// session.
    pub fn run(mut self) {
        self.set_timer_slack();
        self.say_whether_it_spins();
        let outcome = loop {
            let work = match self.poll_once() {
                Ok(_) if self.stop => break Ok(()),
                Ok(work) => work,
                Err(error) => break Err(error),
            };
            if work > 0 {
                counters::add(&mut self.counters, Count::BusyIterations as usize, 1);
            }
            if let Err(error) = self.pause(work) {
                break Err(error);
            }
        };
        for mut session in std::mem::take(&mut self.sessions).into_iter().flatten() {
            if let Some(doorbell) = session.close(0) {
                self.tell(EngineReport::Closed { session: session.number, doorbell });
            }
            self.tell(EngineReport::Removed(session));
        }
        self.tell(EngineReport::Ended(outcome));
    }

    /// Runs one poll iteration and returns the amount of work done.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub fn poll_once(&mut self) -> Result<usize, DeviceError> {
        self.iteration += 1;
        self.count_tick();
        let mut work = self.execute_commands();
        let received = self.receive()?;
        let taken = self.transmit()?;
        self.packets = Found { packets: received + taken, received, work: 0 };
        work += received + taken;
        work += self.complete()?;
        work += self.look_after_device()?;
        self.publish_and_notify();
        self.notify_deferred();
        work += self.go_on_closing();
        work += usize::from(self.has_commands_left());
        self.active.iteration_over(work);
        if work > 0 {
            self.header.store(STATE_HEARTBEAT_WORD, self.iteration);
        }
        // An engine that never sleeps publishes the driver's own counters periodically.
        if self.iteration.is_multiple_of(4096) {
            self.publish_device_counters();
        }
        Ok(work)
    }

    fn count_tick(&mut self) {
        let Waiter::TimerDriven(clock) = &self.waiter else {
            self.tick += 1;
            return;
        };
        let ticks = clock.counts.kept + clock.counts.missed;
        // A newly set clock starts at zero.
        self.tick += ticks.saturating_sub(self.clock_ticks);
        self.clock_ticks = ticks;
    }

    pub(crate) fn tell(&self, event: EngineReport) {
        // The channel is closed once the control thread is gone; then the engine ends too.
        if self.events.send(event).is_ok() {
            let _ = rustix::io::write(&*self.control_wake, &1u64.to_ne_bytes());
        }
    }

    /// Returns the offset of a pool buffer, in bytes.
    pub(crate) fn pool_offset(&self, buffer: u32) -> u32 {
        buffer * self.pool_buffer_bytes
    }
}

const _: () = assert!(POOL_HEADROOM_BYTES.is_multiple_of(64));
