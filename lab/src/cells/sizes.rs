//! The rates and sizes of the cards and the link.

use towpath_device::{ETHERNET_HEADER_BYTES, VLAN_TAG_BYTES};
use towpath_pdu::atm::{Circuit, MAX_PDU_BYTES};

/// Cells that an OC-3c link carries in a second: 149.76 Mbit/s.
pub(crate) const CELLS_PER_S: u32 = 353_208;
/// Cells that the reception card holds.
pub(crate) const RECEIVE_CELLS: usize = 7000;
/// Cells that wait at the transmission card: two of the longest PDUs of AAL3/4.
pub(super) const TRANSMIT_CELLS: usize = 2 * 1490;
/// Packets that the transmission card has, until the engine takes their completions: with an MTU of
/// 1 500 bytes, they fit into the reception card.
pub(super) const TRANSMIT_PACKETS: usize = 128;

/// The longest IP packet, so that a frame with two VLAN tags is a PDU.
pub(crate) const MTU_BYTES: usize = MAX_PDU_BYTES - ETHERNET_HEADER_BYTES - 2 * VLAN_TAG_BYTES;

/// Cells that the link's queue holds until the receiver polls.
pub(super) const LINK_CELLS: usize = 1 << 16;
/// Bytes of a receive buffer, without its headroom.
pub(super) const DATA_BYTES: usize = 2048;
/// The circuit in both directions.
pub(super) const CIRCUIT: Circuit = Circuit { vpi: 0, vci: 100 };
