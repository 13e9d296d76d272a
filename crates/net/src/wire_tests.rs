//! Two networks on a wire in memory, which can hold frames back.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use towpath_device_testing::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Server, Subnet, Subnets};
use towpath_stack::{Meta, Offload};

use crate::lock::lock;
use crate::{Armed, Config, Driving, Link, LinkError, LinkInfo, Network, TcpListener, TcpStream};

/// The addresses of the two networks.
pub(crate) const A: &str = "10.0.0.1";
pub(crate) const B: &str = "10.0.0.2";

/// Returns `true` for a frame to hold back.
type Hold = fn(&[u8]) -> bool;

#[derive(Default)]
struct Frames {
    arrived: VecDeque<(Vec<u8>, Meta)>,
    held: VecDeque<(Vec<u8>, Meta)>,
    hold: Option<Hold>,
    /// Runs while the receiving link is asked for its lost frames.
    while_asked: Option<Box<dyn FnOnce() + Send>>,
    /// The time to live of each IPv4 packet, with its protocol.
    ttls: Vec<(u8, u8)>,
}

/// One direction of the wire.
#[derive(Clone)]
pub(crate) struct Direction {
    frames: Arc<Mutex<Frames>>,
    doorbell: Arc<OwnedFd>,
}

impl Direction {
    fn new() -> Direction {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(rustix::event::eventfd(0, flags).unwrap());
        Direction { frames: Arc::default(), doorbell }
    }

    /// From now on, holds back the frames for which `hold` returns `true`.
    pub(crate) fn hold(&self, hold: Hold) {
        lock(&self.frames).hold = Some(hold);
    }

    /// Returns the time to live of the last packet of a protocol.
    pub(crate) fn last_ttl(&self, protocol: u8) -> Option<u8> {
        let frames = lock(&self.frames);
        frames.ttls.iter().rev().find(|(of, _)| *of == protocol).map(|(_, ttl)| *ttl)
    }

    /// Sets what runs, once, while the receiving link is asked for its lost frames, under its lock.
    pub(crate) fn while_asked_for_lost(&self, run: impl FnOnce() + Send + 'static) {
        lock(&self.frames).while_asked = Some(Box::new(run));
    }

    pub(crate) fn held(&self) -> usize {
        lock(&self.frames).held.len()
    }

    /// Delivers all held frames together.
    pub(crate) fn release(&self) {
        let mut frames = lock(&self.frames);
        frames.hold = None;
        let held = std::mem::take(&mut frames.held);
        frames.arrived.extend(held);
        drop(frames);
        self.ring();
    }

    fn ring(&self) {
        rustix::io::write(&self.doorbell, &1u64.to_ne_bytes()).unwrap();
    }
}

/// Returns `true` for the frames of an open TCP connection over IPv4.
pub(crate) fn is_tcp_without_syn(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[23] == 6 && frame[47] & 2 == 0
}

struct Wire {
    mac: [u8; 6],
    from: Direction,
    to: Direction,
    sent: bool,
}

impl Link for Wire {
    fn info(&self) -> LinkInfo {
        LinkInfo { mac: self.mac.into(), mtu: 1500, offload: Offload::default() }
    }

    fn sleep_fd(&self) -> std::io::Result<OwnedFd> {
        self.from.doorbell.try_clone()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let mut frames = lock(&self.from.frames);
        let count = frames.arrived.len().min(budget);
        let arrived: Vec<_> = frames.arrived.drain(..count).collect();
        drop(frames);
        arrived.iter().for_each(|(frame, meta)| take(frame, *meta));
        Ok(count)
    }

    fn lost(&self) -> u64 {
        let run = lock(&self.from.frames).while_asked.take();
        run.into_iter().for_each(|run| run());
        0
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        Ok(Some(!lock(&self.from.frames).arrived.is_empty()))
    }

    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut frame = vec![0; len];
        fill(&mut frame);
        let mut frames = lock(&self.to.frames);
        if frame[12..14] == [8, 0] {
            frames.ttls.push((frame[23], frame[22]));
        }
        if frames.hold.is_some_and(|hold| hold(&frame)) {
            frames.held.push_back((frame, meta));
        } else {
            frames.arrived.push_back((frame, meta));
            self.sent = true;
        }
        true
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if std::mem::take(&mut self.sent) {
            self.to.ring();
        }
        Ok(())
    }

    fn arm(&mut self, _: bool) -> Result<Armed, LinkError> {
        let is_empty = lock(&self.from.frames).arrived.is_empty();
        Ok(if is_empty { Armed::Sleep { writable: false } } else { Armed::Work })
    }

    fn disarm(&mut self) {
        let _ = rustix::io::read(&self.from.doorbell, &mut [0; 8]);
    }
}

/// Two networks on one wire.
pub(crate) struct Pair {
    pub(crate) a: Network,
    pub(crate) b: Network,
    pub(crate) to_a: Direction,
    pub(crate) to_b: Direction,
}

/// Returns two networks; `driving` is that of the first one.
pub(crate) fn pair(driving: Driving) -> Pair {
    let (to_a, to_b) = (Direction::new(), Direction::new());
    let network = |number: u8, address: &str, from: &Direction, to: &Direction, driving| {
        let mac = [2, 0, 0, 0, 0, number];
        let mut config = Config::new(mac);
        config.ipv4 = Some((address.parse().unwrap(), 24));
        config.ipv6_link_local = false;
        let (from, to) = (from.clone(), to.clone());
        Network::builder()
            .driving(driving)
            .on(Box::new(Wire { mac, from, to, sent: false }), config)
            .unwrap()
    };
    let a = network(1, A, &to_a, &to_b, driving);
    let b = network(2, B, &to_b, &to_a, Driving::Thread);
    Pair { a, b, to_a, to_b }
}

/// Returns both ends of a connection: the first network's, which accepted it, and the other one's.
pub(crate) fn connection(pair: &Pair) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(&pair.a, format!("{A}:0")).unwrap();
    let (b, at) = (pair.b.clone(), listener.local_addr().unwrap());
    let connecting = std::thread::spawn(move || TcpStream::connect(&b, at).unwrap());
    let (ours, _) = listener.accept().unwrap();
    (ours, connecting.join().unwrap())
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < until, "{what}: not within 20 seconds");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends all calls of a network that block, also if the test fails.
pub(crate) struct Ending(pub(crate) Network);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.shared().end();
    }
}

/// Starts a server over a device in memory, with addresses of 10.77.0.0/24 for its sessions.
pub(crate) fn serve() -> (Server, loopback::LoopbackDevice) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let ipv4 = Some(Subnet::new("10.77.0.1".parse().unwrap(), 24));
    let subnets = Subnets { ipv4, ipv6: None };
    let config = towpath_server::Config { subnets, ..towpath_server::Config::default() };
    (Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap(), far)
}
