//! The parts of a session's memories, by its shape.

use std::ops::Range;

use towpath_queue::buffers::BufferLedger;
use towpath_queue::layout::lines;
use towpath_queue::word::LINE_WORDS;
use towpath_queue::{OwnWords, PeerWords};

use super::shape::SessionShape;
use super::words::{ENDPOINT_COUNTERS, OOB_INTENT_WORDS};

impl SessionShape {
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
            lines(BufferLedger::words_for(transmit.buffers())),
            lines(BufferLedger::words_for(receive.buffers())),
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

/// The server pages' parts; the header's words are [`CLOSED_WORD`](super::CLOSED_WORD) and
/// [`PARKED_WORD`](super::PARKED_WORD).
#[derive(Debug)]
pub struct ServerPages<W> {
    /// One line.
    pub header: W,
    /// One line, from [`ENGINE_NS_WORD`](super::ENGINE_NS_WORD) on; none in the layout of version 8.
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
    /// [`REQUEST_WORDS`](super::REQUEST_WORDS) words for each endpoint.
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
