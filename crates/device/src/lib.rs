//! Devices: the drivers that move frames to and from a wire.
//!
//! A driver has two parts. The control part, [`Device`], states properties and opens one
//! [`DeviceQueue`] per hardware queue. A queue moves packets. Users of a device (engine, wrappers,
//! conformance suite) know only these traits.
//!
//! | verb | direction | moves |
//! |---|---|---|
//! | [`rx_fill`](DeviceQueue::rx_fill) | toward the device | empty pool buffers |
//! | [`rx_poll`](DeviceQueue::rx_poll) | toward the applications | filled pool buffers |
//! | [`tx_submit`](DeviceQueue::tx_submit) | toward the device | packets to send |
//! | [`tx_complete`](DeviceQueue::tx_complete) | toward the applications | completed packets |
//! | [`kick`](DeviceQueue::kick) | toward the device | nothing: it tells the device of new entries |
//!
//! This crate has the drivers of kernel interfaces. Those of PCI cards are in `towpath-device-pci`;
//! devices without hardware, wrappers and the conformance suite in `towpath-device-testing`.

mod check;
mod close_order;
mod control;
mod dma;
mod earlier;
mod error;
mod filter;
mod gather;
mod hardware_queue;
mod keeper;
mod kernel_interface;
mod own_queue;
pub mod packet;
mod packet_memory;
mod queue;
mod space;
pub mod tap;
mod tx_headroom;
pub mod virtio;
mod wire;
pub mod xdp;

pub use check::PacketLimits;
pub use close_order::{EndPipe, close_early};
pub use control::{
    Capabilities, Device, Event, HardwareQueues, Info, Limits, PacketMemory, TakeOver,
};
pub use dma::{Access, Dma, DmaError, Registration};
pub use earlier::EarlierObjects;
pub use error::DeviceError;
pub use filter::{Filter, FilterError, addresses_in, is_group};
pub use hardware_queue::HardwareQueue;
pub use keeper::Keeper;
pub use own_queue::{OpenedOwnQueue, OwnMemory, OwnQueueError, OwnQueueLimits, OwnQueues};
pub use packet_memory::packet_memory;
pub use queue::{Armed, Completion, Counters, DeviceQueue, Kick, Outcome, Packet, Part, Received};
pub use space::{Space, SpaceError, SpaceId, Spaces};
pub use towpath_packet::{
    Checksum, FlowRule, FlowVlan, Meta, Segmentation, SegmentationKind, TagProtocol, VlanTag,
};
pub use tx_headroom::{TX_METADATA_BYTES, TxHeadroom};
pub use wire::Assembly;

/// The maximum number of parts of a packet: as many buffers as a packet of an application may have,
/// and a checked copy of its beginning.
pub const MAX_PARTS: usize = 49;

/// Bytes in front of a pool buffer's data that belong to the driver, for the virtio-net header or
/// another device's header.
pub const POOL_HEADROOM_BYTES: usize = 128;

/// Bytes of an Ethernet header: two addresses and the type (IEEE 802.3, 3.1.1).
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// Bytes of an 802.1Q tag; the drivers leave room for two in a frame.
pub const VLAN_TAG_BYTES: usize = 4;

/// The largest IP packet of a large (not yet segmented) frame, in bytes: the limit of the 16-bit
/// length of an IPv4 header.
pub const LARGE_PACKET_BYTES: usize = 65535;

/// The longest large frame, in bytes.
pub const LARGE_FRAME_BYTES: usize = longest_frame(LARGE_PACKET_BYTES);

/// The shortest Ethernet frame without its check sequence, in bytes (IEEE 802.3, 4A.4.2).
pub const SHORTEST_FRAME_BYTES: usize = 60;

/// Returns the longest frame of an IP packet of `packet_bytes`, in bytes: with its Ethernet header
/// and two tags.
#[must_use]
pub const fn longest_frame(packet_bytes: usize) -> usize {
    packet_bytes + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES
}
