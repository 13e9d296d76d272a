//! The packets that a server has in hand: those that its driver has read from a TAP and that the engine
//! has not handled yet. A ledger of them outlives the server, and so does the memory that they are in. The
//! next server's driver receives them again.
//!
//! A server can be killed between the kernel's write of a packet and the driver's next store. So the
//! driver enters the buffer before it reads. The next server counts such an entry as a dropped packet:
//! only the read knew the length, and a length that the packet claims could reach older packets' bytes.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use towpath_memory::{Region, own_words};
use towpath_queue::OwnWords;

use crate::virtio::HEADER_BYTES;
use crate::{EarlierObjects, POOL_HEADROOM_BYTES};

/// The name of the ledger among the objects that outlive a server. It ends with the number of its
/// layout.
pub(super) const LEDGER: &str = "device-tap-hand-1";
/// The name of the memory of the first lane's packets, which the server stores.
const MEMORY: &str = "device-memory-0";
/// The packets that can be in hand.
pub(super) const MOST: usize = 500;

/// The number of entries, and the first entry.
const COUNT: usize = 0;
const FIRST: usize = 1;
const BYTES: usize = (FIRST + MOST) * 8;

/// The bytes in front of a pool buffer's header.
const SKIPPED: u64 = (POOL_HEADROOM_BYTES - HEADER_BYTES) as u64;
/// The ledger: words that the driver alone writes, and the next server reads after its end. An entry
/// has the buffer's offset in its upper half, and in the lower half the length of the header and the
/// packet; 0: the driver reads.
#[derive(Debug)]
pub(super) struct Hand {
    words: OwnWords,
    count: usize,
}

impl Hand {
    /// Makes the file of a ledger.
    pub(super) fn file() -> io::Result<OwnedFd> {
        Ok(Region::in_kept_file("towpath-hand", BYTES)?.1)
    }

    /// Begins with an empty ledger in this file, which no other ledger uses.
    pub(super) fn new(file: OwnedFd) -> io::Result<Hand> {
        let (region, _) = Region::of_earlier_file(file, BYTES)?;
        let mut words = own_words(region);
        words.publish(COUNT, 0);
        Ok(Hand { words, count: 0 })
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
        self.words.publish(FIRST + self.count, u64::from(buffer) << 32);
        self.words.publish(COUNT, self.count as u64 + 1);
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

/// Reads what an earlier server had in hand.
pub(super) fn left(earlier: &EarlierObjects) -> io::Result<Left> {
    let (Some(ledger), Some(memory)) = (earlier.copy(LEDGER)?, earlier.copy(MEMORY)?) else {
        return Ok(Left::new());
    };
    let (ledger, memory) = (File::from(ledger), File::from(memory));
    let word = |at: usize| -> io::Result<u64> {
        let mut bytes = [0; 8];
        ledger.read_exact_at(&mut bytes, at as u64 * 8)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let count = (word(COUNT)? as usize).min(MOST);
    let mut left = Left::new();
    for entry in FIRST..FIRST + count {
        let entry = word(entry)?;
        let from = (entry >> 32) + SKIPPED;
        match entry as u32 as usize {
            0 => left.push(None),
            len => left.push(packet(&memory, from, len).ok()),
        }
    }
    Ok(left)
}

fn packet(memory: &File, from: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len.min(HEADER_BYTES + crate::LARGE_FRAME_BYTES)];
    memory.read_exact_at(&mut bytes, from)?;
    Ok(bytes)
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
        let file = Hand::file().unwrap();
        let mut hand = Hand::new(file.try_clone().unwrap()).unwrap();
        let (first, second) = (ipv4(), frame([0x88, 0xb5], &[9; 50]));
        let earlier = earlier(&file, &[&first, &second, &first, &second, &[]]);
        let of_buffers = |left: Left| -> Vec<_> {
            left.into_iter().map(|one| one.map(|bytes| bytes[HEADER_BYTES..].to_vec())).collect()
        };
        assert!(left(&earlier).unwrap().is_empty());
        hand.begin(0);
        hand.end(0, HEADER_BYTES + first.len());
        hand.begin(BUFFER);
        hand.end(BUFFER, HEADER_BYTES + second.len());
        let both = vec![Some(first.clone()), Some(second)];
        assert_eq!(of_buffers(left(&earlier).unwrap()), both);
        // Killed while it read.
        hand.begin(2 * BUFFER);
        let third = [&both[..], &[None]].concat();
        assert_eq!(of_buffers(left(&earlier).unwrap()), third);
        hand.undo();
        assert_eq!(of_buffers(left(&earlier).unwrap()), both);
        // A length that the memory does not have.
        hand.begin(15 * BUFFER);
        hand.end(15 * BUFFER, 60_000);
        assert_eq!(left(&earlier).unwrap().last(), Some(&None));
        hand.clear();
        assert!(left(&earlier).unwrap().is_empty());
    }

    #[test]
    fn a_full_hand_says_so() {
        let mut hand = Hand::new(Hand::file().unwrap()).unwrap();
        for buffer in 0..MOST as u32 {
            assert!(!hand.is_full());
            hand.begin(buffer);
            hand.end(buffer, 60);
        }
        assert!(hand.is_full());
    }
}
