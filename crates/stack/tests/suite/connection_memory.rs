//! Asserts how much memory TCP connections take, and that connections that come and go allocate
//! nothing. Only the stack's own allocations count.

use std::time::Duration;

use crate::wire::{self, ACK, FIN, PSH, SYN, Segment, TcpOption};
use towpath_stack::{
    Checksum, Config, Instant, ListenerId, Meta, SocketError, Stack, TcpId, Transmit,
};
use towpath_testkit::CountingAllocator;

const VERIFIED: Meta = Meta { checksum: Checksum::Verified, segmentation: None };
const PORT: u16 = 80;
const FIRST_PEER_PORT: u16 = 10_000;
const PEERS: usize = 4096;

/// One end of a connection, at the peer. All begin at the same number.
#[derive(Clone, Copy, Default)]
struct Peer {
    /// The next number of the peer and of the stack.
    nxt: u32,
    received_up_to: u32,
}

/// The link keeps what the stack's segments say, without any allocation.
struct Link {
    peers: Vec<Peer>,
    frame: [u8; 2048],
    arp: Option<Vec<u8>>,
}

impl Transmit for Link {
    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, _: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        let frame = &mut self.frame[..len];
        fill(frame);
        if frame[12..14] == [8, 6] {
            self.arp = self.arp.take().or_else(|| wire::arp_answer(frame));
            return true;
        }
        let (tcp, flags) = (&frame[34..], frame[47]);
        let word = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let sequence = u32::from(word(4)) << 16 | u32::from(word(6));
        let index = usize::from(word(2).wrapping_sub(FIRST_PEER_PORT));
        let Some(peer) = self.peers.get_mut(index) else { return true };
        let data = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        let ends = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let end = sequence.wrapping_add(data as u32 + ends);
        if flags & SYN != 0 || sequence == peer.received_up_to {
            peer.received_up_to = end;
        }
        true
    }
}

/// A stack, its peers, and the count of its allocations.
struct Host {
    stack: Stack,
    link: Link,
    listener: ListenerId,
    now: Instant,
    live: i64,
    calls: u64,
}

impl Host {
    fn new(change: impl FnOnce(&mut Config)) -> Host {
        assert!(CountingAllocator::is_installed());
        let mut config = Config::new(wire::STACK_MAC);
        config.ipv4 = Some((wire::STACK_IP.into(), 24));
        config.ipv4_gateway = Some(wire::PEER_IP.into());
        config.ipv6_link_local = false;
        change(&mut config);
        let mut stack = Stack::new(config, Instant::ZERO).unwrap();
        let listener = stack.tcp_listen((wire::STACK_IP, PORT).into(), PEERS).unwrap();
        let peers = vec![Peer::default(); PEERS];
        let link = Link { peers, frame: [0; 2048], arp: None };
        let now = Instant::ZERO;
        let mut host = Host { stack, link, listener, now, live: 0, calls: 0 };
        // The stack learns the peer's link address by a reset to a closed port.
        host.deliver(0, ACK, 0, &[], 81);
        host
    }

    /// Calls the stack, and counts what it allocates.
    fn call<T>(&mut self, call: impl FnOnce(&mut Stack, &mut Link, Instant) -> T) -> T {
        let now = self.now;
        let (stack, link) = (&mut self.stack, &mut self.link);
        let (result, counted) = CountingAllocator::of_this_thread(|| call(stack, link, now));
        self.live += counted.live_bytes();
        self.calls += counted.calls();
        result
    }

    fn poll(&mut self) {
        for _ in 0..1000 {
            let worked = self.call(|stack, link, now| {
                let worked = stack.poll(now, link);
                while stack.next_news().is_some() {}
                worked
            });
            let Some(answer) = self.link.arp.take() else {
                if worked {
                    continue;
                }
                return;
            };
            self.call(|stack, _, now| stack.input(now, &answer, Meta::FULL));
        }
        panic!("the stack never becomes idle");
    }

    /// Lets time pass, in steps of at most a second.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let due = self.stack.poll_at(self.now).unwrap_or(until);
            let step = self.now + Duration::from_secs(1);
            self.now = due.max(self.now + Duration::from_micros(1)).min(step).min(until);
            self.poll();
        }
    }

    /// A segment of a peer arrives, `ahead` of its next number.
    fn deliver(&mut self, index: usize, flags: u8, ahead: u32, data: &[u8], port: u16) {
        let peer = self.link.peers[index];
        let mut options = Vec::new();
        if flags & SYN != 0 {
            options =
                vec![TcpOption::Mss(1460), TcpOption::SackPermitted, TcpOption::WindowScale(7)];
        }
        let segment = Segment {
            src_port: FIRST_PEER_PORT + index as u16,
            dst_port: port,
            sequence: peer.nxt.wrapping_add(ahead),
            acknowledgement: peer.received_up_to,
            flags,
            window: 60_000,
            options,
            payload: data.to_vec(),
            ..Segment::default()
        };
        let frame = segment.frame();
        if ahead == 0 {
            self.link.peers[index].nxt = segment.end();
        }
        self.call(|stack, _, now| stack.input(now, &frame, VERIFIED));
        self.poll();
    }

    /// Opens a connection from a peer.
    fn open(&mut self, index: usize) -> TcpId {
        self.link.peers[index].nxt = (self.now.as_micros() / 100) as u32;
        self.deliver(index, SYN, 0, &[], PORT);
        self.deliver(index, ACK, 0, &[], PORT);
        let listener = self.listener;
        self.call(|stack, _, _| stack.tcp_accept(listener)).unwrap().0
    }

    /// The stack sends this much data, and the peer acknowledges it.
    fn send(&mut self, index: usize, id: TcpId, len: usize) {
        let data = [7; 4096];
        let mut left = len;
        while left > 0 {
            let now = left.min(data.len());
            match self.call(|stack, _, _| stack.tcp_send(id, &data[..now])) {
                Ok(sent) => left -= sent,
                Err(error) => assert_eq!(error, SocketError::WouldBlock),
            }
            self.poll();
            self.deliver(index, ACK, 0, &[], PORT);
        }
        while self.call(|stack, _, _| stack.tcp_queues(id)).unwrap().0 > 0 {
            self.wait(Duration::from_millis(1));
            self.deliver(index, ACK, 0, &[], PORT);
        }
    }

    /// The peer sends this much data, and the application reads it.
    fn receive(&mut self, index: usize, id: TcpId, len: usize) {
        let (data, mut buffer) = ([9; 1000], [0; 2000]);
        let mut left = len;
        while left > 0 {
            let now = left.min(data.len());
            self.deliver(index, ACK | PSH, 0, &data[..now], PORT);
            let got = self.call(|stack, _, at| stack.tcp_recv(at, id, &mut buffer));
            assert_eq!(got, Ok(now));
            left -= now;
        }
    }

    fn close(&mut self, id: TcpId) {
        self.call(|stack, _, now| stack.tcp_close(now, id)).unwrap();
        self.poll();
    }
}

#[test]
fn an_idle_connection_is_small() {
    const COUNT: usize = 1000;
    let mut host = Host::new(|_| {});
    let before = host.live;
    let ids: Vec<TcpId> = (0..COUNT).map(|index| host.open(index)).collect();
    let each = (host.live - before) / COUNT as i64;
    println!("{each} bytes without data");
    assert!(each <= 2048, "{each} bytes without data");
    for (index, &id) in ids.iter().enumerate() {
        host.receive(index, id, 100_000);
        host.send(index, id, 100_000);
    }
    host.wait(Duration::from_secs(10));
    let each = (host.live - before) / COUNT as i64;
    println!("{each} bytes after data");
    assert!(each <= 5120, "{each} bytes after data");
    assert_eq!(host.stack.tcp_buffer_bytes().0, 0);
}

#[test]
fn the_memory_of_a_bulk_transfer_goes_back() {
    let mut host = Host::new(|_| {});
    let ids: Vec<TcpId> = (0..40).map(|index| host.open(index)).collect();
    let before = host.live;
    for &id in &ids {
        while host.call(|stack, _, _| stack.tcp_send(id, &[1; 4096])).is_ok() {}
    }
    assert!(host.stack.tcp_buffer_bytes().1 >= 40 * 16 * 1024);
    for (index, &id) in ids.iter().enumerate() {
        host.send(index, id, 1);
    }
    host.wait(Duration::from_secs(10));
    let (used, allocated) = host.stack.tcp_buffer_bytes();
    assert_eq!(used, 0);
    assert!(allocated <= 256 * 1024, "{allocated}");
    let grown = host.live - before;
    assert!(grown <= 256 * 1024 + 40 * 3072, "{grown}");
}

/// A SYN from any address and port, through the gateway.
fn stranger(number: u32) -> Vec<u8> {
    let segment = Segment {
        src_port: 1000 + (number % 7) as u16,
        dst_port: PORT,
        sequence: number.wrapping_mul(0x9e37_79b1),
        flags: SYN,
        window: 60_000,
        options: vec![TcpOption::Mss(1460), TcpOption::SackPermitted, TcpOption::WindowScale(7)],
        ..Segment::default()
    };
    let mut frame = segment.frame();
    let address = 0x2d00_0000 + number;
    frame[26..30].copy_from_slice(&address.to_be_bytes());
    frame[24..26].fill(0);
    let sum = !wire::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Lets strangers send SYNs, 20 us apart, and returns the most memory that they took.
fn flood(host: &mut Host, count: u32) -> i64 {
    let before = host.live;
    let mut most = 0;
    for number in 0..count {
        let frame = stranger(number);
        host.call(|stack, link, now| {
            stack.input(now, &frame, VERIFIED);
            stack.poll(now, link);
        });
        host.now = host.now + Duration::from_micros(20);
        most = most.max(host.live - before);
    }
    most
}

#[test]
fn a_flood_of_syns_takes_little_memory() {
    let mut host = Host::new(|_| {});
    let most = flood(&mut host, 100_000);
    println!("{most} bytes at most");
    assert!(most <= 1 << 20, "{most} bytes");
    assert!(host.stack.counters().tcp_cookies_sent > 90_000);
    // The entries last for 15 s. The buffers of frames to send may stay.
    host.wait(Duration::from_secs(25));
    assert_eq!(host.stack.tcp_sizes().0, 0);
    let kept = host.live;
    println!("{kept} bytes kept");
    assert!(kept <= 5 << 19, "{kept} bytes kept");
}

/// Returns the most memory that a connection takes while its peer acknowledges with these blocks.
fn selectively(
    host: &mut Host,
    index: usize,
    blocks: impl Iterator<Item = Vec<(u32, u32)>>,
) -> i64 {
    let before = host.live;
    let mut most = 0;
    for blocks in blocks {
        let peer = host.link.peers[index];
        let segment = Segment {
            src_port: FIRST_PEER_PORT + index as u16,
            dst_port: PORT,
            sequence: peer.nxt,
            acknowledgement: peer.received_up_to,
            flags: ACK,
            window: 60_000,
            options: vec![TcpOption::Sack(blocks)],
            ..Segment::default()
        };
        host.call(|stack, _, now| stack.input(now, &segment.frame(), VERIFIED));
        host.now = host.now + Duration::from_micros(10);
        most = most.max(host.live - before);
    }
    most
}

/// A peer that acknowledges every other byte: the stack keeps a bounded number of records, and
/// visits the connection once per acknowledgement.
#[test]
fn a_peer_that_acknowledges_every_other_byte_costs_little() {
    let mut host = Host::new(|config| config.limits.tcp_buffer_bytes = 8 << 20);
    let id = host.open(0);
    host.send(0, id, 200_000);
    let first = host.link.peers[0].received_up_to;
    let sent = host.call(|stack, _, _| stack.tcp_send(id, &[3; 60_000])).unwrap();
    host.poll();
    assert!(sent >= 40_000);
    host.link.peers[0].received_up_to = first;
    let visits = host.stack.counters().tcp_visits;
    let block = |at: u32| (first.wrapping_add(at), first.wrapping_add(at + 1));
    let count = sent as u32 / 8;
    let most = selectively(
        &mut host,
        0,
        (0..count).map(|number| (0..4).map(|at| block(number * 8 + at * 2 + 1)).collect()),
    );
    println!("{most} bytes for {count} acknowledgements");
    assert!(most <= 64 * 1024, "{most} bytes");
    // The application's data is still there.
    assert_eq!(host.call(|stack, _, _| stack.tcp_queues(id)).unwrap().0, sent);
    assert_eq!(host.stack.counters().tcp_visits - visits, u64::from(count));
}

#[test]
fn gaps_take_no_more_than_the_limit_and_stop_no_other_connection() {
    const LIMIT: usize = 1 << 20;
    const COUNT: usize = 300;
    let mut host = Host::new(|config| {
        config.limits.tcp_buffer_bytes = LIMIT;
        config.tcp.receive_buffer_bytes = 64 * 1024;
    });
    let honest = host.open(COUNT);
    let ids: Vec<TcpId> = (0..COUNT).map(|index| host.open(index)).collect();
    let before = host.live;
    for ahead in (4000..60_000).step_by(4096) {
        for index in 0..COUNT {
            host.deliver(index, ACK, ahead, &[1], PORT);
        }
        assert!(host.stack.tcp_buffer_bytes().0 <= LIMIT);
    }
    assert!(host.stack.tcp_buffer_bytes().0 >= LIMIT / 2, "{:?}", host.stack.tcp_buffer_bytes());
    let grown = host.live - before;
    assert!(grown <= LIMIT as i64 + COUNT as i64 * 1024, "{grown}");
    // The peer repeats what the stack does not take, and the application reads at once.
    let (mut got, mut tries, mut buffer) = (0, 0, [0; 4000]);
    while got < 100_000 && tries < 1000 {
        tries += 1;
        let taken = host.link.peers[COUNT].nxt;
        host.deliver(COUNT, ACK | PSH, 0, &[5; 1000], PORT);
        match host.call(|stack, _, now| stack.tcp_recv(now, honest, &mut buffer)) {
            Ok(len) => {
                got += len;
                host.link.peers[COUNT].nxt = taken.wrapping_add(len as u32);
            }
            Err(error) => {
                assert_eq!(error, SocketError::WouldBlock);
                host.link.peers[COUNT].nxt = taken;
                host.wait(Duration::from_millis(200));
            }
        }
    }
    assert!(got >= 100_000, "{got} bytes in {tries} tries");
    // The end of the connections frees the memory.
    for id in ids {
        host.call(|stack, _, now| stack.tcp_abort(now, id)).unwrap();
        host.close(id);
    }
    assert_eq!(host.stack.tcp_buffer_bytes().0, 0);
}

/// Opens, uses and closes connections from several peers at once.
fn round(host: &mut Host, closes_first: bool) {
    // The stack asks for the peer's link address again, which is no part of the connections' work.
    let calls = host.calls;
    host.deliver(100, ACK, 0, &[], 81);
    host.wait(Duration::from_millis(100));
    host.calls = calls;
    let ids: Vec<TcpId> = (0..8).map(|index| host.open(index)).collect();
    for (index, &id) in ids.iter().enumerate() {
        host.receive(index, id, 300);
        host.send(index, id, 5000);
        if closes_first {
            host.close(id);
            host.deliver(index, ACK | FIN, 0, &[], PORT);
        } else {
            host.deliver(index, ACK | FIN, 0, &[], PORT);
            let end = host.call(|stack, _, now| stack.tcp_recv(now, id, &mut [0; 10]));
            assert_eq!(end, Ok(0));
            host.close(id);
            host.deliver(index, ACK, 0, &[], PORT);
        }
    }
    assert_eq!(host.stack.tcp_sizes(), (0, if closes_first { ids.len() } else { 0 }));
    host.wait(Duration::from_secs(62));
    assert_eq!(host.stack.tcp_sizes(), (0, 0));
}

#[test]
fn connections_that_come_and_go_allocate_nothing() {
    let counts = [true, false].map(|closes_first| {
        let mut host = Host::new(|_| {});
        for _ in 0..20 {
            round(&mut host, closes_first);
        }
        host.calls = 0;
        for _ in 0..100 {
            round(&mut host, closes_first);
        }
        host.calls
    });
    assert_eq!(counts, [0, 0], "for 800 connections closed by the stack, and 800 by the peer");
}

#[test]
fn a_half_open_connection_is_small() {
    let mut host = Host::new(|_| {});
    let most = flood(&mut host, 2000);
    assert_eq!(host.stack.tcp_sizes().0, 2000);
    println!("{} bytes each", most / 2000);
    assert!(most <= 2000 * 300, "{} bytes each", most / 2000);
}

#[test]
fn a_peer_that_repeats_its_fin_takes_no_memory() {
    let mut host = Host::new(|_| {});
    for index in 0..100 {
        let id = host.open(index);
        host.close(id);
        host.deliver(index, ACK | FIN, 0, &[], PORT);
    }
    assert_eq!(host.stack.tcp_sizes(), (0, 100));
    let before = host.live;
    for _ in 0..300 {
        for index in 0..100 {
            host.link.peers[index].nxt = host.link.peers[index].nxt.wrapping_sub(1);
            host.deliver(index, ACK | FIN, 0, &[], PORT);
        }
        host.wait(Duration::from_millis(110));
    }
    assert_eq!(host.stack.tcp_sizes(), (0, 100));
    let grown = host.live - before;
    assert!(grown <= 100 * 512, "{grown} bytes");
}

#[test]
fn a_flood_of_syns_takes_little_memory_and_gives_it_back() {
    let mut host = Host::new(|_| {});
    // What one connection needs is not the flood's.
    let id = host.open(0);
    host.close(id);
    host.deliver(0, ACK | FIN, 0, &[], PORT);
    host.wait(Duration::from_secs(62));
    let before = host.live;
    let most = flood(&mut host, 100_000);
    println!("{most} bytes at most");
    assert!(most <= 1 << 20, "{most} bytes");
    assert!(host.stack.counters().tcp_cookies_sent > 90_000);
    // The entries last for 15 s.
    host.wait(Duration::from_secs(25));
    assert_eq!(host.stack.tcp_sizes().0, 0);
    let kept = host.live - before;
    println!("{kept} bytes kept");
    assert!(kept <= 64 * 1024, "{kept} bytes kept");
}
