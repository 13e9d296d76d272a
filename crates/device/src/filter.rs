//! The packets that a device receives for the server. The control part takes filters, so that
//! unwanted packets cost no buffer and no copy. Without them, the engine filters in software.

use std::io;

use towpath_packet::FlowRule;

/// Packets that the server wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Filter {
    /// Packets to a MAC address: one of the host's own, or that of a multicast group.
    Address([u8; 6]),
    /// Packets to every group, broadcast included.
    AllGroups,
    /// All packets, whatever the other filters say (promiscuous mode).
    Everything,
    /// Packets of a flow.
    Flow(FlowRule),
}

/// The reason why a device did not add a filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The device does not filter by this kind: it receives packets with any value of it.
    #[error("the device does not filter by this kind")]
    Unsupported,
    /// The device has no room for another filter of this kind. With [`Filter::Everything`] it
    /// receives the packets.
    #[error("the device has no room for another filter")]
    Full,
    /// The device has no room for another filter of this kind, and [`Filter::Everything`] does not replace it.
    #[error("the device has no room for another filter, and cannot receive everything instead")]
    NoRoom,
    /// The device did not add the filter, and [`Filter::Everything`] does not replace it.
    #[error("the device did not add a filter: {0}")]
    Failed(#[source] io::Error),
}

/// Returns `true` for the MAC address of a group: multicast or broadcast (IEEE 802, 8.2.2).
#[inline]
#[must_use]
pub fn is_group(mac: &[u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Returns the number of addresses among filters.
#[must_use]
pub fn addresses_in(filters: &[Filter]) -> usize {
    filters.iter().filter(|one| matches!(one, Filter::Address(_))).count()
}
