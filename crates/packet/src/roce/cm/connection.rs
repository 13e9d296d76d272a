//! The messages that follow a request.

use super::request::{BODY_BYTES, put_24, read_24};
use crate::bytes::{be16, piece};

/// The acceptance of a request (REP). "Local" is the sender, "remote" the side that requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The receiver's number of the connection.
    pub remote_id: u32,
    /// The sender's queue pair, in 24 bits.
    pub local_qpn: u32,
    /// The packet sequence number with which the receiver of this message begins, in 24 bits.
    pub starting_psn: u32,
    /// READs and atomic operations that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomic operations that the sender wants to request at a time.
    pub initiator_depth: u8,
    /// How long the sender may take to acknowledge a packet: 4.096 µs × 2^n, in 5 bits.
    pub target_ack_delay: u8,
    /// How often the sender's queue pair repeats a message when the receiver is not ready, 0 to 6.
    /// 7: without end.
    pub rnr_retry_count: u8,
    /// The globally unique number of the sender's adapter.
    pub local_guid: u64,
    /// Data of the application.
    pub private: [u8; 196],
}

/// The sender has the reply and is ready to use the connection (RTU). Its private data is 0 when
/// written, and ignored when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The receiver's number of the connection.
    pub remote_id: u32,
}

/// The rejection of a message (REJ). Additional information for the reason is left out when written,
/// and ignored when read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The sender's number of the connection, or 0.
    pub local_id: u32,
    /// The receiver's number of the connection, or 0.
    pub remote_id: u32,
    /// The rejected message. 0: a request; 1: a reply; 2: another one, or none in time.
    pub rejected: u8,
    /// The reason: [`reason`](super::reason).
    pub reason: u16,
    /// Data of the application.
    pub private: [u8; 148],
}

/// The receipt of a message that takes long to answer (MRA). Its private data is 0 when written, and
/// ignored when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The receiver's number of the connection.
    pub remote_id: u32,
    /// The received message. 0: a request; 1: a reply; 2: another one.
    pub message: u8,
    /// How long the answer may take from now on: 4.096 µs × 2^n, in 5 bits.
    pub service_timeout: u8,
}

/// The request to end a connection (DREQ). Its private data is 0 when written, and ignored when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The receiver's number of the connection.
    pub remote_id: u32,
    /// The receiver's queue pair, in 24 bits.
    pub remote_qpn: u32,
}

/// The end of a connection: the answer to [`Disconnect`] (DREP). Its private data is 0 when written,
/// and ignored when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The receiver's number of the connection.
    pub remote_id: u32,
}

/// Writes both numbers of a connection, with which all messages but the request begin.
fn put_ids(to: &mut [u8; BODY_BYTES], local_id: u32, remote_id: u32) {
    to[..4].copy_from_slice(&local_id.to_be_bytes());
    to[4..8].copy_from_slice(&remote_id.to_be_bytes());
}

fn read_ids(body: &[u8; BODY_BYTES]) -> (u32, u32) {
    (u32::from_be_bytes(piece(body, 0)), u32::from_be_bytes(piece(body, 4)))
}

impl Reply {
    /// Writes the reply. The queue key, the end-to-end context, flow control end to end, the shared
    /// receive queue and the answer to an alternate path are all 0.
    pub(super) fn write(&self, to: &mut [u8; BODY_BYTES]) {
        put_ids(to, self.local_id, self.remote_id);
        put_24(to, 12, self.local_qpn);
        put_24(to, 20, self.starting_psn);
        to[24] = self.responder_resources;
        to[25] = self.initiator_depth;
        to[26] = self.target_ack_delay << 3;
        to[27] = self.rnr_retry_count << 5;
        to[28..36].copy_from_slice(&self.local_guid.to_be_bytes());
        to[36..].copy_from_slice(&self.private);
    }

    pub(super) fn read(body: &[u8; BODY_BYTES]) -> Reply {
        let (local_id, remote_id) = read_ids(body);
        Reply {
            local_id,
            remote_id,
            local_qpn: read_24(body, 12),
            starting_psn: read_24(body, 20),
            responder_resources: body[24],
            initiator_depth: body[25],
            target_ack_delay: body[26] >> 3,
            rnr_retry_count: body[27] >> 5,
            local_guid: u64::from_be_bytes(piece(body, 28)),
            private: piece(body, 36),
        }
    }
}

impl Ready {
    pub(super) fn write(&self, to: &mut [u8; BODY_BYTES]) {
        put_ids(to, self.local_id, self.remote_id);
    }

    pub(super) fn read(body: &[u8; BODY_BYTES]) -> Ready {
        let (local_id, remote_id) = read_ids(body);
        Ready { local_id, remote_id }
    }
}

impl Reject {
    pub(super) fn write(&self, to: &mut [u8; BODY_BYTES]) {
        put_ids(to, self.local_id, self.remote_id);
        to[8] = self.rejected << 6;
        to[10..12].copy_from_slice(&self.reason.to_be_bytes());
        to[84..].copy_from_slice(&self.private);
    }

    pub(super) fn read(body: &[u8; BODY_BYTES]) -> Reject {
        let (local_id, remote_id) = read_ids(body);
        Reject {
            local_id,
            remote_id,
            rejected: body[8] >> 6,
            reason: be16(body[10], body[11]),
            private: piece(body, 84),
        }
    }
}

impl Receipt {
    pub(super) fn write(&self, to: &mut [u8; BODY_BYTES]) {
        put_ids(to, self.local_id, self.remote_id);
        to[8] = self.message << 6;
        to[9] = self.service_timeout << 3;
    }

    pub(super) fn read(body: &[u8; BODY_BYTES]) -> Receipt {
        let (local_id, remote_id) = read_ids(body);
        Receipt { local_id, remote_id, message: body[8] >> 6, service_timeout: body[9] >> 3 }
    }
}

impl Disconnect {
    pub(super) fn write(&self, to: &mut [u8; BODY_BYTES]) {
        put_ids(to, self.local_id, self.remote_id);
        put_24(to, 8, self.remote_qpn);
    }

    pub(super) fn read(body: &[u8; BODY_BYTES]) -> Disconnect {
        let (local_id, remote_id) = read_ids(body);
        Disconnect { local_id, remote_id, remote_qpn: read_24(body, 8) }
    }
}

impl Disconnected {
    pub(super) fn write(&self, to: &mut [u8; BODY_BYTES]) {
        put_ids(to, self.local_id, self.remote_id);
    }

    pub(super) fn read(body: &[u8; BODY_BYTES]) -> Disconnected {
        let (local_id, remote_id) = read_ids(body);
        Disconnected { local_id, remote_id }
    }
}
