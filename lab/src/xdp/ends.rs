//! The ends of a wire that drive their interface themselves: a bare AF_XDP socket, and `embedded`.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use towpath_bpf::{Assembler, Link, Map, MapKind, Program, Reg, Size, XdpMode as AttachMode};
use towpath_device::xdp::{Options, XdpDevice};
use towpath_embedded::{Config, Embedded, SendError};
use towpath_netlink::Netlink;
use towpath_testkit::{XdpSocket, pin};

use crate::child::{is_over, tell};
use crate::process::XdpMode;
use crate::trip::{ANSWERS, ASKS, PATIENCE, Packet, SPINS, TRIP_BYTES, turned};

/// Numbers of the kernel's interface (`linux/bpf.h`): the helper `bpf_redirect_map`, the offset of
/// the hardware queue in `struct xdp_md`, and the verdict for a queue without a socket.
const REDIRECT_MAP: i32 = 51;
const RX_QUEUE: i16 = 16;
const PASS: i32 = 2;
/// The offset of the UDP ports in a packet.
const PORTS: std::ops::Range<usize> = 34..38;

/// What drives the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Bare,
    Embedded,
}

/// An end of the wire, which takes every packet of its interface.
#[expect(clippy::large_enum_variant, reason = "there are few, and a box would cost each access")]
pub(super) enum End {
    /// A socket, and the program that gives it the packets.
    Bare {
        socket: XdpSocket,
        _sockets: Map,
        _link: Link,
    },
    Embedded(Embedded),
}

impl End {
    /// Takes an interface of the calling thread's network namespace.
    pub(super) fn open(kind: Kind, interface: &str, mode: XdpMode) -> anyhow::Result<End> {
        if kind == Kind::Embedded {
            let options = Options {
                interface: interface.to_owned(),
                mode: mode.of_device(),
                exclusive: true,
                ..Options::default()
            };
            let device = Box::new(XdpDevice::open(&options)?);
            let embedded = Embedded::new(device, Config::default())?;
            // The first call gives the device its receive buffers, which the first answer needs.
            embedded.receive(0, |_, _| ());
            return Ok(End::Embedded(embedded));
        }
        let index = Netlink::open()?.index(interface)?;
        let sockets = Map::create(MapKind::Xsk, "lab_sockets", 4, 4, 1)?;
        let mut asm = Assembler::default();
        asm.load(Size::Word, Reg::R2, Reg::R1, RX_QUEUE);
        asm.load_map(Reg::R1, sockets.as_fd().as_raw_fd());
        asm.set(Reg::R3, PASS);
        asm.call(REDIRECT_MAP);
        asm.exit();
        let program = Program::load_xdp("lab_all", &asm.finish()?, false)?;
        let attach = match mode {
            XdpMode::Native => AttachMode::Native,
            XdpMode::Generic => AttachMode::Generic,
        };
        let link = Link::attach_xdp(&program, index, attach)?;
        let socket = XdpSocket::bind(index).context("binding an AF_XDP socket")?;
        sockets.set_fd(0, socket.as_fd())?;
        Ok(End::Bare { socket, _sockets: sockets, _link: link })
    }

    pub(super) fn send(&mut self, packet: &Packet) -> anyhow::Result<()> {
        match self {
            End::Bare { socket, .. } => {
                ensure!(socket.send(packet)?, "the kernel did not take a packet");
            }
            End::Embedded(embedded) => match embedded.send(packet) {
                Ok(()) => {}
                Err(SendError::Failed) => {
                    let cause = embedded.failure().map(anyhow::Error::from);
                    return Err(cause.unwrap_or_else(|| SendError::Failed.into()));
                }
                Err(error) => return Err(error.into()),
            },
        }
        Ok(())
    }

    /// Returns a packet of a trip that waits, if any. Other packets are for nothing here.
    pub(super) fn receive(&mut self) -> Option<Packet> {
        let mut got = None;
        match self {
            End::Bare { socket, .. } => {
                let mut packet = [0; TRIP_BYTES];
                got = (socket.receive(&mut packet) == Some(TRIP_BYTES)).then_some(packet);
            }
            End::Embedded(embedded) => {
                embedded.receive(1, |packet, _| got = packet.try_into().ok());
            }
        }
        got.filter(is_of_trip)
    }

    /// Polls until a packet comes.
    pub(super) fn spin(&mut self) -> anyhow::Result<Packet> {
        let (mut polls, mut since) = (0_u32, None);
        loop {
            if let Some(packet) = self.receive() {
                return Ok(packet);
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(SPINS) {
                let since = *since.get_or_insert_with(Instant::now);
                ensure!(since.elapsed() < PATIENCE, "a packet was lost");
            }
        }
    }
}

/// Returns `true` for a packet between the two ports of a trip.
fn is_of_trip(packet: &Packet) -> bool {
    let ports = |from: u16, to: u16| [from.to_be_bytes(), to.to_be_bytes()].concat();
    [ports(ASKS, ANSWERS), ports(ANSWERS, ASKS)].iter().any(|ports| packet[PORTS] == ports[..])
}

/// Runs the process that answers from one end, and polls, until its parent is gone.
pub(super) fn answer(kind: Kind, interface: &str, mode: XdpMode, cpu: usize) -> anyhow::Result<()> {
    pin(cpu)?;
    let mut end = End::open(kind, interface, mode)?;
    tell("ready")?;
    let mut polls = 0_u32;
    loop {
        if let Some(packet) = end.receive() {
            end.send(&turned(&packet))?;
            continue;
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(SPINS) && is_over() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_packets_are_of_no_trip() {
        let mut packet = [0; TRIP_BYTES];
        assert!(!is_of_trip(&packet));
        packet[PORTS].copy_from_slice(&[3, 232, 7, 208]);
        assert!(is_of_trip(&packet));
        assert!(is_of_trip(&turned(&packet)));
    }
}
