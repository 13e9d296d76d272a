//! Frames that no honest host sends: the stack does not panic, keeps its limits, and continues an
//! honest connection.

use std::time::Duration;

use crate::simulation::{self, V4, World, config, sum};
use fastrand::Rng;
use proptest::prelude::*;
use towpath_stack::{Checksum, Config, Meta, SocketError};

fn small(node: usize) -> Config {
    let mut config = config(node);
    config.limits.connections = 32;
    config.limits.half_open = 8;
    config.limits.time_wait = 8;
    config.limits.neighbours = 16;
    config.limits.reassemblies = 8;
    config.limits.reassembly_bytes = 256 * 1024;
    config.limits.udp_receive_bytes = 64 * 1024;
    config.limits.transmit_bytes = 256 * 1024;
    config
}

/// Returns a world in use, and a frame of each kind that node 1 received in it.
fn recorded(seed: u64) -> (World, Vec<Vec<u8>>) {
    let mut world = World::new(seed, [small(0), small(1)]);
    let mut frames = Vec::new();
    let ports = [world.v6(1), V4[1].parse().unwrap()];
    let sockets: Vec<_> =
        ports.iter().map(|ip| world.nodes[1].stack.udp_bind((*ip, 53).into()).unwrap()).collect();
    for (v6, port) in [(false, 80), (true, 81)] {
        let address = (ports[usize::from(!v6)], port).into();
        world.nodes[1].stack.tcp_listen(address, 4).unwrap();
        let now = world.now;
        let client = world.nodes[0].stack.tcp_connect(now, address, None, None).unwrap();
        let udp = world.nodes[0]
            .stack
            .udp_bind(if v6 { "[::]:0" } else { "0.0.0.0:0" }.parse().unwrap())
            .unwrap();
        let to = (ports[usize::from(!v6)], 53).into();
        world.nodes[0].stack.udp_send(now, udp, &[1; 100], Some(to)).unwrap();
        world.nodes[0].stack.udp_send(now, udp, &[2; 4000], Some(to)).unwrap();
        let until = world.now + Duration::from_millis(50);
        let mut sent = false;
        world.run(until, |world| {
            if !sent {
                sent = world.nodes[0].stack.tcp_send(client, &[3; 3000]).is_ok();
            }
            false
        });
    }
    for (frame, _) in world.received.iter().filter(|(_, to)| *to == 1) {
        frames.push(frame.clone());
    }
    // Kinds that the two do not exchange: an echo request and an error about one of node 1's
    // segments, over each IP version.
    for v6 in [false, true] {
        let sample = world
            .received
            .iter()
            .find(|(f, to)| *to == 0 && (f[12] == 0x86) == v6 && f[if v6 { 20 } else { 23 }] == 6);
        let quoted = sample.unwrap().0[14..].to_vec();
        let (request, error, protocol) =
            if v6 { ([128, 0], [2, 0], 58) } else { ([8, 0], [3, 4], 1) };
        for (kind, rest) in [(request, vec![9; 64]), (error, quoted)] {
            let mut message = vec![kind[0], kind[1], 0, 0, 0, 0, 5, 0];
            message.extend_from_slice(&rest);
            frames.push(wrap(&world, v6, protocol, message));
        }
    }
    assert!(frames.len() > 20);
    assert_eq!(
        world.nodes[1].stack.udp_readiness(sockets[0]).map(|ready| ready.readable),
        Ok(true)
    );
    (world, frames)
}

/// Makes a packet from node 0 to node 1, with the right checksums.
fn wrap(world: &World, v6: bool, protocol: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    let addresses = |node: usize| match world.v6(node) {
        std::net::IpAddr::V6(v6) => v6.octets(),
        std::net::IpAddr::V4(_) => unreachable!(),
    };
    if v6 {
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[protocol, 64]);
        frame.extend_from_slice(&addresses(0));
        frame.extend_from_slice(&addresses(1));
    } else {
        frame.extend_from_slice(&[8, 0, 0x45, 0]);
        frame.extend_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend_from_slice(&payload);
    mend(&mut frame);
    frame
}

/// Corrects the checksums of IPv4's header and of ICMP, so that the stack processes mangled frames.
/// The metadata marks the checksums of TCP and UDP as verified.
fn mend(frame: &mut [u8]) {
    if frame.len() >= 34 && frame[12..14] == [8, 0] && frame[14] >> 4 == 4 {
        let header = (usize::from(frame[14] & 15) * 4).min(frame.len() - 14);
        if header >= 20 {
            frame[24..26].fill(0);
            let value = !sum(&frame[14..14 + header]);
            frame[24..26].copy_from_slice(&value.to_be_bytes());
        }
        let at = 14 + header;
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let end = (14 + total).min(frame.len());
        if frame[23] == 1 && end >= at + 4 {
            frame[at + 2..at + 4].fill(0);
            let value = !sum(&frame[at..end]);
            frame[at + 2..at + 4].copy_from_slice(&value.to_be_bytes());
        }
    }
    if frame.len() >= 62 && frame[12..14] == [0x86, 0xdd] && frame[20] == 58 {
        let end = (54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))).min(frame.len());
        if end < 58 {
            return;
        }
        frame[56..58].fill(0);
        let mut pseudo = frame[22..54].to_vec();
        pseudo.extend_from_slice(&((end - 54) as u32).to_be_bytes());
        pseudo.extend_from_slice(&[0, 58]);
        pseudo.extend_from_slice(&frame[54..end]);
        let value = !sum(&pseudo);
        frame[56..58].copy_from_slice(&value.to_be_bytes());
    }
}

fn within_limits(world: &World) {
    let stack = &world.nodes[1].stack;
    assert!(stack.reassembly_bytes() <= 256 * 1024 + 70_000);
    assert!(stack.neighbours() <= 16);
    let (connections, time_wait) = stack.tcp_sizes();
    assert!(connections <= 32 && time_wait <= 8);
}

/// A change of a frame before the stack gets it.
#[derive(Clone, Debug)]
enum Mangling {
    /// A byte near the headers is replaced.
    Byte(u16, u8),
    /// Two bytes are replaced by a boundary value.
    Word(u16, u16),
    /// Truncated.
    Cut(u16),
    /// Extended.
    Grown(u16),
    /// Only the flags of a TCP header are replaced.
    Flags(u8),
}

fn mangle(frame: &mut Vec<u8>, mangling: &Mangling) {
    let len = frame.len();
    match *mangling {
        Mangling::Byte(at, byte) => frame[usize::from(at) % len.min(90)] = byte,
        Mangling::Word(at, word) => {
            let at = usize::from(at) % (len.min(90) - 1);
            frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
        }
        Mangling::Cut(to) => frame.truncate(usize::from(to) % len),
        Mangling::Grown(by) => frame.resize(len + usize::from(by % 2000), 0x5a),
        Mangling::Flags(flags) => {
            let at = if frame[12] == 0x86 { 54 } else { 34 };
            if len > at + 13 {
                frame[at + 13] = flags;
            }
        }
    }
}

fn mangling() -> impl Strategy<Value = Mangling> {
    let word =
        prop_oneof![Just(0u16), Just(1), Just(0x7fff), Just(0x8000), Just(0xffff), any::<u16>()];
    prop_oneof![
        (12u16..90, any::<u8>()).prop_map(|(at, byte)| Mangling::Byte(at, byte)),
        (12u16..89, word).prop_map(|(at, word)| Mangling::Word(at, word)),
        any::<u16>().prop_map(Mangling::Cut),
        any::<u16>().prop_map(Mangling::Grown),
        any::<u8>().prop_map(Mangling::Flags),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mangled_packets_do_no_harm(
        seed in 0u64..4,
        choices in prop::collection::vec(
            (any::<u16>(), prop::collection::vec(mangling(), 0..3), 0u16..2000), 1..80),
    ) {
        let (mut world, frames) = recorded(seed);
        let verified = Meta { checksum: Checksum::Verified, segmentation: None };
        for (which, manglings, pause) in &choices {
            let mut frame = frames[usize::from(*which) % frames.len()].clone();
            for mangling in manglings {
                if frame.len() > 20 {
                    mangle(&mut frame, mangling);
                }
            }
            mend(&mut frame);
            let now = world.now;
            world.nodes[1].stack.input(now, &frame, verified);
            within_limits(&world);
            world.idle(Duration::from_micros(u64::from(*pause)));
        }
        // Open operations end.
        world.idle(Duration::from_secs(100));
        prop_assert_eq!(world.nodes[1].stack.reassembly_bytes(), 0);
    }

    #[test]
    fn random_bytes_do_no_harm(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..50)) {
        let mut world = World::new(1, [small(0), small(1)]);
        for mut frame in frames {
            let now = world.now;
            world.nodes[1].stack.input(now, &frame, Meta::FULL);
            for (at, byte) in [2, 0, 0, 0, 0, 2].into_iter().enumerate() {
                if let Some(place) = frame.get_mut(at) { *place = byte; }
            }
            for ethertype in [[8, 0], [8, 6], [0x86, 0xdd]] {
                if frame.len() > 14 {
                    frame[12..14].copy_from_slice(&ethertype);
                    frame[14] = if ethertype[0] == 8 { 0x45 } else { 0x60 };
                }
                mend(&mut frame);
                world.nodes[1].stack.input(now, &frame, Meta::FULL);
            }
            within_limits(&world);
        }
        world.idle(Duration::from_secs(100));
    }
}

#[test]
fn an_honest_connection_survives_a_storm() {
    let (mut world, frames) = recorded(9);
    let mut random = Rng::with_seed(9);
    let (client, server) = world.connected(90, false);
    let bytes = simulation::bytes(&mut random, 100_000);
    let verified = Meta { checksum: Checksum::Verified, segmentation: None };
    let (mut sent, mut got) = (0, Vec::new());
    let until = world.now + Duration::from_secs(200);
    let done = world.run(until, |world| {
        for _ in 0..3 {
            let mut frame = frames[random.usize(..frames.len())].clone();
            let at = random.usize(26..frame.len().min(90));
            frame[at] = random.u8(..);
            mend(&mut frame);
            let now = world.now;
            world.nodes[1].stack.input(now, &frame, verified);
        }
        if sent < bytes.len()
            && let Ok(len) = world.nodes[0].stack.tcp_send(client, &bytes[sent..])
        {
            sent += len;
        }
        let mut buffer = [0; 4096];
        let now = world.now;
        match world.nodes[1].stack.tcp_recv(now, server, &mut buffer) {
            Ok(len) => got.extend_from_slice(&buffer[..len]),
            Err(error) => assert_eq!(error, SocketError::WouldBlock),
        }
        got.len() >= bytes.len()
    });
    assert!(done, "{} of {}", got.len(), bytes.len());
    assert!(got == bytes);
}

#[test]
fn fragments_without_end_are_dropped() {
    let (mut world, _) = recorded(3);
    let before = world.nodes[1].stack.counters().reassembly_limit;
    for id in 0..2000u16 {
        // The first 8 bytes of a datagram of 64 KiB, and the last.
        for offset in [0x2000u16, 0x1ff0] {
            let mut frame = wrap(&world, false, 17, vec![7; 8]);
            frame[18..20].copy_from_slice(&id.to_be_bytes());
            frame[20..22].copy_from_slice(&offset.to_be_bytes());
            mend(&mut frame);
            let now = world.now;
            world.nodes[1].stack.input(now, &frame, Meta::FULL);
            within_limits(&world);
        }
    }
    assert!(world.nodes[1].stack.counters().reassembly_limit - before >= 1900);
    world.idle(Duration::from_secs(60));
    assert_eq!(world.nodes[1].stack.reassembly_bytes(), 0);
}

#[test]
fn errors_are_limited_and_never_answered() {
    let (mut world, _) = recorded(4);
    let counted = |world: &World| world.nodes[1].stack.counters().icmp_errors_sent;
    let mut datagram = vec![0x99, 0, 0x12, 0x34, 0, 8, 0, 0];
    let closed = wrap(&world, false, 17, datagram.clone());
    let now = world.now;
    for _ in 0..5000 {
        world.nodes[1].stack.input(now, &closed, Meta::FULL);
    }
    // The tokens of half a second; an answer takes one on average.
    let sent = counted(&world);
    assert!((400..600).contains(&sent), "{sent}");
    assert_eq!(world.nodes[1].stack.counters().errors_limited, 5000 - sent);
    world.idle(Duration::from_secs(2));
    // To a broadcast address: no answer.
    let mut broadcast = wrap(&world, false, 17, std::mem::take(&mut datagram));
    broadcast[..6].fill(0xff);
    broadcast[30..34].copy_from_slice(&[10, 0, 0, 255]);
    mend(&mut broadcast);
    let now = world.now;
    world.nodes[1].stack.input(now, &broadcast, Meta::FULL);
    // About an error: no answer.
    let error = wrap(&world, false, 1, vec![3, 1, 0, 0, 0, 0, 0, 0]);
    world.nodes[1].stack.input(now, &error, Meta::FULL);
    assert_eq!(counted(&world), sent);
}
