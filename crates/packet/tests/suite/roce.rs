//! Compares RoCEv2 frames with those that scapy makes, and with each other.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use towpath_packet::build::Flow;
use towpath_packet::roce::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(0x4791),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

// Frames that scapy 2.8.0 made (`scapy.contrib.roce`), whose invariant CRC is its own. Those over
// IPv4 have no identification and must not be fragmented; all have UDP checksum 0.
const SEND4: &str = "\
    020000000002020000000001080045000034000040004011b6b5c0000201c0000202c12312b7002000000430\
    ffff0000001180abcdef68656c6c6f000000d734ee62";
const WRITE4_ECN: &str = "\
    020000000002020000000001080045020048000040004011b69fc0000201c0000202c12312b7003400000b90\
    800100abc123800000011122334455667788cafe000100000007deadbeef7061796c6f616400999c1349";
const ACK4: &str = "\
    020000000002020000000001080045000030000040004011b6b9c0000201c0000202c12312b7001c00001100\
    ffff0000000500ffffff1f001234287e3736";
const CNP4: &str = "\
    02000000000202000000000108004500003c000040004011b6adc0000201c0000202c12312b7002800008100\
    ffff400000110000000000000000000000000000000000000000e3290a34";
const DATAGRAM4: &str = "\
    020000000002020000000001080045000134000040004011b5b5c0000201c0000202c12312b7012000006400\
    ffff00000001000000028001000000000001000102030405060708090a0b0c0d0e0f10111213141516171819\
    1a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445\
    464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f7071\
    72737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d\
    9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9\
    cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5\
    f6f7f8f9fafbfcfdfeff49127dc8";
const CHANGED4: &str = "\
    0200000000020200000000010800456b0034000040000311f34ac0000201c0000202c12312b7002000000430\
    ffff8000001180abcdef68656c6c6f000000d734ee62";
const SEND6: &str = "\
    02000000000202000000000186dd600000000020114020010db800000000000000000000000120010db80000\
    00000000000000000002c12312b7002000000430ffff0000001180abcdef68656c6c6f0000000354d7a1";
const READ6_CE: &str = "\
    02000000000202000000000186dd603123450028110520010db800000000000000000000000120010db80000\
    00000000000000000002c12312b7002800000c00ffff00000011800000091122334455667788cafe00010000\
    00071a450e26";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn path(v6: bool, ecn: bool) -> Path {
    let flow = if v6 { Flow::v6() } else { Flow::v4() };
    Path {
        source_mac: flow.source_mac,
        destination_mac: flow.destination_mac,
        source: flow.source,
        destination: flow.destination,
        source_port: 0xc123,
        ecn,
    }
}

fn build(path: &Path, bth: &Bth, extension: &Extension, payload: &[u8]) -> Option<Vec<u8>> {
    // Neither the pad nor the CRC is 0 before.
    let mut frame = vec![0xaa; frame_bytes(path, bth.opcode, payload.len())];
    let at = write_headers(path, bth, extension, payload.len(), &mut frame)?;
    frame[at..at + payload.len()].copy_from_slice(payload);
    assert!(seal(&mut frame));
    Some(frame)
}

#[test]
fn frames_are_those_of_scapy() {
    let hello = Bth { ack_request: true, ..Bth::new(Opcode::SendOnly, 0x11, 0xab_cdef) };
    let reth = Reth { address: 0x1122_3344_5566_7788, key: 0xcafe_0001, len: 7 };
    let none = Extension::default();
    let write = Bth {
        solicited: true,
        ack_request: true,
        pkey: 0x8001,
        ..Bth::new(Opcode::WriteOnlyImmediate, 0xab_c123, 1)
    };
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0x1234 };
    let deth = Deth { qkey: GENERAL_SERVICES_QKEY, source: GENERAL_SERVICES_QP };
    let cnp = Bth { becn: true, ..Bth::new(Opcode::CongestionNotification, 0x11, 0) };
    let all: Vec<u8> = (0..=255).collect();
    for (theirs, path, bth, extension, payload) in [
        (SEND4, path(false, false), hello, none, &b"hello"[..]),
        (SEND6, path(true, false), hello, none, b"hello"),
        (
            WRITE4_ECN,
            path(false, true),
            write,
            Extension { reth: Some(reth), immediate: Some(0xdead_beef), ..none },
            b"payload",
        ),
        (
            ACK4,
            path(false, false),
            Bth::new(Opcode::Acknowledge, 5, 0xff_ffff),
            Extension { aeth: Some(aeth), ..none },
            b"",
        ),
        (CNP4, path(false, false), cnp, none, b""),
        (
            DATAGRAM4,
            path(false, false),
            Bth::new(Opcode::DatagramSendOnly, GENERAL_SERVICES_QP, 2),
            Extension { deth: Some(deth), ..none },
            &all,
        ),
    ] {
        let theirs = bytes(theirs);
        assert_eq!(build(&path, &bth, &extension, payload).unwrap(), theirs, "{bth:?}");
        let received = read_frame(&theirs).unwrap();
        let segment = Segment { bth, extension, payload };
        assert_eq!(received, Received { path, congestion: false, segment });
    }
}

#[test]
fn what_changes_on_the_way_is_read_and_breaks_no_crc() {
    let changed = bytes(CHANGED4);
    let received = read_frame(&changed).unwrap();
    assert!(received.congestion && received.path.ecn && received.segment.bth.fecn);
    assert_eq!(received.segment.payload, b"hello");
    assert_eq!(bytes(SEND4)[62..], changed[62..], "the same CRC");

    let frame = bytes(READ6_CE);
    let received = read_frame(&frame).unwrap();
    assert!(received.congestion && received.path.ecn);
    assert_eq!(received.segment.bth.opcode, Opcode::ReadRequest);
    assert_eq!(received.segment.extension.reth.unwrap().key, 0xcafe_0001);

    // ECT(1) states the same as ECT(0).
    let mut frame = bytes(SEND4);
    frame[15] = 1;
    let received = read_frame(&frame).unwrap();
    assert!(received.path.ecn && !received.congestion);
}

#[test]
fn padding_of_ethernet_does_not_count() {
    let mut frame = bytes(ACK4);
    let len = frame.len();
    frame.extend_from_slice(&[0xee; 9]);
    assert_eq!(read_frame(&frame), read_frame(&frame[..len]));
    assert_eq!(ip_packet(&frame), Some(&frame[14..len]));
    assert!(has_good_icrc(&frame[14..len]) && !has_good_icrc(&frame[14..]));
    assert!(!seal(&mut frame), "the CRC would be behind the packet");
}

/// Returns what `read_frame` says of a frame after a change, with a CRC that fits if possible.
fn changed(hex: &str, change: impl FnOnce(&mut Vec<u8>)) -> Option<RoceError> {
    let mut frame = bytes(hex);
    change(&mut frame);
    seal(&mut frame);
    read_frame(&frame).err()
}

#[test]
fn each_defect_is_named() {
    assert_eq!(changed(SEND4, |_| ()), None);
    assert_eq!(changed(SEND4, |frame| frame.truncate(33)), Some(RoceError::Short));
    assert_eq!(changed(SEND4, |frame| frame.truncate(13)), Some(RoceError::Short));
    assert_eq!(changed(SEND6, |frame| frame.truncate(53)), Some(RoceError::Short));
    assert_eq!(changed(SEND4, |frame| frame[12] = 9), Some(RoceError::Ethertype(0x0900)));
    assert_eq!(changed(SEND4, |frame| frame[14] = 0x65), Some(RoceError::IpHeader));
    assert_eq!(changed(SEND4, |frame| frame[14] = 0x46), Some(RoceError::IpHeader));
    assert_eq!(changed(SEND6, |frame| frame[14] = 0x40), Some(RoceError::IpHeader));
    assert_eq!(changed(SEND4, |frame| frame[17] += 1), Some(RoceError::IpLength));
    assert_eq!(changed(SEND4, |frame| frame[17] = 19), Some(RoceError::IpLength));
    assert_eq!(changed(SEND6, |frame| frame[19] += 1), Some(RoceError::IpLength));
    assert_eq!(changed(SEND4, |frame| frame[17] = 27), Some(RoceError::Short));
    assert_eq!(changed(SEND4, |frame| frame[20] |= 0x20), Some(RoceError::Fragment));
    assert_eq!(changed(SEND4, |frame| frame[21] = 1), Some(RoceError::Fragment));
    assert_eq!(changed(SEND6, |frame| frame[20] = 44), Some(RoceError::Fragment));
    assert_eq!(changed(SEND4, |frame| frame[23] = 6), Some(RoceError::Protocol(6)));
    assert_eq!(changed(SEND6, |frame| frame[20] = 0), Some(RoceError::Protocol(0)));
    assert_eq!(changed(SEND4, |frame| frame[37] -= 1), Some(RoceError::Port(4790)));
    assert_eq!(changed(SEND4, |frame| frame[39] -= 4), Some(RoceError::UdpLength));
    assert_eq!(changed(SEND4, |frame| frame[42] = 0x15), Some(RoceError::Opcode(0x15)));
    assert_eq!(changed(SEND4, |frame| frame[43] |= 2), Some(RoceError::Version(2)));
    assert_eq!(changed(ACK4, |frame| frame[43] |= 0x10), Some(RoceError::Pad));
    // A READ's request is longer than this packet.
    assert_eq!(changed(SEND4, |frame| frame[42] = 0x0c), Some(RoceError::Short));
    let crc = |at: usize| {
        let mut frame = bytes(SEND4);
        frame[at] ^= 1;
        read_frame(&frame).err()
    };
    assert_eq!([crc(45), crc(54), crc(60), crc(63)], [Some(RoceError::Icrc); 4]);
}

#[test]
fn a_payload_that_ends_at_no_multiple_of_4_bytes_has_a_bad_pad() {
    let frame = bytes(SEND4);
    assert!(Segment::read(&frame[42..]).is_ok());
    assert_eq!(Segment::read(&frame[42..65]), Err(RoceError::Pad));
    assert_eq!(Segment::read(&frame[42..57]), Err(RoceError::Short));
    assert_eq!(Segment::read(&frame[42..58]), Err(RoceError::Pad));
    assert_eq!(Segment::read(&[]), Err(RoceError::Short));
}

fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..=255).filter_map(Opcode::from_number)
}

#[test]
fn opcodes_have_their_numbers_and_lengths() {
    assert_eq!(opcodes().count(), 26);
    for number in 0..=255 {
        assert!(Opcode::from_number(number).is_none_or(|opcode| opcode as u8 == number));
    }
    let bytes: Vec<usize> = opcodes().map(Opcode::extension_bytes).collect();
    let (send, write, read) = ([0, 0, 0, 4, 0, 4], [16, 0, 0, 4, 16, 20], [16, 4, 0, 4, 4]);
    let rest = [4, 12, 28, 28, 4, 4, 8, 12, 16];
    assert_eq!(bytes, [&send[..], &write, &read, &rest].concat());
    assert_eq!(bytes.iter().max(), Some(&MAX_EXTENSION_BYTES));
    assert_eq!(MAX_FRAME_HEADER_BYTES, 102);
}

#[test]
fn what_cannot_be_written_is_refused() {
    let mut to = [0; 256];
    let write = |bth: &Bth, extension: &Extension, payload, to: &mut [u8]| {
        write_headers(&path(false, false), bth, extension, payload, to)
    };
    let none = Extension::default();
    let fits = |opcode, extension: &Extension| {
        write(&Bth::new(opcode, 1, 1), extension, 0, &mut [0; 256]).is_some()
    };
    for opcode in opcodes() {
        let needs = opcode.extension_bytes() != 0 && opcode != Opcode::CongestionNotification;
        assert_eq!(fits(opcode, &none), !needs, "{opcode:?}");
    }
    let send = Bth::new(Opcode::SendOnly, 1, 1);
    assert_eq!(write(&send, &none, 0, &mut to[..54]), Some(54));
    for short in 0..54 {
        assert_eq!(write(&send, &none, 0, &mut to[..short]), None);
    }
    // 20 bytes of IP, 8 of UDP, 12 and 4 of InfiniBand, and the pad make 65 535 bytes at most.
    assert_eq!(write(&send, &none, 65_488, &mut to), Some(54));
    assert_eq!(write(&send, &none, 65_489, &mut to), None);
    assert_eq!(write(&send, &none, usize::MAX, &mut to), None);
    let mixed = Path { source: path(true, false).source, ..path(false, false) };
    assert_eq!(write_headers(&mixed, &send, &none, 0, &mut to), None);
    for short in 0..58 {
        assert!(!seal(&mut bytes(SEND4)[..short]));
    }
}

#[test]
fn syndromes_have_their_numbers() {
    for byte in 0..=255 {
        let syndrome = Syndrome::from_u8(byte);
        assert_eq!(syndrome.to_u8(), byte);
        assert_eq!(matches!(syndrome, Syndrome::Other(_)), byte > 0x64 || byte >> 5 == 2);
    }
    assert_eq!(Syndrome::from_u8(0x2e), Syndrome::ReceiverNotReady { timer: 14 });
    assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::SequenceError));
    assert_eq!(Syndrome::from_u8(0x62), Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!(Syndrome::Ack { credits: 0xff }.to_u8(), 31);
}

/// Returns `true` for a bit of a frame that the CRC does not cover, or that may make it another one
/// of another length.
fn is_masked(v6: bool, at: usize) -> bool {
    let (ip, bth) = if v6 { (14, 62) } else { (14, 42) };
    let ip_fields: &[usize] = if v6 { &[1, 2, 3, 7] } else { &[1, 8, 10, 11] };
    at < ip
        || ip_fields.contains(&(at.wrapping_sub(ip)))
        || (bth - 2..bth).contains(&at)
        || at == bth + 4
        || v6 && at == ip
}

fn any_extension() -> impl Strategy<Value = Extension> {
    let numbers = (any::<u64>(), any::<[u32; 5]>(), any::<u8>());
    numbers.prop_map(|(address, [key, len, immediate, qkey, other], syndrome)| Extension {
        reth: Some(Reth { address, key, len }),
        aeth: Some(Aeth { syndrome: Syndrome::from_u8(syndrome), msn: other & 0xff_ffff }),
        immediate: Some(immediate),
        deth: Some(Deth { qkey, source: other >> 8 }),
    })
}

fn any_bth() -> impl Strategy<Value = Bth> {
    let opcodes: Vec<Opcode> = opcodes()
        .filter(|opcode| !opcode.has_atomic() && !opcode.has_invalidate())
        .filter(|opcode| *opcode != Opcode::AtomicAcknowledge)
        .collect();
    let numbers = (any::<u16>(), 0_u32..1 << 24, 0_u32..1 << 24, any::<[bool; 4]>());
    (prop::sample::select(opcodes), numbers).prop_map(|(opcode, numbers)| {
        let (pkey, destination, psn, [solicited, ack_request, fecn, becn]) = numbers;
        Bth { opcode, solicited, pkey, destination, ack_request, psn, fecn, becn }
    })
}

fn any_path() -> impl Strategy<Value = Path> {
    (any::<[[u8; 6]; 2]>(), any::<[u128; 2]>(), any::<[bool; 2]>(), any::<u16>()).prop_map(
        |([source_mac, destination_mac], addresses, [v6, ecn], source_port)| {
            let [source, destination] = addresses.map(|bits| match v6 {
                true => std::net::Ipv6Addr::from(bits).into(),
                false => std::net::Ipv4Addr::from(bits as u32).into(),
            });
            Path { source_mac, destination_mac, source, destination, source_port, ecn }
        },
    )
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn what_is_written_is_read(
        path in any_path(),
        bth in any_bth(),
        all in any_extension(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        flips in any::<(u32, u32)>(),
    ) {
        let opcode = bth.opcode;
        let extension = Extension {
            reth: all.reth.filter(|_| opcode.has_reth()),
            aeth: all.aeth.filter(|_| opcode.has_aeth()),
            immediate: all.immediate.filter(|_| opcode.has_immediate()),
            deth: all.deth.filter(|_| opcode.has_deth()),
        };
        let frame = build(&path, &bth, &all, &payload).unwrap();
        let segment = Segment { bth, extension, payload: &payload };
        let received = Received { path, congestion: false, segment };
        prop_assert_eq!(read_frame(&frame), Ok(received));
        prop_assert!(towpath_packet::Headers::parse(&frame, frame.len()).unwrap().malformed.is_none());

        // One bit less is noticed, wherever it is.
        let (at, bit) = (flips.0 as usize % frame.len(), flips.1 % 8);
        let mut changed = frame.clone();
        changed[at] ^= 1 << bit;
        let good = ip_packet(&changed).is_some_and(has_good_icrc);
        let v6 = path.source.is_ipv6();
        if is_masked(v6, at) {
            // The ethertype and the version still say which addresses these are.
            prop_assert!(good || at == 12 || at == 13 || v6 && at == 14 && bit >= 4);
        } else {
            prop_assert!(!good, "bit {bit} of byte {at}");
            prop_assert!(read_frame(&changed).is_err());
        }
    }

    #[test]
    fn hostile_frames_never_panic(
        v6 in any::<bool>(),
        changes in prop::collection::vec((0_usize..110, any::<u8>()), 0..5),
        cut in prop::option::of(0_usize..120),
        sealed in any::<bool>(),
    ) {
        let mut frame = bytes(if v6 { READ6_CE } else { DATAGRAM4 });
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(cut.unwrap_or(frame.len()));
        if sealed && seal(&mut frame) {
            prop_assert!(ip_packet(&frame).is_some_and(has_good_icrc));
            prop_assert!(read_frame(&frame) != Err(RoceError::Icrc));
        }
        let _ = read_frame(&frame);
        let _ = has_good_icrc(&frame);
        let _ = Segment::read(&frame);
        let _ = Segment::read(frame.get(42..).unwrap_or_default());
    }

    #[test]
    fn any_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = read_frame(&bytes);
        let _ = Segment::read(&bytes);
        let _ = has_good_icrc(&bytes);
        let _ = ip_packet(&bytes);
        let _ = seal(&mut bytes);
    }
}
