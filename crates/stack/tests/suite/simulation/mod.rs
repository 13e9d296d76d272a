//! Two hosts and a link between them. One seed determines the whole run.

#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use sha2::{Digest, Sha256};
use towpath_packet::offload::{MAX_SENT_SEGMENTS, MIN_SEGMENT_BYTES};
use towpath_stack::{
    Checksum, Config, Instant, Meta, Shutdown, SocketError, SocketId, Stack, TcpId, Transmit,
};

/// Returns random bytes.
pub fn bytes(random: &mut Rng, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// Faults of the link, each per thousand frames.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    pub mangled: u64,
}

/// One host's end of the link.
#[derive(Default)]
pub struct End {
    pub sent: Vec<(Vec<u8>, Meta)>,
    /// The number of frames that the link has room for; `None`: no limit.
    pub room: Option<usize>,
}

impl Transmit for End {
    fn room(&mut self, _: usize) -> bool {
        self.room != Some(0)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        if let Some(room) = &mut self.room {
            if *room == 0 {
                return false;
            }
            *room -= 1;
        }
        // The frame's former content must not matter.
        let mut frame = vec![0xa5; len];
        fill(&mut frame);
        self.sent.push((frame, meta));
        true
    }
}

/// A stack and its application's state.
pub struct Node {
    pub stack: Stack,
    pub end: End,
    pub news: Vec<SocketId>,
}

/// Two nodes, 0 and 1.
pub struct World {
    pub nodes: [Node; 2],
    pub now: Instant,
    pub random: Rng,
    pub faults: Faults,
    /// The delay in one direction, in microseconds.
    pub delay_us: u64,
    /// `true` to segment large frames as a device would; otherwise they arrive as they were sent.
    pub cuts: bool,
    /// The largest packet that passes unsegmented, asserted.
    pub mtu: usize,
    /// The segment size that the link writes into SYNs of stacks with checksum offload, instead of
    /// the stack's.
    pub segment_bytes: Option<u16>,
    queue: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    frames: BTreeMap<u64, (Vec<u8>, Meta)>,
    serial: u64,
    pub carried: u64,
    /// The first thousand received frames, each with its receiver.
    pub received: Vec<(Vec<u8>, usize)>,
}

pub const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

pub fn config(node: usize) -> Config {
    let mut config = Config::new([2, 0, 0, 0, 0, node as u8 + 1]);
    config.ipv4 = Some((V4[node].parse().unwrap(), 24));
    config.seed = node as u64 + 99;
    // Small, so that thousands of connections fit and windows close.
    config.tcp.receive_buffer_bytes = 64 * 1024;
    config.tcp.send_buffer_bytes = 64 * 1024;
    config
}

impl World {
    pub fn new(seed: u64, configs: [Config; 2]) -> World {
        println!("seed {seed}");
        let mtu = configs[0].mtu;
        let node = |config| Node {
            stack: Stack::new(config, Instant::ZERO).unwrap(),
            end: End::default(),
            news: Vec::new(),
        };
        let [a, b] = configs;
        World {
            nodes: [node(a), node(b)],
            now: Instant::ZERO,
            random: Rng::with_seed(seed),
            faults: Faults::default(),
            delay_us: 100,
            cuts: false,
            mtu,
            segment_bytes: None,
            queue: BinaryHeap::new(),
            frames: BTreeMap::new(),
            serial: 0,
            carried: 0,
            received: Vec::new(),
        }
    }

    pub fn v6(&self, node: usize) -> std::net::IpAddr {
        self.nodes[node].stack.addresses().find(|(address, _)| address.is_ipv6()).unwrap().0
    }

    /// Puts a frame on the link toward `to`.
    pub fn inject(&mut self, to: usize, frame: Vec<u8>, meta: Meta) {
        let mut delay = self.delay_us;
        if self.random.u64(..1000) < self.faults.late {
            delay += self.random.u64(..=self.delay_us * 20);
        }
        self.serial += 1;
        let at = self.now + Duration::from_micros(delay);
        self.frames.insert(self.serial, (frame, meta));
        self.queue.push(Reverse((at, self.serial, to)));
    }

    fn carry(&mut self, from: usize, frame: Vec<u8>, meta: Meta) {
        self.carried += 1;
        if self.random.u64(..1000) < self.faults.lost {
            return;
        }
        let copies = 1 + u64::from(self.random.u64(..1000) < self.faults.doubled);
        for _ in 0..copies {
            let mut frame = frame.clone();
            let mut meta = meta;
            if self.random.u64(..1000) < self.faults.mangled {
                let (at, bit) = (self.random.u64(..frame.len() as u64), self.random.u64(..8));
                // Only a full checksum detects bytes that changed on the link.
                frame = finished(frame, meta);
                meta = Meta::FULL;
                frame[at as usize] ^= 1 << bit;
            }
            self.inject(1 - from, frame, meta);
        }
    }

    /// Lets both stacks send, and moves the frames to the link. Returns `true` if anything was
    /// sent.
    fn pump(&mut self) -> bool {
        let mut worked = false;
        for index in 0..2 {
            let node = &mut self.nodes[index];
            worked |= node.stack.poll(self.now, &mut node.end);
            while let Some(news) = node.stack.next_news() {
                node.news.push(news);
            }
            for (mut frame, meta) in std::mem::take(&mut self.nodes[index].end.sent) {
                let limit = self.mtu + 14;
                if let Some(segment_bytes) = self.segment_bytes {
                    state_segment_bytes(&mut frame, meta, segment_bytes);
                }
                if let Some(large) = meta.segmentation {
                    let payload = frame.len() - usize::from(large.header_bytes);
                    assert!(large.segment_bytes >= MIN_SEGMENT_BYTES, "{large:?}");
                    let segments = payload.div_ceil(large.segment_bytes.into());
                    assert!(segments <= MAX_SENT_SEGMENTS, "{segments} of {large:?}");
                }
                assert!(meta.segmentation.is_some() || frame.len() <= limit, "{}", frame.len());
                for (frame, meta) in if self.cuts { cut(frame, meta) } else { vec![(frame, meta)] }
                {
                    assert!(!self.cuts || frame.len() <= limit);
                    self.carry(index, frame, meta);
                }
            }
        }
        worked
    }

    /// Runs until nothing is due before `until`, or `step`, the applications, returns `true`.
    pub fn run(&mut self, until: Instant, mut step: impl FnMut(&mut World) -> bool) -> bool {
        loop {
            let mut turns = 0;
            loop {
                if step(self) {
                    return true;
                }
                let worked = self.pump();
                let wants = self.nodes.iter().any(|node| node.stack.wants_poll());
                if !worked && !wants {
                    break;
                }
                turns += 1;
                assert!(turns < 100_000, "the stacks never become idle");
            }
            let arrival = self.queue.peek().map(|Reverse((at, ..))| *at);
            let timers = self.nodes.iter().filter_map(|node| node.stack.poll_at(self.now));
            // A node that waits for room in the link polls again soon.
            let blocked = self.nodes.iter().any(|node| node.stack.is_blocked());
            let again = blocked.then(|| self.now + Duration::from_micros(50));
            let Some(next) = timers.chain(arrival).chain(again).min() else { return false };
            if next > until {
                self.now = self.now.max(until);
                return false;
            }
            self.now = self.now.max(next);
            while let Some(Reverse((at, serial, to))) = self.queue.peek().copied() {
                if at > self.now {
                    break;
                }
                self.queue.pop();
                let (frame, meta) = self.frames.remove(&serial).unwrap();
                self.nodes[to].stack.input(self.now, &frame, meta);
                if self.received.len() < 1000 {
                    self.received.push((frame, to));
                }
            }
        }
    }

    /// Runs for a while without applications.
    pub fn idle(&mut self, time: Duration) {
        let until = self.now + time;
        self.run(until, |_| false);
        self.now = self.now.max(until);
    }

    /// Connects node 0 to a new listener of node 1, and returns both ends.
    pub fn connected(&mut self, port: u16, v6: bool) -> (TcpId, TcpId) {
        let ip = if v6 { self.v6(1) } else { V4[1].parse().unwrap() };
        let address = SocketAddr::new(ip, port);
        let listener = self.nodes[1].stack.tcp_listen(address, 8).unwrap();
        let now = self.now;
        let client = self.nodes[0].stack.tcp_connect(now, address, None, None).unwrap();
        let mut server = None;
        let until = self.now + Duration::from_secs(90);
        assert!(self.run(until, |world| {
            server = world.nodes[1].stack.tcp_accept(listener).ok().map(|(id, _)| id);
            server.is_some() && world.nodes[0].stack.tcp_readiness(client).unwrap().writable
        }));
        let now = self.now;
        self.nodes[1].stack.tcp_close_listener(now, listener).unwrap();
        (client, server.unwrap())
    }

    /// Sends `bytes` from one end to the other, which echoes them at once, and closes each
    /// direction when done. Compares the bytes.
    pub fn echo(&mut self, client: TcpId, server: TcpId, bytes: &[u8], until: Instant) {
        let (mut sent, mut got) = (0, Sha256::new());
        let (mut got_bytes, mut pending, mut half, mut over) = (0, Vec::new(), false, false);
        let done = self.run(until, |world| {
            let now = world.now;
            let stack = &mut world.nodes[0].stack;
            while sent < bytes.len() {
                match stack.tcp_send(client, &bytes[sent..]) {
                    Ok(len) => sent += len,
                    Err(SocketError::WouldBlock) => break,
                    Err(error) => panic!("send: {error}"),
                }
                if sent == bytes.len() {
                    stack.tcp_shutdown(now, client, Shutdown::Write).unwrap();
                }
            }
            let mut buffer = [0; 5000];
            while !over {
                match stack.tcp_recv(now, client, &mut buffer) {
                    Ok(0) => over = true,
                    Ok(len) => {
                        got.update(&buffer[..len]);
                        got_bytes += len;
                    }
                    Err(SocketError::WouldBlock) => break,
                    Err(error) => panic!("receive: {error}"),
                }
            }
            let stack = &mut world.nodes[1].stack;
            loop {
                if !pending.is_empty() {
                    match stack.tcp_send(server, &pending) {
                        Ok(len) => drop(pending.drain(..len)),
                        Err(SocketError::WouldBlock) => break,
                        Err(error) => panic!("echo: {error}"),
                    }
                }
                match stack.tcp_recv(now, server, &mut buffer) {
                    Ok(0) => {
                        if !half && pending.is_empty() {
                            half = true;
                            stack.tcp_shutdown(now, server, Shutdown::Write).unwrap();
                        }
                        break;
                    }
                    Ok(len) => pending.extend_from_slice(&buffer[..len]),
                    Err(SocketError::WouldBlock) => break,
                    Err(error) => panic!("echo: {error}"),
                }
            }
            over
        });
        assert!(done, "sent {sent}, came back {got_bytes} of {}", bytes.len());
        assert_eq!(got_bytes, bytes.len());
        assert_eq!(got.finalize(), Sha256::digest(bytes), "bytes differ");
    }
}

/// The offset of the checksum in a UDP header.
const UDP_CHECKSUM: u16 = 6;

/// Completes the checksum of a frame that needs no segmentation.
pub fn finished(mut frame: Vec<u8>, meta: Meta) -> Vec<u8> {
    if let Checksum::Partial { start, offset } = meta.checksum {
        let start = usize::from(start);
        let at = start + usize::from(offset);
        let sum = match !sum(&frame[start..]) {
            // To UDP, zero would mean "no checksum" (RFC 768).
            0 if offset == UDP_CHECKSUM => 0xffff,
            sum => sum,
        };
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

pub fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Writes another segment size into the SYN of a connection.
fn state_segment_bytes(frame: &mut [u8], meta: Meta, segment_bytes: u16) {
    const SYN: u8 = 2;
    const SEGMENT_SIZE_OPTION: [u8; 2] = [2, 4];
    let Checksum::Partial { start, offset: 16 } = meta.checksum else { return };
    let tcp = &mut frame[usize::from(start)..];
    if tcp[13] & SYN == 0 {
        return;
    }
    assert_eq!(tcp[20..22], SEGMENT_SIZE_OPTION, "the option comes first");
    tcp[22..24].copy_from_slice(&segment_bytes.to_be_bytes());
}

/// Segments a large frame as a device does, and completes the checksums, independently of the
/// stack's own code.
pub fn cut(frame: Vec<u8>, meta: Meta) -> Vec<(Vec<u8>, Meta)> {
    let Some(segmentation) = meta.segmentation else {
        return vec![(finished(frame, meta), Meta::FULL)];
    };
    let Checksum::Partial { start, offset } = meta.checksum else {
        panic!("a large frame without a partial checksum");
    };
    let (tcp, headers) = (usize::from(start), usize::from(segmentation.header_bytes));
    assert_eq!(headers, tcp + usize::from(frame[tcp + 12] >> 4) * 4);
    let (head, payload) = frame.split_at(headers);
    let size = usize::from(segmentation.segment_bytes);
    assert!(payload.len() > size);
    let sequence = u32::from_be_bytes(head[tcp + 4..tcp + 8].try_into().unwrap());
    let count = payload.len().div_ceil(size);
    let mut out = Vec::new();
    for (index, part) in payload.chunks(size).enumerate() {
        let mut segment = [head, part].concat();
        let len = segment.len();
        let (addresses, protocol_len) = if tcp == 34 {
            segment[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
            segment[24..26].fill(0);
            let ip_sum = !sum(&segment[14..34]);
            segment[24..26].copy_from_slice(&ip_sum.to_be_bytes());
            (26..34, len - 34)
        } else {
            segment[18..20].copy_from_slice(&((len - 54) as u16).to_be_bytes());
            (22..54, len - 54)
        };
        let sequence = sequence.wrapping_add((index * size) as u32);
        segment[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        if index + 1 < count {
            segment[tcp + 13] &= !9;
        }
        let mut pseudo = segment[addresses].to_vec();
        pseudo.extend_from_slice(&(protocol_len as u32).to_be_bytes());
        pseudo.extend_from_slice(&[0, 6]);
        let at = tcp + usize::from(offset);
        segment[at..at + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        let total = !sum(&segment[tcp..]);
        segment[at..at + 2].copy_from_slice(&total.to_be_bytes());
        out.push((segment, Meta::FULL));
    }
    out
}
