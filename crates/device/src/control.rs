//! The control part of a device: its properties, and its queues to open.

use std::os::fd::BorrowedFd;

use crate::error::DeviceError;
use crate::queue::DeviceQueue;
use crate::space::Spaces;

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
    /// The number of hardware queues.
    pub queues: usize,
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
    /// `true` if the device takes packets with [`Checksum::Partial`](crate::Checksum::Partial).
    pub tx_checksum: bool,
    /// `true` if the device takes packets with [`Segmentation`](crate::Segmentation).
    pub tx_segmentation: bool,
    /// `true` if the device delivers packets that are large or have a partial checksum, with
    /// metadata.
    pub rx_offload: bool,
    /// `true` if the device keeps packets after `tx_submit` and returns their tokens later.
    /// Otherwise it completes each packet before `tx_submit` returns, and `tx_complete` still
    /// returns the token.
    pub tx_asynchronous: bool,
}

/// The control part of a device. One thread calls it, which may be another one than those that call
/// the queues.
pub trait Device: Send {
    /// Returns the device's identity and properties. They do not change while the device is open.
    fn info(&self) -> &Info;

    /// Opens the hardware queue `index`, which is below [`Info::queues`], and starts it. A driver
    /// with memory of its own adds it to `spaces`, and a driver that must register memory keeps the
    /// handles that it needs.
    ///
    /// # Errors
    /// When there is no such queue, when it is open, or when the driver cannot allocate or register
    /// memory.
    fn open_queue(
        &mut self,
        index: usize,
        spaces: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError>;

    /// Returns the descriptors that must outlive this process so that the interface, its addresses
    /// and its routes survive, with the names by which a successor finds them. None for a device
    /// that ends with its process.
    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        Vec::new()
    }
}
