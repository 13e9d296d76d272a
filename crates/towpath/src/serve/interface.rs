//! Opens the device to serve, and determines the networks of its applications.
//!
//! `auto:INTERFACE` chooses the first of these that the kernel and the interface allow:
//!
//! | interface | driver |
//! |---|---|
//! | a TAP | `tap` |
//! | a virtual one | `xdp` in generic mode, then in native mode, then `packet` |
//! | any other one | `xdp` in native mode, then in generic mode, then `packet` |
#![forbid(unsafe_code)]

mod host;
mod pci;
mod tap;

use std::os::fd::OwnedFd;

use towpath_device::{Device, EarlierObjects};
use towpath_keeper::FollowedInterface;
use towpath_netlink::Netlink;
use towpath_server::Subnets;

use super::kind::Kind;
use super::settings::Settings;
use super::values::{DeviceSpec, Driver};
use crate::failure::Failure;
use host::Attached;

/// The driver of a TAP interface, as rtnetlink names it.
const TAP_KIND: &str = "tun";

/// The name of a TAP's descriptor among the objects that outlive a server.
const TAP: &str = "device-tap";

/// A device that is ready to serve.
pub(super) struct Opened {
    pub(super) device: Box<dyn Device>,
    /// The networks of the applications, if the interface determines them.
    pub(super) subnets: Option<Subnets>,
    /// `Some` for a device whose keeper makes AF_XDP sockets: whether these poll the hardware.
    pub(super) xdp_sockets: Option<bool>,
    /// The number of the kernel's interface; `None` for another device.
    pub(super) index: Option<u32>,
}

/// Opens the device. Its interface may have another name than on the command line, and the name may change while this
/// function runs. `own_queues`: the hardware queues that sessions may have to themselves. `earlier`: the objects that
/// an earlier server left.
pub(super) fn open(
    served: &DeviceSpec,
    interface: &FollowedInterface,
    settings: &Settings,
    own_queues: Vec<u32>,
    earlier: &mut EarlierObjects,
) -> Result<Opened, Failure> {
    let name = &interface.name;
    let tap = earlier.copy(TAP).map_err(|error| {
        Failure::new(format!("{name}: copying the TAP's descriptor: {error}; raise the limit of open files (ulimit -n)"))
    })?;
    let resumes = !earlier.is_empty();
    let (Attached { device, xdp_sockets }, subnets, index) = match &served.driver {
        Driver::Tap => return open_tap(name, settings, tap, earlier),
        Driver::Auto if tap.is_some() || is_tap(interface)? => {
            return open_tap(name, settings, tap, earlier);
        }
        Driver::Xdp(options) => host::open(interface, resumes, settings, own_queues, |wanted| {
            wanted.xdp(options, earlier)
        })?,
        Driver::Pci(options) => {
            let device = pci::open(options, settings, !own_queues.is_empty(), earlier)?;
            return Ok(Opened { device, subnets: None, xdp_sockets: None, index: None });
        }
        Driver::Packet => {
            host::open(interface, resumes, settings, own_queues, |wanted| wanted.packet(earlier))?
        }
        Driver::Auto => {
            host::open(interface, resumes, settings, own_queues, |wanted| wanted.best(earlier))?
        }
    };
    Ok(Opened { device, subnets, xdp_sockets, index: Some(index) })
}

/// Returns the kind of the device to serve.
pub(super) fn kind_of(served: &DeviceSpec) -> Result<Kind, Failure> {
    Ok(match &served.driver {
        Driver::Tap => Kind::Tap,
        Driver::Auto if is_tap(&FollowedInterface::named(&served.interface))? => Kind::Tap,
        Driver::Auto | Driver::Xdp(_) | Driver::Packet => Kind::HostInterface,
        Driver::Pci(_) => Kind::Card,
    })
}

/// Returns `true` for a TAP interface.
fn is_tap(interface: &FollowedInterface) -> Result<bool, Failure> {
    let refused = |error: towpath_netlink::Error| {
        Failure::new(format!("{error}; ip link shows the interfaces of this network namespace"))
    };
    let link =
        Netlink::open().and_then(|mut kernel| kernel.link_by(&interface.name, interface.index));
    let link = link.map_err(refused)?;
    Ok(link.kind.as_deref() == Some(TAP_KIND))
}

fn open_tap(
    name: &str,
    settings: &Settings,
    adopted: Option<OwnedFd>,
    earlier: &EarlierObjects,
) -> Result<Opened, Failure> {
    if settings.share_host {
        return Err(Failure::usage(format!(
            "--share-host is for interfaces that the kernel keeps, such as --device xdp:eth0: the \
             kernel is at the other end of {name}"
        )));
    }
    let device = match adopted {
        Some(descriptor) => tap::adopt(descriptor, earlier)?,
        None => tap::open(name, settings)?,
    };
    Ok(Opened { xdp_sockets: None, device: Box::new(device), subnets: None, index: None })
}
