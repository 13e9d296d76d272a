//! Compares the results of `Headers::parse` with hand-made frames and with etherparse.

use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::headers::{
    Arp, Fragment, Headers, MAX_EXTENSION_HEADERS, Malformed, Network, PREFIX_BYTES,
};
use towpath_packet::pattern::{BEGINNING_BYTES, Pattern};
use towpath_packet::plain::{self, Plain};
use towpath_packet::quoted::{Quoted, QuotedFlow};
use towpath_packet::transport::{Transport, tcp_flags};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(0x7031),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn parse(frame: &[u8]) -> Headers {
    Headers::parse(frame, frame.len()).expect("an Ethernet header")
}

/// Asserts that the fast path returns the full parser's result or, for a prefix, `None`.
fn plain_agrees(frame: &[u8]) {
    let long = Headers::parse(frame, frame.len()).ok().and_then(|headers| Plain::of(&headers));
    assert_eq!(plain::read(frame, frame.len()), long, "{frame:02x?}");
    for copied in [0, 41, 42, 53, 54, 61, 62, 73, 74] {
        let short = plain::read(&frame[..copied.min(frame.len())], frame.len());
        assert!(short.is_none() || short == long, "{copied} of {frame:02x?}");
    }
}

/// Returns the beginning of a frame; bytes behind its end have the value `rest`.
fn beginning(frame: &[u8], rest: u8) -> [u8; BEGINNING_BYTES] {
    std::array::from_fn(|at| frame.get(at).copied().unwrap_or(rest))
}

/// Asserts that a frame matches the pattern of another one exactly if it is plain and has the same
/// fields, whatever lies behind its end.
fn pattern_agrees(first: &[u8], frame: &[u8]) {
    let Some(plain) = plain::read(first, first.len()) else { return };
    let same = plain::read(frame, frame.len()) == Some(plain);
    for rest in [0, 0x45, 0xff] {
        let pattern = Pattern::of(&plain, &beginning(first, !rest));
        let matches = pattern.matches(&beginning(frame, rest), frame.len());
        assert_eq!(matches, same, "{first:02x?} and {frame:02x?}");
    }
}

/// Returns every kind of frame that the builder makes, tagged and untagged.
fn samples() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for base in [Flow::v4(), Flow::v6(), Flow::v4().vlan(0x6064), Flow::v6().vlan(5)] {
        let options = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        all.push(base.udp(b"payload"));
        all.push(base.udp(&[]));
        all.push(base.tcp(&Tcp::default(), b"hello"));
        all.push(base.tcp(&Tcp { options: &options, flags: 0xc2, ..Tcp::default() }, &[7; 300]));
        all.push(base.echo(true, 77, 1, b"ping"));
        all.push(base.echo(false, 77, 1, b"pong"));
        all.push(base.who_has());
        all.push(base.i_have());
        all.push(base.ip(132, &[0x10, 0, 0x20, 0, 1, 1, 1, 1, 2, 2, 2, 2]));
        all.push(base.ip(47, b"something else"));
        all.push(base.ethernet(0x88cc, b"link layer discovery"));
        all.push(base.ethernet(0x8100, &[0, 9, 0x88, 0xcc, 0x45]));
    }
    for chain in [
        vec![(0, 8), (60, 16), (17, 0)],
        vec![(0, 8), (43, 24), (6, 0)],
        vec![(51, 12), (17, 0)],
        vec![(44, 8), (17, 0)],
    ] {
        all.push(extended(&chain));
    }
    all.push(fragment4(0x2000, 24));
    all.push(fragment4(3, 24));
    all.push(fragment6(1, 24));
    all.push(fragment6(24 | 1, 24));
    all
}

/// Makes an IPv6 packet with a chain of extension headers (number and length), ended by UDP or TCP.
fn extended(chain: &[(u8, usize)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for pair in chain.windows(2) {
        let ((kind, bytes), (next, _)) = (pair[0], pair[1]);
        let start = payload.len();
        payload.resize(start + bytes, 0);
        payload[start] = next;
        payload[start + 1] = match kind {
            44 => 0,
            51 => (bytes / 4 - 2) as u8,
            _ => (bytes / 8 - 1) as u8,
        };
    }
    let flow = Flow::v6();
    let inner =
        if chain.last().unwrap().0 == 6 { flow.tcp(&Tcp::default(), b"x") } else { flow.udp(b"x") };
    payload.extend_from_slice(&inner[54..]);
    flow.ip(chain[0].0, &payload)
}

fn fragment4(pieces: u16, payload: usize) -> Vec<u8> {
    let mut frame = Flow::v4().udp(&vec![0xab; payload - 8]);
    frame[38..40].copy_from_slice(&1000_u16.to_be_bytes());
    frame[20..22].copy_from_slice(&pieces.to_be_bytes());
    frame
}

fn fragment6(pieces: u16, payload: usize) -> Vec<u8> {
    let mut bytes = vec![17, 0];
    bytes.extend_from_slice(&pieces.to_be_bytes());
    bytes.extend_from_slice(&0xdead_beef_u32.to_be_bytes());
    bytes.extend_from_slice(&[3, 232, 7, 208, 0, 100, 0, 0]);
    bytes.resize(8 + payload, 0xcd);
    Flow::v6().ip(44, &bytes)
}

#[test]
fn every_field_of_udp_over_ipv4() {
    let headers = parse(&Flow::v4().vlan(0x6064).udp(b"payload"));
    assert_eq!(headers.destination, [2, 0, 0, 0, 0, 2]);
    assert_eq!(headers.source, [2, 0, 0, 0, 0, 1]);
    assert_eq!((headers.vlan, headers.ethertype, headers.l3_offset), (Some(0x64), 0x800, 18));
    assert_eq!(headers.malformed, None);
    let Network::Ipv4(ip) = headers.network else { panic!("{headers:?}") };
    assert_eq!((ip.source, ip.destination), (0xc000_0201, 0xc000_0202));
    assert_eq!((ip.protocol, ip.hops, ip.fragment), (17, 64, Fragment::Whole));
    assert_eq!((ip.total_bytes, ip.l4_offset), (35, 38));
    assert_eq!(ip.transport, Transport::Udp { source: 1000, destination: 2000 });
    assert_eq!((headers.l4_offset(), headers.ip_end()), (Some(38), Some(53)));
}

#[test]
fn every_field_of_tcp_over_ipv6() {
    let options = [1; 12];
    let tcp = Tcp { flags: tcp_flags::SYN | tcp_flags::ECE, options: &options, ..Tcp::default() };
    let headers = parse(&Flow::v6().tcp(&tcp, &[]));
    let Network::Ipv6(ip) = headers.network else { panic!("{headers:?}") };
    assert_eq!(ip.source, 0x2001_0db8_0000_0000_0000_0000_0000_0001);
    assert_eq!(ip.destination, 0x2001_0db8_0000_0000_0000_0000_0000_0002);
    assert_eq!((ip.protocol, ip.total_bytes, ip.l4_offset), (6, 72, 54));
    let expected =
        Transport::Tcp { source: 1000, destination: 2000, flags: 0x42, header_bytes: 32 };
    assert_eq!(ip.transport, expected);
}

#[test]
fn plain_udp_and_tcp_take_the_fast_path() {
    let keys = |flow: &Flow, frame: &[u8]| {
        let plain = plain::read(frame, frame.len()).expect("a plain frame");
        assert_eq!(plain.source[0], plain::link(flow.source_mac, None));
        assert_eq!(plain.destination[0], plain::link(flow.destination_mac, None));
        plain_agrees(frame);
        plain
    };
    let v4 = keys(&Flow::v4(), &Flow::v4().udp(b"x"));
    assert_eq!(v4.source[1..], [plain::kind(0x800, 17, 4, 1000), 0xc000_0201, 0]);
    assert_eq!(v4.destination[1..], [plain::kind(0x800, 17, 4, 2000), 0xc000_0202, 0]);
    let v6 = keys(&Flow::v6(), &Flow::v6().tcp(&Tcp::default(), b"x"));
    assert_eq!(v6.source[1..], [plain::kind(0x86dd, 6, 6, 1000), 1, 0x2001_0db8 << 32]);
    assert_eq!(v6.destination[1..], [plain::kind(0x86dd, 6, 6, 2000), 2, 0x2001_0db8 << 32]);
    assert!(!v4.is_for_group());
    let all = Flow { destination_mac: [0xff; 6], ..Flow::v4() };
    assert!(keys(&all, &all.udp(b"x")).is_for_group());
    let short = samples().iter().filter(|frame| plain::read(frame, frame.len()).is_some()).count();
    assert_eq!(short, 8, "UDP and TCP, two of each, untagged, of both families");
    samples().iter().for_each(|frame| plain_agrees(frame));
}

#[test]
fn a_frame_matches_the_patterns_of_frames_with_the_same_fields_only() {
    let samples = samples();
    for (number, first) in samples.iter().enumerate() {
        samples.iter().for_each(|frame| pattern_agrees(first, frame));
        let Some(plain) = plain::read(first, first.len()) else { continue };
        let pattern = Pattern::of(&plain, &beginning(first, 0));
        assert!(pattern.matches(&beginning(first, 1), first.len()), "sample {number}");
        assert!(!Pattern::default().matches(&beginning(first, 0), first.len()));
        // Each bit of the headers.
        for bit in 0..74 * 8 {
            let mut frame = first.clone();
            if let Some(byte) = frame.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            pattern_agrees(first, &frame);
        }
        (0..first.len()).for_each(|len| pattern_agrees(first, &first[..len]));
    }
}

#[test]
fn priority_tags_belong_to_no_vlan() {
    let headers = parse(&Flow::v4().vlan(0xe000).udp(b""));
    assert_eq!((headers.vlan, headers.is_tagged()), (None, true));
    assert_eq!(headers.ports(), Some((1000, 2000)));
}

#[test]
fn arp_and_neighbours() {
    let headers = parse(&Flow::v4().who_has());
    let arp = Arp {
        operation: 1,
        sender_mac: [2, 0, 0, 0, 0, 1],
        sender_ip: 0xc000_0201,
        target_mac: [0; 6],
        target_ip: 0xc000_0202,
    };
    assert_eq!(headers.network, Network::Arp(arp));
    assert_eq!(headers.destination, [0xff; 6]);
    for (frame, kind, target) in
        [(Flow::v6().who_has(), 135, 2), (Flow::v6().i_have(), 136, 1_u128)]
    {
        let headers = parse(&frame);
        let target = 0x2001_0db8 << 96 | target;
        assert_eq!(headers.transport(), Transport::Neighbour { kind, target });
        let Network::Ipv6(ip) = headers.network else { panic!("{headers:?}") };
        assert_eq!(ip.hops, 255);
    }
    let asked = parse(&Flow::v6().who_has());
    assert_eq!(asked.destination, [0x33, 0x33, 0xff, 0, 0, 2]);
}

#[test]
fn extension_headers_are_walked_so_far() {
    let headers = parse(&extended(&[(0, 8), (60, 16), (43, 8), (51, 12), (17, 0)]));
    assert_eq!((headers.malformed, headers.ports()), (None, Some((1000, 2000))));
    assert_eq!(headers.l4_offset(), Some(54 + 44));

    let mut long = vec![(60, 8); MAX_EXTENSION_HEADERS];
    long.push((17, 0));
    assert_eq!(parse(&extended(&long)).ports(), Some((1000, 2000)));
    long.insert(0, (60, 8));
    let over = parse(&extended(&long));
    assert_eq!((over.malformed, over.l4_offset()), (Some(Malformed::ExtensionHeaders), None));
    assert_eq!(over.transport(), Transport::None);

    // The parser distinguishes a chain beyond the copied bytes from a truncated one.
    let deep = extended(&[(60, 400), (17, 0)]);
    let headers = Headers::parse(&deep[..PREFIX_BYTES], deep.len()).unwrap();
    assert_eq!(headers.malformed, Some(Malformed::BeyondPrefix));
    assert_eq!(parse(&deep).ports(), Some((1000, 2000)));
}

#[test]
fn fragments_have_ports_in_the_first_alone() {
    let fragment = |frame: &[u8]| match parse(frame).network {
        Network::Ipv4(ip) => ip.fragment,
        Network::Ipv6(ip) => ip.fragment,
        other => panic!("{other:?}"),
    };
    let first = fragment4(0x2000, 24);
    assert_eq!(fragment(&first), Fragment::First { id: 1 });
    assert_eq!(parse(&first).ports(), Some((1000, 2000)));
    let later = fragment4(3, 24);
    assert_eq!(fragment(&later), Fragment::Later { id: 1, offset: 24 });
    assert_eq!((parse(&later).ports(), parse(&later).l4_offset()), (None, None));
    assert_eq!(fragment(&fragment4(0x4000, 1008)), Fragment::Whole);

    assert_eq!(fragment(&fragment6(1, 24)), Fragment::First { id: 0xdead_beef });
    assert_eq!(parse(&fragment6(1, 24)).ports(), Some((1000, 2000)));
    assert_eq!(fragment(&fragment6(24, 9)), Fragment::Later { id: 0xdead_beef, offset: 24 });
    assert_eq!(parse(&fragment6(24, 9)).ports(), None);

    // The whole packet, for any value of the reserved bits.
    assert_eq!(fragment(&fragment6(6, 100)), Fragment::Whole);

    // Past 65 535 bytes, and a middle fragment of an odd length.
    assert_eq!(parse(&fragment4(0x1fff, 24)).malformed, Some(Malformed::Fragment));
    assert_eq!(parse(&fragment4(0x2000, 23)).malformed, Some(Malformed::Fragment));
    assert_eq!(parse(&fragment6(0xfff8, 24)).malformed, Some(Malformed::Fragment));
}

/// Writes `bytes` at `at` into a frame, and returns the frame's defect.
fn mangled(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> (Option<Malformed>, Headers) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    let headers = parse(&frame);
    (headers.malformed, headers)
}

#[test]
fn malformed_packets_have_distinct_reasons() {
    let udp = || Flow::v4().udp(b"payload");
    let tcp = || Flow::v4().tcp(&Tcp::default(), b"payload");
    let udp6 = || Flow::v6().udp(b"payload");
    for (frame, at, bytes, expected) in [
        (udp(), 14, &[0x65][..], Malformed::IpVersion),
        (udp6(), 14, &[0x40], Malformed::IpVersion),
        (udp(), 14, &[0x44], Malformed::IpHeaderLength),
        (udp(), 14, &[0x4f], Malformed::IpHeaderLength),
        (udp(), 16, &[0, 19], Malformed::IpLength),
        (udp(), 16, &[0, 36], Malformed::IpLength),
        (udp6(), 18, &[0, 16], Malformed::IpLength),
        (udp(), 38, &[0, 7], Malformed::UdpLength),
        (udp(), 38, &[0, 16], Malformed::UdpLength),
        (udp(), 16, &[0, 27], Malformed::TransportShort),
        (tcp(), 16, &[0, 39], Malformed::TransportShort),
        (tcp(), 46, &[0x40], Malformed::TcpHeaderLength),
        (tcp(), 46, &[0x80], Malformed::TcpHeaderLength),
        (Flow::v4().who_has(), 15, &[6], Malformed::ArpKind),
        (extended(&[(0, 8), (17, 0)]), 55, &[9], Malformed::ExtensionHeaders),
        (extended(&[(44, 8), (17, 0)]), 54, &[44], Malformed::ExtensionHeaders),
    ] {
        let (found, headers) = mangled(frame, at, bytes);
        assert_eq!(found, Some(expected), "{at} {bytes:?} {headers:?}");
        assert_eq!((headers.source, headers.transport()), ([2, 0, 0, 0, 0, 1], Transport::None));
    }
    // The addresses stay valid if the defect comes after them.
    let (_, headers) = mangled(udp(), 38, &[0, 7]);
    assert!(matches!(headers.network, Network::Ipv4(ip) if ip.source == 0xc000_0201));
}

#[test]
fn truncated_packets_have_distinct_reasons() {
    let all = |frame: &[u8]| -> Vec<_> {
        let frame = &frame[..frame.len().min(120)];
        (0..=frame.len())
            .map(|len| Headers::parse(&frame[..len], len).map(|h| h.malformed))
            .collect()
    };
    let tagged = all(&Flow::v4().vlan(1).udp(b""));
    assert!(tagged[..14].iter().all(|said| *said == Err(Malformed::EthernetShort)));
    assert!(tagged[14..18].iter().all(|said| *said == Ok(Some(Malformed::VlanShort))));
    assert!(tagged[18..38].iter().all(|said| *said == Ok(Some(Malformed::IpShort))));
    assert!(tagged[38..46].iter().all(|said| *said == Ok(Some(Malformed::IpLength))));
    assert_eq!(tagged[46], Ok(None));
    let arp = all(&Flow::v4().who_has());
    assert!(arp[14..42].iter().all(|said| *said == Ok(Some(Malformed::ArpShort))));
    assert_eq!(arp[42], Ok(None));

    // Truncating only the copied part of a whole packet gives another defect.
    for frame in samples() {
        for copied in 14..frame.len() {
            let cut = Headers::parse(&frame[..copied], frame.len()).unwrap();
            if cut != parse(&frame) {
                assert_eq!(cut.malformed, Some(Malformed::BeyondPrefix), "{copied} {frame:x?}");
            }
        }
    }
}

#[test]
fn ipv6_packets_of_over_65535_bytes_are_refused() {
    let mut frame = Flow::v6().ip(59, &[0; 65_495]);
    assert_eq!((parse(&frame).malformed, parse(&frame).ip_end()), (None, Some(65_549)));
    frame.push(0);
    frame[18..20].copy_from_slice(&65_496_u16.to_be_bytes());
    assert_eq!(parse(&frame).malformed, Some(Malformed::IpLength));
}

#[test]
fn padding_is_not_read() {
    let mut frame = Flow::v4().ip(17, &[1, 2, 3, 4, 0, 12]);
    frame.resize(60, 0xff);
    let headers = parse(&frame);
    assert_eq!(headers.malformed, Some(Malformed::TransportShort));
    assert_eq!(headers.ip_end(), Some(40));
}

/// Returns the parser's result for an ICMP error that quotes `bytes` bytes of a frame's packet.
fn quoted(flow: &Flow, packet: &[u8], kind: u8, bytes: usize) -> Option<Quoted> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 5, 0];
    message.extend_from_slice(packet[14..].get(..bytes).unwrap_or(&packet[14..]));
    let frame = flow.reversed().icmp(message);
    let prefix = &frame[..frame.len().min(PREFIX_BYTES)];
    Headers::parse(prefix, frame.len()).unwrap().quoted(prefix)
}

#[test]
fn icmp_errors_quote_the_flow_they_are_about() {
    let (four, six) = (Flow::v4(), Flow::v6());
    let flow4 = |packet: &[u8], kind, bytes| match quoted(&four, packet, kind, bytes) {
        Some(Quoted::Ipv4(quote)) => {
            assert_eq!((quote.source, quote.destination), (0xc000_0201, 0xc000_0202));
            Some((quote.protocol, quote.flow))
        }
        Some(Quoted::Ipv6(quote)) => panic!("{quote:?}"),
        None => None,
    };
    let flow6 = |packet: &[u8], kind, bytes| match quoted(&six, packet, kind, bytes) {
        Some(Quoted::Ipv6(quote)) => {
            assert_eq!((quote.source & 0xff, quote.destination & 0xff), (1, 2));
            Some((quote.protocol, quote.flow))
        }
        Some(Quoted::Ipv4(quote)) => panic!("{quote:?}"),
        None => None,
    };
    let ports = QuotedFlow::Ports(1000, 2000);
    let tcp = four.tcp(&Tcp::default(), &[7; 1400]);
    // A router quotes at least 8 bytes after the header (RFC 792).
    for bytes in [28, 60, 548] {
        assert_eq!(flow4(&tcp, 3, bytes), Some((6, ports)));
    }
    assert_eq!(flow4(&tcp, 3, 27), Some((6, QuotedFlow::None)));
    assert_eq!(flow4(&tcp, 3, 19), None);
    // Not an error: an echo that carries a packet.
    assert_eq!(flow4(&tcp, 8, 60), None);
    assert_eq!(flow4(&four.echo(true, 77, 1, b""), 11, 28), Some((1, QuotedFlow::Echo(77))));
    assert_eq!(flow4(&four.echo(false, 77, 1, b""), 11, 28), Some((1, QuotedFlow::None)));
    assert_eq!(flow4(&fragment4(3, 24), 11, 28), Some((17, QuotedFlow::None)));
    assert_eq!(flow4(&fragment4(0x2000, 24), 11, 28), Some((17, ports)));

    let udp = six.udp(&[7; 1400]);
    for kind in 1..=4 {
        assert_eq!(flow6(&udp, kind, 1232), Some((17, ports)));
    }
    assert_eq!(flow6(&udp, 128, 1232), None);
    assert_eq!(flow6(&udp, 2, 39), None);
    assert_eq!(flow6(&extended(&[(0, 8), (60, 16), (17, 0)]), 2, 500), Some((17, ports)));
    assert_eq!(flow6(&fragment6(1, 24), 2, 500), Some((17, ports)));
    assert_eq!(flow6(&fragment6(24, 9), 2, 500), Some((17, QuotedFlow::None)));
    let echo = six.echo(true, 77, 1, b"");
    assert_eq!(flow6(&echo, 3, 500), Some((58, QuotedFlow::Echo(77))));
}

#[test]
fn each_malformed_reason_has_its_index() {
    for (index, malformed) in Malformed::ALL.into_iter().enumerate() {
        assert_eq!(malformed.index(), index);
        assert!(!malformed.to_string().is_empty());
    }
}

/// Compares with etherparse where both have a result; returns `true` if both have one.
fn agrees(frame: &[u8]) -> bool {
    let ours = match Headers::parse(frame, frame.len()) {
        Ok(ours) => ours,
        Err(_) => {
            assert!(SlicedPacket::from_ethernet(frame).is_err());
            return true;
        }
    };
    let Ok(theirs) = SlicedPacket::from_ethernet(frame) else {
        // Valid frames that etherparse refuses: a second VLAN tag, ARP of other lengths, an
        // authentication header in IPv4, and IPv6 headers out of their usual order.
        let unread = matches!(ours.network, Network::Other | Network::Arp(_));
        let ah = matches!(ours.network, Network::Ipv4(ip) if ip.protocol == 51);
        let six = matches!(ours.network, Network::Ipv6(_));
        assert!(ours.malformed.is_some() || unread || ah || six, "{ours:?} {frame:x?}");
        return false;
    };
    let link = etherparse::Ethernet2Slice::from_slice_without_fcs(frame).unwrap();
    assert_eq!((ours.source, ours.destination), (link.source(), link.destination()));
    let tags: Vec<_> = theirs.link_exts.iter().collect();
    // 0x9100 is a tag from before the standard.
    if tags.len() > 1 || ours.ethertype == 0x9100 {
        assert_eq!(ours.network, Network::Other);
        return true;
    }
    if let [LinkExtSlice::Vlan(tag)] = tags[..] {
        assert_eq!(ours.vlan.unwrap_or(0), tag.vlan_identifier().value());
        assert_eq!(ours.ethertype, tag.ether_type().0);
    }
    let (protocol, whole) = match (&theirs.net, &ours.network) {
        (Some(NetSlice::Ipv4(theirs)), Network::Ipv4(ip)) => {
            let header = theirs.header();
            assert_eq!(ip.source, header.source_addr().to_bits());
            assert_eq!(ip.destination, header.destination_addr().to_bits());
            assert_eq!((ip.protocol, ip.hops), (header.protocol().0, header.ttl()));
            assert_eq!(ip.total_bytes, header.total_len());
            (ip.protocol, !header.is_fragmenting_payload())
        }
        (Some(NetSlice::Ipv6(theirs)), Network::Ipv6(ip)) => {
            let header = theirs.header();
            assert_eq!(ip.source, header.source_addr().to_bits());
            assert_eq!(ip.destination, header.destination_addr().to_bits());
            assert_eq!(ip.total_bytes - 40, header.payload_length());
            // etherparse walks mobility headers, too.
            if ip.protocol == 135 {
                return false;
            }
            if ours.malformed.is_none() {
                assert_eq!(ip.protocol, theirs.payload().ip_number.0, "{frame:x?}");
            }
            (ip.protocol, !theirs.is_payload_fragmented())
        }
        (Some(NetSlice::Arp(theirs)), Network::Arp(arp)) => {
            assert_eq!(arp.operation, theirs.operation().0);
            assert_eq!(arp.sender_ip.to_be_bytes(), theirs.sender_protocol_addr());
            assert_eq!(arp.target_mac, theirs.target_hw_addr());
            return true;
        }
        (None, Network::Other) => return true,
        _ => {
            assert!(ours.malformed.is_some(), "{ours:?} {theirs:?} {frame:x?}");
            return false;
        }
    };
    match &theirs.transport {
        _ if ours.malformed.is_some() => return false,
        Some(TransportSlice::Udp(udp)) => {
            assert_eq!(ours.ports(), Some((udp.source_port(), udp.destination_port())));
        }
        Some(TransportSlice::Tcp(tcp)) => {
            assert_eq!(ours.ports(), Some((tcp.source_port(), tcp.destination_port())));
            assert!(matches!(ours.transport(), Transport::Tcp { header_bytes, flags, .. }
                if usize::from(header_bytes) == tcp.header_slice().len()
                    && (flags & tcp_flags::SYN != 0) == tcp.syn()));
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            if protocol == 1 && matches!(ours.network, Network::Ipv4(_)) {
                assert!(matches!(ours.transport(), Transport::Icmp { kind, code, .. }
                    if (kind, code) == (icmp.type_u8(), icmp.code_u8())));
            }
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let kind = match ours.transport() {
                Transport::Icmp { kind, .. } | Transport::Neighbour { kind, .. } => Some(kind),
                _ => None,
            };
            if matches!(ours.network, Network::Ipv6(_)) {
                assert_eq!(kind, Some(icmp.type_u8()));
            }
        }
        Some(TransportSlice::Igmp(_)) => assert_eq!(protocol, 2),
        None => assert!(!whole || !matches!(protocol, 6 | 17), "{ours:?} {frame:x?}"),
    }
    true
}

#[test]
fn etherparse_agrees_on_samples() {
    for frame in samples() {
        assert!(agrees(&frame), "{frame:x?}");
        let headers = parse(&frame);
        assert_eq!(headers.malformed, None, "{frame:x?}");
    }
}

proptest! {
    #![proptest_config(config(20_000))]

    #[test]
    fn etherparse_agrees_on_mangled_packets(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((0_usize..90, any::<u8>()), 0..4),
        cut in prop::option::weighted(0.2, 0_usize..120),
    ) {
        let samples = samples();
        let mut frame = which.get(&samples).clone();
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(cut.unwrap_or(frame.len()));
        agrees(&frame);
        plain_agrees(&frame);
        pattern_agrees(which.get(&samples).as_slice(), &frame);
    }

    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        ethertype in prop::sample::select(vec![[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0], [0, 1]]),
        copied in 0_usize..300,
    ) {
        if let Some(place) = bytes.get_mut(12..14) {
            place.copy_from_slice(&ethertype);
        }
        let copied = copied.min(bytes.len());
        if let Ok(headers) = Headers::parse(&bytes[..copied], bytes.len()) {
            let _ = headers.quoted(&bytes[..copied]);
            prop_assert!(headers.ip_end().unwrap_or(0) <= bytes.len());
            prop_assert!(headers.l4_offset().unwrap_or(0) <= bytes.len());
        }
        let _ = Headers::parse(&bytes, copied);
        let _ = Headers::parse(&bytes, usize::MAX);
    }
}
