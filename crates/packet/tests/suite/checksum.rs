//! Compares checksums with the RFC's example, a plain definition, and etherparse.

use etherparse::{Icmpv6Type, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{
    OutsidePacket, Sum, Verdict, complete, completed, ipv4_header_is_right, verify,
};
use towpath_packet::offload::MIN_SEGMENT_BYTES;
use towpath_packet::segment::complete_into;
use towpath_packet::transport::tcp_flags::ACK;
use towpath_packet::{Checksum, Headers, Meta};

/// Computes the checksum by its definition, word by word (RFC 1071, section 1).
fn plain(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 37 + i / 256 * 11 + 0x80) as u8).collect()
}

fn whole(bytes: &[u8]) -> Sum {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum
}

fn verdict(frame: &[u8]) -> Verdict {
    verify(frame, &Headers::parse(frame, frame.len()).unwrap())
}

#[test]
fn known_vectors() {
    // RFC 1071, section 3.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(whole(&bytes).folded(), 0xddf2);
    assert_eq!(whole(&bytes).checksum(), 0x220d);
    // An IPv4 header that many texts use as an example, with its checksum 0xb861.
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    assert!(ipv4_header_is_right(&header));
    let mut wrong = header;
    wrong[8] -= 1;
    assert!(!ipv4_header_is_right(&wrong));
    // No bytes, and sums that carry through all bits.
    assert_eq!(Sum::default().folded(), 0);
    assert!(!Sum::default().is_right());
    assert_eq!(whole(&[0xff; 65536]).folded(), 0xffff);
    assert_eq!(whole(&[0xff; 65535]).folded(), plain(&[0xff; 65535]));
}

#[test]
fn every_length_and_every_alignment() {
    let bytes = pattern(700);
    for start in 0..9 {
        for len in 0..=(bytes.len() - start) {
            let piece = &bytes[start..start + len];
            assert_eq!(whole(piece).folded(), plain(piece), "{start} {len}");
        }
    }
    let long = pattern(65_536);
    for len in [1499, 1500, 9000, 65_535, 65_536] {
        assert_eq!(whole(&long[..len]).folded(), plain(&long[..len]), "{len}");
    }
}

#[test]
fn partial_checksums_are_completed_like_full_ones() {
    for flow in [Flow::v4(), Flow::v6(), Flow::v4().vlan(3), Flow::v6().vlan(3)] {
        for len in 0..200 {
            let payload = pattern(len);
            let tcp = Tcp::default();
            for (want, (mut frame, meta)) in [
                (flow.udp(&payload), flow.udp_partial(&payload)),
                (flow.tcp(&tcp, &payload), flow.tcp_partial(&tcp, &payload)),
            ] {
                let Meta { checksum: Checksum::Partial { start, offset }, segmentation: None } =
                    meta
                else {
                    panic!("{meta:?}")
                };
                assert_eq!(verdict(&frame), Verdict::WrongTransport);
                let (first, rest) = frame.split_at(len % 60);
                let (second, third) = rest.split_at(1);
                let parts = completed(&[first, second, &[], third], start, offset).unwrap();
                assert_eq!(completed(&[&frame], start, offset), Ok(parts));
                frame[parts.0..parts.0 + 2].copy_from_slice(&parts.1);
                assert_eq!(frame, want, "{flow:?} {len}");
                assert_eq!(verdict(&frame), Verdict::Right);
            }
        }
    }
}

#[test]
fn zero_is_written_as_all_ones() {
    // A payload word that makes the sum 0xffff, so that its complement is 0.
    let flow = Flow::v4();
    let (frame, _) = flow.udp_partial(&[0, 0]);
    let mut sum = flow.pseudo(17, 10);
    sum.add(&frame[34..40]);
    let udp = flow.udp(&(!sum.folded()).to_be_bytes());
    assert_eq!(&udp[40..42], &[0xff, 0xff]);
    assert_eq!(verdict(&udp), Verdict::Right);
    // A field of 0 means no checksum.
    let mut none = udp;
    none[40..42].fill(0);
    assert_eq!(verdict(&none), Verdict::NotCovered);
}

/// Analyzers report a TCP checksum of 0xffff as wrong (RFC 1624 computes 0).
#[test]
fn zero_stays_zero_in_tcp() {
    for flow in [Flow::v4(), Flow::v6()] {
        let tcp = Tcp { flags: ACK, ..Tcp::default() };
        let mut payload = [0; 2 * MIN_SEGMENT_BYTES as usize];
        let (first, _) = payload.split_at_mut(MIN_SEGMENT_BYTES.into());
        let (frame, meta) = flow.tcp_partial(&tcp, first);
        let Checksum::Partial { start, offset } = meta.checksum else { panic!("{meta:?}") };
        let (field, value) = completed(&[&frame], start, offset).unwrap();
        // With its checksum as a payload word, the packet's sum is 0xffff.
        first[..2].copy_from_slice(&value);
        let (mut frame, _) = flow.tcp_partial(&tcp, first);
        complete(&mut frame, start, offset).unwrap();
        assert_eq!((&frame[field..field + 2], verdict(&frame)), (&[0, 0][..], Verdict::Right));
        let (packet, meta) = flow.tcp_large(&tcp, &payload, MIN_SEGMENT_BYTES);
        let mut fields = Vec::new();
        let emit = |frame: &[u8]| fields.push(frame[field..field + 2].to_vec());
        complete_into(&packet, &meta, &mut Vec::new(), emit).unwrap();
        assert_eq!((fields.len(), &fields[0][..]), (2, &[0, 0][..]), "{flow:?}");
    }
}

#[test]
fn checksum_positions_outside_are_refused() {
    for (len, start, offset) in
        [(0, 0, 0), (1, 0, 0), (60, 60, 0), (60, 0, 59), (60, 0xffff, 0xffff), (60, 34, 25)]
    {
        let mut frame = pattern(len);
        let outside = Err(OutsidePacket { start, offset, len });
        assert_eq!(complete(&mut frame, start, offset), outside);
        assert_eq!(frame, pattern(len));
        let (first, second) = frame.split_at(len / 3);
        assert_eq!(completed(&[first, second], start, offset).map(|_| ()), outside);
    }
    assert_eq!(complete(&mut pattern(60), 34, 24), Ok(()));
}

#[test]
fn one_wrong_bit_is_seen() {
    for frame in [
        Flow::v4().udp(b"payload"),
        Flow::v6().udp(b"odd payload"),
        Flow::v4().tcp(&Tcp::default(), b"x"),
        Flow::v6().tcp(&Tcp::default(), b""),
        Flow::v4().echo(true, 1, 2, b"ping"),
        Flow::v6().echo(false, 1, 2, b"pong!"),
        Flow::v6().who_has(),
    ] {
        assert_eq!(verdict(&frame), Verdict::Right, "{frame:x?}");
        // Every bit of the transport packet, after the fields that change its parsing.
        let headers = Headers::parse(&frame, frame.len()).unwrap();
        for at in headers.l4_offset().unwrap()..frame.len() {
            for bit in 0..8 {
                let mut wrong = frame.clone();
                wrong[at] ^= 1 << bit;
                assert_ne!(verdict(&wrong), Verdict::Right, "{at} {bit} {frame:x?}");
            }
        }
    }
    let mut header = Flow::v4().udp(b"");
    header[22] ^= 1;
    assert_eq!(verdict(&header), Verdict::WrongHeader);
}

#[test]
fn etherparse_sums_the_same() {
    for flow in [Flow::v4(), Flow::v6()] {
        for len in 0..300 {
            let payload = pattern(len);
            for frame in [
                flow.udp(&payload),
                flow.tcp(&Tcp::default(), &payload),
                flow.echo(true, 9, 9, &payload),
            ] {
                let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
                let (found, expected) = match (&sliced.net, &sliced.transport) {
                    (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) => (
                        udp.checksum(),
                        udp.to_header()
                            .calc_checksum_ipv4(&ip.header().to_header(), udp.payload())
                            .unwrap(),
                    ),
                    (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Udp(udp))) => (
                        udp.checksum(),
                        udp.to_header()
                            .calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
                            .unwrap(),
                    ),
                    (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) => (
                        tcp.checksum(),
                        tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
                            .unwrap(),
                    ),
                    (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Tcp(tcp))) => (
                        tcp.checksum(),
                        tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination())
                            .unwrap(),
                    ),
                    (Some(NetSlice::Ipv4(_)), Some(TransportSlice::Icmpv4(icmp))) => {
                        (icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()))
                    }
                    (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(icmp))) => {
                        let kind: Icmpv6Type = icmp.icmp_type();
                        let header = ip.header();
                        let sum = kind
                            .calc_checksum(header.source(), header.destination(), icmp.payload())
                            .unwrap();
                        (icmp.checksum(), sum)
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(found, expected, "{frame:x?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        rng_seed: RngSeed::Fixed(0x1071),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn pieces_sum_to_the_whole(pieces in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..70), 0..12,
    )) {
        let mut sum = Sum::default();
        for piece in &pieces {
            sum.add(piece);
        }
        prop_assert_eq!(sum.folded(), plain(&pieces.concat()));
    }

    #[test]
    fn finish_never_panics(
        mut frame in prop::collection::vec(any::<u8>(), 0..200),
        start in 0_u16..220,
        offset in 0_u16..220,
    ) {
        let inside = usize::from(start) + usize::from(offset) + 2 <= frame.len();
        prop_assert_eq!(complete(&mut frame, start, offset).is_ok(), inside);
    }
}
