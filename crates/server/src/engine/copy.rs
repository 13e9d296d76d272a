//! The trust boundary on receive: the engine copies a packet once, into buffers of memory that only
//! the server writes. On transmit, `tx/bounce.rs` is the trust boundary. In both modules, only
//! the routines that make copies count them.
//!
//! This module uses unsafe code because it sums checksums in place, in receive buffer pools, which
//! applications have mapped read-only.

use towpath_device::Meta;
use towpath_memory::Region;
use towpath_packet::checksum;
use towpath_queue::buffers::Ledger;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN, META, prefetch_distance};
use towpath_queue::{OwnWords, Violation};

use crate::engine::session::{QueuePair, Session};
use crate::engine::source::{Reader, Source};
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
    session: &mut Session,
    endpoint: u32,
    queue_pair: usize,
    source: Source<'_>,
    meta: Meta,
    complete: Option<(u16, u16)>,
    flags: u16,
) -> Delivered {
    let len = source.len();
    let one_frame = len.wrapping_sub(1) < session.shape.receive_pool.data_bytes() as usize;
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
        deliver_frame(session, endpoint, queue_pair, len, flags, copy)
    } else {
        deliver_chain(session, endpoint, queue_pair, source, meta, complete, flags)
    };
    if outcome == Delivered::Yes {
        count_delivered(&mut session.counters, endpoint, len);
    }
    outcome
}

/// Counts a delivered packet.
#[inline(always)]
pub(crate) fn count_delivered(counters: &mut OwnWords, endpoint: u32, len: usize) {
    // Packets, bytes and copies.
    counters.add_all(session_word(endpoint, Count::RxPackets), [1, len as u64, 1]);
}

/// Delivers the most common kind of packet: with a full checksum, and in one buffer. `copy` copies
/// it to an offset.
#[inline(always)]
fn deliver_frame(
    session: &mut Session,
    endpoint: u32,
    queue_pair: usize,
    len: usize,
    flags: u16,
    copy: impl FnOnce(&mut Region, usize) -> bool,
) -> Delivered {
    let pool = session.shape.receive_pool;
    let set = &mut session.queue_pairs[queue_pair];
    let available = set.receive.available();
    if available == 0 && !observe(set, &mut session.receive_ledger, &mut session.violation, 1) {
        return Delivered::NoBuffers;
    }
    let memory = &mut session.receive_pool;
    let ahead = prefetch_distance(len);
    if available > ahead {
        let start = pool.buffer_offset(set.receive.buffer(ahead)) + HEADROOM_BYTES as usize;
        memory.prefetch_to_write(start, len);
    }
    let buffer = set.receive.buffer(0);
    if !copy(memory, pool.buffer_offset(buffer) + HEADROOM_BYTES as usize) {
        return Delivered::Unusable;
    }
    let descriptor = Descriptor { buffer, start: HEADROOM_BYTES, len: len as u32, endpoint, flags };
    set.receive.push(descriptor);
    Delivered::Yes
}

/// Reads the buffers that the application has provided since. Returns `true` if at least `buffers`
/// are available.
#[inline(never)]
pub(crate) fn observe(
    set: &mut QueuePair,
    ledger: &mut Ledger,
    violated: &mut Option<Violation>,
    buffers: usize,
) -> bool {
    match set.receive.observe(ledger) {
        Ok(available) => available as usize >= buffers,
        Err(violation) => {
            violated.get_or_insert(violation);
            false
        }
    }
}

#[inline(never)]
fn deliver_chain(
    session: &mut Session,
    endpoint: u32,
    queue_pair: usize,
    source: Source<'_>,
    meta: Meta,
    complete: Option<(u16, u16)>,
    flags: u16,
) -> Delivered {
    let len = source.len();
    let pool = session.shape.receive_pool;
    let data_bytes = pool.data_bytes() as usize;
    let buffers = len.div_ceil(data_bytes);
    if buffers == 0 || buffers > MAX_CHAIN {
        return Delivered::Unusable;
    }
    let set = &mut session.queue_pairs[queue_pair];
    if (set.receive.available() as usize) < buffers
        && !observe(set, &mut session.receive_ledger, &mut session.violation, buffers)
    {
        return Delivered::NoBuffers;
    }
    let memory = &mut session.receive_pool;
    let mut reader = Reader::new(source);
    for index in 0..buffers {
        let offset = pool.buffer_offset(set.receive.buffer(index as u32)) + HEADROOM_BYTES as usize;
        let now = data_bytes.min(len - index * data_bytes);
        if !reader.copy(now, memory, offset) {
            return Delivered::Unusable;
        }
    }
    if let Some((start, offset)) = complete
        && !complete_checksum(memory, &pool, len, start, offset, |index| set.receive.buffer(index))
    {
        return Delivered::Unusable;
    }
    let has_meta = meta != Meta::FULL;
    for index in 0..buffers {
        let buffer = set.receive.buffer(0);
        let first = index == 0;
        if first && has_meta {
            let words = meta.to_words();
            let start = pool.buffer_offset(buffer);
            if !memory.copy_in(start, &words[0].to_ne_bytes())
                || !memory.copy_in(start + 8, &words[1].to_ne_bytes())
            {
                return Delivered::Unusable;
            }
        }
        let more = if index + 1 < buffers { towpath_queue::descriptor::MORE } else { 0 };
        let descriptor = Descriptor {
            buffer,
            start: HEADROOM_BYTES,
            len: data_bytes.min(len - index * data_bytes) as u32,
            endpoint,
            flags: flags | more | if first && has_meta { META } else { 0 },
        };
        set.receive.push(descriptor);
    }
    Delivered::Yes
}

/// Gives the application a buffer of its own, which the device filled with a packet. No copy is
/// made. `complete`: the place of a checksum to complete there.
pub(crate) fn deliver_in_place(
    session: &mut Session,
    descriptor: Descriptor,
    meta: Meta,
    complete: Option<(u16, u16)>,
) -> Delivered {
    let pool = session.shape.receive_pool;
    let (buffer, len) = (descriptor.buffer, descriptor.len as usize);
    let start = descriptor.start as usize;
    if len == 0 || start < HEADROOM_BYTES as usize || start + len > pool.frame_bytes() as usize {
        return Delivered::Unusable;
    }
    let (memory, offset) = (&mut session.receive_pool, pool.buffer_offset(buffer));
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
    let has_meta = meta != Meta::FULL;
    if has_meta {
        let words = meta.to_words();
        if !memory.copy_in(offset, &words[0].to_ne_bytes())
            || !memory.copy_in(offset + 8, &words[1].to_ne_bytes())
        {
            return Delivered::Unusable;
        }
    }
    let flags = if has_meta { META } else { 0 };
    session.queue_pairs[0].receive.push_lent(Descriptor { flags, ..descriptor });
    let word = session_word(descriptor.endpoint, Count::RxPackets);
    // Packets, bytes and copies.
    session.counters.add_all(word, [1, len as u64, 0]);
    Delivered::Yes
}

/// Returns the index of an endpoint's counter among its session's.
#[inline]
pub(crate) fn session_word(endpoint: u32, count: Count) -> usize {
    endpoint as usize * towpath_protocol::layout::ENDPOINT_COUNTERS + count as usize
}

/// Completes the checksum of a packet of `len` bytes in the buffers that `buffer` names.
fn complete_checksum(
    memory: &mut Region,
    pool: &towpath_queue::PoolShape,
    len: usize,
    start: u16,
    offset: u16,
    buffer: impl Fn(u32) -> u32,
) -> bool {
    let data_bytes = pool.data_bytes() as usize;
    let buffers = len.div_ceil(data_bytes);
    let at = |index: usize| pool.buffer_offset(buffer(index as u32)) + HEADROOM_BYTES as usize;
    let mut parts: [&[u8]; MAX_CHAIN] = [&[]; MAX_CHAIN];
    for (index, part) in parts.iter_mut().enumerate().take(buffers) {
        let now = data_bytes.min(len - index * data_bytes);
        // SAFETY: only this region maps a receive buffer pool's file writable: the server made the
        // file, and hands it out only for reading (`prepare.rs`).
        match unsafe { memory.bytes_of_file(at(index), now) } {
            Some(bytes) => *part = bytes,
            None => return false,
        }
    }
    let Ok((field, value)) = checksum::completed(&parts[..buffers], start, offset) else {
        return false;
    };
    // The checksum field may lie across two buffers.
    value.iter().enumerate().all(|(index, byte)| {
        let byte_at = field + index;
        memory.copy_in(at(byte_at / data_bytes) + byte_at % data_bytes, &[*byte])
    })
}
