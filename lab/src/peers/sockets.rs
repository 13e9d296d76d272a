//! Round trips over sockets: Unix datagrams between processes that sleep, and UDP over veth between
//! threads that poll.

use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use towpath_testkit::pin;

use crate::child::{Child, Role, is_over, tell};
use crate::kernel_wire::{KernelWire, receive};
use crate::latency::Latency;
use crate::trip::{Cores, LOOKS, PATIENCE, Packet, TRIP_BYTES, in_thread, timed};

/// A Unix datagram socket whose owner sleeps in `epoll`.
struct Datagrams {
    socket: UnixDatagram,
    epoll: OwnedFd,
}

impl Datagrams {
    fn bind(name: &str) -> anyhow::Result<Datagrams> {
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Datagrams { socket, epoll })
    }

    fn connect(&self, name: &str) -> anyhow::Result<()> {
        Ok(self.socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?)
    }

    /// Sleeps until a datagram comes; returns whether one came.
    fn wait(&self, timeout: Duration, into: &mut Packet) -> anyhow::Result<bool> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.socket.recv(into)? == TRIP_BYTES)
    }
}

/// Two processes on Unix datagram sockets, which sleep in `epoll`.
pub(super) struct Sockets {
    asks: Datagrams,
    _answers: Child,
    cores: Cores,
}

impl Sockets {
    pub(super) fn new(cores: Cores) -> anyhow::Result<Sockets> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = |side| format!("towpath-lab-{:016x}-{side}", u64::from_ne_bytes(random));
        let names = [name("answers"), name("asks")];
        let asks = Datagrams::bind(&names[1])?;
        let role = AnswerSocket { names: names.clone(), cpu: cores.answers };
        let answers = Child::start(&role)?;
        asks.connect(&names[0])?;
        Ok(Sockets { asks, _answers: answers, cores })
    }

    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<Latency> {
        let asks = &self.asks;
        in_thread(self.cores.asks, || {
            let mut packet = [7; TRIP_BYTES];
            timed(window, || {
                asks.socket.send(&packet)?;
                ensure!(asks.wait(PATIENCE, &mut packet)?, "a datagram was lost");
                Ok(())
            })
        })
    }
}

/// Sends each datagram back to a Unix socket, and sleeps until the next.
#[derive(Serialize, Deserialize)]
pub(crate) struct AnswerSocket {
    /// The abstract names of the child's socket and of its peer's.
    pub(crate) names: [String; 2],
    /// The core; any core if `None`.
    pub(crate) cpu: Option<usize>,
}

impl Role for AnswerSocket {
    const NAME: &'static str = "AnswerSocket";

    fn act(self) -> anyhow::Result<()> {
        answer_socket(&self.names, self.cpu)
    }
}

/// Runs the process that answers on a Unix socket, until its parent is gone.
fn answer_socket([own, other]: &[String; 2], cpu: Option<usize>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        pin(cpu)?;
    }
    let answers = Datagrams::bind(own)?;
    answers.connect(other)?;
    tell("ready")?;
    let mut packet = [0; TRIP_BYTES];
    loop {
        if answers.wait(LOOKS, &mut packet)? {
            answers.socket.send(&packet)?;
        } else if is_over() {
            return Ok(());
        }
    }
}

/// Polls a UDP socket until a datagram comes; returns `false` if the trips are over.
fn spin_udp(socket: &UdpSocket, over: &AtomicBool, into: &mut Packet) -> anyhow::Result<bool> {
    let (mut looks, mut since) = (0_u32, None);
    while receive(socket, into)?.is_none() {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(64) {
            if over.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let since = *since.get_or_insert_with(Instant::now);
            ensure!(since.elapsed() < PATIENCE, "a datagram was lost");
        }
    }
    Ok(true)
}

/// Runs trips between two threads that poll UDP sockets at the two ends of a veth pair, each on a
/// core.
pub(crate) fn udp(
    wire: &KernelWire,
    cores: (usize, usize),
    window: Duration,
) -> anyhow::Result<Latency> {
    let far = wire.far_udp(0, 1)?.pop().context("no socket")?;
    let near = wire.near_udp(0)?;
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let answers = scope.spawn(move || -> anyhow::Result<()> {
            pin(cores.0)?;
            let mut packet = [0; TRIP_BYTES];
            while spin_udp(&far, over, &mut packet)? {
                far.send(&packet)?;
            }
            Ok(())
        });
        let asks = scope.spawn(move || {
            let mut packet = [7; TRIP_BYTES];
            let times = pin(cores.1).map_err(anyhow::Error::from).and_then(|()| {
                timed(window, || {
                    near.send(&packet)?;
                    spin_udp(&near, &AtomicBool::new(false), &mut packet).map(drop)
                })
            });
            over.store(true, Ordering::Relaxed);
            times
        });
        let times = asks.join().ok().context("the asking thread failed")?;
        answers.join().ok().context("the answering thread failed")??;
        times
    })
}
