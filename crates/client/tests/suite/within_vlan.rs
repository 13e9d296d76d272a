//! Endpoints within a VLAN, over in-memory devices: the application has packets without the tag, and
//! the wire, captures and endpoints of the VLAN that keep the tag have them with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, Session};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback::{self, Reception};
use towpath_packet::build::{Flow, Tcp};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

const PATIENCE: Duration = Duration::from_secs(60);
const ELSEWHERE: [u8; 6] = [2, 9, 9, 9, 9, 9];
/// The endpoints' port, the VLAN, and the same VLAN with a priority.
const PORT: u16 = 9000;
const VLAN: u16 = 7;
const URGENT: u16 = 0xe007;

struct World {
    server: Server,
    far: DeviceFarEnd,
    session: Session,
}

fn attach(server: &Server) -> Session {
    Session::attach_over(server.connect().unwrap(), &Options::default()).unwrap()
}

impl World {
    fn new(device: &loopback::Config) -> World {
        let (near, far) = loopback::pair(device).unwrap();
        let ipv4 = Some(Subnet::new("10.77.0.1".parse().unwrap(), 24));
        let ipv6 = Some(Subnet::new("fd77::1".parse().unwrap(), 64));
        let config = Config { subnets: Subnets { ipv4, ipv6 }, ..Config::default() };
        let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
        let session = attach(&server);
        World { server, far: DeviceFarEnd::new(Box::new(far)), session }
    }

    /// Returns the flows from the wire to the session, of both versions of IP.
    fn flows(&self) -> [Flow; 2] {
        let info = self.session.info();
        let flow = |flow: Flow| flow.macs(ELSEWHERE, info.mac).ports(1000, PORT);
        let (ipv4, ipv6) = (info.ipv4.unwrap().0, info.ipv6.unwrap().0);
        let remote: std::net::Ipv6Addr = "fd77::ff".parse().unwrap();
        [
            flow(Flow::v4()).addresses([10, 77, 0, 99], ipv4),
            flow(Flow::v6()).addresses(remote, ipv6),
        ]
    }

    /// Sends packets, and returns what came out at the far end.
    fn sent(&mut self, endpoint: Endpoint, packets: &[(Vec<u8>, Meta)]) -> Vec<(Vec<u8>, Meta)> {
        let mut seen = Vec::new();
        for (packet, meta) in packets {
            send(&mut self.session, endpoint, packet, *meta);
            wait_until_sent(&mut self.session);
            while let Some(packet) = self.far.receive() {
                seen.push(packet);
            }
        }
        // The last packets may still be on their way.
        let until = Instant::now() + PATIENCE;
        let sentinel = Flow { source_mac: self.session.info().mac.octets(), ..Flow::v4() };
        let sentinel = sentinel.ethernet(0x88b5, &[0xee; 50]);
        let other = self.session.open(&Rule::new().ethertype(0x88b5)).unwrap();
        send(&mut self.session, other, &sentinel, Meta::FULL);
        loop {
            assert!(Instant::now() < until, "the last packet did not come");
            match self.far.receive() {
                Some((bytes, _)) if bytes == sentinel => break,
                Some(packet) => seen.push(packet),
                None => std::thread::yield_now(),
            }
        }
        self.session.close(other).unwrap();
        seen
    }

    /// Receives packets from the far end, each as `count` packets.
    fn received(&mut self, packets: &[(Vec<u8>, Meta)], count: &[usize]) -> Vec<(Vec<u8>, Meta)> {
        let mut got = Vec::new();
        for ((packet, meta), count) in packets.iter().zip(count) {
            assert!(self.far.send(packet, *meta));
            got.extend(receive(&mut self.session, *count));
        }
        got
    }
}

fn send(session: &mut Session, endpoint: Endpoint, packet: &[u8], meta: Meta) {
    let fill = |parts: &mut [&mut [u8]]| {
        let mut rest = packet;
        for part in parts {
            let (now, after) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = after;
        }
    };
    session.sender().send(endpoint, packet.len(), meta, fill).unwrap();
    session.sender().flush().unwrap();
}

fn wait_until_sent(session: &mut Session) {
    let until = Instant::now() + PATIENCE;
    while session.sender().unsent(QueuePair::FIRST).unwrap() > 0 {
        assert!(Instant::now() < until, "packets are unsent");
        std::thread::yield_now();
    }
}

fn receive(session: &mut Session, count: usize) -> Vec<(Vec<u8>, Meta)> {
    let mut got = Vec::new();
    while got.len() < count {
        session
            .receiver()
            .receive(QueuePair::FIRST, count - got.len(), |packet| {
                let mut bytes = Vec::new();
                packet.append_to(&mut bytes);
                got.push((bytes, packet.meta()));
            })
            .unwrap();
        if got.len() < count {
            assert!(session.wait(Some(PATIENCE)).unwrap(), "{} of {count}", got.len());
        }
    }
    got
}

fn counters(session: &Session, endpoint: Endpoint) -> BTreeMap<String, u64> {
    session.counters(endpoint).into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns packets of a flow: of many lengths, with partial checksums, large ones, fragments.
fn packets(flow: &Flow) -> Vec<(Vec<u8>, Meta)> {
    let payload: Vec<u8> = (0..9000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let longest = 1500 - if flow.source.is_ipv4() { 28 } else { 48 };
    let mut packets: Vec<_> = [0, 1, 20, 60, 80, 100, 700, longest - 1, longest]
        .into_iter()
        .chain(180..220)
        .map(|len| (flow.udp(&payload[..len]), Meta::FULL))
        .collect();
    packets.extend([10, 300, longest].map(|len| flow.udp_partial(&payload[..len])));
    packets
}

fn large(flow: &Flow) -> (Vec<u8>, Meta) {
    let payload: Vec<u8> = (0..8000u32).map(|at| ((at * 7) >> 2) as u8).collect();
    flow.tcp_large(&Tcp::default(), &payload, 1000)
}

fn devices() -> Vec<loopback::Config> {
    let base = loopback::Config::default();
    let removes = Reception { removes_tags: true, verifies: true, ..Reception::default() };
    let spread = Reception { data_bytes: Some(256), ..removes };
    vec![
        base.clone(),
        loopback::Config { offloads: false, ..base.clone() },
        loopback::Config { tx_tags: true, ..base.clone() },
        loopback::Config { tx_tags: true, offloads: false, ..base.clone() },
        loopback::Config { tx_tags: true, tx_in_place: false, ..base.clone() },
        loopback::Config { tx_tags: true, tx_asynchronous: true, ..base.clone() },
        loopback::Config { tx_in_place: false, ..base.clone() },
        loopback::Config { tx_in_place: false, offloads: false, ..base.clone() },
        loopback::Config { tx_asynchronous: true, reception: removes, ..base.clone() },
        loopback::Config { reception: spread, ..base },
    ]
}

/// The wire sees the same from an endpoint within a VLAN as from one that writes the tags itself.
#[test]
fn the_wire_sees_the_tag() {
    for device in devices() {
        let mut world = World::new(&device);
        let flows = world.flows().map(|flow| flow.reversed());
        let inside: Vec<_> =
            flows.iter().flat_map(|flow| packets(flow).into_iter().chain([large(flow)])).collect();
        let outside: Vec<_> = flows
            .map(|flow| flow.vlan(VLAN))
            .iter()
            .flat_map(|flow| packets(flow).into_iter().chain([large(flow)]))
            .collect();
        let endpoint = world.session.open(&Rule::new().vlan(VLAN)).unwrap();
        let expected = world.sent(endpoint, &outside);
        world.session.close(endpoint).unwrap();
        let endpoint = world.session.open(&Rule::new().within_vlan(VLAN)).unwrap();
        let seen = world.sent(endpoint, &inside);
        assert_eq!(seen.len(), expected.len(), "{device:?}");
        for (seen, expected) in seen.iter().zip(&expected) {
            assert!(seen == expected, "{device:?}:\n{seen:02x?}\n{expected:02x?}");
        }
        assert!(seen.len() >= inside.len());
        let counts = counters(&world.session, endpoint);
        let bytes: usize = inside.iter().map(|(bytes, _)| bytes.len()).sum();
        assert_eq!(counts["tx_packets"], inside.len() as u64);
        assert_eq!(counts["tx_bytes"], bytes as u64, "without the tag");
        // The tag does not count towards the MTU, and the MTU is not exceeded either.
        send(&mut world.session, endpoint, &flows[0].udp(&[0; 1473]), Meta::FULL);
        wait_until_sent(&mut world.session);
        assert_eq!(counters(&world.session, endpoint)["tx_dropped_too_long"], 1);
        world.server.stop().unwrap();
    }
}

/// The application receives packets without the tag, wherever that was removed.
#[test]
fn the_application_sees_no_tag() {
    for device in devices() {
        let verifies = device.reception.verifies;
        for offload in [false, true] {
            let mut world = World::new(&device);
            let flows = world.flows();
            let rule = Rule::new().within_vlan(VLAN);
            let rule = if offload { rule.with_offload() } else { rule };
            let endpoint = world.session.open(&rule).unwrap();
            for flow in flows {
                let takes = |one: &(Vec<u8>, Meta)| device.offloads || one.1.is_full();
                let of = |flow: Flow| packets(&flow).into_iter().filter(takes).collect::<Vec<_>>();
                let tagged = [of(flow.vlan(VLAN)), of(flow.vlan(URGENT))].concat();
                let expected = [of(flow), of(flow)].concat();
                let got = world.received(&tagged, &vec![1; tagged.len()]);
                for ((bytes, meta), (expected, its)) in got.iter().zip(&expected) {
                    // The engine completes checksums for an endpoint without offloads.
                    let whole = flow.udp(&expected[flow.udp(&[]).len()..]);
                    let (expected, its) =
                        if offload { (expected, *its) } else { (&whole, Meta::FULL) };
                    assert!(bytes == expected, "{device:?}\n{bytes:02x?}\n{expected:02x?}");
                    assert!(*meta == its || verifies && its.is_full(), "{device:?} {meta:?}");
                }
                if device.offloads {
                    let count = if offload { 1 } else { 8 };
                    let got = world.received(&[large(&flow.vlan(VLAN))], &[count]);
                    let (whole, meta) = large(&flow);
                    if offload {
                        assert!(got == [(whole, meta)], "{device:?}");
                    }
                    assert!(got.iter().all(|(bytes, _)| bytes[12..14] == flow.udp(&[])[12..14]));
                }
            }
            assert_eq!(counters(&world.session, endpoint)["rx_dropped_unusable"], 0);
            world.server.stop().unwrap();
        }
    }
}

/// Between sessions of one host, each endpoint has a packet as its rule says.
#[test]
fn local_endpoints_see_the_tag_by_their_rules() {
    for (to_sender, to_receiver) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut world = World::new(&loopback::Config::default());
        let mut other = attach(&world.server);
        let rule = |within, port| {
            let rule = Rule::new().udp(port);
            if within { rule.within_vlan(VLAN) } else { rule.vlan(VLAN) }
        };
        let from = world.session.open(&rule(to_sender, PORT)).unwrap();
        let to = other.open(&rule(to_receiver, PORT)).unwrap();
        // No endpoint without the VLAN, or of another one, receives the packet.
        let mut apart = attach(&world.server);
        let untagged = other.open(&Rule::new().udp(PORT)).unwrap();
        let elsewhere = other.open(&Rule::new().udp(PORT).within_vlan(8)).unwrap();
        apart.open(&Rule::new()).unwrap();
        let (info, peer) = (world.session.info().clone(), other.info().clone());
        let flow = Flow::v4()
            .macs(info.mac, peer.mac)
            .addresses(info.ipv4.unwrap().0, peer.ipv4.unwrap().0)
            .ports(PORT, PORT);
        let (inside, outside) = (packets(&flow), packets(&flow.vlan(VLAN)));
        for (inside, outside) in inside.iter().zip(&outside) {
            let (packet, meta) = if to_sender { inside } else { outside };
            send(&mut world.session, from, packet, *meta);
            let got = receive(&mut other, 1);
            let (expected, meta) = if to_receiver { inside } else { outside };
            assert_eq!(got[0].0.len(), expected.len());
            assert!(got[0].0 == *expected || !meta.is_full(), "{to_sender} {to_receiver}");
            assert_eq!(got[0].1, Meta::FULL);
        }
        let received = |endpoint| counters(&other, endpoint)["rx_packets"];
        assert_eq!(received(to), inside.len() as u64);
        assert_eq!((received(untagged), received(elsewhere)), (0, 0));
        assert!(world.far.receive().is_none(), "all went to this host");
        assert_eq!(counters(&world.session, from)["tx_packets"], inside.len() as u64);
        world.server.stop().unwrap();
    }
}

/// A session that sends tags of its own, or of other VLANs, sends nothing.
#[test]
fn no_packet_with_a_tag_leaves_an_endpoint_within_a_vlan() {
    let mut world = World::new(&loopback::Config::default());
    let [flow, _] = world.flows();
    let flow = flow.reversed();
    let mut other = attach(&world.server);
    other.open(&Rule::new().udp(PORT).within_vlan(8)).unwrap();
    let endpoint = world.session.open(&Rule::new().within_vlan(VLAN)).unwrap();
    let mut hostile: Vec<Vec<u8>> =
        [VLAN, 8, 0, URGENT, 0xe000, 4095].map(|tag| flow.vlan(tag).udp(b"tagged")).to_vec();
    let mut service = flow.vlan(8).udp(b"service");
    service[12..14].copy_from_slice(&[0x88, 0xa8]);
    let mut twice = flow.vlan(8).udp(b"twice");
    twice.splice(12..12, [0x81, 0, 0, 7]);
    hostile.extend([service, twice, flow.vlan(8).udp(b"")[..16].to_vec()]);
    let stranger = Flow { source_mac: ELSEWHERE, ..flow };
    hostile.push(stranger.udp(b"of another source"));
    let mut packets: Vec<_> = hostile.iter().map(|bytes| (bytes.clone(), Meta::FULL)).collect();
    packets.push((flow.udp(b"allowed"), Meta::FULL));
    let seen = world.sent(endpoint, &packets);
    assert_eq!(seen, [(flow.vlan(VLAN).udp(b"allowed"), Meta::FULL)]);
    let counts = counters(&world.session, endpoint);
    assert_eq!(counts["tx_dropped_outside_rule"], hostile.len() as u64 - 1);
    assert_eq!(counts["tx_dropped_source_mac"], 1);
    // Two endpoints cannot share a flow of a VLAN, whichever of them lies within it.
    let mut taken = attach(&world.server);
    let mac = world.session.info().mac;
    assert!(taken.open(&Rule::new().mac(mac).vlan(VLAN)).is_err());
    world.server.stop().unwrap();
}

/// Captures have the bytes of the wire, in both directions.
#[test]
fn captures_see_the_tag() {
    let mut world = World::new(&loopback::Config::default());
    let [flow, _] = world.flows();
    let mut capture = attach(&world.server);
    capture.open(&Rule::capture()).unwrap();
    let endpoint = world.session.open(&Rule::new().within_vlan(VLAN)).unwrap();
    let out = flow.reversed();
    let seen = world.sent(endpoint, &[(out.udp(b"out"), Meta::FULL)]);
    assert_eq!(seen, [(out.vlan(VLAN).udp(b"out"), Meta::FULL)]);
    let got = world.received(&[(flow.vlan(URGENT).udp(b"in"), Meta::FULL)], &[1]);
    assert_eq!(got, [(flow.udp(b"in"), Meta::FULL)]);
    let captured: Vec<Vec<u8>> =
        receive(&mut capture, 3).into_iter().map(|(bytes, _)| bytes).collect();
    assert_eq!(captured[0], out.vlan(VLAN).udp(b"out"));
    assert_eq!(captured[2], flow.vlan(URGENT).udp(b"in"));
    world.server.stop().unwrap();
}

/// Broadcast reaches the members within the VLAN without the tag, and others with it.
#[test]
fn groups_reach_all_members_of_the_vlan() {
    let mut world = World::new(&loopback::Config::default());
    let [flow, _] = world.flows();
    let mut other = attach(&world.server);
    world.session.open(&Rule::new().within_vlan(VLAN).with_group()).unwrap();
    other.open(&Rule::new().vlan(VLAN).with_group()).unwrap();
    let mut plain = attach(&world.server);
    let untagged = plain.open(&Rule::new().with_group()).unwrap();
    let (asked, tagged) = (flow.who_has(), flow.vlan(VLAN).who_has());
    assert_eq!(world.received(&[(tagged.clone(), Meta::FULL)], &[1]), [(asked, Meta::FULL)]);
    assert_eq!(receive(&mut other, 1), [(tagged, Meta::FULL)]);
    assert_eq!(counters(&plain, untagged)["rx_packets"], 0);
    world.server.stop().unwrap();
}
