//! The packets that a server has in hand: those that its driver has read from a TAP and that the engine
//! has not handled yet. A ledger of them outlives the server, and so does the memory that they are in. The
//! next server's driver receives them again. It first copies them into a file that outlives this server
//! ([`LeftFile`]), which may be killed before it has received them.
//!
//! A server can be killed between the kernel's write of a packet and the driver's next store. So the
//! driver enters the buffer before it reads, with the kernel's counts of this interface at that time. The
//! next server compares these with the kernel's present counts. The difference tells whether the read took a
//! packet, and how long the packet is. The length in the packet's headers could reach older packets' bytes. If
//! the counts do not agree, the driver drops and counts the packet.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use towpath_memory::{Region, own_words};
use towpath_netlink::Sent;
use towpath_queue::OwnWords;

use crate::virtio::HEADER_BYTES;
use crate::{EarlierObjects, POOL_HEADROOM_BYTES};

/// The name of the ledger among the objects that outlive a server. It ends with the number of its
/// layout.
pub(super) const LEDGER: &str = "device-tap-hand-1";
/// The name of the memory of the first lane's packets, which the server stores.
const MEMORY: &str = "device-memory-0";
/// The name of the file of the packets that an earlier server had in hand. It ends with the number of its
/// layout.
pub(super) const LEFT: &str = "device-tap-left-1";
/// The packets that can be in hand.
pub(super) const MOST: usize = 500;

/// The number of entries, and the first entry.
const COUNT: usize = 0;
const FIRST: usize = 1;
/// Behind the entries, the kernel's counts before the read of the last entry: the number of packets plus one,
/// and their bytes. 0: not known.
const SENT_PACKETS: usize = FIRST + MOST;
const SENT_BYTES: usize = SENT_PACKETS + 1;
const BYTES: usize = (SENT_BYTES + 1) * 8;

/// The bytes in front of a pool buffer's header.
const SKIPPED: u64 = (POOL_HEADROOM_BYTES - HEADER_BYTES) as u64;
/// The ledger: words that the driver alone writes, and the next server reads after its end. An entry
/// has the buffer's offset in its upper half, and in the lower half the length of the header and the
/// packet; 0: the driver reads.
#[derive(Debug)]
pub(super) struct PacketsInHand {
    words: OwnWords,
    count: usize,
    /// The kernel's counts: the packets that this driver and those of earlier servers have read. `None` if
    /// they are not known.
    sent: Option<Sent>,
}

impl PacketsInHand {
    /// Makes the file of a ledger.
    pub(super) fn file() -> io::Result<OwnedFd> {
        Ok(Region::in_kept_file("towpath-hand", BYTES)?.1)
    }

    /// Begins with an empty ledger in this file, which no other ledger uses. `sent`: the kernel's
    /// counts of this interface, which no other process reads.
    pub(super) fn new(file: OwnedFd, sent: Option<Sent>) -> io::Result<PacketsInHand> {
        let (region, _) = Region::of_earlier_file(file, BYTES)?;
        let mut words = own_words(region);
        words.publish(COUNT, 0);
        Ok(PacketsInHand { words, count: 0, sent })
    }

    /// Notes that the engine has handled all packets.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.count > 0 {
            self.count = 0;
            self.words.publish(COUNT, 0);
        }
    }

    /// Returns `true` if no other packet can be entered.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count == MOST
    }

    /// Enters a buffer into which the driver is about to read.
    #[inline]
    pub(super) fn begin(&mut self, buffer: u32) {
        let (packets, bytes) = self.sent.map_or((0, 0), |sent| (sent.packets + 1, sent.bytes));
        self.words.publish(SENT_PACKETS, packets);
        self.words.publish(SENT_BYTES, bytes);
        self.words.publish(FIRST + self.count, u64::from(buffer) << 32);
        self.words.publish(COUNT, self.count as u64 + 1);
    }

    /// Notes that the driver has read a packet of `len` bytes with its header. `None`: it is not known how
    /// many bytes the kernel counted.
    #[inline]
    pub(super) fn count_read(&mut self, len: Option<usize>) {
        self.sent = self.sent.zip(len).map(|(sent, len)| Sent {
            packets: sent.packets.wrapping_add(1),
            bytes: sent.bytes.wrapping_add(len.saturating_sub(HEADER_BYTES) as u64),
        });
    }

    /// Takes the buffer entered last out again.
    #[inline]
    pub(super) fn undo(&mut self) {
        self.words.publish(COUNT, self.count as u64);
    }

    /// Notes the length of header and packet in the buffer entered last.
    #[inline]
    pub(super) fn end(&mut self, buffer: u32, len: usize) {
        self.words.publish(FIRST + self.count, u64::from(buffer) << 32 | len as u64);
        self.count += 1;
    }
}

/// What an earlier server had in hand: headers and packets, in their order. `None` for a packet that
/// cannot be read, or that the server was reading.
pub(super) type Left = Vec<Option<Vec<u8>>>;

/// Reads the packets that an earlier server had in hand, and behind them those that its predecessor had left
/// and it did not receive.
///
/// `sent`: the kernel's present counts of the interface.
pub(super) fn left(earlier: &EarlierObjects, sent: Option<Sent>) -> io::Result<Left> {
    // A server stores its ledger after the file of the packets that were left, and polls after both. So a later server
    // without a ledger received nothing.
    let servers = earlier.with_prefix(LEDGER).filter(|(rest, ..)| rest.is_empty());
    let Some(server) = servers.map(|(_, server, _)| server).max() else { return Ok(Left::new()) };
    let object = |name: &str| Ok::<_, io::Error>(earlier.copy_of(name, server)?.map(File::from));
    let mut left = Left::new();
    // A server that did not store its memory had nothing in hand.
    if let (Some(ledger), Some(memory)) = (object(LEDGER)?, object(MEMORY)?) {
        let count = (word(&ledger, COUNT)? as usize).min(MOST);
        for entry in FIRST..FIRST + count {
            let entry = word(&ledger, entry)?;
            let from = (entry >> 32) + SKIPPED;
            match entry as u32 as usize {
                0 => match being_read(&ledger, sent)? {
                    Some(0) => {}
                    Some(len) => left.push(packet(&memory, from, HEADER_BYTES + len).ok()),
                    None => left.push(None),
                },
                len => left.push(packet(&memory, from, len).ok()),
            }
        }
    }
    if let Some(file) = object(LEFT)? {
        left.extend(LeftFile::read(&file)?);
    }
    Ok(left)
}

/// Returns the length of the packet that a server was reading when it was killed, by the kernel's present
/// counts; 0 if the read took no packet. `None` if the length is not known.
fn being_read(ledger: &File, sent: Option<Sent>) -> io::Result<Option<usize>> {
    let (packets, bytes) = (word(ledger, SENT_PACKETS)?, word(ledger, SENT_BYTES)?);
    let Some(sent) = sent.filter(|_| packets > 0) else { return Ok(None) };
    Ok(match (sent.packets.wrapping_sub(packets - 1), sent.bytes.wrapping_sub(bytes)) {
        (0, 0) => Some(0),
        (1, len @ 1..) if len <= crate::LARGE_FRAME_BYTES as u64 => Some(len as usize),
        _ => None,
    })
}

fn word(file: &File, at: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64 * 8)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn packet(memory: &File, from: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len.min(HEADER_BYTES + crate::LARGE_FRAME_BYTES)];
    memory.read_exact_at(&mut bytes, from)?;
    Ok(bytes)
}

/// The words of the file of the packets that are left: the number of packets that its server has received,
/// the number of all packets, and the length of each. The packets follow.
const TAKEN: usize = 0;
const PACKETS: usize = 1;
const LENGTHS: usize = 2;

/// The most packets in such a file: the packets that a server had in hand, and those of the file before that
/// it had not received. A server receives the file's packets before all other packets.
const MOST_LEFT: usize = 2 * MOST;

/// The file of the packets that an earlier server had in hand. The driver notes there which packets it has
/// received, once they are in its own ledger.
#[derive(Debug)]
pub(super) struct LeftFile {
    words: OwnWords,
    taken: usize,
}

impl LeftFile {
    /// Makes the file of these packets.
    pub(super) fn file(packets: &VecDeque<Vec<u8>>) -> io::Result<OwnedFd> {
        let (mut region, file) = Region::in_kept_file("towpath-left", LeftFile::bytes(packets))?;
        let mut at = (LENGTHS + packets.len()) * 8;
        for packet in packets {
            if !region.copy_in(at, packet) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            at += packet.len();
        }
        let mut words = own_words(region);
        for (number, packet) in packets.iter().enumerate() {
            words.store(LENGTHS + number, packet.len() as u64);
        }
        words.store(PACKETS, packets.len() as u64);
        Ok(file)
    }

    /// Begins to note which packets of a file are received. `packets`: all packets of the file.
    pub(super) fn new(file: OwnedFd, packets: &VecDeque<Vec<u8>>) -> io::Result<LeftFile> {
        let (region, _) = Region::of_earlier_file(file, LeftFile::bytes(packets))?;
        Ok(LeftFile { words: own_words(region), taken: 0 })
    }

    fn bytes(packets: &VecDeque<Vec<u8>>) -> usize {
        let of_packets = packets.iter().map(Vec::len).sum::<usize>();
        ((LENGTHS + packets.len()) * 8 + of_packets).next_multiple_of(8)
    }

    /// Notes that the driver has received the next packet, or dropped it.
    pub(super) fn take(&mut self) {
        self.taken += 1;
        self.words.publish(TAKEN, self.taken as u64);
    }

    /// Reads the packets that the file's server did not receive.
    fn read(file: &File) -> io::Result<Left> {
        let count = (word(file, PACKETS)? as usize).min(MOST_LEFT);
        let taken = word(file, TAKEN)? as usize;
        let mut from = ((LENGTHS + count) * 8) as u64;
        let mut left = Left::new();
        for number in 0..count {
            let len = word(file, LENGTHS + number)?;
            if number >= taken {
                left.push(packet(file, from, len as usize).ok());
            }
            from = from.saturating_add(len);
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: u32 = 4096;

    /// A memory with a packet in two buffers, and the objects that a server leaves.
    fn earlier(ledger: &OwnedFd, frames: &[&[u8]]) -> EarlierObjects {
        let (mut region, memory) = Region::in_kept_file("towpath-packets", 64 << 10).unwrap();
        for (number, frame) in (0..).zip(frames) {
            let at = number * BUFFER as usize + POOL_HEADROOM_BYTES;
            assert!(region.copy_in(at, frame));
        }
        let mut earlier = EarlierObjects::new(false);
        earlier.add(LEDGER, 0, ledger.try_clone().unwrap());
        earlier.add(MEMORY, 0, memory);
        earlier
    }

    fn frame(kind: [u8; 2], payload: &[u8]) -> Vec<u8> {
        [&[2; 6][..], &[4; 6], &kind, payload].concat()
    }

    /// An IPv4 packet of 30 bytes.
    fn ipv4() -> Vec<u8> {
        frame([0x08, 0x00], &[&[0x45, 0, 0, 30][..], &[7; 26]].concat())
    }

    #[test]
    fn packets_in_hand_are_found() {
        let file = PacketsInHand::file().unwrap();
        let mut hand = PacketsInHand::new(file.try_clone().unwrap(), None).unwrap();
        let (first, second) = (ipv4(), frame([0x88, 0xb5], &[9; 50]));
        let earlier = earlier(&file, &[&first, &second, &first, &second, &[]]);
        let of_buffers = |left: Left| -> Vec<_> {
            left.into_iter().map(|one| one.map(|bytes| bytes[HEADER_BYTES..].to_vec())).collect()
        };
        assert!(left(&earlier, None).unwrap().is_empty());
        hand.begin(0);
        hand.end(0, HEADER_BYTES + first.len());
        hand.begin(BUFFER);
        hand.end(BUFFER, HEADER_BYTES + second.len());
        let both = vec![Some(first.clone()), Some(second)];
        assert_eq!(of_buffers(left(&earlier, None).unwrap()), both);
        // Killed while it read.
        hand.begin(2 * BUFFER);
        let third = [&both[..], &[None]].concat();
        assert_eq!(of_buffers(left(&earlier, None).unwrap()), third);
        hand.undo();
        assert_eq!(of_buffers(left(&earlier, None).unwrap()), both);
        // A length that the memory does not have.
        hand.begin(15 * BUFFER);
        hand.end(15 * BUFFER, 60_000);
        assert_eq!(left(&earlier, None).unwrap().last(), Some(&None));
        hand.clear();
        assert!(left(&earlier, None).unwrap().is_empty());
    }

    /// The kernel's counts tell whether the last read took a packet, and how long the packet is.
    #[test]
    fn a_packet_that_was_being_read_is_found() {
        let file = PacketsInHand::file().unwrap();
        let start = Sent { packets: 5, bytes: 700 };
        let mut hand = PacketsInHand::new(file.try_clone().unwrap(), Some(start)).unwrap();
        let (first, second) = (ipv4(), frame([0x88, 0xb5], &[9; 50]));
        let earlier = earlier(&file, &[&first, &second]);
        hand.begin(0);
        let after = |packets: u64, len: usize| {
            let sent = Sent { packets: 5 + packets, bytes: 700 + len as u64 };
            let left = left(&earlier, Some(sent)).unwrap();
            left.into_iter()
                .map(|one| one.map(|bytes| bytes[HEADER_BYTES..].to_vec()))
                .collect::<Vec<_>>()
        };
        let nothing: Vec<Option<Vec<u8>>> = Vec::new();
        assert_eq!(after(0, 0), nothing);
        assert_eq!(after(1, first.len()), [Some(first.clone())]);
        assert_eq!(after(2, 90), [None], "another process has also read");
        assert_eq!(after(1, 1 << 20), [None]);
        hand.count_read(Some(HEADER_BYTES + first.len()));
        hand.end(0, HEADER_BYTES + first.len());
        hand.begin(BUFFER);
        assert_eq!(after(1, first.len()), [Some(first.clone())], "the second read took none");
        let both = first.len() + second.len();
        assert_eq!(after(2, both), [Some(first.clone()), Some(second)]);
        // Once a length is not known, no later one is.
        hand.count_read(None);
        hand.undo();
        hand.begin(BUFFER);
        assert_eq!(after(2, both), [Some(first), None]);
    }

    #[test]
    fn a_full_hand_says_so() {
        let mut hand = PacketsInHand::new(PacketsInHand::file().unwrap(), None).unwrap();
        for buffer in 0..MOST as u32 {
            assert!(!hand.is_full());
            hand.begin(buffer);
            hand.end(buffer, 60);
        }
        assert!(hand.is_full());
    }
}
