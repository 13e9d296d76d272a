//! Sessions on a TAP whose other side is the kernel, in the test's own network namespace: the wire,
//! frame by frame, and the reactions of the kernel's own sockets.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fastrand::Rng;
use towpath_client::{Endpoint, Options, QueuePair, Rule, Session};
use towpath_device::tap::{self, TapDevice};
use towpath_netlink::{Netlink, Prefix};
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{Verdict, verify};
use towpath_packet::headers::Headers;
use towpath_packet::transport::{Transport, tcp_flags};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};
use towpath_testkit::{isolated, skip};
use towpath_tests::frames::ELSEWHERE;
use towpath_tests::random::seed;
use towpath_tests::wire::Wire;
use towpath_tests::{PATIENCE, eventually};

const KERNEL4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

/// A TAP, the kernel's addresses on it, and a server.
struct Bench {
    server: Server,
    name: String,
    mac: [u8; 6],
    netlink: Netlink,
}

impl Bench {
    /// Returns `None`, and prints a message, where no TAP can be made. The kernel sends nothing by
    /// itself: it has no IPv6 unless `ipv6`.
    fn new(test: &str, mtu: u32, ipv6: bool) -> Option<Bench> {
        if let Err(why) = towpath_testkit::check_tun() {
            skip(test, &why);
            return None;
        }
        let name = "wire0".to_owned();
        let options = tap::Options { name: name.clone(), offloads: true };
        let first = TapDevice::open(&options).unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink.set_mtu(&name, mtu).unwrap();
        let setting = |file: &str, value: &str| {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{file}"), value).unwrap();
        };
        if ipv6 {
            setting("accept_dad", "0");
            setting("router_solicitations", "0");
        } else {
            setting("disable_ipv6", "1");
        }
        netlink.set_up(&name).unwrap();
        netlink.add_address(&name, Prefix::new(KERNEL4.into(), 24).unwrap()).unwrap();
        if ipv6 {
            netlink.add_address(&name, Prefix::new(KERNEL6.into(), 64).unwrap()).unwrap();
        }
        // Opens it once more, with its MTU.
        let device = TapDevice::from_fd(first.as_fd().try_clone_to_owned().unwrap(), true).unwrap();
        drop(first);
        let mac = towpath_device::Device::info(&device).mac;
        let subnets =
            Subnets { ipv4: Some(Subnet::new(KERNEL4, 24)), ipv6: Some(Subnet::new(KERNEL6, 64)) };
        let config = Config { subnets, ..Config::default() };
        let store = Box::<MemoryStore>::default();
        let server = Server::start(&config, Box::new(device), store).unwrap();
        Some(Bench { server, name, mac, netlink })
    }

    fn attach(&self) -> Session {
        let options = Options { receive_slots: 1024, ..Options::default() };
        Session::attach_over(self.server.connect().unwrap(), &options).unwrap()
    }

    /// Gives the kernel a session's link address, so that the kernel need not ask, and waits until
    /// it accepts the session's packets to its new IPv6 address. Until then the kernel counts them
    /// as `Ip6InAddrErrors`.
    fn known(&mut self, session: &mut Session) {
        for ip in [ipv4(session).into(), ipv6(session).into()] {
            let mac = session.info().mac;
            self.netlink.add_neighbour(&self.name, ip, mac.octets()).unwrap();
        }
        let socket = UdpSocket::bind((KERNEL6, 9)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let endpoint = session.open(&Rule::new().udp(9)).unwrap();
        let frame = self.flow6(session).ports(9, 9).reversed().udp(b"is it taken?");
        eventually("the kernel has its address", || {
            send(session, endpoint, &frame);
            socket.recv(&mut [0; 64]).is_ok()
        });
        session.close(endpoint).unwrap();
    }

    fn wire(&self) -> Wire {
        Wire::open(&self.name).unwrap()
    }

    /// Returns a flow from the kernel to a session.
    fn flow4(&self, session: &Session) -> Flow {
        Flow::v4()
            .macs(self.mac, session.info().mac)
            .addresses(KERNEL4, ipv4(session))
            .ports(4000, 5000)
    }

    fn flow6(&self, session: &Session) -> Flow {
        Flow::v6()
            .macs(self.mac, session.info().mac)
            .addresses(KERNEL6, ipv6(session))
            .ports(4000, 5000)
    }

    /// Returns the counters of the server's device.
    fn device(&self) -> BTreeMap<String, u64> {
        let report = towpath_client::report_over(self.server.connect().unwrap()).unwrap();
        let counters = report["device"]["counters"].as_object().unwrap();
        counters.iter().map(|(name, value)| (name.clone(), value.as_u64().unwrap())).collect()
    }
}

fn ipv4(session: &Session) -> Ipv4Addr {
    session.info().ipv4.unwrap().0
}

fn ipv6(session: &Session) -> Ipv6Addr {
    session.info().ipv6.unwrap().0
}

fn counters(session: &Session, endpoint: Endpoint) -> BTreeMap<&'static str, u64> {
    session.counters(endpoint).into_iter().collect()
}

fn next(session: &mut Session, what: &str) -> Vec<u8> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(packet) = session.receiver().receive_one(QueuePair::FIRST).unwrap() {
            return packet;
        }
        assert!(Instant::now() < until, "{what} did not come");
        session.wait(Some(Duration::from_millis(100))).unwrap();
    }
}

fn nothing(session: &mut Session, what: &str) {
    if let Some(packet) = session.receiver().receive_one(QueuePair::FIRST).unwrap() {
        panic!("{what}: {} bytes came: {:02x?}", packet.len(), &packet[..packet.len().min(64)]);
    }
}

fn send(session: &mut Session, endpoint: Endpoint, frame: &[u8]) {
    session.sender().send_bytes(endpoint, frame).unwrap();
    session.sender().flush().unwrap();
}

fn right(frame: &[u8]) -> Headers {
    let headers = Headers::parse(frame, frame.len()).unwrap();
    assert_eq!(headers.malformed, None, "{frame:02x?}");
    assert_eq!(verify(frame, &headers), Verdict::Right, "{frame:02x?}");
    headers
}

/// Sends UDP between a session and a socket of the kernel, each length once, both ways.
fn udp_of_every_size(mtu: u32) {
    let Some(mut bench) = Bench::new("udp", mtu, true) else { return };
    let mut session = bench.attach();
    bench.known(&mut session);
    let endpoint = session.open(&Rule::new().udp(5000)).unwrap();
    let own = [IpAddr::from(ipv4(&session)), ipv6(&session).into()];
    let flows = [bench.flow4(&session), bench.flow6(&session)];
    for ((own, flow), headers) in own.into_iter().zip(flows).zip([28, 48]) {
        let kernel = if own.is_ipv4() { IpAddr::from(KERNEL4) } else { KERNEL6.into() };
        let socket = UdpSocket::bind((kernel, 4000)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let longest = mtu as usize - headers;
        let mut buffer = vec![0; 65536];
        for len in [0, 1, 2, 17, 18, 64, 255, 256, 257, 1000, 1452, longest - 1, longest] {
            let len = len.min(longest);
            let payload: Vec<u8> = (0..len).map(|place| (place * 7 + len) as u8).collect();
            socket.send_to(&payload, (own, 5000)).unwrap();
            let seen = next(&mut session, "the datagram");
            let parsed = right(&seen);
            assert_eq!(parsed.ports(), Some((4000, 5000)));
            let at = 14 + headers;
            assert_eq!(&seen[at..at + len], &payload[..], "{len} bytes from the kernel");

            send(&mut session, endpoint, &flow.reversed().udp(&payload));
            let (got, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..got], from.ip(), from.port()), (&payload[..], own, 5000));
        }
        // A packet one byte longer than the MTU does not leave.
        send(&mut session, endpoint, &flow.reversed().udp(&vec![1; longest + 1]));
    }
    eventually("the long ones are counted", || {
        counters(&session, endpoint)["tx_dropped_too_long"] == 2
    });
    bench.server.stop().unwrap();
}

#[test]
fn datagrams_of_every_size_at_mtu_1500() {
    isolated!(|| udp_of_every_size(1500));
}

#[test]
fn datagrams_of_every_size_at_mtu_9000() {
    isolated!(|| udp_of_every_size(9000));
}

#[test]
fn a_group_is_delivered_to_each_that_asked() {
    isolated!(|| {
        let Some(bench) = Bench::new("groups", 1500, false) else { return };
        let mut sessions: Vec<Session> = (0..4).map(|_| bench.attach()).collect();
        let rules = [
            Rule::new().udp(5000).with_group(),
            Rule::new().udp(5000).with_group(),
            Rule::new().udp(5000),
            Rule::new().udp(5001).with_group(),
        ];
        let endpoints: Vec<Endpoint> =
            sessions.iter_mut().zip(&rules).map(|(one, rule)| one.open(rule).unwrap()).collect();
        let socket = UdpSocket::bind((KERNEL4, 4000)).unwrap();
        socket.set_broadcast(true).unwrap();
        let groups =
            [Ipv4Addr::BROADCAST, "10.77.0.255".parse().unwrap(), "239.1.2.3".parse().unwrap()];
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.index(&bench.name).unwrap();
        let route = |text: &str| towpath_netlink::Route::to(text.parse().unwrap()).on(index);
        netlink.add_route(&route("239.0.0.0/8")).unwrap();
        netlink.add_route(&route("255.255.255.255/32")).unwrap();
        for (number, group) in groups.into_iter().enumerate() {
            let payload = [number as u8; 100];
            socket.send_to(&payload, (group, 5000)).unwrap();
            for session in &mut sessions[..2] {
                let seen = next(session, "the group's datagram");
                right(&seen);
                assert_eq!(&seen[42..142], &payload, "to {group}");
            }
        }
        // From a session: to the wire and to the others, and not back to itself.
        let mut wire = bench.wire();
        let own = sessions[0].info().mac;
        let flow = Flow::v4()
            .macs(own, [0xff; 6])
            .addresses(ipv4(&sessions[0]), Ipv4Addr::BROADCAST)
            .ports(5000, 5000);
        let frame = flow.udp(&[9; 50]);
        send(&mut sessions[0], endpoints[0], &frame);
        assert_eq!(next(&mut sessions[1], "the session's broadcast"), frame);
        eventually("the broadcast is on the wire", || wire.receive().as_ref() == Some(&frame));
        for (place, session) in sessions.iter_mut().enumerate() {
            nothing(session, &format!("session {place}"));
        }
        let received: Vec<u64> = sessions
            .iter()
            .zip(&endpoints)
            .map(|(session, endpoint)| counters(session, *endpoint)["rx_packets"])
            .collect();
        assert_eq!(received, [3, 4, 0, 0]);
        let device = bench.device();
        assert_eq!((device["rx_group"], device["tx_group"]), (3, 1));
        bench.server.stop().unwrap();
    });
}

#[test]
fn vlans_are_apart_on_the_wire() {
    isolated!(|| {
        let Some(bench) = Bench::new("vlans", 1500, false) else { return };
        let mut session = bench.attach();
        let rule = Rule::new().udp(5000);
        let endpoints = [
            (None, session.open(&rule).unwrap()),
            (Some(5), session.open(&rule.vlan(5)).unwrap()),
            (Some(6), session.open(&rule.vlan(6)).unwrap()),
        ];
        let mut wire = bench.wire();
        // From and to a host other than the kernel, which would answer.
        let flow = Flow { source_mac: ELSEWHERE, ..bench.flow4(&session) };
        let tagged = |flow: Flow, tag: Option<u16>| tag.map_or(flow, |tag| flow.vlan(tag));
        for (vlan, endpoint) in endpoints {
            // The priority in the tag does not matter, in either direction.
            let frame = tagged(flow, vlan.map(|vlan| vlan | 0x6000)).udp(b"tagged");
            wire.send(&frame).unwrap();
            assert!(session.wait(Some(PATIENCE)).unwrap());
            let mut seen = None;
            session
                .receiver()
                .receive(QueuePair::FIRST, 1, |packet| {
                    seen = Some((packet.endpoint(), packet.contiguous().unwrap().to_vec()));
                })
                .unwrap();
            let (number, bytes) = seen.expect("it came");
            assert_eq!(number, endpoint.id(), "VLAN {vlan:?}");
            assert_eq!(bytes[..frame.len()], frame[..], "VLAN {vlan:?}");
            let answer = tagged(flow.reversed(), vlan)
                .udp(b"an answer of more than sixty bytes, no padding");
            send(&mut session, endpoint, &answer);
            eventually("the answer is on the wire", || wire.receive().as_ref() == Some(&answer));
        }
        // Packets of another VLAN match no endpoint, and no client sends into another's VLAN.
        wire.send(&flow.vlan(7).udp(b"7")).unwrap();
        eventually("it is counted", || bench.device()["rx_dropped_no_match"] == 1);
        nothing(&mut session, "VLAN 7");
        send(&mut session, endpoints[1].1, &flow.reversed().vlan(6).udp(b"6"));
        send(&mut session, endpoints[0].1, &flow.reversed().vlan(5).udp(b"5"));
        send(&mut session, endpoints[2].1, &flow.reversed().udp(b"none"));
        for (vlan, endpoint) in endpoints {
            eventually("it is counted", || {
                counters(&session, endpoint)["tx_dropped_outside_rule"] == 1
            });
            assert_eq!(counters(&session, endpoint)["tx_packets"], 1, "VLAN {vlan:?}");
        }
        let left = wire.drain(Duration::from_millis(100));
        assert!(left.is_empty(), "{left:02x?}");
        bench.server.stop().unwrap();
    });
}

#[test]
fn mangled_packets_are_counted_and_not_delivered() {
    isolated!(|| {
        let Some(mut bench) = Bench::new("mangled", 1500, false) else { return };
        let mut session = bench.attach();
        let endpoint = session.open(&Rule::new()).unwrap();
        let wire = bench.wire();
        let (v4, v6) = (bench.flow4(&session), bench.flow6(&session));
        let mut mangled: Vec<(&str, Vec<u8>)> = Vec::new();
        let mut add = |what, frame: &[u8], change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = frame.to_vec();
            change(&mut frame);
            mangled.push((what, frame));
        };
        let (udp4, udp6) = (v4.udp(&[1; 60]), v6.udp(&[2; 60]));
        let (tcp4, tcp6) = (v4.tcp(&Tcp::default(), &[3; 60]), v6.tcp(&Tcp::default(), &[4; 60]));
        let arp = {
            let mut arp = v4.who_has();
            arp[..6].copy_from_slice(&session.info().mac.octets());
            arp
        };
        add("IPv4: another version", &udp4, &|f| f[14] = 0x65);
        add("IPv4: a header of 16 bytes", &udp4, &|f| f[14] = 0x44);
        add("IPv4: a header longer than the packet", &v4.udp(&[]), &|f| {
            f[14] = 0x4f;
            f[16..18].copy_from_slice(&40_u16.to_be_bytes());
        });
        add("IPv4: total length under the header's", &udp4, &|f| f[16..18].fill(0));
        add("IPv4: total length over the frame's", &udp4, &|f| f[16] = 0xff);
        add("IPv4: a fragment that ends beyond", &udp4, &|f| {
            f[20..22].copy_from_slice(&[0x1f, 0xff])
        });
        add("IPv4: a middle fragment of odd length", &udp4, &|f| {
            f[20..22].copy_from_slice(&[0x20, 0x01]);
            f[16..18].copy_from_slice(&25_u16.to_be_bytes());
        });
        add("IPv4: cut off in its header", &udp4, &|f| f.truncate(14 + 19));
        add("UDP: length under its header's", &udp4, &|f| {
            f[38..40].copy_from_slice(&7_u16.to_be_bytes())
        });
        add("UDP: length over the packet's", &udp4, &|f| {
            f[38..40].copy_from_slice(&999_u16.to_be_bytes())
        });
        add("UDP: cut off in its header", &udp4, &|f| {
            f.truncate(14 + 20 + 7);
            f[16..18].copy_from_slice(&27_u16.to_be_bytes());
        });
        add("TCP: a header of 16 bytes", &tcp4, &|f| f[46] = 0x40);
        add("TCP: a header over the packet's", &v4.tcp(&Tcp::default(), &[]), &|f| f[46] = 0xf0);
        add("TCP: cut off in its header", &tcp4, &|f| {
            f.truncate(14 + 20 + 19);
            f[16..18].copy_from_slice(&39_u16.to_be_bytes());
        });
        add("IPv6: another version", &udp6, &|f| f[14] = 0x45);
        add("IPv6: payload over the frame's", &udp6, &|f| f[18] = 0xff);
        add("IPv6: cut off in its header", &udp6, &|f| f.truncate(14 + 39));
        add("IPv6: an extension header cut off", &udp6, &|f| {
            f[20] = 0;
            f[54..56].copy_from_slice(&[17, 200]);
        });
        add("IPv6, TCP: a header of 0 bytes", &tcp6, &|f| f[66] = 0x00);
        add("ARP: cut off", &arp, &|f| f.truncate(14 + 27));
        add("ARP: not about Ethernet", &arp, &|f| f[15] = 9);
        add("ARP: not about IPv4", &arp, &|f| f[16..18].copy_from_slice(&[0x86, 0xdd]));
        add("IPv4: no byte of it", &udp4, &|f| f.truncate(14));
        add("IPv6: no byte of it", &udp6, &|f| f.truncate(14));
        add("ARP: no byte of it", &arp, &|f| f.truncate(14));
        add("a VLAN tag cut off", &v4.vlan(5).udp(&[]), &|f| f.truncate(16));
        for (place, (what, frame)) in mangled.iter().enumerate() {
            wire.send(frame).unwrap_or_else(|error| panic!("{what}: {error}"));
            eventually(what, || bench.device()["rx_packets"] == place as u64 + 1);
            let device = bench.device();
            assert_eq!(device["rx_dropped_malformed"], place as u64 + 1, "{what}: {device:?}");
            nothing(&mut session, what);
        }
        // Arbitrary content: each byte of each header, at random. Each packet is delivered,
        // unmatched or malformed.
        let mut random = Rng::with_seed(seed(0x3a9));
        let whole = [&udp4, &udp6, &tcp4, &tcp6, &arp];
        let before = bench.device();
        let mut sent = 0;
        let mut delivered = 0;
        for _ in 0..2000 {
            let mut frame = whole[random.usize(..5)].clone();
            let headers = frame.len().min(80);
            for _ in 0..1 + random.u64(..4) {
                let at = random.usize(..headers);
                frame[at] = random.u8(..);
            }
            if random.u64(..4) == 0 {
                frame.truncate(14 + random.usize(..frame.len() - 13));
            }
            // The kernel checks only the length of a frame.
            if wire.send(&frame).is_err() {
                continue;
            }
            sent += 1;
            if sent % 200 == 0 {
                eventually("it is read", || {
                    session.receiver().receive(QueuePair::FIRST, 1024, |_| delivered += 1).unwrap();
                    bench.device()["rx_packets"] == before["rx_packets"] + sent
                });
            }
        }
        eventually("it is read", || bench.device()["rx_packets"] == before["rx_packets"] + sent);
        session.receiver().receive(QueuePair::FIRST, 2048, |_| delivered += 1).unwrap();
        let (device, own) = (bench.device(), counters(&session, endpoint));
        let grown = |name: &str| device[name] - before[name];
        let dropped: u64 =
            own.iter().filter(|(name, _)| name.starts_with("rx_dropped")).map(|(_, v)| v).sum();
        println!("{sent} sent, {delivered} delivered, {dropped} dropped: {device:?}");
        assert_eq!(own["rx_packets"], delivered);
        assert_eq!(
            grown("rx_dropped_malformed") + grown("rx_dropped_no_match") + delivered + dropped,
            sent
        );
        assert!(delivered > 100 && grown("rx_dropped_malformed") > 100);
        // Longer than the device reported, because the kernel's side has had its MTU raised since.
        // The packet is valid, and takes several buffers.
        bench.netlink.set_mtu(&bench.name, 9000).unwrap();
        let long = v4.udp(&vec![7; 8000]);
        wire.send(&long).unwrap();
        assert_eq!(next(&mut session, "the long one"), long);
        // The server goes on.
        wire.send(&udp4).unwrap();
        assert_eq!(next(&mut session, "a valid packet"), udp4);
        bench.server.stop().unwrap();
    });
}

#[test]
fn forged_packets_do_not_reach_the_wire() {
    isolated!(|| {
        let Some(bench) = Bench::new("sources", 1500, false) else { return };
        let (mut session, other) = (bench.attach(), bench.attach());
        let endpoint = session.open(&Rule::new()).unwrap();
        let mut wire = bench.wire();
        let (v4, v6) = (bench.flow4(&session).reversed(), bench.flow6(&session).reversed());
        let stranger: Ipv6Addr = "fd77::bad".parse().unwrap();
        let theirs = |flow: Flow| Flow {
            source: if flow.source.is_ipv4() { ipv4(&other).into() } else { ipv6(&other).into() },
            ..flow
        };
        let solicitation =
            |source: IpAddr, target| Flow { source, ..v6 }.neighbour(135, 0, target, 1);
        let advertisement =
            |source: IpAddr, target| Flow { source, ..v6 }.neighbour(136, 0x60, target, 2);
        let router = |kind: u8| {
            let mut message = vec![kind, 0, 0, 0];
            message.resize(40, 0);
            v6.icmp(message)
        };
        let own6 = ipv6(&session);
        let bad: Vec<(&str, Vec<u8>, &str)> = vec![
            (
                "another MAC address",
                Flow { source_mac: other.info().mac.octets(), ..v4 }.udp(&[1; 40]),
                "tx_dropped_source_mac",
            ),
            (
                "the kernel's MAC address",
                Flow { source_mac: bench.mac, ..v4 }.udp(&[1; 40]),
                "tx_dropped_source_mac",
            ),
            (
                "another session's IPv4 address",
                theirs(v4).udp(&[1; 40]),
                "tx_dropped_source_address",
            ),
            (
                "the kernel's IPv4 address",
                Flow { source: KERNEL4.into(), ..v4 }.udp(&[1; 40]),
                "tx_dropped_source_address",
            ),
            (
                "no IPv4 address",
                Flow { source: Ipv4Addr::UNSPECIFIED.into(), ..v4 }.udp(&[1; 40]),
                "tx_dropped_source_address",
            ),
            (
                "another session's IPv6 address",
                theirs(v6).udp(&[1; 40]),
                "tx_dropped_source_address",
            ),
            (
                "a stranger's IPv6 address",
                Flow { source: stranger.into(), ..v6 }.tcp(&Tcp::default(), &[]),
                "tx_dropped_source_address",
            ),
            ("an ARP request in another's name", theirs(v4).who_has(), "tx_dropped_source_address"),
            ("an ARP answer for another", theirs(v4).i_have(), "tx_dropped_source_address"),
            (
                "an ARP answer with another MAC address",
                {
                    let mut frame = v4.i_have();
                    frame[22..28].copy_from_slice(&bench.mac);
                    frame
                },
                "tx_dropped_source_mac",
            ),
            (
                "a neighbour advertisement for another",
                advertisement(own6.into(), stranger),
                "tx_dropped_source_address",
            ),
            (
                "a neighbour advertisement in another's name",
                advertisement(stranger.into(), own6),
                "tx_dropped_source_address",
            ),
            (
                "a probe for another's address",
                solicitation(Ipv6Addr::UNSPECIFIED.into(), stranger),
                "tx_dropped_source_address",
            ),
            ("a tag", v4.vlan(5).udp(&[1; 40]), "tx_dropped_outside_rule"),
            (
                "a frame for bridges",
                {
                    let mut frame = v4.udp(&[1; 40]);
                    frame[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
                    frame[12..14].copy_from_slice(&38_u16.to_be_bytes());
                    frame
                },
                "tx_dropped_outside_rule",
            ),
            (
                "a mangled header",
                {
                    let mut frame = v4.udp(&[1; 40]);
                    frame[14] = 0x41;
                    frame
                },
                "tx_dropped_malformed",
            ),
        ];
        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        for (what, frame, counter) in &bad {
            send(&mut session, endpoint, frame);
            *expected.entry(counter).or_default() += 1;
            eventually(what, || counters(&session, endpoint)[counter] == expected[counter]);
        }
        // Its own packets reach the wire, in the same order.
        let good = [
            v4.udp(&[1; 40]),
            v6.udp(&[1; 40]),
            v4.who_has(),
            v4.i_have(),
            solicitation(own6.into(), KERNEL6),
            solicitation(Ipv6Addr::UNSPECIFIED.into(), own6),
            advertisement(own6.into(), own6),
            // These may leave because the session is an administrator's.
            router(134),
            router(137),
        ];
        for frame in &good {
            send(&mut session, endpoint, frame);
        }
        eventually("all is sent", || {
            counters(&session, endpoint)["tx_packets"] == good.len() as u64
        });
        let seen = wire.drain(Duration::from_millis(200));
        assert_eq!(seen.len(), good.len(), "{seen:02x?}");
        for (seen, sent) in seen.iter().zip(&good) {
            assert_eq!(seen[..sent.len()], sent[..]);
            assert!(seen[sent.len()..].iter().all(|byte| *byte == 0), "padded with zeros");
        }
        let counted = counters(&session, endpoint);
        for (counter, count) in expected {
            assert_eq!(counted[counter], count, "{counter}");
        }
        bench.server.stop().unwrap();
    });
}

/// The kernel's TCP, which leaves segmentation and checksums to the device, sends to an endpoint
/// without large packets and partial checksums.
#[test]
fn endpoints_without_offload_get_completed_packets() {
    isolated!(|| {
        let Some(mut bench) = Bench::new("offload", 1500, true) else { return };
        let mut session = bench.attach();
        bench.known(&mut session);
        let endpoint = session.open(&Rule::new().tcp(5000)).unwrap();
        let large = session.open(&Rule::new().tcp(5001).with_offload()).unwrap();
        for (to, flow) in [
            (IpAddr::from(ipv4(&session)), bench.flow4(&session)),
            (ipv6(&session).into(), bench.flow6(&session)),
        ] {
            let sent: Vec<u8> = (0..300_000_u32).map(|place| ((place * 31) >> 3) as u8).collect();
            for (port, endpoint, whole) in [(5000, endpoint, false), (5001, large, true)] {
                let (seen, longest) = stream(&mut session, endpoint, to, port, flow, &sent);
                assert_eq!(seen.len(), sent.len(), "to {to}");
                assert!(seen == sent, "to {to}: other bytes than were sent");
                assert_eq!(
                    longest > 1514,
                    whole,
                    "to {to}: the longest packet had {longest} bytes"
                );
            }
        }
        let counted = counters(&session, endpoint);
        assert_eq!(counted["rx_dropped_unusable"], 0);
        assert_eq!(counted["rx_copies"], counted["rx_packets"], "one copy, despite segmentation");
        bench.server.stop().unwrap();
    });
}

/// Accepts a connection of the kernel's without a TCP stack. Returns the received bytes, and the
/// length of the longest packet.
fn stream(
    session: &mut Session,
    endpoint: Endpoint,
    to: IpAddr,
    port: u16,
    flow: Flow,
    sent: &[u8],
) -> (Vec<u8>, usize) {
    let sent = sent.to_vec();
    let sender = std::thread::spawn(move || {
        let mut stream = TcpStream::connect((to, port)).unwrap();
        stream.write_all(&sent).unwrap();
        stream
    });
    let total = 300_000;
    let (mut seen, mut longest) = (Vec::new(), 0);
    // MSS 1440, window scale 7.
    let options = [2, 4, 5, 160, 1, 3, 3, 7];
    let until = Instant::now() + PATIENCE;
    let (mut next_byte, mut ours) = (0_u32, 1000_u32);
    while seen.len() < total {
        assert!(Instant::now() < until, "{} of {total} bytes came", seen.len());
        session.wait(Some(Duration::from_millis(100))).unwrap();
        let mut packets = Vec::new();
        session
            .receiver()
            .receive(QueuePair::FIRST, 64, |packet| {
                let mut bytes = Vec::new();
                packet.append_to(&mut bytes);
                packets.push((bytes, packet.meta()));
            })
            .unwrap();
        for (frame, meta) in packets {
            let headers = if meta.is_full() {
                right(&frame)
            } else {
                Headers::parse(&frame, frame.len()).unwrap()
            };
            longest = longest.max(frame.len());
            let Transport::Tcp { source, flags, header_bytes, .. } = headers.transport() else {
                panic!("no TCP: {headers:?}")
            };
            let l4 = headers.l4_offset().unwrap();
            let sequence = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
            let back = Flow { destination_port: source, source_port: port, ..flow.reversed() };
            let start = l4 + usize::from(header_bytes);
            let payload = &frame[start..];
            let reply = if flags & tcp_flags::SYN != 0 {
                next_byte = sequence.wrapping_add(1);
                let flags = tcp_flags::SYN | tcp_flags::ACK;
                let (sequence, acknowledgement) = (ours, next_byte);
                ours = ours.wrapping_add(1);
                Some(Tcp { sequence, acknowledgement, flags, options: &options, window: 0xffff })
            } else if payload.is_empty() {
                None
            } else {
                // The link is short and loses nothing: all arrives in order, each byte once.
                assert_eq!(sequence, next_byte, "after {} bytes", seen.len());
                seen.extend_from_slice(payload);
                next_byte = sequence.wrapping_add(payload.len() as u32);
                let (sequence, acknowledgement) = (ours, next_byte);
                Some(Tcp { sequence, acknowledgement, window: 0x4000, ..Tcp::default() })
            };
            if let Some(reply) = reply {
                session.sender().send_bytes(endpoint, &back.tcp(&reply, &[])).unwrap();
            }
        }
        session.sender().flush().unwrap();
    }
    drop(sender.join().unwrap());
    // The test ignores the end of the connection, and its retransmissions.
    std::thread::sleep(Duration::from_millis(50));
    session.receiver().receive(QueuePair::FIRST, 1024, |_| ()).unwrap();
    (seen, longest)
}

/// A datagram whose checksum the kernel left to the device.
#[test]
fn a_partial_checksum_arrives_completed() {
    isolated!(|| {
        let Some(mut bench) = Bench::new("checksum", 1500, true) else { return };
        let mut session = bench.attach();
        bench.known(&mut session);
        session.open(&Rule::new().udp(5000)).unwrap();
        session.open(&Rule::new().udp(5001).with_offload()).unwrap();
        for (kernel, to) in [
            (IpAddr::from(KERNEL4), IpAddr::from(ipv4(&session))),
            (KERNEL6.into(), ipv6(&session).into()),
        ] {
            let socket = UdpSocket::bind((kernel, 4000)).unwrap();
            socket.send_to(b"to be complete", (to, 5000)).unwrap();
            right(&next(&mut session, "the completed datagram"));
            socket.send_to(b"left as it is", (to, 5001)).unwrap();
            assert!(session.wait(Some(PATIENCE)).unwrap());
            let mut meta = None;
            session
                .receiver()
                .receive(QueuePair::FIRST, 1, |packet| meta = Some(packet.meta()))
                .unwrap();
            // It had a partial checksum, so the first datagram proves that the server completes it.
            assert!(meta.is_some_and(|meta| !meta.is_full()), "{meta:?}");
        }
        // Of both IP versions, one for each endpoint.
        eventually("all are counted", || {
            let counts = bench.device();
            (counts["rx_partial"], counts["rx_software_offloads"]) == (4, 2)
        });
        bench.server.stop().unwrap();
    });
}

/// While the interface is down, the engine gives the kernel no packets. Those of the backlog leave
/// once it is up again.
#[test]
fn a_tap_that_is_down_has_no_link() {
    isolated!(|| {
        let Some(mut bench) = Bench::new("down", 1500, false) else { return };
        let mut session = bench.attach();
        let endpoint = session.open(&Rule::new().udp(5000)).unwrap();
        let socket = UdpSocket::bind((KERNEL4, 4000)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let flow = bench.flow4(&session).reversed();
        send(&mut session, endpoint, &flow.udp(b"up"));
        let mut text = [0; 4];
        assert_eq!(socket.recv(&mut text).unwrap(), 2);
        bench.netlink.set_down(&bench.name).unwrap();
        eventually("the engine knows", || {
            send(&mut session, endpoint, &flow.udp(b"down"));
            bench.device()["tx_dropped_link_down"] > 0
        });
        let before = bench.device();
        for _ in 0..100 {
            send(&mut session, endpoint, &flow.udp(b"down"));
        }
        eventually("they are dropped", || {
            bench.device()["tx_dropped_link_down"] >= before["tx_dropped_link_down"] + 100
        });
        assert_eq!(bench.device()["tx_dropped_driver"], before["tx_dropped_driver"]);
        bench.netlink.set_up(&bench.name).unwrap();
        assert_eq!(socket.recv(&mut text).unwrap(), 4);
        assert_eq!(&text, b"down", "a packet of the backlog");
        bench.server.stop().unwrap();
    });
}
