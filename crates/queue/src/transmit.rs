//! The transmit queue: from the application to the server.
//!
//! The application writes descriptors and advances its head. The server advances the commit index
//! only when it completes a packet, sent or copied. Every slot between commit and head is intact
//! after a crash, and the successor starts there. The server notes out-of-order completions in the
//! ledger, so that a successor does not send those packets again.

mod consumer;
mod producer;

pub use consumer::TransmitConsumer;
pub use producer::{FreeSlot, TransmitProducer};
