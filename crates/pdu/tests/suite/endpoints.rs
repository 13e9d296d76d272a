//! Tests PDU endpoints of sessions on a server in this process, over an in-memory device: PDUs
//! arrive whole, are read in place, are accepted all or nothing, and take turns.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::{cut, random_bytes, seeded};
use towpath_client::{MacAddr, Meta, Session};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_pdu::{
    Fragment, Limits, OVERHEAD_BYTES, Options, PduEndpoint, SendError, SessionOptions,
};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

const PATIENCE: Duration = Duration::from_secs(60);
/// An address that no session has.
const ELSEWHERE: [u8; 6] = [2, 9, 9, 9, 9, 9];
/// At an MTU of 1500.
const CHUNK: usize = 1472;
const SIZES: [usize; 14] =
    [0, 1, 18, 19, 46, 48, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 4800, 48_000, 65_535, 65_536];

fn serve(mode: EngineStrategy) -> (Server, DeviceFarEnd) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let subnets =
        Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)), ..Subnets::default() };
    let config = Config { settings: mode.into(), subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (server, DeviceFarEnd::new(Box::new(far)))
}

fn attach(server: &Server, options: &SessionOptions) -> Session {
    Session::attach_over(server.connect().unwrap(), options).unwrap()
}

fn open(server: &Server) -> PduEndpoint {
    PduEndpoint::open(attach(server, &SessionOptions::default()), &Options::default()).unwrap()
}

fn mac(endpoint: &PduEndpoint) -> MacAddr {
    endpoint.session().info().mac
}

fn counter(endpoint: &PduEndpoint, name: &str) -> u64 {
    endpoint.session().counters(endpoint.endpoint()).get(name).unwrap()
}

/// Returns the next PDU: its source, its channel, its bytes, and whether it was read in place.
fn next(endpoint: &mut PduEndpoint, sender: &mut PduEndpoint) -> (MacAddr, u32, Vec<u8>, bool) {
    let until = Instant::now() + PATIENCE;
    let mut got = None;
    while got.is_none() {
        assert!(Instant::now() < until, "nothing came: {:?}", endpoint.received());
        sender.flush().unwrap();
        endpoint.wait(Some(Duration::from_millis(20))).unwrap();
        endpoint
            .receive(1, |pdu| {
                let mut bytes = Vec::new();
                pdu.append_to(&mut bytes);
                assert_eq!((pdu.len(), pdu.is_empty()), (bytes.len(), bytes.is_empty()));
                assert_eq!(pdu.contiguous(), Some(&bytes[..]));
                got = Some((pdu.source(), pdu.channel(), bytes, pdu.is_in_place()));
            })
            .unwrap();
    }
    got.unwrap()
}

fn exchange(mode: EngineStrategy) {
    let mut random = seeded(1);
    let (server, _far) = serve(mode);
    let (mut a, mut b) = (open(&server), open(&server));
    let (mac_a, mac_b) = (mac(&a), mac(&b));
    assert_eq!((a.chunk_bytes(), a.max_pdu_bytes()), (CHUNK, 65_536));
    let (mut fragments, mut in_place, mut copied, mut bytes) = (0, 0, 0, 0);
    for (number, len) in SIZES.into_iter().enumerate() {
        let pdu = random_bytes(&mut random, len);
        let channel = u32::MAX - number as u32;
        // Each chunk is written in its transmit buffer: this side copies nothing.
        let mut message = a.message(mac_b, channel, len).unwrap();
        assert_eq!((message.len(), message.remaining()), (len, len));
        let mut rest = &pdu[..];
        while let Some(chunk) = message.next_chunk() {
            assert_eq!(chunk.len(), rest.len().min(CHUNK), "fitted to the MTU");
            let (now, later) = rest.split_at(chunk.len());
            chunk.copy_from_slice(now);
            rest = later;
        }
        assert_eq!((rest.len(), message.remaining()), (0, 0));
        message.send().unwrap();
        let (from, on, got, read_in_place) = next(&mut b, &mut a);
        assert_eq!((from, on, read_in_place), (mac_a, channel, len <= CHUNK));
        assert!(got == pdu, "{len} bytes");
        // And back, from the vector.
        b.send_bytes(mac_a, channel, &got).unwrap();
        let (from, on, got, _) = next(&mut a, &mut b);
        assert_eq!((from, on), (mac_b, channel));
        assert!(got == pdu, "{len} bytes back");
        let count = len.div_ceil(CHUNK).max(1) as u64;
        fragments += count;
        bytes += len as u64;
        if count == 1 {
            in_place += 1;
        } else {
            copied += count;
        }
    }
    let sent = a.sent();
    assert_eq!((sent.pdus, sent.fragments), (SIZES.len() as u64, fragments));
    assert_eq!(sent.copied_bytes, 0, "written in place");
    assert_eq!(b.sent().copied_bytes, bytes, "the application's own copy, and no other");
    for endpoint in [&a, &b] {
        let received = endpoint.received();
        assert_eq!(received.fragments, fragments);
        assert_eq!((received.in_place, received.copied), (in_place, copied), "one copy at most");
        assert_eq!(received.delivered(), SIZES.len() as u64);
        assert!(received.adds_up(0));
        assert_eq!(counter(endpoint, "rx_copies"), fragments, "the server's one copy");
        assert_eq!(counter(endpoint, "tx_packets"), fragments);
        assert!(counter(endpoint, "tx_copies") <= fragments, "of headers, or of short packets");
    }
    server.stop().unwrap();
}

#[test]
fn all_sizes_asleep() {
    exchange(EngineStrategy::Block);
}

#[test]
fn all_sizes_polling() {
    exchange(EngineStrategy::Poll);
}

#[test]
fn unwritten_bytes_are_zero_and_unsent_messages_vanish() {
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, mut b) = (open(&server), open(&server));
    let to = mac(&b);
    let all = a.free_buffers().unwrap();
    // Every buffer held other bytes before.
    for _ in 0..40 {
        a.send_bytes(to, 1, &[0xff; 10_000]).unwrap();
        assert_eq!(next(&mut b, &mut a).2, [0xff; 10_000]);
    }
    let mut message = a.message(to, 1, 10_000).unwrap();
    message.write_all(&[1; 2000]).unwrap();
    assert_eq!(message.remaining(), 8000);
    message.send().unwrap();
    let (_, _, got, _) = next(&mut b, &mut a);
    assert_eq!((&got[..2000], &got[2000..]), (&[1; 2000][..], &[0; 8000][..]));
    // Begun and dropped; and written beyond the end.
    for _ in 0..1000 {
        let mut message = a.message(to, 1, 10_000).unwrap();
        message.write_all(&[2; 5000]).unwrap();
    }
    let mut message = a.message(to, 1, 10).unwrap();
    assert_eq!(message.write(&[3; 20]).unwrap(), 10);
    assert_eq!(message.write(&[3; 20]).unwrap(), 0);
    drop(message);
    assert!(a.drain(PATIENCE, |_| ()).unwrap());
    assert_eq!(a.free_buffers().unwrap(), all, "every buffer is free again");
    assert_eq!(a.sent().pdus, 41);
    assert_eq!(b.receive(100, |_| panic!("a PDU that no endpoint sent")).unwrap(), 0);
    server.stop().unwrap();
}

#[test]
fn a_pdu_is_accepted_whole_or_not_at_all() {
    let (server, _far) = serve(EngineStrategy::Block);
    // 16 buffers of about 1000 bytes: PDUs of up to 15 KiB.
    let small = SessionOptions {
        transmit_slots: 16,
        transmit_buffer_bytes: 1024,
        receive_buffer_bytes: 256,
        ..SessionOptions::default()
    };
    let mut a = PduEndpoint::open(attach(&server, &small), &Options::default()).unwrap();
    let mut b = PduEndpoint::open(attach(&server, &small), &Options::default()).unwrap();
    let to = mac(&b);
    let chunk = a.session().transmit_buffer_bytes() - OVERHEAD_BYTES;
    assert_eq!((a.chunk_bytes(), a.max_pdu_bytes()), (chunk, 16 * chunk));
    let long = SendError::Length { len: 16 * chunk + 1, max: 16 * chunk };
    assert_eq!(a.send_bytes(to, 1, &vec![0; 16 * chunk + 1]), Err(long));
    assert!(!a.has_room(1, 16 * chunk + 1) && a.has_room(1, 16 * chunk));
    // Nine of sixteen buffers. Another nine are not free, so none is taken.
    let pdu: Vec<u8> = (0..9 * chunk).map(|place| place as u8).collect();
    a.send_bytes(to, 1, &pdu).unwrap();
    assert_eq!(a.send_bytes(to, 2, &pdu), Err(SendError::Full));
    assert_eq!((a.waiting_fragments(), a.free_buffers().unwrap()), (9, 7));
    // The channel with waiting fragments leaves two of sixteen buffers to others.
    assert!(a.has_room(2, 7 * chunk) && !a.has_room(1, 5 * chunk + 1) && a.has_room(1, 5 * chunk));
    assert_eq!((a.sent().pdus, a.sent().full), (1, 1));
    // The sender waits for room, and gets it, many times.
    let mut sent = 1;
    let mut got = 0;
    let until = Instant::now() + PATIENCE;
    while got < 200 {
        assert!(Instant::now() < until, "{got} of {sent}: {:?}", b.received());
        if sent < 200 {
            match a.send_bytes(to, sent % 3, &pdu) {
                Ok(_) => sent += 1,
                Err(SendError::Full) => {
                    a.want_room();
                    assert!(a.wait(Some(PATIENCE)).unwrap(), "no room came");
                }
                Err(error) => panic!("{error}"),
            }
        }
        a.flush().unwrap();
        // Receive buffers are smaller than fragments: in pieces.
        while b
            .receive(1, |one| {
                assert!(one.parts().flatten().eq(&pdu));
                got += 1;
            })
            .unwrap()
            > 0
        {}
    }
    assert!(b.received().adds_up(0));
    assert_eq!(b.received().reassembled, 200);
    // In place, and at the end of the pool in pieces.
    let mut in_pieces = 0;
    for _ in 0..300 {
        a.send_bytes(to, 9, &pdu[..900]).unwrap();
        a.flush().unwrap();
        assert!(b.wait(Some(PATIENCE)).unwrap());
        b.receive(8, |one| {
            assert!(one.is_in_place());
            assert!(one.parts().flatten().eq(&pdu[..900]));
            in_pieces += u32::from(one.contiguous().is_none());
            got += 1;
        })
        .unwrap();
    }
    assert_eq!(got, 500);
    assert!((2..10).contains(&in_pieces), "{in_pieces}");
    server.stop().unwrap();
}

/// Returns channel, offset and length of the fragments that the device's far end receives.
fn seen(far: &mut DeviceFarEnd, count: usize, a: &mut PduEndpoint) -> Vec<(u32, u32, u16)> {
    let until = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while seen.len() < count {
        assert!(Instant::now() < until, "{} of {count}", seen.len());
        a.wait(Some(Duration::from_millis(1))).unwrap();
        while let Some((frame, _)) = far.receive() {
            let fragment = Fragment::parse(frame.first_chunk().unwrap(), frame.len()).unwrap();
            seen.push((fragment.channel, fragment.offset, fragment.len));
        }
    }
    seen
}

#[test]
fn a_long_pdu_does_not_hold_up_a_short_one() {
    let (server, mut far) = serve(EngineStrategy::Block);
    let session = attach(&server, &SessionOptions::default());
    let options = Options { ahead: 4, ..Options::default() };
    let mut a = PduEndpoint::open(session, &options).unwrap();
    let full = |channel: u32, number: usize| (channel, (number * CHUNK) as u32, CHUNK as u16);
    // All before the first flush: a fragment of each in turn.
    a.send_bytes(ELSEWHERE, 1, &[1; 6 * CHUNK]).unwrap();
    a.send_bytes(ELSEWHERE, 2, &[2; 48]).unwrap();
    a.send_bytes(ELSEWHERE, 3, &[3; 2 * CHUNK]).unwrap();
    assert_eq!(a.waiting_fragments(), 9);
    let expected = [
        full(1, 0),
        (2, 0, 48),
        full(3, 0),
        full(1, 1),
        full(3, 1),
        full(1, 2),
        full(1, 3),
        full(1, 4),
        full(1, 5),
    ];
    assert_eq!(seen(&mut far, 9, &mut a), expected);
    // Three PDUs of 64 KiB: four fragments are in the transmit queue, the others wait. The short
    // PDU comes after at most those four and one more.
    for _ in 0..3 {
        a.send_bytes(ELSEWHERE, 1, &[1; 65_536]).unwrap();
    }
    a.flush().unwrap();
    assert!(a.waiting_fragments() >= 3 * 45 - 4, "{} wait", a.waiting_fragments());
    a.send_bytes(ELSEWHERE, 2, &[2; 48]).unwrap();
    let all = seen(&mut far, 3 * 45 + 1, &mut a);
    let place = all.iter().position(|one| *one == (2, 0, 48)).unwrap();
    assert!(place <= 5, "after {place} fragments");
    assert_eq!(a.waiting_fragments(), 0);
    server.stop().unwrap();
}

#[test]
fn more_channels_than_a_receiver_keeps_in_parts_lose_nothing() {
    let kept = Limits::default().partials_of_source as u32;
    for (channels, len) in [(kept, 2000), (kept + 1, 2000), (3 * kept, 2000), (kept + 4, 9000)] {
        let (server, _far) = serve(EngineStrategy::Block);
        let (mut a, mut b) = (open(&server), open(&server));
        let to = mac(&b);
        let pdu = |channel: u32| vec![channel as u8 ^ 0x5a; len];
        // All before the first flush, so each channel has a fragment to send in its turn.
        for channel in 0..channels {
            a.send_bytes(to, channel, &pdu(channel)).unwrap();
        }
        let mut missing: std::collections::BTreeSet<u32> = (0..channels).collect();
        let until = Instant::now() + PATIENCE;
        while !missing.is_empty() {
            assert!(Instant::now() < until, "{missing:?} of {channels}: {:?}", b.received());
            a.flush().unwrap();
            b.wait(Some(Duration::from_millis(1))).unwrap();
            b.receive(256, |one| {
                assert!(one.parts().flatten().eq(&pdu(one.channel())));
                assert!(missing.remove(&one.channel()), "once");
            })
            .unwrap();
        }
        let received = b.received();
        assert_eq!(received.copied, received.fragments, "nothing was dropped");
        assert_eq!((a.waiting_fragments(), received.reassembled), (0, channels.into()));
        server.stop().unwrap();
    }
}

#[test]
fn a_message_that_was_forgotten_harms_no_other() {
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, mut b) = (open(&server), open(&server));
    let to = mac(&b);
    let all = a.free_buffers().unwrap();
    for round in 0..100 {
        let mut message = a.message(to, 1, 20 * CHUNK).unwrap();
        message.write_all(&[0xff; 5000]).unwrap();
        // Never dropped: its buffers are still reserved when the next message begins.
        std::mem::forget(message);
        let len = 48 + round % 7 * 500;
        a.send_bytes(to, 2, &vec![round as u8; len]).unwrap();
        let (_, channel, got, _) = next(&mut b, &mut a);
        assert_eq!((channel, got), (2, vec![round as u8; len]));
    }
    let until = Instant::now() + PATIENCE;
    while !a.drain(Duration::from_millis(10), |_| ()).unwrap() {
        assert!(Instant::now() < until);
    }
    assert_eq!(a.free_buffers().unwrap(), all, "no buffer is lost");
    assert_eq!((a.sent().pdus, b.received().delivered()), (100, 100));
    server.stop().unwrap();
}

#[test]
fn received_fragments_are_reassembled_or_expire() {
    let (server, mut far) = serve(EngineStrategy::Block);
    let session = attach(&server, &SessionOptions::default());
    let mut options = Options::default();
    options.limits.time = Duration::from_secs(1);
    let mut a = PduEndpoint::open(session, &options).unwrap();
    let own = mac(&a);
    let frames = |id: u32, pdu: &[u8]| -> Vec<Vec<u8>> {
        let mut frames = cut(ELSEWHERE, 5, id, pdu, 1000);
        for frame in &mut frames {
            // Addressed to the endpoint, and padded as on Ethernet.
            let mut fragment = Fragment::parse(frame.first_chunk().unwrap(), frame.len()).unwrap();
            fragment.destination = own;
            fragment.write(frame.first_chunk_mut().unwrap());
            frame.resize(frame.len().max(60) + 7, 0xee);
        }
        frames
    };
    let pdu: Vec<u8> = (0..5000).map(|place| (place % 251) as u8).collect();
    for len in [0, 1, 17, 18, 1000, 5000] {
        let whole = frames(len as u32, &pdu[..len]);
        for frame in whole.iter().rev().chain(&whole) {
            assert!(far.send(frame, Meta::FULL));
        }
        let mut got = 0;
        let until = Instant::now() + PATIENCE;
        let all = a.received().fragments + 2 * whole.len() as u64;
        while a.received().fragments < all {
            assert!(Instant::now() < until, "{:?}", a.received());
            a.wait(Some(Duration::from_millis(5))).unwrap();
            a.receive(64, |one| {
                assert_eq!(
                    (one.source(), one.channel(), one.id()),
                    (ELSEWHERE.into(), 5, len as u32)
                );
                assert!(one.parts().flatten().eq(&pdu[..len]));
                got += 1;
            })
            .unwrap();
        }
        assert_eq!(got, 1, "once, of {len} bytes");
    }
    assert_eq!(a.received().late, 5 + 5, "each fragment's second copy");
    // The rest never arrives: the endpoint gives the PDU up while the application sleeps.
    assert!(far.send(&frames(99, &pdu)[0], Meta::FULL));
    let until = Instant::now() + PATIENCE;
    while a.partials() == 0 {
        assert!(Instant::now() < until);
        a.wait(Some(Duration::from_millis(5))).unwrap();
        a.receive(64, |_| panic!("not whole")).unwrap();
    }
    assert!(!a.wait(Some(Duration::from_millis(1200))).unwrap(), "nothing else came");
    assert_eq!((a.partials(), a.received().expired), (0, 1));
    server.stop().unwrap();
}

#[test]
fn packets_of_other_endpoints_are_counted() {
    let (server, mut far) = serve(EngineStrategy::Block);
    let mut session = attach(&server, &SessionOptions::default());
    session.open(&towpath_client::Rule::new().ethertype(0x88b6)).unwrap();
    let own = session.info().mac;
    let mut a = PduEndpoint::open(session, &Options::default()).unwrap();
    let mut frame = [&own.octets()[..], &ELSEWHERE, &[0x88, 0xb6]].concat();
    frame.resize(60, 0);
    assert!(far.send(&frame, Meta::FULL));
    assert!(a.wait(Some(PATIENCE)).unwrap());
    a.receive(8, |_| panic!("no PDU")).unwrap();
    assert_eq!((a.received().other_endpoints, a.received().fragments), (1, 0));
    server.stop().unwrap();
}
