//! Connections between applications of two servers, which are killed: by RoCEv2, over a bridge.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use towpath_client::{
    Access, Endpoint, OobAddress, OobKind, Options, PeerState, ReceivedOob, Request, RequestId,
    RequestState, Rule, Session, Sharing,
};

use crate::networks::sh;
use crate::running::*;

const KILLS: usize = 8;
const BYTES: usize = 200_000;
/// The value that ends the exchange.
const LAST: u32 = u32::MAX;

/// Serves one of two hosts, each with addresses of its own on the same network.
fn serve_host(directory: &Directory, name: &str, lease: &str) -> Running {
    let device = format!("tap:{name}");
    let arguments = ["--device", &device, "--subnet", "10.77.0.1/24", "--lease", lease, "--rdma"];
    let server = serve(directory, &format!("{name}.sock"), &arguments);
    sh(&format!("ip link set {name} master br0; ip link set {name} up"));
    server
}

fn attach(server: &Running) -> (Session, Endpoint, OobAddress) {
    let options = Options { oob_slots: 64, apertures: 8, ..Options::default() };
    let mut session = Session::attach(&server.socket, &options).unwrap();
    let endpoint = session.open(&Rule::new().udp(0).out_of_band()).unwrap();
    let ip = IpAddr::V4(session.info().ipv4.unwrap().0);
    (session, endpoint, OobAddress { ip, protocol: 17, port: endpoint.port() })
}

fn message(session: &mut Session, endpoint: Endpoint) -> ReceivedOob {
    let until = Instant::now() + Duration::from_secs(12);
    loop {
        assert!(Instant::now() < until, "no message; the peer: {}", session.peer_state(endpoint));
        if let Some(message) = session.receive_oob(endpoint).unwrap() {
            return message;
        }
        let state = session.peer_state(endpoint);
        assert!(!matches!(state, PeerState::Closed | PeerState::Gone), "{state}");
        session.wait(Some(Duration::from_millis(100))).unwrap();
        let _ = session.ready_oob().unwrap();
    }
}

/// Connects two sessions.
fn connected(servers: &[Running; 2]) -> [(Session, Endpoint); 2] {
    let [(mut one, from, own), (mut other, to, address)] = servers.each_ref().map(attach);
    one.request_connection(from, address, b"").unwrap();
    one.flush().unwrap();
    message(&mut other, to);
    other.accept_connection(to, own, b"").unwrap();
    other.flush().unwrap();
    message(&mut one, from);
    [(one, from), (other, to)]
}

fn completes(session: &mut Session, request: RequestId) {
    let until = Instant::now() + Duration::from_secs(12);
    loop {
        assert!(Instant::now() < until, "the request never ends");
        match session.request_state(request) {
            RequestState::Complete => return,
            RequestState::Pending => {}
            failed @ RequestState::Failed(_) => panic!("{failed:?}"),
        }
        session.wait(Some(Duration::from_millis(100))).unwrap();
        while session.ready_oob().unwrap().is_some() {}
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

/// Values and messages arrive once and in order, and writes and reads have the right bytes, whichever
/// server is killed.
#[test]
fn connections_with_other_hosts_outlive_the_servers() {
    towpath_testkit::isolated!(|| {
        let test = "hosts::connections_with_other_hosts_outlive_the_servers";
        if !tun(test) || !installed(test, "ip", "iproute2") {
            return;
        }
        sh("ip link set lo up; ip link add br0 type bridge; ip link set br0 up");
        let directory = Directory::new();
        let mut servers = [
            serve_host(&directory, "opC", "10.77.0.16/28"),
            serve_host(&directory, "opD", "10.77.0.32/28"),
        ];
        let [(mut one, from), (mut other, to)] = connected(&servers);
        let remote = other.create_memory(BYTES, Sharing::Requests).unwrap();
        let key = other.export(to, &remote, 0..BYTES, Access::ReadWrite).unwrap().key();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (over, one, other) = (&over, &mut one, &mut other);
            scope.spawn(move || {
                let local = one.create_memory(2 * BYTES, Sharing::Requests).unwrap();
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
                    one.request(from, &write).unwrap();
                    one.request(from, &Request::send(&round.to_le_bytes())).unwrap();
                    one.request(from, &write.with_value(value)).unwrap();
                    let last = one.request(from, &back).unwrap();
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
