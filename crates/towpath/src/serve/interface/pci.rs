//! Opens a PCI card. The kernel has no interface for it, so the settings alone say which addresses
//! applications get.
#![forbid(unsafe_code)]

use towpath_device::Device;
use towpath_device::pci::e1000e::{E1000eDevice, MTU, Options};
use towpath_device::pci::{PciAddress, PciError};

use super::super::settings::Settings;
use super::Opened;
use crate::failure::Failure;

/// Checks the settings, and opens the card.
pub(super) fn open(address: PciAddress, settings: &Settings) -> Result<Opened, Failure> {
    check(address, settings)?;
    let mut options = Options::new(address);
    if let Some(mtu) = settings.mtu {
        options.mtu = mtu.get();
    }
    let device = E1000eDevice::open(&options).map_err(explain)?;
    let device: Box<dyn Device> = Box::new(device);
    Ok(Opened { device, subnets: None, xdp_sockets: None })
}

fn check(address: PciAddress, settings: &Settings) -> Result<(), Failure> {
    let not_ours =
        [("--address", !settings.address.is_empty()), ("--share-host", settings.share_host)];
    if let Some((option, _)) = not_ours.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option}: the kernel has no interface for the card {address}, and no address on it; give \
             applications addresses with --subnet and --lease"
        )));
    }
    if settings.subnet.is_empty() || settings.lease.is_empty() {
        return Err(Failure::usage(format!(
            "applications need addresses on the card {address}: give its network by the gateway's address, \
             and addresses of it that no other host has, such as --subnet 192.0.2.1/24 --lease 192.0.2.64/28"
        )));
    }
    if let Some(mtu) = settings.mtu.map(|mtu| mtu.get()).filter(|mtu| !MTU.contains(mtu)) {
        return Err(Failure::usage(format!(
            "--mtu {mtu}: the card takes {} to {} bytes",
            MTU.start(),
            MTU.end()
        )));
    }
    Ok(())
}

fn explain(error: PciError) -> Failure {
    let text = error.to_string();
    match error {
        PciError::NoIommu { .. }
        | PciError::NoVfio { .. }
        | PciError::OtherDriver { .. }
        | PciError::Forbidden { .. } => Failure::unavailable(text),
        _ => Failure::new(text),
    }
}
