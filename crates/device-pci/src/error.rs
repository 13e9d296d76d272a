//! The reasons why a PCI device cannot be opened.

use std::io;

use std::path::PathBuf;
use towpath_device::{DeviceError, Info};

use super::address::PciAddress;

/// A PCI device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PciError {
    /// There is no device at the address.
    #[error("no PCI device at {address}")]
    Absent {
        /// The address.
        address: PciAddress,
    },
    /// The driver does not know this kind of device.
    #[error(
        "PCI device {address} is {vendor:04x}:{device:04x}, and the driver knows {known} alone"
    )]
    Unknown {
        /// The address.
        address: PciAddress,
        /// The vendor's number.
        vendor: u16,
        /// The device's number.
        device: u16,
        /// The device that the driver knows.
        known: &'static str,
    },
    /// The device does not offer what the driver needs.
    #[error("PCI device {address} does not offer {what}")]
    Lacks {
        /// The address.
        address: PciAddress,
        /// What it does not offer.
        what: &'static str,
    },
    /// The device is behind no IOMMU, so it would reach all memory.
    #[error("PCI device {address} is behind no IOMMU, so it would reach all memory")]
    NoIommu {
        /// The address.
        address: PciAddress,
    },
    /// The device has no driver, or another one than `vfio-pci`.
    #[error(
        "PCI device {address} has {}, not vfio-pci",
        driver.as_ref().map_or_else(|| "no driver".to_owned(), |name| format!("the driver {name}"))
    )]
    OtherDriver {
        /// The address.
        address: PciAddress,
        /// The driver that has it.
        driver: Option<String>,
    },
    /// The kernel has no VFIO.
    #[error("the kernel has no VFIO of type 1: {}: {cause}", path.display())]
    NoVfio {
        /// The file that would open it.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The user has no right to a file of VFIO.
    #[error("{}: {cause}", path.display())]
    Forbidden {
        /// The address of the device.
        address: PciAddress,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another process has opened the device's group.
    #[error("another process uses PCI device {address}")]
    Busy {
        /// The address.
        address: PciAddress,
    },
    /// The kernel's drivers have other devices of the group, which could reach the same memory.
    #[error(
        "PCI device {address} shares IOMMU group {group} with devices that the kernel drives: {}",
        others.join(", ")
    )]
    GroupInUse {
        /// The address.
        address: PciAddress,
        /// The number of the group.
        group: u32,
        /// The other devices, each with its driver.
        others: Vec<String>,
    },
    /// The device does not answer: each register reads as all ones.
    #[error("PCI device {address} does not answer: its registers read as all ones")]
    NoAnswer {
        /// The address.
        address: PciAddress,
    },
    /// The device did not do something in time.
    #[error("PCI device {address}: {what} took longer than {limit_ms} ms")]
    TooLong {
        /// The address.
        address: PciAddress,
        /// The operation that the device did not finish.
        what: &'static str,
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// The kernel refused an operation.
    #[error("PCI device {address}: {what}: {cause}")]
    Refused {
        /// The address.
        address: PciAddress,
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl From<PciError> for io::Error {
    fn from(error: PciError) -> io::Error {
        io::Error::other(error)
    }
}

/// Returns the error of a card whose registers read as all ones.
pub(crate) fn gone(info: &Info) -> DeviceError {
    let cause = io::Error::other("its registers read as all ones");
    DeviceError::Gone { name: info.name.clone(), cause }
}

/// Converts an error of a card into the fault of the device as a whole.
pub(crate) fn failure(
    info: &Info,
    is_gone: bool,
    what: &'static str,
    error: PciError,
) -> DeviceError {
    if is_gone {
        DeviceError::Gone { name: info.name.clone(), cause: error.into() }
    } else {
        info.failed(what)(error)
    }
}
