//! A batch: packets of one queue pair that the engine took together.

use towpath_queue::descriptor::{Descriptor, MAX_CHAIN, OUT_OF_BAND, REQUEST};

use crate::demux::Destination;
use crate::session::Session;
use crate::source::WHOLE_BYTES;
use crate::work::Share;

/// Packets of one queue pair that the engine fetches together, so that the processor waits once for
/// their memory.
pub(crate) const BATCH: usize = 32;

/// A private copy of a packet's beginning, on cache lines of its own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Beginning(pub(crate) [u8; WHOLE_BYTES]);

/// A packet that the engine took from a queue and that is not done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) first: u32,
    pub(crate) chain: u32,
    /// The index of the packet's first descriptor in the batch.
    pub(crate) at: u32,
    /// The offset of the packet's beginning in the transmit buffer pool.
    pub(crate) offset: u32,
    pub(crate) endpoint: u32,
    pub(crate) len: u32,
    /// Bytes of the packet in [`Batch::beginnings`].
    pub(crate) held: u32,
    /// `true` if the packet is not late and, by its descriptor, in one buffer without metadata;
    /// and its beginning is in [`Batch::beginnings`], once that is fetched.
    pub(crate) single: bool,
    /// `true` if the packet's beginning is in [`Batch::beginnings`].
    pub(crate) fetched: bool,
    /// `true` if the packet may be sent and is for one endpoint of this host, in
    /// [`Batch::destinations`].
    pub(crate) local: bool,
    /// `true` if the engine looked the destination up and found no endpoint of this host.
    pub(crate) no_local_match: bool,
    /// `true` if the next packet belongs to the same message.
    pub(crate) together: bool,
    /// `true` if the packet waited too long and the engine drops it.
    pub(crate) late: bool,
    pub(crate) kind: EntryKind,
}

/// The kind of an entry of a transmit queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EntryKind {
    #[default]
    Packet,
    /// An out-of-band message.
    Message,
    /// A request to move bytes.
    Request,
}

impl EntryKind {
    /// Returns the kind of an entry whose first descriptor has these flags.
    pub(crate) fn of(flags: u16) -> EntryKind {
        match flags & (OUT_OF_BAND | REQUEST) {
            0 => EntryKind::Packet,
            REQUEST => EntryKind::Request,
            _ => EntryKind::Message,
        }
    }
}

/// Packets of one queue pair that the engine took together, with their descriptors.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) key: u32,
    pub(crate) queue_pair: u32,
    pub(crate) unit: u32,
    /// `true` if the packets are expedited and precede the others.
    pub(crate) expedited: bool,
    /// `true` if all packets are of one endpoint, whose settings apply.
    pub(crate) shaped: bool,
    pub(crate) descriptors: [Descriptor; BATCH + MAX_CHAIN],
    pub(crate) packets: [Taken; BATCH],
    /// The packets' beginnings, which the engine checks and sends: no other process can change
    /// them.
    pub(crate) beginnings: [Beginning; BATCH],
    /// The endpoints of this host for which the plain packets are.
    pub(crate) destinations: [Destination; BATCH],
    pub(crate) count: usize,
    /// Bytes of all packets.
    pub(crate) bytes: u64,
    /// Bytes of the message that continues behind the batch; 0 if there is none, or if the
    /// scheduler has kept enough of it together.
    pub(crate) message_bytes: u64,
    /// The limit up to which the scheduler keeps a message together, in bytes.
    pub(crate) max_message_bytes: u64,
    /// The limit of the packets' cost.
    pub(crate) share: Share,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            key: 0,
            queue_pair: 0,
            unit: 0,
            expedited: false,
            shaped: false,
            descriptors: [Descriptor::default(); BATCH + MAX_CHAIN],
            packets: [Taken::default(); BATCH],
            beginnings: [Beginning([0; WHOLE_BYTES]); BATCH],
            destinations: [Destination { session: 0, endpoint: 0 }; BATCH],
            count: 0,
            bytes: 0,
            message_bytes: 0,
            max_message_bytes: 0,
            share: Share::default(),
        }
    }
}

impl Batch {
    /// Returns the bytes of the first `sent` packets. Also returns how many of these bytes belong
    /// to a message that continues behind them and that the scheduler keeps together.
    pub(crate) fn sent(&self, sent: usize, mut message_bytes: u64) -> (u64, u64) {
        if sent == self.count {
            return (self.bytes, self.message_bytes);
        }
        let mut bytes = 0;
        for one in &self.packets[..sent] {
            bytes += if one.late { 0 } else { u64::from(one.len) };
            message_bytes = if one.together { message_bytes + u64::from(one.len) } else { 0 };
        }
        (bytes, if message_bytes < self.max_message_bytes { message_bytes } else { 0 })
    }

    /// Returns the descriptors of the packet `index`.
    #[inline]
    pub(crate) fn descriptors_of(&self, index: usize) -> &[Descriptor] {
        let one = &self.packets[index];
        &self.descriptors[one.at as usize..][..one.chain as usize]
    }

    /// Returns the fetched bytes of the packet `index`.
    #[inline]
    pub(crate) fn beginning(&self, index: usize) -> &[u8] {
        let held = self.packets[index].held as usize;
        self.beginnings[index].0.get(..held).unwrap_or(&[])
    }

    /// Puts the packets from `from` on back into their queue.
    pub(crate) fn put_back(&self, session: &mut Session, from: usize) {
        session.transmit.put_back(self.queue_pair, self.packets[from].first);
    }
}
