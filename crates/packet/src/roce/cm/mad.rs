//! The management datagram around a message.

use super::connection::{Disconnect, Disconnected, Ready, Receipt, Reject, Reply};
use super::request::{BODY_BYTES, Request};
use crate::bytes::{be16, piece};

/// The length of a management datagram, in bytes.
pub const MAD_BYTES: usize = HEADER_BYTES + BODY_BYTES;

const HEADER_BYTES: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS_CM: u8 = 7;
/// The version of the communication manager's messages (Linux, `drivers/infiniband/core/cm_msgs.h`).
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

// The attributes say which message it is (Linux, `include/rdma/ib_cm.h`).
const REQUEST: u16 = 0x10;
const RECEIPT: u16 = 0x11;
const REJECT: u16 = 0x12;
const REPLY: u16 = 0x13;
const READY: u16 = 0x14;
const DISCONNECT: u16 = 0x15;
const DISCONNECTED: u16 = 0x16;

/// A management datagram of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The number of the exchange that the message is part of. An answer has the number of what it
    /// answers.
    pub transaction: u64,
    /// The message.
    pub message: CmMessage,
}

/// A message of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Requests a connection (REQ).
    Request(Box<Request>),
    /// Accepts a request (REP).
    Reply(Box<Reply>),
    /// The connection is ready to use (RTU).
    ReadyToUse(Ready),
    /// Rejects a message (REJ).
    Reject(Reject),
    /// Confirms a message that takes long to answer (MRA).
    Receipt(Receipt),
    /// Ends a connection (DREQ).
    Disconnect(Disconnect),
    /// Confirms the end of a connection (DREP).
    Disconnected(Disconnected),
}

/// The first defect of a management datagram, or what makes it none of these messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// The datagram's length is not [`MAD_BYTES`].
    #[error("a management datagram of {0} bytes instead of {MAD_BYTES}")]
    Length(usize),
    /// The version of the common header is not 1.
    #[error("base version {0} instead of 1")]
    BaseVersion(u8),
    /// The management class is not the communication manager's.
    #[error("management class {0:#04x} is not the communication manager's")]
    Class(u8),
    /// The version of the class is not 2.
    #[error("version {0} of the communication manager instead of 2")]
    ClassVersion(u8),
    /// The method is not that of messages.
    #[error("method {0:#04x} is not Send")]
    Method(u8),
    /// The attribute is that of another message.
    #[error("unknown message {0:#06x} of the communication manager")]
    Attribute(u16),
    /// The request names a maximum payload that there is not.
    #[error("unknown path MTU {0}")]
    PathMtu(u8),
}

impl CmMessage {
    fn attribute(&self) -> u16 {
        match self {
            CmMessage::Request(_) => REQUEST,
            CmMessage::Reply(_) => REPLY,
            CmMessage::ReadyToUse(_) => READY,
            CmMessage::Reject(_) => REJECT,
            CmMessage::Receipt(_) => RECEIPT,
            CmMessage::Disconnect(_) => DISCONNECT,
            CmMessage::Disconnected(_) => DISCONNECTED,
        }
    }

    fn write(&self, to: &mut [u8; BODY_BYTES]) {
        match self {
            CmMessage::Request(request) => request.write(to),
            CmMessage::Reply(reply) => reply.write(to),
            CmMessage::ReadyToUse(ready) => ready.write(to),
            CmMessage::Reject(reject) => reject.write(to),
            CmMessage::Receipt(receipt) => receipt.write(to),
            CmMessage::Disconnect(disconnect) => disconnect.write(to),
            CmMessage::Disconnected(disconnected) => disconnected.write(to),
        }
    }
}

impl Mad {
    /// Reads a datagram. It ignores the status and the attribute's modifier, which the messages
    /// have no use for.
    ///
    /// # Errors
    /// The first defect.
    pub fn read(bytes: &[u8]) -> Result<Mad, MadError> {
        let bytes: &[u8; MAD_BYTES] =
            bytes.try_into().map_err(|_| MadError::Length(bytes.len()))?;
        let [base_version, class, class_version, method] = piece(bytes, 0);
        match (base_version, class, class_version, method) {
            (BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND) => {}
            (BASE_VERSION, CLASS_CM, CLASS_VERSION, _) => return Err(MadError::Method(method)),
            (BASE_VERSION, CLASS_CM, ..) => return Err(MadError::ClassVersion(class_version)),
            (BASE_VERSION, ..) => return Err(MadError::Class(class)),
            _ => return Err(MadError::BaseVersion(base_version)),
        }
        let body: [u8; BODY_BYTES] = piece(bytes, HEADER_BYTES);
        let body = &body;
        let message = match be16(bytes[16], bytes[17]) {
            REQUEST => {
                CmMessage::Request(Box::new(Request::read(body).map_err(MadError::PathMtu)?))
            }
            REPLY => CmMessage::Reply(Box::new(Reply::read(body))),
            READY => CmMessage::ReadyToUse(Ready::read(body)),
            REJECT => CmMessage::Reject(Reject::read(body)),
            RECEIPT => CmMessage::Receipt(Receipt::read(body)),
            DISCONNECT => CmMessage::Disconnect(Disconnect::read(body)),
            DISCONNECTED => CmMessage::Disconnected(Disconnected::read(body)),
            other => return Err(MadError::Attribute(other)),
        };
        Ok(Mad { transaction: u64::from_be_bytes(piece(bytes, 8)), message })
    }

    /// Encodes the datagram.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        let mut body = [0; BODY_BYTES];
        self.message.write(&mut body);
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND]);
        bytes[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(&body);
        bytes
    }
}
