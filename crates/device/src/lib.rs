//! Devices: what moves frames to and from a wire.
//!
//! A driver implements [`Device`]: four verbs, what it can do, a descriptor to sleep on, and a
//! reset. Everything around it (engine, wrappers, conformance suite) knows only this trait.
//!
//! | verb | direction | what moves |
//! |---|---|---|
//! | [`rx_provide`](Device::rx_provide) | toward the device | empty pool frames |
//! | [`rx_return`](Device::rx_return) | toward the applications | filled pool frames |
//! | [`tx_provide`](Device::tx_provide) | toward the device | packets to send |
//! | [`tx_return`](Device::tx_return) | toward the applications | packets done with |

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

/// The most parts a packet may consist of: a 64 KiB segment in frames of 2 KiB, and room for a
/// header in a frame of its own.
pub const MAX_PARTS: usize = 48;

/// Bytes in front of a pool frame's data that belong to the driver: a place for the virtio-net or
/// another device's header.
pub const POOL_HEADROOM_BYTES: usize = 128;

/// Bytes of an Ethernet header: two addresses and the type (IEEE 802.3, 3.1.1).
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// Bytes of an 802.1Q tag; a frame has at most two that the drivers leave room for.
pub const VLAN_TAG_BYTES: usize = 4;

/// The largest IP packet of a large (not yet segmented) frame, in bytes: what the 16-bit length of
/// an IPv4 header can say.
pub const LARGE_PACKET_BYTES: usize = 65535;

/// Who and what a device is.
#[derive(Clone, Debug)]
pub struct Info {
    /// The interface's name, as `ip link` shows it, or a made-up one.
    pub name: String,
    /// The device's own address: on a TAP the kernel's side of it.
    pub mac: [u8; 6],
    /// The largest IP packet, in bytes, Ethernet header not counted.
    pub mtu: usize,
    /// What it can do.
    pub can: Capabilities,
    /// The size each pool frame needs to hold what the device may receive at once, headroom
    /// included, in bytes.
    pub rx_frame_bytes: usize,
    /// How many packets wait at most until they are taken by `rx_return`, before more are lost; 0:
    /// not known. A clock must tick before half of them have come.
    pub rx_queue_packets: usize,
}

/// What a device can do; the engine does the rest in software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Sends straight out of any data space. Otherwise out of its own pool alone: the space that
    /// its receive frames are provided from.
    pub tx_in_place: bool,
    /// Takes packets with [`Checksum::Unfinished`].
    pub tx_checksum: bool,
    /// Takes packets with [`Segmentation`].
    pub tx_segmentation: bool,
    /// Hands up packets that are large or unfinished, with metadata.
    pub rx_offload: bool,
    /// Keeps packets after `tx_provide` and gives their tokens back later. Otherwise each packet
    /// is done with when `tx_provide` returns, and still comes back through `tx_return`.
    pub tx_asynchronous: bool,
}

/// A part of a packet to be sent: bytes in a data space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// In which memory.
    pub space: SpaceId,
    /// From where, in bytes.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
}

/// A packet to be sent: parts that make one frame on the wire, or one to be segmented.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// 1 to [`MAX_PARTS`] parts.
    pub parts: &'a [Part],
    /// What is still to be done to it. Within the device's capabilities.
    pub meta: Meta,
    /// Comes back through `tx_return` when the device is done with the parts.
    pub token: u64,
}

/// A filled pool frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// In which memory: the space that the frame was provided from.
    pub space: SpaceId,
    /// The frame, as it was provided.
    pub frame: u32,
    /// Where its data starts, in bytes from the space's start.
    pub offset: u32,
    /// How many bytes were received.
    pub len: u32,
    /// What is still to be done to it.
    pub meta: Meta,
}

/// Whether the engine may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Nothing is there: [`Device::sleep_fd`] becomes readable when something is.
    Sleep,
    /// Something came while arming: look again.
    Work,
}

/// What went wrong with a device as a whole. Single bad packets are counted, not returned.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The interface is gone: deleted, or its namespace with it.
    #[error("device {name} is gone: {cause}")]
    Gone {
        /// Which.
        name: String,
        /// What the kernel said.
        cause: std::io::Error,
    },
    /// The kernel refused something that a reset may mend.
    #[error("device {name}: {what}: {cause}")]
    Failed {
        /// Which.
        name: String,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        cause: std::io::Error,
    },
    /// It kept what it was given to send, and could not be reset.
    #[error("device {name} stalled, and its reset failed: {cause}")]
    Stalled {
        /// Which.
        name: String,
        /// What the reset failed with.
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
    /// Packets received and dropped by the driver: too long, mangled metadata.
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
    /// Who and what it is. Does not change while the device is open.
    fn info(&self) -> &Info;

    /// Called once, before everything else: a driver that has memory of its own adds it here, one
    /// that must register memory keeps what it needs.
    ///
    /// # Errors
    /// When the memory cannot be had or registered.
    fn start(&mut self, spaces: &mut Spaces) -> Result<(), DeviceError>;

    /// Gives empty frames to the device: offsets in `space` at which a frame of
    /// [`Info::rx_frame_bytes`] starts. Takes as many as it has room for, from the front, and none
    /// from the first on that is not writable there; how many is the answer.
    fn rx_provide(&mut self, spaces: &Spaces, space: SpaceId, frames: &[u32]) -> usize;

    /// Appends at most `budget` filled frames to `out`, oldest first; how many is the answer. A
    /// driver that fetches packets out of the sender's memory late does it here, too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn rx_return(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError>;

    /// Sends packets, in order. Takes as many as it has room for, from the front; how many is the
    /// answer. The parts of a packet taken stay untouched until its token came back.
    ///
    /// A packet that cannot be sent (a part outside of its space, too long, metadata that does not
    /// fit it, refused by the kernel) is taken too: it is dropped and counted, and its token comes
    /// back. Frames shorter than the wire's shortest are padded with zeros.
    ///
    /// # Errors
    /// When the device as a whole fails and nothing was taken by this call.
    fn tx_provide(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError>;

    /// Appends at most `budget` tokens of packets that are done with to `out`, in any order.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn tx_return(&mut self, out: &mut Vec<u64>, budget: usize) -> Result<usize, DeviceError>;

    /// What becomes readable when there is something to do; `None` for a device that must be
    /// polled.
    fn sleep_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks to be woken, then looks once more: what came before the asking is told at once, what
    /// comes after it makes [`Device::sleep_fd`] readable.
    ///
    /// `tx_waiting`: packets that the device had no room for are waiting too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError>;

    /// Brings a stalled device back to life. The interface, its addresses and the kernel's
    /// connections stay. Every frame provided and every token not yet returned comes back: frames
    /// through `frames`, tokens through the next `tx_return`, in the order in which their packets
    /// were taken.
    ///
    /// The engine sends again what comes back by a reset. So the token of a packet that the driver
    /// knows to be sent or dropped comes back by itself, before; what a reset ends is counted as
    /// neither; and nothing of it is on its way to the wire any more.
    ///
    /// # Errors
    /// When it cannot be brought back.
    fn reset(&mut self, frames: &mut Vec<u32>) -> Result<(), DeviceError>;

    /// What must outlive this process for the interface, its addresses and its routes to live on:
    /// descriptors under the names that a successor finds them by. None for a device that dies
    /// with its process.
    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        Vec::new()
    }

    /// What it counted.
    fn counters(&self) -> Counters;
}
