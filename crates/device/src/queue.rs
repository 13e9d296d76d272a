//! The data part of a device: one hardware queue, with a receive ring and a transmit ring.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use towpath_packet::{Meta, VlanTag};

use crate::error::DeviceError;
use crate::hardware_queue::HardwareQueue;
use crate::space::{SpaceId, Spaces};

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
    /// 1 to [`MAX_PARTS`](crate::MAX_PARTS) parts.
    pub parts: &'a [Part],
    /// The offload work that is left to the device, within its capabilities.
    pub meta: Meta,
    /// The VLAN tag, of kind [`TagProtocol::Customer`](crate::TagProtocol::Customer), that the
    /// device inserts ([`Capabilities::tx_tag`](crate::Capabilities::tx_tag)). The packet's bytes
    /// and `meta` are those without it, and it does not count towards the limits of a packet's
    /// length. The engine gives one only to a device with `tx_tag`. `None` to insert none.
    pub tag: Option<VlanTag>,
    /// The token that `tx_complete` returns when the device has completed the packet.
    pub token: u64,
}

/// A filled pool buffer: a received packet, or a part of one. Metadata, tag and hash stand in the
/// packet's first buffer.
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
    /// The state of the packet's checksum, and the offload work that is left to the receiver. Its
    /// offsets count the packet's bytes without a removed tag.
    pub meta: Meta,
    /// `true` if the packet continues in the next buffer.
    pub continues: bool,
    /// The VLAN tag that the device removed from the packet's bytes. `None` if the device removed
    /// none.
    pub tag: Option<VlanTag>,
    /// The hash that the device computed over the packet's flow. `None` if the device computed
    /// none; the hash serves receive-side scaling.
    pub hash: Option<u32>,
}

impl Received {
    /// Returns a buffer that holds a whole packet, of which the device reports nothing but `meta`.
    #[inline]
    #[must_use]
    pub fn whole(space: SpaceId, buffer: u32, offset: u32, len: u32, meta: Meta) -> Received {
        Received { space, buffer, offset, len, meta, continues: false, tag: None, hash: None }
    }

    /// `true` if the buffer holds all of the packet's bytes.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.continues && self.tag.is_none()
    }

    /// Returns the buffers of each packet of a batch. Only a faulty driver leaves the last packet
    /// without its end.
    pub fn packets(batch: &[Received]) -> impl Iterator<Item = &[Received]> {
        batch.split_inclusive(|one| !one.continues)
    }
}

/// Whether the engine may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is no work: [`DeviceQueue::sleep_fd`] becomes readable when there is some.
    Sleep,
    /// There is work: poll again.
    Work,
}

/// What became of a packet that the device took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device sent it.
    Sent,
    /// The device cannot send it, and counted it.
    Dropped,
    /// A reset ended it. The device has neither sent nor counted it, and the engine may submit it
    /// again.
    Returned,
}

/// A packet with which the device is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The packet's token.
    pub token: u64,
    /// What became of the packet.
    pub outcome: Outcome,
}

impl Completion {
    /// Returns the completion of a sent packet.
    #[must_use]
    pub fn sent(token: u64) -> Completion {
        Completion { token, outcome: Outcome::Sent }
    }

    /// Returns the completion of a dropped packet.
    #[must_use]
    pub fn dropped(token: u64) -> Completion {
        Completion { token, outcome: Outcome::Dropped }
    }

    /// Returns the completion of a packet that a reset ended.
    #[must_use]
    pub fn returned(token: u64) -> Completion {
        Completion { token, outcome: Outcome::Returned }
    }

    /// Moves the first completions of `done`, at most `budget`, to `out`. Returns their number.
    #[inline]
    pub fn take(
        done: &mut VecDeque<Completion>,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> usize {
        let count = done.len().min(budget);
        out.extend(done.drain(..count));
        count
    }
}

/// The ring of a queue that a kick is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// The receive ring has new empty buffers.
    Rx,
    /// The transmit ring has new packets.
    Tx,
}

/// Counters of a queue, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Received packets that the driver dropped: too long, in too many buffers, malformed metadata.
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

impl Counters {
    /// Counts a received packet of `len` bytes.
    #[inline]
    pub fn received(&mut self, len: usize) {
        self.rx_packets += 1;
        self.rx_bytes += len as u64;
    }

    /// Counts a sent packet of `len` bytes. Returns its outcome.
    #[inline]
    pub fn sent(&mut self, len: usize) -> Outcome {
        self.tx_packets += 1;
        self.tx_bytes += len as u64;
        Outcome::Sent
    }

    /// Counts a packet that is not sent. Returns its outcome.
    pub fn dropped(&mut self) -> Outcome {
        self.tx_dropped += 1;
        Outcome::Dropped
    }
}

/// One queue of a device, for one engine thread. It may serve several hardware queues. One thread
/// at a time calls it. Dropping a queue stops it: from then on, the device accesses no memory for
/// it.
pub trait DeviceQueue: Send {
    /// Stops serving a hardware queue, which a session is to have to itself, and returns it for the
    /// control part to close. The kernel may write to its receive buffers until then, so they stay
    /// with it. Returns `None`, as by default, if this queue does not serve it or cannot do
    /// without.
    fn cede(&mut self, _hardware: u32) -> Option<HardwareQueue> {
        None
    }

    /// Serves a hardware queue again that was ceded, and closed since. Appends the receive buffers
    /// that it had to `buffers`.
    fn restore(&mut self, _queue: HardwareQueue, _buffers: &mut Vec<u32>) {}

    /// Provides the device with empty buffers: offsets in `space` at which a buffer of
    /// [`Limits::rx_buffer_bytes`](crate::Limits::rx_buffer_bytes) starts. The device takes as many
    /// as it has room for, from the front, and stops at the first one that is not writable or not
    /// aligned. Returns how many it took. The device may fill them at once, and must after
    /// [`Kick::Rx`].
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize;

    /// Returns `true` if the device has this buffer from an earlier server, before the first
    /// [`DeviceQueue::rx_fill`]. By default `false`: the device starts
    /// without buffers.
    fn holds(&self, _buffer: u32) -> bool {
        false
    }

    /// Appends the filled buffers of at most `budget` packets to `out`, oldest packet first, each
    /// packet with all of its buffers in order. Returns the number of packets. A packet takes at
    /// most [`Limits::rx_packet_buffers`](crate::Limits::rx_packet_buffers) buffers; the device
    /// drops and counts a longer one. A driver that fetches packets from the sender's memory late
    /// does so here too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError>;

    /// Places packets in the transmit ring, in order. The device takes as many as it has room for,
    /// from the front. A packet may need several descriptors; the device takes it with all of them
    /// or not at all. Returns how many it took. The device may send them at once, and must after
    /// [`Kick::Tx`]. The engine does not change the parts of a taken packet until the device
    /// returns its token.
    ///
    /// The device also takes a packet that it cannot send (a part outside of its space, too long,
    /// metadata that does not fit, refused by the kernel). The device drops and counts such a
    /// packet, and completes it with [`Outcome::Dropped`]. The device pads frames that are too
    /// short for the wire with zeros.
    ///
    /// # Errors
    /// When the device as a whole fails and this call took no packet.
    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError>;

    /// Tells the device that a ring has new entries. The device then works on all entries that it
    /// took before this call, without further calls. So one kick serves any number of entries, and
    /// a kick without new ones does nothing. `spaces` is for drivers that copy.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn kick(&mut self, spaces: &mut Spaces, ring: Kick) -> Result<(), DeviceError>;

    /// Appends at most `budget` completions to `out`, in any order, except as
    /// [`DeviceQueue::reset`] says. Returns their number.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError>;

    /// Returns the descriptor that becomes readable when there is work; `None` for a queue that
    /// must be polled.
    fn sleep_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Requests a wake-up, then checks once more. The device reports earlier work at once, and
    /// later work makes [`DeviceQueue::sleep_fd`] readable.
    ///
    /// `tx_waiting`: packets for which the device had no room wait too.
    ///
    /// # Errors
    /// When the device as a whole fails.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError>;

    /// Resets a stalled queue. The interface, its addresses and the kernel's connections stay. The
    /// device returns every provided buffer through `buffers`. It completes every remaining packet
    /// through the next `tx_complete`: those that it knows to be sent or dropped as such, and the
    /// others with [`Outcome::Returned`], in the order in which it took them. No part of a returned
    /// packet is still in flight.
    ///
    /// # Errors
    /// When the device does not work after the reset.
    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError>;

    /// Returns the queue's counters.
    fn counters(&self) -> Counters;
}
