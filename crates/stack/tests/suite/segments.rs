//! Several datagrams of one call, sent and received.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_stack::{Config, MOST_SEGMENTS, Offload, Outgoing, SocketError, UdpId};

use crate::simulation::{V4, World, bytes, config};

/// Two nodes after their announcements, of which node 0 knows the link address of node 1.
fn world(seed: u64, offload: Offload) -> (World, [SocketAddr; 2]) {
    let node = |number| Config { offload, ..config(number) };
    let mut world = World::new(seed, [node(0), node(1)]);
    world.cuts = true;
    world.idle(Duration::from_secs(3));
    let addresses = [SocketAddr::new(V4[1].parse().unwrap(), 9), SocketAddr::new(world.v6(1), 9)];
    for to in addresses {
        let (now, stack) = (world.now, &mut world.nodes[0].stack);
        let socket = stack.udp_bind(any(to, 0)).unwrap();
        stack.udp_send(now, socket, &[], Some(to)).unwrap();
        world.idle(Duration::from_millis(1));
        world.nodes[0].stack.udp_close(socket).unwrap();
    }
    (world, addresses)
}

fn any(address: SocketAddr, port: u16) -> SocketAddr {
    let ip = if address.is_ipv4() { "0.0.0.0" } else { "::" };
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// What a datagram's receiver sees: sender, traffic class, hop limit, data.
type Seen = (SocketAddr, u8, u8, Vec<u8>);

/// Receives with a buffer of a random length, and checks the datagrams, and that no more of them could have come. Returns
/// the number of the datagrams.
fn receive(world: &mut World, socket: UdpId, expected: &mut VecDeque<Seen>) -> usize {
    let room = [0, 1, 7, 300, 1500, 4000, 65_535][world.random.usize(..7)];
    let mut buffer = vec![0xee; room];
    let stack = &mut world.nodes[1].stack;
    let received = match stack.udp_recv_merged(socket, &mut buffer) {
        Err(error) => {
            assert_eq!((error, expected.len()), (SocketError::WouldBlock, 0));
            return 0;
        }
        Ok(received) => received,
    };
    let (from, class, hops, first) = expected.pop_front().unwrap();
    assert_eq!((received.from, received.traffic_class, received.hop_limit), (from, class, hops));
    assert!(buffer[received.len..].iter().all(|byte| *byte == 0xee));
    if first.len() > room || first.is_empty() {
        assert_eq!((received.len, received.datagram_bytes), (room.min(first.len()), first.len()));
        assert_eq!(
            (received.stride, &buffer[..received.len]),
            (received.len, &first[..received.len])
        );
        return 1;
    }
    assert_eq!((received.stride, received.datagram_bytes), (first.len(), received.len));
    let mut pieces = buffer[..received.len].chunks(received.stride);
    assert_eq!(pieces.next(), Some(&first[..]));
    let (mut count, mut last) = (1, first.len());
    for piece in pieces {
        let (next_from, next_class, next_hops, data) = expected.pop_front().unwrap();
        assert_eq!((next_from, next_class, next_hops, &data[..]), (from, class, hops, piece));
        (count, last) = (count + 1, piece.len());
    }
    if let Some((next_from, next_class, next_hops, next)) = expected.front() {
        let fits = (*next_from, *next_class, *next_hops) == (from, class, hops)
            && (1..=first.len()).contains(&next.len())
            && next.len() <= room - received.len;
        assert!(!fits || last < first.len() || count == MOST_SEGMENTS, "{count} datagrams");
    }
    count
}

/// Random calls of several senders with random traffic classes, between receptions: each datagram arrives once, in order, with
/// its own boundaries and fields.
fn exchange(seed: u64, offload: Offload) -> [usize; 2] {
    let mut counts = [0, 0];
    let (mut world, addresses) = world(seed, offload);
    for to in addresses {
        let receiver = world.nodes[1].stack.udp_bind(to).unwrap();
        let senders: Vec<_> = (1..4)
            .map(|port| (port, world.nodes[0].stack.udp_bind(any(to, port)).unwrap()))
            .collect();
        let own: Vec<_> = world.nodes[0].stack.addresses().map(|(address, _)| address).collect();
        let is_link_local = |ip: &std::net::IpAddr| matches!(ip, std::net::IpAddr::V6(v6) if v6.is_unicast_link_local());
        let from = own.iter().find(|ip| {
            ip.is_ipv4() == to.is_ipv4() && is_link_local(ip) == is_link_local(&to.ip())
        });
        let from = *from.unwrap();
        let mut expected = VecDeque::new();
        for _ in 0..400 {
            let (port, sender) = senders[world.random.usize(..senders.len())];
            let len = [0, 1, 100, 1000, 9000, 40_000][world.random.usize(..6)];
            let len = world.random.usize(..=len);
            let each = [1, 20, 900, 1400][world.random.usize(..4)].max(len.div_ceil(MOST_SEGMENTS));
            let data = bytes(&mut world.random, len);
            let class = [0, 1, 2, 3, 0xb8][world.random.usize(..5)];
            let hops = [64, 63][world.random.usize(..2)];
            let outgoing = Outgoing {
                traffic_class: Some(class),
                hop_limit: Some(hops),
                segment_bytes: Some(each),
                ..Outgoing::new(&data, Some(to))
            };
            let now = world.now;
            world.nodes[0].stack.udp_send_with(now, sender, &outgoing).unwrap();
            let mut pieces: Vec<&[u8]> = data.chunks(each).collect();
            if data.is_empty() {
                pieces.push(&[]);
            }
            let from = SocketAddr::new(from, port);
            expected.extend(pieces.iter().map(|piece| (from, class, hops, piece.to_vec())));
            counts[0] += pieces.len();
            if world.random.bool() {
                world.idle(Duration::from_millis(1));
                while world.random.u8(..8) != 0 {
                    counts[1] += receive(&mut world, receiver, &mut expected).min(1);
                }
            }
            if expected.iter().map(|(.., data)| data.len() + 40).sum::<usize>() > 500_000 {
                world.idle(Duration::from_millis(1));
                while !expected.is_empty() {
                    counts[1] += receive(&mut world, receiver, &mut expected).min(1);
                }
            }
        }
        world.idle(Duration::from_millis(1));
        while !expected.is_empty() {
            counts[1] += receive(&mut world, receiver, &mut expected).min(1);
        }
        assert_eq!(world.nodes[1].stack.udp_dropped(receiver), Ok(0));
    }
    assert_eq!(world.nodes[0].stack.counters().udp_sent, 2 + counts[0] as u64);
    counts
}

#[test]
fn datagrams_keep_their_order_boundaries_and_fields() {
    let checksum = Offload { checksum: true, ..Offload::default() };
    for (seed, offload) in (0..12).zip([Offload::default(), checksum].into_iter().cycle()) {
        let [sent, calls] = exchange(seed, offload);
        assert!(sent > 2 * calls, "{sent} datagrams in {calls} calls");
    }
}

/// Returns how sending `len` bytes in datagrams of `each` bytes ends.
fn send(
    world: &mut World,
    socket: UdpId,
    to: SocketAddr,
    [len, each]: [usize; 2],
) -> Result<(), SocketError> {
    let (now, data) = (world.now, vec![7; len]);
    let outgoing = Outgoing { segment_bytes: Some(each), ..Outgoing::new(&data, Some(to)) };
    world.nodes[0].stack.udp_send_with(now, socket, &outgoing)
}

#[test]
fn a_call_has_limits() {
    let (mut world, addresses) = world(1, Offload::default());
    for (to, headers) in addresses.into_iter().zip([28, 48]) {
        let socket = world.nodes[0].stack.udp_bind(any(to, 0)).unwrap();
        let most = 1500 - headers;
        let too_long = Err(SocketError::SegmentTooLong { most });
        for (lengths, outcome) in [
            ([64, 1], Ok(())),
            ([65, 1], Err(SocketError::TooManySegments)),
            ([65, 2], Ok(())),
            ([0, 0], Ok(())),
            ([3, 0], Ok(())),
            ([most, most], Ok(())),
            ([40 * most + 1, most], Ok(())),
            ([most + 1, most + 1], too_long),
            ([most + 1, usize::MAX], too_long),
            ([most, usize::MAX], Ok(())),
            (
                [65_535 - 8, most],
                if to.is_ipv4() { Err(SocketError::MessageTooLong) } else { Ok(()) },
            ),
            ([65_536 - 8, most], Err(SocketError::MessageTooLong)),
        ] {
            let before = world.nodes[0].stack.counters().udp_sent;
            assert_eq!(send(&mut world, socket, to, lengths), outcome, "{lengths:?} to {to}");
            world.idle(Duration::from_millis(1));
            let after = world.nodes[0].stack.counters();
            let [len, each] = lengths.map(|bytes| bytes.max(1));
            let expected = if outcome.is_ok() { len.div_ceil(each) } else { 0 };
            assert_eq!(after.udp_sent - before, expected as u64, "{lengths:?}");
            assert_eq!(after.fragments_sent, 0);
        }
    }
}

#[test]
fn a_socket_sends_no_fragments_if_its_application_says_so() {
    let (mut world, addresses) = world(4, Offload::default());
    for (to, headers) in addresses.into_iter().zip([28, 48]) {
        let socket = world.nodes[0].stack.udp_bind(any(to, 0)).unwrap();
        let data = vec![7; 1501 - headers];
        for (fragments, outcome) in
            [(true, Ok(())), (false, Err(SocketError::MessageTooLong)), (true, Ok(()))]
        {
            let (now, stack) = (world.now, &mut world.nodes[0].stack);
            stack.udp_options(socket).unwrap().fragments = fragments;
            assert_eq!(stack.udp_send(now, socket, &data, Some(to)), outcome);
            assert_eq!(stack.udp_send(now, socket, &data[1..], Some(to)), Ok(()));
            world.idle(Duration::from_millis(1));
        }
    }
    assert_eq!(world.nodes[0].stack.counters().fragments_sent, 2 * 2 * 2);
}

/// Without room in the link, a call's datagrams wait in the outbox all together, or the call sends none of them.
#[test]
fn there_is_room_for_all_datagrams_of_a_call_or_for_none() {
    for transmit_bytes in [1, 100_000, 400_000, 2 << 20] {
        let (mut world, [to, _]) = world(2, Offload::default());
        let mut own = config(0);
        own.limits.transmit_bytes = transmit_bytes;
        world.nodes[0].stack = towpath_stack::Stack::new(own, world.now).unwrap();
        world.idle(Duration::from_secs(3));
        let socket = world.nodes[0].stack.udp_bind(any(to, 0)).unwrap();
        let receiver = world.nodes[1].stack.udp_bind(to).unwrap();
        assert_eq!(send(&mut world, socket, to, [1, 1]), Ok(()));
        world.idle(Duration::from_millis(1));
        world.nodes[1].stack.udp_recv(receiver, &mut [0], false).unwrap();
        world.nodes[0].end.room = Some(0);
        let mut calls = 0;
        while send(&mut world, socket, to, [640, 10]) == Ok(()) {
            calls += 1;
            assert!(calls < 1000, "no limit");
        }
        assert!(calls >= 1);
        assert!(!world.nodes[0].stack.udp_readiness(socket).unwrap().writable);
        world.nodes[0].end.room = None;
        world.idle(Duration::from_millis(10));
        assert!(world.nodes[0].stack.udp_readiness(socket).unwrap().writable);
        let mut received = 0;
        while world.nodes[1].stack.udp_recv(receiver, &mut [0; 10], false).is_ok() {
            received += 1;
        }
        assert_eq!(received, 64 * calls);
        assert_eq!(world.nodes[0].stack.counters().transmit_limit, 0);
    }
}

/// A host that is a member of the group gets its own datagrams in their order.
#[test]
fn datagrams_to_a_group_are_looped() {
    let (mut world, addresses) = world(3, Offload::default());
    for (address, group) in addresses.into_iter().zip(["239.1.2.3:9", "[ff05::9]:9"]) {
        let group: SocketAddr = group.parse().unwrap();
        let sockets = [0, 1].map(|node: usize| {
            let stack = &mut world.nodes[node].stack;
            let socket = stack.udp_bind(any(address, 9)).unwrap();
            stack.udp_join(socket, group.ip()).unwrap();
            socket
        });
        assert_eq!(send(&mut world, sockets[0], group, [1000, 300]), Ok(()));
        world.idle(Duration::from_millis(10));
        for (node, socket) in sockets.into_iter().enumerate() {
            let received = world.nodes[node].stack.udp_recv_merged(socket, &mut [0; 2000]).unwrap();
            assert_eq!((received.len, received.stride, received.to), (1000, 300, group.ip()));
        }
    }
}
