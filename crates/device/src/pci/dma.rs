//! Memory that the device reaches, through the IOMMU.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use towpath_memory::Mapping;

use super::iova::Addresses;
use super::vfio::Vfio;
use crate::dma::{Access, Dma, DmaError};

/// The memories in a device's address space.
#[derive(Debug)]
pub(super) struct PciDma {
    vfio: Arc<Vfio>,
    addresses: Mutex<Addresses>,
}

impl PciDma {
    pub(super) fn new(vfio: Arc<Vfio>) -> io::Result<PciDma> {
        let addresses = Mutex::new(Addresses::new(&vfio.address_ranges()?));
        Ok(PciDma { vfio, addresses })
    }

    fn map(&self, memory: &Mapping, access: Access) -> io::Result<u64> {
        let bytes = memory.mapped_bytes() as u64;
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let no_room = || io::Error::from_raw_os_error(libc::ENOSPC);
        let address = addresses.allocate(bytes).ok_or_else(no_room)?;
        let start = memory.start().as_ptr();
        let mapped = self.vfio.map(start, bytes, address, access == Access::ReadWrite);
        if let Err(cause) = mapped {
            addresses.free(address);
            return Err(match cause.raw_os_error() {
                Some(libc::ENOMEM) => io::Error::other(
                    "beyond the limit of locked memory; raise it (ulimit -l, LimitMEMLOCK=)",
                ),
                _ => cause,
            });
        }
        Ok(address)
    }
}

impl Dma for PciDma {
    fn register(&self, memory: &Arc<Mapping>, access: Access) -> Result<u64, DmaError> {
        self.map(memory, access).map_err(|cause| DmaError { bytes: memory.len(), cause })
    }

    fn unregister(&self, address: u64) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bytes) = addresses.bytes(address) else { return };
        // A range that the kernel does not unmap is not used again.
        if self.vfio.unmap(address, bytes).is_ok() {
            addresses.free(address);
        }
    }
}
