//! PCI network cards, driven from this process behind an IOMMU, through VFIO.
//!
//! The kernel has no network interface for such a card: it belongs to the server alone. The IOMMU lets the
//! card reach the memories that the driver registers, and no other memory of the host.
//!
//! | part | is |
//! |---|---|
//! | [`e1000e`] | the driver of the Intel 82574L |
//! | `vfio` | the card's registers, interrupts and address space, as the kernel gives them |
//! | `registers`, `sigbus` | mapped registers, also those of a card that is gone |
//! | `dma`, `iova` | memories in the card's address space |

mod address;
mod dma;
pub mod e1000e;
mod error;
mod iova;
mod registers;
mod sigbus;
mod vfio;

pub use address::{PciAddress, PciAddressError};
pub use error::PciError;
