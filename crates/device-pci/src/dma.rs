//! Memory that the device reaches, through the IOMMU.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_device::{Access, Dma, DmaError};
use towpath_memory::{Mapping, PAGE_BYTES};

use super::iova::{Addresses, OF_SESSIONS, OWN};
use super::vfio::Vfio;

/// The memories in a device's address space.
#[derive(Debug)]
pub(super) struct PciDma {
    vfio: Arc<Vfio>,
    space: Mutex<Space>,
}

#[derive(Debug)]
struct Space {
    /// Memories that the device writes: those of the driver and the engine.
    own: Addresses,
    of_sessions: Addresses,
    /// The addresses and the bytes of the driver's own memories, in the order of their registration.
    registered: Vec<(u64, u64)>,
    /// Those that an earlier server has mapped, and that are not registered again yet.
    left: Vec<(u64, u64)>,
}

impl PciDma {
    /// Creates the address space of a device that reaches nothing yet.
    pub(super) fn new(vfio: Arc<Vfio>) -> io::Result<PciDma> {
        let ranges = vfio.address_ranges()?;
        let space = Space {
            own: Addresses::new(&ranges, &OWN),
            of_sessions: Addresses::new(&ranges, &OF_SESSIONS),
            registered: Vec::new(),
            left: Vec::new(),
        };
        Ok(PciDma { vfio, space: Mutex::new(space) })
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with memories that an earlier server mapped: the next registrations of the driver are these.
    /// Unmaps all memories of that server's sessions.
    pub(super) fn go_on(&self, memories: &[(u64, u64)]) -> io::Result<()> {
        let mut space = self.space();
        self.unmap_all(&space.of_sessions)?;
        memories.clone_into(&mut space.left);
        Ok(())
    }

    /// Unmaps everything that an earlier server mapped.
    pub(super) fn begin_anew(&self) -> io::Result<()> {
        let mut space = self.space();
        self.unmap_all(&space.own)?;
        self.unmap_all(&space.of_sessions)?;
        space.left.clear();
        Ok(())
    }

    fn unmap_all(&self, addresses: &Addresses) -> io::Result<()> {
        for range in addresses.ranges() {
            // No range begins at 0, so its size fits.
            let pages = (range.end() - range.start() + 1) / PAGE_BYTES as u64;
            match self.vfio.unmap(*range.start(), pages * PAGE_BYTES as u64) {
                // What stands in for VFIO of type 1 may say so of a range in which nothing is mapped.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                unmapped => unmapped?,
            }
        }
        Ok(())
    }

    /// Returns the addresses and the bytes of the driver's own memories, in the order of their registration.
    pub(super) fn own_memories(&self) -> Vec<(u64, u64)> {
        self.space().registered.clone()
    }

    fn map(&self, memory: &Mapping, access: Access, is_own: bool) -> io::Result<u64> {
        let bytes = memory.mapped_bytes() as u64;
        let mut space = self.space();
        let addresses = if is_own { &mut space.own } else { &mut space.of_sessions };
        let no_room = || io::Error::from_raw_os_error(libc::ENOSPC);
        let address = addresses.allocate(bytes).ok_or_else(no_room)?;
        let is_left = space.left.iter().position(|one| *one == (address, bytes));
        let mapped = match is_left {
            Some(at) => {
                space.left.swap_remove(at);
                Ok(())
            }
            None => {
                self.vfio.map(memory.start().as_ptr(), bytes, address, access == Access::ReadWrite)
            }
        };
        if let Err(cause) = mapped {
            space.free(address);
            return Err(match cause.raw_os_error() {
                Some(libc::ENOMEM) => io::Error::other(
                    "beyond the limit of locked memory; raise it (ulimit -l, LimitMEMLOCK=)",
                ),
                _ => cause,
            });
        }
        if is_own {
            space.registered.push((address, bytes));
        }
        Ok(address)
    }
}

impl Space {
    /// Returns the bytes of a range in use.
    fn bytes(&self, address: u64) -> Option<u64> {
        self.own.bytes(address).or_else(|| self.of_sessions.bytes(address))
    }

    fn free(&mut self, address: u64) {
        if self.own.free(address).is_none() {
            self.of_sessions.free(address);
        }
        self.registered.retain(|(at, _)| *at != address);
    }
}

impl Dma for PciDma {
    fn register(&self, memory: &Arc<Mapping>, access: Access) -> Result<u64, DmaError> {
        let is_own = access == Access::ReadWrite;
        self.map(memory, access, is_own).map_err(|cause| DmaError { bytes: memory.len(), cause })
    }

    fn unregister(&self, address: u64) {
        let mut space = self.space();
        let Some(bytes) = space.bytes(address) else { return };
        // A range that the kernel does not unmap is not used again.
        if self.vfio.unmap(address, bytes).is_ok() {
            space.free(address);
        }
    }
}

/// The memories of sessions' own queues, which the device also writes. A next server unmaps these with all others of
/// sessions.
#[derive(Debug)]
pub(super) struct OfSessions(pub(super) Arc<PciDma>);

impl Dma for OfSessions {
    fn register(&self, memory: &Arc<Mapping>, access: Access) -> Result<u64, DmaError> {
        let OfSessions(dma) = self;
        dma.map(memory, access, false).map_err(|cause| DmaError { bytes: memory.len(), cause })
    }

    fn unregister(&self, address: u64) {
        self.0.unregister(address);
    }
}
