//! Memory that a device reaches by itself: registered before the device uses it, and until nothing
//! of it is in flight.

use std::io;
use std::sync::Arc;

use towpath_memory::Mapping;

/// A device refuses a memory. The engine then copies what it sends from there.
#[derive(Debug, thiserror::Error)]
#[error("the device cannot reach a memory of {bytes} bytes: {cause}")]
pub struct DmaError {
    /// The size of the memory.
    pub bytes: usize,
    /// The kernel's error, or `ENOSPC` for a limit of the device.
    pub cause: io::Error,
}

impl From<DmaError> for io::Error {
    fn from(error: DmaError) -> io::Error {
        io::Error::other(error)
    }
}

/// The accesses that a device has to a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads the memory, to send from it.
    Read,
    /// The device also writes the memory, to receive into it.
    ReadWrite,
}

/// Makes memory reachable for a device. Any thread may call it, while the device works.
pub trait Dma: Send + Sync {
    /// Maps a memory for the device. Returns the address at which the device finds it.
    ///
    /// # Errors
    /// When the device or the kernel refuses the memory.
    fn register(&self, memory: &Arc<Mapping>, access: Access) -> Result<u64, DmaError>;

    /// Unmaps the memory at an address that [`Dma::register`] returned.
    fn unregister(&self, address: u64);
}

/// A registered memory. The device reaches it until the last clone is dropped, which keeps the
/// memory mapped, too. A data space has a clone, and the engine removes a space only when no packet
/// of it is in flight. So the unregistration waits for these packets.
#[derive(Clone)]
pub struct Registration {
    registered: Arc<Registered>,
}

struct Registered {
    dma: Arc<dyn Dma>,
    address: u64,
    memory: Arc<Mapping>,
}

impl Registration {
    /// Registers a memory.
    ///
    /// # Errors
    /// When the device or the kernel refuses the memory.
    pub fn new(
        dma: &Arc<dyn Dma>,
        memory: &Arc<Mapping>,
        access: Access,
    ) -> Result<Registration, DmaError> {
        let address = dma.register(memory, access)?;
        let registered = Registered { dma: dma.clone(), address, memory: memory.clone() };
        Ok(Registration { registered: Arc::new(registered) })
    }

    /// Returns the device's address of the memory's first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.registered.address
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Registered { address, memory, .. } = &*self.registered;
        f.debug_struct("Registration")
            .field("address", address)
            .field("bytes", &memory.len())
            .finish()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.dma.unregister(self.address);
    }
}
