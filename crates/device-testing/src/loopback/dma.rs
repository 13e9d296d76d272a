//! The addresses of a device that reaches only registered memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_device::{Access, Dma, DmaError};
use towpath_memory::{Mapping, PAGE_BYTES};

/// Registers memories up to a number of bytes, each at an address of its own.
pub(super) struct LoopbackDma {
    limit: usize,
    registered: Mutex<Registered>,
}

#[derive(Default)]
struct Registered {
    /// The bytes at each address.
    memories: BTreeMap<u64, usize>,
    next: u64,
}

impl LoopbackDma {
    pub(super) fn new(limit: usize) -> LoopbackDma {
        LoopbackDma { limit, registered: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of registered bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lock().memories.values().sum()
    }
}

impl Dma for LoopbackDma {
    fn register(&self, memory: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        let bytes = memory.len();
        let mut registered = self.lock();
        let used: usize = registered.memories.values().sum();
        if used + bytes > self.limit {
            return Err(DmaError { bytes, cause: io::Error::from_raw_os_error(libc::ENOSPC) });
        }
        // An unmapped page lies between two memories, and the first one does not begin at 0.
        let address = registered.next + PAGE_BYTES as u64;
        registered.next = (address + bytes as u64).next_multiple_of(PAGE_BYTES as u64);
        registered.memories.insert(address, bytes);
        Ok(address)
    }

    fn unregister(&self, address: u64) {
        self.lock().memories.remove(&address);
    }
}
