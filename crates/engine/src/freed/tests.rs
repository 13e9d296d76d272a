use std::net::{IpAddr, Ipv6Addr};

use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{Verdict, verify};
use towpath_packet::transport::tcp_flags::{ACK, FIN, RST, SYN};

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Returns a table with one lease, which has an address of each family, and flows from a peer to these.
fn table() -> (FreedTable, [Flow; 2]) {
    let flows = [Flow::v4(), Flow::v6()].map(|flow| flow.macs(PEER, MAC));
    let [IpAddr::V4(v4), IpAddr::V6(v6)] = flows.map(|flow| flow.destination) else { panic!() };
    let mut table = FreedTable::new(1);
    table.insert(FreedLease {
        mac: MAC,
        ipv4: Some((v4.to_bits(), 24)),
        ipv6: [Some(v6.to_bits()), None],
    });
    (table, flows)
}

fn answer_to(table: &mut FreedTable, frame: &[u8]) -> Option<Vec<u8>> {
    table.take(frame, frame.len());
    let answer = table.next_answer(1)?.frame().to_vec();
    assert_eq!(table.next_answer(1).map(|more| more.frame().to_vec()), None);
    let headers = Headers::parse(&answer, answer.len()).unwrap();
    assert_eq!(headers.malformed, None);
    assert_eq!((headers.source, headers.destination), (MAC, PEER));
    let wrong = [Verdict::WrongHeader, Verdict::WrongTransport];
    assert!(!wrong.contains(&verify(&answer, &headers)), "{answer:x?}");
    Some(answer)
}

#[test]
fn segments_get_a_reset_with_the_right_numbers() {
    let (mut table, flows) = table();
    for flow in flows {
        for (flags, payload, sequence, acknowledgement, expected) in [
            (ACK, &b"abc"[..], 70, 0, RST),
            (SYN | ACK, b"", 70, 0, RST),
            (SYN, b"", 0, 51, RST | ACK),
            (FIN, b"abcd", 0, 55, RST | ACK),
            (SYN | FIN, b"a", 0, 53, RST | ACK),
            (0, b"", 0, 50, RST | ACK),
        ] {
            let tcp = Tcp { sequence: 50, acknowledgement: 70, flags, ..Tcp::default() };
            let answer = answer_to(&mut table, &flow.tcp(&tcp, payload)).unwrap();
            let wanted =
                Tcp { sequence, acknowledgement, flags: expected, window: 0, options: &[] };
            let wanted = flow.reversed().tcp(&wanted, b"");
            let l4 = if flow.source.is_ipv4() { 34 } else { 54 };
            assert_eq!(answer[l4..], wanted[l4..], "{flags:x}");
            assert_eq!(answer[l4 - 8..l4], wanted[l4 - 8..l4], "to the peer");
        }
        let reset = Tcp { flags: RST | ACK, ..Tcp::default() };
        assert_eq!(answer_to(&mut table, &flow.tcp(&reset, b"")), None);
    }
}

#[test]
fn datagrams_get_port_unreachable_about_themselves() {
    let (mut table, flows) = table();
    for (flow, (l3, kind)) in flows.into_iter().zip([(34, [3, 3]), (54, [1, 4])]) {
        let frame = flow.udp(b"who is there?");
        let answer = answer_to(&mut table, &frame).unwrap();
        assert_eq!(answer[l3..l3 + 2], kind);
        let quoted = &answer[l3 + 8..];
        assert_eq!(quoted, &frame[14..14 + quoted.len()]);
        assert!(quoted.len() >= l3 - 14 + 8, "with the ports");
        let long = answer_to(&mut table, &flow.udp(&[7; 1400])).unwrap();
        assert!(long.len() <= ANSWER_BYTES);
    }
}

#[test]
fn the_link_address_is_told() {
    let (mut table, flows) = table();
    for flow in flows {
        let expected = flow.reversed().i_have();
        assert_eq!(answer_to(&mut table, &flow.who_has()), Some(expected));
    }
}

#[test]
fn nothing_else_is_answered() {
    let (mut table, flows) = table();
    for flow in flows {
        let is_v4 = flow.source.is_ipv4();
        let other: IpAddr =
            if is_v4 { [192, 0, 2, 77].into() } else { Ipv6Addr::from_bits(7 << 120 | 9).into() };
        let groups: [IpAddr; 2] = if is_v4 {
            [[224, 0, 0, 9].into(), [192, 0, 2, 255].into()]
        } else {
            [Ipv6Addr::UNSPECIFIED.into(), "ff02::9".parse().unwrap()]
        };
        let mut frames = vec![
            flow.addresses(flow.source, other).udp(b"x"),
            flow.addresses(flow.source, other).who_has(),
            flow.macs(PEER, [2; 6]).udp(b"x"),
            flow.macs(PEER, [0xff; 6]).udp(b"x"),
            flow.macs([3; 6], MAC).udp(b"x"),
            flow.vlan(7).udp(b"x"),
            flow.echo(true, 1, 1, b"x"),
            flow.icmp(vec![3, 3, 0, 0, 0, 0, 0, 0]),
            vec![0; 9],
        ];
        frames.extend(groups.map(|group| flow.addresses(group, flow.destination).udp(b"x")));
        for frame in frames {
            assert_eq!(answer_to(&mut table, &frame), None, "{frame:x?}");
        }
    }
}

#[test]
fn the_engine_is_silent_once_another_session_has_the_address() {
    let (mut table, [flow, _]) = table();
    table.remove(MAC);
    assert_eq!(answer_to(&mut table, &flow.udp(b"x")), None);
}

/// Returns packets by which a host claims the destination of a flow, each with a name.
fn claims(flow: &Flow) -> Vec<(&'static str, Vec<u8>)> {
    let from_own = flow.addresses(flow.destination, flow.source);
    let from_none = match flow.destination {
        IpAddr::V4(_) => flow.addresses([0; 4], flow.destination),
        IpAddr::V6(_) => flow.addresses(Ipv6Addr::UNSPECIFIED, flow.destination),
    };
    vec![
        ("announcement", from_own.i_have()),
        ("probe", from_none.who_has()),
        ("request of the new host", from_own.who_has()),
    ]
}

/// A router may have forwarded each of these packets for a distant sender.
#[test]
fn no_forwarded_packet_claims_an_address() {
    for number in 0..2 {
        let (mut table, flows) = table();
        let flow = flows[number];
        let from_own = flow.addresses(flow.destination, flow.source);
        let to_itself = flow.addresses(flow.destination, flow.destination);
        let group = from_own.macs(flow.source_mac, [0xff; 6]);
        let mut packets = vec![
            from_own.udp(b"x"),
            to_itself.udp(b"x"),
            to_itself.tcp(&Tcp { flags: SYN, ..Tcp::default() }, b""),
            group.tcp(&Tcp::default(), b"x"),
            from_own.echo(true, 1, 1, b"x"),
        ];
        if flow.source.is_ipv6() {
            for (_, mut claim) in claims(&flow) {
                // The hop limit.
                claim[21] = 254;
                packets.push(claim);
            }
        }
        for packet in packets {
            assert_eq!(answer_to(&mut table, &packet), None, "{packet:x?}");
            assert!(!table.is_empty(), "{packet:x?}");
        }
        assert!(answer_to(&mut table, &flow.udp(b"x")).is_some());
    }
}

#[test]
fn an_address_is_another_hosts_once_that_host_claims_it() {
    for number in 0..2 {
        let flow = table().1[number];
        for (name, claim) in claims(&flow) {
            let (mut table, _) = table();
            assert!(answer_to(&mut table, &flow.udp(b"x")).is_some());
            assert_eq!(answer_to(&mut table, &claim), None, "{name}");
            assert!(table.is_empty(), "{name}");
        }
        // The same packets with the lease's own MAC address, with a tag, or for another address.
        let from_own_mac = claims(&flow.macs(MAC, PEER));
        let tagged = claims(&flow.vlan(7));
        let of_other = claims(&flow.addresses(flow.source, flow.source));
        for (name, claim) in from_own_mac.into_iter().chain(tagged).chain(of_other) {
            let (mut table, _) = table();
            table.take(&claim, claim.len());
            assert!(!table.is_empty(), "{name}");
        }
    }
}

#[test]
fn a_claim_behind_many_packets_counts_at_once() {
    let (mut table, [flow, _]) = table();
    let frame = flow.udp(b"x");
    (0..MOST_PENDING).for_each(|_| table.take(&frame, frame.len()));
    let claim = flow.addresses(flow.destination, flow.source).i_have();
    table.take(&claim, claim.len());
    assert!(table.is_empty());
    assert!(table.next_answer(1).is_none(), "also the packets before the claim get no answer");
}

#[test]
fn leases_and_waiting_packets_are_bounded() {
    let (mut table, [flow, _]) = table();
    let frame = flow.udp(b"x");
    (0..MOST_PENDING + 3).for_each(|_| table.take(&frame, frame.len()));
    assert_eq!(std::iter::from_fn(|| table.next_answer(1)).count(), MOST_PENDING);
    let first = table.all[0];
    for number in 0..MOST_FREED as u16 {
        let [high, low] = number.to_be_bytes();
        table.insert(FreedLease { mac: [6, 0, 0, 0, high, low], ..first });
    }
    assert_eq!((table.all.len(), table.all[0].mac), (MOST_FREED, [6, 0, 0, 0, 0, 0]));
}
