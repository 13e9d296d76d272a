//! Attaches to an interface that the kernel keeps, and takes networks and gateways from the kernel.

use std::net::IpAddr;

use towpath_device::packet::{self, PacketDevice, PacketError};
use towpath_device::xdp::{self, XdpDevice, XdpError};
use towpath_device::{Device, EarlierObjects};
use towpath_keeper::FollowedInterface;
use towpath_netlink::{Address, Link, Netlink, Route};
use towpath_server::{Subnet, Subnets};
use tracing::{info, warn};

use super::super::settings::Settings;
use super::super::values::{Lease, Subnet as GivenSubnet, limit};
use crate::failure::Failure;

/// What the server asks of the driver.
pub(super) struct Wanted {
    interface: String,
    index: u32,
    /// `true` to carry packets between applications and the kernel's sockets of this host, too.
    host: bool,
    /// The user that rules of the host's firewall see as the owner of packets to the kernel's
    /// sockets.
    owner: Option<u32>,
    /// The number of engine threads.
    lanes: usize,
    /// The hardware queues that sessions may have to themselves.
    own_queues: Vec<u32>,
}

/// A device on an interface, and what its keeper makes for it.
pub(super) struct Attached {
    pub(super) device: Box<dyn Device>,
    /// `Some` for AF_XDP: whether its sockets poll the hardware.
    pub(super) xdp_sockets: Option<bool>,
}

/// Attaches to an interface, by a function that opens the driver. Also returns the networks of the applications, if the
/// interface determines them, and the interface's number. `resumes`: an earlier server has served the interface.
pub(super) fn open(
    interface: &FollowedInterface,
    resumes: bool,
    settings: &Settings,
    own_queues: Vec<u32>,
    attach: impl FnOnce(&Wanted) -> Result<Attached, Failure>,
) -> Result<(Attached, Option<Subnets>, u32), Failure> {
    let (link, subnets) = check(interface, resumes, settings)?;
    let wanted = Wanted {
        interface: link.name,
        index: link.index,
        host: settings.share_host,
        owner: settings.user.as_ref().map(|user| user.uid),
        lanes: settings.lanes(),
        own_queues,
    };
    Ok((attach(&wanted)?, subnets, link.index))
}

/// Checks the settings and the interface. Returns the interface, and the networks of the applications, if the
/// interface determines them.
fn check(
    interface: &FollowedInterface,
    resumes: bool,
    settings: &Settings,
) -> Result<(Link, Option<Subnets>), Failure> {
    check_options(&interface.name, settings)?;
    let refused = |error: towpath_netlink::Error| Failure::new(error.to_string());
    let mut netlink = Netlink::open().map_err(refused)?;
    let link = netlink.link_by(&interface.name, interface.index).map_err(no_interface)?;
    check_interface(&link)?;
    match check_state(&link, &mut netlink) {
        // A running server continues in such a state, and so does its successor.
        Err(failure) if resumes => warn!("{}", failure.text()),
        checked => checked?,
    }
    let addresses = netlink.addresses().map_err(refused)?;
    check_leases(&settings.lease, &addresses, &mut netlink)?;
    if settings.share_host && !addresses.iter().any(|one| one.index == link.index) {
        let name = &link.name;
        warn!(
            "{name} has no address to share yet; give it one: ip address add ADDRESS/BITS dev {name}"
        );
    }
    if !settings.subnet.is_empty() {
        return Ok((link, None));
    }
    let routes = netlink.routes().map_err(refused)?;
    let mut subnets = networks(&settings.lease, &link, &addresses, &routes)?;
    limit(&mut subnets, &settings.lease)
        .map_err(|text| Failure::usage(format!("--lease: {text}")))?;
    Ok((link, Some(subnets)))
}

/// Checks the settings for a host interface.
fn check_options(name: &str, settings: &Settings) -> Result<(), Failure> {
    let not_ours = [("--address", !settings.address.is_empty()), ("--mtu", settings.mtu.is_some())];
    if let Some((option, _)) = not_ours.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option} is for TAP interfaces: {name} keeps its addresses and its MTU; to \
             give addresses to applications, use --lease"
        )));
    }
    let has_no_lease = |subnet: &&GivenSubnet| {
        let mut leases = settings.lease.iter();
        !leases.any(|lease| lease.first.is_ipv4() == subnet.0.address().is_ipv4())
    };
    if let Some(subnet) = settings.subnet.iter().find(has_no_lease) {
        return Err(Failure::usage(format!(
            "--subnet {subnet}: {name} shares the network with other hosts; give --lease with \
             those of its addresses that no host has"
        )));
    }
    if settings.lease.is_empty() && !settings.share_host {
        return Err(Failure::usage(format!(
            "applications need addresses on {name}: give --share-host to share its own, or --lease \
             with addresses of its network that no other host has, such as --lease 192.0.2.64/28"
        )));
    }
    Ok(())
}

impl Wanted {
    /// Opens AF_XDP.
    pub(super) fn xdp(
        &self,
        options: &xdp::Options,
        earlier: &mut EarlierObjects,
    ) -> Result<Attached, Failure> {
        if options.exclusive && self.host {
            return Err(Failure::usage(format!(
                "exclusive and --share-host exclude each other: the kernel answers for the addresses \
                 of {}; leave one of the two out",
                self.interface
            )));
        }
        self.try_xdp(options, earlier).map_err(explain_xdp)
    }

    fn try_xdp(
        &self,
        options: &xdp::Options,
        earlier: &mut EarlierObjects,
    ) -> Result<Attached, XdpError> {
        let interface = self.interface.clone();
        let options = xdp::Options {
            interface,
            index: Some(self.index),
            host: self.host,
            owner: self.owner,
            lanes: self.lanes,
            own_queues: self.own_queues.clone(),
            ..options.clone()
        };
        let device = XdpDevice::open_after(&options, earlier)?;
        tell(device.notes(), device.warnings());
        Ok(Attached { device: Box::new(device), xdp_sockets: Some(options.busy_poll) })
    }

    /// Opens packet sockets.
    pub(super) fn packet(&self, earlier: &EarlierObjects) -> Result<Attached, Failure> {
        let options = packet::Options {
            interface: self.interface.clone(),
            index: Some(self.index),
            host: self.host,
            owner: self.owner,
        };
        let device = PacketDevice::open_after(&options, earlier).map_err(explain_packet)?;
        tell(device.notes(), device.warnings());
        Ok(Attached { device: Box::new(device), xdp_sockets: None })
    }

    /// Opens AF_XDP, or packet sockets if the kernel has no AF_XDP for this interface.
    pub(super) fn best(&self, earlier: &mut EarlierObjects) -> Result<Attached, Failure> {
        match self.try_xdp(&xdp::Options::default(), earlier) {
            Ok(device) => Ok(device),
            Err(error) if suggests_packet(&error) => {
                info!("no AF_XDP: {error}");
                self.packet(earlier)
            }
            Err(error) => Err(explain_xdp(error)),
        }
    }
}

/// Returns `true` if packet sockets may serve an interface that AF_XDP cannot. They need Linux 6.6,
/// so they do not help if an older kernel is the reason.
fn suggests_packet(error: &XdpError) -> bool {
    matches!(error, XdpError::NoSockets { .. } | XdpError::OtherProgram { .. })
}

/// Logs what a driver has to say.
fn tell(notes: &[String], warnings: &[String]) {
    notes.iter().for_each(|note| info!("{note}"));
    warnings.iter().for_each(|warning| warn!("{warning}"));
}

/// Checks that an interface is an Ethernet interface, which a server can serve.
fn check_interface(link: &Link) -> Result<(), Failure> {
    let name = &link.name;
    if link.mac.is_none_or(|mac| mac == [0; 6]) {
        return Err(Failure::new(format!(
            "{name} is no Ethernet interface; choose one with a MAC address (ip link)"
        )));
    }
    Ok(())
}

/// Checks that an interface is up, and no port of a bridge or bond.
fn check_state(link: &Link, netlink: &mut Netlink) -> Result<(), Failure> {
    let name = &link.name;
    if !link.up {
        return Err(Failure::new(format!("{name} is down; set it up: ip link set {name} up")));
    }
    if let Some(master) = link.master {
        let links = netlink.links().map_err(|error| Failure::new(error.to_string()))?;
        let master = links.iter().find(|one| one.index == master);
        let master = master.map_or("another interface", |link| &link.name);
        return Err(Failure::new(format!(
            "{name} is a port of {master}, which would miss the packets of applications; serve \
             another interface, or use a TAP as a port of a bridge"
        )));
    }
    Ok(())
}

/// Returns the interface's networks that contain the leases.
fn networks(
    leases: &[Lease],
    link: &Link,
    addresses: &[Address],
    routes: &[Route],
) -> Result<Subnets, Failure> {
    let mut subnets = Subnets::default();
    for lease in leases {
        let contains = |one: &&Address| {
            one.index == link.index
                && one.prefix.network().contains(lease.first)
                && one.prefix.network().contains(lease.last)
        };
        let prefix = addresses.iter().find(contains).map(|one| one.prefix).ok_or_else(|| {
            Failure::usage(format!(
                "--lease {lease}: {} has no address in the network of this whole range; choose \
                 addresses of its network (ip address show {}), or give the network's gateway with --subnet",
                link.name, link.name
            ))
        })?;
        let gateway = gateway(lease.first.is_ipv4(), link.index, routes);
        let bits = prefix.len_bits();
        match prefix.address() {
            IpAddr::V4(own) => {
                let gateway = gateway.and_then(|ip| match ip {
                    IpAddr::V4(ip) => Some(ip),
                    IpAddr::V6(_) => None,
                });
                subnets.ipv4 = Some(Subnet { gateway, ..Subnet::new(own, bits) });
            }
            IpAddr::V6(own) => {
                let gateway = gateway.and_then(|ip| match ip {
                    IpAddr::V6(ip) => Some(ip),
                    IpAddr::V4(_) => None,
                });
                subnets.ipv6 = Some(Subnet { gateway, ..Subnet::new(own, bits) });
            }
        }
    }
    Ok(subnets)
}

/// Returns the gateway of the best default route over an interface.
fn gateway(is_ipv4: bool, index: u32, routes: &[Route]) -> Option<IpAddr> {
    routes
        .iter()
        .filter(|route| {
            let destination = route.destination;
            destination.len_bits() == 0
                && destination.address().is_ipv4() == is_ipv4
                && route.table == Route::MAIN_TABLE
                && route.link == Some(index)
        })
        .filter_map(|route| Some((route.metric.unwrap_or(0), route.gateway?)))
        .min_by_key(|(metric, _)| *metric)
        .map(|(_, gateway)| gateway)
}

/// Checks that no address for applications is the host's own: the kernel would answer for it.
fn check_leases(
    leases: &[Lease],
    addresses: &[Address],
    netlink: &mut Netlink,
) -> Result<(), Failure> {
    for lease in leases {
        let within = |one: &&Address| {
            let own = one.prefix.address();
            own.is_ipv4() == lease.first.is_ipv4() && (lease.first..=lease.last).contains(&own)
        };
        if let Some(own) = addresses.iter().find(within) {
            let links = netlink.links().unwrap_or_default();
            let owner = links.iter().find(|link| link.index == own.index);
            let owner = owner.map_or("another interface", |link| &link.name);
            return Err(Failure::usage(format!(
                "--lease {lease} contains {}, which is {owner}'s; choose addresses that no host \
                 has",
                own.prefix.address()
            )));
        }
    }
    Ok(())
}

fn no_interface(error: towpath_netlink::Error) -> Failure {
    explain_xdp(XdpError::NoInterface(error))
}

/// What to do without the rights.
const AS_ROOT: &str = "start as root, with --user USER to drop these rights after the start; or in \
                       a systemd unit with them as AmbientCapabilities=";

/// Returns AF_XDP's error with the status of the command.
fn explain_xdp(error: XdpError) -> Failure {
    let text = error.to_string();
    match error {
        XdpError::NotPermitted { .. } => Failure::unavailable(format!("{text}; {AS_ROOT}")),
        XdpError::NoSockets { .. } => {
            Failure::unavailable(format!("{text}; --device packet:INTERFACE does without"))
        }
        XdpError::TooFewQueues { .. } => Failure::usage(text),
        XdpError::OtherProgram { .. } => {
            Failure::new(format!("{text}; --device packet:INTERFACE works beside another program"))
        }
        _ => Failure::new(text),
    }
}

/// Returns the packet sockets' error with the status of the command.
fn explain_packet(error: PacketError) -> Failure {
    let text = error.to_string();
    match error {
        PacketError::NotPermitted { .. } => Failure::unavailable(format!("{text}; {AS_ROOT}")),
        PacketError::NoHook { .. } => Failure::unavailable(text),
        _ => Failure::new(text),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn auto_keeps_an_error_whose_remedy_packet_sockets_would_hide() {
        let name = || "eth0".to_owned();
        let (why, remedy) = ("its MTU is large", "lower the MTU to 1500".to_owned());
        let spanning = XdpError::NoSpanning { name: name(), why, remedy };
        assert!(!suggests_packet(&spanning));
        assert!(explain_xdp(spanning).text().contains("lower the MTU to 1500"));
        let cause = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        assert!(suggests_packet(&XdpError::NoSockets { cause }));
        let program = "id 7".to_owned();
        assert!(suggests_packet(&XdpError::OtherProgram { name: name(), program }));
    }
}
