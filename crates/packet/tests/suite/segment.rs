//! Compares segmentation with frames built one by one and with etherparse, and tests refusals.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{Verdict, complete, verify};
use towpath_packet::offload::{MAX_SEGMENTS, MIN_SEGMENT_BYTES, OffloadError, check};
use towpath_packet::segment::{
    CompletionError, MAX_HEADER_BYTES, Segmenter, complete_into, segment_into,
};
use towpath_packet::transport::tcp_flags::{ACK, CWR, FIN, PSH, RST, SYN, URG};
use towpath_packet::{Checksum, Headers, Meta, Segmentation, SegmentationKind};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256) as u8).collect()
}

/// Returns the segments that a stack without offload would send.
fn oracle(flow: &Flow, tcp: &Tcp<'_>, payload: &[u8], segment_bytes: usize) -> Vec<Vec<u8>> {
    let pieces: Vec<&[u8]> =
        if payload.is_empty() { vec![&[]] } else { payload.chunks(segment_bytes).collect() };
    let mut frames = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let mut flags = tcp.flags;
        if index > 0 {
            flags &= !CWR;
        }
        if index + 1 < pieces.len() {
            flags &= !(FIN | PSH);
        }
        let sequence = tcp.sequence.wrapping_add((index * segment_bytes) as u32);
        let mut frame = flow.tcp(&Tcp { sequence, flags, ..*tcp }, piece);
        if flow.source.is_ipv4() {
            let l3 = if flow.tag.is_some() { 18 } else { 14 };
            let header = &mut frame[l3..l3 + 20];
            header[4..6].copy_from_slice(&(1 + index as u16).to_be_bytes());
            header[10..12].fill(0);
            let mut sum = 0_u32;
            for pair in header.chunks(2) {
                sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
            }
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        frames.push(frame);
    }
    frames
}

fn segments(packet: &[u8], meta: &Meta) -> Vec<Vec<u8>> {
    let mut scratch = Vec::new();
    let mut frames = Vec::new();
    let made = segment_into(packet, meta, &mut scratch, |frame| frames.push(frame.to_vec()));
    assert_eq!(made, Ok(frames.len()));
    frames
}

fn etherparse_finds_right(frame: &[u8]) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("{sliced:?}") };
    let sum = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            tcp.calc_checksum_ipv4(header.source(), header.destination()).unwrap()
        }
        Some(NetSlice::Ipv6(ip)) => {
            tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(tcp.checksum(), sum);
}

#[test]
fn segments_of_every_length_match_the_oracle() {
    let options = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    for (number, flow) in
        [Flow::v4(), Flow::v6(), Flow::v4().vlan(0x2005), Flow::v6().vlan(5)].iter().enumerate()
    {
        for len in 0..700 {
            let payload = pattern(len);
            let tcp = Tcp {
                flags: ACK | PSH | FIN | CWR,
                sequence: 0xffff_ff00,
                options: &options[..len % 4 * 4],
                ..Tcp::default()
            };
            let segment_bytes = 88 + (len + number) as u16 % 90;
            let (packet, meta) = flow.tcp_large(&tcp, &payload, segment_bytes);
            let expected = oracle(flow, &tcp, &payload, segment_bytes.into());
            let found = segments(&packet, &meta);
            assert_eq!(found, expected, "{flow:?} {len} {segment_bytes}");
            found.iter().for_each(|frame| etherparse_finds_right(frame));
        }
    }
}

/// Segments a large packet as a device does. The device gets the headers of [`Segmenter::for_device`], fills in
/// the lengths, and adds the TCP length and the segment to the sum in the checksum field.
fn as_a_device(packet: &[u8], meta: &Meta) -> Vec<Vec<u8>> {
    let segmenter = Segmenter::new(packet, packet.len(), meta).unwrap();
    let mut header = [0; MAX_HEADER_BYTES];
    let at = segmenter.for_device(&mut header);
    let segment_bytes = usize::from(meta.segmentation.unwrap().segment_bytes);
    let payload = &packet[at.header_bytes..][..at.payload_bytes];
    let count = payload.len().div_ceil(segment_bytes).max(1);
    let ones_complement = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|pair| {
            u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
        });
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        (sum & 0xffff) + (sum >> 16)
    };
    let segment = |index: usize| {
        let piece = &payload[index * segment_bytes..payload.len().min((index + 1) * segment_bytes)];
        let mut frame = [&header[..at.header_bytes], piece].concat();
        let put = |frame: &mut Vec<u8>, place: usize, value: u32| {
            frame[place..place + 2].copy_from_slice(&(value as u16).to_be_bytes());
        };
        let from_l3 = (frame.len() - at.l3) as u32;
        if frame[at.l3] >> 4 == 4 {
            put(&mut frame, at.l3 + 2, from_l3);
            let id = u32::from(u16::from_be_bytes([frame[at.l3 + 4], frame[at.l3 + 5]]));
            put(&mut frame, at.l3 + 4, id + index as u32);
            let sum = !ones_complement(&frame[at.l3..at.l4]);
            put(&mut frame, at.l3 + 10, sum);
        } else {
            put(&mut frame, at.l3 + 4, from_l3 - 40);
        }
        let sequence = u32::from_be_bytes(frame[at.l4 + 4..at.l4 + 8].try_into().unwrap());
        let sequence = sequence.wrapping_add((index * segment_bytes) as u32);
        frame[at.l4 + 4..at.l4 + 8].copy_from_slice(&sequence.to_be_bytes());
        if index + 1 < count {
            frame[at.l4 + 13] &= !(FIN | PSH);
        }
        let sum = ones_complement(&frame[at.l4..]) + (frame.len() - at.l4) as u32;
        let sum = !((sum & 0xffff) + (sum >> 16));
        put(&mut frame, at.l4 + 16, sum);
        frame
    };
    (0..count).map(segment).collect()
}

#[test]
fn a_device_makes_the_same_segments() {
    for flow in [Flow::v4(), Flow::v6(), Flow::v4().vlan(0x2005), Flow::v6().vlan(5)] {
        for len in (0..9000).step_by(617) {
            let payload = pattern(len);
            let tcp = Tcp { flags: ACK | PSH | FIN, sequence: 0xffff_f000, ..Tcp::default() };
            let (packet, meta) = flow.tcp_large(&tcp, &payload, 1448);
            let found = as_a_device(&packet, &meta);
            assert_eq!(found, oracle(&flow, &tcp, &payload, 1448), "{flow:?} {len}");
        }
    }
}

#[test]
fn the_largest_packets() {
    for (flow, len) in [(Flow::v4(), 65_535 - 40), (Flow::v6(), 65_535 - 60)] {
        for segment_bytes in [MIN_SEGMENT_BYTES, 1440, 1460, 8948, 65_535] {
            let payload = pattern(len);
            let tcp = Tcp { flags: ACK | PSH, ..Tcp::default() };
            let (packet, meta) = flow.tcp_large(&tcp, &payload, segment_bytes);
            let found = segments(&packet, &meta);
            assert!(found.len() <= MAX_SEGMENTS);
            assert_eq!(found, oracle(&flow, &tcp, &payload, segment_bytes.into()));
        }
    }
}

#[test]
fn extension_headers_are_repeated() {
    let tcp = Flow::v6().tcp(&Tcp::default(), &pattern(1000));
    let mut inner = vec![6, 0, 1, 4, 0, 0, 0, 0];
    inner.extend_from_slice(&tcp[54..]);
    let packet = Flow::v6().ip(60, &inner);
    let meta = Meta {
        checksum: Checksum::Partial { start: 62, offset: 16 },
        segmentation: Some(Segmentation {
            kind: SegmentationKind::Tcp6,
            segment_bytes: 300,
            header_bytes: 0,
            ecn: false,
        }),
    };
    let found = segments(&packet, &meta);
    assert_eq!(found.len(), 4);
    for frame in &found {
        assert_eq!(&frame[54..62], &inner[..8]);
        etherparse_finds_right(frame);
    }
}

#[test]
fn payload_in_pieces_headers_alone_in_the_prefix() {
    let payload = pattern(5001);
    let tcp = Tcp::default();
    let (packet, meta) = Flow::v4().tcp_large(&tcp, &payload, 1001);
    let expected = segments(&packet, &meta);
    let mut segmenter = Segmenter::new(&packet[..256], packet.len(), &meta).unwrap();
    assert_eq!((segmenter.remaining(), segmenter.frame_bytes()), (5, 54 + 1001));
    let mut header = [0xee; MAX_HEADER_BYTES];
    for (index, want) in expected.iter().enumerate() {
        assert_eq!(segmenter.remaining(), 5 - index);
        let mut segment = segmenter.next(&mut header).unwrap();
        let mut frame = header[..segment.header_bytes()].to_vec();
        let bytes = &packet[segment.payload.clone()];

        // A device completes a partial checksum to the same frame.
        let (header_bytes, meta) = segment.clone().leave_partial(&mut header);
        let mut left = [&header[..header_bytes], bytes].concat();
        let Checksum::Partial { start, offset } = meta.checksum else { panic!("{meta:?}") };
        let headers = Headers::parse(&left, left.len()).unwrap();
        assert_eq!(check(&meta, &headers, left.len()), Ok(()));
        complete(&mut left, start, offset).unwrap();
        assert_eq!(&left, want);

        for piece in bytes.chunks(77) {
            segment.sum.add(piece);
        }
        let header_bytes = segment.complete(&mut header);
        frame.clear();
        frame.extend_from_slice(&header[..header_bytes]);
        frame.extend_from_slice(bytes);
        assert_eq!(&frame, want);
    }
    assert!(segmenter.next(&mut header).is_none());
    assert_eq!(segmenter.remaining(), 0);
}

#[test]
fn padding_is_no_payload() {
    let (mut packet, meta) = Flow::v4().tcp_large(&Tcp::default(), b"abc", 100);
    packet.resize(60, 0);
    let found = segments(&packet, &meta);
    assert_eq!(found, oracle(&Flow::v4(), &Tcp::default(), b"abc", 100));
}

#[test]
fn complete_into_completes_segments_and_checksums() {
    let flow = Flow::v6();
    let mut scratch = Vec::new();
    let mut all = |packet: &[u8], meta: &Meta| {
        let mut frames = Vec::new();
        complete_into(packet, meta, &mut scratch, |frame| frames.push(frame.to_vec()))
            .map(|made| (made, frames))
    };
    let want = flow.udp(b"payload");
    assert_eq!(all(&want, &Meta::FULL), Ok((1, vec![want.clone()])));
    let (packet, meta) = flow.udp_partial(b"payload");
    assert_eq!(all(&packet, &meta), Ok((1, vec![want])));
    let (packet, meta) = flow.tcp_large(&Tcp::default(), &pattern(250), 100);
    assert_eq!(all(&packet, &meta).unwrap().0, 3);
    let outside =
        Meta { checksum: Checksum::Partial { start: 60, offset: 60 }, segmentation: None };
    assert!(matches!(all(&packet[..100], &outside), Err(CompletionError::Outside(_))));
}

/// Refuses bytes after a large packet's IP packet, which would be copied and never sent.
#[test]
fn a_large_packet_has_the_length_that_its_ip_header_states() {
    for flow in [Flow::v4(), Flow::v6(), Flow::v6().vlan(7)] {
        let (packet, meta) = flow.tcp_large(&Tcp::default(), &pattern(3000), 1000);
        let checked = |packet: &[u8]| {
            check(&meta, &Headers::parse(packet, packet.len()).unwrap(), packet.len())
        };
        assert_eq!(checked(&packet), Ok(()));
        for more in [1, 100, 60_000, 12_500_000] {
            let longer = [&packet[..], &vec![0; more]].concat();
            assert_eq!(checked(&longer), Err(OffloadError::Length), "{flow:?} {more}");
        }
        // A smaller length in the header: IPv4's total length, IPv6's payload length.
        let mut less = packet.clone();
        let l3 = usize::from(Headers::parse(&packet, packet.len()).unwrap().l3_offset);
        let at = if flow.source.is_ipv4() { l3 + 2 } else { l3 + 4 };
        less[at] -= 1;
        assert_eq!(checked(&less), Err(OffloadError::Length), "{flow:?}");
        // A length of 0, as some stacks write it beyond 64 KiB.
        less[at..at + 2].fill(0);
        assert_eq!(checked(&less), Err(OffloadError::Headers), "{flow:?}");
    }
}

#[test]
fn offloads_that_contradict_the_headers_are_refused() {
    let flow = Flow::v4();
    let (packet, meta) = flow.tcp_large(&Tcp::default(), &pattern(3000), 1000);
    let segmentation = meta.segmentation.unwrap();
    let partial = |start, offset| Checksum::Partial { start, offset };
    let with = |change: fn(&mut Segmentation)| {
        let mut segmentation = segmentation;
        change(&mut segmentation);
        Meta { segmentation: Some(segmentation), ..meta }
    };
    let flagged = |flags| flow.tcp_large(&Tcp { flags, ..Tcp::default() }, &pattern(3000), 1000).0;
    let mut fragment = packet.clone();
    fragment[20] = 0x20;
    let mut short = packet.clone();
    short[46] = 0x40;
    for (packet, meta, expected) in [
        (&packet, Meta { segmentation: None, ..meta }, OffloadError::NotLarge),
        (&packet, Meta { checksum: Checksum::Full, ..meta }, OffloadError::NotPartial),
        (&packet, Meta { checksum: Checksum::Verified, ..meta }, OffloadError::NotPartial),
        // Over the source address, the ports, the IP header's checksum, and outside.
        (&packet, Meta { checksum: partial(26, 0), ..meta }, OffloadError::ChecksumPlace),
        (&packet, Meta { checksum: partial(34, 0), ..meta }, OffloadError::ChecksumPlace),
        (&packet, Meta { checksum: partial(14, 10), ..meta }, OffloadError::ChecksumPlace),
        (&packet, Meta { checksum: partial(34, 6), ..meta }, OffloadError::ChecksumPlace),
        (&packet, Meta { checksum: partial(0xffff, 16), ..meta }, OffloadError::ChecksumPlace),
        (&packet, with(|s| s.kind = SegmentationKind::Tcp6), OffloadError::Kind),
        (&packet, with(|s| s.header_bytes = 53), OffloadError::HeaderBytes),
        (&packet, with(|s| s.header_bytes = 0xffff), OffloadError::HeaderBytes),
        (&packet, with(|s| s.segment_bytes = 0), OffloadError::SegmentBytes),
        (&packet, with(|s| s.segment_bytes = 87), OffloadError::SegmentBytes),
        (&flagged(SYN), meta, OffloadError::Flags),
        (&flagged(ACK | RST), meta, OffloadError::Flags),
        (&flagged(ACK | URG), meta, OffloadError::Flags),
        (&fragment, meta, OffloadError::Headers),
        (&short, meta, OffloadError::Headers),
        (&flow.udp(&pattern(3000)), meta, OffloadError::ChecksumPlace),
        (&flow.who_has(), meta, OffloadError::Protocol),
        (&packet[..40].to_vec(), meta, OffloadError::Headers),
        (&Vec::new(), meta, OffloadError::Headers),
    ] {
        let found = Segmenter::new(packet, packet.len(), &meta).map(|_| ());
        assert_eq!(found, Err(expected), "{meta:?}");
        if let Ok(headers) = Headers::parse(packet, packet.len())
            && meta.segmentation.is_some()
        {
            assert_eq!(check(&meta, &headers, packet.len()), Err(expected), "{meta:?}");
        }
    }
    assert!(Segmenter::new(&packet, packet.len(), &with(|s| s.header_bytes = 0)).is_ok());
    // Headers longer than the copied prefix: 200 bytes of options before TCP's header.
    let mut inner = vec![6, 24];
    inner.resize(200, 0);
    inner.extend_from_slice(&Flow::v6().tcp(&Tcp::default(), &pattern(3000))[54..]);
    let long = Flow::v6().ip(60, &inner);
    let mut six = with(|s| (s.kind, s.header_bytes) = (SegmentationKind::Tcp6, 0));
    six.checksum = partial(254, 16);
    let found = Segmenter::new(&long, long.len(), &six).map(|_| ());
    assert_eq!(found, Err(OffloadError::HeaderBytes));
    // The flags matter only where segments would repeat them.
    let (one, meta) = flow.tcp_large(&Tcp { flags: SYN, ..Tcp::default() }, &[], 1000);
    assert_eq!(segments(&one, &meta).len(), 1);
}

#[test]
fn checksum_positions_must_match_the_protocol() {
    let mut first_fragment = Flow::v4().udp(&[7; 16]);
    first_fragment[20] = 0x20;
    for (frame, good) in [
        (Flow::v4().udp(b"x"), Some((34, 6))),
        (Flow::v6().udp(b"x"), Some((54, 6))),
        (Flow::v4().tcp(&Tcp::default(), b"x"), Some((34, 16))),
        (Flow::v6().vlan(1).tcp(&Tcp::default(), b"x"), Some((58, 16))),
        (Flow::v6().echo(true, 1, 1, b"x"), Some((54, 2))),
        (Flow::v6().who_has(), Some((54, 2))),
        (Flow::v4().echo(true, 1, 1, b"x"), None),
        (Flow::v4().who_has(), None),
        (Flow::v4().ip(132, &[0; 40]), None),
        (Flow::v4().ip(58, &[0; 40]), None),
        (first_fragment, None),
    ] {
        let headers = Headers::parse(&frame, frame.len()).unwrap();
        assert_eq!(check(&Meta::FULL, &headers, frame.len()), Ok(()));
        for start in 0..90 {
            for offset in 0..90 {
                let checksum = Checksum::Partial { start, offset };
                let found = check(&Meta { checksum, segmentation: None }, &headers, frame.len());
                assert_eq!(found.is_ok(), Some((start, offset)) == good, "{start} {offset}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5000,
        rng_seed: RngSeed::Fixed(0x6501),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hostile_packets_and_words_never_panic(
        v6 in any::<bool>(),
        len in 0_usize..2000,
        changes in prop::collection::vec((0_usize..90, any::<u8>()), 0..4),
        fields in (0_u16..130, 0_u16..40, any::<u16>(), 0_u16..90, any::<bool>()),
        keep in any::<[bool; 4]>(),
        cut in prop::option::weighted(0.2, 0_usize..200),
    ) {
        let flow = if v6 { Flow::v6() } else { Flow::v4() };
        let (mut packet, meta) = flow.tcp_large(&Tcp::default(), &pattern(len), 500);
        for (at, value) in changes {
            packet[at % 54] = value;
        }
        packet.truncate(cut.unwrap_or(packet.len()));
        let Checksum::Partial { start, offset } = meta.checksum else { panic!("{meta:?}") };
        let mut segmentation = meta.segmentation.unwrap();
        if keep[2] { segmentation.segment_bytes = fields.2; }
        if keep[3] { segmentation.header_bytes = fields.3; }
        if fields.4 { segmentation.kind = SegmentationKind::Tcp4; }
        let start = if keep[0] { fields.0 } else { start };
        let offset = if keep[1] { fields.1 } else { offset };
        let meta = Meta {
            checksum: Checksum::Partial { start, offset },
            segmentation: Some(segmentation),
        };
        let mut bytes = 0;
        let mut scratch = Vec::new();
        let made = segment_into(&packet, &meta, &mut scratch, |frame| {
            let headers = Headers::parse(frame, frame.len()).unwrap();
            // Each segment's checksums are right, also that of its IPv4 header.
            assert_eq!(verify(frame, &headers), Verdict::Right, "{frame:x?}");
            bytes += frame.len();
        });
        if let Ok(made) = made {
            prop_assert!(made <= MAX_SEGMENTS);
            prop_assert!(bytes <= packet.len() + made * MAX_HEADER_BYTES);
        }
        let plain = Meta { segmentation: None, ..meta };
        let _ = complete_into(&packet, &plain, &mut scratch, |_| ());
    }
}
