//! Connections between the sessions of two servers in this process, whose devices are the ends of
//! one wire: by RoCEv2, as between two hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::connections::{PATIENCE, PORT, becomes, next, open, options, settings_of_workers};
use towpath_client::{
    Access, Channel, Endpoint, Memory, OobAddress, OobKind, OpenChannelError, Options, PeerState,
    Refused, Request, RequestFault, RequestId, RequestState, Session, Sharing, report_over,
};
use towpath_device::Device;
use towpath_device_testing::fault::{FaultDevice, Spec};
use towpath_device_testing::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

/// Two hosts, each with a server.
struct Hosts {
    servers: [Server; 2],
}

fn serve(host: u8, device: Box<dyn Device>, rdma: bool) -> Server {
    let config = Config { rdma, ..config(host) };
    Server::start(&config, device, Box::<MemoryStore>::default()).unwrap()
}

/// The configuration of a host's server.
fn config(host: u8) -> Config {
    let ip = |last| Ipv4Addr::new(10, 77, 0, last);
    let leases = Some((ip(host * 16), ip(host * 16 + 15)));
    let ipv4 = Some(Subnet { leases, ..Subnet::new(ip(1), 24) });
    let ip = |last: u8| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(last));
    let leases = Some((ip(host * 16), ip(host * 16 + 15)));
    let ipv6 = Some(Subnet { leases, ..Subnet::new(ip(1), 64) });
    let settings = EngineStrategy::Block.into();
    let subnets = Subnets { ipv4, ipv6 };
    Config { settings, subnets, rdma: true, ..Config::default() }
}

fn hosts_with(mtu: usize, wrap: impl Fn(Box<dyn Device>) -> Box<dyn Device>) -> Hosts {
    let config = loopback::Config { mtu, ..loopback::Config::default() };
    let (one, other) = loopback::pair(&config).unwrap();
    let servers = [serve(1, wrap(Box::new(one)), true), serve(2, wrap(Box::new(other)), true)];
    Hosts { servers }
}

fn hosts() -> Hosts {
    hosts_with(1500, |device| device)
}

fn with_apertures(name: &str) -> Options {
    Options { apertures: 16, tripwires: 64, ..options(name) }
}

impl Hosts {
    fn attach(&self, host: usize) -> Session {
        let socket = self.servers[host].connect().unwrap();
        Session::attach_over(socket, &with_apertures("application")).unwrap()
    }

    /// Returns a session of each host, with an endpoint, and its address.
    fn sessions(&self) -> [(Session, Endpoint, OobAddress); 2] {
        [0, 1].map(|host| {
            let mut session = self.attach(host);
            let (endpoint, address) = open(&mut session, PORT);
            (session, endpoint, address)
        })
    }

    fn counter(&self, host: usize, name: &str) -> u64 {
        let report = report_over(self.servers[host].connect().unwrap()).unwrap();
        report["device"]["counters"][name].as_u64().unwrap_or_else(|| panic!("{report:#}"))
    }
}

/// A session of each host, connected with each other.
struct Pair {
    hosts: Hosts,
    one: Session,
    from: Endpoint,
    other: Session,
    to: Endpoint,
    /// The addresses by which each knows the other endpoint.
    addresses: [OobAddress; 2],
}

fn pair_of(hosts: Hosts) -> Pair {
    let sessions = hosts.sessions();
    pair_between(hosts, sessions)
}

/// Connects two sessions, each with an endpoint, and its address.
fn pair_between(hosts: Hosts, sessions: [(Session, Endpoint, OobAddress); 2]) -> Pair {
    let [(mut one, from, own), (mut other, listener, address)] = sessions;
    one.oob().request_connection(from, address, b"hello").unwrap();
    assert_eq!(one.peer_state(from), PeerState::Requested);
    one.sender().flush().unwrap();
    let request = next(&mut other, listener);
    assert_eq!(request.kind(), OobKind::Request);
    // What comes with a connection's messages has a fixed length between hosts.
    assert_eq!((&request.payload()[..5], request.payload().len()), (&b"hello"[..], 56));
    assert_eq!((request.from(), request.uid()), (own, u32::MAX));
    let (to, _) = open(&mut other, 0);
    other.oob().accept_connection(to, request.from(), b"welcome").unwrap();
    other.sender().flush().unwrap();
    becomes(&mut one, from, PeerState::Connected);
    becomes(&mut other, to, PeerState::Connected);
    let answer = next(&mut one, from);
    assert_eq!(answer.kind(), OobKind::Accept);
    assert_eq!(answer.payload()[..7], *b"welcome");
    Pair { hosts, one, from, other, to, addresses: [address, own] }
}

fn pair() -> Pair {
    pair_of(hosts())
}

/// Waits until a request has ended. Returns how.
fn outcome(session: &mut Session, request: RequestId) -> RequestState {
    let until = Instant::now() + PATIENCE;
    loop {
        match session.requests().state(request) {
            RequestState::Pending => {}
            ended => return ended,
        }
        assert!(Instant::now() < until, "the request never ends");
        session.wait(Some(Duration::from_millis(100))).unwrap();
        while session.oob().ready().unwrap().is_some() {}
    }
}

/// Waits until a request is complete.
fn completes(session: &mut Session, request: RequestId) {
    assert_eq!(outcome(session, request), RequestState::Complete);
}

fn fill(memory: &Memory, seed: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..memory.len()).map(|at| (at * 7 + at / 251 + seed) as u8).collect();
    memory.write(0, &bytes).unwrap();
    bytes
}

fn contents(memory: &Memory, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    memory.read(range.start, &mut bytes).unwrap();
    bytes
}

const BYTES: usize = 300_000;

/// Writes and reads of many lengths, a value and messages, between the two.
fn exchange(pair: &mut Pair) {
    let remote = pair.other.memories().create(BYTES, Sharing::Requests).unwrap();
    let key =
        pair.other.memories().export(pair.to, &remote, 0..BYTES, Access::ReadWrite).unwrap().key();
    let local = pair.one.memories().create(2 * BYTES, Sharing::Requests).unwrap();
    let pattern = fill(&local, 3);
    for (offset, len) in [(0, 1), (8, 8), (16, 64), (100, 1_024), (2_000, 1_025), (5_000, 250_000)]
    {
        // From two ranges, the second of them elsewhere.
        let (first, second) =
            (offset..offset + len / 2, BYTES + offset..BYTES + offset + len - len / 2);
        let request = Request::write(key, offset as u64);
        let request = if first.is_empty() { request } else { request.local(&local, first.clone()) };
        let request = request.local(&local, second.clone());
        let id = pair.one.requests().queue(pair.from, &request).unwrap();
        completes(&mut pair.one, id);
        let expected = [&pattern[first], &pattern[second]].concat();
        assert_eq!(contents(&remote, offset..offset + len), expected);
        let back = Request::read(key, offset as u64).local(&local, 0..len);
        let id = pair.one.requests().queue(pair.from, &back).unwrap();
        completes(&mut pair.one, id);
        assert_eq!(contents(&local, 0..len), expected);
        local.write(0, &pattern[..len]).unwrap();
    }
    let value = Request::write(key, 0).local(&local, 0..3_000).with_value(0x1122_3344);
    let id = pair.one.requests().queue(pair.from, &value).unwrap();
    completes(&mut pair.one, id);
    let message = next(&mut pair.other, pair.to);
    assert_eq!(message.value(), Some((0x1122_3344, 3_000)));
    assert_eq!(message.from(), pair.addresses[1]);
    for len in [0, 1, 63, 64] {
        let payload = vec![len as u8 + 1; len];
        let id = pair.one.requests().queue(pair.from, &Request::send(&payload)).unwrap();
        completes(&mut pair.one, id);
        assert_eq!(next(&mut pair.other, pair.to).payload(), payload);
        pair.other.oob().send(pair.to, pair.addresses[1], &payload).unwrap();
        pair.other.sender().flush().unwrap();
        let message = next(&mut pair.one, pair.from);
        assert_eq!((message.payload(), message.from()), (&payload[..], pair.addresses[0]));
    }
}

#[test]
fn requests_values_and_messages_between_hosts() {
    for mtu in [576, 1_500, 4_176, 9_000] {
        let mut pair = pair_of(hosts_with(mtu, |device| device));
        exchange(&mut pair);
        for host in 0..2 {
            assert_eq!(pair.hosts.counter(host, "rdma_dropped_malformed"), 0, "of MTU {mtu}");
        }
        assert!(pair.hosts.counter(0, "rdma_tx_packets") > 50);
    }
}

#[test]
fn hosts_connect_by_ipv6() {
    let hosts = hosts();
    let sessions = hosts.sessions().map(|(session, endpoint, address)| {
        let ip = IpAddr::V6(session.info().ipv6.unwrap().0);
        (session, endpoint, OobAddress { ip, ..address })
    });
    exchange(&mut pair_between(hosts, sessions));
}

/// Workers reach the memories of both hosts, as for several users: the bytes are the same, also if packets are lost.
#[test]
fn workers_copy_for_connections_with_other_hosts() {
    for spec in ["", "drop=0.02,dup=0.02,reorder=0.02,seed=9"] {
        let (one, other) = loopback::pair(&loopback::Config::default()).unwrap();
        let devices = [(1, one), (2, other)].map(|(host, device)| {
            let faults: Spec = spec.parse().unwrap();
            let device: Box<dyn Device> = Box::new(FaultDevice::new(Box::new(device), &faults));
            let config = Config { settings: settings_of_workers(), ..config(host) };
            Server::start(&config, device, Box::<MemoryStore>::default()).unwrap()
        });
        let mut pair = pair_of(Hosts { servers: devices });
        exchange(&mut pair);
    }
}

#[test]
fn packets_that_are_lost_repeated_and_changed_change_nothing() {
    let spec: Spec = "drop=0.02,dup=0.02,flip=0.02,reorder=0.02,seed=7".parse().unwrap();
    let mut pair = pair_of(hosts_with(1_500, |device| Box::new(FaultDevice::new(device, &spec))));
    exchange(&mut pair);
    let hosts = &pair.hosts;
    assert!(hosts.counter(0, "rdma_retransmitted") > 0);
    let malformed = [0, 1].map(|host| hosts.counter(host, "rdma_dropped_malformed"));
    assert!(malformed[0] + malformed[1] > 0, "none of the changed packets was noticed");
}

#[test]
fn what_a_peer_may_not_do_ends_the_connection() {
    let refused = |access, range: std::ops::Range<usize>, change: fn(Request) -> Request| {
        let mut pair = pair();
        let remote = pair.other.memories().create(8_192, Sharing::Requests).unwrap();
        let key = pair.other.memories().export(pair.to, &remote, 0..4_096, access).unwrap().key();
        let local = pair.one.memories().create(8_192, Sharing::Requests).unwrap();
        fill(&local, 1);
        let request = Request::write(key, range.start as u64).local(&local, 0..range.len());
        let bad = pair.one.requests().queue(pair.from, &change(request)).unwrap();
        let behind = pair.one.requests().queue(pair.from, &Request::send(b"behind")).unwrap();
        assert_eq!(outcome(&mut pair.one, bad), RequestState::Failed(RequestFault::Peer));
        let ended = outcome(&mut pair.one, behind);
        assert!(matches!(ended, RequestState::Failed(_)), "{ended:?}");
        becomes(&mut pair.one, pair.from, PeerState::Closed);
        becomes(&mut pair.other, pair.to, PeerState::Closed);
        assert!(contents(&remote, 0..8_192).iter().all(|byte| *byte == 0));
    };
    refused(Access::Read, 0..8, |request| request);
    refused(Access::ReadWrite, 4_090..4_097, |request| request);
    refused(Access::ReadWrite, 0..4_097, |request| request);
}

#[test]
fn a_revoked_aperture_is_refused() {
    let mut pair = pair();
    let remote = pair.other.memories().create(4_096, Sharing::Requests).unwrap();
    let export =
        pair.other.memories().export(pair.to, &remote, 0..4_096, Access::ReadWrite).unwrap();
    let key = export.key();
    let local = pair.one.memories().create(4_096, Sharing::Requests).unwrap();
    let write = Request::write(key, 0).local(&local, 0..8);
    let good = pair.one.requests().queue(pair.from, &write).unwrap();
    completes(&mut pair.one, good);
    pair.other.memories().revoke(export).unwrap();
    let late = pair.one.requests().queue(pair.from, &write).unwrap();
    assert_eq!(outcome(&mut pair.one, late), RequestState::Failed(RequestFault::Peer));
}

/// Memory of another host cannot be mapped, and both sides are told so at once.
#[test]
fn channels_and_imports_are_refused_between_hosts() {
    let Pair { hosts: _hosts, mut one, from, mut other, to, .. } = pair();
    let memory = one.memories().create(4096, Sharing::MapWrite).unwrap();
    let key = one.memories().export(from, &memory, 0..4096, Access::ReadWrite).unwrap().key();
    let error = other.memories().import(to, key).unwrap_err().to_string();
    assert!(error.contains("one of another host is used by requests"), "{error}");
    std::thread::scope(|scope| {
        for (session, endpoint) in [(&mut one, from), (&mut other, to)] {
            scope.spawn(move || {
                let opened = Channel::open(session, endpoint, 4096, Some(PATIENCE));
                assert!(matches!(opened, Err(OpenChannelError::OtherHost)), "{opened:?}");
            });
        }
    });
}

/// A message of an earlier peer, on another host, looks like an offer of memory.
#[test]
fn an_earlier_peers_message_is_no_offer() {
    let Pair { hosts, mut one, from, mut other, to, .. } = pair();
    let offer = other.requests().queue(to, &Request::send(b"ring\x01\0\0\0\0\0\0\0")).unwrap();
    completes(&mut other, offer);
    one.oob().disconnect(from).unwrap();
    one.sender().flush().unwrap();
    let mut local = hosts.attach(0);
    let (listener, address) = open(&mut local, PORT + 1);
    one.oob().request_connection(from, address, b"").unwrap();
    one.sender().flush().unwrap();
    let request = next(&mut local, listener);
    local.oob().accept_connection(listener, request.from(), b"").unwrap();
    local.sender().flush().unwrap();
    std::thread::scope(|scope| {
        for (session, endpoint) in [(&mut one, from), (&mut local, listener)] {
            scope.spawn(move || {
                becomes(session, endpoint, PeerState::Connected);
                Channel::open(session, endpoint, 4096, Some(PATIENCE)).unwrap();
            });
        }
    });
}

#[test]
fn a_write_of_another_host_fires_a_tripwire() {
    let mut pair = pair();
    let remote = pair.other.memories().create(4_096, Sharing::Requests).unwrap();
    let key =
        pair.other.memories().export(pair.to, &remote, 0..4_096, Access::ReadWrite).unwrap().key();
    let tripwire = pair.other.memories().set_tripwire(&remote, 64..72, Access::Write).unwrap();
    pair.other.tripwires().arm(tripwire);
    let local = pair.one.memories().create(4_096, Sharing::Requests).unwrap();
    let elsewhere =
        pair.one.requests().queue(pair.from, &Request::write(key, 0).local(&local, 0..64)).unwrap();
    completes(&mut pair.one, elsewhere);
    assert!(!pair.other.tripwires().has_fired(tripwire));
    let there =
        pair.one.requests().queue(pair.from, &Request::write(key, 60).local(&local, 0..8)).unwrap();
    completes(&mut pair.one, there);
    let until = Instant::now() + PATIENCE;
    while pair.other.tripwires().ready().unwrap() != Some(tripwire) {
        assert!(Instant::now() < until, "it never fires");
        pair.other.wait(Some(Duration::from_millis(100))).unwrap();
    }
}

#[test]
fn connections_between_hosts_end_from_either_side() {
    let mut pair = pair();
    // What was sent before the end arrives, as far as the queue has room for one peer.
    for number in 0..4_u8 {
        pair.one.oob().send(pair.from, pair.addresses[0], &[number]).unwrap();
    }
    pair.one.oob().disconnect(pair.from).unwrap();
    pair.one.sender().flush().unwrap();
    assert_eq!(pair.one.peer_state(pair.from), PeerState::None);
    becomes(&mut pair.other, pair.to, PeerState::Closed);
    for number in 0..4_u8 {
        assert_eq!(pair.other.oob().receive(pair.to).unwrap().unwrap().payload(), [number]);
    }
    let request = pair.one.requests().queue(pair.from, &Request::send(b"late"));
    let request = request.map(|id| outcome(&mut pair.one, id));
    assert!(
        matches!(request, Ok(RequestState::Failed(RequestFault::Closed)) | Err(_)),
        "{request:?}"
    );
    // The end of the endpoint, and of its session.
    let mut pair = self::pair();
    pair.one.close(pair.from).unwrap();
    becomes(&mut pair.other, pair.to, PeerState::Closed);
    let Pair { one, mut other, to, hosts, .. } = self::pair();
    drop(one);
    becomes(&mut other, to, PeerState::Closed);
    drop(hosts);
}

/// A long request goes out in pieces. If the connection ends between two of them, the request
/// fails, and its slot is free once: the session goes on.
#[test]
fn a_long_request_ends_with_its_connection() {
    const LONG: usize = 3 << 20;
    for round in 0..6 {
        let mut pair = pair();
        let remote = pair.other.memories().create(LONG, Sharing::Requests).unwrap();
        let key = pair
            .other
            .memories()
            .export(pair.to, &remote, 0..LONG, Access::ReadWrite)
            .unwrap()
            .key();
        let local = pair.one.memories().create(LONG, Sharing::Requests).unwrap();
        let long =
            pair.one.requests().queue(pair.from, &Request::write(key, 0).local(&local, 0..LONG));
        let long = long.unwrap();
        let behind = pair.one.requests().queue(pair.from, &Request::send(b"behind")).unwrap();
        pair.one.sender().flush().unwrap();
        std::thread::sleep(Duration::from_micros(300 * round));
        match round % 3 {
            0 => pair.other.oob().disconnect(pair.to).unwrap(),
            1 => pair.other.close(pair.to).unwrap(),
            _ => pair.one.memories().release(&local).unwrap(),
        }
        pair.other.sender().flush().unwrap();
        for id in [long, behind] {
            // All may have been done before the end.
            outcome(&mut pair.one, id);
        }
        // The queue is whole: another connection, and as many requests as it has slots.
        if pair.one.peer_state(pair.from) == PeerState::Connected {
            pair.one.oob().disconnect(pair.from).unwrap();
            pair.one.sender().flush().unwrap();
        }
        let (listener, address) = open(&mut pair.other, PORT + 1);
        pair.one.oob().request_connection(pair.from, address, b"").unwrap();
        pair.one.sender().flush().unwrap();
        let request = next(&mut pair.other, listener);
        let (to, _) = open(&mut pair.other, 0);
        pair.other.oob().accept_connection(to, request.from(), b"").unwrap();
        pair.other.sender().flush().unwrap();
        becomes(&mut pair.one, pair.from, PeerState::Connected);
        let at = pair.one.oob().receive(pair.from).unwrap();
        assert_eq!(at.map(|answer| answer.kind()), Some(OobKind::Accept));
        for number in 0..300_u32 {
            let send = Request::send(&number.to_le_bytes());
            let id = pair.one.requests().queue(pair.from, &send).unwrap();
            pair.one.sender().flush().unwrap();
            assert_eq!(next(&mut pair.other, to).payload(), number.to_le_bytes());
            completes(&mut pair.one, id);
        }
    }
}

#[test]
fn requests_to_other_hosts_are_refused_for_a_reason() {
    let hosts = hosts();
    let [(mut one, from, own), (mut other, listener, address)] = hosts.sessions();
    let refused = |one: &mut Session, to, why| {
        one.oob().request_connection(from, to, b"").unwrap();
        one.sender().flush().unwrap();
        becomes(one, from, PeerState::Refused(why));
    };
    refused(&mut one, OobAddress { port: 9, ..address }, Refused::NoEndpoint);
    refused(&mut one, OobAddress { protocol: 17, ..address }, Refused::NoEndpoint);
    let unused = IpAddr::from([10, 77, 0, 99]);
    refused(&mut one, OobAddress { ip: unused, ..address }, Refused::Unreachable);
    one.oob().request_connection(from, address, b"?").unwrap();
    one.sender().flush().unwrap();
    assert_eq!(next(&mut other, listener).kind(), OobKind::Request);
    other.oob().reject_connection(listener, own, b"not today").unwrap();
    other.sender().flush().unwrap();
    becomes(&mut one, from, PeerState::Refused(Refused::Rejected));
    let answer = next(&mut one, from);
    assert_eq!((answer.kind(), &answer.payload()[..9]), (OobKind::Reject, &b"not today"[..]));
    // A request that is taken back before its answer.
    one.oob().request_connection(from, address, b"?").unwrap();
    one.sender().flush().unwrap();
    let request = next(&mut other, listener);
    one.oob().disconnect(from).unwrap();
    one.sender().flush().unwrap();
    let (accepting, _) = open(&mut other, 0);
    other.oob().accept_connection(accepting, request.from(), b"").unwrap();
    other.sender().flush().unwrap();
    let until = Instant::now() + PATIENCE;
    while matches!(other.peer_state(accepting), PeerState::Requested | PeerState::Connected) {
        assert!(Instant::now() < until, "{:?}", other.peer_state(accepting));
        other.wait(Some(Duration::from_millis(100))).unwrap();
        let _ = other.oob().ready().unwrap();
    }
}

#[test]
fn one_host_has_few_requests_without_an_answer() {
    let hosts = hosts();
    let [(mut one, _, _), (_other, _, address)] = hosts.sessions();
    let asked: Vec<Endpoint> = (0..6)
        .map(|_| {
            let (endpoint, _) = open(&mut one, 0);
            one.oob().request_connection(endpoint, address, b"").unwrap();
            endpoint
        })
        .collect();
    one.sender().flush().unwrap();
    let until = Instant::now() + PATIENCE;
    let refused = |one: &Session| {
        let full = PeerState::Refused(Refused::Full);
        asked.iter().filter(|endpoint| one.peer_state(**endpoint) == full).count()
    };
    while refused(&one) < 2 {
        assert!(Instant::now() < until);
        one.wait(Some(Duration::from_millis(100))).unwrap();
        let _ = one.oob().ready().unwrap();
    }
    assert_eq!(refused(&one), 2);
}

#[test]
fn a_full_queue_delays_messages_of_another_host_and_then_fails_them() {
    let mut pair = pair();
    // A quarter of the queue's slots is for one peer.
    let sent: Vec<RequestId> = (0..6_u8)
        .map(|number| pair.one.requests().queue(pair.from, &Request::send(&[number])).unwrap())
        .collect();
    (0..4).for_each(|number| completes(&mut pair.one, sent[number]));
    assert_eq!(pair.one.requests().state(sent[4]), RequestState::Pending);
    assert_eq!(next(&mut pair.other, pair.to).payload(), [0]);
    completes(&mut pair.one, sent[4]);
    assert_eq!(outcome(&mut pair.one, sent[5]), RequestState::Failed(RequestFault::NotReady));
    becomes(&mut pair.other, pair.to, PeerState::Closed);
    for number in 1..5 {
        assert_eq!(next(&mut pair.other, pair.to).payload(), [number]);
    }
}

/// Lets a request that is to fail wait for one that the other host puts off, for a second. Returns
/// `true` if the engine slept five times meanwhile.
fn sleeps_while_a_request_waits() -> bool {
    let mut pair = pair();
    let remote = pair.other.memories().create(4096, Sharing::Requests).unwrap();
    let key = pair.other.memories().export(pair.to, &remote, 0..4096, Access::Write).unwrap().key();
    let local = pair.one.memories().create(4096, Sharing::Requests).unwrap();
    // The last one finds no room.
    let sent: Vec<RequestId> = (0..5_u8)
        .map(|number| pair.one.requests().queue(pair.from, &Request::send(&[number])).unwrap())
        .collect();
    (0..4).for_each(|number| completes(&mut pair.one, sent[number]));
    let write = Request::write(key, 0).local(&local, 0..4096);
    let write = pair.one.requests().queue(pair.from, &write).unwrap();
    pair.one.memories().release(&local).unwrap();
    pair.one.sender().flush().unwrap();
    let before = pair.hosts.counter(0, "sleeps");
    loop {
        let sleeps = pair.hosts.counter(0, "sleeps") - before;
        // The state is read after the counter: the engine may sleep once the request has ended.
        if pair.one.requests().state(sent[4]) != RequestState::Pending {
            return false;
        }
        if sleeps >= 5 {
            assert_eq!(pair.one.requests().state(write), RequestState::Pending);
            return true;
        }
    }
}

#[test]
fn an_engine_sleeps_while_a_request_waits_to_fail() {
    let until = Instant::now() + PATIENCE;
    while !sleeps_while_a_request_waits() {
        assert!(Instant::now() < until, "the engine does not sleep");
    }
}

#[test]
fn without_rdma_another_host_is_no_endpoint() {
    let (one, other) = loopback::pair(&loopback::Config::default()).unwrap();
    let servers = [serve(1, Box::new(one), false), serve(2, Box::new(other), true)];
    let hosts = Hosts { servers };
    let [(mut one, from, own), (mut other, to, address)] = hosts.sessions();
    one.oob().request_connection(from, address, b"").unwrap();
    one.sender().flush().unwrap();
    becomes(&mut one, from, PeerState::Refused(Refused::NoEndpoint));
    other.oob().request_connection(to, own, b"").unwrap();
    other.sender().flush().unwrap();
    becomes(&mut other, to, PeerState::Refused(Refused::Unreachable));
    assert_eq!(one.oob().send(from, address, b"x"), Ok(()));
}
