//! Compares checksums, their verification and segmentation with implementations that share no code
//! with this crate: a loop over the words as RFC 1071 defines it, smoltcp and etherparse.

use crate::witnesses;
use crate::witnesses::{ByWords, Verified};
use etherparse::SlicedPacket;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use smoltcp::wire::checksum as smoltcp;
use towpath_packet::Headers;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{Sum, Verdict, verify};
use towpath_packet::segment::segment_into;
use towpath_packet::transport::tcp_flags::{ACK, CWR, ECE, FIN, PSH};

/// The lengths that the tests of sums cover: more than any header, and than a packet of 1500 bytes.
const MAX_BYTES: usize = 2048;
/// Offsets from a cache line's beginning.
const ALIGNMENTS: usize = 64;

/// Memory whose first byte begins a cache line.
#[repr(align(64))]
struct Aligned([u8; MAX_BYTES + ALIGNMENTS]);

/// Returns bytes of every kind that a sum may have trouble with: none set, all set so that each
/// addition carries, and mixed ones.
fn contents() -> [Box<Aligned>; 4] {
    let made = |byte: fn(usize) -> u8| Box::new(Aligned(std::array::from_fn(byte)));
    let mixed = |at: usize| (at as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0];
    [made(|_| 0), made(|_| 0xff), made(mixed), made(|at| if at % 5 == 0 { 0xff } else { at as u8 })]
}

fn sum_of(bytes: &[u8]) -> u16 {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.folded()
}

#[test]
fn every_length_at_every_alignment_sums_as_two_others_sum_it() {
    for memory in contents() {
        for start in 0..ALIGNMENTS {
            let mut by_words = ByWords::default();
            for len in 0..=MAX_BYTES {
                let bytes = &memory.0[start..start + len];
                let found = sum_of(bytes);
                assert_eq!(found, by_words.folded(), "{len} bytes at {start}");
                // smoltcp is slow without optimisation, and all else depends on the length alone.
                if start < 8 || len % 61 == start {
                    assert_eq!(found, smoltcp::data(bytes), "{len} bytes at {start}");
                }
                by_words.push(memory.0[start + len.min(MAX_BYTES - 1)]);
            }
        }
    }
}

#[test]
fn sums_in_two_pieces_carry_the_odd_byte_over() {
    let memory = &contents()[2].0;
    for len in [0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 130, 191, 1460, 1461] {
        let whole = smoltcp::data(&memory[1..=len]);
        for cut in 0..=len {
            let mut sum = Sum::default();
            sum.add(&memory[1..=cut]);
            sum.add(&memory[1 + cut..=len]);
            assert_eq!(sum.folded(), whole, "{cut} of {len}");
        }
    }
}

fn flow() -> impl Strategy<Value = Flow> {
    let addresses = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| Flow::v4().addresses(a, b)),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| Flow::v6().addresses(a, b)),
    ];
    (addresses, any::<(u16, u16)>(), prop::option::weighted(0.3, 0_u16..4095)).prop_map(
        |(flow, (source, destination), tag)| Flow { tag, ..flow.ports(source, destination) },
    )
}

/// Returns option bytes of every length that TCP has room for. All are padding, so any number is
/// well-formed.
fn options() -> impl Strategy<Value = Vec<u8>> {
    (0_usize..=10).prop_map(|words| vec![1; words * 4])
}

fn payload(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..200),
        1 => prop::collection::vec(any::<u8>(), 0..most),
        1 => (any::<u8>(), 0..most).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

/// Makes a packet of TCP, UDP or ICMP.
fn packet(flow: &Flow, kind: u8, payload: &[u8], options: &[u8]) -> Vec<u8> {
    match kind % 3 {
        0 => flow.udp(payload),
        1 => flow.tcp(&Tcp { options, ..Tcp::default() }, payload),
        _ => flow.echo(true, 7, 8, payload),
    }
}

fn verdict(frame: &[u8]) -> Verdict {
    verify(frame, &Headers::parse(frame, frame.len()).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        rng_seed: RngSeed::Fixed(0x1141),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn right_packets_are_right_for_all(
        flow in flow(), kind in any::<u8>(), payload in payload(1460), options in options(),
    ) {
        let frame = packet(&flow, kind, &payload, &options);
        prop_assert_eq!(verdict(&frame), Verdict::Right);
        prop_assert_eq!(Verified::of(&frame), Verified::ALL);
    }

    /// Changed bytes behind the fields that decide how a packet is parsed: all agree whether it is
    /// still right, as it is if the changes cancel each other out.
    #[test]
    fn changed_packets_are_wrong_for_all(
        flow in flow(), kind in any::<u8>(), payload in payload(600),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        swap in any::<bool>(),
    ) {
        let mut frame = packet(&flow, kind, &payload, &[]);
        let headers = Headers::parse(&frame, frame.len()).unwrap();
        let l4 = headers.l4_offset().unwrap();
        // Addresses, ports and payload, and the checksum itself. Not the first bytes of ICMP, which
        // say what it is, and not the lengths.
        let places: Vec<usize> = (l4 - 8..l4 + 4)
            .chain(l4 + 6..l4 + 8)
            .chain(l4 + 16..frame.len())
            .filter(|at| *at < frame.len() && !(kind % 3 == 2 && (l4..l4 + 2).contains(at)))
            .collect();
        if swap {
            // Two words change places, which the sum does not see.
            let (a, b) = (l4 - 4, l4 - 8);
            for byte in 0..2 { frame.swap(a + byte, b + byte); }
        } else {
            for (at, byte) in &changes { frame[places[at.index(places.len())]] = *byte; }
        }
        let verdict = verdict(&frame);
        let Verified { header, transport } = Verified::of(&frame);
        let unsummed = kind % 3 == 0 && frame[l4 + 6..l4 + 8] == [0, 0];
        let expected = match (header.agreed(), transport.agreed()) {
            (false, _) => Verdict::WrongHeader,
            _ if unsummed && flow.source.is_ipv4() => Verdict::NotCovered,
            (true, right) if right && !unsummed => Verdict::Right,
            _ => Verdict::WrongTransport,
        };
        prop_assert_eq!(verdict, expected);
        prop_assert!(!swap || verdict == Verdict::Right);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(0x5e67),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn segments_are_what_the_wire_would_carry(
        flow in flow(), payload in payload(40_000), options in options(),
        segment_bytes in prop_oneof![88_u16..200, 536_u16..1461, 1460_u16..9000],
        sequence in any::<u32>(), flags in any::<u8>(),
    ) {
        let flags = ACK | flags & (FIN | PSH | CWR | ECE);
        let tcp = Tcp { sequence, flags, options: &options, ..Tcp::default() };
        let (large, meta) = flow.tcp_large(&tcp, &payload, segment_bytes);
        let mut frames = Vec::new();
        let made = segment_into(&large, &meta, &mut Vec::new(), |one| frames.push(one.to_vec()));
        let expected = payload.len().div_ceil(segment_bytes.into()).max(1);
        prop_assert_eq!(made, Ok(expected));
        prop_assert_eq!(frames.len(), expected);

        let header_bytes = large.len() - payload.len();
        let first_id = witnesses::id(&SlicedPacket::from_ethernet(&large).unwrap());
        let mut carried = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let (is_first, is_last) = (index == 0, index + 1 == frames.len());
            // The checksums of IP and TCP, by all that know how.
            prop_assert_eq!(Verified::of(frame), Verified::ALL);
            prop_assert_eq!(verdict(frame), Verdict::Right);
            let parsed = SlicedPacket::from_ethernet(frame).unwrap();
            let tcp = witnesses::tcp(&parsed);
            // Lengths: of the frame, and as IP states it.
            let len = frame.len() - header_bytes;
            prop_assert!(is_last || len == usize::from(segment_bytes));
            prop_assert!(len > 0 || payload.is_empty());
            prop_assert_eq!(witnesses::ip_payload_bytes(&parsed), tcp.slice().len());
            prop_assert_eq!(tcp.payload().len(), len);
            // The sequence number says where the payload belongs.
            let at = sequence.wrapping_add(carried.len() as u32);
            prop_assert_eq!(tcp.sequence_number(), at);
            prop_assert_eq!(tcp.acknowledgment_number(), 2000);
            prop_assert_eq!(tcp.options(), &options[..]);
            carried.extend_from_slice(tcp.payload());
            // FIN and PSH belong to the last byte, CWR to the first segment, ECE to all (RFC 3168).
            prop_assert_eq!(tcp.fin(), is_last && flags & FIN != 0);
            prop_assert_eq!(tcp.psh(), is_last && flags & PSH != 0);
            prop_assert_eq!(tcp.cwr(), is_first && flags & CWR != 0);
            prop_assert_eq!(tcp.ece(), flags & ECE != 0);
            prop_assert!(tcp.ack() && !tcp.syn() && !tcp.rst() && !tcp.urg());
            // IPv4's identification counts on, since a fragment of one segment must not be joined
            // with one of another (RFC 6864).
            let id = first_id.map(|id| id.wrapping_add(index as u16));
            prop_assert_eq!(witnesses::id(&parsed), id);
            // All else is as it was: link addresses, tag, hop limit, addresses, ports.
            let headers = Headers::parse(frame, frame.len()).unwrap();
            let large = Headers::parse(&large, large.len()).unwrap();
            prop_assert_eq!(&frame[..usize::from(headers.l3_offset)],
                &frames[0][..usize::from(headers.l3_offset)]);
            prop_assert_eq!(headers.ports(), large.ports());
        }
        prop_assert_eq!(carried, payload);
    }
}
