//! A host of smoltcp opposite to ours, on a link that does to each frame what a byte says. smoltcp
//! is an independent implementation of TCP: what both agree upon is probably right.

#![allow(unreachable_pub, dead_code, reason = "the fuzz target uses it as well")]

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use smoltcp::iface::{Config as SmolConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use towpath_stack::{Config, Instant, Meta, Shutdown, SocketError, Stack, TcpId, Transmit};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PORT: u16 = 80;
const MTU: usize = 1500;
/// The one-way delay.
const DELAY: Duration = Duration::from_millis(5);
/// The most packets with a fate of their own.
pub const MAX_FATES: usize = 512;
/// The time by which all must be over. If the link loses each packet that has a fate, smoltcp sends
/// its first segment every 60 s, without an end.
const PATIENCE: Duration = Duration::from_secs(3600 + 60 * MAX_FATES as u64);

/// IP packets in the two directions.
#[derive(Default)]
struct Packets {
    inward: VecDeque<Vec<u8>>,
    outward: VecDeque<Vec<u8>>,
}

struct Received(Vec<u8>);
struct Sent<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Packets {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: SmolInstant) -> Option<(Received, Sent<'_>)> {
        let packet = self.inward.pop_front()?;
        Some((Received(packet), Sent(&mut self.outward)))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.outward))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

/// Our end of the link.
#[derive(Default)]
struct End(Vec<Vec<u8>>);

impl Transmit for End {
    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        assert_eq!(meta, Meta::FULL, "the link offers no offload");
        let mut frame = vec![0xa5; len];
        fill(&mut frame);
        self.0.push(frame);
        true
    }
}

/// What one direction carries: bytes known by their position.
fn byte(direction: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (direction * 0x55)) as u8
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both sides received everything, and the end of the stream.
    Complete,
    /// One side ended the connection with an error.
    Failed,
    /// Neither until the time was over.
    Stalled,
}

/// A packet on its way: arrival, order, `true` if toward us, bytes.
type OnWire = (Instant, u64, bool, Vec<u8>);

/// Both hosts.
pub struct Pair<'a> {
    stack: Stack,
    end: End,
    interface: Interface,
    packets: Packets,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    now: Instant,
    wire: Vec<OnWire>,
    serial: u64,
    /// A byte per packet that decides its fate; when all are used, the link is clean.
    fates: &'a [u8],
    /// `true` if the link may also change what packets say.
    mutates: bool,
}

impl<'a> Pair<'a> {
    pub fn new(fates: &'a [u8], mutates: bool, buffer_bytes: usize) -> Pair<'a> {
        let mut config = Config::new(OUR_MAC);
        config.ipv4 = Some((OURS, 24));
        config.mtu = MTU;
        config.seed = 7;
        config.tcp.receive_buffer_bytes = buffer_bytes;
        config.tcp.send_buffer_bytes = buffer_bytes;
        let mut packets = Packets::default();
        let mut smol = SmolConfig::new(HardwareAddress::Ip);
        smol.random_seed = 9;
        let mut interface = Interface::new(smol, &mut packets, SmolInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::from(IpAddr::V4(THEIRS)), 24)).unwrap();
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; buffer_bytes]);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Pair {
            stack: Stack::new(config, Instant::ZERO).unwrap(),
            end: End::default(),
            interface,
            packets,
            sockets,
            handle,
            now: Instant::ZERO,
            wire: Vec::new(),
            serial: 0,
            fates,
            mutates,
        }
    }

    fn smol_now(&self) -> SmolInstant {
        SmolInstant::from_micros(self.now.as_micros() as i64)
    }

    /// Puts a packet on the wire, as the next byte says.
    fn carry(&mut self, inward: bool, mut packet: Vec<u8>) {
        let fate = self.fates.split_first().map_or(0, |(fate, rest)| {
            self.fates = rest;
            *fate
        });
        let (mut delay, mut copies) = (DELAY, 1);
        match fate & 15 {
            1 | 2 => copies = 0,
            3 => copies = 2,
            4 => delay += DELAY * u32::from(fate >> 4),
            5 | 6 if self.mutates => mutate(&mut packet, fate >> 4),
            _ => {}
        }
        for _ in 0..copies {
            self.serial += 1;
            self.wire.push((self.now + delay, self.serial, inward, packet.clone()));
        }
    }

    /// Moves what both hosts sent to the wire. Returns `true` if they sent anything.
    fn pump(&mut self) -> bool {
        let mut worked = self.stack.poll(self.now, &mut self.end);
        for frame in std::mem::take(&mut self.end.0) {
            match frame[12..14] {
                [8, 0] => self.carry(false, frame[14..].to_vec()),
                // The host of smoltcp has no Ethernet, so the link answers for it.
                [8, 6] if frame[20..22] == [0, 1] && frame[38..42] == THEIRS.octets() => {
                    let mut answer = [&OUR_MAC[..], &THEIR_MAC, &[8, 6]].concat();
                    answer.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
                    answer.extend_from_slice(&THEIR_MAC);
                    answer.extend_from_slice(&THEIRS.octets());
                    answer.extend_from_slice(&OUR_MAC);
                    answer.extend_from_slice(&OURS.octets());
                    self.stack.input(self.now, &answer, Meta::FULL);
                    worked = true;
                }
                _ => {}
            }
        }
        let now = self.smol_now();
        let polled = self.interface.poll(now, &mut self.packets, &mut self.sockets);
        worked |= polled == smoltcp::iface::PollResult::SocketStateChanged;
        while let Some(packet) = self.packets.outward.pop_front() {
            worked = true;
            self.carry(true, packet);
        }
        worked
    }

    /// Advances to the next event. Returns `false` if there is none before the end of patience.
    fn advance(&mut self) -> bool {
        let arrival = self.wire.iter().map(|(at, ..)| *at).min();
        let ours = self.stack.poll_at(self.now);
        let theirs = self.interface.poll_at(self.smol_now(), &self.sockets);
        let theirs = theirs.map(|at| Instant::from_micros(at.total_micros() as u64));
        let Some(next) = [arrival, ours, theirs].into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        let mut due: Vec<OnWire> = self.wire.extract_if(.., |(at, ..)| *at <= self.now).collect();
        due.sort_by_key(|(at, serial, ..)| (*at, *serial));
        for (_, _, inward, packet) in due {
            if inward {
                let frame = [&OUR_MAC[..], &THEIR_MAC, &[8, 0], &packet].concat();
                self.stack.input(self.now, &frame, Meta::FULL);
            } else {
                self.packets.inward.push_back(packet);
            }
        }
        self.now.since(Instant::ZERO) < PATIENCE
    }

    /// Transfers so many bytes in each direction. `listens`: our host listens, else it connects.
    /// Asserts that whatever arrives is what was sent.
    pub fn run(&mut self, listens: bool, bytes: [usize; 2]) -> Ending {
        let mut ours = None;
        let listener = listens.then(|| {
            let port = SocketAddr::new(OURS.into(), PORT);
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
            let remote = (IpAddress::from(IpAddr::V4(OURS)), PORT);
            socket.connect(self.interface.context(), remote, 40_000).unwrap();
            self.stack.tcp_listen(port, 1).unwrap()
        });
        if !listens {
            self.sockets.get_mut::<tcp::Socket<'_>>(self.handle).listen(PORT).unwrap();
            let remote = SocketAddr::new(THEIRS.into(), PORT);
            ours = Some(self.stack.tcp_connect(self.now, remote, None, None).unwrap());
        }
        let (mut us, mut them) = (Side::new(0, bytes), Side::new(1, bytes));
        loop {
            if let (None, Some(listener)) = (ours, listener) {
                ours = self.stack.tcp_accept(listener).ok().map(|(id, _)| id);
            }
            if let Some(id) = ours {
                us.step_ours(&mut self.stack, id, self.now);
            }
            them.step_theirs(self.sockets.get_mut(self.handle));
            if us.failed || them.failed {
                return Ending::Failed;
            }
            if us.over && them.over {
                return Ending::Complete;
            }
            if !self.pump() && !self.stack.wants_poll() && !self.advance() {
                return Ending::Stalled;
            }
        }
    }
}

/// Changes what a segment without payload says, and corrects its checksum. A changed number of a
/// segment with payload would change the stream, which no receiver can notice.
fn mutate(packet: &mut [u8], how: u8) {
    if packet.len() < 40 || packet[9] != 6 {
        return;
    }
    let tcp = &mut packet[20..];
    if tcp.len() > usize::from(tcp[12] >> 4) * 4 {
        // The window is no part of the stream.
        tcp[14] ^= how;
    } else {
        match how {
            0..4 => tcp[13] = [0xff, 0x04, 0x02, 0x14][usize::from(how)],
            4..8 => tcp[4 + usize::from(how) - 4] ^= 0x81,
            8 => tcp[14..16].fill(0),
            9 => tcp[13] |= 0x20,
            // Acknowledgements of what was never sent.
            10 => tcp[8] ^= 0x80,
            at => {
                let at = 20 + usize::from(at);
                if let Some(option) = tcp.get_mut(at) {
                    *option ^= 0x11;
                }
            }
        }
    }
    tcp[16..18].fill(0);
    let len = tcp.len() as u16;
    let mut sum: u32 = u32::from(len) + 6;
    for pair in packet[12..].chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[36..38].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// One application.
struct Side {
    /// The direction in which it sends.
    direction: usize,
    sent: usize,
    to_send: usize,
    got: usize,
    to_get: usize,
    closed: bool,
    over: bool,
    failed: bool,
}

impl Side {
    fn new(direction: usize, bytes: [usize; 2]) -> Side {
        let (to_send, to_get) = (bytes[direction], bytes[1 - direction]);
        Side {
            direction,
            sent: 0,
            to_send,
            got: 0,
            to_get,
            closed: false,
            over: false,
            failed: false,
        }
    }

    fn next(&self) -> Vec<u8> {
        let end = self.to_send.min(self.sent + 4096);
        (self.sent..end).map(|at| byte(self.direction, at)).collect()
    }

    fn take(&mut self, data: &[u8]) {
        for &got in data {
            assert_eq!(got, byte(1 - self.direction, self.got), "byte {} differs", self.got);
            self.got += 1;
        }
        assert!(self.got <= self.to_get, "more than was sent");
    }

    fn step_ours(&mut self, stack: &mut Stack, id: TcpId, now: Instant) {
        while self.sent < self.to_send {
            match stack.tcp_send(id, &self.next()) {
                Ok(len) => self.sent += len,
                Err(SocketError::WouldBlock) => break,
                Err(_) => {
                    self.failed = true;
                    return;
                }
            }
        }
        self.failed |= stack.tcp_take_error(id).unwrap().is_some();
        let is_open = stack.tcp_readiness(id).unwrap().writable;
        if self.sent == self.to_send && !self.closed && is_open {
            self.closed = stack.tcp_shutdown(now, id, Shutdown::Write).is_ok();
        }
        let mut buffer = [0; 3000];
        while !self.over {
            match stack.tcp_recv(now, id, &mut buffer) {
                Ok(0) => self.over = self.got == self.to_get,
                Ok(len) => {
                    self.take(&buffer[..len]);
                    continue;
                }
                Err(SocketError::WouldBlock) => {}
                Err(_) => self.failed = true,
            }
            break;
        }
    }

    fn step_theirs(&mut self, socket: &mut tcp::Socket<'_>) {
        while self.sent < self.to_send && socket.can_send() {
            self.sent += socket.send_slice(&self.next()).unwrap();
        }
        if self.sent == self.to_send && !self.closed && socket.may_send() {
            socket.close();
            self.closed = true;
        }
        let mut buffer = [0; 3000];
        while let Ok(len @ 1..) = socket.recv_slice(&mut buffer) {
            self.take(&buffer[..len]);
        }
        self.over |= self.got == self.to_get && self.closed && !socket.may_recv();
        self.failed |= socket.state() == tcp::State::Closed && !self.over;
    }
}
