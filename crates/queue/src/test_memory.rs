//! Shared memory for tests: allocated words, which two sides view.

use std::sync::Arc;

use crate::buffers::BufferLedger;
use crate::descriptor::PoolShape;
use crate::layout::QueueShape;
use crate::receive::{ReceiveConsumer, ReceiveProducer, application_side, server_side};
use crate::transmit::{TransmitConsumer, TransmitProducer};
use crate::word::{AtomicU64, OwnWords, PeerWords};

/// Zeroed words, leaked: a model that ends in a deadlock must not run destructors.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    words: &'static [AtomicU64],
}

impl Memory {
    pub(crate) fn new(len: usize) -> Memory {
        let words: Vec<AtomicU64> = (0..len).map(|_| AtomicU64::new(0)).collect();
        Memory { words: words.leak() }
    }

    pub(crate) fn own(&self) -> OwnWords {
        let first = std::ptr::NonNull::from(&self.words[0]);
        // SAFETY: the words are never freed, and the test makes one writer of them.
        unsafe { OwnWords::new(first, self.words.len(), Arc::new(())) }
    }

    pub(crate) fn peer(&self) -> PeerWords {
        let first = std::ptr::NonNull::from(&self.words[0]);
        // SAFETY: the words are never freed.
        unsafe { PeerWords::new(first, self.words.len(), Arc::new(())) }
    }

    #[cfg(not(loom))]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }

    #[cfg(not(loom))]
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }
}

/// The memories of a session with one queue pair, over which the tests make both sides.
pub(crate) struct Pair {
    pub(crate) shape: QueueShape,
    pub(crate) pool: PoolShape,
    pub(crate) application: Memory,
    pub(crate) server: Memory,
    pub(crate) done: Memory,
    pub(crate) ledgers: [Memory; 2],
}

pub(crate) struct ServerSide {
    pub(crate) transmit: TransmitConsumer,
    pub(crate) receive: ReceiveProducer,
    pub(crate) transmit_ledger: BufferLedger,
    pub(crate) receive_ledger: BufferLedger,
}

impl Pair {
    pub(crate) fn new(capacity: u32, buffers: u32) -> Pair {
        let shape = QueueShape::new(capacity, capacity).unwrap();
        let words = BufferLedger::words_for(buffers);
        Pair {
            shape,
            pool: PoolShape::new(buffers, 1920).unwrap(),
            application: Memory::new(shape.application_words()),
            server: Memory::new(shape.server_words()),
            done: Memory::new(shape.ledger_words()),
            ledgers: [Memory::new(words), Memory::new(words)],
        }
    }

    pub(crate) fn application(&self) -> (TransmitProducer, ReceiveConsumer) {
        application_side(&self.shape, self.pool, self.application.own(), &self.server.peer())
    }

    pub(crate) fn server(&self) -> ServerSide {
        let (transmit, receive) = server_side(
            &self.shape,
            self.pool,
            self.server.own(),
            &self.application.peer(),
            self.done.own(),
        );
        let ledger = |memory: &Memory| {
            let mut ledger = BufferLedger::new(memory.own(), self.pool.buffers());
            ledger.clear();
            ledger
        };
        ServerSide {
            transmit,
            receive,
            transmit_ledger: ledger(&self.ledgers[0]),
            receive_ledger: ledger(&self.ledgers[1]),
        }
    }
}
