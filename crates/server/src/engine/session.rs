//! The engine's view of a session.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_device::{Registration, SpaceId, VlanTag};
use towpath_memory::{Mapping, Region, own_words, peer_words};
use towpath_protocol::layout::{
    CLOSED_WORD, ENDPOINT_COUNTERS, ENDPOINT_REVOKED_WORD, ENGINE_NS_WORD, PARKED_WORD,
    REVOKED_WORD, SessionShape,
};
use towpath_protocol::oob::OobAddress;
use towpath_protocol::settings::Setting;
use towpath_queue::buffers::Ledger;
use towpath_queue::doorbell::{PeerSleepFlag, Sleeper};
use towpath_queue::events::{Acknowledger, Marker};
use towpath_queue::receive::{ReceiveProducer, server_side};
use towpath_queue::transmit::TransmitConsumer;
use towpath_queue::{OwnWords, PeerWords, Violation};

use crate::engine::apertures::states::SessionApertures;
use crate::engine::coalescing::{self, Coalescing, Values};
use crate::engine::demux::Rule;
use crate::engine::forbidden::Forbidden;
use crate::engine::last_sent::LastSent;
use crate::engine::oob::queue::SessionOob;
use crate::engine::own::Own;
use crate::engine::relays::Relay;
use crate::engine::remote::own_address::OwnAddress;
use crate::engine::schedule::arrivals::Arrivals;
use crate::engine::schedule::shape::{Class, Shape};
use crate::rights::Rights;

/// Marks a parked session in [`Session::active_at`].
pub(crate) const PARKED: u32 = u32::MAX;

/// The news of one session at the end of a poll iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// `true` if the engine marked events.
    pub(crate) marked: bool,
    /// `true` if the engine must notify the client now, even if it deferred the notification.
    pub(crate) urgent: bool,
    /// `true` if half of a queue pair's buffers are used.
    pub(crate) full: bool,
    /// The deadline of a deferred notification, in nanoseconds; 0 if none is deferred.
    pub(crate) due: u64,
    /// `true` if the server closed an endpoint of the session.
    pub(crate) revoked: bool,
}

/// A queue pair and the engine's own state for it.
#[derive(Debug)]
pub struct QueuePair {
    /// The transmit queue.
    pub transmit: TransmitConsumer,
    /// The receive queue.
    pub receive: ReceiveProducer,
    /// The queue pair's number in the scheduler; the engine assigns it.
    pub unit: u32,
    /// `true` if an endpoint that uses the queue pair has settings of its own; the engine then
    /// checks its packets one by one.
    pub shaped: bool,
    /// Number of such endpoints.
    shapes: u32,
    /// The maximum delays of such endpoints, in microseconds.
    delays: Values,
    /// The arrival times of packets, if an endpoint that uses the queue pair has a maximum delay.
    pub arrivals: Option<Box<Arrivals>>,
    /// `true` if the queue pair is in the list of those that the engine publishes at the end of the
    /// poll iteration.
    pub touched: bool,
    /// Received packets after which the engine notifies the application.
    pub rx_frames: u32,
    /// The longest deferral of a notification for received packets, in microseconds; 0 for none.
    pub rx_usecs: u32,
    /// The coalescing settings of the endpoints that use the queue pair.
    coalescing: Coalescing,
}

impl QueuePair {
    /// Makes the engine's view of a queue pair of a session of this shape.
    fn new(shape: &SessionShape, own: OwnWords, peer: &PeerWords, done: OwnWords) -> QueuePair {
        let (transmit, receive) = server_side(&shape.queues, shape.transmit_pool, own, peer, done);
        QueuePair {
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
    }
}

/// The engine's view of an endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The endpoint's queue pair.
    pub queue_pair: u32,
    /// The packets that the endpoint receives.
    pub rule: Rule,
    /// The packets that the endpoint may send.
    pub rights: Rights,
    /// Received packets, and microseconds, after which the engine notifies the application.
    pub coalescing: (u32, u32),
    /// `true` if the endpoint takes large packets and packets with partial checksums.
    pub offload: bool,
    /// The tag of the VLAN that the endpoint lies within. The application receives packets without
    /// the tag, and the engine or the device inserts it into packets that the endpoint sends.
    pub within: Option<VlanTag>,
    /// `true` if the endpoint has no flow rule: it captures, or receives everything.
    pub captures: bool,
    /// `true` if an earlier server opened the endpoint, whose counters go on.
    pub is_resumed: bool,
    /// The poll iteration for which `received` counts.
    pub iteration: u64,
    /// Packets received in that poll iteration.
    pub received: u32,
    /// For an endpoint that asks for link addresses, the number of requests that it may still make
    /// before an answer.
    pub requests_left: Option<u32>,
    /// The last plain packet that the endpoint sent.
    pub last_sent: LastSent,
    /// The endpoint's addresses for out-of-band messages; empty if it takes and sends none.
    pub oob: Box<[OobAddress]>,
    /// Those IP addresses of it that endpoints of other hosts may connect with; empty without the
    /// right to it.
    pub reachable: Box<[(IpAddr, OwnAddress)]>,
}

/// Everything of a session that the engine touches. The control thread makes it and hands it over
/// whole. The engine hands it back whole, and the control thread unmaps it.
#[derive(Debug)]
pub struct Session {
    /// The session's number, as tools show it.
    pub number: u32,
    /// The sizes of the session's parts.
    pub shape: SessionShape,
    /// The memory for received packets. Only the engine writes it.
    pub receive_pool: Region,
    /// The memory with packets to send. Only the application writes it.
    pub transmit_pool: Arc<Mapping>,
    /// The transmit buffer pool as a data space; the engine assigns it.
    pub transmit_space: SpaceId,
    /// A hardware queue of the session's own.
    pub own: Own,
    /// The registration of the transmit buffer pool with a device that needs it.
    pub registration: Option<Registration>,
    /// `true` if the device sends directly from the transmit buffer pool; the engine assigns it.
    pub in_place: bool,
    /// Events to the application.
    pub marker: Marker,
    /// Events from the application.
    pub work: Acknowledger,
    /// The application's sleep state.
    pub notifier: PeerSleepFlag,
    /// The way in which the server notifies the application.
    pub doorbell: Doorbell,
    /// Readable when the application notifies the engine. This is an epoll instance that no
    /// application has. `None` while the session is unclaimed: its server was killed, and its
    /// application has yet to connect to this one. Until then the engine takes no packet from the
    /// session and marks no event, since the event queues may be inconsistent.
    pub wake: Option<OwnedFd>,
    /// The session's queue pairs.
    pub queue_pairs: Vec<QueuePair>,
    /// The owner of each buffer of the transmit buffer pool.
    pub transmit_ledger: Ledger,
    /// The owner of each buffer of the receive buffer pool.
    pub receive_ledger: Ledger,
    /// The session's endpoints by number; empty once the session is under removal.
    pub endpoints: Vec<Option<Box<Endpoint>>>,
    /// The sending state of the endpoints with settings of their own, by endpoint number.
    pub shapes: Vec<Option<Box<Shape>>>,
    /// Number of queue pairs that the engine must check again because settings changed, and the
    /// first of them.
    pub(crate) to_hurry: (u32, u32),
    /// The endpoints' counters.
    pub counters: OwnWords,
    header: OwnWords,
    /// The accounts; of no words in the layout of an older application.
    accounts: OwnWords,
    /// The number of endpoints that the server closed, which the application reads.
    revoked: OwnWords,
    /// The queues of out-of-band messages.
    pub(crate) oob: SessionOob,
    /// The states of its apertures, and its tripwires.
    pub(crate) apertures: SessionApertures,
    /// The limit of packets that the session's rights forbid, if there is one.
    pub(crate) forbidden: Option<Forbidden>,
    /// Tells the application to notify the engine even if the engine is awake.
    pub(crate) parking: Sleeper,
    /// The session's index in the list of active sessions, or [`PARKED`].
    pub(crate) active_at: u32,
    /// The engine's age at the last packet to send, in poll iterations.
    pub(crate) news_at: u64,
    /// Packets in flight.
    pub in_flight: u32,
    /// The news for the session at the end of this poll iteration.
    pub(crate) news: News,
    /// Packets without a notification so far.
    pub(crate) unnotified: u32,
    /// `true` if the engine removes the session as soon as none of its packets is in flight.
    pub closing: bool,
    /// `true` if the session's flow rules are gone, too.
    pub(crate) emptied: bool,
    /// The application's violation. The engine finds it within a poll iteration and acts on it at
    /// the end.
    pub violation: Option<Violation>,
}

/// The way in which the server notifies an application. An application can make a notification take
/// arbitrarily long. Where others would wait for it, the worker of the application's user notifies;
/// otherwise the engine does.
#[derive(Clone, Debug)]
pub struct Doorbell {
    /// The server's end of the doorbell, which all lanes share; `None` once the session is over.
    socket: Option<Arc<OwnedFd>>,
    /// The worker's part; `None` where there is no worker.
    relay: Option<Relay>,
}

impl Doorbell {
    pub(crate) fn new(socket: OwnedFd, relay: Relay) -> Doorbell {
        Doorbell { socket: Some(Arc::new(socket)), relay: Some(relay) }
    }

    /// Returns a doorbell that the engine itself always uses. The application must be trusted not
    /// to prolong a notification.
    #[must_use]
    pub fn direct(socket: OwnedFd) -> Doorbell {
        Doorbell { socket: Some(Arc::new(socket)), relay: None }
    }

    /// Returns the server's end of the doorbell.
    pub(crate) fn into_socket(self) -> Option<Arc<OwnedFd>> {
        self.socket
    }

    /// Returns the doorbell of a session that its application has yet to claim.
    pub(crate) fn none() -> Doorbell {
        Doorbell { socket: None, relay: None }
    }

    /// Returns the worker that can notify in place of the engine.
    pub(crate) fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// Notifies the application. The kernel walks the list of all waiters of the doorbell.
    pub(crate) fn notify(&self) {
        if let Some(socket) = &self.socket {
            // A full socket already holds a notification. The worker notices a closed one.
            crate::worker::held::notify(socket);
        }
    }
}

/// Bytes of the server's own memory that an endpoint counts as. The tables of the engine and of the
/// control thread, and the flow table, take some 900 without settings of its own, and as much again
/// with them.
pub(crate) const ENDPOINT_BYTES: usize = 2560;
/// Bytes of the server's own memory that a queue pair counts as.
pub(crate) const QUEUE_PAIR_BYTES: usize = 1024;

/// The mapped memories of a session: all parts, one for each lane.
#[derive(Debug)]
pub struct Memories {
    /// Server pages, writable.
    pub server: Region,
    /// Application pages, read-only.
    pub application: Arc<Mapping>,
    /// Ledger, writable.
    pub ledger: Region,
    /// Receive buffer pool, writable.
    pub receive_pool: Region,
    /// Transmit buffer pool, read-only.
    pub transmit_pool: Arc<Mapping>,
    /// The application's armed words, read-only; `None` if the session has no tripwires.
    pub armed: Option<Arc<Mapping>>,
}

/// A session's memories for reading counters and for operations on the mappings themselves.
#[derive(Clone, Debug)]
pub struct Mappings {
    /// Server pages.
    pub server: Arc<Mapping>,
    /// The ledger.
    pub(crate) ledger: Arc<Mapping>,
    /// All mappings; those that the server writes come first.
    pub(crate) all: [Arc<Mapping>; 5],
    /// The application's armed words.
    pub(crate) armed: Option<Arc<Mapping>>,
}

/// A lane's part of a session's memories.
#[derive(Debug)]
pub(crate) struct LaneMemories {
    /// `true` for the first lane.
    is_first: bool,
    server: Region,
    application: PeerWords,
    ledger: Region,
    receive_pool: Region,
    transmit_pool: Arc<Mapping>,
    armed: Option<PeerWords>,
}

impl Memories {
    /// Takes the next lane's part off the front of these memories, which hold as many as there are
    /// lanes. `lane`: its number.
    pub(crate) fn split_off_lane(&mut self, shape: &SessionShape, lane: usize) -> LaneMemories {
        let words = shape.application_words();
        LaneMemories {
            is_first: lane == 0,
            server: self.server.split_off_front(shape.server_words() * 8),
            application: peer_words(&self.application).part(lane * words, words),
            ledger: self.ledger.split_off_front(shape.ledger_words() * 8),
            receive_pool: self.receive_pool.split_off_front(shape.receive_pool.pool_bytes()),
            transmit_pool: self.transmit_pool.clone(),
            armed: self.armed.as_ref().map(peer_words),
        }
    }

    /// Returns the mappings of these memories.
    #[must_use]
    pub fn mappings(&self) -> Mappings {
        let written = [&self.server, &self.ledger, &self.receive_pool].map(Region::mapping);
        let [server, ledger, receive_pool] = written.map(Arc::clone);
        let (application, transmit_pool) = (self.application.clone(), self.transmit_pool.clone());
        let all = [server.clone(), ledger.clone(), receive_pool, application, transmit_pool];
        Mappings { server, ledger, all, armed: self.armed.clone() }
    }
}

/// Returns a ledger in which no buffer has an owner: only the queues determine the owners.
fn cleared(words: OwnWords, buffers: u32) -> Ledger {
    let mut ledger = Ledger::new(words, buffers);
    ledger.clear();
    ledger
}

impl QueuePair {
    /// Records that the settings of an endpoint that uses the queue pair changed.
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

    /// Applies the lowest coalescing settings of the endpoints that use the queue pair.
    fn coalesce(&mut self) {
        (self.rx_frames, self.rx_usecs) = self.coalescing.least();
    }
}

impl Session {
    /// Returns the number of requests for link addresses that an endpoint may make, if that is what
    /// it is for.
    #[inline]
    pub(crate) fn requests_left(&mut self, endpoint: u32) -> Option<&mut u32> {
        self.endpoints.get_mut(endpoint as usize)?.as_mut()?.requests_left.as_mut()
    }

    /// Returns `true` if an endpoint receives packets without the tag of its VLAN.
    pub(crate) fn is_within_vlan(&self, endpoint: u32) -> bool {
        let endpoint = self.endpoints.get(endpoint as usize).and_then(Option::as_ref);
        endpoint.is_some_and(|endpoint| endpoint.within.is_some())
    }

    /// Returns `true` if an endpoint is open, and takes out-of-band messages.
    pub(crate) fn takes_oob(&self, endpoint: u32) -> bool {
        let endpoint = self.endpoints.get(endpoint as usize).and_then(Option::as_ref);
        endpoint.is_some_and(|endpoint| !endpoint.oob.is_empty())
    }

    /// Returns `true` if an endpoint may have connections with other hosts.
    pub(crate) fn is_reachable(&self, endpoint: u32) -> bool {
        let endpoint = self.endpoints.get(endpoint as usize).and_then(Option::as_ref);
        endpoint.is_some_and(|endpoint| !endpoint.reachable.is_empty())
    }

    /// Returns the address of an endpoint from which it sends an out-of-band message to an IP
    /// address: of the same family and, for IPv6, link-local if that one is.
    pub(crate) fn oob_address(&self, endpoint: u32, to: IpAddr) -> Option<OobAddress> {
        let endpoint = self.endpoints.get(endpoint as usize)?.as_ref()?;
        let is_local = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => (true, ip.is_link_local()),
            IpAddr::V6(ip) => (false, ip.is_unicast_link_local()),
        };
        let same_family = |one: &&OobAddress| one.ip.is_ipv4() == to.is_ipv4();
        let all = || endpoint.oob.iter().filter(same_family);
        all().find(|one| is_local(one.ip) == is_local(to)).or_else(|| all().next()).copied()
    }

    /// Creates a session of a server with one lane over its memories, either new ones or those that
    /// a predecessor left.
    #[must_use]
    pub fn new(
        number: u32,
        shape: SessionShape,
        mut memories: Memories,
        doorbell: Doorbell,
        wake: OwnedFd,
    ) -> Session {
        let memories = memories.split_off_lane(&shape, 0);
        Session::of_lane(number, shape, memories, doorbell, Some(wake))
    }

    /// Creates a lane's part of a session. `wake`: `None` for a session of an earlier server, which
    /// its application has yet to claim.
    pub(crate) fn of_lane(
        number: u32,
        shape: SessionShape,
        memories: LaneMemories,
        doorbell: Doorbell,
        wake: Option<OwnedFd>,
    ) -> Session {
        let mut server = shape.server_own(own_words(memories.server));
        let header = server.header.split_off_front(PARKED_WORD);
        let parked = server.header.split_off_front(REVOKED_WORD - PARKED_WORD);
        let application = shape.application_peer(&memories.application);
        let ledger = shape.ledger(own_words(memories.ledger));
        let words = server.queue_pairs.into_iter().zip(&application.queue_pairs);
        let words = words.zip(ledger.queue_pairs);
        let queue_pairs = words.map(|((own, peer), done)| QueuePair::new(&shape, own, peer, done));
        Session {
            number,
            shape,
            receive_pool: memories.receive_pool,
            transmit_pool: memories.transmit_pool,
            transmit_space: SpaceId(u32::MAX),
            own: Own::None,
            registration: None,
            in_place: false,
            marker: Marker::new(
                shape.events_to_application(),
                server.events,
                &application.acknowledgements,
            ),
            work: Acknowledger::new(
                shape.events_to_server(),
                server.acknowledgements,
                &application.events,
            ),
            notifier: PeerSleepFlag::new(application.header),
            doorbell,
            wake,
            queue_pairs: queue_pairs.collect(),
            transmit_ledger: cleared(ledger.transmit, shape.transmit_pool.buffers()),
            receive_ledger: cleared(ledger.receive, shape.receive_pool.buffers()),
            endpoints: (0..shape.endpoints).map(|_| None).collect(),
            shapes: (0..shape.endpoints).map(|_| None).collect(),
            to_hurry: (0, 0),
            counters: server.counters,
            accounts: server.accounts,
            header,
            revoked: server.header,
            oob: match memories.is_first {
                true => SessionOob::new(&shape, server.oob, application.oob, ledger.oob),
                false => SessionOob::none(),
            },
            apertures: SessionApertures::new(
                &shape,
                (server.apertures, server.fired, server.requests),
                ledger.progress,
                memories.armed.filter(|_| memories.is_first),
            ),
            forbidden: None,
            parking: Sleeper::new(parked),
            active_at: PARKED,
            news_at: 0,
            in_flight: 0,
            news: News::default(),
            unnotified: 0,
            closing: false,
            emptied: false,
            violation: None,
        }
    }

    /// Adds to the engine's time for the session, in nanoseconds.
    pub(crate) fn add_time(&mut self, ns: u64) {
        if !self.accounts.is_empty() {
            let total = self.accounts.get(ENGINE_NS_WORD).wrapping_add(ns);
            self.accounts.store(ENGINE_NS_WORD, total);
        }
    }

    /// Tells the application that the server closed an endpoint, unless it has been told already.
    pub(crate) fn tell_revoked(&mut self, number: u32) {
        let word = number as usize * ENDPOINT_COUNTERS + ENDPOINT_REVOKED_WORD;
        // An earlier server may have been killed between the two stores.
        if self.counters.get(word) == 1 && self.revoked.get(0) > 0 {
            return;
        }
        self.counters.store(word, 1);
        let count = self.revoked.get(0) + 1;
        self.revoked.publish(0, count);
        self.news.revoked = true;
    }

    /// Tells the application that the session is over, and the reason (0: none). Returns
    /// the doorbell for the worker of the application's user to close, once all lanes have returned
    /// it. The close informs the application.
    #[must_use]
    pub fn close(&mut self, reason: u32) -> Option<Arc<OwnedFd>> {
        self.closing = true;
        self.header.publish(CLOSED_WORD, 1 << 32 | u64::from(reason));
        self.doorbell.socket.take()
    }

    /// Returns `true` if the application has been told that the session is over, by this server or
    /// an earlier one.
    pub(crate) fn is_closed(&self) -> bool {
        self.header.get(CLOSED_WORD) != 0
    }

    /// Returns the remaining descriptors of a session that is over, and the doorbell if it is still
    /// open, and no other lane has it.
    pub(crate) fn into_closed(self) -> (Option<OwnedFd>, Option<OwnedFd>) {
        (self.wake, self.doorbell.socket.and_then(Arc::into_inner))
    }

    /// Returns `true` if an application has the session, and `false` until one claims a session of
    /// an earlier server.
    #[inline]
    pub(crate) fn is_claimed(&self) -> bool {
        self.wake.is_some()
    }

    /// Gives the session to its application, which has restarted its event queues.
    ///
    /// # Errors
    /// [`Violation::Index`] if the application's index is impossible.
    pub(crate) fn claim(&mut self, doorbell: Doorbell, wake: OwnedFd) -> Result<(), Violation> {
        (self.doorbell, self.wake) = (doorbell, Some(wake));
        self.notifier.restart();
        self.marker.restart();
        self.work.restart()
    }

    /// Changes the coalescing of an endpoint. For endpoints that share a queue pair, the engine
    /// notifies as soon as the first of them requires a notification.
    pub fn set_coalescing(&mut self, endpoint: u32, setting: Setting, value: u32) {
        let Some(Some(one)) = self.endpoints.get_mut(endpoint as usize) else { return };
        let set = &mut self.queue_pairs[one.queue_pair as usize];
        set.coalescing.remove(one.coalescing);
        match setting {
            Setting::RxFrames if value == 0 => one.coalescing.0 = coalescing::UNSET.0,
            Setting::RxFrames => one.coalescing.0 = value,
            _ => one.coalescing.1 = value,
        }
        set.coalescing.add(one.coalescing);
        set.coalesce();
    }

    /// Enters an endpoint.
    pub(crate) fn put_in(&mut self, number: u32, endpoint: Box<Endpoint>) {
        let set = &mut self.queue_pairs[endpoint.queue_pair as usize];
        set.coalescing.add(endpoint.coalescing);
        set.coalesce();
        self.endpoints[number as usize] = Some(endpoint);
    }

    /// Removes an endpoint.
    pub(crate) fn take_out(&mut self, number: u32) -> Option<Box<Endpoint>> {
        let endpoint = self.endpoints.get_mut(number as usize)?.take()?;
        let set = &mut self.queue_pairs[endpoint.queue_pair as usize];
        set.coalescing.remove(endpoint.coalescing);
        set.coalesce();
        Some(endpoint)
    }

    /// Returns the scheduler's line for an endpoint's packets.
    #[must_use]
    pub fn class(&self, endpoint: u32) -> Class {
        let shape = self.shapes.get(endpoint as usize).and_then(Option::as_deref);
        shape.map_or_else(Class::default, |shape| shape.set.class())
    }
}
