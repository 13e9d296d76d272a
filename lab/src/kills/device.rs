//! The server's device, and the kernel's end of it.

use std::net::SocketAddr;

use anyhow::Context;

use super::losses::KernelCounts;
use crate::kernel_wire::KernelWire;

pub(super) const TAP: &str = "tpkills0";
/// The interface for AF_XDP: one end of a veth pair.
pub(super) const VETH: &str = "tpkillx";
pub(super) const VETH_MTU: u32 = 1500;
/// The TAP's address. The first application gets the next one.
pub(super) const ADDRESS: &str = "10.94.0.1";

/// What the server serves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Device {
    /// A TAP. The kernel is at its other end.
    Tap,
    /// A veth interface, by AF_XDP. The application has the interface's address, and the kernel is at
    /// the other end, in a network namespace of its own.
    SharedXdp,
}

impl Device {
    pub(super) fn name(self) -> &'static str {
        match self {
            Device::Tap => "TAP",
            Device::SharedXdp => "AF_XDP, shared address",
        }
    }

    /// Returns the server's arguments, and the kernel's end.
    pub(super) fn make(self) -> anyhow::Result<(Vec<String>, KernelEnd)> {
        let (arguments, end) = match self {
            Device::Tap => {
                let network = format!("{ADDRESS}/24");
                (vec![format!("tap:{TAP}"), "--address".into(), network], KernelEnd(None))
            }
            Device::SharedXdp => {
                let wire = KernelWire::new(VETH, VETH_MTU)?;
                let device = format!("xdp:{VETH}0,mode=generic");
                (vec![device, "--share-host".into()], KernelEnd(Some(wire)))
            }
        };
        Ok(([vec!["--device".into()], arguments].concat(), end))
    }
}

/// The kernel's end of the connections: in this network namespace, or at the far end of a wire.
pub(super) struct KernelEnd(Option<KernelWire>);

impl KernelEnd {
    pub(super) fn connect(&self, to: SocketAddr) -> anyhow::Result<std::net::TcpStream> {
        match &self.0 {
            None => Ok(std::net::TcpStream::connect(to)?),
            Some(wire) => wire.far_tcp(to),
        }
    }

    pub(super) fn udp(&self) -> anyhow::Result<std::net::UdpSocket> {
        let Some(wire) = &self.0 else { return Ok(std::net::UdpSocket::bind((ADDRESS, 0))?) };
        let socket = wire.far_udp(0, 1)?.pop().context("a socket")?;
        socket.set_nonblocking(false)?;
        Ok(socket)
    }

    /// Reads the kernel's counters.
    pub(super) fn counts(&self) -> anyhow::Result<KernelCounts> {
        match &self.0 {
            None => KernelCounts::read(TAP),
            Some(wire) => wire.at_far_end(|| KernelCounts::read(&format!("{VETH}1")))?,
        }
    }
}
