//! Connections between applications of two servers, which are killed: by RoCEv2, over a bridge.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use towpath_client::{
    Access, Addresses, ApertureKey, Endpoint, Memory, OobAddress, OobKind, Options, PeerState,
    ReceivedOob, Refused, Request, RequestId, RequestState, Rule, Session, Sharing,
};

use crate::beside_the_kernel::{FAR, NEAR, device, may_attach, sockets, user};
use crate::networks::{net, wire};
use crate::running::*;

const KILLS: usize = 8;
const BYTES: usize = 200_000;
/// The value that ends the exchange.
const LAST: u32 = u32::MAX;

/// Requests of the longer exchange, and how many are under way at once.
const REQUESTS: u32 = 10_000;
const UNDER_WAY: usize = 32;
/// Places of the longer exchange in the aperture, of 8 bytes each.
const PLACES: u32 = 1_000;

/// Serves one of two hosts, each with addresses of its own on the same network.
fn serve_host(directory: &Directory, name: &str, lease: &str) -> Running {
    let device = format!("tap:{name}");
    let arguments = ["--device", &device, "--subnet", "10.77.0.1/24", "--lease", lease, "--rdma"];
    let server = serve(directory, &format!("{name}.sock"), &arguments);
    net().enslave(name, "br0").unwrap();
    net().set_up(name).unwrap();
    server
}

fn attach(server: &Running) -> (Session, Endpoint, OobAddress) {
    let options = Options { oob_slots: 256, apertures: 8, tripwires: 8, ..Options::default() };
    let mut session = Session::attach(&server.socket, &options).unwrap();
    let endpoint = session.open(&Rule::new().udp(0).out_of_band()).unwrap();
    let ip = IpAddr::V4(session.info().ipv4.unwrap().0);
    (session, endpoint, OobAddress { ip, protocol: 17, port: endpoint.port() })
}

fn message(session: &mut Session, endpoint: Endpoint) -> ReceivedOob {
    let until = Instant::now() + Duration::from_secs(12);
    loop {
        assert!(Instant::now() < until, "no message; the peer: {}", session.peer_state(endpoint));
        if let Some(message) = session.oob().receive(endpoint).unwrap() {
            return message;
        }
        let state = session.peer_state(endpoint);
        assert!(!matches!(state, PeerState::Closed | PeerState::Gone), "{state}");
        session.wait(Some(Duration::from_millis(100))).unwrap();
        let _ = session.oob().ready().unwrap();
    }
}

/// Connects a session of each of two servers, or of one.
fn connected(servers: [&Running; 2]) -> [(Session, Endpoint); 2] {
    let [(mut one, from, own), (mut other, to, address)] = servers.map(attach);
    one.oob().request_connection(from, address, b"").unwrap();
    one.sender().flush().unwrap();
    message(&mut other, to);
    other.oob().accept_connection(to, own, b"").unwrap();
    other.sender().flush().unwrap();
    message(&mut one, from);
    [(one, from), (other, to)]
}

fn completes(session: &mut Session, request: RequestId) {
    let until = Instant::now() + Duration::from_secs(12);
    loop {
        assert!(Instant::now() < until, "the request never ends");
        match session.requests().state(request) {
            RequestState::Complete => return,
            RequestState::Pending => {}
            failed => panic!("{failed:?}"),
        }
        session.wait(Some(Duration::from_millis(100))).unwrap();
        while session.oob().ready().unwrap().is_some() {}
    }
}

/// Kills the servers in turn, each time after some work.
fn kill(servers: &[Running; 2]) {
    for killed in 0..KILLS {
        let server = &servers[killed % 2];
        let before = server.log().matches("serving device=").count();
        std::thread::sleep(Duration::from_millis(20));
        server.kill_server();
        until("another server", || server.log().matches("serving device=").count() > before);
    }
}

fn two_hosts(directory: &Directory) -> [Running; 2] {
    net().create_bridge("br0").unwrap();
    net().set_up("br0").unwrap();
    [serve_host(directory, "opC", "10.77.0.16/28"), serve_host(directory, "opD", "10.77.0.32/28")]
}

/// Makes ten thousand requests: writes of their number with a value, and messages in between. Returns
/// once all are complete.
fn make_requests(one: &mut Session, from: Endpoint, key: ApertureKey) {
    let local = one.memories().create(PLACES as usize * 8, Sharing::Requests).unwrap();
    let mut under_way = VecDeque::new();
    for number in 1..=REQUESTS {
        let at = (number % PLACES) as usize * 8;
        let request = if number.is_multiple_of(4) {
            Request::send(&number.to_le_bytes())
        } else {
            local.write(at, &u64::from(number).to_le_bytes()).unwrap();
            Request::write(key, at as u64).local(&local, at..at + 8).with_value(number)
        };
        under_way.push_back(one.requests().queue(from, &request).unwrap());
        if under_way.len() >= UNDER_WAY
            && let Some(first) = under_way.pop_front()
        {
            completes(one, first);
        }
    }
    under_way.into_iter().for_each(|one_more| completes(one, one_more));
}

/// Receives what these requests send, and says how far it is.
fn receive_all(other: &mut Session, to: Endpoint, remote: &Memory, reached: &AtomicU32) {
    for number in 1..=REQUESTS {
        let said = message(other, to);
        if number.is_multiple_of(4) {
            let expected = &number.to_le_bytes()[..];
            assert_eq!((said.kind(), said.payload()), (OobKind::Message, expected));
        } else {
            assert_eq!(said.value(), Some((number, 8)));
            let at = (number % PLACES) as usize * 8;
            let placed = remote.load(at).unwrap();
            assert!(placed >= u64::from(number), "{placed} at the place of {number}");
        }
        reached.store(number, Ordering::Relaxed);
    }
}

/// Kills the servers in the middle of ten thousand requests of a session of the first one.
fn requests_outlive(servers: [&Running; 2]) {
    let [(mut one, from), (mut other, to)] = connected(servers);
    let remote = other.memories().create(PLACES as usize * 8, Sharing::Requests).unwrap();
    let export = other.memories().export(to, &remote, 0..remote.len(), Access::ReadWrite).unwrap();
    let tripwire = other.memories().set_tripwire(&remote, 0..8, Access::Write).unwrap();
    let (reached, key) = (AtomicU32::new(0), export.key());
    std::thread::scope(|scope| {
        let (sender, receiver, reached, remote) = (&mut one, &mut other, &reached, &remote);
        scope.spawn(move || make_requests(sender, from, key));
        scope.spawn(move || receive_all(receiver, to, remote, reached));
        for killed in 1..=KILLS as u32 {
            until("the next part", || {
                reached.load(Ordering::Relaxed) >= killed * REQUESTS / (KILLS as u32 + 1)
            });
            let server = servers[killed as usize % 2];
            let before = server.log().matches("serving device=").count();
            server.kill_server();
            until("another server", || server.log().matches("serving device=").count() > before);
        }
    });
    // The aperture and the tripwire are there.
    other.tripwires().arm(tripwire);
    let local = one.memories().create(4_096, Sharing::Requests).unwrap();
    let last = one.requests().queue(from, &Request::write(key, 0).local(&local, 0..8)).unwrap();
    completes(&mut one, last);
    until("the tripwire", || other.tripwires().has_fired(tripwire));
}

#[test]
fn ten_thousand_requests_outlive_killed_servers() {
    towpath_testkit::isolated!(|| {
        let test = "hosts::ten_thousand_requests_outlive_killed_servers";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        let mut servers = two_hosts(&directory);
        // On one host, and between two.
        requests_outlive([&servers[0], &servers[0]]);
        requests_outlive([&servers[0], &servers[1]]);
        for server in &mut servers {
            let log = server.log();
            assert!(!log.contains("not resumed"), "{log}");
            assert!(server.stop(Signal::TERM).success());
        }
    });
}

/// Each end of a connection is listed, with its peer here or on another host, also by the next
/// server.
#[test]
fn connections_are_listed_with_their_peers() {
    towpath_testkit::isolated!(|| {
        let test = "hosts::connections_are_listed_with_their_peers";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        let servers = two_hosts(&directory);
        let listed = |server: &Running| {
            let text = prints(&mut server.subcommand("ls", &[]));
            let from = text.lines().skip_while(|line| !line.contains("CONNECTION")).skip(1);
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            from.map(|line| words(line).join(" ")).collect::<Vec<_>>()
        };
        assert!(listed(&servers[0]).is_empty());
        let address = |(session, endpoint): &(Session, Endpoint)| {
            let ip = IpAddr::V4(session.info().ipv4.unwrap().0);
            OobAddress { ip, protocol: 17, port: endpoint.port() }
        };
        let [_here, _and_there] = connected([&servers[0], &servers[0]]);
        let [near, far] = connected([&servers[0], &servers[1]]);
        let expected = [
            "1 0 connected session 2 endpoint 0".to_owned(),
            "2 0 connected session 1 endpoint 0".to_owned(),
            format!("3 0 connected {}", address(&far)),
        ];
        for kills in 0..2 {
            assert_eq!(listed(&servers[0]), expected, "after {kills} kills");
            assert_eq!(listed(&servers[1]), [format!("1 0 connected {}", address(&near))]);
            servers[0].kill_server();
            let served = || servers[0].log().matches("serving device=").count();
            until("another server", || served() > kills + 1);
            // Before that, it lists nothing.
            until("the keeper knows", || servers[0].state() == "serving");
        }
        assert_eq!(listed(&servers[0]), expected);
        drop(far);
        until("the end", || listed(&servers[0]) == expected[..2]);
    });
}

/// Values and messages arrive once and in order, and writes and reads have the right bytes, whichever
/// server is killed.
#[test]
fn connections_with_other_hosts_outlive_the_servers() {
    towpath_testkit::isolated!(|| {
        let test = "hosts::connections_with_other_hosts_outlive_the_servers";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        let mut servers = two_hosts(&directory);
        let [(mut one, from), (mut other, to)] = connected([&servers[0], &servers[1]]);
        let remote = other.memories().create(BYTES, Sharing::Requests).unwrap();
        let key = other.memories().export(to, &remote, 0..BYTES, Access::ReadWrite).unwrap().key();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (over, one, other) = (&over, &mut one, &mut other);
            scope.spawn(move || {
                let local = one.memories().create(2 * BYTES, Sharing::Requests).unwrap();
                let mut round = 0_u32;
                loop {
                    round += 1;
                    let len = 1 + (round as usize * 7_919) % (BYTES - 1);
                    let pattern: Vec<u8> =
                        (0..len).map(|at| ((at as u32).wrapping_mul(round) >> 3) as u8).collect();
                    local.write(0, &pattern).unwrap();
                    let ends = over.load(Ordering::Relaxed);
                    let value = if ends { LAST } else { round };
                    let write = Request::write(key, 0).local(&local, 0..len);
                    let back = Request::read(key, 0).local(&local, BYTES..BYTES + len);
                    one.requests().queue(from, &write).unwrap();
                    one.requests().queue(from, &Request::send(&round.to_le_bytes())).unwrap();
                    one.requests().queue(from, &write.with_value(value)).unwrap();
                    let last = one.requests().queue(from, &back).unwrap();
                    completes(one, last);
                    let mut read = vec![0; len];
                    local.read(BYTES, &mut read).unwrap();
                    assert!(read == pattern, "round {round}");
                    if ends {
                        return;
                    }
                }
            });
            scope.spawn(move || {
                for round in 1_u32.. {
                    let said = message(other, to);
                    assert_eq!(
                        (said.kind(), said.payload()),
                        (OobKind::Message, &round.to_le_bytes()[..])
                    );
                    let value = message(other, to);
                    let (number, bytes) = value.value().unwrap();
                    assert_eq!(bytes as usize, 1 + (round as usize * 7_919) % (BYTES - 1));
                    if number == LAST {
                        return;
                    }
                    assert_eq!(number, round);
                }
            });
            kill(&servers);
            over.store(true, Ordering::Relaxed);
        });
        for server in &mut servers {
            let log = server.log();
            assert!(!log.contains("not resumed"), "{log}");
            assert!(server.stop(Signal::TERM).success());
        }
    });
}

/// A session with an address of its own connects with another host. One with the host's address does not:
/// UDP port 4791 there is the kernel's.
#[test]
fn beside_shared_addresses_leased_ones_reach_other_hosts() {
    towpath_testkit::isolated!(|| {
        if !may_attach("hosts::beside_shared_addresses_leased_ones_reach_other_hosts") {
            return;
        }
        let (far, directory, user) = (wire(&FAR, &NEAR), sockets(), user());
        let uplink = device("generic");
        let common = ["--user", &user, "--rdma", "--lease"];
        let near = [&["--device", &uplink, "--share-host"], &common[..]].concat();
        let near = serve(&directory, "near.sock", &[&near[..], &["192.0.2.64/28"]].concat());
        let other = [&["--device", "packet:far"], &common[..], &["192.0.2.32/28"]].concat();
        let other = far.run(|| serve(&directory, "far.sock", &other)).unwrap();
        let [(mut one, from), (mut two, to)] = connected([&near, &other]);
        let memory = two.memories().create(64, Sharing::Requests).unwrap();
        let key = two.memories().export(to, &memory, 0..64, Access::ReadWrite).unwrap().key();
        let local = one.memories().create(64, Sharing::Requests).unwrap();
        local.write(0, b"written").unwrap();
        let id = one.requests().queue(from, &Request::write(key, 0).local(&local, 0..64)).unwrap();
        one.sender().flush().unwrap();
        completes(&mut one, id);
        let mut seen = [0; 7];
        memory.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"written");

        let (_third, _, address) = attach(&other);
        let addresses = Addresses::Shared;
        let options = Options { oob_slots: 16, addresses, ..Options::default() };
        let mut shared = Session::attach(&near.socket, &options).unwrap();
        assert!(shared.info().shared);
        let ip = IpAddr::V4(shared.info().ipv4.unwrap().0);
        let endpoint = shared.open(&Rule::new().udp(7000).ip(ip).out_of_band()).unwrap();
        shared.oob().request_connection(endpoint, address, b"").unwrap();
        shared.sender().flush().unwrap();
        until("an answer", || shared.peer_state(endpoint) != PeerState::Requested);
        assert_eq!(shared.peer_state(endpoint), PeerState::Refused(Refused::Policy));
    });
}
