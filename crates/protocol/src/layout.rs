//! The layout of a session's memories.
//!
//! | memory | written by | holds, in this order |
//! |---|---|---|
//! | server pages | server | header line, line of accounts, events to the application, acknowledgements of the application's events, counters of each endpoint, queue pairs, queues of out-of-band messages, states of apertures, fired tripwires, requests of each endpoint |
//! | application pages | application | header line with its sleep flag, acknowledgements of the server's events, events to the server, queue pairs, queues of out-of-band messages |
//! | armed words | application | a word for each tripwire; the server gives them to importers of the application's memory, too |
//! | state page | server | epoch, an engine thread's sleep flag, heartbeat, counters of the device; for granted users, only the flag |
//! | ledger | server | buffers of the transmit pool, buffers of the receive pool, each queue pair's slots completed out of order, connections of out-of-band messages, progress of requests |
//!
//! Both sides compute the offsets from one [`SessionShape`], agreed once in the attach messages.
//!
//! A server has one lane or several: engine threads, each with queues of the device. Each memory
//! but the transmit pool then has as many parts of this layout, one behind the other: part i
//! belongs to lane i, so each word still has one writer, and each receive buffer, too. All lanes
//! send from one transmit pool, which they only read, and each has a ledger for it of its own.
//! Out-of-band messages, apertures and tripwires use the first lane; their words in the parts of
//! other lanes stay empty.

use std::ops::Range;

use towpath_queue::buffers::Ledger;
use towpath_queue::events::EventShape;
use towpath_queue::layout::{QueueShape, lines};
use towpath_queue::oob::OobShape;
use towpath_queue::tripwire::TripwireShape;
use towpath_queue::word::LINE_WORDS;
use towpath_queue::{OwnWords, PeerWords, PoolShape};

use crate::VERSION;
use crate::apertures::{MAX_APERTURES, MAX_TRIPWIRES};

/// The most lanes of a server.
pub const MAX_LANES: usize = 8;

/// Words of counters that each endpoint has.
pub const ENDPOINT_COUNTERS: usize = LINE_WORDS;
/// Words of counters that a device has in the state page.
pub const DEVICE_COUNTERS: usize = 4 * LINE_WORDS;

/// Word of the server pages' header with the reason why the session was closed; 0 while it lives.
pub const CLOSED_WORD: usize = 0;
/// Word of the server pages' header with the session's own sleep flag. While the flag says "asleep"
/// the session is parked: the engine does not poll it, and the application notifies the engine even
/// if the engine is awake.
pub const PARKED_WORD: usize = 1;
/// Word of the server pages' header that counts the endpoints that the server closed because the
/// policy changed.
pub const REVOKED_WORD: usize = 2;
/// Word of the accounts with the engine's time for the session, in nanoseconds: an estimate, of
/// which the engine measures some poll iterations.
pub const ENGINE_NS_WORD: usize = 0;
/// The version since which the server pages have a line of accounts.
const ACCOUNTS_SINCE: u16 = 9;
/// The version since which endpoints may have queues of out-of-band messages.
pub const OOB_SINCE: u16 = 10;
/// The version since which sessions may have apertures.
pub const APERTURES_SINCE: u16 = 11;
/// The version since which an application allocates its memory before it answers that the memory is
/// mapped. The server refuses a session with a page that is not allocated.
pub const ALLOCATES_SINCE: u16 = 11;
/// Words of the server pages for the requests of an endpoint: the number of the last one that is
/// complete; and the one that failed, with its [`crate::requests::RequestFault`] in the upper half.
pub const REQUEST_WORDS: usize = 2;
/// Words of the ledger for the out-of-band message that the engine is about to publish.
pub const OOB_INTENT_WORDS: usize = LINE_WORDS;
/// Word of an endpoint's counters that is 1 if the server closed the endpoint because the policy
/// changed.
pub const ENDPOINT_REVOKED_WORD: usize = ENDPOINT_COUNTERS - 1;
/// The reason in [`CLOSED_WORD`] for a session that the policy does not grant any more. Lower
/// numbers are violations.
pub const CLOSED_BY_POLICY: u32 = 256;
/// The reason in [`CLOSED_WORD`] for a session that shares an address which the host does not have
/// any more.
pub const CLOSED_ADDRESS_GONE: u32 = 257;
/// The reason in [`CLOSED_WORD`] for a session whose own hardware queue stalled, and worked no more
/// after a reset.
pub const CLOSED_QUEUE_BROKE: u32 = 258;
/// The reason in [`CLOSED_WORD`] for a session that two servers served when they crashed.
pub const CLOSED_AFTER_CRASHES: u32 = 259;
/// Word of the state page with the server's epoch.
pub const STATE_EPOCH_WORD: usize = 0;
/// Word of the state page that counts poll iterations: a tool sees whether the engine lives.
pub const STATE_HEARTBEAT_WORD: usize = 1;
/// The engine's sleep flag, alone on its line.
pub const STATE_SLEEP_WORD: usize = LINE_WORDS;
/// First word of the device's counters.
pub const STATE_COUNTERS_WORD: usize = 2 * LINE_WORDS;
/// Number of words of a lane's part of the state page.
pub const STATE_WORDS: usize = STATE_COUNTERS_WORD + DEVICE_COUNTERS;

/// The most queue pairs of a session; the policy may set a lower limit. With 10 000 of them, the
/// smallest queues take at most 64 MiB, and so do their buffers; a test asserts both.
pub const MAX_QUEUE_PAIRS: u32 = 16_384;
/// The most endpoints of a session; the policy may set a lower limit. As many as queue pairs, for
/// the same reason.
pub const MAX_ENDPOINTS: u32 = 16_384;
/// The most bytes of each of a session's memories, so that every offset fits 32 bits. The policy
/// sets a lower limit on all of them together (`session_bytes`, by default 256 MiB).
pub const MAX_MEMORY_BYTES: usize = 1 << 30;

/// The parts of a session: the application asks for them, and the server grants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionShape {
    /// Queue pairs, 1 to [`MAX_QUEUE_PAIRS`].
    pub queue_pairs: u32,
    /// Endpoints, 1 to [`MAX_ENDPOINTS`].
    pub endpoints: u32,
    /// Slots of each queue pair.
    pub queues: QueueShape,
    /// The transmit pool: as many buffers as all transmit queues of one lane have slots.
    pub transmit_pool: PoolShape,
    /// The receive pool: as many buffers as all receive queues of one lane have slots.
    pub receive_pool: PoolShape,
    /// The queue of out-of-band messages of each endpoint; `None` for none.
    oob: Option<OobShape>,
    /// Apertures, 0 to [`MAX_APERTURES`].
    apertures: u32,
    tripwires: TripwireShape,
    events: EventShape,
    server_events: EventShape,
    version: u16,
}

/// The reason why numbers form no shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Queue pairs out of range.
    #[error("{0} queue pairs; 1 to {MAX_QUEUE_PAIRS} are possible")]
    QueuePairs(u32),
    /// Endpoints out of range.
    #[error("{0} endpoints; 1 to {MAX_ENDPOINTS} are possible")]
    Endpoints(u32),
    /// Capacities that are no powers of two, or out of range.
    #[error("queues of {0} and {1} slots; powers of two from 8 to 1048576 are possible")]
    Queues(u32, u32),
    /// Pools of no or too many buffers, or of too small or too large ones.
    #[error(
        "buffers of {0} and {1} bytes; 64 to 261888 are possible, and 16777216 buffers per pool"
    )]
    Buffers(u32, u32),
    /// A queue of out-of-band messages out of range.
    #[error(
        "queues of {0} out-of-band messages; powers of two from 8 to 256 are possible, and 0 for none"
    )]
    Oob(u32),
    /// Apertures or tripwires out of range, or without connections.
    #[error(
        "{0} apertures and {1} tripwires; at most {MAX_APERTURES} and {MAX_TRIPWIRES} are possible, for \
         endpoints with out-of-band messages, and no tripwires without apertures"
    )]
    Apertures(u32, u32),
    /// More lanes than a server has.
    #[error("{0} lanes; 1 to {MAX_LANES} are possible")]
    Lanes(usize),
    /// Too much memory.
    #[error("{0} bytes in one memory of the session; at most {MAX_MEMORY_BYTES} are possible")]
    Memory(usize),
}

impl SessionShape {
    /// Creates a session's shape from its numbers, in the layout of [`VERSION`]; buffer sizes are
    /// data bytes.
    ///
    /// # Errors
    /// [`ShapeError`] names the number that is out of its range.
    pub fn new(
        queue_pairs: u32,
        endpoints: u32,
        transmit_slots: u32,
        receive_slots: u32,
        transmit_buffer_bytes: u32,
        receive_buffer_bytes: u32,
    ) -> Result<SessionShape, ShapeError> {
        if queue_pairs == 0 || queue_pairs > MAX_QUEUE_PAIRS {
            return Err(ShapeError::QueuePairs(queue_pairs));
        }
        if endpoints == 0 || endpoints > MAX_ENDPOINTS {
            return Err(ShapeError::Endpoints(endpoints));
        }
        let queues = QueueShape::new(transmit_slots, receive_slots)
            .ok_or(ShapeError::Queues(transmit_slots, receive_slots))?;
        let buffers_error = ShapeError::Buffers(transmit_buffer_bytes, receive_buffer_bytes);
        if transmit_buffer_bytes < 64 || receive_buffer_bytes < 64 {
            return Err(buffers_error);
        }
        let pool = |slots: u32, bytes: u32| {
            slots
                .checked_mul(queue_pairs)
                .and_then(|buffers| PoolShape::new(buffers, bytes))
                .ok_or(buffers_error)
        };
        let events = EventShape::new(queue_pairs).ok_or(ShapeError::QueuePairs(queue_pairs))?;
        let shape = SessionShape {
            queue_pairs,
            endpoints,
            queues,
            transmit_pool: pool(transmit_slots, transmit_buffer_bytes)?,
            receive_pool: pool(receive_slots, receive_buffer_bytes)?,
            oob: None,
            apertures: 0,
            tripwires: TripwireShape::new(0),
            events,
            server_events: events,
            version: VERSION,
        };
        shape.check_memory()
    }

    fn check_memory(self) -> Result<SessionShape, ShapeError> {
        for bytes in [
            self.transmit_pool.pool_bytes(),
            self.receive_pool.pool_bytes(),
            self.server_words() * 8,
            self.application_words() * 8,
        ] {
            if bytes > MAX_MEMORY_BYTES {
                return Err(ShapeError::Memory(bytes));
            }
        }
        Ok(self)
    }

    /// Returns the shape with a queue of `slots` out-of-band messages for each endpoint; 0 for
    /// none.
    ///
    /// # Errors
    /// [`ShapeError`] names the number that is out of its range.
    pub fn with_oob(self, slots: u32) -> Result<SessionShape, ShapeError> {
        if slots == 0 {
            return SessionShape { oob: None, ..self }.with_apertures(0, 0);
        }
        let oob = OobShape::new(slots).ok_or(ShapeError::Oob(slots))?;
        SessionShape { oob: Some(oob), ..self }.with_apertures(0, 0)
    }

    /// Returns the shape with so many apertures and tripwires. The caller calls this after
    /// [`SessionShape::with_oob`].
    ///
    /// # Errors
    /// [`ShapeError`] names the number that is out of its range.
    pub fn with_apertures(
        self,
        apertures: u32,
        tripwires: u32,
    ) -> Result<SessionShape, ShapeError> {
        let error = ShapeError::Apertures(apertures, tripwires);
        if apertures > MAX_APERTURES
            || tripwires > MAX_TRIPWIRES
            || apertures > 0 && self.oob.is_none()
            || tripwires > 0 && apertures == 0
        {
            return Err(error);
        }
        let queue_pairs = self.queue_pairs;
        let endpoints = if self.oob.is_some() { self.endpoints } else { 0 };
        let events = EventShape::new(queue_pairs + tripwires).ok_or(error)?;
        let server_events = EventShape::new(queue_pairs + endpoints + tripwires).ok_or(error)?;
        let tripwires = TripwireShape::new(tripwires);
        SessionShape { apertures, tripwires, events, server_events, ..self }.check_memory()
    }

    /// Returns the shape in the layout of a version that a server speaks. Versions without queues
    /// of out-of-band messages, or without apertures, have a shape without them.
    #[must_use]
    pub fn of_version(self, version: u16) -> SessionShape {
        let oob = self.oob.filter(|_| version >= OOB_SINCE).map_or(0, OobShape::slots);
        let numbers = (self.apertures, self.tripwires.tripwires());
        let (apertures, tripwires) = if version >= APERTURES_SINCE { numbers } else { (0, 0) };
        let shape = SessionShape { oob: None, apertures: 0, version, ..self };
        let smaller = shape.with_oob(oob).and_then(|one| one.with_apertures(apertures, tripwires));
        // The numbers were in their ranges before, and what is left takes no more memory.
        smaller.unwrap_or(shape)
    }

    /// Returns the version of the layout.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Returns the words of the accounts.
    fn account_words(&self) -> usize {
        if self.version >= ACCOUNTS_SINCE { LINE_WORDS } else { 0 }
    }

    /// Checks that as many lanes can have a session of this shape.
    ///
    /// # Errors
    /// [`ShapeError`] names the number that is out of its range.
    pub fn check_lanes(&self, lanes: usize) -> Result<(), ShapeError> {
        if lanes == 0 || lanes > MAX_LANES {
            return Err(ShapeError::Lanes(lanes));
        }
        let parts = [
            self.receive_pool.pool_bytes(),
            self.server_words() * 8,
            self.application_words() * 8,
            self.ledger_words() * 8,
        ];
        let largest = parts.into_iter().max().unwrap_or(0) * lanes;
        let (buffers, bytes) = (self.receive_pool.buffers(), self.receive_pool.data_bytes());
        if largest > MAX_MEMORY_BYTES {
            return Err(ShapeError::Memory(largest));
        }
        let all = buffers.checked_mul(lanes as u32);
        all.and_then(|all| PoolShape::new(all, bytes))
            .map(|_| ())
            .ok_or(ShapeError::Buffers(self.transmit_pool.data_bytes(), bytes))
    }

    /// Returns the shape of the event queue to the server. Its sources are the queue pairs, and
    /// then the tripwires that the session imported, by their numbers among all of the session's.
    #[must_use]
    pub fn events_to_server(&self) -> EventShape {
        self.events
    }

    /// Returns the shape of the event queue to the application. Its sources are the queue pairs,
    /// then each endpoint's queue of out-of-band messages, and then the tripwires.
    #[must_use]
    pub fn events_to_application(&self) -> EventShape {
        self.server_events
    }

    /// Returns the shape of each endpoint's queue of out-of-band messages; `None` if there are
    /// none.
    #[must_use]
    pub fn oob(&self) -> Option<OobShape> {
        self.oob
    }

    /// Returns the most apertures of the session.
    #[must_use]
    pub fn apertures(&self) -> u32 {
        self.apertures
    }

    /// Returns the shape of the session's tripwires.
    #[must_use]
    pub fn tripwires(&self) -> TripwireShape {
        self.tripwires
    }

    /// Returns the number of the first tripwire among the sources of events to the application.
    #[must_use]
    pub fn first_tripwire_event(&self) -> u32 {
        self.queue_pairs + self.oob_queues() as u32
    }

    /// Returns the number of queues of out-of-band messages.
    fn oob_queues(&self) -> usize {
        if self.oob.is_some() { self.endpoints as usize } else { 0 }
    }

    /// Returns the words for the requests of all endpoints.
    fn request_words(&self) -> usize {
        if self.apertures > 0 { lines(self.endpoints as usize * REQUEST_WORDS) } else { 0 }
    }

    /// Returns the words of the ledger for the progress of requests, one for each queue pair.
    fn progress_words(&self) -> usize {
        if self.apertures > 0 { lines(self.queue_pairs as usize) } else { 0 }
    }

    fn oob_server_words(&self) -> usize {
        self.oob.map_or(0, OobShape::server_words)
    }

    fn oob_application_words(&self) -> usize {
        self.oob.map_or(0, OobShape::application_words)
    }

    fn oob_ledger_words(&self) -> usize {
        let words = self.queue_pairs as usize + self.endpoints as usize;
        if self.oob.is_some() { lines(OOB_INTENT_WORDS + words) } else { 0 }
    }

    /// Returns the number of words of the server pages.
    #[must_use]
    pub fn server_words(&self) -> usize {
        self.server_queues_start()
            + self.queue_pairs as usize * self.queues.server_words()
            + self.oob_queues() * self.oob_server_words()
            + lines(self.apertures as usize)
            + self.tripwires.server_words()
            + self.request_words()
    }

    /// Returns the number of words of the application pages.
    #[must_use]
    pub fn application_words(&self) -> usize {
        LINE_WORDS
            + self.server_events.acknowledger_words()
            + self.events.marker_words()
            + self.queue_pairs as usize * self.queues.application_words()
            + self.oob_queues() * self.oob_application_words()
    }

    /// Returns the number of words of the ledger.
    #[must_use]
    pub fn ledger_words(&self) -> usize {
        self.oob_ledger_start() + self.oob_ledger_words() + self.progress_words()
    }

    fn oob_ledger_start(&self) -> usize {
        lines(Ledger::words_for(self.transmit_pool.buffers()))
            + lines(Ledger::words_for(self.receive_pool.buffers()))
            + lines(self.queue_pairs as usize * self.queues.ledger_words())
    }

    fn server_queues_start(&self) -> usize {
        LINE_WORDS
            + self.account_words()
            + self.server_events.marker_words()
            + self.events.acknowledger_words()
            + self.endpoints as usize * ENDPOINT_COUNTERS
    }

    /// Splits the server pages into their parts, for their writer.
    #[must_use]
    pub fn server_own(&self, mut words: OwnWords) -> ServerPages<OwnWords> {
        ServerPages {
            header: words.split_off_front(LINE_WORDS),
            accounts: words.split_off_front(self.account_words()),
            events: words.split_off_front(self.server_events.marker_words()),
            acknowledgements: words.split_off_front(self.events.acknowledger_words()),
            counters: words.split_off_front(self.endpoints as usize * ENDPOINT_COUNTERS),
            queue_pairs: (0..self.queue_pairs)
                .map(|_| words.split_off_front(self.queues.server_words()))
                .collect(),
            oob: (0..self.oob_queues())
                .map(|_| words.split_off_front(self.oob_server_words()))
                .collect(),
            apertures: words.split_off_front(lines(self.apertures as usize)),
            fired: words.split_off_front(self.tripwires.server_words()),
            requests: words.split_off_front(self.request_words()),
        }
    }

    /// Splits the server pages into their parts, for the application.
    #[must_use]
    pub fn server_peer(&self, words: &PeerWords) -> ServerPages<PeerWords> {
        let mut cut = Cut { words, at: 0 };
        ServerPages {
            header: cut.next(LINE_WORDS),
            accounts: cut.next(self.account_words()),
            events: cut.next(self.server_events.marker_words()),
            acknowledgements: cut.next(self.events.acknowledger_words()),
            counters: cut.next(self.endpoints as usize * ENDPOINT_COUNTERS),
            queue_pairs: (0..self.queue_pairs)
                .map(|_| cut.next(self.queues.server_words()))
                .collect(),
            oob: (0..self.oob_queues()).map(|_| cut.next(self.oob_server_words())).collect(),
            apertures: cut.next(lines(self.apertures as usize)),
            fired: cut.next(self.tripwires.server_words()),
            requests: cut.next(self.request_words()),
        }
    }

    /// Splits the application pages into their parts, for their writer.
    #[must_use]
    pub fn application_own(&self, mut words: OwnWords) -> ApplicationPages<OwnWords> {
        ApplicationPages {
            header: words.split_off_front(LINE_WORDS),
            acknowledgements: words.split_off_front(self.server_events.acknowledger_words()),
            events: words.split_off_front(self.events.marker_words()),
            queue_pairs: (0..self.queue_pairs)
                .map(|_| words.split_off_front(self.queues.application_words()))
                .collect(),
            oob: (0..self.oob_queues())
                .map(|_| words.split_off_front(self.oob_application_words()))
                .collect(),
        }
    }

    /// Splits the application pages into their parts, for the server.
    #[must_use]
    pub fn application_peer(&self, words: &PeerWords) -> ApplicationPages<PeerWords> {
        let mut cut = Cut { words, at: 0 };
        ApplicationPages {
            header: cut.next(LINE_WORDS),
            acknowledgements: cut.next(self.server_events.acknowledger_words()),
            events: cut.next(self.events.marker_words()),
            queue_pairs: (0..self.queue_pairs)
                .map(|_| cut.next(self.queues.application_words()))
                .collect(),
            oob: (0..self.oob_queues()).map(|_| cut.next(self.oob_application_words())).collect(),
        }
    }

    /// Returns the words of the ledger with the connections of out-of-band messages, one for each
    /// endpoint; `None` if there are none.
    #[must_use]
    pub fn connection_words(&self) -> Option<Range<usize>> {
        self.oob?;
        let start = self.oob_ledger_start() + OOB_INTENT_WORDS + self.queue_pairs as usize;
        Some(start..start + self.endpoints as usize)
    }

    /// Splits the ledger into its parts.
    #[must_use]
    pub fn ledger(&self, mut words: OwnWords) -> LedgerPages {
        let queue_pair = self.queues.ledger_words();
        let all = self.queue_pairs as usize * queue_pair;
        let (transmit, receive) = (&self.transmit_pool, &self.receive_pool);
        let [transmit, receive, mut done] = [
            lines(Ledger::words_for(transmit.buffers())),
            lines(Ledger::words_for(receive.buffers())),
            lines(all),
        ]
        .map(|len| words.split_off_front(len));
        let queue_pairs = (0..self.queue_pairs).map(|_| done.split_off_front(queue_pair)).collect();
        let oob = words.split_off_front(self.oob_ledger_words());
        let progress = words.split_off_front(self.progress_words());
        LedgerPages { transmit, receive, queue_pairs, oob, progress }
    }
}

struct Cut<'a> {
    words: &'a PeerWords,
    at: usize,
}

impl Cut<'_> {
    fn next(&mut self, len: usize) -> PeerWords {
        let part = self.words.part(self.at, len);
        self.at += len;
        part
    }
}

/// The server pages' parts; the header's words are [`CLOSED_WORD`] and [`PARKED_WORD`].
#[derive(Debug)]
pub struct ServerPages<W> {
    /// One line.
    pub header: W,
    /// One line, from [`ENGINE_NS_WORD`] on; none in the layout of version 8.
    pub accounts: W,
    /// Events to the application.
    pub events: W,
    /// Acknowledgements of the application's events.
    pub acknowledgements: W,
    /// [`ENDPOINT_COUNTERS`] words for each endpoint.
    pub counters: W,
    /// The words of each queue pair.
    pub queue_pairs: Vec<W>,
    /// The words of each endpoint's queue of out-of-band messages; empty if there are none.
    pub oob: Vec<W>,
    /// A word for each aperture: its state ([`crate::apertures::ApertureState`]).
    pub apertures: W,
    /// A bit for each tripwire ([`towpath_queue::tripwire`]).
    pub fired: W,
    /// [`REQUEST_WORDS`] words for each endpoint.
    pub requests: W,
}

/// The application pages' parts; the header's first word is the sleep flag.
#[derive(Debug)]
pub struct ApplicationPages<W> {
    /// One line.
    pub header: W,
    /// Acknowledgements of the server's events.
    pub acknowledgements: W,
    /// Events to the server.
    pub events: W,
    /// The words of each queue pair.
    pub queue_pairs: Vec<W>,
    /// The words of each endpoint's queue of out-of-band messages; empty if there are none.
    pub oob: Vec<W>,
}

/// The ledger's parts.
#[derive(Debug)]
pub struct LedgerPages {
    /// A bit for each buffer of the transmit pool.
    pub transmit: OwnWords,
    /// A bit for each buffer of the receive pool.
    pub receive: OwnWords,
    /// The words of each queue pair.
    pub queue_pairs: Vec<OwnWords>,
    /// [`OOB_INTENT_WORDS`], then a word for each queue pair: how far its messages are handled, and
    /// a word for each endpoint: its connection. None if there are no out-of-band messages.
    pub oob: OwnWords,
    /// A word for each queue pair: the request that is under way, and how far it is. None if there
    /// are no apertures.
    pub progress: OwnWords,
}

#[cfg(test)]
mod tests {
    use towpath_memory::{Region, own_words, peer_words};

    use super::*;

    #[test]
    fn both_sides_find_the_same_words() {
        let newest = SessionShape::new(3, 5, 16, 32, 2048, 2048).unwrap();
        let older = newest.of_version(8);
        assert_eq!(newest.server_words() - older.server_words(), LINE_WORDS);
        let whole = newest.with_oob(8).unwrap().with_apertures(9, 65).unwrap();
        assert_eq!(whole.of_version(VERSION), whole);
        assert_eq!(whole.of_version(9), newest.of_version(9));
        assert_eq!(whole.of_version(10), newest.with_oob(8).unwrap().of_version(10));
        for shape in [newest, older, whole] {
            check_both_sides(&shape);
        }
    }

    fn check_both_sides(shape: &SessionShape) {
        let server = Region::private(shape.server_words() * 8).unwrap();
        let peer = peer_words(server.mapping());
        let own = own_words(server);
        let mut own = shape.server_own(own);
        let peer = shape.server_peer(&peer);
        own.header.store(CLOSED_WORD, 1);
        if shape.version() >= ACCOUNTS_SINCE {
            own.accounts.store(ENGINE_NS_WORD, 10);
            assert_eq!(peer.accounts.fetch(ENGINE_NS_WORD), 10);
        }
        own.events.store(0, 2);
        own.acknowledgements.store(0, 3);
        own.counters.store(4 * ENDPOINT_COUNTERS, 4);
        own.queue_pairs[2].store(shape.queues.server_words() - 1, 5);
        if shape.apertures() > 0 {
            own.apertures.store(shape.apertures() as usize - 1, 11);
            own.fired.store(1, 12);
            assert_eq!(peer.apertures.fetch(shape.apertures() as usize - 1), 11);
            assert_eq!(peer.fired.fetch(1), 12);
            own.requests.store(5 * REQUEST_WORDS - 1, 13);
            assert_eq!(peer.requests.fetch(5 * REQUEST_WORDS - 1), 13);
        }
        assert_eq!(peer.header.fetch(CLOSED_WORD), 1);
        assert_eq!(peer.events.fetch(0), 2);
        assert_eq!(peer.acknowledgements.fetch(0), 3);
        assert_eq!(peer.counters.fetch(4 * ENDPOINT_COUNTERS), 4);
        assert_eq!(peer.queue_pairs[2].fetch(shape.queues.server_words() - 1), 5);
        let application = Region::private(shape.application_words() * 8).unwrap();
        let peer = peer_words(application.mapping());
        let own = own_words(application);
        let mut own = shape.application_own(own);
        let peer = shape.application_peer(&peer);
        own.header.store(0, 6);
        own.events.store(0, 7);
        own.acknowledgements.store(0, 8);
        own.queue_pairs[1].store(0, 9);
        assert_eq!(peer.header.fetch(0), 6);
        assert_eq!(peer.events.fetch(0), 7);
        assert_eq!(peer.acknowledgements.fetch(0), 8);
        assert_eq!(peer.queue_pairs[1].fetch(0), 9);
        let ledger = Region::private(shape.ledger_words() * 8).unwrap();
        let view = peer_words(ledger.mapping());
        let mut parts = shape.ledger(own_words(ledger));
        assert_eq!(parts.queue_pairs.len(), 3);
        assert_eq!(shape.connection_words().is_some(), shape.oob().is_some());
        if let Some(words) = shape.connection_words() {
            assert_eq!(words.len(), 5);
            parts.oob.store(OOB_INTENT_WORDS + 3 + 4, 14);
            assert_eq!(view.fetch(words.end - 1), 14);
        }
    }

    #[test]
    fn ten_thousand_queue_pairs_fit_into_64_mib() {
        let shape = SessionShape::new(10_000, 10_000, 8, 8, 64, 64).unwrap();
        let words = shape.server_words() + shape.application_words() + shape.ledger_words();
        assert!(words * 8 <= 64 << 20, "{} bytes", words * 8);
        let buffers = shape.receive_pool.pool_bytes() + shape.transmit_pool.pool_bytes();
        assert!(buffers <= 64 << 20, "{buffers} bytes");
    }

    #[test]
    fn apertures_need_connections() {
        let shape = SessionShape::new(1, 1, 8, 8, 64, 64).unwrap();
        let with_oob = shape.with_oob(8).unwrap();
        let refused = |shape: SessionShape, apertures, tripwires| {
            let outcome = shape.with_apertures(apertures, tripwires);
            assert_eq!(outcome, Err(ShapeError::Apertures(apertures, tripwires)));
        };
        refused(shape, 1, 0);
        refused(with_oob, 0, 1);
        refused(with_oob, MAX_APERTURES + 1, 0);
        refused(with_oob, 1, MAX_TRIPWIRES + 1);
        let most = with_oob.with_apertures(MAX_APERTURES, MAX_TRIPWIRES).unwrap();
        assert_eq!(most.first_tripwire_event(), 2);
        assert!((most.server_words() - with_oob.server_words()) * 8 < 1 << 20);
    }

    #[test]
    fn shapes_out_of_range_are_named() {
        assert!(matches!(SessionShape::new(0, 1, 8, 8, 64, 64), Err(ShapeError::QueuePairs(0))));
        assert!(matches!(SessionShape::new(1, 0, 8, 8, 64, 64), Err(ShapeError::Endpoints(0))));
        assert!(matches!(SessionShape::new(1, 1, 9, 8, 64, 64), Err(ShapeError::Queues(9, 8))));
        assert!(matches!(SessionShape::new(1, 1, 8, 8, 64, 1), Err(ShapeError::Buffers(64, 1))));
        assert!(matches!(
            SessionShape::new(1, 1, 1 << 20, 8, 65536, 64),
            Err(ShapeError::Memory(_))
        ));
        assert!(matches!(
            SessionShape::new(16384, 1, 1 << 20, 8, 64, 64),
            Err(ShapeError::Buffers(..))
        ));
    }
}
