//! The trust boundary on receive: the engine copies a packet once, into buffers of memory that only
//! the server writes. On transmit, `tx/bounce.rs` is the trust boundary. In both modules, only
//! the routines that make copies count them.
//!
//! This module uses unsafe code because it sums checksums in place, in receive buffer pools, which
//! applications have mapped read-only.

use towpath_device::Meta;
use towpath_memory::Region;
use towpath_packet::checksum;
use towpath_queue::descriptor::{
    Descriptor, HEADROOM_BYTES, MAX_CHAIN, META, MORE, prefetch_distance,
};
use towpath_queue::receive::ReceiveProducer;
use towpath_queue::{OwnWords, PoolShape};

use crate::session::endpoints::counter_word;
use crate::session::receive_side::{Buffers, ReceiveSide};
use crate::source::{Reader, Source};
use towpath_protocol::counters::Endpoint as Count;

/// The result of a delivery to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The packet is in the receive queue.
    Yes,
    /// The application had provided too few buffers.
    NoBuffers,
    /// The packet is longer than any chain, or its ranges contradict each other.
    Unusable,
}

/// Copies one packet into the next provided buffers of a queue pair. `complete`: the place of a
/// checksum to complete in the copy, as in [`towpath_device::Checksum::Partial`].
#[inline(always)]
pub(crate) fn deliver(
    to: &mut ReceiveSide,
    endpoint: u32,
    queue_pair: u32,
    source: Source<'_>,
    meta: Meta,
    complete: Option<(u16, u16)>,
    flags: u16,
) -> Delivered {
    let len = source.len();
    let one_frame = len.wrapping_sub(1) < to.pool().data_bytes() as usize;
    let outcome = if one_frame && complete.is_none() && meta == Meta::FULL {
        let copy = |memory: &mut Region, mut at: usize| {
            let mut copied = memory.copy_in(at, source.prefix);
            at += source.prefix.len();
            for piece in source.pieces {
                let (from, len) = (piece.offset as usize, piece.len as usize);
                copied &= memory.copy_from(at, source.memory, from, len);
                at += len;
            }
            copied
        };
        deliver_frame(to, endpoint, queue_pair, len, flags, copy)
    } else {
        deliver_chain(to, endpoint, queue_pair, source, meta, complete, flags)
    };
    if outcome == Delivered::Yes {
        count_delivered(to.endpoints.counters(), endpoint, len);
    }
    outcome
}

/// Counts a delivered packet.
#[inline(always)]
pub(crate) fn count_delivered(counters: &mut OwnWords, endpoint: u32, len: usize) {
    // Packets, bytes and copies.
    counters.add_all(counter_word(endpoint, Count::RxPackets), [1, len as u64, 1]);
}

/// Delivers the most common kind of packet: with a full checksum, and in one buffer. `copy` copies
/// it to an offset.
#[inline(always)]
fn deliver_frame(
    to: &mut ReceiveSide,
    endpoint: u32,
    queue_pair: u32,
    len: usize,
    flags: u16,
    copy: impl FnOnce(&mut Region, usize) -> bool,
) -> Delivered {
    let available = to.queue(queue_pair).available();
    if available == 0 && !to.observe(queue_pair, 1) {
        return Delivered::NoBuffers;
    }
    let Buffers { queue, memory, pool, .. } = to.buffers(queue_pair);
    let ahead = prefetch_distance(len);
    if available > ahead {
        let start = pool.buffer_offset(queue.buffer(ahead)) + HEADROOM_BYTES as usize;
        memory.prefetch_to_write(start, len);
    }
    let buffer = queue.buffer(0);
    if !copy(memory, pool.buffer_offset(buffer) + HEADROOM_BYTES as usize) {
        return Delivered::Unusable;
    }
    let descriptor = Descriptor { buffer, start: HEADROOM_BYTES, len: len as u32, endpoint, flags };
    queue.push(descriptor);
    Delivered::Yes
}

/// Delivers a packet into as many buffers as it needs.
#[inline(never)]
fn deliver_chain(
    to: &mut ReceiveSide,
    endpoint: u32,
    queue_pair: u32,
    source: Source<'_>,
    meta: Meta,
    complete: Option<(u16, u16)>,
    flags: u16,
) -> Delivered {
    let len = source.len();
    let most = len.div_ceil(to.pool().data_bytes() as usize);
    if most == 0 || most > MAX_CHAIN {
        return Delivered::Unusable;
    }
    if (to.queue(queue_pair).available() as usize) < most && !to.observe(queue_pair, most) {
        return Delivered::NoBuffers;
    }
    let Buffers { queue, memory, pool, .. } = to.buffers(queue_pair);
    let chain = Chain::place(queue, &pool, len);
    let mut reader = Reader::new(source);
    if !chain.pieces(&pool).all(|(offset, len)| reader.copy(len, memory, offset)) {
        return Delivered::Unusable;
    }
    if let Some((start, offset)) = complete
        && !complete_checksum(memory, &pool, &chain, start, offset)
    {
        return Delivered::Unusable;
    }
    let headroom = pool.buffer_offset(chain.parts[0].buffer);
    let Some(meta_flag) = copy_meta(memory, headroom, meta) else { return Delivered::Unusable };
    for (index, part) in chain.parts().iter().enumerate() {
        let more = if index + 1 < chain.count { MORE } else { 0 };
        let meta_flag = if index == 0 { meta_flag } else { 0 };
        queue.push(Descriptor { endpoint, flags: flags | more | meta_flag, ..*part });
    }
    Delivered::Yes
}

/// The buffers of one packet, each as a descriptor without endpoint and flags.
struct Chain {
    parts: [Descriptor; MAX_CHAIN],
    count: usize,
}

impl Chain {
    /// Places a packet of `len` bytes in the next provided buffers, of which there are enough. A
    /// buffer that follows the one before in the pool is used from its start on, so that the
    /// application has the packet in one piece.
    fn place(receive: &ReceiveProducer, pool: &PoolShape, len: usize) -> Chain {
        let mut chain = Chain { parts: [Descriptor::default(); MAX_CHAIN], count: 0 };
        let (mut left, mut follower) = (len as u32, None);
        while left > 0 {
            let buffer = receive.buffer(chain.count as u32);
            let start = if follower == Some(buffer) { 0 } else { HEADROOM_BYTES };
            let now = left.min(pool.frame_bytes() - start);
            chain.parts[chain.count] = Descriptor { buffer, start, len: now, ..Default::default() };
            chain.count += 1;
            follower = Some(buffer + 1);
            left -= now;
        }
        chain
    }

    fn parts(&self) -> &[Descriptor] {
        &self.parts[..self.count]
    }

    /// Returns the offset and the length of each contiguous piece of the packet, in order.
    fn pieces(&self, pool: &PoolShape) -> impl Iterator<Item = (usize, usize)> {
        let pieces = self.parts().chunk_by(|one, next| one.is_followed_by(next, pool));
        pieces.map(|piece| {
            let len = piece.iter().map(|one| one.len as usize).sum();
            (piece[0].pool_offset(pool), len)
        })
    }
}

/// Copies a packet's metadata, if it has any, into the headroom of its first buffer. Returns the flag of that
/// buffer's descriptor; `None` if the buffer is outside the pool.
fn copy_meta(memory: &mut Region, headroom: usize, meta: Meta) -> Option<u16> {
    if meta == Meta::FULL {
        return Some(0);
    }
    let [first, second] = meta.to_words().map(u64::to_ne_bytes);
    let copied = memory.copy_in(headroom, &first) && memory.copy_in(headroom + 8, &second);
    copied.then_some(META)
}

/// Gives the application a buffer of its own, which the device filled with a packet. No copy is
/// made. `complete`: the place of a checksum to complete there.
pub(crate) fn deliver_in_place(
    to: &mut ReceiveSide,
    descriptor: Descriptor,
    meta: Meta,
    complete: Option<(u16, u16)>,
) -> Delivered {
    let Buffers { queue, memory, pool, endpoints } = to.buffers(0);
    let (buffer, len) = (descriptor.buffer, descriptor.len as usize);
    let start = descriptor.start as usize;
    if len == 0 || start < HEADROOM_BYTES as usize || start + len > pool.frame_bytes() as usize {
        return Delivered::Unusable;
    }
    let offset = pool.buffer_offset(buffer);
    if let Some((sum_start, sum_offset)) = complete {
        // SAFETY: as in `complete_checksum`. The kernel, which wrote the packet, has returned the
        // buffer.
        let Some(bytes) = (unsafe { memory.bytes_of_file(offset + start, len) }) else {
            return Delivered::Unusable;
        };
        let completed = checksum::completed(&[bytes], sum_start, sum_offset);
        let written =
            completed.is_ok_and(|(field, value)| memory.copy_in(offset + start + field, &value));
        if !written {
            return Delivered::Unusable;
        }
    }
    let Some(flags) = copy_meta(memory, offset, meta) else { return Delivered::Unusable };
    queue.push_lent(Descriptor { flags, ..descriptor });
    let word = counter_word(descriptor.endpoint, Count::RxPackets);
    // Packets, bytes and copies.
    endpoints.counters().add_all(word, [1, len as u64, 0]);
    Delivered::Yes
}

/// Completes the checksum of a packet that lies in a chain's buffers.
fn complete_checksum(
    memory: &mut Region,
    pool: &PoolShape,
    chain: &Chain,
    start: u16,
    offset: u16,
) -> bool {
    let mut pieces: [&[u8]; MAX_CHAIN] = [&[]; MAX_CHAIN];
    for (piece, (at, len)) in pieces.iter_mut().zip(chain.pieces(pool)) {
        // SAFETY: only this region maps a receive buffer pool's file writable: the server made the
        // file, and hands it out only for reading (`prepare.rs`).
        match unsafe { memory.bytes_of_file(at, len) } {
            Some(bytes) => *piece = bytes,
            None => return false,
        }
    }
    let Ok((field, value)) = checksum::completed(&pieces, start, offset) else {
        return false;
    };
    // The checksum field may lie across two pieces.
    value.iter().enumerate().all(|(index, byte)| {
        let mut before = field + index;
        for (at, len) in chain.pieces(pool) {
            if before < len {
                return memory.copy_in(at + before, &[*byte]);
            }
            before -= len;
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use towpath_memory::SharedFile;
    use towpath_packet::Checksum;

    use super::*;
    use crate::testing::{self, PORT};

    /// Packets of all lengths arrive unchanged, and with their checksums completed, in whatever
    /// order the application provides its buffers; those that follow each other hold one piece.
    #[test]
    fn chains_hold_their_packets_in_any_order_of_buffers() {
        let (mut session, mut application) = testing::session(0);
        let memory = SharedFile::create("test", 4096).unwrap().map_readable().unwrap();
        let (mut gapless, mut gaps) = (0, 0);
        for round in 0..400_u32 {
            let payload: Vec<u8> = (0..61 * round + 1).map(|at| (at * round) as u8).collect();
            let flow = testing::inward(PORT);
            let whole = flow.udp(&payload);
            let (partial, meta) = flow.udp_partial(&payload);
            let Checksum::Partial { start, offset } = meta.checksum else { panic!("{meta:?}") };
            let source = Source { prefix: &partial, memory: &memory, pieces: &[] };
            let outcome =
                deliver(&mut session.receive, 0, 0, source, Meta::FULL, Some((start, offset)), 0);
            assert_eq!(outcome, Delivered::Yes);
            session.receive.publish(0);
            let pool = session.shape().receive_pool;
            let (taken, packets) = application.packets_in_order(|buffers| {
                let half = buffers.len() / 2;
                match round % 3 {
                    0 => buffers.reverse(),
                    1 => buffers.rotate_left(half),
                    _ => buffers.sort_unstable(),
                }
            });
            assert!(packets == [(0, whole)], "round {round}");
            for pair in taken.windows(2) {
                let follows = pair[1].buffer == pair[0].buffer + 1;
                assert_eq!(pair[0].is_followed_by(&pair[1], &pool), follows);
                assert_eq!(pair[1].start, if follows { 0 } else { HEADROOM_BYTES });
                gapless += u32::from(follows);
                gaps += u32::from(!follows);
            }
        }
        assert!(gapless > 100 && gaps > 100, "{gapless} and {gaps}");
    }
}
