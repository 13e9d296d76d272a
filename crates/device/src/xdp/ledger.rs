//! The ledger of a queue's receive buffers, which outlives the server.

use std::io;
use std::os::fd::OwnedFd;

use towpath_memory::{Region, own_words};
use towpath_queue::OwnWords;

use super::socket::{CopyMode, RX_ENTRIES, TX_ENTRIES, TxChecksum};

/// The number of the layout, in the first word.
const LAYOUT: u64 = u64::from_le_bytes(*b"AfXdpLg1");
/// The words of the header, which the other words follow: the kernel's count of dropped packets of each
/// socket, and the holder of each receive buffer.
const HEADER_WORDS: usize = 8;

/// The sizes and the binding options with which a ledger was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) chunk_bytes: u32,
    pub(super) chunks: u32,
    pub(super) sockets: u32,
    /// How the sockets are bound.
    pub(super) spans: bool,
    pub(super) copying: CopyMode,
    pub(super) tx_checksum: TxChecksum,
    pub(super) busy_poll: bool,
}

impl Shape {
    fn words(&self) -> [u64; HEADER_WORDS] {
        let binding =
            u64::from(self.spans) | u64::from(self.busy_poll) << 1 | (self.copying as u64) << 2;
        let tx_checksum = self.tx_checksum as u64;
        let [chunk_bytes, chunks, sockets] =
            [self.chunk_bytes, self.chunks, self.sockets].map(u64::from);
        let [tx, rx] = [TX_ENTRIES, RX_ENTRIES].map(u64::from);
        [LAYOUT, chunk_bytes, chunks, sockets, binding, tx_checksum, tx, rx]
    }

    fn bytes(&self) -> usize {
        (HEADER_WORDS + (self.sockets + self.chunks) as usize) * 8
    }
}

/// The ledger: words that the queue alone writes, and the next server reads after its end.
pub(super) struct ChunkLedger {
    words: OwnWords,
    sockets: usize,
    /// The file that a keeper can hold.
    pub(super) file: OwnedFd,
}

impl ChunkLedger {
    /// Makes a ledger in which the engine has all buffers.
    pub(super) fn new(shape: &Shape) -> io::Result<ChunkLedger> {
        let (region, file) = Region::in_kept_file("towpath-buffers", shape.bytes())?;
        let mut ledger =
            ChunkLedger { words: own_words(region), sockets: shape.sockets as usize, file };
        for (at, word) in shape.words().into_iter().enumerate() {
            ledger.words.store(at, word);
        }
        Ok(ledger)
    }

    /// Goes on with the ledger of an earlier server; `None` if its shape differs.
    pub(super) fn of_earlier(file: OwnedFd, shape: &Shape) -> io::Result<Option<ChunkLedger>> {
        if !Region::is_file_of(&file, shape.bytes()) {
            return Ok(None);
        }
        let (region, file) = Region::of_earlier_file(file, shape.bytes())?;
        let ledger =
            ChunkLedger { words: own_words(region), sockets: shape.sockets as usize, file };
        let is_same =
            shape.words().into_iter().enumerate().all(|(at, word)| ledger.words.get(at) == word);
        Ok(is_same.then_some(ledger))
    }

    /// Returns the holder of a buffer, as [`ChunkLedger::set`] noted it.
    pub(super) fn get(&self, chunk: usize) -> u64 {
        self.words.get(HEADER_WORDS + self.sockets + chunk)
    }

    /// Notes the holder of a buffer.
    #[inline]
    pub(super) fn set(&mut self, chunk: usize, holder: u64) {
        self.words.store(HEADER_WORDS + self.sockets + chunk, holder);
    }

    /// Returns the kernel's count of dropped packets of a socket, as last noted.
    pub(super) fn drops(&self, socket: usize) -> u64 {
        if socket < self.sockets { self.words.get(HEADER_WORDS + socket) } else { 0 }
    }

    /// Notes the kernel's count of dropped packets of a socket.
    pub(super) fn note_drops(&mut self, socket: usize, drops: u64) {
        if socket < self.sockets {
            self.words.store(HEADER_WORDS + socket, drops);
        }
    }
}
