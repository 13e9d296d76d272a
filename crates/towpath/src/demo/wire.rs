//! The wire of the demonstration: the kernel's sockets at one end, the served device at the other.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::bail;
use rustix::thread::CapabilitySet;
use towpath_device::Device;
use towpath_device::tap::{self, TapDevice};
use towpath_device::xdp::{self, XdpDevice, XdpError};
use towpath_netlink::{Netlink, Prefix};
use towpath_sandbox::{End, Error, Namespace, Unavailable, connect};

use super::addresses::{GATEWAY_V4, GATEWAY_V6};
use crate::serve::confine::FOR_INTERFACES;

/// The name of the served interface in its namespace.
pub(super) const INTERFACE: &str = "towpath0";
/// The name of a veth pair's other end.
const FAR: &str = "far0";

/// The device to serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Choice {
    /// AF_XDP where this user may load XDP programs, else TAP.
    #[default]
    Auto,
    /// AF_XDP on one end of a veth pair.
    Xdp,
    /// A TAP interface.
    Tap,
}

/// The wire.
pub(super) enum Wire {
    /// The kernel's sockets are on the TAP interface itself.
    Tap(Box<TapDevice>),
    /// The kernel's sockets are on one end of a veth pair. The other end is in this namespace.
    Veth(Namespace),
}

impl Wire {
    /// Makes the wire, with the kernel's addresses on its end in this namespace.
    pub(super) fn make(choice: Choice) -> anyhow::Result<Wire> {
        match choice {
            Choice::Tap => Wire::tap(),
            Choice::Xdp => match Wire::veth()? {
                Ok(wire) => Ok(wire),
                Err(why) => bail!(Error::Unavailable(why)),
            },
            Choice::Auto => match Wire::veth()? {
                Ok(wire) => Ok(wire),
                Err(_) => Wire::tap(),
            },
        }
    }

    fn tap() -> anyhow::Result<Wire> {
        towpath_sandbox::check_tun().map_err(Error::Unavailable)?;
        let device = TapDevice::open(&tap::Options { name: INTERFACE.to_owned(), offloads: true })?;
        let mut netlink = Netlink::open()?;
        for address in addresses()? {
            netlink.add_address(INTERFACE, address)?;
        }
        netlink.set_up(INTERFACE)?;
        Ok(Wire::Tap(Box::new(device)))
    }

    /// Makes a veth pair, and attaches to it for a moment. Returns the reason if this machine or
    /// user may not.
    fn veth() -> anyhow::Result<Result<Wire, Unavailable>> {
        let here = Namespace::current()?;
        let served = Namespace::create()?;
        // Without packets of the kernel's own, the counters are clearer.
        let _ = served.silence();
        let addresses = addresses()?;
        let near = End { namespace: &here, name: FAR, addresses: &addresses };
        let far = End { namespace: &served, name: INTERFACE, addresses: &[] };
        match connect(&near, &far, None) {
            Err(Error::Unavailable(why)) => return Ok(Err(why)),
            made => made?,
        }
        match served.run(open)? {
            Ok(_) => Ok(Ok(Wire::Veth(served))),
            Err(error @ (XdpError::NotPermitted { .. } | XdpError::NoSockets { .. })) => {
                // The kernel removes the pair with the other namespace, but only some time later.
                // Until then its route would take packets that are for the TAP.
                Netlink::open()?.delete_link(FAR)?;
                let remedy = "run it as root, or without --device xdp".to_owned();
                Ok(Err(Unavailable { cause: error.to_string(), remedy }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the kind of the wire, for people to read.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Wire::Tap(_) => "a TAP",
            Wire::Veth(_) => "AF_XDP on a veth pair",
        }
    }

    /// Returns the namespace of the served interface, if it is not this one.
    pub(super) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Wire::Tap(_) => None,
            Wire::Veth(namespace) => Some(namespace),
        }
    }

    /// Returns the descriptor that a server in another process takes over, if the device is one.
    pub(super) fn descriptor(&self) -> std::io::Result<Option<OwnedFd>> {
        match self {
            Wire::Tap(device) => device.as_fd().try_clone_to_owned().map(Some),
            Wire::Veth(_) => Ok(None),
        }
    }

    /// Returns the capabilities that a server in another process needs until it has opened the
    /// device.
    pub(super) fn capabilities(&self) -> CapabilitySet {
        match self {
            Wire::Tap(_) => CapabilitySet::empty(),
            Wire::Veth(_) => FOR_INTERFACES,
        }
    }

    /// Opens the device in this process.
    pub(super) fn device(self) -> anyhow::Result<Box<dyn Device>> {
        match self {
            Wire::Tap(device) => Ok(device),
            Wire::Veth(namespace) => Ok(Box::new(namespace.run(open)??)),
        }
    }
}

/// Attaches to the interface in this namespace.
pub(super) fn open() -> Result<XdpDevice, XdpError> {
    XdpDevice::open(&xdp::Options { interface: INTERFACE.to_owned(), ..Default::default() })
}

fn addresses() -> anyhow::Result<[Prefix; 2]> {
    Ok([Prefix::new(GATEWAY_V4.into(), 24)?, Prefix::new(GATEWAY_V6.into(), 64)?])
}
