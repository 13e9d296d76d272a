//! The receive queue: from the server to the application.
//!
//! The application provides empty buffers. The server fills them in order, and writes a descriptor
//! for each into the slot of the same number. One index says both "received up to here" and
//! "provided buffers used up to here". With two indices, a server that dies between the two stores
//! would lose or duplicate a buffer.
//!
//! An application with a hardware queue of its own lets the server fill provided buffers in any
//! order. The server lends most of them to the device, which writes packets into them; other
//! packets for the same queue are copied into the rest meanwhile.

mod consumer;
mod producer;

use crate::descriptor::PoolShape;
use crate::layout::QueueShape;
use crate::transmit::{TransmitConsumer, TransmitProducer};
use crate::word::{OwnWords, PeerWords};

pub use consumer::ReceiveConsumer;
pub use producer::{Filling, ReceiveProducer};

/// Returns the application's side of a queue pair. `own` are its words in the application pages,
/// new and zero; `peer` those in the server pages.
#[must_use]
pub fn application_side(
    shape: &QueueShape,
    receive_pool: PoolShape,
    own: OwnWords,
    peer: &PeerWords,
) -> (TransmitProducer, ReceiveConsumer) {
    let own = shape.application_own(own);
    let peer = shape.server_peer(peer);
    let receive = ReceiveConsumer::new(
        shape,
        receive_pool,
        own.receive_line,
        own.provided,
        peer.receive_line,
        peer.descriptors,
    );
    let transmit =
        TransmitProducer::new(shape, own.transmit_line, own.descriptors, peer.transmit_line);
    (transmit, receive)
}

/// Returns the server's side of a queue pair, new or left by a predecessor: the server resumes at
/// the commit words. `own` are the pair's words in the server pages, `peer` those in the
/// application pages, `done` those in the ledger. The session's
/// [`BufferLedger`](crate::buffers::BufferLedger) is new or was cleared.
#[must_use]
pub fn server_side(
    shape: &QueueShape,
    transmit_pool: PoolShape,
    own: OwnWords,
    peer: &PeerWords,
    done: OwnWords,
) -> (TransmitConsumer, ReceiveProducer) {
    let own = shape.server_own(own);
    let peer = shape.application_peer(peer);
    let receive = ReceiveProducer::new(
        shape,
        own.receive_line,
        own.descriptors,
        peer.receive_line,
        peer.provided,
    );
    let transmit = TransmitConsumer::new(
        shape,
        transmit_pool,
        own.transmit_line,
        peer.transmit_line,
        peer.descriptors,
        done,
    );
    (transmit, receive)
}
