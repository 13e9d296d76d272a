//! A host that shares its address: the product's own server on one end of a veth pair, the kernel's
//! sockets of another host at the far end, and a second pair that nothing is attached to.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context;
use towpath_net::Network;
use towpath_testkit::{End, Namespace, connect};

use crate::child::{Child, Keep, OwnSocket};
use crate::process::XdpMode;
use crate::programs::Serve;

/// The shared interface, and the addresses of both ends.
pub(super) const INTERFACE: &str = "tpshare0";
pub(super) const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The near end of the pair that nothing is attached to.
pub(super) const UNTOUCHED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const UNTOUCHED_FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Both hosts, and a directory for files.
pub(super) struct Hosts {
    pub(super) there: Namespace,
    directory: OwnSocket,
    _keeper: Child,
}

impl Hosts {
    pub(super) fn new() -> anyhow::Result<Hosts> {
        let (here, there) = (Namespace::current()?, Namespace::create()?);
        for namespace in [&here, &there] {
            let _ = namespace.silence();
            let _ = namespace.set("net.ipv4.ip_local_port_range", "10000 65000");
        }
        for (near, far, [own, other]) in [
            (INTERFACE, "tpshare1", [NEAR, FAR]),
            ("tpshare2", "tpshare3", [UNTOUCHED, UNTOUCHED_FAR]),
        ] {
            let address = |ip: Ipv4Addr| format!("{ip}/24").parse();
            connect(
                &End { namespace: &here, name: near, addresses: &[address(own)?] },
                &End { namespace: &there, name: far, addresses: &[address(other)?] },
                None,
            )?;
        }
        let directory = OwnSocket::new()?;
        let keeper = Child::start(&Keep { directory: directory.directory().to_owned() })?;
        Ok(Hosts { there, directory, _keeper: keeper })
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.directory()
    }
}

/// The server, `towpath serve --share-host`, and an application's network.
pub(super) struct Server {
    // The application ends first.
    pub(super) network: Network,
    pub(super) serve: Serve,
}

impl Server {
    pub(super) fn start(hosts: &Hosts, towpath: &Path, mode: XdpMode) -> anyhow::Result<Server> {
        let device = format!("xdp:{INTERFACE},mode={}", mode.name());
        let arguments = ["--device", &device, "--share-host"];
        let (serve, network) = Serve::start(towpath, (hosts.directory(), mode.name()), &arguments)?;
        Ok(Server { network, serve })
    }

    /// Returns the shared address, with a port.
    pub(super) fn at(&self, port: u16) -> anyhow::Result<SocketAddr> {
        let ours = self.network.addresses().into_iter().find(IpAddr::is_ipv4);
        Ok(SocketAddr::new(ours.context("the application got no IPv4 address")?, port))
    }
}
