//! Attacks that need no place on the path, beyond the scenarios: numbers and ports that could be
//! guessed (RFC 6528, RFC 6056), and two hosts that answer each other without end (RFC 5961, 7).

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::simulation::{End, V4, World, config, sum};
use towpath_stack::{Config, Instant, Meta, Stack, TcpState};

const SYN: u8 = 2;
const ACK: u8 = 16;

/// The numbers of a segment: ports, sequence number, acknowledgement, flags.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    ports: (u16, u16),
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
}

fn numbers(frame: &[u8]) -> Option<Numbers> {
    if frame[12..14] != [8, 0] || frame[23] != 6 {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
    Some(Numbers {
        ports: (word(34), word(36)),
        sequence: long(38),
        acknowledgement: long(42),
        flags: frame[47],
    })
}

/// Makes a segment to a node from the other one, with the right checksums.
fn forged(to: usize, numbers: Numbers, data: &[u8]) -> Vec<u8> {
    let (ours, theirs) = (to as u8 + 1, 2 - to as u8);
    let mut frame = vec![2, 0, 0, 0, 0, ours, 2, 0, 0, 0, 0, theirs, 8, 0, 0x45, 0];
    frame.extend_from_slice(&(40 + data.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, theirs, 10, 0, 0, ours]);
    let value = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&value.to_be_bytes());
    frame.extend_from_slice(&numbers.ports.0.to_be_bytes());
    frame.extend_from_slice(&numbers.ports.1.to_be_bytes());
    frame.extend_from_slice(&numbers.sequence.to_be_bytes());
    frame.extend_from_slice(&numbers.acknowledgement.to_be_bytes());
    frame.extend_from_slice(&[0x50, numbers.flags, 0x40, 0, 0, 0, 0, 0]);
    frame.extend_from_slice(data);
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend_from_slice(&[0, 6]);
    pseudo.extend_from_slice(&(20 + data.len() as u16).to_be_bytes());
    pseudo.extend_from_slice(&frame[34..]);
    let value = !sum(&pseudo);
    frame[50..52].copy_from_slice(&value.to_be_bytes());
    frame
}

/// A stack that knows the link address of its peer, and its link.
fn lone(change: impl FnOnce(&mut Config)) -> (Stack, End) {
    let mut config = config(0);
    change(&mut config);
    let mut stack = Stack::new(config, Instant::ZERO).unwrap();
    let mut arp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend_from_slice(&[2, 0, 0, 0, 0, 2, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    stack.input(Instant::ZERO, &arp, Meta::FULL);
    (stack, End::default())
}

/// Returns the SYNs of connections to these ports of the peer, all at one time.
fn syns(stack: &mut Stack, end: &mut End, ports: impl Iterator<Item = u16>) -> Vec<Numbers> {
    let now = Instant::from_millis(1000);
    for port in ports {
        let remote = SocketAddr::new(V4[1].parse().unwrap(), port);
        stack.tcp_connect(now, remote, None, None).unwrap();
        while stack.poll(now, end) {}
    }
    let sent = std::mem::take(&mut end.sent);
    sent.iter().filter_map(|(frame, _)| numbers(frame)).filter(|n| n.flags == SYN).collect()
}

/// Returns the chi-square of values in 256 classes: 255 on average, with a deviation of 23.
fn chi_square(values: impl Iterator<Item = u8>) -> f64 {
    let mut counts = [0_u32; 256];
    values.for_each(|value| counts[usize::from(value)] += 1);
    let expected = f64::from(counts.iter().sum::<u32>()) / 256.0;
    counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
}

/// RFC 6528, 3: the number of a connection tells nothing about that of another.
#[test]
fn initial_numbers_do_not_follow_from_each_other() {
    for seed in [1, 2, 3] {
        let (mut stack, mut end) = lone(|config| config.seed = seed);
        let syns = syns(&mut stack, &mut end, 1..4097);
        assert_eq!(syns.len(), 4096);
        let steps = || syns.windows(2).map(|two| two[1].sequence.wrapping_sub(two[0].sequence));
        for shift in [0, 8, 16, 24] {
            let found = chi_square(steps().map(|step| (step >> shift) as u8));
            assert!((150.0..400.0).contains(&found), "seed {seed}: {found} from bit {shift}");
        }
        assert_eq!(steps().collect::<HashSet<_>>().len(), 4095, "seed {seed}");
    }
}

/// RFC 6528, 3: so for connections of a listener; and the number of one tuple follows the clock of
/// 4 us.
#[test]
fn initial_numbers_of_a_listener_do_not_follow_from_each_other() {
    let (mut stack, mut end) = lone(|config| config.limits.half_open = 8192);
    stack.tcp_listen((V4[0].parse::<std::net::IpAddr>().unwrap(), 80).into(), 8192).unwrap();
    let mut ask = |port: u16, at: Instant| {
        let syn = Numbers { ports: (port, 80), sequence: 7, acknowledgement: 0, flags: SYN };
        stack.input(at, &forged(0, syn, &[]), Meta::FULL);
        while stack.poll(at, &mut end) {}
        let answer = end.sent.iter().rev().find_map(|(frame, _)| numbers(frame)).unwrap();
        assert_eq!((answer.ports, answer.flags), ((80, port), SYN | ACK));
        end.sent.clear();
        let reset = Numbers { sequence: 8, flags: 4, ..syn };
        stack.input(at, &forged(0, reset, &[]), Meta::FULL);
        answer.sequence
    };
    let at = Instant::from_millis(500);
    let first: Vec<u32> = (1000..5096).map(|port| ask(port, at)).collect();
    let steps = first.windows(2).map(|two| two[1].wrapping_sub(two[0]));
    let found = chi_square(steps.map(|step| (step >> 24) as u8));
    assert!((150.0..400.0).contains(&found), "{found}");
    let later = ask(1000, at + Duration::from_secs(1));
    assert_eq!(later.wrapping_sub(first[0]), 250_000);
}

/// RFC 6056, 2: the port of a connection tells nothing about that of the next.
#[test]
fn ports_do_not_follow_from_each_other() {
    let mut firsts = HashSet::new();
    for seed in 0..20 {
        let (mut stack, mut end) = lone(|config| config.seed = seed);
        let ports: Vec<u16> = syns(&mut stack, &mut end, std::iter::repeat_n(443, 2000))
            .iter()
            .map(|numbers| numbers.ports.0)
            .collect();
        assert_eq!(ports.len(), 2000);
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 2000, "seed {seed}");
        assert!(ports.iter().all(|port| *port >= 1024), "seed {seed}");
        firsts.insert(ports[0]);
        let mut steps = HashMap::new();
        for two in ports.windows(2) {
            *steps.entry(two[1].wrapping_sub(two[0])).or_insert(0) += 1;
        }
        let most = steps.values().max().unwrap();
        assert!(*most <= 8, "seed {seed}: a step comes {most} times");
        let near = ports.windows(2).filter(|two| two[0].abs_diff(two[1]) < 64).count();
        assert!(near <= 40, "seed {seed}: {near} of 2000 are near the one before");
    }
    assert!(firsts.len() >= 18, "{} first ports of 20 seeds", firsts.len());
}

/// Returns two nodes, each with an established connection to the other's address and port, whose
/// numbers have nothing to do with each other; with one number of each node.
fn poisoned(world: &mut World) -> [Numbers; 2] {
    let now = world.now;
    let client = {
        let to = SocketAddr::new(V4[1].parse().unwrap(), 80);
        let from = Some(SocketAddr::new(V4[0].parse().unwrap(), 4000));
        world.nodes[0].stack.tcp_connect(now, to, from, None).unwrap()
    };
    let listen = SocketAddr::new(V4[1].parse().unwrap(), 80);
    let listener = world.nodes[1].stack.tcp_listen(listen, 4).unwrap();
    let sent = |world: &mut World, node: usize| {
        let node = &mut world.nodes[node];
        while node.stack.poll(now, &mut node.end) {}
        let sent = std::mem::take(&mut node.end.sent);
        sent.iter().filter_map(|(frame, _)| numbers(frame)).next_back()
    };
    let syn = sent(world, 0).unwrap();
    let answer = Numbers {
        ports: (80, 4000),
        sequence: 1_000_000,
        acknowledgement: syn.sequence.wrapping_add(1),
        flags: SYN | ACK,
    };
    world.nodes[0].stack.input(now, &forged(0, answer, &[]), Meta::FULL);
    let ours = sent(world, 0).unwrap();
    let other = Numbers { ports: (4000, 80), sequence: 3_000_000_000, flags: SYN, ..answer };
    world.nodes[1].stack.input(now, &forged(1, other, &[]), Meta::FULL);
    let syn = sent(world, 1).unwrap();
    let last = Numbers {
        sequence: 3_000_000_001,
        acknowledgement: syn.sequence.wrapping_add(1),
        flags: ACK,
        ..other
    };
    world.nodes[1].stack.input(now, &forged(1, last, &[]), Meta::FULL);
    let server = world.nodes[1].stack.tcp_accept(listener).unwrap().0;
    assert_eq!(world.nodes[0].stack.tcp_state(client), Ok(TcpState::Established));
    assert_eq!(world.nodes[1].stack.tcp_state(server), Ok(TcpState::Established));
    [ours, Numbers { sequence: syn.sequence.wrapping_add(1), ports: (80, 4000), ..last }]
}

/// Returns a world whose nodes know each other.
fn world(delay: Duration) -> World {
    let mut world = World::new(5, [config(0), config(1)]);
    // A connection that a reset ends leaves nothing but the neighbours.
    let (client, server) = world.connected(9, false);
    let now = world.now;
    world.nodes[0].stack.tcp_abort(now, client).unwrap();
    world.idle(Duration::from_secs(1));
    let now = world.now;
    world.nodes[0].stack.tcp_close(now, client).unwrap();
    world.nodes[1].stack.tcp_close(now, server).unwrap();
    world.delay_us = delay.as_micros() as u64;
    world
}

/// Lets a stray segment arrive, and returns the number of frames that the nodes send in 20 s.
fn answers(world: &mut World, to: usize, stray: Numbers, data: &[u8]) -> u64 {
    let before = world.carried;
    world.inject(to, forged(to, stray, data), Meta::FULL);
    world.idle(Duration::from_secs(20));
    world.carried - before
}

/// RFC 5961, 7: connections with contrary numbers answer a stray segment, and then fall silent.
fn poisoned_connections(delay: Duration) {
    for (flags, data) in [(ACK, &b""[..]), (ACK, b"stray"), (SYN, b""), (ACK | 1, b"")] {
        for to in [0, 1] {
            let mut world = world(delay);
            let numbers = poisoned(&mut world);
            let stray = Numbers {
                sequence: 77,
                acknowledgement: numbers[to].sequence,
                flags,
                ports: (numbers[to].ports.1, numbers[to].ports.0),
            };
            let count = answers(&mut world, to, stray, data);
            assert!(count <= 8, "{count} frames after flags {flags} to {to}");
        }
    }
}

#[test]
fn poisoned_connections_fall_silent() {
    poisoned_connections(Duration::from_micros(100));
}

#[test]
fn poisoned_connections_fall_silent_on_a_long_path() {
    poisoned_connections(Duration::from_millis(200));
}

/// RFC 9293, 3.10.7.4: two sides in TIME-WAIT answer a stray segment, and then fall silent.
fn both_in_time_wait(delay: Duration) {
    for (flags, data) in [(ACK, &b""[..]), (ACK, b"stray"), (SYN, b""), (ACK | 1, b"")] {
        for sequence in [77, 2_000_000_000, 4_000_000_000] {
            let mut world = world(delay);
            let (client, server) = world.connected(80, false);
            let now = world.now;
            let ports = world.nodes[0].stack.tcp_addresses(client).unwrap();
            let ports = (ports.0.port(), ports.1.port());
            world.nodes[0].stack.tcp_close(now, client).unwrap();
            world.nodes[1].stack.tcp_close(now, server).unwrap();
            world.idle(Duration::from_secs(2));
            assert!(world.nodes.iter().all(|node| node.stack.tcp_sizes() == (0, 1)));
            let stray = Numbers { ports, sequence, acknowledgement: 0, flags };
            let count = answers(&mut world, 1, stray, data);
            assert!(count <= 8, "{count} frames after flags {flags}, number {sequence}");
        }
    }
}

#[test]
fn both_in_time_wait_fall_silent() {
    both_in_time_wait(Duration::from_micros(100));
    both_in_time_wait(Duration::from_millis(200));
}

/// RFC 9293, 3.10.7: a half-open connection and a closed port, and two half-open ones.
#[test]
fn half_open_connections_fall_silent() {
    for delay in [Duration::from_micros(100), Duration::from_millis(200)] {
        for flags in [ACK, ACK | 1, SYN, SYN | ACK] {
            let mut world = world(delay);
            let listen = SocketAddr::new(V4[1].parse().unwrap(), 80);
            world.nodes[1].stack.tcp_listen(listen, 4).unwrap();
            let syn = Numbers { ports: (4000, 80), sequence: 500, acknowledgement: 0, flags: SYN };
            world.inject(1, forged(1, syn, &[]), Meta::FULL);
            let stray = Numbers { sequence: 900_000, flags, ..syn };
            let count = answers(&mut world, 1, stray, b"");
            assert!(count <= 10, "{count} frames after flags {flags}");
            assert_eq!(world.nodes[1].stack.tcp_sizes().0, 0, "a reset ends it");
        }
    }
}

/// A timer that is due while the link is full fires once, and not at each poll.
#[test]
fn a_full_link_makes_no_work() {
    let mut world = world(Duration::from_micros(100));
    let (client, server) = world.connected(80, false);
    let now = world.now;
    world.nodes[1].end.room = Some(0);
    world.nodes[0].stack.tcp_send(client, b"hello").unwrap();
    let until = now + Duration::from_millis(1);
    world.run(until, |_| false);
    assert_eq!(world.nodes[1].stack.tcp_queues(server).unwrap().1, 5);
    // The acknowledgement is due after 10 ms.
    let later = now + Duration::from_millis(50);
    let node = &mut world.nodes[1];
    let worked = (0..10).filter(|_| node.stack.poll(later, &mut node.end)).count();
    assert!(node.stack.is_blocked());
    assert!(worked <= 1, "{worked} of 10 polls report work");
}
