//! Takes a card from the kernel for a user's server, and gives it back.
//!
//! 1. `vfio-pci` becomes the driver of this one device (`driver_override`,
//!    Documentation/ABI/testing/sysfs-bus-pci).
//! 2. The user gets the file of the device's IOMMU group, below `/dev/vfio`.
//! 3. The user's later logins have no limit of locked memory, because the kernel locks the memory that the
//!    device reaches (limits.conf(5)).
//!
//! Nothing but the limit outlives a boot.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use towpath_device_pci::{PciAddress, driven_in_group};
use towpath_netlink::Netlink;

use super::sysfs::{Card, SWITCH_IOMMU_ON, names};
use crate::failure::{Failure, print, says};
use crate::serve::values::User;

/// Options of `towpath device claim`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The card, as towpath device list shows it
    #[arg(value_name = "PCI-ADDRESS")]
    address: PciAddress,
    /// The user whose server drives the card
    #[arg(long, value_name = "USER", value_hint = clap::ValueHint::Username)]
    user: User,
    /// Take the card even if its interface has an address or a route, or is a port of a bridge or bond
    #[arg(long)]
    force: bool,
}

const VFIO: &str = "vfio-pci";
/// The directory of the driver.
const VFIO_DRIVER: &str = "/sys/bus/pci/drivers/vfio-pci";
/// The longest wait for the group's file, which the kernel makes once the driver has the device.
const NODE_LIMIT: Duration = Duration::from_secs(2);

/// Claims a card.
pub(super) fn claim(args: &Args) -> Result<(), Failure> {
    let address = args.address;
    let card = card(address)?;
    if !card.is_network_card() {
        return Err(Failure::new(format!(
            "{address} is no network card; see: towpath device list"
        )));
    }
    let group = card.group.ok_or_else(|| {
        Failure::unavailable(format!(
            "{address} is behind no IOMMU, so it would reach all memory; {SWITCH_IOMMU_ON}"
        ))
    })?;
    check_group(address, group)?;
    if !args.force {
        check_unused(&card)?;
    }
    if !Path::new(VFIO_DRIVER).exists() {
        load_driver()?;
    }
    if card.driver.as_deref() != Some(VFIO) {
        bind(address, VFIO)?;
    }
    let node = PathBuf::from(format!("/dev/vfio/{group}"));
    let begun = Instant::now();
    while !node.exists() && begun.elapsed() < NODE_LIMIT {
        std::thread::sleep(Duration::from_millis(10));
    }
    if !node.exists() {
        return Err(Failure::new(format!(
            "{} did not appear within 2 s; the kernel's log says why (dmesg)",
            node.display()
        )));
    }
    let granted = chown(&node, Some(args.user.uid), None)
        .and_then(|()| fs::set_permissions(&node, fs::Permissions::from_mode(0o600)));
    granted.map_err(|error| failed(&node, &error))?;
    let limit = lift_limit(address, &args.user)?;
    print(&format!("{address} belongs to {}, with IOMMU group {group}\n{limit}", args.user))
}

/// Gives a card back to the kernel.
pub(super) fn release(address: PciAddress) -> Result<(), Failure> {
    let card = card(address)?;
    if card.driver.as_deref() != Some(VFIO) {
        let has =
            card.driver.map_or("no driver".to_owned(), |driver| format!("the driver {driver}"));
        return Err(Failure::new(format!("{address} has {has}, not {VFIO}; nothing to release")));
    }
    let users = users(&card);
    if !users.is_empty() {
        return Err(Failure::new(format!(
            "{address} is in use by the processes {}; end their servers first",
            users.join(" ")
        )));
    }
    bind(address, "")?;
    let limits = limits_file(address);
    if limits.exists() {
        fs::remove_file(&limits).map_err(|error| failed(&limits, &error))?;
    }
    let driver = self::card(address)?.driver;
    print(&match driver {
        Some(driver) => format!("{address} belongs to the kernel's driver {driver}\n"),
        None => format!("{address} has no driver now; the kernel has none for it\n"),
    })
}

fn card(address: PciAddress) -> Result<Card, Failure> {
    let missing = || Failure::new(format!("no PCI device at {address}; see: towpath device list"));
    Card::at(address).ok_or_else(missing)
}

/// Returns the failure of a change of a file.
fn failed(path: &Path, error: &io::Error) -> Failure {
    let text = format!("{}: {}", path.display(), says(error));
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::unavailable(format!("{text}; run as root")),
        _ => Failure::new(text),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| failed(path, &error))
}

/// Refuses a card whose group has devices that the kernel drives: they could reach the same memory.
fn check_group(address: PciAddress, group: u32) -> Result<(), Failure> {
    let driven = driven_in_group(address, group);
    if driven.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{address} shares IOMMU group {group} with devices that the kernel drives: {}; move the card to another slot",
        driven.join(", ")
    )))
}

/// Makes a driver that of a device. With an empty name, the kernel chooses.
fn bind(address: PciAddress, driver: &str) -> Result<(), Failure> {
    let directory = address.directory();
    write(&directory.join("driver_override"), &format!("{driver}\n"))?;
    let unbind = directory.join("driver/unbind");
    if unbind.exists() {
        write(&unbind, &address.to_string())?;
    }
    let probe = Path::new("/sys/bus/pci/drivers_probe");
    // Without a driver for the card, the kernel refuses.
    let probed = write(probe, &address.to_string());
    if driver.is_empty() {
        return Ok(());
    }
    let now = card(address)?.driver;
    if now.as_deref() != Some(driver) {
        // The kernel's driver gets the card again.
        write(&directory.join("driver_override"), "\n")?;
        let _ = write(probe, &address.to_string());
        probed?;
        return Err(Failure::new(format!(
            "the kernel did not give {address} to {driver}; the kernel's log says why (dmesg)"
        )));
    }
    Ok(())
}

fn load_driver() -> Result<(), Failure> {
    let loaded = Command::new("modprobe").arg(VFIO).output();
    let why = match loaded {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => says(&error),
    };
    Err(Failure::unavailable(format!(
        "modprobe {VFIO}: {why}; run as root, with kmod installed, on a kernel with CONFIG_VFIO_PCI"
    )))
}

/// Checks that the kernel does not use a card.
fn check_unused(card: &Card) -> Result<(), Failure> {
    let refused = |error: towpath_netlink::Error| Failure::new(error.to_string());
    let mut netlink = Netlink::open().map_err(refused)?;
    for name in &card.interfaces {
        // An interface of another network namespace has no link here.
        let Ok(link) = netlink.link(name) else { continue };
        let addresses = netlink.addresses().map_err(refused)?;
        let routes = netlink.routes().map_err(refused)?;
        let address = addresses.iter().find(|one| {
            let is_link_local = match one.prefix.address() {
                std::net::IpAddr::V6(ip) => ip.is_unicast_link_local(),
                std::net::IpAddr::V4(_) => false,
            };
            one.index == link.index && !is_link_local
        });
        let route = routes.iter().find(|one| one.link == Some(link.index) && one.gateway.is_some());
        let used_as = match (link.master, address, route) {
            (Some(_), ..) => "is a port of a bridge or bond".to_owned(),
            (_, Some(address), _) => format!("has the address {}", address.prefix),
            (.., Some(route)) => format!("has a route to {}", route.destination),
            _ => continue,
        };
        return Err(Failure::new(format!(
            "{name} on {} {used_as}, and the kernel would lose the interface; end that first, or give --force",
            card.address
        )));
    }
    Ok(())
}

/// Returns the numbers of the processes that have opened the card's group.
fn users(card: &Card) -> Vec<String> {
    let Some(group) = card.group else { return Vec::new() };
    let node = PathBuf::from(format!("/dev/vfio/{group}"));
    let has_it = |process: &String| {
        let directory = Path::new("/proc").join(process).join("fd");
        let is_it = |name: &String| fs::read_link(directory.join(name)).is_ok_and(|to| to == node);
        process.bytes().all(|byte| byte.is_ascii_digit()) && names(&directory).iter().any(is_it)
    };
    names(Path::new("/proc")).into_iter().filter(has_it).collect()
}

fn limits_file(address: PciAddress) -> PathBuf {
    PathBuf::from(format!("/etc/security/limits.d/towpath-{address}.conf"))
}

/// Lifts the user's limit of locked memory. Returns a hint for the user.
fn lift_limit(address: PciAddress, user: &User) -> Result<String, Failure> {
    let file = limits_file(address);
    let hint = "in a systemd unit, write LimitMEMLOCK=infinity\n";
    if user.uid == 0 || !file.parent().is_some_and(Path::exists) {
        return Ok(hint.to_owned());
    }
    let line = format!(
        "# By towpath device claim: the memory that a card reaches is locked.\n:{0} soft memlock unlimited\n:{0} hard memlock unlimited\n",
        user.uid
    );
    write(&file, &line)?;
    Ok(format!("locked memory of {user} has no limit from the next login on; {hint}"))
}
