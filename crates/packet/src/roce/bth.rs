//! The base transport header.

use super::opcode::Opcode;
use crate::bytes::{be16, piece};

/// The length of the base transport header, in bytes.
pub(super) const BTH_BYTES: usize = 12;
/// The partition key of a network without partitions: full membership in the default one (Linux,
/// `include/rdma/ib_mad.h`).
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The base transport header (Linux, `drivers/infiniband/sw/rxe/rxe_hdr.h`).
///
/// Its migration bit is 0 when written, as Linux's `rxe_req.c` writes it, and ignored when read. So
/// are the reserved bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The sender wants the receiver to be notified of the message.
    pub solicited: bool,
    /// The partition key.
    pub pkey: u16,
    /// The receiving queue pair, in 24 bits.
    pub destination: u32,
    /// The sender wants an acknowledgement.
    pub ack_request: bool,
    /// The packet sequence number, in 24 bits.
    pub psn: u32,
    /// A switch was congested: forward explicit congestion notification.
    pub fecn: bool,
    /// The receiver knows of congestion: backward explicit congestion notification. A
    /// [`Opcode::CongestionNotification`] has it.
    pub becn: bool,
}

impl Bth {
    /// Creates a header for the default partition, without any flag.
    #[must_use]
    pub const fn new(opcode: Opcode, destination: u32, psn: u32) -> Bth {
        Bth {
            opcode,
            solicited: false,
            pkey: DEFAULT_PKEY,
            destination,
            ack_request: false,
            psn,
            fecn: false,
            becn: false,
        }
    }

    /// Encodes the header of a packet with `pad` pad bytes. Of `destination` and `psn` it takes the
    /// lower 24 bits.
    #[inline]
    pub(super) fn to_bytes(self, pad: usize) -> [u8; BTH_BYTES] {
        let [p0, p1] = self.pkey.to_be_bytes();
        let [_, d0, d1, d2] = self.destination.to_be_bytes();
        let [_, s0, s1, s2] = self.psn.to_be_bytes();
        let flags = u8::from(self.solicited) << 7 | (pad as u8 & 3) << 4;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        let ack = u8::from(self.ack_request) << 7;
        [self.opcode as u8, flags, p0, p1, congestion, d0, d1, d2, ack, s0, s1, s2]
    }

    #[inline]
    pub(super) fn from_bytes(opcode: Opcode, bytes: &[u8; BTH_BYTES]) -> Bth {
        Bth {
            opcode,
            solicited: bytes[1] & 0x80 != 0,
            pkey: be16(bytes[2], bytes[3]),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            destination: u32::from_be_bytes(piece(bytes, 4)) & 0xff_ffff,
            ack_request: bytes[8] & 0x80 != 0,
            psn: u32::from_be_bytes(piece(bytes, 8)) & 0xff_ffff,
        }
    }
}

/// Returns the number of pad bytes that an encoded base transport header states: 0 to 3.
#[inline]
pub(super) fn stated_pad(bth: &[u8; BTH_BYTES]) -> usize {
    usize::from(bth[1] >> 4 & 3)
}
