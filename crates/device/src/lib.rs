//! Devices: the drivers that move frames to and from a wire.
//!
//! A driver implements [`Device`]: four verbs, its capabilities, a descriptor to sleep on, and a
//! reset. Its users (engine, wrappers, conformance suite) know only this trait.
//!
//! | verb | direction | moves |
//! |---|---|---|
//! | [`rx_fill`](Device::rx_fill) | toward the device | empty pool buffers |
//! | [`rx_poll`](Device::rx_poll) | toward the applications | filled pool buffers |
//! | [`tx_submit`](Device::tx_submit) | toward the device | packets to send |
//! | [`tx_complete`](Device::tx_complete) | toward the applications | completed packets |

pub mod capture;
mod check;
pub mod conformance;
pub mod fault;
pub mod loopback;
pub mod random;
mod sleeper;
pub mod slow;
mod space;
pub mod tap;
pub mod virtio;
mod wire;

pub use space::{Space, SpaceError, SpaceId, Spaces};
pub use towpath_packet::{Checksum, Meta, Segmentation, SegmentationKind};

use std::os::fd::BorrowedFd;

/// The maximum number of parts of a packet: a 64 KiB segment in buffers of 2 KiB, and room for a
/// header in a buffer of its own.
pub const MAX_PARTS: usize = 48;

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

/// The identity and the properties of a device.
#[derive(Clone, Debug)]
pub struct Info {
    /// The interface's name, as `ip link` shows it, or an invented one.
    pub name: String,
    /// The device's own address; for a TAP the address of the kernel's side.
    pub mac: [u8; 6],
    /// The largest IP packet, in bytes, without Ethernet header.
    pub mtu: usize,
    /// The device's capabilities.
    pub can: Capabilities,
    /// The size that each pool buffer needs for the largest packet that the device may receive,
    /// headroom included, in bytes.
    pub rx_buffer_bytes: usize,
    /// The maximum number of packets that wait for `rx_poll` before the device loses more; 0: not
    /// known. A clock must tick before half of them have come.
    pub rx_queue_packets: usize,
}

/// The capabilities of a device; the engine replaces missing ones in software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `true` if the device sends directly from any data space. Otherwise it sends only from its
    /// own pool: the space of its receive buffers.
    pub tx_in_place: bool,
    /// `true` if the device takes packets with [`Checksum::Partial`].
    pub tx_checksum: bool,
    /// `true` if the device takes packets with [`Segmentation`].
    pub tx_segmentation: bool,
    /// `true` if the device delivers packets that are large or have a partial checksum, with
    /// metadata.
    pub rx_offload: bool,
    /// `true` if the device keeps packets after `tx_submit` and returns their tokens later.
    /// Otherwise it completes each packet before `tx_submit` returns, and `tx_complete` still
    /// returns the token.
    pub tx_asynchronous: bool,
}

/// A part of a packet to be sent: bytes in a data space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The data space of the bytes.
    pub space: SpaceId,
    /// The offset of the first byte in the space.
    pub offset: u32,
    /// The number of bytes.
    pub len: u32,
}

/// A packet to send: parts that form one frame on the wire, or one large packet to segment.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// 1 to [`MAX_PARTS`] parts.
    pub parts: &'a [Part],
    /// The offload work that is left to the device, within its capabilities.
    pub meta: Meta,
    /// The token that `tx_complete` returns when the device has completed the packet.
    pub token: u64,
}

/// A filled pool buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The data space of the buffer.
    pub space: SpaceId,
    /// The buffer, as it was provided.
    pub buffer: u32,
    /// The offset of the data in the space, in bytes.
    pub offset: u32,
    /// The number of received bytes.
    pub len: u32,
    /// The offload work that is left to the receiver.
    pub meta: Meta,
}

/// Whether the engine may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is no work: [`Device::sleep_fd`] becomes readable when there is some.
    Sleep,
    /// There is work: poll again.
    Work,
}

/// A fault of a device as a whole. The device counts single bad packets, and returns no error for
/// them.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The interface is gone: deleted, or its namespace with it.
    #[error("device {name} is gone: {cause}")]
    Gone {
        /// The interface.
        name: String,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The kernel refused an operation, which a reset may repair.
    #[error("device {name}: {what}: {cause}")]
    Failed {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The device kept packets that it had taken to send, and its reset failed.
    #[error("device {name} stalled, and its reset failed: {cause}")]
    Stalled {
        /// The interface.
        name: String,
        /// The error of the reset.
        cause: Box<DeviceError>,
    },
}

/// Counters of a device, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Received packets that the driver dropped: too long, malformed metadata.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that the driver did not send: bad ones, or ones that the kernel refused.
    pub tx_dropped: u64,
    /// System calls made.
    pub system_calls: u64,
    /// Resets.
    pub resets: u64,
}

/// A device. Only the engine's thread calls it.
pub trait Device: Send {
    /// Returns the device's identity and properties. They do not change while the device is open.
    fn info(&self) -> &Info;

    /// Starts the device. The engine calls this once, before the other verbs. A driver with memory
    /// of its own adds it here, and a driver that must register memory keeps the handles that it
    /// needs.
    ///
    /// # Errors
    /// When the driver cannot allocate or register memory.
    fn start(&mut self, spaces: &mut Spaces) -> Result<(), DeviceError>;

    /// Provides the device with empty buffers: offsets in `space` at which a buffer of
    /// [`Info::rx_buffer_bytes`] starts. The device takes as many as it has room for, from the
    /// front, and stops at the first one that is not writable. Returns how many it took.
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize;

    /// Appends at most `budget` filled buffers to `out`, oldest first. Returns their number. A
    /// driver that fetches packets from the sender's memory late does so here too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError>;

    /// Sends packets, in order. The device takes as many as it has room for, from the front.
    /// Returns how many it took. The engine does not change the parts of a taken packet until the
    /// device returns its token.
    ///
    /// The device also takes a packet that it cannot send (a part outside of its space, too long,
    /// metadata that does not fit, refused by the kernel). The device drops and counts such a
    /// packet, and returns its token. The device pads frames that are too short for the wire with
    /// zeros.
    ///
    /// # Errors
    /// When the device as a whole fails and this call took no packet.
    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError>;

    /// Appends at most `budget` tokens of completed packets to `out`, in any order. Returns their
    /// number.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn tx_complete(&mut self, out: &mut Vec<u64>, budget: usize) -> Result<usize, DeviceError>;

    /// Returns the descriptor that becomes readable when there is work; `None` for a device that
    /// must be polled.
    fn sleep_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Requests a wake-up, then checks once more. The device reports earlier work at once, and
    /// later work makes [`Device::sleep_fd`] readable.
    ///
    /// `tx_waiting`: packets for which the device had no room wait too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError>;

    /// Resets a stalled device. The interface, its addresses and the kernel's connections stay. The
    /// device returns every provided buffer through `buffers`. It returns every remaining token
    /// through the next `tx_complete`, in the order in which it took the packets.
    ///
    /// The engine submits the packets whose tokens a reset returns again. So the driver returns the
    /// token of a packet that it knows to be sent or dropped before the reset. It counts a packet
    /// that the reset ends as neither, and no part of such a packet is still in flight.
    ///
    /// # Errors
    /// When the device does not work after the reset.
    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError>;

    /// Returns the descriptors that must outlive this process so that the interface, its addresses
    /// and its routes survive, with the names by which a successor finds them. None for a device
    /// that ends with its process.
    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        Vec::new()
    }

    /// Returns the device's counters.
    fn counters(&self) -> Counters;
}
