//! Devices: the drivers that move frames to and from a wire.
//!
//! A driver implements [`Device`]: four verbs, its capabilities, a descriptor to sleep on, and a
//! reset. Everything around it (engine, wrappers, conformance suite) knows only this trait.
//!
//! | verb | direction | what moves |
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

/// The most parts a packet may consist of: a 64 KiB segment in buffers of 2 KiB, and room for a
/// header in a buffer of its own.
pub const MAX_PARTS: usize = 48;

/// Bytes in front of a pool buffer's data that belong to the driver: a place for the virtio-net or
/// another device's header.
pub const POOL_HEADROOM_BYTES: usize = 128;

/// Bytes of an Ethernet header: two addresses and the type (IEEE 802.3, 3.1.1).
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// Bytes of an 802.1Q tag; the drivers leave room for at most two in a frame.
pub const VLAN_TAG_BYTES: usize = 4;

/// The largest IP packet of a large (not yet segmented) frame, in bytes: the limit of the 16-bit
/// length of an IPv4 header.
pub const LARGE_PACKET_BYTES: usize = 65535;

/// The identity and the properties of a device.
#[derive(Clone, Debug)]
pub struct Info {
    /// The interface's name, as `ip link` shows it, or a made-up one.
    pub name: String,
    /// The device's own address: on a TAP the kernel's side of it.
    pub mac: [u8; 6],
    /// The largest IP packet, in bytes, Ethernet header not counted.
    pub mtu: usize,
    /// Its capabilities.
    pub can: Capabilities,
    /// The size each pool buffer needs to hold the largest packet that the device may receive,
    /// headroom included, in bytes.
    pub rx_buffer_bytes: usize,
    /// The most packets that wait until `rx_poll` takes them, before the device loses more; 0:
    /// not known. A clock must tick before half of them have come.
    pub rx_queue_packets: usize,
}

/// The capabilities of a device; the engine does the rest in software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The device sends straight out of any data space. Otherwise it sends from its own pool alone:
    /// the space that its receive buffers are provided from.
    pub tx_in_place: bool,
    /// The device takes packets with [`Checksum::Partial`].
    pub tx_checksum: bool,
    /// The device takes packets with [`Segmentation`].
    pub tx_segmentation: bool,
    /// The device hands up packets that are large or have a partial checksum, with metadata.
    pub rx_offload: bool,
    /// The device keeps packets after `tx_submit` and returns their tokens later. Otherwise it
    /// completes each packet before `tx_submit` returns, and the packet still comes back through
    /// `tx_complete`.
    pub tx_asynchronous: bool,
}

/// A part of a packet to be sent: bytes in a data space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The memory of the bytes.
    pub space: SpaceId,
    /// Where they start, in bytes.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
}

/// A packet to be sent: parts that make one frame on the wire, or one to be segmented.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// 1 to [`MAX_PARTS`] parts.
    pub parts: &'a [Part],
    /// The offload work that is left to the device. Within the device's capabilities.
    pub meta: Meta,
    /// The token that comes back through `tx_complete` when the device has completed the packet.
    pub token: u64,
}

/// A filled pool buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The memory: the space that the buffer was provided from.
    pub space: SpaceId,
    /// The buffer, as it was provided.
    pub buffer: u32,
    /// Where its data starts, in bytes from the space's start.
    pub offset: u32,
    /// How many bytes were received.
    pub len: u32,
    /// The offload work that is left to the receiver.
    pub meta: Meta,
}

/// Whether the engine may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is no work: [`Device::sleep_fd`] becomes readable when there is some.
    Sleep,
    /// Work came while arming: look again.
    Work,
}

/// A fault of a device as a whole. Single bad packets are counted, not returned.
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
    /// The kernel refused something that a reset may mend.
    #[error("device {name}: {what}: {cause}")]
    Failed {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The device kept packets that it was given to send, and could not be reset.
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
    /// Packets received and dropped by the driver: too long, malformed metadata.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped by the driver on sending: refused by the kernel one by one.
    pub tx_dropped: u64,
    /// System calls made.
    pub system_calls: u64,
    /// Resets.
    pub resets: u64,
}

/// A device. One thread calls it, the engine's.
pub trait Device: Send {
    /// Returns the device's identity and properties. They do not change while the device is open.
    fn info(&self) -> &Info;

    /// Starts the device. The engine calls this once, before everything else: a driver that has
    /// memory of its own adds it here, one that must register memory keeps the handles that it
    /// needs.
    ///
    /// # Errors
    /// When the memory cannot be had or registered.
    fn start(&mut self, spaces: &mut Spaces) -> Result<(), DeviceError>;

    /// Gives empty buffers to the device: offsets in `space` at which a buffer of
    /// [`Info::rx_buffer_bytes`] starts. The device takes as many as it has room for, from the
    /// front, and none from the first on that is not writable there. Returns how many it took.
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize;

    /// Appends at most `budget` filled buffers to `out`, oldest first; returns how many. A driver
    /// that fetches packets from the sender's memory late does it here, too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError>;

    /// Sends packets, in order. The device takes as many as it has room for, from the front;
    /// returns how many. The engine leaves the parts of a taken packet untouched until its token
    /// came back.
    ///
    /// The device also takes a packet that it cannot send (a part outside of its space, too long,
    /// metadata that does not fit it, refused by the kernel): it drops and counts it, and the token
    /// comes back. The device pads frames shorter than the wire's shortest with zeros.
    ///
    /// # Errors
    /// When the device as a whole fails and nothing was taken by this call.
    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError>;

    /// Appends at most `budget` tokens of completed packets to `out`, in any order.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn tx_complete(&mut self, out: &mut Vec<u64>, budget: usize) -> Result<usize, DeviceError>;

    /// Returns the descriptor that becomes readable when there is work; `None` for a device that
    /// must be polled.
    fn sleep_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks for a wake-up, then looks once more: the device reports earlier work at once, and later
    /// work makes [`Device::sleep_fd`] readable.
    ///
    /// `tx_waiting`: packets that the device had no room for are waiting too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError>;

    /// Brings a stalled device back to life. The interface, its addresses and the kernel's
    /// connections stay. Every buffer provided and every token not yet returned comes back: buffers
    /// through `buffers`, tokens through the next `tx_complete`, in the order in which the device took
    /// their packets.
    ///
    /// The engine submits the packets of tokens that come back by a reset again. So the driver
    /// returns the token of a packet that it knows to be sent or dropped before, by itself. It
    /// counts a packet that the reset ends as neither, and no part of such a packet is on its way
    /// to the wire any more.
    ///
    /// # Errors
    /// When the driver cannot bring the device back.
    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError>;

    /// Returns the descriptors that must outlive this process for the interface, its addresses and
    /// its routes to live on, under the names by which a successor finds them. None for a device
    /// that dies with its process.
    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        Vec::new()
    }

    /// Returns the device's counters.
    fn counters(&self) -> Counters;
}
