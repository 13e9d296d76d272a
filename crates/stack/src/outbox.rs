//! Frames that wait to be sent, and their buffers.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::{Meta, ethernet, ip};

/// The maximum number of free buffers to keep.
const SPARE_BUFFERS: usize = 256;
/// The number of buffers that are always kept.
const FEW: usize = 16;
/// The maximum capacity of a buffer to keep; larger ones are freed, and those of less than half as much.
const SPARE_BYTES: usize = 2048 + 128;
/// The accounted overhead of a frame, in bytes: its entry in a queue, and what the allocator adds. Linux counts such
/// an overhead by `truesize`.
pub(crate) const FRAME_OVERHEAD: usize = 128;

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// A station whose address is known.
    Station([u8; 6]),
    /// A neighbour whose station is still to be found.
    Neighbour(IpAddr),
    /// This host.
    Own,
}

/// A frame, complete but for its Ethernet addresses.
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: Meta,
    pub(crate) to: NextHop,
}

impl Frame {
    /// Returns the memory that the frame takes while it waits, in bytes. A frame that waited for a neighbour is in an
    /// allocation of its exact length, and stays there in the outbox. So the frame counts by its length.
    pub(crate) fn cost(&self) -> usize {
        FRAME_OVERHEAD + self.bytes.len().max(self.bytes.capacity().min(SPARE_BYTES))
    }

    /// Returns whether the frame is of IPv4, and its local UDP port; `None` for another protocol. The host sends no
    /// extension headers before a whole datagram, and no options.
    pub(crate) fn udp_port(&self) -> Option<(bool, u16)> {
        let packet = self.bytes.get(ethernet::HEADER_BYTES..)?;
        let (is_ipv4, protocol, header_bytes) = match packet.first()? >> 4 {
            4 => (true, 9, 20),
            6 => (false, 6, 40),
            _ => return None,
        };
        let port = packet.get(header_bytes..)?.first_chunk()?;
        (packet[protocol] == ip::UDP).then(|| (is_ipv4, u16::from_be_bytes(*port)))
    }
}

/// A bounded queue of frames, and a pool of buffers.
pub(crate) struct Outbox {
    queue: VecDeque<Frame>,
    bytes: usize,
    limit: usize,
    spare: Vec<Vec<u8>>,
    /// The longest queue since it was empty, and a decaying maximum of such lengths: the number of
    /// buffers worth keeping.
    longest: usize,
    keep: usize,
}

impl Outbox {
    pub(crate) fn new(limit: usize) -> Self {
        Outbox { queue: VecDeque::new(), bytes: 0, limit, spare: Vec::new(), longest: 0, keep: 0 }
    }

    /// Returns an empty buffer.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(SPARE_BYTES))
    }

    /// Recycles a buffer.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        let is_usual = (SPARE_BYTES / 2..=SPARE_BYTES).contains(&buffer.capacity());
        if self.spare.len() < SPARE_BUFFERS && is_usual {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Returns the cost of a new frame of `len` bytes, in a buffer of the pool.
    pub(crate) fn cost(len: usize) -> usize {
        FRAME_OVERHEAD + len.max(SPARE_BYTES)
    }

    /// Returns `true` if a socket may add frames of `len` bytes in total. The stack may always try
    /// to add its own frames.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.has_room_for(Self::cost(len))
    }

    /// Returns `true` if a socket may add frames of this cost in total.
    pub(crate) fn has_room_for(&self, cost: usize) -> bool {
        // One call's datagrams always fit, regardless of the limit.
        self.queue.is_empty() || self.bytes + cost <= self.limit
    }

    /// Returns `true` if half of the sockets' share is free.
    pub(crate) fn half_empty(&self) -> bool {
        self.bytes <= self.limit / 2
    }

    /// Appends a frame. Returns `false`, and drops the frame, if even the stack's own share is used
    /// up.
    pub(crate) fn push(&mut self, frame: Frame) -> bool {
        let cost = frame.cost();
        if self.bytes + cost > self.limit.saturating_mul(2).max(1 << 18) {
            self.recycle(frame.bytes);
            return false;
        }
        self.bytes += cost;
        self.queue.push_back(frame);
        self.longest = self.longest.max(self.queue.len());
        true
    }

    /// Removes the oldest frame.
    pub(crate) fn pop(&mut self) -> Option<Frame> {
        let frame = self.queue.pop_front()?;
        self.bytes -= frame.cost();
        if self.queue.is_empty() {
            self.tidy();
        }
        Some(frame)
    }

    /// Frees buffers that the last bursts did not need.
    fn tidy(&mut self) {
        self.keep = self.longest.max(self.keep - self.keep / 8).max(FEW);
        self.longest = 0;
        if self.spare.len() > 2 * self.keep {
            self.spare.truncate(self.keep);
        }
        if self.queue.capacity() > 8 * self.keep {
            self.queue.shrink_to(self.keep);
        }
    }

    /// Puts a frame back at the front of the queue.
    pub(crate) fn unpop(&mut self, frame: Frame) {
        self.bytes += frame.cost();
        self.queue.push_front(frame);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.queue.iter()
    }
}
