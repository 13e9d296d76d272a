//! A host that connects and sends to its own addresses.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_stack::{BindMode, Meta, Offload, Shutdown, SocketError, Stack};

use crate::simulation::{V4, World, bytes, config};

/// Node 0, after its announcements have left it.
fn world(offload: Offload) -> World {
    let mut world = World::new(1, [config(0), config(1)]);
    let now = world.now;
    world.nodes[0].stack = Stack::new(towpath_stack::Config { offload, ..config(0) }, now).unwrap();
    world.idle(Duration::from_secs(3));
    world
}

fn host(world: &mut World) -> &mut Stack {
    &mut world.nodes[0].stack
}

fn addresses(world: &World, port: u16) -> [SocketAddr; 2] {
    [SocketAddr::new(V4[0].parse().unwrap(), port), SocketAddr::new(world.v6(0), port)]
}

/// Sends `sent` from one socket of the host to another one.
fn transfer(world: &mut World, address: SocketAddr, sent: &[u8]) {
    let now = world.now;
    let listener = host(world).tcp_listen(address, 8).unwrap();
    let client = host(world).tcp_connect(now, address, None, None).unwrap();
    let (mut server, mut written, mut got, mut buffer) = (None, 0, Vec::new(), vec![0; 50_000]);
    let done = world.run(now + Duration::from_secs(60), |world| {
        let now = world.now;
        let stack = host(world);
        if let Ok((accepted, from)) = stack.tcp_accept(listener) {
            assert_eq!(from.ip(), address.ip());
            server = Some(accepted);
        }
        if written < sent.len()
            && let Ok(count) = stack.tcp_send(client, &sent[written..])
        {
            written += count;
            if written == sent.len() {
                stack.tcp_shutdown(now, client, Shutdown::Write).unwrap();
            }
        }
        let Some(server) = server else { return false };
        match stack.tcp_recv(now, server, &mut buffer) {
            Ok(count) => got.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error, SocketError::WouldBlock),
        }
        got.len() == sent.len()
    });
    assert!(done && got == sent, "{} of {} bytes", got.len(), sent.len());
    let now = world.now;
    host(world).tcp_close(now, server.unwrap()).unwrap();
    host(world).tcp_close(now, client).unwrap();
    host(world).tcp_close_listener(now, listener).unwrap();
}

#[test]
fn a_host_connects_to_itself_and_no_frame_leaves_it() {
    let segments = Offload { checksum: true, tcp_segmentation: true, max_frame_bytes: 65_000 };
    let data = bytes(&mut fastrand::Rng::with_seed(1), 1 << 20);
    let mut frames = Vec::new();
    for offload in [Offload::default(), segments] {
        let mut world = world(offload);
        let before = *host(&mut world).counters();
        for address in addresses(&world, 80) {
            transfer(&mut world, address, &data);
        }
        let after = *host(&mut world).counters();
        assert_eq!((after.tx_frames, after.tcp_retransmitted), (before.tx_frames, 0));
        frames.push(after.own_frames);
        world.idle(Duration::from_secs(120));
        assert_eq!(host(&mut world).tcp_sizes().0, 0);
        assert_eq!(host(&mut world).tcp_buffer_bytes().0, 0);
    }
    // With segmentation, the host gets the segments as it made them, not as a link would.
    assert!(frames[0] > 2 * (1 << 20) / 1460 && frames[1] < frames[0] / 4, "{frames:?}");
}

#[test]
fn a_closed_port_of_the_own_address_refuses() {
    let mut world = world(Offload::default());
    for address in addresses(&world, 81) {
        let now = world.now;
        let client = host(&mut world).tcp_connect(now, address, None, None).unwrap();
        let datagrams = host(&mut world).udp_bind(SocketAddr::new(address.ip(), 0)).unwrap();
        host(&mut world).udp_connect(datagrams, Some(address)).unwrap();
        host(&mut world).udp_send(now, datagrams, b"?", None).unwrap();
        world.idle(Duration::from_millis(10));
        let now = world.now;
        let refused = host(&mut world).tcp_recv(now, client, &mut [0]);
        assert_eq!(refused, Err(SocketError::Refused));
        let refused = host(&mut world).udp_recv(datagrams, &mut [0], false);
        assert_eq!(refused.unwrap_err(), SocketError::Refused);
    }
}

#[test]
fn datagrams_reach_the_host_itself() {
    let mut world = world(Offload::default());
    for address in addresses(&world, 53) {
        let receiver = host(&mut world).udp_bind(address).unwrap();
        let sender = host(&mut world).udp_bind(SocketAddr::new(address.ip(), 0)).unwrap();
        // The last arrives in fragments.
        for len in [0, 1400, 60_000] {
            let (now, data) = (world.now, vec![7; len]);
            host(&mut world).udp_send(now, sender, &data, Some(address)).unwrap();
            world.idle(Duration::from_millis(1));
            let mut buffer = vec![0; 65_536];
            let got = host(&mut world).udp_recv(receiver, &mut buffer, false).unwrap();
            assert_eq!(
                (got.from, got.to),
                (host(&mut world).udp_local(sender).unwrap(), address.ip())
            );
            assert_eq!(buffer[..got.len], data[..]);
        }
    }
}

/// A connection to its own port meets itself (RFC 9293, 3.5, simultaneous open), as on Linux.
#[test]
fn a_connection_may_be_its_own_peer() {
    let mut world = world(Offload::default());
    for address in addresses(&world, 4000) {
        let now = world.now;
        let own = host(&mut world).tcp_connect(now, address, Some(address), None).unwrap();
        world.idle(Duration::from_millis(10));
        assert_eq!(host(&mut world).tcp_send(own, b"echo"), Ok(4));
        world.idle(Duration::from_millis(10));
        let (now, mut buffer) = (world.now, [0; 8]);
        assert_eq!(host(&mut world).tcp_recv(now, own, &mut buffer), Ok(4));
        assert_eq!(&buffer[..4], b"echo");
        host(&mut world).tcp_shutdown(now, own, Shutdown::Write).unwrap();
        world.idle(Duration::from_millis(10));
        let now = world.now;
        assert_eq!(host(&mut world).tcp_recv(now, own, &mut buffer), Ok(0));
        host(&mut world).tcp_close(now, own).unwrap();
        world.idle(Duration::from_secs(120));
        assert_eq!(host(&mut world).tcp_sizes().0, 0);
    }
}

/// A frame of the link with an address of this host as its source is forged.
#[test]
fn the_link_cannot_claim_to_be_the_host() {
    let mut world = world(Offload::default());
    let address = addresses(&world, 53)[0];
    let receiver = host(&mut world).udp_bind(address).unwrap();
    let mut frame =
        vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17];
    frame.extend_from_slice(&[0, 0, 10, 0, 0, 1, 10, 0, 0, 1]);
    let sum = !crate::simulation::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&[0, 53, 0, 53, 0, 9, 0, 0, b'!']);
    let now = world.now;
    host(&mut world).input(now, &frame, Meta::FULL);
    assert_eq!(host(&mut world).counters().rx_bad_source, 1);
    let nothing = host(&mut world).udp_recv(receiver, &mut [0], false);
    assert_eq!(nothing.unwrap_err(), SocketError::WouldBlock);
}

/// Only the host itself can report about packets that never leave it.
#[test]
fn the_link_cannot_report_about_the_hosts_own_packets() {
    let mut world = world(Offload::default());
    let address = addresses(&world, 53)[0];
    let receiver = host(&mut world).udp_bind(address).unwrap();
    let sender = host(&mut world).udp_bind(SocketAddr::new(address.ip(), 4000)).unwrap();
    host(&mut world).udp_connect(sender, Some(address)).unwrap();
    let mut frame =
        vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0];
    frame.extend_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
    let sum = !crate::simulation::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    // Port unreachable, with the header of a datagram from port 4000 to port 53.
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    message
        .extend_from_slice(&[0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 1]);
    message.extend_from_slice(&[15, 160, 0, 53, 0, 9, 0, 0]);
    let sum = !crate::simulation::sum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&message);
    let now = world.now;
    host(&mut world).input(now, &frame, Meta::FULL);
    assert_eq!(host(&mut world).counters().icmp_errors_unmatched, 1);
    assert_eq!(host(&mut world).udp_take_error(sender), Ok(None));
    let _ = receiver;
}

/// A packet of the link with an IPv6 address of an IPv4 host could look like one of the host's own to a socket at `[::]`.
#[test]
fn mapped_addresses_of_the_link_are_dropped() {
    let mut world = world(Offload::default());
    let receiver = host(&mut world)
        .udp_bind_with(
            "[::]:53".parse().unwrap(),
            BindMode { is_dual: true, ..BindMode::default() },
        )
        .unwrap();
    let ours = addresses(&world, 53)[1];
    for source in ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.2"] {
        let source: std::net::Ipv6Addr = source.parse().unwrap();
        let std::net::IpAddr::V6(to) = ours.ip() else { unreachable!() };
        let mut frame =
            vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 9, 17, 64];
        frame.extend_from_slice(&source.octets());
        frame.extend_from_slice(&to.octets());
        let at = frame.len();
        frame.extend_from_slice(&[0, 53, 0, 53, 0, 9, 0, 0, b'!']);
        let mut pseudo = frame[22..54].to_vec();
        pseudo.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 17]);
        pseudo.extend_from_slice(&frame[at..]);
        let sum = !crate::simulation::sum(&pseudo);
        frame[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
        let (now, before) = (world.now, host(&mut world).counters().rx_bad_source);
        host(&mut world).input(now, &frame, Meta::FULL);
        assert_eq!(host(&mut world).counters().rx_bad_source, before + 1, "{source}");
    }
    let nothing = host(&mut world).udp_recv(receiver, &mut [0], false);
    assert_eq!(nothing.unwrap_err(), SocketError::WouldBlock);
    // Nor does the host send to such an address, but by IPv4.
    let to = Some("[::ffff:10.0.0.2]:9".parse().unwrap());
    let now = world.now;
    let only_v6 = host(&mut world).udp_bind("[::]:54".parse().unwrap()).unwrap();
    assert_eq!(host(&mut world).udp_send(now, only_v6, b"?", to), Err(SocketError::Unreachable));
    assert_eq!(host(&mut world).udp_send(now, receiver, b"?", to), Ok(()));
}
