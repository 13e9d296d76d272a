//! The reasons why a PCI device cannot be opened.

use std::io;
use std::path::PathBuf;

use super::PciAddress;

/// A PCI device cannot be opened. Each text names the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PciError {
    /// There is no device at the address.
    #[error("no PCI device at {address}; lspci -D shows all")]
    Absent {
        /// The address.
        address: PciAddress,
    },
    /// The driver does not know this kind of device.
    #[error(
        "PCI device {address} is {vendor:04x}:{device:04x}, and this driver is for the Intel 82574L \
         (8086:10d3) alone; serve its kernel interface with --device auto:INTERFACE"
    )]
    Unknown {
        /// The address.
        address: PciAddress,
        /// The vendor's number.
        vendor: u16,
        /// The device's number.
        device: u16,
    },
    /// The device is behind no IOMMU, so it would reach all memory.
    #[error(
        "PCI device {address} is behind no IOMMU, so it would reach all memory; switch the IOMMU on in the \
         firmware, and start the kernel with intel_iommu=on"
    )]
    NoIommu {
        /// The address.
        address: PciAddress,
    },
    /// The device has no driver, or another one than `vfio-pci`.
    #[error(
        "PCI device {address} has {}; run, as root: towpath device claim {address} --user USER",
        driver.as_ref().map_or_else(|| "no driver".to_owned(), |name| format!("the driver {name}"))
    )]
    OtherDriver {
        /// The address.
        address: PciAddress,
        /// The driver that has it.
        driver: Option<String>,
    },
    /// The kernel has no VFIO.
    #[error("{}: {cause}; run, as root: modprobe vfio-pci", path.display())]
    NoVfio {
        /// The missing file.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The user has no right to the device's group.
    #[error(
        "{}: {cause}; run, as root: towpath device claim {address} --user USER, with the user that serves it",
        path.display()
    )]
    Forbidden {
        /// The address.
        address: PciAddress,
        /// The group's file.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another process has opened the device's group.
    #[error("another process uses PCI device {address}; end that one, or choose another device")]
    Busy {
        /// The address.
        address: PciAddress,
    },
    /// The kernel's drivers have other devices of the group, which could reach the same memory.
    #[error(
        "PCI device {address} is in IOMMU group {group} with {}, which the kernel uses; claim these too, or move \
         the card to another slot",
        others.join(", ")
    )]
    GroupInUse {
        /// The address.
        address: PciAddress,
        /// The number of the group.
        group: u32,
        /// The other devices.
        others: Vec<String>,
    },
    /// The device does not answer: each register reads as all ones.
    #[error(
        "PCI device {address} does not answer (its registers read as all ones); reset it or restart the machine"
    )]
    NoAnswer {
        /// The address.
        address: PciAddress,
    },
    /// The device did not do something in time.
    #[error(
        "PCI device {address}: {what} took longer than {limit_ms} ms; reset it or restart the machine"
    )]
    TooLong {
        /// The address.
        address: PciAddress,
        /// What it did not do.
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
