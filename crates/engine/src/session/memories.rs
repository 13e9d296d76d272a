//! The mapped memories of a session.

use std::sync::Arc;

use towpath_memory::{Mapping, Region, peer_words};
use towpath_protocol::layout::SessionShape;
use towpath_queue::PeerWords;

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
    pub ledger: Arc<Mapping>,
    /// All mappings; those that the server writes come first.
    pub all: [Arc<Mapping>; 5],
    /// The application's armed words.
    pub armed: Option<Arc<Mapping>>,
}

/// A lane's part of a session's memories.
#[derive(Debug)]
pub struct LaneMemories {
    /// `true` for the first lane.
    pub(super) is_first: bool,
    pub(super) server: Region,
    pub(super) application: PeerWords,
    pub(super) ledger: Region,
    pub(super) receive_pool: Region,
    pub(super) transmit_pool: Arc<Mapping>,
    pub(super) armed: Option<PeerWords>,
}

impl Memories {
    /// Takes the next lane's part off the front of these memories, which hold as many as there are
    /// lanes. `lane`: its number.
    pub fn split_off_lane(&mut self, shape: &SessionShape, lane: usize) -> LaneMemories {
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
