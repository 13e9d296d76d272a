//! Round trips with all sides asleep while they wait: the kernel's UDP sockets at both ends, or at
//! the far end alone.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use towpath_client::WaitStrategy;
use towpath_device::Armed;
use towpath_testkit::pin;

use super::ends::{End, Kind};
use super::spinning::serving;
use super::wire::Wire;
use crate::child::{Child, Role, is_over, tell};
use crate::latency::Latency;
use crate::process::{Process, XdpMode, start};
use crate::trip::{
    ANSWERS, ASKS, Application, Cores, LOOKS, PATIENCE, Packet, TRIP_BYTES, in_thread, timed,
};

/// What asks, at the near end.
enum Asks {
    Kernel(UdpSocket),
    Embedded(Box<End>),
    /// An application, and its server.
    Served(Box<Application>, #[expect(dead_code, reason = "held")] Process),
}

/// A wire whose far end answers by a process that blocks on a UDP socket.
pub(super) struct Asleep {
    asks: Asks,
    packet: Packet,
    cores: Cores,
    _answers: Child,
    _wire: Wire,
}

impl Asleep {
    fn new(asks: Asks, packet: Packet, cores: Cores, wire: Wire) -> anyhow::Result<Asleep> {
        let answers = AnswerAsleep { address: wire.far_ip(), cpu: cores.answers };
        let answers = start(&answers, Some(&wire.there))?;
        Ok(Asleep { asks, packet, cores, _answers: answers, _wire: wire })
    }

    pub(super) fn kernel(cores: Cores, wire: Wire) -> anyhow::Result<Asleep> {
        let socket = UdpSocket::bind((wire.near_ip(), ASKS))?;
        socket.connect((wire.far_ip(), ANSWERS))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let packet = wire.packet()?;
        Asleep::new(Asks::Kernel(socket), packet, cores, wire)
    }

    pub(super) fn embedded(mode: XdpMode, cores: Cores, wire: Wire) -> anyhow::Result<Asleep> {
        let end = End::open(Kind::Embedded, &wire.near, mode)?;
        wire.announce(wire.near_ip(), wire.near_mac)?;
        let packet = wire.packet()?;
        Asleep::new(Asks::Embedded(Box::new(end)), packet, cores, wire)
    }

    /// The engine runs on the core of the application that asks.
    pub(super) fn served(mode: XdpMode, cores: Cores, wire: Wire) -> anyhow::Result<Asleep> {
        let mut serving = serving(mode, &wire);
        serving.engine_cpu = cores.asks;
        let server = Process::start(&serving, None)?;
        let asks = Application::attach(&server.socket(), ASKS, WaitStrategy::Block)?;
        let (mac, _) = asks.addresses()?;
        wire.announce(wire.lease(), mac)?;
        let packet = asks.packet_to((wire.far_mac, wire.far_ip()))?;
        Asleep::new(Asks::Served(Box::new(asks), server), packet, cores, wire)
    }

    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<Latency> {
        let Asleep { asks, packet, cores, .. } = self;
        in_thread(cores.asks, || timed(window, || trip(asks, packet)))
    }
}

/// Asks, and sleeps until the answer comes.
fn trip(asks: &mut Asks, packet: &Packet) -> anyhow::Result<()> {
    match asks {
        Asks::Kernel(socket) => {
            // The kernel sends the headers itself.
            let data = &packet[crate::flow::HEADER_BYTES..];
            socket.send(data)?;
            let mut answer = [0; TRIP_BYTES];
            ensure!(socket.recv(&mut answer)? == data.len(), "another answer");
            Ok(())
        }
        Asks::Embedded(end) => {
            end.send(packet)?;
            let start = Instant::now();
            while end.receive().is_none() {
                ensure!(start.elapsed() < PATIENCE, "a packet was lost");
                if let End::Embedded(embedded) = &mut **end {
                    sleep(embedded)?;
                }
            }
            Ok(())
        }
        Asks::Served(application, _) => {
            application.send(packet)?;
            loop {
                ensure!(application.session.wait(Some(PATIENCE))?, "a packet was lost");
                if application.receive()?.is_some() {
                    return Ok(());
                }
            }
        }
    }
}

/// Sleeps until the device may have packets.
fn sleep(embedded: &towpath_embedded::Embedded) -> anyhow::Result<()> {
    if embedded.arm() == Some(Armed::Sleep) {
        let fd = embedded.sleep_fd().context("a device without a descriptor")?;
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))?;
        embedded.disarm();
    }
    Ok(())
}

/// Sends each datagram to a UDP socket back, and sleeps until the next.
#[derive(Serialize, Deserialize)]
pub(crate) struct AnswerAsleep {
    /// The socket's address.
    pub(crate) address: Ipv4Addr,
    /// The core; any core if `None`.
    pub(crate) cpu: Option<usize>,
}

impl Role for AnswerAsleep {
    const NAME: &'static str = "AnswerAsleep";

    fn act(self) -> anyhow::Result<()> {
        answer(self.address, self.cpu)
    }
}

/// Runs the process that answers from a UDP socket, and blocks, until its parent is gone.
fn answer(address: Ipv4Addr, cpu: Option<usize>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        pin(cpu)?;
    }
    let socket = UdpSocket::bind(SocketAddr::from((address, ANSWERS)))?;
    socket.set_read_timeout(Some(LOOKS))?;
    tell("ready")?;
    let mut packet = [0; TRIP_BYTES];
    loop {
        match socket.recv_from(&mut packet) {
            Ok((len, from)) => drop(socket.send_to(&packet[..len], from)?),
            Err(_) if is_over() => return Ok(()),
            Err(_) => {}
        }
    }
}
