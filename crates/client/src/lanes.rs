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

use crate::oob_queues::OobQueues;

/// The parts that only the first lane has.
pub(crate) struct FirstLaneParts {
    /// The queues of out-of-band messages.
    pub(crate) oob: Option<Box<OobQueues>>,
    /// The states of apertures.
    pub(crate) apertures: PeerWords,
    /// Which tripwires fired.
    pub(crate) fired: PeerWords,
    /// What became of requests.
    pub(crate) requests: PeerWords,
}

/// The transmit queue of a queue pair.
pub(crate) struct TransmitPair {
    pub(crate) queue: TransmitProducer,
    /// The queue pair's lane.
    pub(crate) lane: usize,
    /// The queue pair's number in its lane, by which the application knows it.
    pub(crate) number: u32,
    /// `true` if the queue has packets that are not published.
    pub(crate) dirty: bool,
    /// `true` if the queue has the room that the application requested: news even when no packet
    /// waits.
    pub(crate) room: bool,
    /// `true` if a wait has ended because of `room`.
    pub(crate) room_told: bool,
    /// `true` if the application waits for room: the client checks for it at the next event.
    pub(crate) wants: bool,
}

/// The receive queue of a queue pair.
pub(crate) struct ReceivePair {
    pub(crate) queue: ReceiveConsumer,
    /// The queue pair's lane.
    pub(crate) lane: usize,
    /// The first of the lane's receive buffers in the pool. Descriptors count from it.
    pub(crate) first_buffer: u32,
}

/// What sending needs of a lane.
pub(crate) struct TransmitLane {
    pub(crate) wake: OwnedFd,
    pub(crate) marker: Marker,
    /// Reads whether the engine sleeps.
    pub(crate) server_sleep_flag: PeerSleepFlag,
    /// Reads whether the engine has parked this session: awake or not, the engine polls the session
    /// only after a notification.
    pub(crate) parked_flag: PeerSleepFlag,
    /// `true` if the client has published packets since it last notified the engine.
    pub(crate) unnotified: bool,
}

/// What waiting needs of a lane.
pub(crate) struct EventLane {
    pub(crate) events: Acknowledger,
    pub(crate) sleeper: Sleeper,
}

/// The words that a lane's engine writes about the session and its endpoints.
pub(crate) struct LaneWords {
    header: PeerWords,
    counters: PeerWords,
}

/// The lanes of a session, by the parts of the session that use them. The queue pairs are in the
/// same order everywhere: first all of the first lane, and so on.
#[derive(Default)]
pub(crate) struct Lanes {
    pub(crate) transmit: Vec<TransmitLane>,
    pub(crate) transmit_pairs: Vec<TransmitPair>,
    /// The free receive buffers of each lane, numbered from the lane's first one.
    pub(crate) receive_free: Vec<FreeBuffers>,
    pub(crate) receive_pairs: Vec<ReceivePair>,
    pub(crate) events: Vec<EventLane>,
    pub(crate) words: Vec<LaneWords>,
    /// What only the first lane has.
    pub(crate) first: Option<FirstLaneParts>,
}

/// Makes the lanes of a session.
pub(crate) fn lanes(
    shape: &SessionShape,
    wakes: Vec<OwnedFd>,
    mut own: OwnWords,
    server: &PeerWords,
    state: &PeerWords,
) -> Lanes {
    let mut lanes = Lanes::default();
    let words = shape.server_words();
    for (lane, wake) in wakes.into_iter().enumerate() {
        let pages: ServerPages<PeerWords> = shape.server_peer(&server.part(lane * words, words));
        let own = shape.application_own(own.split_off_front(shape.application_words()));
        for (number, (own, peer)) in (0..).zip(own.queue_pairs.into_iter().zip(&pages.queue_pairs))
        {
            let (transmit, receive) =
                application_side(&shape.queues, shape.receive_pool, own, peer);
            lanes.transmit_pairs.push(TransmitPair::new(transmit, lane, number));
            let first_buffer = lane as u32 * shape.receive_pool.buffers();
            lanes.receive_pairs.push(ReceivePair { queue: receive, lane, first_buffer });
        }
        if lane == 0 {
            let oob = OobQueues::new(shape, own.oob, &pages.oob, &pages.requests);
            let (apertures, fired, requests) = (pages.apertures, pages.fired, pages.requests);
            lanes.first = Some(FirstLaneParts { oob, apertures, fired, requests });
        }
        let flag = state.part(lane * STATE_WORDS + STATE_SLEEP_WORD, 1);
        lanes.transmit.push(TransmitLane {
            wake,
            marker: Marker::new(shape.events_to_server(), own.events, &pages.acknowledgements),
            server_sleep_flag: PeerSleepFlag::new(flag),
            parked_flag: PeerSleepFlag::new(pages.header.part(PARKED_WORD, 1)),
            unnotified: false,
        });
        lanes.events.push(EventLane {
            events: Acknowledger::new(
                shape.events_to_application(),
                own.acknowledgements,
                &pages.events,
            ),
            sleeper: Sleeper::new(own.header),
        });
        lanes.receive_free.push(FreeBuffers::new(0, shape.receive_pool.buffers()));
        lanes.words.push(LaneWords { header: pages.header, counters: pages.counters });
    }
    lanes
}

impl TransmitPair {
    fn new(queue: TransmitProducer, lane: usize, number: u32) -> TransmitPair {
        let (dirty, room, room_told, wants) = (false, false, false, false);
        TransmitPair { queue, lane, number, dirty, room, room_told, wants }
    }
}

/// Returns the lane of a packet of which these are the first bytes.
#[inline]
pub(crate) fn lane_of(packet: &[u8], lanes: usize) -> usize {
    let beginning = &packet[..packet.len().min(FLOW_BYTES)];
    ((u64::from(flow_hash(beginning)) * lanes as u64) >> 32) as usize
}

impl LaneWords {
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
