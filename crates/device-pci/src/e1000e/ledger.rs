//! The ledger of a queue's receive buffers, which outlives the server. The device cannot reach it.

use std::io;
use std::os::fd::OwnedFd;

use towpath_device::PacketMemory;
use towpath_memory::{Region, own_words};
use towpath_queue::OwnWords;

use super::memory::RING_ENTRIES;

/// The number of the layout, in the first word. A change of the rings' memory, or of what the card does to
/// packets, changes it, too: a server of another version must not go on with the card.
const LAYOUT: u64 = u64::from_le_bytes(*b"82574Lg3");
/// The word of the oldest descriptor that the engine has not handled, and the bit beside it that says
/// that this one is the rest of a packet which is too long.
const OLDEST: usize = HEADER_WORDS;
const DISCARDS: u64 = 1 << 32;
/// The first of the words of the descriptors, each with its receive buffer.
const BUFFERS: usize = OLDEST + 1;
const HEADER_WORDS: usize = 9;
const BYTES: usize = (BUFFERS + RING_ENTRIES as usize) * 8;

/// With what a device was opened, and where it finds the memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The device's own address. Filters have taken its place in the device.
    pub(super) mac: [u8; 6],
    pub(super) opened: Opened,
    /// The sizes that the engine wanted of the packets' memory.
    pub(super) packets: PacketMemory,
    /// The device addresses and the bytes of the packets' memory and of the rings.
    pub(super) memories: [(u64, u64); 2],
}

/// What a next server must have in common with the one that left the card running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// The largest IP packet, in bytes.
    pub(super) mtu: usize,
    /// `true` if the card has one interrupt for all causes.
    pub(super) has_one_interrupt: bool,
}

impl Header {
    fn words(&self) -> [u64; HEADER_WORDS] {
        let [a, b, c, d, e, f] = self.mac;
        let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let [(packets, packet_bytes), (rings, ring_bytes)] = self.memories;
        [
            LAYOUT,
            mac,
            self.opened.mtu as u64 | u64::from(self.opened.has_one_interrupt) << 32,
            packets,
            packet_bytes,
            rings,
            ring_bytes,
            self.packets.bytes as u64,
            self.packets.pool_bytes as u64,
        ]
    }

    /// Reads the header of a ledger; `None` for one of another layout.
    fn read(words: &OwnWords) -> Option<Header> {
        let word = |at| words.get(at);
        if word(0) != LAYOUT {
            return None;
        }
        let [a, b, c, d, e, f, ..] = word(1).to_le_bytes();
        let memories = [(word(3), word(4)), (word(5), word(6))];
        let opened =
            Opened { mtu: word(2) as u32 as usize, has_one_interrupt: word(2) & 1 << 32 != 0 };
        let packets = PacketMemory { bytes: word(7) as usize, pool_bytes: word(8) as usize };
        Some(Header { mac: [a, b, c, d, e, f], opened, packets, memories })
    }
}

/// The ledger: words that the queue alone writes, and the next server reads after its end.
#[derive(Debug)]
pub(super) struct RingLedger {
    words: OwnWords,
}

impl RingLedger {
    /// Makes a ledger, in a memory file that a keeper can hold.
    pub(super) fn new(header: &Header) -> io::Result<(RingLedger, OwnedFd)> {
        let (region, file) = Region::in_kept_file("towpath-buffers", BYTES)?;
        let mut words = own_words(region);
        for (at, word) in header.words().into_iter().enumerate().rev() {
            words.store(at, word);
        }
        Ok((RingLedger { words }, file))
    }

    /// Goes on with the ledger of an earlier server; `None` if its layout differs.
    pub(super) fn of_earlier(file: OwnedFd) -> io::Result<Option<(RingLedger, Header, OwnedFd)>> {
        if !Region::is_file_of(&file, BYTES) {
            return Ok(None);
        }
        let (region, file) = Region::of_earlier_file(file, BYTES)?;
        let words = own_words(region);
        Ok(Header::read(&words).map(|header| (RingLedger { words }, header, file)))
    }

    /// Returns the oldest descriptor that the engine has not handled, and whether it is the rest of a
    /// packet that is too long.
    pub(super) fn oldest(&self) -> (u32, bool) {
        let word = self.words.get(OLDEST);
        (word as u32, word & DISCARDS != 0)
    }

    /// Notes the oldest descriptor that the engine has not handled. A process that follows this one, once it was
    /// killed, sees this store before those of [`RingLedger::set_buffer`] that follow it.
    #[inline]
    pub(super) fn set_oldest(&mut self, index: u32, discards: bool) {
        let discards = if discards { DISCARDS } else { 0 };
        // SYNC: after the engine's last access to the packets, and before the reuse of their descriptors. The
        // kernel orders the end of this process before the next one's loads.
        self.words.publish_ahead(OLDEST, u64::from(index) | discards);
    }

    /// Returns the receive buffer of a descriptor.
    #[inline]
    pub(super) fn buffer(&self, index: u32) -> u32 {
        self.words.get(BUFFERS + index as usize) as u32
    }

    /// Notes the receive buffer of a descriptor.
    #[inline]
    pub(super) fn set_buffer(&mut self, index: u32, buffer: u32) {
        self.words.store(BUFFERS + index as usize, u64::from(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_server_reads_what_was_noted() {
        let memories = [(1 << 32, 3 << 20), (1 << 33, 1 << 18)];
        let opened = Opened { mtu: 1500, has_one_interrupt: true };
        let packets = PacketMemory { bytes: 3_000_001, pool_bytes: 2_000_000 };
        let header = Header { mac: [2, 3, 4, 5, 6, 7], opened, packets, memories };
        let (mut ledger, file) = RingLedger::new(&header).unwrap();
        assert_eq!(ledger.oldest(), (0, false));
        ledger.set_buffer(RING_ENTRIES - 1, 4096);
        ledger.set_oldest(RING_ENTRIES - 1, true);
        drop(ledger);
        let (ledger, read, file) = RingLedger::of_earlier(file).unwrap().unwrap();
        assert_eq!(read, header);
        assert_eq!(ledger.oldest(), (RING_ENTRIES - 1, true));
        assert_eq!((ledger.buffer(RING_ENTRIES - 1), ledger.buffer(0)), (4096, 0));
        // Another layout, and another size.
        let RingLedger { mut words } = ledger;
        words.store(0, LAYOUT + 1);
        assert!(RingLedger::of_earlier(file).unwrap().is_none());
        let (_, short) = Region::in_kept_file("short", 64).unwrap();
        assert!(RingLedger::of_earlier(short).unwrap().is_none());
    }
}
