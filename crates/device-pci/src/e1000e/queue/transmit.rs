//! Packets to send.

use towpath_device::{
    Checksum, Completion, LARGE_FRAME_BYTES, Meta, Packet, PacketLimits, Part,
    SHORTEST_FRAME_BYTES, Spaces, VLAN_TAG_BYTES,
};
use towpath_memory::PAGE_BYTES;
use towpath_packet::SegmentationKind;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};

use super::super::descriptor::{self, Kind, MOST_PARTS, Words};
use super::super::memory::{HEADERS_AT, RING_ENTRIES, ZEROS_AT};
use super::super::packets::PacketInFlight;
use super::E1000eQueue;

/// The most descriptors of a packet: a context, the headers or the zeros behind a short frame, and its parts,
/// which page boundaries split.
const MOST_DESCRIPTORS: usize = 2 + 2 * MOST_PARTS + LARGE_FRAME_BYTES / PAGE_BYTES;
/// QEMU's model loses packets of more data descriptors (`E1000E_MAX_TX_FRAGS`).
const _: () = assert!(MOST_DESCRIPTORS - 1 <= 64);
const _: () = assert!(MAX_HEADER_BYTES.is_power_of_two() && HEADERS_AT.is_multiple_of(PAGE_BYTES));

/// The most parts of a packet on the short path.
const PLAIN_PARTS: usize = 4;
const PAGE: u64 = PAGE_BYTES as u64;

/// The descriptors of a packet, before they are in the ring.
struct Descriptors {
    words: [Words; MOST_DESCRIPTORS],
    count: usize,
}

impl Descriptors {
    fn push(&mut self, words: Words) -> Option<()> {
        *self.words.get_mut(self.count)? = words;
        self.count += 1;
        Some(())
    }
}

impl E1000eQueue {
    /// Puts packets into the ring. Returns how many the device took, dropped ones included.
    pub(super) fn submit(&mut self, spaces: &Spaces, packets: &[Packet<'_>]) -> usize {
        let limits = PacketLimits::of(&self.parts.info, true, self.pool);
        let mut taken = 0;
        for packet in packets {
            if self.in_flight.len() + self.done.len() >= RING_ENTRIES as usize {
                break;
            }
            if !self.submit_plain(spaces, packet, limits.frame_bytes)
                && !self.submit_any(spaces, packet, &limits)
            {
                break;
            }
            taken += 1;
        }
        taken
    }

    /// Puts a packet into the ring that needs nothing of the device but to be sent, in parts that cross no page.
    /// Returns `false` without a change for any other packet: most packets take this path.
    #[inline]
    fn submit_plain(&mut self, spaces: &Spaces, packet: &Packet<'_>, longest: usize) -> bool {
        let Packet { parts, meta, tag, token } = *packet;
        let tx = &mut self.parts.shared.tx;
        if parts.len() > PLAIN_PARTS
            || !meta.is_full()
            || tag.is_some()
            || tx.room() < PLAIN_PARTS as u32
        {
            return false;
        }
        let from = tx.tail();
        let mut len = 0;
        for (number, part) in (1..).zip(parts) {
            let address = spaces.device_address(part.space, part.offset, part.len);
            let in_page =
                |address: u64| part.len > 0 && address % PAGE + u64::from(part.len) <= PAGE;
            let Some(address) = address.filter(|address| in_page(*address)) else {
                tx.rewind(from);
                return false;
            };
            len += part.len as usize;
            let mut words = descriptor::data(address, part.len, Kind::Plain, number == parts.len());
            if self.parts.card.interrupts.defers_sent() && number == parts.len() {
                descriptor::defer_interrupt(&mut words);
            }
            tx.push(words);
        }
        if !(SHORTEST_FRAME_BYTES..=longest).contains(&len) {
            tx.rewind(from);
            return false;
        }
        let descriptors = parts.len() as u32;
        self.in_flight.push_back(PacketInFlight { token, len: len as u32, descriptors });
        true
    }

    /// Puts any packet into the ring, or drops and counts one that the device cannot send. Returns `false` if
    /// there is no room.
    fn submit_any(&mut self, spaces: &Spaces, packet: &Packet<'_>, limits: &PacketLimits) -> bool {
        let mut made = Descriptors { words: [[0; 2]; MOST_DESCRIPTORS], count: 0 };
        let len = limits.len_of(packet);
        let context = len.and_then(|_| self.describe(spaces, packet, &mut made));
        let Some((len, context)) = len.zip(context) else {
            self.counters.dropped();
            self.done.push_back(Completion::dropped(packet.token));
            return true;
        };
        if self.parts.shared.tx.room() < made.count as u32 {
            return false;
        }
        let tag_bytes = match packet.tag {
            Some(tag) => {
                let words = made.words[..made.count].iter_mut();
                words.for_each(|words| descriptor::insert_tag(words, tag.control));
                VLAN_TAG_BYTES
            }
            None => 0,
        };
        if self.parts.card.interrupts.defers_sent()
            && let Some(last) = made.words[..made.count].last_mut()
        {
            descriptor::defer_interrupt(last);
        }
        made.words[..made.count].iter().for_each(|words| self.parts.shared.tx.push(*words));
        self.context = context;
        self.in_flight.push_back(PacketInFlight {
            token: packet.token,
            len: (len + tag_bytes) as u32,
            descriptors: made.count as u32,
        });
        true
    }

    /// Makes the descriptors of a packet. Returns the context that the device then has; `None` if the
    /// device cannot send the packet.
    fn describe(
        &mut self,
        spaces: &Spaces,
        packet: &Packet<'_>,
        made: &mut Descriptors,
    ) -> Option<Option<Words>> {
        made.count = 0;
        if packet.meta.segmentation.is_some() {
            self.describe_large(spaces, packet, made)?;
            // The next packet needs a context of its own.
            return Some(None);
        }
        let (mut kind, mut context) = (Kind::Plain, self.context);
        if let Checksum::Partial { start, offset } = packet.meta.checksum {
            kind = Kind::Checksum;
            let wanted = descriptor::checksum_context(start, offset)?;
            if context != Some(wanted) {
                made.push(wanted)?;
                context = Some(wanted);
            }
        }
        describe_parts(spaces, packet.parts, 0, kind, made)?;
        let len: usize = packet.parts.iter().map(|part| part.len as usize).sum();
        if len < SHORTEST_FRAME_BYTES {
            // The card pads frames of 17 bytes or more (`TCTL.PSP`), and QEMU's model none.
            let zeros = self.parts.rings.address() + ZEROS_AT as u64;
            descriptor::continue_behind(made.words.get_mut(made.count.checked_sub(1)?)?);
            made.push(descriptor::data(zeros, (SHORTEST_FRAME_BYTES - len) as u32, kind, true))?;
        }
        Some(context)
    }

    /// Makes the descriptors of a large packet. The device needs changed headers, and sends them from the
    /// driver's own copy.
    fn describe_large(
        &mut self,
        spaces: &Spaces,
        packet: &Packet<'_>,
        made: &mut Descriptors,
    ) -> Option<()> {
        let Meta { segmentation, .. } = packet.meta;
        let segmentation = segmentation?;
        let is_ipv4 = segmentation.kind == SegmentationKind::Tcp4;
        let (mut prefix, mut len) = ([0; MAX_HEADER_BYTES], 0);
        for part in packet.parts {
            let count = (part.len as usize).min(MAX_HEADER_BYTES - len);
            spaces.copy_out(part.space, part.offset, &mut prefix[len..len + count]).ok()?;
            len += count;
        }
        let whole = packet.parts.iter().map(|part| part.len as usize).sum();
        let segmenter = Segmenter::new(&prefix[..len], whole, &packet.meta).ok()?;
        let mut headers = [0; MAX_HEADER_BYTES];
        let at = segmenter.for_device(&mut headers);
        made.push(descriptor::segment_context(&at, segmentation.segment_bytes, is_ipv4)?)?;
        // Only the descriptor after the context uses this place.
        let place = self.parts.shared.tx.tail() as usize * MAX_HEADER_BYTES;
        if !self.parts.shared.headers.copy_in(place, &headers[..at.header_bytes]) {
            return None;
        }
        let address = self.parts.rings.address() + (HEADERS_AT + place) as u64;
        let kind = Kind::Segments { is_ipv4 };
        let len = at.header_bytes as u32;
        made.push(descriptor::data(address, len, kind, at.payload_bytes == 0))?;
        describe_parts(spaces, packet.parts, at.header_bytes as u64, kind, made)
    }

    /// Returns `true` if the ring has room for any packet.
    pub(super) fn has_room(&self) -> bool {
        self.parts.shared.tx.room() as usize >= MOST_DESCRIPTORS
            && self.in_flight.len() + self.done.len() < RING_ENTRIES as usize
    }

    /// Returns `true` if the device has sent the oldest packet.
    pub(super) fn is_oldest_sent(&self) -> bool {
        self.in_flight.front().is_some_and(|oldest| {
            let last =
                self.parts.shared.tx.after(self.parts.shared.tx.oldest(), oldest.descriptors - 1);
            descriptor::is_sent(self.parts.shared.tx.fetch_last(last))
        })
    }

    /// Moves the packets that the device has sent to `done`.
    pub(super) fn fetch_completions(&mut self) {
        while self.is_oldest_sent() {
            let Some(sent) = self.in_flight.pop_front() else { return };
            self.parts.shared.tx.take(sent.descriptors);
            let outcome = self.counters.sent(sent.len as usize);
            self.done.push_back(Completion { token: sent.token, outcome });
        }
    }
}

/// Makes the descriptors of a packet's parts, without the packet's first `skipped` bytes.
fn describe_parts(
    spaces: &Spaces,
    parts: &[Part],
    skipped: u64,
    kind: Kind,
    made: &mut Descriptors,
) -> Option<()> {
    let total: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
    let (mut sum, mut to_skip) = (skipped, skipped);
    for part in parts {
        let address = spaces.device_address(part.space, part.offset, part.len)?;
        let now = to_skip.min(u64::from(part.len));
        to_skip -= now;
        let (mut address, mut left) = (address + now, part.len - now as u32);
        while left > 0 {
            // QEMU's model loses a packet with a descriptor that crosses pages which do not follow each other
            // in its memory.
            let len = left.min((PAGE - address % PAGE) as u32);
            sum += u64::from(len);
            made.push(descriptor::data(address, len, kind, sum == total))?;
            address += u64::from(len);
            left -= len;
        }
    }
    Some(())
}
