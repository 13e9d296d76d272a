//! The check of one packet of an application, by its beginning in its bounce buffer. The engine
//! sends exactly the checked bytes.

use towpath_device::{Checksum, Meta};
use towpath_packet::headers::{Headers, Malformed};
use towpath_packet::offload;
use towpath_packet::transport::Transport;
use towpath_protocol::counters::Endpoint as EndpointCount;
use towpath_queue::descriptor::{Descriptor, EXPEDITED, MAX_PACKET_BYTES, META};
use towpath_queue::{OwnWords, PeerWords, PoolShape, Violation};

use crate::demux::is_group;
use crate::memories::TransmitMemory;
use crate::session::Session;
use crate::session::endpoints::counter_word;
use crate::source::{Piece, WHOLE_BYTES};
use crate::tx::batch::Batch;
use crate::tx::bounce::BounceBuffers;

/// The reason for which the engine does not send a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// The engine drops the packet, and counts it.
    Counted(EndpointCount),
    /// No correct application sends such a packet.
    Violates(Violation),
}

impl From<Violation> for Refusal {
    fn from(violation: Violation) -> Refusal {
        Refusal::Violates(violation)
    }
}

impl From<EndpointCount> for Refusal {
    fn from(count: EndpointCount) -> Refusal {
        Refusal::Counted(count)
    }
}

/// A packet that the engine is about to check.
#[derive(Clone, Copy)]
pub(crate) struct Unchecked<'a> {
    pub(crate) batch: &'a Batch,
    /// The packet's index in the batch.
    pub(crate) index: usize,
    /// The bounce buffer that holds the packet's beginning.
    pub(crate) slot: u32,
}

/// Checks a packet, and reads its headers. `mtu`: the device's largest IP packet, in bytes. Returns
/// the offload work that the packet needs.
///
/// # Errors
/// The reason for which the engine does not send the packet.
pub(crate) fn check(
    Unchecked { batch, index, slot }: Unchecked<'_>,
    session: &Session,
    memory: &TransmitMemory,
    bounce: &mut BounceBuffers,
    mtu: usize,
    headers: &mut Headers,
) -> Result<Meta, Refusal> {
    let taken = &batch.packets[index];
    let (number, len) = (taken.endpoint, taken.len as usize);
    if taken.late {
        return Err(EndpointCount::TxLate.into());
    }
    if !taken.fetched {
        return Err(Violation::Range.into());
    }
    let descriptors = batch.descriptors_of(index);
    let endpoint = session.receive.endpoints.named(number)?;
    if descriptors.iter().any(|descriptor| descriptor.endpoint != number) {
        return Err(Violation::Endpoint.into());
    }
    let pool = session.shape().transmit_pool;
    let meta = read_meta(descriptors, memory.words(), &pool)?;
    // The application closed the endpoint while packets waited. The engine drops them; this is no
    // violation.
    let endpoint = endpoint.ok_or(EndpointCount::TxOutsideRule)?;
    // Expedited packets may have their own queue pair, in which they do not wait behind others.
    let expedited = descriptors.first().is_some_and(|first| first.flags & EXPEDITED != 0);
    if endpoint.queue_pair != batch.queue_pair && !expedited {
        return Err(Violation::Endpoint.into());
    }
    let mut readable = headers.read(bounce.bytes(slot), len).is_ok();
    if readable
        && headers.malformed == Some(Malformed::BeyondPrefix)
        && bounce.bytes(slot).len() < len.min(WHOLE_BYTES)
    {
        if !bounce.fetch_again(slot, memory.mapping(), &pool, descriptors, len.min(WHOLE_BYTES)) {
            return Err(Violation::Range.into());
        }
        readable = headers.read(bounce.bytes(slot), len).is_ok();
    }
    if !readable {
        return Err(EndpointCount::TxMalformed.into());
    }
    endpoint.rights.check(headers, || bounce.bytes(slot))?;
    check_offload(meta, headers, len, mtu)
}

/// Reads a packet's metadata from its first buffer.
fn read_meta(
    descriptors: &[Descriptor],
    words: &PeerWords,
    pool: &PoolShape,
) -> Result<Meta, Violation> {
    let [first, ..] = descriptors else { return Ok(Meta::FULL) };
    if first.flags & META == 0 {
        return Ok(Meta::FULL);
    }
    let mut bytes = [0; 16];
    if !words.fetch_bytes(pool.buffer_offset(first.buffer), &mut bytes) {
        return Err(Violation::Flags);
    }
    let (low, high) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_ne_bytes);
    Meta::from_words([word(low), word(high)]).ok_or(Violation::Flags)
}

/// Checks a packet's metadata and its length on the wire. Returns the offload work that the packet
/// needs.
fn check_offload(meta: Meta, headers: &Headers, len: usize, mtu: usize) -> Result<Meta, Refusal> {
    if meta != Meta::FULL && offload::check(&meta, headers, len).is_err() {
        return Err(EndpointCount::TxMalformed.into());
    }
    if meta.segmentation.is_some() {
        // No TCP packet is for a group (RFC 9293, 3.9.2.3), and each of its segments would be
        // copied to each member.
        if is_group(headers.destination) {
            return Err(EndpointCount::TxMalformed.into());
        }
        if len > MAX_PACKET_BYTES || segments(&meta, headers, len) > offload::MAX_SENT_SEGMENTS {
            return Err(EndpointCount::TxTooLong.into());
        }
    }
    let meta = match meta.checksum {
        // Only a device may declare a checksum verified.
        Checksum::Verified => Meta::FULL,
        _ => meta,
    };
    if wire_bytes(&meta, headers, len) > mtu + usize::from(headers.l3_offset) {
        return Err(EndpointCount::TxTooLong.into());
    }
    Ok(meta)
}

/// Lists the parts of a packet behind the `held` bytes that its bounce buffer holds. The engine
/// need not read these bytes from the transmit buffer pool again.
pub(crate) fn rest_of(
    descriptors: &[Descriptor],
    pool: &PoolShape,
    mut held: usize,
    pieces: &mut Vec<Piece>,
) {
    pieces.clear();
    for descriptor in descriptors {
        let skip = held.min(descriptor.len as usize) as u32;
        held -= skip as usize;
        if skip < descriptor.len {
            let offset = descriptor.pool_offset(pool) as u32 + skip;
            pieces.push(Piece { offset, len: descriptor.len - skip });
        }
    }
}

/// Counts a packet sent to the device or to an endpoint of this host.
#[inline]
pub(crate) fn count_sent(words: &mut OwnWords, endpoint: u32, len: usize, copies: u64) {
    // Packets, bytes and copies.
    let first = counter_word(endpoint, EndpointCount::TxPackets);
    words.add_all(first, [1, len as u64, copies]);
}

/// Returns the length of the longest frame that a packet becomes on the wire.
fn wire_bytes(meta: &Meta, headers: &Headers, len: usize) -> usize {
    if meta.segmentation.is_none() {
        return len;
    }
    match (meta.segmentation, headers.transport(), headers.l4_offset()) {
        (Some(segmentation), Transport::Tcp { header_bytes, .. }, Some(l4)) => {
            len.min(l4 + usize::from(header_bytes) + usize::from(segmentation.segment_bytes))
        }
        _ => len,
    }
}

/// Returns the number of frames that a packet becomes on the wire.
pub(crate) fn segments(meta: &Meta, headers: &Headers, len: usize) -> usize {
    match (meta.segmentation, headers.transport(), headers.l4_offset()) {
        (Some(segmentation), Transport::Tcp { header_bytes, .. }, Some(l4)) => {
            let payload = len.saturating_sub(l4 + usize::from(header_bytes));
            payload.div_ceil(usize::from(segmentation.segment_bytes)).max(1)
        }
        _ => 1,
    }
}
