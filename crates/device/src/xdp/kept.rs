//! Sockets of an earlier server that this one goes on with.
//!
//! A keeper holds copies of a server's sockets, with their memory and a ledger of the holder of
//! each receive buffer. So the kernel goes on receiving when the server is killed, and the next
//! server goes on with all of it: the packets in the rings are kept, none is copied, and the kernel
//! frees no hardware queue, which would take several RCU grace periods. That needs copies by the
//! kernel: a driver that works without copies has buffers that no ring names.
//!
//! What the earlier server had handed to the kernel to send, and the kernel had not taken, is taken
//! back: its sessions have it still.

use std::io;
use std::os::fd::OwnedFd;

use towpath_memory::Region;

use super::ledger::{ChunkLedger, Shape};

/// The socket of a hardware queue, with the memory of its lane.
pub(super) struct LeftSocket {
    pub(super) hardware: u32,
    pub(super) socket: OwnedFd,
    pub(super) memory: OwnedFd,
}

/// What a lane can go on with.
pub(super) struct Kept {
    pub(super) sockets: Vec<LeftSocket>,
    ledger_file: OwnedFd,
    /// `Some` once it is decided that the lane goes on with all this.
    pub(super) ledger: Option<ChunkLedger>,
    /// `true` if the packets that wait are dropped, because one of them may have made the earlier
    /// server crash.
    pub(super) drops: bool,
}

impl Kept {
    pub(super) fn new(ledger_file: OwnedFd, drops: bool) -> Kept {
        Kept { sockets: Vec::new(), ledger_file, ledger: None, drops }
    }

    /// Returns the file of the memory, of so many bytes, if the lane goes on with it. `shape`: that of
    /// the ledger, then.
    pub(super) fn memory(&mut self, bytes: usize, shape: &Shape) -> io::Result<Option<OwnedFd>> {
        let Some(first) = self.sockets.first() else { return Ok(None) };
        if !Region::is_file_of(&first.memory, bytes) {
            return Ok(None);
        }
        let memory = first.memory.try_clone()?;
        self.ledger = ChunkLedger::of_earlier(self.ledger_file.try_clone()?, shape)?;
        Ok(self.ledger.is_some().then_some(memory))
    }
}
