//! The lanes of a session: one part of its memory for each engine thread of the server.
//!
//! Each lane has event queues, sleep flags, queue pairs and receive buffers of its own, so that
//! each shared word has one writer. The transmit pool is one: a packet leaves on the lane that
//! follows from its flow, and any lane can send from any buffer. An application sees none of this.
//! It names queue pairs by the numbers that it asked for, and receives from all lanes.

use std::os::fd::OwnedFd;

use towpath_packet::flow::{FLOW_BYTES, flow_hash};
use towpath_protocol::counters;
use towpath_protocol::layout::{
    CLOSED_WORD, ENDPOINT_COUNTERS, ENDPOINT_REVOKED_WORD, PARKED_WORD, REVOKED_WORD,
    STATE_SLEEP_WORD, STATE_WORDS, ServerPages, SessionShape,
};
use towpath_queue::buffers::FreeBuffers;
use towpath_queue::doorbell::{PeerSleepFlag, Sleeper};
use towpath_queue::events::{Acknowledger, Marker};
use towpath_queue::receive::{ReceiveConsumer, application_side};
use towpath_queue::transmit::TransmitProducer;
use towpath_queue::{OwnWords, PeerWords};

use crate::oob_queues::Oob;

/// The parts that only the first lane has.
pub(crate) struct FirstLaneParts {
    /// The queues of out-of-band messages.
    pub(crate) oob: Option<Box<Oob>>,
    /// The states of apertures.
    pub(crate) apertures: PeerWords,
    /// Which tripwires fired.
    pub(crate) fired: PeerWords,
    /// What became of requests.
    pub(crate) requests: PeerWords,
}

pub(crate) struct QueuePair {
    pub(crate) transmit: TransmitProducer,
    pub(crate) receive: ReceiveConsumer,
    /// The queue pair's lane.
    pub(crate) lane: usize,
    /// The queue pair's number in its lane, by which the application knows it.
    pub(crate) number: u32,
    /// The first of the lane's receive buffers in the pool. Descriptors count from it.
    pub(crate) first_buffer: u32,
    /// `true` if the queue pair is in `ready`.
    pub(crate) ready: bool,
    /// `true` if the queue pair is in `dirty`.
    pub(crate) dirty: bool,
    /// `true` if the queue pair has the room that the application requested: news even when no
    /// packet waits.
    pub(crate) room: bool,
    /// `true` if a wait has ended because of `room`.
    pub(crate) room_told: bool,
    /// `true` if the application waits for room: the client checks for it at the next event.
    pub(crate) wants: bool,
}

/// A lane's part of a session, but for its queue pairs.
pub(crate) struct Lane {
    pub(crate) wake: OwnedFd,
    pub(crate) events: Acknowledger,
    pub(crate) marker: Marker,
    pub(crate) sleeper: Sleeper,
    /// Reads whether the engine sleeps.
    pub(crate) server_sleep_flag: PeerSleepFlag,
    /// Reads whether the engine has parked this session: awake or not, the engine polls the session
    /// only after a notification.
    pub(crate) parked_flag: PeerSleepFlag,
    /// The free receive buffers, numbered from the lane's first one.
    pub(crate) receive_free: FreeBuffers,
    /// `true` if the client has published packets since it last notified the engine.
    pub(crate) unnotified: bool,
    header: PeerWords,
    counters: PeerWords,
}

/// Makes the lanes of a session, and their queue pairs: first all of the first lane, and so on; and
/// what only the first lane has.
pub(crate) fn lanes(
    shape: &SessionShape,
    wakes: Vec<OwnedFd>,
    mut own: OwnWords,
    server: &PeerWords,
    state: &PeerWords,
) -> (Vec<Lane>, Vec<QueuePair>, Option<FirstLaneParts>) {
    let (mut lanes, mut queue_pairs, mut first) = (Vec::new(), Vec::new(), None);
    let words = shape.server_words();
    for (number, wake) in wakes.into_iter().enumerate() {
        let pages: ServerPages<PeerWords> = shape.server_peer(&server.part(number * words, words));
        let own = shape.application_own(own.split_off_front(shape.application_words()));
        for (index, (own, peer)) in (0..).zip(own.queue_pairs.into_iter().zip(&pages.queue_pairs)) {
            let (transmit, receive) =
                application_side(&shape.queues, shape.receive_pool, own, peer);
            queue_pairs.push(QueuePair {
                transmit,
                receive,
                lane: number,
                number: index,
                first_buffer: number as u32 * shape.receive_pool.buffers(),
                ready: false,
                dirty: false,
                room: false,
                room_told: false,
                wants: false,
            });
        }
        if number == 0 {
            let oob = Oob::new(shape, own.oob, &pages.oob, &pages.requests);
            let (apertures, fired, requests) = (pages.apertures, pages.fired, pages.requests);
            first = Some(FirstLaneParts { oob, apertures, fired, requests });
        }
        let flag = state.part(number * STATE_WORDS + STATE_SLEEP_WORD, 1);
        lanes.push(Lane {
            wake,
            events: Acknowledger::new(
                shape.events_to_application(),
                own.acknowledgements,
                &pages.events,
            ),
            marker: Marker::new(shape.events_to_server(), own.events, &pages.acknowledgements),
            sleeper: Sleeper::new(own.header),
            server_sleep_flag: PeerSleepFlag::new(flag),
            parked_flag: PeerSleepFlag::new(pages.header.part(PARKED_WORD, 1)),
            receive_free: FreeBuffers::new(0, shape.receive_pool.buffers()),
            unnotified: false,
            header: pages.header,
            counters: pages.counters,
        });
    }
    (lanes, queue_pairs, first)
}

/// Returns the lane of a packet of which these are the first bytes.
#[inline]
pub(crate) fn lane_of(packet: &[u8], lanes: usize) -> usize {
    let beginning = &packet[..packet.len().min(FLOW_BYTES)];
    ((u64::from(flow_hash(beginning)) * lanes as u64) >> 32) as usize
}

impl Lane {
    /// Returns the reason why the lane's engine closed the session, as the engine wrote it.
    pub(crate) fn closed(&self) -> u32 {
        self.header.observe(CLOSED_WORD) as u32
    }

    /// Returns `true` if the lane's engine closed the session. A server that is killed does not.
    pub(crate) fn is_closed(&self) -> bool {
        self.header.observe(CLOSED_WORD) != 0
    }

    /// Returns how many endpoints the lane's engine closed because the policy changed.
    pub(crate) fn revoked(&self) -> u64 {
        self.header.observe(REVOKED_WORD)
    }

    /// Returns `true` if the lane's engine closed this endpoint because the policy changed.
    pub(crate) fn has_revoked(&self, endpoint: u32) -> bool {
        let start = endpoint as usize * ENDPOINT_COUNTERS;
        start < self.counters.len() && self.counters.observe(start + ENDPOINT_REVOKED_WORD) == 1
    }

    /// Returns the lane's counters of an endpoint; all zero for a number that the session cannot
    /// have.
    pub(crate) fn counters(&self, endpoint: u32) -> Vec<(&'static str, u64)> {
        let start = endpoint as usize * ENDPOINT_COUNTERS;
        if start >= self.counters.len() {
            return no_counters();
        }
        counters::read(&self.counters, start, &counters::Endpoint::ALL)
    }
}

/// Returns an endpoint's counters, all zero.
pub(crate) fn no_counters() -> Vec<(&'static str, u64)> {
    counters::Endpoint::ALL.iter().map(|(_, name)| (*name, 0)).collect()
}
