//! Opens a PCI card. The kernel has no interface for it, so the settings alone say which addresses
//! applications get.
#![forbid(unsafe_code)]

use towpath_device::{Device, EarlierObjects};
use towpath_device_pci::e1000e::{E1000eDevice, MTU, Options};
use towpath_device_pci::virtio_net::{self, VirtioNetDevice};
use towpath_device_pci::{PciAddress, PciError};
use tracing::warn;

use super::super::settings::Settings;
use crate::device::{SWITCH_IOMMU_ON, numbers};
use crate::failure::{Failure, remedy};

/// Checks the settings, and opens the card with the driver for its kind. `own_queue`: `true` if a session may have a
/// hardware queue to itself. `earlier`: what an earlier server left.
pub(super) fn open(
    options: &Options,
    settings: &Settings,
    own_queue: bool,
    earlier: &EarlierObjects,
) -> Result<Box<dyn Device>, Failure> {
    check(options.address, settings)?;
    if numbers(options.address)
        .is_some_and(|(vendor, device)| virtio_net::is_supported(vendor, device))
    {
        return open_virtio(options, settings);
    }
    let mut options = options.clone();
    options.queues = settings.lanes();
    options.own_queue = own_queue;
    if let Some(mtu) = settings.mtu {
        options.mtu = mtu.get();
    }
    let device = E1000eDevice::open_after(&options, earlier).map_err(explain)?;
    device.warnings().iter().for_each(|warning| warn!("{warning}"));
    Ok(Box::new(device))
}

/// Opens a virtio card, which does not moderate interrupts. No server goes on with the card of an earlier one.
fn open_virtio(options: &Options, settings: &Settings) -> Result<Box<dyn Device>, Failure> {
    let address = options.address;
    if options.moderation != Options::new(address).moderation {
        return Err(Failure::usage(format!(
            "the virtio card {address} does not moderate interrupts; give pci:{address} without options"
        )));
    }
    let mut wanted = virtio_net::Options::new(address);
    if let Some(mtu) = settings.mtu {
        wanted.mtu = mtu.get();
    }
    Ok(Box::new(VirtioNetDevice::open(&wanted).map_err(explain)?))
}

fn check(address: PciAddress, settings: &Settings) -> Result<(), Failure> {
    let for_interfaces =
        [("--address", !settings.address.is_empty()), ("--share-host", settings.share_host)];
    if let Some((option, _)) = for_interfaces.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option}: the kernel has no interface for the card {address}, and no address on it; give \
             applications addresses with --subnet and --lease"
        )));
    }
    if settings.subnet.is_empty() || settings.lease.is_empty() {
        return Err(Failure::usage(format!(
            "the card {address} needs --subnet and --lease: the network with its gateway's address, and addresses \
             that no other host has, such as --subnet 192.0.2.1/24 --lease 192.0.2.64/28"
        )));
    }
    if let Some(mtu) = settings.mtu.map(|mtu| mtu.get()).filter(|mtu| !MTU.contains(mtu)) {
        return Err(Failure::usage(format!(
            "--mtu {mtu}: the card takes {0} to {1} bytes; give {0} to {1}",
            MTU.start(),
            MTU.end()
        )));
    }
    Ok(())
}

/// Returns the driver's error with a remedy for the operator.
fn explain(error: PciError) -> Failure {
    let reset = |address: &PciAddress| {
        format!(
            "reset it, as root: echo 1 > {}/reset, or restart the machine",
            address.directory().display()
        )
    };
    let claim = |address: &PciAddress| {
        format!(
            "run, as root: towpath device claim {address} --user USER, with the user that serves it"
        )
    };
    let remedy = match &error {
        PciError::Absent { .. } => "; towpath device list shows the network cards".to_owned(),
        PciError::Unknown { address, .. } => format!(
            "; give it back (towpath device release {address}), and serve its interface with --device \
             auto:INTERFACE"
        ),
        PciError::NoIommu { .. } => format!("; {SWITCH_IOMMU_ON}"),
        PciError::OtherDriver { address, .. } | PciError::Forbidden { address, .. } => {
            format!("; {}", claim(address))
        }
        PciError::NoVfio { .. } => {
            "; run, as root: modprobe -a vfio-pci vfio_iommu_type1".to_owned()
        }
        PciError::Busy { .. } => "; end that process, or choose another card".to_owned(),
        PciError::GroupInUse { .. } => {
            "; claim these, too, or move the card to another slot".to_owned()
        }
        PciError::NoAnswer { address } | PciError::TooLong { address, .. } => {
            format!("; {}", reset(address))
        }
        PciError::Refused { cause, .. } => remedy(cause).to_owned(),
        _ => String::new(),
    };
    let text = format!("{error}{remedy}");
    match error {
        PciError::NoIommu { .. }
        | PciError::NoVfio { .. }
        | PciError::OtherDriver { .. }
        | PciError::Forbidden { .. } => Failure::unavailable(text),
        _ => Failure::new(text),
    }
}
