//! Sockets of an earlier server that this one goes on with.
//!
//! A keeper holds copies of a server's sockets, with their memory and a ledger of who has which receive
//! buffer. So the kernel goes on receiving when the server is killed, and the next server goes on with
//! all of it: no packet is lost or copied, and the kernel frees nothing, which takes it long. That needs
//! copies by the kernel: a driver that works without copies has buffers that no ring names.
//!
//! What the earlier server had handed to the kernel to send, and the kernel had not taken, is taken
//! back: its sessions have it still.

use std::io;
use std::os::fd::OwnedFd;

use towpath_memory::{Region, own_words};
use towpath_queue::OwnWords;

use super::left_packets::LeftSocket;
use super::shared::Properties;
use super::socket::{RING_ENTRIES, TxChecksum};

/// The name under which a keeper holds the ledger of a lane, before the lane's number.
pub(super) const LEDGER: &str = "device-ledger-";

/// The words of a ledger: what it is of, the kernel's count of dropped packets of each socket, and
/// the holder of each receive buffer.
const LAYOUT: u64 = u64::from_le_bytes(*b"AfXdpLg1");
const DROPS: usize = 8;

/// What a lane can go on with.
pub(super) struct Kept {
    pub(super) sockets: Vec<LeftSocket>,
    ledger_file: OwnedFd,
    /// `Some` once it is decided that the lane goes on with all this.
    pub(super) ledger: Option<Ledger>,
    /// `true` if the packets that wait are dropped, because one of them may have made the earlier
    /// server crash.
    pub(super) drops: bool,
}

impl Kept {
    pub(super) fn new(ledger_file: OwnedFd, drops: bool) -> Kept {
        Kept { sockets: Vec::new(), ledger_file, ledger: None, drops }
    }

    /// Returns the file of the memory, of so many bytes, if the lane goes on with it. `shape`: what
    /// the ledger is of, then.
    pub(super) fn memory(&mut self, bytes: usize, shape: &Shape) -> io::Result<Option<OwnedFd>> {
        let Some(first) = self.sockets.first() else { return Ok(None) };
        if !Region::is_file_of(&first.memory, bytes) {
            return Ok(None);
        }
        let memory = first.memory.try_clone()?;
        self.ledger = Ledger::of_earlier(self.ledger_file.try_clone()?, shape)?;
        Ok(self.ledger.is_some().then_some(memory))
    }
}

/// What a ledger is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    chunk_bytes: u32,
    chunks: u32,
    sockets: u32,
    /// How the sockets are bound.
    spans: bool,
    tx_checksum: TxChecksum,
    busy_poll: bool,
}

impl Shape {
    /// Returns the shape of a lane's sockets with so many receive buffers.
    pub(super) fn new(properties: &Properties, sockets: usize, chunks: u32) -> Shape {
        Shape {
            chunk_bytes: properties.chunk_bytes,
            chunks,
            sockets: sockets as u32,
            spans: properties.binding.spans,
            tx_checksum: properties.tx_checksum,
            busy_poll: properties.busy_poll,
        }
    }

    fn words(&self) -> [u64; DROPS] {
        let binding = u64::from(self.spans) | u64::from(self.busy_poll) << 1;
        let tx_checksum = self.tx_checksum as u64;
        let [chunk_bytes, chunks, sockets] =
            [self.chunk_bytes, self.chunks, self.sockets].map(u64::from);
        [LAYOUT, chunk_bytes, chunks, sockets, binding, tx_checksum, u64::from(RING_ENTRIES), 0]
    }

    fn bytes(&self) -> usize {
        (DROPS + (self.sockets + self.chunks) as usize) * 8
    }
}

/// The ledger: words that the queue alone writes, and the next server reads after its end.
pub(super) struct Ledger {
    words: OwnWords,
    sockets: usize,
    /// The file that a keeper can hold.
    pub(super) file: OwnedFd,
}

impl Ledger {
    /// Makes a ledger in which the engine has all buffers.
    pub(super) fn new(shape: &Shape) -> io::Result<Ledger> {
        let (region, file) = Region::in_kept_file("towpath-buffers", shape.bytes())?;
        let mut ledger = Ledger { words: own_words(region), sockets: shape.sockets as usize, file };
        for (at, word) in shape.words().into_iter().enumerate() {
            ledger.words.store(at, word);
        }
        Ok(ledger)
    }

    /// Goes on with the ledger of an earlier server; `None` if it is of something else.
    fn of_earlier(file: OwnedFd, shape: &Shape) -> io::Result<Option<Ledger>> {
        if !Region::is_file_of(&file, shape.bytes()) {
            return Ok(None);
        }
        let (region, file) = Region::of_earlier_file(file, shape.bytes())?;
        let ledger = Ledger { words: own_words(region), sockets: shape.sockets as usize, file };
        let is_same =
            shape.words().into_iter().enumerate().all(|(at, word)| ledger.words.get(at) == word);
        Ok(is_same.then_some(ledger))
    }

    /// Returns the holder of a buffer, as [`Ledger::set`] noted it.
    pub(super) fn get(&self, chunk: usize) -> u64 {
        self.words.get(DROPS + self.sockets + chunk)
    }

    /// Notes the holder of a buffer.
    #[inline]
    pub(super) fn set(&mut self, chunk: usize, holder: u64) {
        self.words.store(DROPS + self.sockets + chunk, holder);
    }

    /// Returns the kernel's count of dropped packets of a socket, as last noted.
    pub(super) fn drops(&self, socket: usize) -> u64 {
        if socket < self.sockets { self.words.get(DROPS + socket) } else { 0 }
    }

    /// Notes the kernel's count of dropped packets of a socket.
    pub(super) fn note_drops(&mut self, socket: usize, drops: u64) {
        if socket < self.sockets {
            self.words.store(DROPS + socket, drops);
        }
    }
}
