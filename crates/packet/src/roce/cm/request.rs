//! The request for a connection.

use super::mtu::PathMtu;
use crate::bytes::{be16, piece};

/// What a message has behind the common header of management datagrams, in bytes.
pub(super) const BODY_BYTES: usize = 232;
/// The permissive local identifier, which Linux writes for paths of more than one hop.
const ANY_LID: [u8; 2] = [0xff; 2];
/// Hops that a packet may take. More than one: the path leaves the subnet.
const HOP_LIMIT: u8 = 64;

/// A request for a connection (REQ). Depths and timeouts are the sender's; "local" is the sender,
/// "remote" the receiver.
///
/// A timeout of `n` is 4.096 µs × 2^n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The service identifier: what the sender connects to.
    pub service: u64,
    /// The globally unique number of the sender's adapter.
    pub local_guid: u64,
    /// The sender's queue pair, in 24 bits.
    pub local_qpn: u32,
    /// READs and atomic operations that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomic operations that the sender wants to request at a time.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer, in 5 bits.
    pub remote_response_timeout: u8,
    /// How long the sender may take to answer, in 5 bits.
    pub local_response_timeout: u8,
    /// The packet sequence number with which the receiver of this message begins, in 24 bits.
    pub starting_psn: u32,
    /// How often the sender's queue pair repeats a packet without acknowledgement, 0 to 7.
    pub retry_count: u8,
    /// How often it repeats a message when the receiver is not ready, 0 to 6. 7: without end.
    pub rnr_retry_count: u8,
    /// The maximum payload of a packet.
    pub path_mtu: PathMtu,
    /// How often either side repeats a message of the set-up, 0 to 15.
    pub max_retries: u8,
    /// The partition key.
    pub pkey: u16,
    /// The sender's global identifier.
    pub local_gid: [u8; 16],
    /// The receiver's global identifier.
    pub remote_gid: [u8; 16],
    /// How long the sender's queue pair waits for an acknowledgement, in 5 bits.
    pub ack_timeout: u8,
    /// The connection is reliable. Else it is an unreliable connection or of another kind; written,
    /// it is an unreliable one.
    pub reliable: bool,
    /// Data of the application, with [`IpHeader`](super::IpHeader) before it.
    pub private: [u8; 92],
}

/// Writes the lower 24 bits.
pub(super) fn put_24(to: &mut [u8; BODY_BYTES], at: usize, value: u32) {
    to[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

/// Reads 24 bits.
pub(super) fn read_24(body: &[u8; BODY_BYTES], at: usize) -> u32 {
    u32::from_be_bytes(piece(body, at)) >> 8
}

impl Request {
    /// Writes the request. Towpath states no flow control end to end, no shared receive queue and no
    /// alternate path: all 0. Of the path, Linux's `cma_resolve_iboe_route` sets neither a rate
    /// (0: the port's) nor, without a type of service, a traffic class or service level. Linux
    /// sets a flow label, which a receiver may ignore; here it is 0.
    pub(super) fn write(&self, to: &mut [u8; BODY_BYTES]) {
        to[..4].copy_from_slice(&self.local_id.to_be_bytes());
        to[8..16].copy_from_slice(&self.service.to_be_bytes());
        to[16..24].copy_from_slice(&self.local_guid.to_be_bytes());
        put_24(to, 32, self.local_qpn);
        to[35] = self.responder_resources;
        to[39] = self.initiator_depth;
        to[43] = self.remote_response_timeout << 3 | u8::from(!self.reliable) << 1;
        put_24(to, 44, self.starting_psn);
        to[47] = self.local_response_timeout << 3 | self.retry_count & 7;
        to[48..50].copy_from_slice(&self.pkey.to_be_bytes());
        to[50] = (self.path_mtu as u8) << 4 | self.rnr_retry_count & 7;
        to[51] = self.max_retries << 4;
        to[52..54].copy_from_slice(&ANY_LID);
        to[54..56].copy_from_slice(&ANY_LID);
        to[56..72].copy_from_slice(&self.local_gid);
        to[72..88].copy_from_slice(&self.remote_gid);
        to[93] = HOP_LIMIT;
        to[95] = self.ack_timeout << 3;
        to[140..].copy_from_slice(&self.private);
    }

    /// Reads a request. The error is a maximum payload that there is not.
    pub(super) fn read(body: &[u8; BODY_BYTES]) -> Result<Request, u8> {
        let mtu = body[50] >> 4;
        Ok(Request {
            local_id: u32::from_be_bytes(piece(body, 0)),
            service: u64::from_be_bytes(piece(body, 8)),
            local_guid: u64::from_be_bytes(piece(body, 16)),
            local_qpn: read_24(body, 32),
            responder_resources: body[35],
            initiator_depth: body[39],
            remote_response_timeout: body[43] >> 3,
            local_response_timeout: body[47] >> 3,
            starting_psn: read_24(body, 44),
            retry_count: body[47] & 7,
            rnr_retry_count: body[50] & 7,
            path_mtu: PathMtu::from_number(mtu).ok_or(mtu)?,
            max_retries: body[51] >> 4,
            pkey: be16(body[48], body[49]),
            local_gid: piece(body, 56),
            remote_gid: piece(body, 72),
            ack_timeout: body[95] >> 3,
            reliable: body[43] >> 1 & 3 == 0,
            private: piece(body, 140),
        })
    }
}
