//! The engine: one thread, one turn after the other.
//!
//! A turn: commands of the control thread; receive (`receive.rs`); transmit (`transmit.rs`);
//! complete; publish and ring; and when nothing was done, what the mode says. Every loop has a
//! budget, and nothing on the way of a packet allocates, locks, logs or makes a system call but the
//! driver.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use rustix::event::epoll;
use towpath_device::{
    Armed, Device, DeviceError, POOL_HEADROOM_BYTES, Received, Space, SpaceId, Spaces,
};
use towpath_protocol::layout::{
    DEVICE_COUNTERS, ENDPOINT_COUNTERS, STATE_COUNTERS_WORD, STATE_EPOCH_WORD,
    STATE_HEARTBEAT_WORD, STATE_SLEEP_WORD, own_words,
};
use towpath_protocol::memory::Mapping;
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN};
use towpath_queue::doorbell::{self, Sleeper};
use towpath_queue::events;
use towpath_queue::frames::FreeFrames;
use towpath_queue::word::LINE_WORDS;
use towpath_queue::{OwnWords, PeerWords, Violation};

use crate::copy::{Piece, SegmentPieces, Stage, WHOLE_BYTES};
use crate::demux::{Destination, FlowTable, Rule};
use crate::handoff::Handoff;
use crate::session::{Endpoint, Session};
use towpath_protocol::counters::{self, Device as Count};

/// How the engine waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It never sleeps.
    Poll,
    /// It sleeps when there is nothing to do, and is rung.
    Interrupt,
}

/// What the control thread asks for. Each is answered with [`Event::Done`] and its ticket.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Order {
    AddSession(Box<Session>),
    RemoveSession { number: u32 },
    AddEndpoint { session: u32, number: u32, endpoint: Endpoint, tap: Option<Tap>, group: bool },
    RemoveEndpoint { session: u32, number: u32 },
    SetMode(Mode),
    Stop,
}

/// How an endpoint without a flow rule listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// Every packet of the device.
    Promiscuous,
    /// A copy of every packet in either direction.
    Capture,
}

/// What the engine tells the control thread.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Event {
    Done {
        ticket: u64,
    },
    /// Nothing of the session is in use any more.
    Removed(Box<Session>),
    /// The session was closed for what its application did.
    Violated {
        session: u32,
        violation: Violation,
    },
    /// The engine ended, well or with the device.
    Ended(Result<(), DeviceError>),
}

/// Limits and sizes of an engine; see [`crate::Config`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Packets taken from the device in one turn.
    pub batch: usize,
    /// Packets that an endpoint may receive in one turn.
    pub receive_budget: u32,
    /// Packets taken from one queue set before the next one's turn.
    pub transmit_budget: usize,
    /// Packets taken from all queue sets in one turn.
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
    pub(crate) pool: Arc<Mapping>,
    pub(crate) pool_space: SpaceId,
    pub(crate) empty: FreeFrames,
    pub(crate) pool_frame_bytes: u32,
    pub(crate) sessions: Vec<Option<Box<Session>>>,
    /// Transmit heaps by their session's place: read while sessions change.
    pub(crate) heaps: Vec<Option<(Arc<Mapping>, PeerWords)>>,
    pub(crate) flows: FlowTable,
    pub(crate) stage: Stage,
    pub(crate) handoff: Handoff,
    pub(crate) flights: Vec<Flight>,
    pub(crate) free_flights: FreeFrames,
    pub(crate) active: VecDeque<(u32, u32)>,
    pub(crate) touched: Vec<(u32, u32)>,
    pub(crate) received: Vec<Received>,
    pub(crate) tokens: Vec<u64>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) segment: SegmentPieces,
    pub(crate) found: Vec<Destination>,
    pub(crate) packet: [Descriptor; MAX_CHAIN],
    pub(crate) counters: OwnWords,
    pub(crate) settings: Settings,
    pub(crate) turn: u64,
    header: OwnWords,
    sleeper: Sleeper,
    mode: Mode,
    orders: Receiver<(u64, Order)>,
    events: Sender<Event>,
    control_wake: Arc<OwnedFd>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    closing: u32,
    stop: bool,
}

/// Slots of the stage, and so packets that may be with the device or on their way to it.
pub(crate) const STAGE_SLOTS: u32 = 1024;

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
        state: &Arc<Mapping>,
        epoch: u64,
        seed: u64,
        mode: Mode,
        settings: Settings,
        link: Link,
    ) -> Result<Engine, DeviceError> {
        let info = device.info().clone();
        let failed = |what: &'static str| {
            let name = info.name.clone();
            move |cause: io::Error| DeviceError::Failed { name, what, cause }
        };
        let mut spaces = Spaces::default();
        let pool_frame_bytes = info.rx_frame_bytes.next_multiple_of(128) as u32;
        let pool_frames = (settings.batch * 2).clamp(64, 4096) as u32;
        let pool = Mapping::private(pool_frames as usize * pool_frame_bytes as usize)
            .map_err(failed("memory for its pool"))?;
        let pool = Arc::new(pool);
        let pool_space = spaces.add(Space::new(pool.clone()));
        let can = info.can;
        let slot_bytes = if can.tx_in_place && can.tx_checksum && can.tx_segmentation {
            WHOLE_BYTES
        } else {
            (info.mtu + 18).next_multiple_of(128).max(WHOLE_BYTES)
        };
        let mut stage =
            Stage::new(STAGE_SLOTS, slot_bytes).map_err(failed("memory for its stage"))?;
        stage.space = spaces.add(Space::new(stage.memory().clone()));
        device.start(&mut spaces)?;
        let mut words = own_words(state);
        let mut header = words.split_off_front(LINE_WORDS);
        let flag = words.split_off_front(STATE_COUNTERS_WORD - STATE_SLEEP_WORD);
        let counters = words.split_off_front(DEVICE_COUNTERS);
        header.publish(STATE_EPOCH_WORD, epoch);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| failed("epoll")(error.into()))?;
        let watch = |fd: &dyn AsFd, flags| {
            epoll::add(&epoll, fd.as_fd(), epoll::EventData::new_u64(0), flags)
                .map_err(|error| failed("epoll")(error.into()))
        };
        watch(&link.wake, epoll::EventFlags::IN)?;
        if let Some(fd) = device.sleep_fd() {
            watch(&fd, epoll::EventFlags::IN)?;
        }
        Ok(Engine {
            device,
            spaces,
            pool,
            pool_space,
            empty: FreeFrames::new(0, pool_frames),
            pool_frame_bytes,
            sessions: Vec::new(),
            heaps: Vec::new(),
            flows: FlowTable::new(seed),
            stage,
            handoff: Handoff::new(),
            flights: vec![Flight::default(); STAGE_SLOTS as usize],
            free_flights: FreeFrames::new(0, STAGE_SLOTS),
            active: VecDeque::with_capacity(1024),
            touched: Vec::with_capacity(1024),
            received: Vec::with_capacity(settings.batch),
            tokens: Vec::with_capacity(STAGE_SLOTS as usize),
            pieces: Vec::with_capacity(MAX_CHAIN + 1),
            segment: SegmentPieces::new(),
            found: Vec::with_capacity(64),
            packet: [Descriptor::default(); MAX_CHAIN],
            counters,
            settings,
            turn: 0,
            header,
            sleeper: Sleeper::new(flag),
            mode,
            orders: link.orders,
            events: link.events,
            control_wake: link.control_wake,
            wake: link.wake,
            epoll,
            closing: 0,
            stop: false,
        })
    }

    /// Runs until it is told to stop, or the device fails; then closes every session.
    pub fn run(mut self) {
        let outcome = loop {
            match self.turn() {
                Ok(_) if self.stop => break Ok(()),
                Ok(0) => {
                    if let Err(error) = self.wait() {
                        break Err(error);
                    }
                }
                Ok(_) => counters::add(&mut self.counters, Count::BusyTurns as usize, 1),
                Err(error) => break Err(error),
            }
        };
        for mut session in std::mem::take(&mut self.sessions).into_iter().flatten() {
            session.close(0);
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
        let mut work = self.follow_orders();
        work += self.receive()?;
        work += self.transmit()?;
        work += self.complete()?;
        self.publish_and_ring();
        if self.closing > 0 {
            self.finish_closing();
        }
        if work > 0 {
            self.header.store(STATE_HEARTBEAT_WORD, self.turn);
        }
        // An engine that never sleeps publishes what only the driver counts every so often.
        if self.turn.is_multiple_of(4096) {
            self.publish_device_counters();
        }
        Ok(work)
    }

    fn follow_orders(&mut self) -> usize {
        let mut work = 0;
        loop {
            match self.orders.try_recv() {
                Ok((ticket, order)) => {
                    self.follow(order);
                    self.tell(Event::Done { ticket });
                    work += 1;
                }
                Err(TryRecvError::Empty) => return work,
                Err(TryRecvError::Disconnected) => {
                    self.stop = true;
                    return work;
                }
            }
        }
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::AddSession(session) => self.add_session(session),
            Order::RemoveSession { number } => {
                if let Some(place) = self.place(number) {
                    self.begin_closing(place, 0);
                }
            }
            Order::AddEndpoint { session, number, endpoint, tap, group } => {
                let Some(place) = self.place(session) else { return };
                let destination = Destination { session: place, endpoint: number };
                match tap {
                    None => {
                        self.flows.insert(&endpoint.rule, group, destination);
                    }
                    Some(Tap::Promiscuous) => self.flows.promiscuous.push(destination),
                    Some(Tap::Capture) => self.flows.captures.push(destination),
                }
                if let Some(session) = &mut self.sessions[place as usize] {
                    // A number given again starts at zero.
                    let first = number as usize * ENDPOINT_COUNTERS;
                    for word in first..first + ENDPOINT_COUNTERS {
                        session.counters.store(word, 0);
                    }
                    session.endpoints[number as usize] = Some(endpoint);
                }
            }
            Order::RemoveEndpoint { session, number } => {
                if let Some(place) = self.place(session) {
                    self.remove_endpoint(place, number);
                }
            }
            Order::SetMode(mode) => self.mode = mode,
            Order::Stop => self.stop = true,
        }
    }

    fn place(&self, number: u32) -> Option<u32> {
        let found = self
            .sessions
            .iter()
            .position(|one| one.as_ref().is_some_and(|session| session.number == number));
        found.map(|place| place as u32)
    }

    fn add_session(&mut self, mut session: Box<Session>) {
        let place = self.sessions.iter().position(Option::is_none).unwrap_or_else(|| {
            self.sessions.push(None);
            self.heaps.push(None);
            self.sessions.len() - 1
        });
        session.transmit_space = self.spaces.add(Space::new(session.transmit_heap.clone()));
        let words = towpath_protocol::layout::peer_words(&session.transmit_heap);
        self.heaps[place] = Some((session.transmit_heap.clone(), words));
        // A wake-up that cannot be watched would be lost: the session ends at once, with a hang-up.
        if epoll::add(
            &self.epoll,
            session.wake.as_fd(),
            epoll::EventData::new_u64(1),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )
        .is_err()
        {
            session.close(0);
            self.closing += 1;
        }
        self.sessions[place] = Some(session);
    }

    fn remove_endpoint(&mut self, place: u32, number: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        let Some(endpoint) = session.endpoints.get_mut(number as usize).and_then(Option::take)
        else {
            return;
        };
        let destination = Destination { session: place, endpoint: number };
        if endpoint.tap {
            self.flows.remove_taps(destination);
        } else {
            self.flows.remove(&endpoint.rule, destination);
        }
    }

    /// Ends a session: from now on it gets and sends nothing. What is with the device comes back
    /// first.
    pub(crate) fn begin_closing(&mut self, place: u32, reason: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        if session.closing {
            return;
        }
        session.close(reason);
        self.closing += 1;
        for number in 0..session.endpoints.len() as u32 {
            self.remove_endpoint(place, number);
        }
        self.active.retain(|(session, _)| *session != place);
        self.touched.retain(|(session, _)| *session != place);
        let mut gone = Vec::new();
        let (stage, flights) = (&self.stage, &self.flights);
        self.handoff.forget(|slot| {
            let theirs = flights[stage.slots[slot as usize].flight as usize].session == place;
            if theirs {
                gone.push(slot);
            }
            theirs
        });
        for slot in gone {
            self.land(slot);
        }
    }

    fn finish_closing(&mut self) {
        for place in 0..self.sessions.len() {
            if !self.sessions[place].as_ref().is_some_and(|one| one.closing && one.flights == 0) {
                continue;
            }
            if let Some(session) = self.sessions[place].take() {
                let _ = epoll::delete(&self.epoll, session.wake.as_fd());
                self.spaces.remove(session.transmit_space);
                self.heaps[place] = None;
                self.closing -= 1;
                self.tell(Event::Removed(session));
            }
        }
    }

    fn complete(&mut self) -> Result<usize, DeviceError> {
        self.handoff.flush(&self.stage, &self.spaces, self.device.as_mut())?;
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        let count = self.device.tx_return(&mut tokens, STAGE_SLOTS as usize)?;
        for token in &tokens {
            self.land(*token as u32);
        }
        self.tokens = tokens;
        Ok(count)
    }

    /// A device packet is back, or will never be sent: its slot is free, and when it was the last
    /// of its flight, the application's frames are too.
    pub(crate) fn land(&mut self, slot: u32) {
        let number = self.stage.slots[slot as usize].flight;
        self.stage.give_back(slot);
        let flight = &mut self.flights[number as usize];
        flight.remaining -= 1;
        if flight.remaining > 0 {
            return;
        }
        let flight = *flight;
        self.free_flights.give_back(number);
        if let Some(session) = &mut self.sessions[flight.session as usize] {
            session.flights -= 1;
            let set = &mut session.queue_sets[flight.queue_set as usize];
            set.transmit.complete(&mut session.transmit_ledger, flight.first, flight.chain);
            self.touch(flight.session, flight.queue_set);
        }
    }

    /// Notes a queue set to be published at the end of the turn.
    #[inline]
    pub(crate) fn touch(&mut self, session: u32, queue_set: u32) {
        if let Some(one) = &mut self.sessions[session as usize] {
            touch(&mut self.touched, one, session, queue_set);
        }
    }

    /// Publishes all that the turn did, marks events, and rings who must be woken: each fence once
    /// for all sessions.
    fn publish_and_ring(&mut self) {
        if self.touched.is_empty() {
            return;
        }
        for (place, queue_set) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize] {
                let set = &mut session.queue_sets[*queue_set as usize];
                set.transmit.publish();
                set.touched = set.receive.publish();
            }
        }
        let fenced = events::fence();
        for (place, queue_set) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize] {
                let set = &mut session.queue_sets[*queue_set as usize];
                if set.touched || set.transmit.is_wanted() {
                    match session.marker.mark(fenced, *queue_set) {
                        Ok(new) => session.marked |= new,
                        Err(violation) => {
                            session.violation.get_or_insert(violation);
                        }
                    }
                }
                set.touched = false;
            }
        }
        for (place, _) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize]
                && session.marked
            {
                session.marker.publish();
            }
        }
        let fenced = doorbell::fence();
        let mut rings = 0;
        let mut touched = std::mem::take(&mut self.touched);
        for (place, _) in &touched {
            let Some(session) = &mut self.sessions[*place as usize] else { continue };
            if std::mem::take(&mut session.marked) && session.ringer.must_ring(fenced) {
                session.ring();
                rings += 1;
            }
        }
        for (place, _) in &touched {
            self.end_if_violated(*place);
        }
        touched.clear();
        self.touched = touched;
        if rings > 0 {
            counters::add(&mut self.counters, Count::Rings as usize, rings);
        }
    }

    /// Closes a session that was found violating the protocol.
    pub(crate) fn end_if_violated(&mut self, place: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        let Some(violation) = session.violation else { return };
        if !session.closing {
            let number = session.number;
            counters::add(&mut self.counters, Count::Violations as usize, 1);
            self.begin_closing(place, violation as u32);
            self.tell(Event::Violated { session: number, violation });
        }
    }

    /// Nothing was done: what the mode says.
    fn wait(&mut self) -> Result<(), DeviceError> {
        if self.mode == Mode::Poll {
            std::hint::spin_loop();
            return Ok(());
        }
        self.publish_device_counters();
        self.sleeper.prepare();
        let idle = self.is_idle();
        if idle && self.device.arm(self.handoff.is_waiting())? == Armed::Sleep {
            counters::add(&mut self.counters, Count::Sleeps as usize, 1);
            let mut woken = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }; 16];
            match epoll::wait(&self.epoll, &mut woken[..], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(cause) => {
                    let name = self.device.info().name.clone();
                    let cause = cause.into();
                    return Err(DeviceError::Failed { name, what: "waiting", cause });
                }
            }
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.wake, &mut count);
        }
        self.sleeper.awake();
        Ok(())
    }

    /// Looks at everything that the engine would be woken for, after it announced its sleep. An
    /// order that came meanwhile has made `wake` readable.
    fn is_idle(&mut self) -> bool {
        let mut idle = true;
        for place in 0..self.sessions.len() as u32 {
            let Some(session) = &mut self.sessions[place as usize] else { continue };
            if session.closing {
                continue;
            }
            match session.work.is_idle() {
                Ok(one) => idle &= one,
                Err(violation) => {
                    session.violation.get_or_insert(violation);
                    self.end_if_violated(place);
                    idle = false;
                }
            }
        }
        idle
    }

    fn publish_device_counters(&mut self) {
        let driver = self.device.counters();
        for (count, value) in [
            (Count::RxDriver, driver.rx_dropped),
            (Count::TxDriver, driver.tx_dropped),
            (Count::DriverCalls, driver.system_calls),
            (Count::TxPackets, self.handoff.taken),
            (Count::TxBytes, self.handoff.taken_bytes),
            (Count::Backlogged, self.handoff.backlogged),
        ] {
            self.counters.store(count as usize, value);
        }
    }

    fn tell(&self, event: Event) {
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

/// Notes a queue set to be published at the end of the turn.
#[inline]
pub(crate) fn touch(
    touched: &mut Vec<(u32, u32)>,
    session: &mut Session,
    place: u32,
    queue_set: u32,
) {
    let set = &mut session.queue_sets[queue_set as usize];
    if !set.touched {
        set.touched = true;
        touched.push((place, queue_set));
    }
}

/// The rule of an endpoint that only taps.
#[must_use]
pub fn tap_rule(mac: [u8; 6]) -> Rule {
    Rule { mac, vlan: None, ethertype: None, ip: None, protocol: None, port: None }
}
