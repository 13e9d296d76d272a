//! A session as the engine has it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_device::SpaceId;
use towpath_memory::{Mapping, Region, own_words, peer_words};
use towpath_protocol::layout::{CLOSED_WORD, REST_WORD, SessionShape};
use towpath_protocol::settings::Setting;
use towpath_queue::doorbell::{Ringer, Sleeper};
use towpath_queue::events::{Acknowledger, Marker};
use towpath_queue::frames::Ledger;
use towpath_queue::receive::{ReceiveProducer, server_side};
use towpath_queue::transmit::TransmitConsumer;
use towpath_queue::{OwnWords, Violation};

use crate::coalescing::{self, Coalescing, Values};
use crate::demux::Rule;
use crate::prepare::Relay;
use crate::publish::News;
use crate::resting::RESTS;
use crate::rights::Rights;
use crate::schedule::arrivals::Arrivals;
use crate::schedule::shape::{Class, Shape};

/// A queue set and what the engine notes beside it.
#[derive(Debug)]
pub struct QueueSet {
    /// Transmit.
    pub transmit: TransmitConsumer,
    /// Receive.
    pub receive: ReceiveProducer,
    /// Its number in the scheduler; given by the engine.
    pub unit: u32,
    /// An endpoint that uses it has settings of its own: its packets are looked at one by one.
    pub shaped: bool,
    /// How many.
    shapes: u32,
    /// Their maximum delays, in microseconds.
    delays: Values,
    /// When its packets came, where an endpoint that uses it has a maximum delay.
    pub arrivals: Option<Box<Arrivals>>,
    /// It is in the list of those to be published at the end of the turn.
    pub touched: bool,
    /// Received packets after which the application is rung.
    pub rx_frames: u32,
    /// How long a ring may be put off for them, in microseconds; 0: not at all.
    pub rx_usecs: u32,
    /// What its endpoints ask for of these.
    coalescing: Coalescing,
}

/// An endpoint as the engine has it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its queue set.
    pub queue_set: u32,
    /// What it receives.
    pub rule: Rule,
    /// What it may send.
    pub rights: Rights,
    /// Packets received, and microseconds, after which the application is rung.
    pub coalescing: (u32, u32),
    /// It takes large and unfinished packets.
    pub offload: bool,
    /// It has no flow rule: it captures, or receives everything.
    pub tap: bool,
    /// For which turn `received` counts.
    pub turn: u64,
    /// Packets received in that turn.
    pub received: u32,
}

/// Everything of a session that the engine touches. Made by the control thread, handed over whole,
/// and handed back whole to be unmapped there.
#[derive(Debug)]
pub struct Session {
    /// Its number, as tools show it.
    pub number: u32,
    /// What it consists of.
    pub shape: SessionShape,
    /// Where received packets go. Only the engine writes it.
    pub receive_heap: Region,
    /// Where packets to be sent come from. Only the application writes it.
    pub transmit_heap: Arc<Mapping>,
    /// The transmit heap as a data space; given by the engine.
    pub transmit_space: SpaceId,
    /// Events to the application.
    pub marker: Marker,
    /// Events from the application.
    pub work: Acknowledger,
    /// Whether the application sleeps.
    pub ringer: Ringer,
    /// How the application is notified.
    pub doorbell: Doorbell,
    /// Readable when the application notifies the engine: an epoll instance, which no application has.
    pub wake: OwnedFd,
    /// Its queue sets.
    pub queue_sets: Vec<QueueSet>,
    /// Whose the frames of the transmit heap are.
    pub transmit_ledger: Ledger,
    /// Whose the frames of the receive heap are.
    pub receive_ledger: Ledger,
    /// Its endpoints by number; none any more when it is to be taken away.
    pub endpoints: Vec<Option<Endpoint>>,
    /// How those of them send that have settings of their own, by their number.
    pub shapes: Vec<Option<Box<Shape>>>,
    /// Queue sets that are yet to be asked again, since settings changed, and the first of them.
    pub(crate) to_hurry: (u32, u32),
    /// Their counters.
    pub counters: OwnWords,
    header: OwnWords,
    /// Whether it has to ring although the engine is awake.
    pub(crate) rest: Sleeper,
    /// Where it stands among those that the engine looks at by itself.
    pub(crate) watched_at: u32,
    /// When it last had something to send, in the engine's turns.
    pub(crate) news_at: u64,
    /// Packets that are with the device.
    pub flights: u32,
    /// What is to be made known to it at the end of this turn.
    pub(crate) news: News,
    /// Packets that it was not rung for.
    pub(crate) unrung: u32,
    /// It is to be taken away as soon as nothing of it is with the device.
    pub closing: bool,
    /// Its flow rules are gone, too.
    pub(crate) emptied: bool,
    /// What the application did wrong; found in the middle of a turn, dealt with at its end.
    pub violation: Option<Violation>,
}

/// How an application is notified: by the engine itself, or, where that could last as long as the
/// application likes and others would wait, by the worker of its user.
#[derive(Debug)]
pub struct Doorbell {
    /// The server's end of the doorbell; none once the session is over.
    socket: Option<OwnedFd>,
    /// The worker's part; none where there is no worker.
    relay: Option<Relay>,
}

impl Doorbell {
    pub(crate) fn new(socket: OwnedFd, relay: Relay) -> Doorbell {
        Doorbell { socket: Some(socket), relay: Some(relay) }
    }

    /// A doorbell that the engine itself always uses: of an application that is trusted not to make
    /// that last.
    #[must_use]
    pub fn direct(socket: OwnedFd) -> Doorbell {
        Doorbell { socket: Some(socket), relay: None }
    }

    /// The worker that can notify for the engine.
    pub(crate) fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// Notifies the application. The kernel walks everything that waits for the doorbell.
    pub(crate) fn notify(&self) {
        if let Some(socket) = &self.socket {
            // A full socket holds a notification already; a closed one is noticed by the worker.
            crate::worker::held::notify(socket);
        }
    }
}

/// Bytes of the server's own memory that an endpoint counts as: in the engine's tables, the control
/// thread's and the flow table, some 900 without settings of its own, and as much again with them.
pub(crate) const ENDPOINT_BYTES: usize = 2560;
/// The same for a queue set.
pub(crate) const QUEUE_SET_BYTES: usize = 1024;

/// The memories that a session is made of, mapped.
#[derive(Debug)]
pub struct Memories {
    /// Server pages, writable.
    pub server: Region,
    /// Application pages, read-only.
    pub application: Arc<Mapping>,
    /// Ledger, writable.
    pub ledger: Region,
    /// Receive heap, writable.
    pub receive_heap: Region,
    /// Transmit heap, read-only.
    pub transmit_heap: Arc<Mapping>,
}

/// A session's memories, for reading: counters, and what concerns the mappings themselves.
#[derive(Clone, Debug)]
pub struct Mappings {
    /// Server pages.
    pub server: Arc<Mapping>,
    /// All: first those that the server writes.
    pub(crate) all: [Arc<Mapping>; 5],
}

impl Memories {
    /// Their mappings.
    #[must_use]
    pub fn mappings(&self) -> Mappings {
        let written = [&self.server, &self.ledger, &self.receive_heap].map(Region::mapping);
        let [server, ledger, receive_heap] = written.map(Arc::clone);
        let (application, transmit_heap) = (self.application.clone(), self.transmit_heap.clone());
        let all = [server.clone(), ledger, receive_heap, application, transmit_heap];
        Mappings { server, all }
    }
}

impl QueueSet {
    /// An endpoint that uses it had settings of its own, and has others now.
    pub(crate) fn note_shape(&mut self, old: Option<&Shape>, new: Option<&Shape>) {
        let delay = |shape: &Shape| match shape.set.max_delay_us {
            0 => u32::MAX,
            delay => delay,
        };
        if let Some(old) = old {
            self.shapes -= 1;
            self.delays.remove(delay(old));
        }
        if let Some(new) = new {
            self.shapes += 1;
            self.delays.add(delay(new));
        }
        self.shaped = self.shapes > 0;
        let least_us = self.delays.least(self.shapes);
        self.arrivals =
            (least_us < u32::MAX).then(|| Box::new(Arrivals::new(u64::from(least_us) * 1000)));
    }

    /// What holds for it: the least of its endpoints'.
    fn coalesce(&mut self) {
        (self.rx_frames, self.rx_usecs) = self.coalescing.least();
    }
}

impl Session {
    /// A session over its memories, new ones or those left by a predecessor.
    #[must_use]
    pub fn new(
        number: u32,
        shape: SessionShape,
        memories: Memories,
        doorbell: Doorbell,
        wake: OwnedFd,
    ) -> Session {
        let mut server = shape.server_own(own_words(memories.server));
        let header = server.header.split_off_front(REST_WORD);
        let application = shape.application_peer(&peer_words(&memories.application));
        let ledger = shape.ledger(own_words(memories.ledger));
        let queue_sets = server
            .queue_sets
            .into_iter()
            .zip(&application.queue_sets)
            .zip(ledger.queue_sets)
            .map(|((own, peer), done)| {
                let (transmit, receive) =
                    server_side(&shape.queues, shape.transmit_heap, own, peer, done);
                QueueSet {
                    transmit,
                    receive,
                    unit: u32::MAX,
                    shaped: false,
                    shapes: 0,
                    delays: Values::new(u32::MAX),
                    arrivals: None,
                    touched: false,
                    rx_frames: coalescing::UNSET.0,
                    rx_usecs: coalescing::UNSET.1,
                    coalescing: Coalescing::default(),
                }
            })
            .collect();
        let cleared = |words: OwnWords, frames: u32| {
            let mut ledger = Ledger::new(words, frames);
            // What the frames' places are is said by the queues alone.
            ledger.clear();
            ledger
        };
        Session {
            number,
            shape,
            receive_heap: memories.receive_heap,
            transmit_heap: memories.transmit_heap,
            transmit_space: SpaceId(u32::MAX),
            marker: Marker::new(shape.events(), server.events, &application.acknowledgements),
            work: Acknowledger::new(shape.events(), server.acknowledgements, &application.events),
            ringer: Ringer::new(application.header),
            doorbell,
            wake,
            queue_sets,
            transmit_ledger: cleared(ledger.transmit, shape.transmit_heap.frames()),
            receive_ledger: cleared(ledger.receive, shape.receive_heap.frames()),
            endpoints: (0..shape.endpoints).map(|_| None).collect(),
            shapes: (0..shape.endpoints).map(|_| None).collect(),
            to_hurry: (0, 0),
            counters: server.counters,
            header,
            rest: Sleeper::new(server.header),
            watched_at: RESTS,
            news_at: 0,
            flights: 0,
            news: News::default(),
            unrung: 0,
            closing: false,
            emptied: false,
            violation: None,
        }
    }

    /// Tells the application that it is over, and why (0: no violation). Returns the doorbell, which
    /// the worker of the application's user is to close: that is how the application hears of it.
    #[must_use]
    pub fn close(&mut self, reason: u32) -> Option<OwnedFd> {
        self.closing = true;
        self.header.publish(CLOSED_WORD, 1 << 32 | u64::from(reason));
        self.doorbell.socket.take()
    }

    /// What is left of a session that is over: descriptors, among them the doorbell if it was never
    /// closed.
    pub(crate) fn into_rest(self) -> (Vec<OwnedFd>, Option<OwnedFd>) {
        (vec![self.wake], self.doorbell.socket)
    }

    /// An endpoint's packets are rung for later. Those that share a queue set are rung for together,
    /// when the first of them is to be.
    pub fn set_coalescing(&mut self, endpoint: u32, setting: Setting, value: u32) {
        let Some(one) = self.endpoints.get_mut(endpoint as usize).and_then(Option::as_mut) else {
            return;
        };
        let set = &mut self.queue_sets[one.queue_set as usize];
        set.coalescing.remove(one);
        match setting {
            Setting::RxFrames if value == 0 => one.coalescing.0 = coalescing::UNSET.0,
            Setting::RxFrames => one.coalescing.0 = value,
            _ => one.coalescing.1 = value,
        }
        set.coalescing.add(one);
        set.coalesce();
    }

    /// An endpoint comes.
    pub(crate) fn put_in(&mut self, number: u32, endpoint: Endpoint) {
        let set = &mut self.queue_sets[endpoint.queue_set as usize];
        set.coalescing.add(&endpoint);
        set.coalesce();
        self.endpoints[number as usize] = Some(endpoint);
    }

    /// An endpoint goes.
    pub(crate) fn take_out(&mut self, number: u32) -> Option<Endpoint> {
        let endpoint = self.endpoints.get_mut(number as usize)?.take()?;
        let set = &mut self.queue_sets[endpoint.queue_set as usize];
        set.coalescing.remove(&endpoint);
        set.coalesce();
        Some(endpoint)
    }

    /// Which line a packet of an endpoint stands in.
    #[must_use]
    pub fn class(&self, endpoint: u32) -> Class {
        let shape = self.shapes.get(endpoint as usize).and_then(Option::as_deref);
        shape.map_or_else(Class::default, |shape| shape.set.class())
    }
}
