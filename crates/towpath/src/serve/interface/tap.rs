//! Opens or creates a TAP interface, and sets its MTU and addresses and its state to "up".
//!
//! The server changes only settings that differ. So a user without rights can serve an interface
//! that root created and configured for that user.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use towpath_device::tap::{Options, TapDevice, TapError};
use towpath_device::{Device, EarlierObjects};
use towpath_netlink::{Netlink, Prefix, RENAME_ATTEMPTS};
use tracing::warn;

use super::super::settings::Settings;
use super::super::values::Subnet;
use crate::failure::{Failure, remedy, says};
use crate::number::Number;

/// The server uses all offloads of a TAP.
const OFFLOADS: bool = true;

/// Opens the TAP interface and configures it. An interface that this function created vanishes with
/// the device.
pub(super) fn open(name: &str, settings: &Settings) -> Result<TapDevice, Failure> {
    let mut netlink = Netlink::open().map_err(refused)?;
    check_addresses(&mut netlink, name, &settings.address)?;

    let options = Options { name: name.to_owned(), offloads: OFFLOADS };
    let mut device = TapDevice::open(&options).map_err(explain)?;
    for _ in 1..RENAME_ATTEMPTS {
        let name = present_name(&device)?;
        // Another program, such as udev, may give the interface another name in between.
        if configure(&mut device, &name, settings).is_ok() && present_name(&device)? == name {
            return Ok(device);
        }
    }
    let name = present_name(&device)?;
    configure(&mut device, &name, settings)?;
    Ok(device)
}

fn present_name(device: &TapDevice) -> Result<String, Failure> {
    let gone = |error| Failure::new(format!("{}: {}", device.info().name, says(&error)));
    device.present_name().map_err(gone)
}

/// Configures the TAP interface with this name.
fn configure(device: &mut TapDevice, name: &str, settings: &Settings) -> Result<(), Failure> {
    let mut netlink = Netlink::open().map_err(refused)?;
    let link = netlink.link(name).map_err(refused)?;
    let wanted = settings.mtu.map(|mtu: Number<68, 65521>| mtu.get() as u32);
    if let Some(mtu) = wanted
        && mtu != link.mtu
    {
        let by_hand = format!("ip link set {name} mtu {mtu}");
        netlink.set_mtu(name, mtu).map_err(|error| change_refused(&error, &by_hand))?;
        // The driver read the MTU when it opened the interface. The second descriptor makes it read
        // the new MTU; the first one keeps the interface alive until then.
        let again = device.as_fd().try_clone_to_owned().map_err(|error| {
            Failure::new(format!("{name}: copying the TAP's descriptor: {error}; raise the limit of open files (ulimit -n)"))
        })?;
        *device = TapDevice::from_fd(again, OFFLOADS).map_err(explain)?;
    }
    let has: Vec<_> = netlink
        .addresses()
        .map_err(refused)?
        .into_iter()
        .filter(|address| address.index == link.index)
        .map(|address| address.prefix)
        .collect();
    for Subnet(prefix) in &settings.address {
        if !has.contains(prefix) {
            let by_hand = format!("ip address add {prefix} dev {name}");
            netlink.add_address(name, *prefix).map_err(|error| {
                without_ipv6(&error, *prefix).unwrap_or_else(|| change_refused(&error, &by_hand))
            })?;
        }
    }
    if !link.up {
        let by_hand = format!("ip link set {name} up");
        netlink.set_up(name).map_err(|error| change_refused(&error, &by_hand))?;
    }
    Ok(())
}

/// Goes on with the TAP of an earlier server, with the settings that the interface has now.
pub(super) fn adopt(descriptor: OwnedFd, earlier: &EarlierObjects) -> Result<TapDevice, Failure> {
    let mut device = TapDevice::from_fd(descriptor, OFFLOADS).map_err(explain)?;
    if let Err(error) = device.receive_left(earlier) {
        warn!("packets that the earlier server had received are lost: {}", says(&error));
    }
    Ok(device)
}

fn refused(error: towpath_netlink::Error) -> Failure {
    Failure::new(error.to_string())
}

/// Returns the failure of an IPv6 address on an interface where the system has disabled IPv6; `None` for other errors.
fn without_ipv6(error: &towpath_netlink::Error, prefix: Prefix) -> Option<Failure> {
    let is_disabled = prefix.address().is_ipv6() && error.errno() == Some(Errno::ACCESS);
    is_disabled.then(|| {
        Failure::new(format!(
            "{error}; enable IPv6 for new interfaces (sysctl net.ipv6.conf.default.disable_ipv6=0), or leave out \
             --address {prefix}"
        ))
    })
}

/// Returns the failure of a change that root can make by a command, too.
fn change_refused(error: &towpath_netlink::Error, by_hand: &str) -> Failure {
    if error.not_permitted() {
        Failure::unavailable(format!(
            "{error}; start as root, with --user USER to drop its rights, or run before, as root: \
             {by_hand}"
        ))
    } else {
        Failure::new(error.to_string())
    }
}

/// Checks that no other interface has one of the addresses: the kernel would then answer itself.
fn check_addresses(netlink: &mut Netlink, name: &str, wanted: &[Subnet]) -> Result<(), Failure> {
    let (links, addresses) =
        (netlink.links().map_err(refused)?, netlink.addresses().map_err(refused)?);
    for Subnet(prefix) in wanted {
        for address in &addresses {
            let owner = links.iter().find(|link| link.index == address.index);
            let owner = owner.map_or("another interface", |link| &link.name);
            if owner == name {
                continue;
            }
            if address.prefix.address() == prefix.address() {
                return Err(Failure::new(format!(
                    "{} belongs to {owner} already; choose another --address",
                    prefix.address()
                )));
            }
            if prefix.contains(address.prefix.address())
                || address.prefix.contains(prefix.address())
            {
                warn!(
                    "--address {prefix} and {} of {owner} are one network: the kernel will send \
                     to only one of the two",
                    address.prefix
                );
            }
        }
    }
    Ok(())
}

/// Returns the driver's error with a remedy for the operator.
fn explain(error: TapError) -> Failure {
    let text = error.to_string();
    match error {
        TapError::NoTun { cause } if !remedy(&cause).is_empty() => {
            Failure::new(format!("/dev/net/tun: {cause}{}", remedy(&cause)))
        }
        TapError::NoTun { .. } | TapError::TunForbidden { .. } | TapError::NotPermitted { .. } => {
            Failure::unavailable(text)
        }
        TapError::Busy { name } => Failure::new(format!(
            "{text}; stop that one (towpath ls --device {name} if it is a server), or choose \
             another interface"
        )),
        TapError::NotATap { name } => Failure::new(format!(
            "{text}; choose another name, or serve it with --device xdp:{name}, or make one with: ip tuntap add dev NAME mode tap vnet_hdr"
        )),
        TapError::BadName { .. } => Failure::usage(format!("--device: {text}")),
        TapError::Refused { cause, .. } => Failure::new(format!("{text}{}", remedy(&cause))),
        TapError::BadDescriptor { .. } => Failure::new(text),
    }
}
