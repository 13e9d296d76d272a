//! The opcodes of the services that Towpath speaks, and which headers each of them has.

/// The longest extension headers: those of an atomic request.
pub const MAX_EXTENSION_BYTES: usize = ATOMIC_ETH_BYTES;

const RETH_BYTES: usize = 16;
const AETH_BYTES: usize = 4;
const DETH_BYTES: usize = 8;
const IMMEDIATE_BYTES: usize = 4;
const INVALIDATE_BYTES: usize = 4;
const ATOMIC_ETH_BYTES: usize = 28;
const ATOMIC_ACK_BYTES: usize = 8;
const NOTIFICATION_BYTES: usize = 16;

/// What a packet is: the reliable connected service's operations, datagrams, and the congestion
/// notification (Linux, `include/rdma/ib_pack.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// The first packet of several of a SEND.
    SendFirst = 0x00,
    /// A middle packet of a SEND.
    SendMiddle,
    /// The last packet of a SEND.
    SendLast,
    /// The last packet of a SEND, with immediate data.
    SendLastImmediate,
    /// The only packet of a SEND.
    SendOnly,
    /// The only packet of a SEND, with immediate data.
    SendOnlyImmediate,
    /// The first packet of several of an RDMA WRITE.
    WriteFirst,
    /// A middle packet of an RDMA WRITE.
    WriteMiddle,
    /// The last packet of an RDMA WRITE.
    WriteLast,
    /// The last packet of an RDMA WRITE, with immediate data.
    WriteLastImmediate,
    /// The only packet of an RDMA WRITE.
    WriteOnly,
    /// The only packet of an RDMA WRITE, with immediate data.
    WriteOnlyImmediate,
    /// The request of an RDMA READ.
    ReadRequest,
    /// The first packet of several of the response to an RDMA READ.
    ReadResponseFirst,
    /// A middle packet of the response to an RDMA READ.
    ReadResponseMiddle,
    /// The last packet of the response to an RDMA READ.
    ReadResponseLast,
    /// The only packet of the response to an RDMA READ.
    ReadResponseOnly,
    /// An acknowledgement, positive or negative.
    Acknowledge,
    /// The response to an atomic operation: an acknowledgement and the former value.
    AtomicAcknowledge,
    /// The request of an atomic compare and swap.
    CompareSwap,
    /// The request of an atomic fetch and add.
    FetchAdd,
    /// The last packet of a SEND, which invalidates a remote key.
    SendLastInvalidate = 0x16,
    /// The only packet of a SEND, which invalidates a remote key.
    SendOnlyInvalidate,
    /// A datagram of the unreliable datagram service.
    DatagramSendOnly = 0x64,
    /// A datagram of the unreliable datagram service, with immediate data.
    DatagramSendOnlyImmediate,
    /// A congestion notification packet (CNP): asks the sender to slow down.
    CongestionNotification = 0x81,
}

impl Opcode {
    /// Returns the opcode with this number, if it is one of these.
    #[inline]
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Opcode> {
        Some(match number {
            0x00 => Opcode::SendFirst,
            0x01 => Opcode::SendMiddle,
            0x02 => Opcode::SendLast,
            0x03 => Opcode::SendLastImmediate,
            0x04 => Opcode::SendOnly,
            0x05 => Opcode::SendOnlyImmediate,
            0x06 => Opcode::WriteFirst,
            0x07 => Opcode::WriteMiddle,
            0x08 => Opcode::WriteLast,
            0x09 => Opcode::WriteLastImmediate,
            0x0a => Opcode::WriteOnly,
            0x0b => Opcode::WriteOnlyImmediate,
            0x0c => Opcode::ReadRequest,
            0x0d => Opcode::ReadResponseFirst,
            0x0e => Opcode::ReadResponseMiddle,
            0x0f => Opcode::ReadResponseLast,
            0x10 => Opcode::ReadResponseOnly,
            0x11 => Opcode::Acknowledge,
            0x12 => Opcode::AtomicAcknowledge,
            0x13 => Opcode::CompareSwap,
            0x14 => Opcode::FetchAdd,
            0x16 => Opcode::SendLastInvalidate,
            0x17 => Opcode::SendOnlyInvalidate,
            0x64 => Opcode::DatagramSendOnly,
            0x65 => Opcode::DatagramSendOnlyImmediate,
            0x81 => Opcode::CongestionNotification,
            _ => return None,
        })
    }

    /// Returns `true` if the packet names remote memory: it has a [`Reth`](super::Reth).
    #[inline]
    #[must_use]
    pub const fn has_reth(self) -> bool {
        matches!(
            self,
            Opcode::WriteFirst
                | Opcode::WriteOnly
                | Opcode::WriteOnlyImmediate
                | Opcode::ReadRequest
        )
    }

    /// Returns `true` if the packet acknowledges: it has an [`Aeth`](super::Aeth).
    #[inline]
    #[must_use]
    pub const fn has_aeth(self) -> bool {
        matches!(
            self,
            Opcode::ReadResponseFirst
                | Opcode::ReadResponseLast
                | Opcode::ReadResponseOnly
                | Opcode::Acknowledge
                | Opcode::AtomicAcknowledge
        )
    }

    /// Returns `true` if the packet has 4 bytes of immediate data.
    #[inline]
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(
            self,
            Opcode::SendLastImmediate
                | Opcode::SendOnlyImmediate
                | Opcode::WriteLastImmediate
                | Opcode::WriteOnlyImmediate
                | Opcode::DatagramSendOnlyImmediate
        )
    }

    /// Returns `true` if the packet names its sender's queue pair: it has a [`Deth`](super::Deth).
    #[inline]
    #[must_use]
    pub const fn has_deth(self) -> bool {
        matches!(self, Opcode::DatagramSendOnly | Opcode::DatagramSendOnlyImmediate)
    }

    /// Returns `true` for the request of an atomic operation, which has the 28 bytes of an atomic
    /// extension header.
    #[inline]
    #[must_use]
    pub const fn has_atomic(self) -> bool {
        matches!(self, Opcode::CompareSwap | Opcode::FetchAdd)
    }

    /// Returns `true` if the packet has the 4 bytes of a remote key to invalidate.
    #[inline]
    #[must_use]
    pub const fn has_invalidate(self) -> bool {
        matches!(self, Opcode::SendLastInvalidate | Opcode::SendOnlyInvalidate)
    }

    /// Returns the bytes between the base transport header and the payload, at most
    /// [`MAX_EXTENSION_BYTES`]. They include the former value in the response to an atomic
    /// operation, and the reserved bytes of a congestion notification.
    #[inline]
    #[must_use]
    pub const fn extension_bytes(self) -> usize {
        let mut bytes = match self {
            Opcode::AtomicAcknowledge => ATOMIC_ACK_BYTES,
            Opcode::CongestionNotification => NOTIFICATION_BYTES,
            _ => 0,
        };
        if self.has_reth() {
            bytes += RETH_BYTES;
        }
        if self.has_aeth() {
            bytes += AETH_BYTES;
        }
        if self.has_deth() {
            bytes += DETH_BYTES;
        }
        if self.has_immediate() {
            bytes += IMMEDIATE_BYTES;
        }
        if self.has_atomic() {
            bytes += ATOMIC_ETH_BYTES;
        }
        if self.has_invalidate() {
            bytes += INVALIDATE_BYTES;
        }
        bytes
    }
}
