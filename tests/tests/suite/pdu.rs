//! PDU endpoints against an independent peer: the kernel's side of a TAP, with a second
//! implementation of the format of docs/pdu.md; and as an ordinary user.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fastrand::Rng;
use towpath_client::{Options, Session};
use towpath_device::Device;
use towpath_device::tap::{self, TapDevice};
use towpath_netlink::Netlink;
use towpath_pdu::PduEndpoint;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};
use towpath_testkit::{Unavailable, Users, isolated, skip};
use towpath_tests::PATIENCE;
use towpath_tests::process::Program;
use towpath_tests::random::seed;
use towpath_tests::served::Served;
use towpath_tests::wire::Wire;

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// A peer on the wire.
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 0x77];

/// Computes CRC-32C bit by bit (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 }
        })
    })
}

/// Makes a fragment's frame: these bytes at this offset of this PDU, with channel and id.
fn frame(to: [u8; 6], channel: u32, id: u32, pdu: &[u8], offset: usize, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &PEER_MAC, &[0x88, 0xb5, 1, 0]].concat();
    frame.extend_from_slice(&(len as u16).to_be_bytes());
    for word in [channel, id, pdu.len() as u32, offset as u32, crc32c(pdu)] {
        frame.extend_from_slice(&word.to_be_bytes());
    }
    frame.extend_from_slice(&crc32c(&frame).to_be_bytes());
    frame.extend_from_slice(&pdu[offset..offset + len]);
    frame
}

/// Parses a frame from the wire: channel, id, total, offset, the PDU's CRC and the part.
fn read(frame: &[u8]) -> (u32, u32, usize, usize, u32, &[u8]) {
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    assert_eq!((frame[14], frame[15]), (1, 0), "version and flags");
    assert_eq!(word(38), crc32c(&frame[..38]), "the header's check");
    let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let padding = &frame[42 + len..];
    assert!(padding.iter().all(|byte| *byte == 0), "padding is not zero");
    assert!(padding.is_empty() || frame.len() == 60, "padded to the shortest frame");
    (word(18), word(22), word(26) as usize, word(30) as usize, word(34), &frame[42..42 + len])
}

struct Bench {
    server: Server,
    wire: Wire,
}

impl Bench {
    /// Returns `None`, and prints a message, where no TAP can be made.
    fn new(test: &str, mtu: u32) -> Option<Bench> {
        if let Err(why) = towpath_testkit::check_tun() {
            skip(test, &why);
            return None;
        }
        let options = tap::Options { name: "pdu0".to_owned(), offloads: true };
        let first = TapDevice::open(&options).unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink.set_mtu("pdu0", mtu).unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/pdu0/disable_ipv6", "1").unwrap();
        netlink.set_up("pdu0").unwrap();
        let device = TapDevice::from_fd(first.as_fd().try_clone_to_owned().unwrap(), true).unwrap();
        drop(first);
        assert_eq!(device.info().mtu, mtu as usize);
        let subnets = Subnets { ipv4: Some(Subnet::new(KERNEL, 24)), ..Subnets::default() };
        let config = Config { subnets, ..Config::default() };
        let store = Box::<MemoryStore>::default();
        let server = Server::start(&config, Box::new(device), store).unwrap();
        Some(Bench { server, wire: Wire::open("pdu0").unwrap() })
    }

    fn open(&self, transmit_buffer_bytes: u32) -> PduEndpoint {
        let options = Options { receive_slots: 1024, transmit_buffer_bytes, ..Options::default() };
        let session = Session::attach_over(self.server.connect().unwrap(), &options).unwrap();
        // The endpoint remembers finished PDUs for longer than a slow machine takes to receive the second copy of a fragment.
        let limits = towpath_pdu::Limits { time: PATIENCE * 10, ..towpath_pdu::Limits::default() };
        PduEndpoint::open(
            session,
            &towpath_pdu::Options { limits, ..towpath_pdu::Options::default() },
        )
        .unwrap()
    }

    /// Returns the next frame of ethertype 0x88B5 that the device sends.
    fn next(&mut self, endpoint: &mut PduEndpoint) -> Vec<u8> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.wire.receive() {
                Some(frame) if frame[12..14] == [0x88, 0xb5] => return frame,
                Some(_) => {}
                None => {
                    assert!(Instant::now() < until, "no frame came");
                    endpoint.wait(Some(Duration::from_millis(1))).unwrap();
                }
            }
        }
    }
}

/// Exchanges each length once, both ways; a fragment has `chunk` bytes.
fn every_length(mtu: u32, transmit_buffer_bytes: u32, chunk: usize) {
    let Some(mut bench) = Bench::new("pdu", mtu) else { return };
    let mut random = Rng::with_seed(seed(u64::from(mtu)));
    let mut endpoint = bench.open(transmit_buffer_bytes);
    assert_eq!(endpoint.chunk_bytes(), chunk);
    let own = endpoint.session().info().mac;
    let lengths =
        [0, 1, 17, 18, 19, 46, 48, 1471, 1472, 1473, 4800, chunk, chunk + 1, 65_535, 65_536];
    let mut copied = 0;
    for (number, len) in lengths.into_iter().enumerate() {
        let pdu: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let channel = random.u32(..);
        let number = number as u32;
        let fragments = len.div_ceil(chunk).max(1);

        // To the wire: in order, each fragment as long as the MTU allows.
        let id = endpoint.send_bytes(PEER_MAC, channel, &pdu).unwrap();
        let mut seen = Vec::new();
        for _ in 0..fragments {
            let frame = bench.next(&mut endpoint);
            assert_eq!((&frame[..6], &frame[6..12]), (&PEER_MAC[..], &own.octets()[..]));
            assert!(frame.len() >= 60 && frame.len() <= mtu as usize + 14);
            let (on, of, total, offset, crc, part) = read(&frame);
            assert_eq!((on, of, total, offset), (channel, id, len, seen.len()));
            assert_eq!(crc, crc32c(&pdu));
            assert_eq!(part.len(), chunk.min(len - offset));
            seen.extend_from_slice(part);
        }
        assert!(seen == pdu, "{len} bytes sent");

        // From the wire: in any order, of any length, padded, and some of it twice.
        let cut = 400 + random.usize(..chunk - 400);
        let mut starts: Vec<usize> = (0..len.div_ceil(cut).max(1)).map(|n| n * cut).collect();
        for place in (1..starts.len()).rev() {
            starts.swap(place, random.usize(..place + 1));
        }
        copied += if starts.len() == 1 { 0 } else { starts.len() as u64 };
        let twice = starts[0];
        for offset in starts.into_iter().chain([twice]) {
            let mut frame =
                frame(own.octets(), channel, number, &pdu, offset, cut.min(len - offset));
            // Any padding that a switch may leave.
            frame.resize(frame.len().max(60), 0xa5);
            bench.wire.send(&frame).unwrap();
        }
        let until = Instant::now() + PATIENCE;
        let mut got = None;
        while got.is_none() {
            assert!(Instant::now() < until, "{len} bytes: {:?}", endpoint.received());
            endpoint.wait(Some(Duration::from_millis(100))).unwrap();
            endpoint
                .receive(64, |one| {
                    assert_eq!((one.source(), one.destination()), (PEER_MAC.into(), own));
                    assert_eq!((one.channel(), one.id()), (channel, number));
                    let mut bytes = Vec::new();
                    one.append_to(&mut bytes);
                    assert!(got.replace(bytes).is_none(), "it came twice");
                })
                .unwrap();
        }
        assert!(got.as_deref() == Some(&pdu[..]), "{len} bytes received");
    }
    let received = endpoint.received();
    assert!(received.adds_up(endpoint.partials()), "{received:?}");
    assert_eq!(received.delivered(), lengths.len() as u64);
    assert_eq!(received.copied, copied, "one copy per fragment, none for a PDU in one fragment");
    bench.server.stop().unwrap();
}

#[test]
fn every_length_at_mtu_1500() {
    isolated!(|| every_length(1500, 2048, 1500 - 28));
}

#[test]
fn every_length_at_mtu_9000() {
    isolated!(|| every_length(9000, 16_384, 9000 - 28));
}

#[test]
fn a_buffer_shorter_than_the_mtu_sets_the_fragment_length() {
    isolated!(|| {
        // Chains of buffers are for packets that no PDU endpoint segments.
        let frame_bytes = {
            let Some(bench) = Bench::new("pdu", 9000) else { return };
            let endpoint = bench.open(2048);
            let bytes = endpoint.session().transmit_buffer_bytes();
            drop(endpoint);
            bench.server.stop().unwrap();
            bytes
        };
        every_length(9000, 2048, frame_bytes - 42);
    });
}

#[test]
fn damaged_fragments_are_counted_and_not_delivered() {
    isolated!(|| {
        let Some(bench) = Bench::new("pdu", 1500) else { return };
        let mut endpoint = bench.open(2048);
        let own = endpoint.session().info().mac;
        let pdu = [0x5a; 100];
        let good = |id| frame(own.octets(), 1, id, &pdu, 0, 100);
        let mut frames = Vec::new();
        // A flipped bit anywhere after the addresses and the ethertype.
        for bit in 14 * 8..(42 + 100) * 8 {
            let mut damaged = good(1);
            damaged[bit / 8] ^= 1 << (bit % 8);
            frames.push(damaged);
        }
        // Truncated to every length that Ethernet has.
        frames.extend((60..142).map(|len| good(1)[..len].to_vec()));
        let header = 28 * 8;
        let count = frames.len() as u64;
        frames.push(good(1));
        let (mut got, mut put) = (0, 0);
        let until = Instant::now() + PATIENCE;
        while endpoint.received().fragments <= count {
            assert!(Instant::now() < until, "{put} put: {:?}", endpoint.received());
            // Few at once: the kernel drops frames that its queue to the TAP has no room for.
            while put < frames.len() && put as u64 - endpoint.received().fragments < 64 {
                bench.wire.send(&frames[put]).unwrap();
                put += 1;
            }
            endpoint.wait(Some(Duration::from_millis(100))).unwrap();
            endpoint
                .receive(64, |one| {
                    assert_eq!(one.contiguous(), Some(&pdu[..]));
                    got += 1;
                })
                .unwrap();
        }
        let received = endpoint.received();
        assert_eq!((got, received.delivered()), (1, 1), "the good one, after all that");
        assert_eq!((received.malformed, received.damaged_in_place), (header + 82, 800));
        assert!(received.adds_up(0));
        bench.server.stop().unwrap();
    });
}

#[test]
fn an_ordinary_user_exchanges_pdus_from_its_own_address_alone() {
    let users = Users::find();
    if !users.distinct {
        let cause = "server and application cannot be made different users".to_owned();
        let remedy = "run as root".to_owned();
        let test = "an_ordinary_user_exchanges_pdus_from_its_own_address_alone";
        return skip(test, &Unavailable { cause, remedy });
    }
    let [granted, _] = users.applications;
    let option = format!("users={}", granted.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    let peer = PEER.start_as(&["pdus", server.path()], |command| granted.confine(command));
    let said: BTreeMap<String, String> = peer
        .finish()
        .iter()
        .map(|line| line.split_once(": ").expect("what: how"))
        .map(|(what, how)| (what.to_owned(), how.to_owned()))
        .collect();
    let expected = [
        ("trusted", "false"),
        ("exchanged", "5"),
        ("another's address", "refused"),
        ("sent from another's address", "0"),
        ("counted", "1"),
        ("received from another's address", "0"),
    ];
    for (what, how) in expected {
        assert_eq!(said.get(what).map(String::as_str), Some(how), "{what}: {said:?}");
    }
    server.stop();
}
