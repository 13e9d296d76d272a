//! PCI devices, as sysfs shows them (Documentation/ABI/testing/sysfs-bus-pci).
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::Path;

use towpath_device_pci::PciAddress;

/// The class of network controllers: the upper byte of the class (PCI Code and ID Assignment).
const NETWORK: u32 = 2;

/// The remedy for a machine without IOMMU.
pub(crate) const SWITCH_IOMMU_ON: &str = "switch the IOMMU on in the firmware; on an Intel processor, also start the kernel with intel_iommu=on";

/// A PCI device.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) address: PciAddress,
    pub(super) vendor: u16,
    pub(super) device: u16,
    /// The kernel's interfaces on it.
    pub(super) interfaces: Vec<String>,
    /// The kernel's driver.
    pub(super) driver: Option<String>,
    /// The number of the IOMMU group; `None` without IOMMU.
    pub(super) group: Option<u32>,
}

impl Card {
    /// Reads a device; `None` if there is none at the address.
    pub(super) fn at(address: PciAddress) -> Option<Card> {
        let directory = address.directory();
        let number = |file: &str| {
            let text = fs::read_to_string(directory.join(file)).ok()?;
            u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
        };
        let name = |link: &str| {
            let target = fs::read_link(directory.join(link)).ok()?;
            Some(target.file_name()?.to_str()?.to_owned())
        };
        Some(Card {
            address,
            vendor: number("vendor")? as u16,
            device: number("device")? as u16,
            interfaces: interfaces(&directory),
            driver: name("driver"),
            group: name("iommu_group").and_then(|group| group.parse().ok()),
        })
    }

    /// Returns `true` if the device is a network card.
    pub(super) fn is_network_card(&self) -> bool {
        let text = fs::read_to_string(self.address.directory().join("class")).unwrap_or_default();
        let class = text.trim().strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16));
        class.is_some_and(|class| class.is_ok_and(|class| class >> 16 == NETWORK))
    }
}

/// Returns the kernel's interfaces on a device. Those of a virtio card are below the virtio device that the PCI device
/// carries (`virtio_pci_probe` in drivers/virtio/virtio_pci_common.c).
fn interfaces(directory: &Path) -> Vec<String> {
    let mut interfaces = names(&directory.join("net"));
    for name in names(directory).iter().filter(|name| name.starts_with("virtio")) {
        interfaces.extend(names(&directory.join(name).join("net")));
    }
    interfaces
}

/// Returns the names in a directory, sorted; none if it does not exist.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the machine's network cards, by address.
pub(super) fn network_cards() -> io::Result<Vec<Card>> {
    let directory = Path::new("/sys/bus/pci/devices");
    fs::metadata(directory)?;
    let addresses = names(directory).into_iter().filter_map(|name| name.parse().ok());
    Ok(addresses.filter_map(Card::at).filter(Card::is_network_card).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_virtio_cards_are_found() {
        let name = format!("towpath-sysfs-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        for interface in ["net/eth0", "virtio3/net/eth1", "power/net/eth2"] {
            fs::create_dir_all(directory.join(interface)).unwrap();
        }
        assert_eq!(interfaces(&directory), ["eth0", "eth1"]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
