//! The configuration of a pair.

use std::io;

use towpath_device::{LARGE_PACKET_BYTES, MAX_PARTS, longest_frame};

use super::reception::Reception;
use super::timing::Timing;

/// The configuration of a pair of devices.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of both ends, to which `-a` and `-b` are appended.
    pub name: String,
    /// The MAC address of the first end; `None` for a fixed one, as the second end has.
    pub mac: Option<[u8; 6]>,
    /// The largest IP packet, in bytes; 68 to 65535.
    pub mtu: usize,
    /// The number of packets that each direction holds, and of empty buffers that each end takes; 1
    /// to 65536.
    pub ring_packets: usize,
    /// The number of descriptors of each end's transmit ring: [`MAX_PARTS`] to 65536. A packet
    /// takes one descriptor per part, until `tx_complete` returns its completion.
    pub tx_descriptors: usize,
    /// The number of queues of each end, 1 to 64. Each queue is connected with the queue of the
    /// same number at the other end.
    pub queues: usize,
    /// [`Limits::rx_ring`](towpath_device::Limits::rx_ring): buffers that the receive ring asks for.
    pub rx_ring: usize,
    /// [`Limits::rx_alignment`](towpath_device::Limits::rx_alignment): a power of two, at most 4096.
    pub rx_alignment: usize,
    /// [`Limits::address_bits`](towpath_device::Limits::address_bits).
    pub address_bits: u32,
    /// [`Capabilities::tx_in_place`](towpath_device::Capabilities::tx_in_place). Without it, an end sends
    /// only from the space of its receive buffers.
    pub tx_in_place: bool,
    /// [`Capabilities::tx_asynchronous`](towpath_device::Capabilities::tx_asynchronous): as hardware does,
    /// the device fetches packets from the sender's memory in a later call than the one that took
    /// them. So tests notice memory that is reused too early.
    pub tx_asynchronous: bool,
    /// [`Capabilities::tx_tag`](towpath_device::Capabilities::tx_tag): inserts the VLAN tags that the engine
    /// leaves to the device.
    pub tx_tags: bool,
    /// `true` to pass large packets and partial checksums unchanged, with their metadata.
    pub offloads: bool,
    /// Bytes of memory that the first end can register; `None` for a device that reaches all
    /// memory, as the second end does. Only with one queue.
    pub dma_bytes: Option<usize>,
    /// What each device does to a received packet.
    pub reception: Reception,
    /// How late each device reports, and what a kick costs.
    pub timing: Timing,
    /// `true` for a descriptor to sleep on. Without it, the engine must poll the ends.
    pub sleeps: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "loopback".to_owned(),
            mac: None,
            mtu: 1500,
            ring_packets: 256,
            tx_descriptors: 1024,
            queues: 1,
            rx_ring: 0,
            rx_alignment: 64,
            address_bits: 64,
            tx_in_place: true,
            tx_asynchronous: false,
            tx_tags: false,
            offloads: true,
            dma_bytes: None,
            reception: Reception::default(),
            timing: Timing::default(),
            sleeps: true,
        }
    }
}

impl Config {
    /// Returns `EINVAL` for a configuration that is out of range.
    pub(super) fn check(&self) -> io::Result<()> {
        let in_range = (68..=65535).contains(&self.mtu)
            && (1..=65536).contains(&self.ring_packets)
            && (MAX_PARTS..=65536).contains(&self.tx_descriptors)
            && (1..=64).contains(&self.queues)
            && (self.queues == 1 || self.dma_bytes.is_none())
            && self.rx_ring <= 65536
            && self.rx_alignment.is_power_of_two()
            && self.rx_alignment <= 4096;
        if !in_range {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.reception.check()?;
        self.timing.check()
    }

    /// Returns the longest frame, in bytes.
    pub(super) fn longest(&self) -> usize {
        let payload = if self.offloads { LARGE_PACKET_BYTES.max(self.mtu) } else { self.mtu };
        longest_frame(payload)
    }
}
