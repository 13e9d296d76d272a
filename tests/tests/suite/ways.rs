//! The engine has a fast path for most packets and a full path for all. Both must have the same
//! outcome. The test takes both paths with packets that an application sends and that the device
//! receives, and compares each client's packets and counters. A capture or a promiscuous client
//! makes all packets take the full path.

use std::net::IpAddr;

use fastrand::Rng;
use towpath_client::{Endpoint, EndpointCounters, Options, QueuePair, Rule, Session};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_packet::build::{Flow, Tcp};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};
use towpath_tests::random::seed;
use towpath_tests::{eventually, frames};

/// The outcome of some packets: those that each endpoint received, in order; those that left
/// through the device; and all counters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// The receiver, the endpoint, and the content.
    received: Vec<(usize, u32, Vec<u8>)>,
    left: Vec<Vec<u8>>,
    counters: Vec<EndpointCounters>,
}

fn attach(server: &Server, name: &str) -> Session {
    let options = Options { name: name.into(), ..Options::default() };
    Session::attach_over(server.connect().unwrap(), &options).unwrap()
}

/// Returns flows from one to the other, of both families.
fn flows(from: &Session, to: &Session) -> Vec<Flow> {
    let ends = |session: &Session| {
        let (v4, v6) = (session.info().ipv4.unwrap().0, session.info().ipv6.unwrap().0);
        [IpAddr::from(v4), IpAddr::from(v6)]
    };
    let pairs = ends(from).into_iter().zip(ends(to)).zip([Flow::v4(), Flow::v6()]);
    pairs
        .map(|((source, destination), flow)| {
            flow.macs(from.info().mac, to.info().mac).addresses(source, destination)
        })
        .collect()
}

fn samples(from: &Session, to: &Session) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut both = flows(from, to);
    both.extend(flows(from, from));
    for flow in both {
        let flow = flow.ports(1000, 2000);
        let body = |len: usize| (0..len).map(|n| n as u8).collect::<Vec<_>>();
        // Around the limit of a full copy, around the MTU, and above it.
        let headers = flow.udp(&[]).len();
        for len in [0, 1, 22, 64, 255 - headers, 256 - headers, 257 - headers, 1400] {
            all.push(flow.udp(&body(len)));
            all.push(flow.tcp(&Tcp::default(), &body(len)));
        }
        all.extend((1510..1520).map(|len| flow.udp(&body(len - headers))));
        for (source, destination) in [(1001, 2000), (1000, 2001), (1000, 80), (0, 0), (9, 9)] {
            all.push(flow.ports(source, destination).udp(b"another port"));
            all.push(flow.ports(source, destination).tcp(&Tcp::default(), b"another port"));
        }
        let elsewhere = Flow { destination_mac: frames::ELSEWHERE, ..flow };
        let everybody = Flow { destination_mac: [0xff; 6], ..flow };
        let forged = Flow { source_mac: frames::ELSEWHERE, ..flow };
        let forged_ip = Flow { source: flow.destination, ..flow };
        let other_ip = Flow { destination: flow.source, ..flow };
        for flow in [elsewhere, everybody, forged, forged_ip, other_ip, flow.vlan(7)] {
            all.push(flow.udp(b"unusual"));
        }
        all.push(flow.echo(true, 1, 1, b"ping"));
        all.push(flow.who_has());
        all.push(flow.ethernet(0x88b5, b"another protocol, as long as a frame must be at least"));
    }
    all
}

/// The port of the last packet of each batch.
const LAST: u16 = 9999;

fn go(listening: Option<Rule>, seed: u64) -> Outcome {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let config = Config {
        settings: EngineStrategy::Block.into(),
        subnets: Subnets {
            ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)),
            ipv6: Some(Subnet::new("fd77::1".parse().unwrap(), 64)),
        },
        ..Config::default()
    };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let (mut from, mut to) = (attach(&server, "from"), attach(&server, "to"));
    let mut listener = listening.map(|rule| {
        let mut session = attach(&server, "listener");
        session.open(&rule).unwrap();
        session
    });
    let senders: Vec<Endpoint> = [
        Rule::new(),
        Rule::new().udp(1000),
        Rule::new().tcp(1000),
        Rule::new().ip(from.info().ipv6.unwrap().0.into()).udp(1000),
        // Shows only that all packets before it have arrived.
        Rule::new().ip(from.info().ipv4.unwrap().0.into()).udp(LAST),
    ]
    .iter()
    .map(|rule| from.open(rule).unwrap())
    .collect();
    let receivers: Vec<Endpoint> = [
        Rule::new().with_group(),
        Rule::new().udp(2000),
        Rule::new().tcp(80),
        Rule::new().ip(to.info().ipv4.unwrap().0.into()),
        Rule::new().udp(2001).with_offload(),
    ]
    .iter()
    .map(|rule| to.open(rule).unwrap())
    .collect();

    let samples = samples(&from, &to);
    let mut random = Rng::with_seed(seed);
    let mut packets: Vec<(usize, Vec<u8>)> =
        samples.iter().flat_map(|frame| (0..4).map(|by| (by, frame.clone()))).collect();
    for _ in 0..8000 {
        let mut frame = samples[random.usize(..samples.len())].clone();
        for _ in 0..=random.u64(..2) {
            let at = random.usize(..80.min(frame.len()));
            frame[at] = random.u8(..);
        }
        frame.truncate(if random.u64(..10) == 0 { 1 + random.usize(..90) } else { 2000 });
        packets.push((random.usize(..4), frame));
    }
    let mut outcome = Outcome::default();
    let mut got = [0u64; 2];
    let last = flows(&to, &from)[0].ports(9, LAST).udp(b"that was all");
    for (before, group) in packets.chunks(24).enumerate() {
        // The device receives the same packets as the application sends; it takes frames that have
        // a header and are not too long.
        for (_, frame) in group.iter().filter(|(_, frame)| (14..=1514).contains(&frame.len())) {
            eventually("the far end has room", || far.send(frame, Meta::FULL));
        }
        // Packets arrive in order: after this one, all have arrived.
        eventually("the far end has room", || far.send(&last, Meta::FULL));
        eventually("all that came is received", || {
            count(&from, &senders[4..], "rx_packets") == before as u64 + 1
        });
        for (by, frame) in group {
            from.sender().send_bytes(senders[*by], frame).unwrap();
        }
        from.sender().flush().unwrap();
        eventually("all is sent", || {
            while let Some((frame, _)) = far.receive() {
                outcome.left.push(frame);
            }
            from.sender().unsent(QueuePair::FIRST).unwrap() == 0
        });
        // The server counts packets before the sender learns of their completion.
        for (place, (session, endpoints)) in
            [(&mut from, &senders), (&mut to, &receivers)].into_iter().enumerate()
        {
            eventually("what was delivered is received", || {
                let delivered = count(session, endpoints, "rx_packets");
                let taken = session
                    .receiver()
                    .receive(QueuePair::FIRST, 64, |packet| {
                        let bytes = packet.parts().flatten().copied().collect();
                        outcome.received.push((place, packet.endpoint().number(), bytes));
                    })
                    .unwrap();
                got[place] += taken as u64;
                got[place] == delivered
            });
        }
        if let Some(session) = &mut listener {
            while session.receiver().receive(QueuePair::FIRST, 64, |_| {}).unwrap() > 0 {}
        }
    }
    outcome.counters = senders.iter().map(|one| from.counters(*one)).collect();
    outcome.counters.extend(receivers.iter().map(|one| to.counters(*one)));
    outcome
}

fn count(session: &Session, endpoints: &[Endpoint], name: &str) -> u64 {
    endpoints.iter().filter_map(|one| session.counters(*one).get(name)).sum()
}

#[test]
fn fast_and_full_path_have_the_same_outcome() {
    let seed = seed(0x5407);
    let short = go(None, seed);
    println!("{} received, {} left", short.received.len(), short.left.len());
    assert!(short.received.len() > 1000 && short.left.len() > 100);
    for rule in [Rule::capture(), Rule::promiscuous()] {
        let long = go(Some(rule), seed);
        assert_eq!(short.counters, long.counters);
        assert!(short == long, "the counters are the same, the packets differ");
    }
}
