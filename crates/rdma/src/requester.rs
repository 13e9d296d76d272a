//! The requesting side: requests that the peer has not acknowledged yet, in their order.
//!
//! A packet of a write, or of a read's answer, has `mtu` bytes, but for the last one of a request.
//! So the packet sequence number of a packet tells its place in the request. A lost packet is sent
//! again with all behind it. Writes wait until the reads before them are complete.

mod answers;
mod timeout;

use std::collections::VecDeque;

use towpath_packet::roce::{Opcode, Reth};

use crate::Psn;

/// The most bytes of one read request: its owner answers several of them in turn with others.
const READ_BYTES: u64 = 64 << 10;
/// The most read requests without a complete answer.
pub(crate) const MOST_READS: u32 = 16;
/// The most bytes under way, within `WINDOW_PACKETS`. A round trip takes 1 ms if both engines wait 0.5 ms for
/// more packets (`wait=auto`), so this allows 1 GB/s.
const WINDOW_BYTES: u32 = 1 << 20;
/// The same while losses or marks limit the rate: all behind a lost packet is sent again.
const LIMITED_WINDOW_BYTES: u32 = 256 << 10;
/// The limits of the packets under way.
const WINDOW_PACKETS: std::ops::RangeInclusive<u32> = 64..=256;
/// The time until packets are sent again without an answer, before any is measured, in nanoseconds.
const FIRST_TIMEOUT_NS: u64 = 100_000_000;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Writes into the peer's memory.
    Write,
    /// Writes, and then puts this value into the peer's queue.
    WriteWithValue(u32),
    /// Reads from the peer's memory.
    Read,
    /// Puts a message into the peer's queue.
    Send,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The host's number for it.
    pub id: u64,
    /// The kind.
    pub kind: WorkKind,
    /// The bytes that it moves, at most 2^30; of a message, its length.
    pub bytes: u64,
    /// The key of the peer's memory.
    pub key: u32,
    /// Where its range begins there.
    pub address: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    work: Work,
    first: Psn,
    packets: u32,
    /// Bytes of the request that may be sent.
    released: u64,
}

impl Entry {
    fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    fn is_read(&self) -> bool {
        self.work.kind == WorkKind::Read
    }
}

/// A packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its sequence number.
    pub psn: Psn,
    /// Its opcode.
    pub opcode: Opcode,
    /// The range of memory, if it names one.
    pub reth: Option<Reth>,
    /// The value, if it has one.
    pub immediate: Option<u32>,
    /// `true` if the peer is asked for an acknowledgement.
    pub asks: bool,
    /// The request, and where the packet's bytes are in it.
    pub id: u64,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
}

/// Why a connection ends by an answer of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer does not allow an access: its key, its range or its kind.
    Access,
    /// The peer found a mistake in what this side sent, or cannot go on.
    Peer,
    /// The peer's queue had no room for too long.
    NotReady,
    /// The local memory of a request is gone.
    Local,
}

/// What an answer of the peer led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Why the oldest request failed; the connection ends.
    pub fault: Option<Fault>,
    /// `true` if packets were lost, and are sent again.
    pub lost: bool,
    /// `true` if the bytes are not placed yet.
    pub later: bool,
}

/// The requesting side.
#[derive(Debug)]
pub struct Requester {
    queue: VecDeque<Entry>,
    mtu: u32,
    /// The most packets under way while the rate is not limited.
    window: u32,
    /// The same while losses or marks limit it.
    limited_window: u32,
    most_reads: u32,
    /// The first packet that is not acknowledged.
    oldest: Psn,
    /// The next packet to send, and the one behind the last that was ever sent.
    next: Psn,
    highest: Psn,
    /// The number of the next request's first packet.
    end: Psn,
    /// `false` until the peer is known to take packets.
    ready: bool,
    /// `true` if an earlier server may have sent more than this one has.
    resumed: bool,
    /// Since when the peer has not answered what is under way.
    since: u64,
    timeout: u64,
    smoothed: Option<u64>,
    variation: u64,
    /// A packet whose answer is timed, and when it was sent.
    timed: Option<(Psn, u64)>,
    /// Until when the peer's queue is left alone, and since when it has no room.
    not_ready_until: Option<u64>,
    not_ready_since: Option<u64>,
    /// `true` once packets are sent again because an answer showed a gap, until there is progress.
    goes_back: bool,
    /// Packets sent again.
    retransmitted: u64,
}

impl Requester {
    /// Creates the side of a connection with packets of up to `mtu` bytes of payload, of which the
    /// first one has the number `first`, and whose peer answers up to `reads` read requests at once.
    #[must_use]
    pub fn new(first: Psn, mtu: u32, reads: u32) -> Requester {
        let window =
            |bytes: u32| (bytes / mtu).clamp(*WINDOW_PACKETS.start(), *WINDOW_PACKETS.end());
        Requester {
            queue: VecDeque::new(),
            mtu,
            window: window(WINDOW_BYTES),
            limited_window: window(LIMITED_WINDOW_BYTES),
            most_reads: reads.clamp(1, MOST_READS),
            oldest: first,
            next: first,
            highest: first,
            end: first,
            ready: false,
            resumed: false,
            since: 0,
            timeout: FIRST_TIMEOUT_NS,
            smoothed: None,
            variation: 0,
            timed: None,
            not_ready_until: None,
            not_ready_since: None,
            goes_back: false,
            retransmitted: 0,
        }
    }

    /// Records that the peer takes packets.
    pub fn set_ready(&mut self) {
        self.ready = true;
    }

    /// Records that an earlier server may have sent the packets that come next.
    pub fn set_resumed(&mut self) {
        self.resumed = true;
    }

    /// Returns the time that answers take, smoothed, in nanoseconds; 0 if it is not known.
    #[must_use]
    pub fn round_trip(&self) -> u64 {
        self.smoothed.unwrap_or(0)
    }

    /// Returns the first packet that is not acknowledged.
    #[must_use]
    pub fn oldest(&self) -> Psn {
        self.oldest
    }

    /// Returns the number of requests without an acknowledgement.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns `true` if there is no request without an acknowledgement.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of the first packet of the oldest request, or of the next one.
    #[must_use]
    pub fn first(&self) -> Psn {
        self.queue.front().map_or(self.end, |one| one.first)
    }

    /// Returns the number of the next request's first packet.
    #[must_use]
    pub fn end(&self) -> Psn {
        self.end
    }

    /// Returns the packets that were sent again.
    #[must_use]
    pub fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    /// Returns how many packet sequence numbers a request takes: of its own packets, or of those of a read's
    /// answer.
    #[must_use]
    pub fn packets(&self, bytes: u64) -> u32 {
        bytes.div_ceil(u64::from(self.mtu)).max(1) as u32
    }

    /// Puts a request at the end. `released`: how many of its bytes may be sent.
    pub fn push(&mut self, work: Work, released: u64, now: u64) {
        if self.oldest == self.next {
            self.since = now;
        }
        let packets = self.packets(work.bytes);
        let first = self.end;
        self.end = first.plus(packets);
        self.queue.push_back(Entry { work, first, packets, released });
    }

    /// Lets the last request send up to `bytes` of its bytes.
    pub fn release(&mut self, bytes: u64) {
        if let Some(last) = self.queue.back_mut() {
            last.released = bytes;
        }
    }

    /// Returns how many released bytes of all requests the peer has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> u64 {
        let one = |entry: &Entry| {
            let acknowledged = entry.first.to(self.oldest).max(0).unsigned_abs();
            let bytes = u64::from(acknowledged) * u64::from(self.mtu);
            entry.released.saturating_sub(bytes)
        };
        self.queue.iter().map(one).sum()
    }

    /// Returns the most read requests under way.
    #[must_use]
    pub fn most_reads(&self) -> u32 {
        self.most_reads
    }

    /// Returns the most bytes under way. `is_limited`: losses or marks limit the rate.
    #[must_use]
    pub fn window_bytes(&self, is_limited: bool) -> u64 {
        u64::from(self.window_packets(is_limited)) * u64::from(self.mtu)
    }

    fn window_packets(&self, is_limited: bool) -> u32 {
        if is_limited { self.limited_window } else { self.window }
    }

    /// Returns the next packet, if one may be sent now, and how many packet sequence numbers it takes. The caller
    /// calls [`Requester::sent`] before it asks again. `is_limited`: losses or marks limit the rate.
    pub fn next_packet(&mut self, is_limited: bool, now: u64) -> Option<(Outgoing, u32)> {
        if !self.ready || self.next == self.end {
            return None;
        }
        match self.not_ready_until {
            Some(until) if now < until => return None,
            _ => self.not_ready_until = None,
        }
        let under_way = self.oldest.to(self.next);
        let window = self.window_packets(is_limited);
        if under_way >= window as i32 {
            return None;
        }
        let index = self.index_of(self.next)?;
        let entry = self.queue[index];
        if entry.is_read() {
            return self.read_packet(&entry);
        }
        if self.queue.iter().take(index).any(Entry::is_read) {
            return None;
        }
        Some((self.plain_packet(&entry, under_way, window)?, 1))
    }

    /// Records that a packet was sent, which [`Requester::next_packet`] returned with `covers`.
    pub fn sent(&mut self, packet: &Outgoing, covers: u32, now: u64) {
        if self.oldest == self.next {
            self.since = now;
        }
        if self.highest.to(self.next) < 0 {
            self.retransmitted += 1;
        } else if self.timed.is_none() && packet.asks {
            self.timed = Some((packet.psn.plus(covers - 1), now));
        }
        self.next = self.next.plus(covers);
        if self.highest.to(self.next) > 0 {
            self.highest = self.next;
        }
    }

    /// Returns the index of the request that a packet belongs to.
    fn index_of(&self, psn: Psn) -> Option<usize> {
        self.queue.iter().position(|one| one.first.to(psn) >= 0 && one.end().to(psn) < 0)
    }

    /// Returns a read request from the next packet on, and the number of packets of its answer.
    fn read_packet(&self, entry: &Entry) -> Option<(Outgoing, u32)> {
        if self.reads_under_way() >= self.most_reads {
            return None;
        }
        let mtu = u64::from(self.mtu);
        let piece = (READ_BYTES / mtu) as u32;
        let index = entry.first.to(self.next).unsigned_abs();
        let end = (index / piece + 1).saturating_mul(piece).min(entry.packets);
        let offset = u64::from(index) * mtu;
        let len = (u64::from(end) * mtu).min(entry.work.bytes) - offset;
        if offset + len > entry.released {
            return None;
        }
        let (key, address) = (entry.work.key, entry.work.address.wrapping_add(offset));
        let packet = Outgoing {
            psn: self.next,
            opcode: Opcode::ReadRequest,
            reth: Some(Reth { address, key, len: len as u32 }),
            immediate: None,
            asks: true,
            id: entry.work.id,
            offset: 0,
            len: 0,
        };
        Some((packet, end - index))
    }

    /// Returns the number of read requests that are sent, and have no complete answer.
    fn reads_under_way(&self) -> u32 {
        let piece = (READ_BYTES / u64::from(self.mtu)) as i32;
        let of = |one: &Entry| {
            let from = one.first.to(self.oldest).max(0) / piece;
            let to = one.first.to(self.next).clamp(0, one.packets as i32);
            ((to + piece - 1) / piece - from).max(0) as u32
        };
        self.queue.iter().filter(|one| one.is_read()).map(of).sum()
    }

    /// Returns the next packet, of a write or a message.
    fn plain_packet(&self, entry: &Entry, under_way: i32, window: u32) -> Option<Outgoing> {
        let Entry { work, first, packets, released } = *entry;
        let (mtu, index) = (u64::from(self.mtu), first.to(self.next).unsigned_abs());
        let offset = u64::from(index) * mtu;
        let len = mtu.min(work.bytes - offset);
        if offset + len > released {
            return None;
        }
        let (is_first, is_last) = (index == 0, index + 1 == packets);
        let value = match work.kind {
            WorkKind::WriteWithValue(value) => Some(value),
            _ => None,
        };
        let opcode = match (is_first, is_last) {
            _ if work.kind == WorkKind::Send => Opcode::SendOnly,
            (true, true) if value.is_some() => Opcode::WriteOnlyImmediate,
            (true, true) => Opcode::WriteOnly,
            (true, false) => Opcode::WriteFirst,
            (false, true) if value.is_some() => Opcode::WriteLastImmediate,
            (false, true) => Opcode::WriteLast,
            (false, false) => Opcode::WriteMiddle,
        };
        let reth = Reth { address: work.address, key: work.key, len: work.bytes as u32 };
        // The last packet of what may be sent asks, and some within the smaller window.
        let is_edge = offset + len == released || under_way + 1 >= window as i32;
        let asks = is_last || is_edge || index.is_multiple_of(self.limited_window / 4);
        Some(Outgoing {
            psn: self.next,
            opcode,
            reth: (is_first && work.kind != WorkKind::Send).then_some(reth),
            immediate: value.filter(|_| is_last),
            asks,
            id: work.id,
            offset,
            len: len as usize,
        })
    }

    /// Returns `true` if a packet waits for an answer, or for the peer's queue.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.oldest != self.highest
    }
}
