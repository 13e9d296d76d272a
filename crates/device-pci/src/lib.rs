//! PCI network cards, driven from this process behind an IOMMU, through VFIO.
//!
//! Only the server uses such a card; the kernel has no network interface for it. The IOMMU lets the card reach the
//! memories that the driver registers, and no other memory of the host.
//!
//! | part | is |
//! |---|---|
//! | [`e1000e`] | the driver of the Intel 82574L |
//! | [`virtio_net`] | the driver of virtio cards |
//! | `vfio` | the card's registers, interrupts and address space, as the kernel gives them |
//! | `registers`, `sigbus` | mapped registers, and their values once a card is gone |
//! | `dma`, `iova` | memories at device addresses |
//! | `events` | changes of a link, and the removal of a card |
//! | `signals` | eventfds for interrupts, and waits that end |

mod address;
mod dma;
pub mod e1000e;
mod error;
mod events;
mod interrupt;
mod iova;
mod registers;
mod sigbus;
mod signals;
mod vfio;
pub mod virtio_net;

pub use address::{PciAddress, PciAddressError};
pub use error::PciError;
pub use vfio::driven_in_group;

/// Returns `true` if a driver knows the card with these vendor and device numbers.
#[must_use]
pub fn is_supported(vendor: u16, device: u16) -> bool {
    e1000e::is_supported(vendor, device) || virtio_net::is_supported(vendor, device)
}
