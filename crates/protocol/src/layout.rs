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

mod pages;
mod shape;
mod words;

pub use pages::{ApplicationPages, LedgerPages, ServerPages};
pub use shape::{SessionShape, ShapeError};
pub use words::{
    ALLOCATES_SINCE, CLOSED_ADDRESS_GONE, CLOSED_AFTER_CRASHES, CLOSED_BY_POLICY,
    CLOSED_QUEUE_BROKE, CLOSED_WORD, DEVICE_COUNTERS, ENDPOINT_COUNTERS, ENDPOINT_REVOKED_WORD,
    ENGINE_NS_WORD, MAX_ENDPOINTS, MAX_LANES, MAX_MEMORY_BYTES, MAX_QUEUE_PAIRS, OOB_INTENT_WORDS,
    OOB_SINCE, PARKED_WORD, REQUEST_WORDS, REVOKED_WORD, STATE_COUNTERS_WORD, STATE_EPOCH_WORD,
    STATE_HEARTBEAT_WORD, STATE_SLEEP_WORD, STATE_WORDS,
};

#[cfg(test)]
mod tests {
    use towpath_memory::{Region, own_words, peer_words};
    use towpath_queue::word::LINE_WORDS;

    use super::words::ACCOUNTS_SINCE;
    use super::*;
    use crate::VERSION;
    use crate::apertures::{MAX_APERTURES, MAX_TRIPWIRES};

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
