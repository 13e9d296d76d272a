//! Out-of-band messages: the addresses of endpoints, the connections between them, and the delivery
//! of a message into the queue of an endpoint (Riddoch and Pope).
//!
//! A message is for the endpoint with an address: the local side of its flow rule. The engine
//! checks who may send to whom, puts the message into the queue, and completes it at once. Three
//! kinds of messages change connections: a request, an answer to it, and a close. What an endpoint
//! knows of its peer is a state word beside its queue, which no full queue can lose.
//!
//! **After a kill of the server.** A connection is a word of the ledger at both of its ends. Before
//! the engine publishes a message, it notes in the ledger which one, and where; afterwards, how far
//! it has come in the queue pair. So the next server knows whether the last message arrived, and
//! handles none twice.
//!
//! Messages use the first lane; other lanes have no queues.

pub mod connection;
mod ending;
mod parts;
pub mod queue;
mod restore;
mod table;

pub(crate) use parts::OobParts;
pub(crate) use table::{NotReady, OobTable, Sender};

#[cfg(test)]
pub(crate) mod tests;
