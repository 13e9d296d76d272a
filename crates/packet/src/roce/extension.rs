//! The extension headers, which follow the base transport header (Linux,
//! `drivers/infiniband/sw/rxe/rxe_hdr.h`).

use super::opcode::Opcode;
use crate::bytes::piece;

/// The RDMA extended transport header: the remote memory that a WRITE or READ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The virtual address of the memory's first byte.
    pub address: u64,
    /// The remote key, which permits the access.
    pub key: u32,
    /// The length of the whole operation, in bytes.
    pub len: u32,
}

/// The acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Whether the operation succeeded.
    pub syndrome: Syndrome,
    /// The message sequence number: how many messages the responder has completed, in 24 bits.
    pub msn: u32,
}

/// The kind of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Success.
    Ack {
        /// The encoded number of further SENDs that the responder has memory for, in 5 bits. 31:
        /// the responder does not count.
        credits: u8,
    },
    /// The responder has no memory for the message, and the requester repeats it later.
    ReceiverNotReady {
        /// The encoded least time to wait, in 5 bits.
        timer: u8,
    },
    /// Failure.
    Nak(NakCode),
    /// A reserved value.
    Other(u8),
}

/// What a negative acknowledgement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: the requester repeats from the one that the acknowledgement names.
    SequenceError = 0,
    /// The responder does not take such a request.
    InvalidRequest,
    /// The remote key does not permit the access.
    RemoteAccess,
    /// The responder failed.
    RemoteOperational,
    /// A request of the reliable datagram service is invalid. No connection has it.
    InvalidDatagramRequest,
}

/// The datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The queue key, which the receiving queue pair compares with its own.
    pub qkey: u32,
    /// The sender's queue pair, in 24 bits.
    pub source: u32,
}

/// What follows the base transport header. Each field is there if the opcode has it.
///
/// The headers of atomic operations, and the remote key that a SEND invalidates, have no field:
/// Towpath takes no such request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// The remote memory.
    pub reth: Option<Reth>,
    /// The acknowledgement.
    pub aeth: Option<Aeth>,
    /// The immediate data.
    pub immediate: Option<u32>,
    /// The sender of a datagram.
    pub deth: Option<Deth>,
}

const KIND_MASK: u8 = 0xe0;
const VALUE_MASK: u8 = 0x1f;
const KIND_ACK: u8 = 0x00;
const KIND_NOT_READY: u8 = 0x20;
const KIND_NAK: u8 = 0x60;

impl Syndrome {
    /// Encodes the syndrome. Of credits and timers it takes the lower 5 bits.
    #[inline]
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => KIND_ACK | credits & VALUE_MASK,
            Syndrome::ReceiverNotReady { timer } => KIND_NOT_READY | timer & VALUE_MASK,
            Syndrome::Nak(code) => KIND_NAK | code as u8,
            Syndrome::Other(byte) => byte,
        }
    }

    /// Decodes a syndrome.
    #[inline]
    #[must_use]
    pub const fn from_u8(byte: u8) -> Syndrome {
        let value = byte & VALUE_MASK;
        match (byte & KIND_MASK, value) {
            (KIND_ACK, credits) => Syndrome::Ack { credits },
            (KIND_NOT_READY, timer) => Syndrome::ReceiverNotReady { timer },
            (KIND_NAK, 0) => Syndrome::Nak(NakCode::SequenceError),
            (KIND_NAK, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (KIND_NAK, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (KIND_NAK, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            (KIND_NAK, 4) => Syndrome::Nak(NakCode::InvalidDatagramRequest),
            _ => Syndrome::Other(byte),
        }
    }
}

/// Puts bytes at the beginning of `to`, and cuts them off. `None` if they do not fit.
fn put<const N: usize>(to: &mut &mut [u8], bytes: [u8; N]) -> Option<()> {
    let (here, rest) = std::mem::take(to).split_first_chunk_mut()?;
    *here = bytes;
    *to = rest;
    Some(())
}

impl Extension {
    /// Writes the headers that the opcode has to the beginning of `to`. `None` if `to` is too
    /// short, or a field is missing.
    #[inline]
    pub(super) fn write(&self, opcode: Opcode, mut to: &mut [u8]) -> Option<()> {
        if opcode.has_atomic()
            || opcode.has_invalidate()
            || matches!(opcode, Opcode::AtomicAcknowledge)
        {
            return None;
        }
        let to = &mut to;
        if opcode.has_deth() {
            let deth = self.deth?;
            put(to, deth.qkey.to_be_bytes())?;
            put(to, (deth.source & 0xff_ffff).to_be_bytes())?;
        }
        if opcode.has_reth() {
            let reth = self.reth?;
            put(to, reth.address.to_be_bytes())?;
            put(to, reth.key.to_be_bytes())?;
            put(to, reth.len.to_be_bytes())?;
        }
        if opcode.has_aeth() {
            let aeth = self.aeth?;
            let syndrome = u32::from(aeth.syndrome.to_u8()) << 24;
            put(to, (syndrome | aeth.msn & 0xff_ffff).to_be_bytes())?;
        }
        if opcode.has_immediate() {
            put(to, self.immediate?.to_be_bytes())?;
        }
        if matches!(opcode, Opcode::CongestionNotification) {
            put(to, [0; 16])?;
        }
        Some(())
    }

    /// Reads the headers that the opcode has from its [`Opcode::extension_bytes`].
    #[inline]
    pub(super) fn read(opcode: Opcode, bytes: &[u8]) -> Extension {
        debug_assert_eq!(bytes.len(), opcode.extension_bytes());
        let word = |at: usize| u32::from_be_bytes(piece(bytes, at));
        Extension {
            reth: opcode.has_reth().then(|| Reth {
                address: u64::from_be_bytes(piece(bytes, 0)),
                key: word(8),
                len: word(12),
            }),
            aeth: opcode
                .has_aeth()
                .then(|| Aeth { syndrome: Syndrome::from_u8(bytes[0]), msn: word(0) & 0xff_ffff }),
            // It is the last of all.
            immediate: opcode.has_immediate().then(|| word(bytes.len() - 4)),
            deth: opcode.has_deth().then(|| Deth { qkey: word(0), source: word(4) & 0xff_ffff }),
        }
    }
}
