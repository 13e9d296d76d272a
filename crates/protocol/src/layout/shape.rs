//! The shape of a session: the numbers that decide its layout.

use towpath_queue::PoolShape;
use towpath_queue::buffers::BufferLedger;
use towpath_queue::events::EventShape;
use towpath_queue::layout::{QueueShape, lines};
use towpath_queue::oob::OobShape;
use towpath_queue::tripwire::TripwireShape;
use towpath_queue::word::LINE_WORDS;

use super::words::{
    ACCOUNTS_SINCE, APERTURES_SINCE, ENDPOINT_COUNTERS, MAX_ENDPOINTS, MAX_LANES, MAX_MEMORY_BYTES,
    MAX_QUEUE_PAIRS, OOB_INTENT_WORDS, OOB_SINCE, REQUEST_WORDS,
};
use crate::VERSION;
use crate::apertures::{MAX_APERTURES, MAX_TRIPWIRES};

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
    pub(super) oob: Option<OobShape>,
    /// Apertures, 0 to [`MAX_APERTURES`].
    pub(super) apertures: u32,
    pub(super) tripwires: TripwireShape,
    pub(super) events: EventShape,
    pub(super) server_events: EventShape,
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
    pub(super) fn account_words(&self) -> usize {
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

    pub(super) fn oob_ledger_start(&self) -> usize {
        lines(BufferLedger::words_for(self.transmit_pool.buffers()))
            + lines(BufferLedger::words_for(self.receive_pool.buffers()))
            + lines(self.queue_pairs as usize * self.queues.ledger_words())
    }

    fn server_queues_start(&self) -> usize {
        LINE_WORDS
            + self.account_words()
            + self.server_events.marker_words()
            + self.events.acknowledger_words()
            + self.endpoints as usize * ENDPOINT_COUNTERS
    }

    /// Returns the number of queues of out-of-band messages.
    pub(super) fn oob_queues(&self) -> usize {
        if self.oob.is_some() { self.endpoints as usize } else { 0 }
    }

    /// Returns the words for the requests of all endpoints.
    pub(super) fn request_words(&self) -> usize {
        if self.apertures > 0 { lines(self.endpoints as usize * REQUEST_WORDS) } else { 0 }
    }

    /// Returns the words of the ledger for the progress of requests, one for each queue pair.
    pub(super) fn progress_words(&self) -> usize {
        if self.apertures > 0 { lines(self.queue_pairs as usize) } else { 0 }
    }

    pub(super) fn oob_server_words(&self) -> usize {
        self.oob.map_or(0, OobShape::server_words)
    }

    pub(super) fn oob_application_words(&self) -> usize {
        self.oob.map_or(0, OobShape::application_words)
    }

    pub(super) fn oob_ledger_words(&self) -> usize {
        let words = self.queue_pairs as usize + self.endpoints as usize;
        if self.oob.is_some() { lines(OOB_INTENT_WORDS + words) } else { 0 }
    }
}
