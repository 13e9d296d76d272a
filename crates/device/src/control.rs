//! The control part of a device: its properties, and its queues to open.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::FlowRule;
use crate::dma::Dma;
use crate::error::DeviceError;
use crate::filter::{Filter, FilterError};
use crate::keeper::Keeper;
use crate::own_queue::{OwnQueueError, OwnQueueLimits, OwnQueues};
use crate::queue::DeviceQueue;
use crate::space::{SpaceId, Spaces};
use crate::tx_headroom::TxHeadroom;

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
    /// The number of queues to open, each for a thread of its own. A queue of the device may serve
    /// several queues of the hardware.
    pub queues: usize,
    /// What the device requires of the memory that it uses.
    pub limits: Limits,
    /// The maximum number of packets that wait for `rx_poll` before the device loses more; 0: not
    /// known. A clock must tick before half of them have come.
    pub rx_queue_packets: usize,
}

impl Info {
    /// Returns a function that makes a cause the error of an operation.
    pub fn failed<E: Into<io::Error>>(&self, what: &'static str) -> impl FnOnce(E) -> DeviceError {
        move |cause| DeviceError::Failed { name: self.name.clone(), what, cause: cause.into() }
    }
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
    /// `true` if the device also takes those of such packets whose TCP header has CWR, which the
    /// first segment alone keeps.
    pub tx_segmentation_ecn: bool,
    /// `true` if the device takes packets with [`Segmentation`](crate::Segmentation) from any data
    /// space, because it copies them before `tx_submit` returns; whatever the fields above say of
    /// other packets.
    pub tx_large_copied: bool,
    /// `true` if the device inserts the tag of [`Packet::tag`](crate::Packet::tag) behind the MAC
    /// addresses, in each segment of a packet that it segments (ethtool's `tx-vlan-offload`).
    pub tx_tag: bool,
    /// `true` if packets to the device's own MAC address go to the kernel's sockets of this host.
    pub tx_to_host: bool,
    /// `true` if the device delivers packets that are large or have a partial checksum, with
    /// metadata.
    pub rx_offload: bool,
    /// `true` if the device keeps packets after `tx_submit` and returns their tokens later.
    /// Otherwise it completes each packet before `tx_submit` returns, and `tx_complete` still
    /// returns the token.
    pub tx_asynchronous: bool,
}

/// News of a device. A device whose link is down when it is opened reports that first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The link came up or went down.
    Link {
        /// `true` if the device has a carrier.
        up: bool,
    },
    /// The largest IP packet changed, in bytes.
    Mtu(usize),
    /// The device's own address changed.
    Address([u8; 6]),
    /// The interface has another name.
    Name(String),
    /// The interface has another number of hardware queues that receive.
    HardwareQueues(HardwareQueues),
    /// The device is gone, and will not come back.
    Removed,
}

/// The hardware queues of an interface. Each of them needs a socket of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareQueues {
    /// The number of queues that receive.
    pub present: u32,
    /// The number of queues that the device serves: the first ones. The device drops and counts the packets
    /// that arrive on other queues.
    pub served: u32,
    /// `true` if a device that is opened anew can serve all of them with the same lanes and the same
    /// limit of locked memory.
    pub can_serve_all: bool,
}

/// What a device requires of the memory that it uses, and the sizes of its rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size of each pool buffer, headroom included, in bytes.
    pub rx_buffer_bytes: usize,
    /// The alignment of pool buffers in their data space, in bytes: a power of two, at most a page.
    pub rx_alignment: usize,
    /// Bytes at the beginning of each pool buffer that belong to the driver. The data of a received
    /// packet starts behind them.
    pub rx_headroom_bytes: usize,
    /// The maximum number of buffers of a received packet, 1 to [`MAX_PARTS`](crate::MAX_PARTS).
    pub rx_packet_buffers: usize,
    /// Buffers that the receive ring needs so that packets find one while the engine is away; 0 for
    /// a device whose packets wait elsewhere.
    pub rx_ring: usize,
    /// Descriptors of the transmit ring; 0: not known. A packet takes one or several.
    pub tx_ring: usize,
    /// The maximum number of parts of a packet to send, 1 to [`MAX_PARTS`](crate::MAX_PARTS). The
    /// device drops and counts a packet with more.
    pub tx_packet_parts: usize,
    /// Bytes in front of each packet to send that belong to the device. With such headroom, a
    /// packet is one part, which does not cross a multiple of `rx_alignment` together with its
    /// headroom.
    pub tx_headroom: TxHeadroom,
    /// The device reaches addresses of this many bits.
    pub address_bits: u32,
}

impl Limits {
    /// Returns the limits of a device that reaches all memory, has no ring of its own, and receives
    /// each packet in one buffer.
    #[must_use]
    pub fn new(rx_buffer_bytes: usize) -> Limits {
        Limits {
            rx_buffer_bytes,
            rx_alignment: 1,
            rx_headroom_bytes: 0,
            rx_packet_buffers: 1,
            rx_ring: 0,
            tx_ring: 0,
            tx_packet_parts: crate::MAX_PARTS,
            tx_headroom: TxHeadroom::None,
            address_bits: 64,
        }
    }

    /// Returns the distance of pool buffers that lie behind each other, in bytes.
    #[must_use]
    pub fn rx_stride(&self) -> usize {
        self.rx_buffer_bytes.next_multiple_of(self.rx_alignment)
    }

    /// Returns `true` if the device can use a pool buffer at this offset of a data space.
    #[inline]
    #[must_use]
    pub fn is_aligned(&self, offset: u32) -> bool {
        // A division for each buffer would cost more than this.
        offset as usize & (self.rx_alignment - 1) == 0
    }

    /// Returns the first of some pool buffers, up to the first one that is not writable.
    #[inline]
    #[must_use]
    pub fn writable<'a>(&self, spaces: &Spaces, space: SpaceId, buffers: &'a [u32]) -> &'a [u32] {
        let len = self.rx_buffer_bytes as u32;
        let is_writable = |buffer: &&u32| spaces.is_writable(space, **buffer, len);
        &buffers[..buffers.iter().take_while(is_writable).count()]
    }

    /// Returns `true` if the device reaches a memory of this many bytes.
    #[must_use]
    pub fn reaches(&self, bytes: usize) -> bool {
        self.address_bits >= usize::BITS || bytes <= 1 << self.address_bits
    }
}

/// The sizes of the memory of a queue's packets, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMemory {
    /// All of it.
    pub bytes: usize,
    /// The receive buffers, which are at its beginning. The device writes nothing behind them.
    pub pool_bytes: usize,
}

/// Takes over an interface from an earlier server. This may take as long as an RCU grace period. Fails
/// when the interface is gone, or the kernel refuses.
pub type TakeOver = Box<dyn FnOnce() -> Result<(), DeviceError> + Send>;

/// The control part of a device. One thread calls it, which may be another one than those that call
/// the queues.
pub trait Device: Send {
    /// Returns the device's identity and properties. They do not change while the device is open.
    fn info(&self) -> &Info;

    /// Opens the queue `index`, which is below [`Info::queues`], and starts it. A driver
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

    /// Returns the handle that registers memory; `None` for a device that needs no registration.
    /// With a handle, the device reaches only registered data spaces; a queue drops packets of
    /// others, and takes no buffers there.
    fn dma(&self) -> Option<Arc<dyn Dma>> {
        None
    }

    /// Returns the handle that registers the memory of one queue, which no other queue reaches; by
    /// default that of [`Device::dma`].
    fn dma_of(&self, _queue: usize) -> Option<Arc<dyn Dma>> {
        self.dma()
    }

    /// Returns what the device can give a session to itself.
    ///
    /// # Errors
    /// [`OwnQueueError`]; by default that the driver has no such queues.
    fn own_queue_limits(&self) -> Result<OwnQueueLimits, OwnQueueError> {
        Err(OwnQueueError::Unsupported { name: self.info().name.clone() })
    }

    /// Returns what opens hardware queues for sessions, in a thread that may wait; `None` if the
    /// device gives none.
    fn own_queues(&self) -> Option<Box<dyn OwnQueues>> {
        None
    }

    /// Has a session's own queue receive packets of all flows, or none (`None`), on a device with
    /// [`OwnQueueLimits::takes_all`]. After `None`, the session's memory gets no packet for which a filter is
    /// added later. Does nothing by default.
    fn direct(&mut self, _hardware: Option<u32>) {}

    /// Gives a flow, of which the device has a filter, to the owner of a hardware queue, until that
    /// filter is removed.
    ///
    /// # Errors
    /// When the device does not filter by flows, or the kernel refuses.
    fn own_flow(&mut self, _: &FlowRule, _hardware: u32) -> Result<(), FilterError> {
        Err(FilterError::Unsupported)
    }

    /// Adds a filter: the device receives matching packets that arrive after this call returns. A
    /// device filters by two kinds, each on its own:
    ///
    /// - by [`Filter::Address`] and [`Filter::AllGroups`], if it takes these;
    /// - by [`Filter::Flow`], if it takes these. Packets to a group pass.
    ///
    /// The device receives a packet that passes both. A device that filters takes
    /// [`Filter::Everything`], with which it receives every packet. Without filters, such a device
    /// receives nothing; one that filters only by flows still receives packets to groups. A
    /// [reset](DeviceQueue::reset) keeps the filters. The caller adds no filter that the device
    /// has.
    ///
    /// # Errors
    /// - [`FilterError::Unsupported`], as by default: the device does not filter by this kind, and
    ///   receives packets with any value of it.
    /// - [`FilterError::Full`]: the device has no room for the filter, and receives matching
    ///   packets if the caller adds [`Filter::Everything`].
    /// - [`FilterError::NoRoom`]: the device has no room for the filter, and nothing replaces it.
    /// - [`FilterError::Failed`]: the device did not add the filter, and nothing replaces it.
    fn add_filter(&mut self, _: &Filter) -> Result<(), FilterError> {
        Err(FilterError::Unsupported)
    }

    /// Removes a filter that the device took. The device may still deliver matching packets that
    /// arrived before this call.
    fn remove_filter(&mut self, _: &Filter) {}

    /// Returns `true` if the device would have room for the filters `wanted` after the removal of the filters
    /// `removed`. The device has all filters of `removed`, and none of `wanted`. Changes nothing. The caller asks after
    /// [`FilterError::Full`] or [`FilterError::NoRoom`], so that no removal is in vain. By default `true`: the caller
    /// then removes filters and tries.
    fn would_have_room(&self, _wanted: &[Filter], _removed: &[Filter]) -> bool {
        true
    }

    /// Returns the descriptor that is readable while [`Device::take_event`] has an event; `None`
    /// for a device that reports none.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the next event. [`Device::info`] stays as it was when the device was opened.
    fn take_event(&mut self) -> Option<Event> {
        None
    }

    /// Uses a keeper from now on: before the first queue is opened. A driver without sockets that
    /// need a privilege after the start ignores it.
    fn set_keeper(&mut self, _: Arc<dyn Keeper>) {}

    /// Returns the file of the memory of an earlier server's packets, if the queue `queue`, which opens next,
    /// goes on with that memory: then the device may have receive buffers
    /// from the start ([`DeviceQueue::holds`]). `None`, as by default: the queue starts with a memory
    /// of its own, and no buffers. The caller gives the sizes of the memory that it wants.
    ///
    /// # Errors
    /// When the process has no room for a descriptor, or the kernel refuses to map the memory.
    fn earlier_memory(&mut self, _queue: usize, _: PacketMemory) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Returns `true` if the memory of the queue's packets is kept for the next server, although the
    /// device reaches all memory: packets may be in it that no session has yet. `false` by default.
    fn keeps_memory(&self) -> bool {
        false
    }

    /// Returns the name under which a server keeps the memory of a queue's packets for the next one, before `-` and the
    /// queue's number. A driver changes the name if servers of earlier versions must not read the memory.
    fn memory_name(&self) -> &'static str {
        "device-memory"
    }

    /// Returns the function that takes over from the device of an earlier server. The server calls
    /// this method once, when it has added all filters of resumed sessions. Until the returned
    /// function has run, in any thread, what the earlier server attached to the interface stays in
    /// force; the queues receive and send all the same. `None`, as by default: there is nothing to
    /// take over.
    fn take_over(&mut self) -> Option<TakeOver> {
        None
    }

    /// Returns the hardware's counts since the device was opened, by their names in `ethtool -S`, or the counts of
    /// the driver's program in the kernel; nothing by default. This may read a few dozen registers.
    fn statistics(&mut self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Leaves the device to the next server: from now on, dropping the device and its queues stops nothing with
    /// which that server goes on. A device whose objects stay as they are ignores it, as by default.
    fn leave(&mut self) {}

    /// Returns the descriptors that must outlive this process so that the interface with its
    /// addresses and routes, or the attached programs, survive, with the names by which a successor
    /// finds them. None for a device that ends with its process.
    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        Vec::new()
    }
}
