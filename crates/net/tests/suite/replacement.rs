//! The replacement of a network by another one: connections stay, new ones change over, and none is lost in between.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use towpath_client::{Options, Session};
use towpath_device_testing::loopback;
use towpath_net::{
    Flow, Link, Network, Replacement, SessionLink, SocketError, TcpListener, TcpStream, UdpSocket,
};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

/// A time after which a test fails.
const LONG: Duration = Duration::from_secs(60);

fn start(device: loopback::LoopbackDevice, last: u8) -> Server {
    let subnets = Subnets {
        ipv4: Some(Subnet::new(format!("10.77.0.{last}").parse().unwrap(), 24)),
        ipv6: Some(Subnet::new(format!("fd77::{last}").parse().unwrap(), 64)),
    };
    let config = Config { subnets, ..Config::default() };
    Server::start(&config, Box::new(device), Box::<MemoryStore>::default()).unwrap()
}

/// A server for networks that replace each other, and one on the other end of its wire.
struct Wired {
    near: Server,
    far: Server,
}

fn wired() -> Wired {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    Wired { near: start(near, 1), far: start(far, 200) }
}

impl Wired {
    /// Returns the number of packets that were for no endpoint. A client's packet to its own server leaves for the other one
    /// if it finds no endpoint.
    fn unmatched(&self) -> u64 {
        let of = |server: &Server| {
            let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
            report["device"]["counters"]["rx_dropped_no_match"].as_u64().unwrap()
        };
        of(&self.near) + of(&self.far)
    }

    fn stop(self) {
        self.near.stop().unwrap();
        // The other end of its wire is gone.
        let _ = self.far.stop();
    }
}

fn attach(server: &Server, options: &Options) -> Network {
    let session = Session::attach_over(server.connect().unwrap(), options).unwrap();
    Network::builder().over(session).unwrap()
}

fn network(server: &Server, name: &str) -> Network {
    attach(server, &SessionLink::options(name))
}

/// Attaches a network to the server on the other end of the wire. The servers' subnet is the same, so the test gives it an
/// address.
fn beyond(wired: &Wired, last: u8) -> Network {
    let ipv4 = Some(Ipv4Addr::new(10, 77, 0, last));
    attach(&wired.far, &Options { ipv4, ..SessionLink::options("client") })
}

/// Attaches a network that replaces an earlier one of its name.
fn replacing(server: &Server, name: &str) -> Network {
    let options = Options { replace: Some(LONG), ..SessionLink::options(name) };
    let session = loop {
        match Session::attach_over(server.connect().unwrap(), &options) {
            Ok(session) => break session,
            // Another session of the name ends.
            Err(error) => assert!(error.to_string().contains("ask again"), "{error}"),
        }
    };
    Network::builder().over(session).unwrap()
}

fn address(network: &Network) -> SocketAddr {
    let all = network.addresses();
    let own = all.iter().find(|ip| ip.is_ipv4()).unwrap();
    SocketAddr::new(*own, 7)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < until, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Answers each connection with the service's letter and the request, until the listener fails. Returns the number of
/// connections and the error's kind.
fn serve(network: &Network, letter: u8) -> std::thread::JoinHandle<(usize, ErrorKind)> {
    let listener = TcpListener::bind(network, "0.0.0.0:7").unwrap();
    std::thread::spawn(move || {
        let mut count = 0;
        loop {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
                    assert!(matches!(cause, Some(SocketError::HandedOver)), "{error}");
                    return (count, error.kind());
                }
            };
            count += 1;
            std::thread::spawn(move || {
                let mut request = [0; 8];
                while stream.read_exact(&mut request).is_ok() {
                    stream.write_all(&[letter]).unwrap();
                    stream.write_all(&request).unwrap();
                }
            });
        }
    })
}

/// Makes a request, and returns the letter of the service that answered.
fn ask(stream: &mut TcpStream, request: u64) -> u8 {
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(&request.to_ne_bytes()).unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[1..], request.to_ne_bytes());
    answer[0]
}

/// The clients: one over the wire, and one at the same server.
fn clients(wired: &Wired) -> [Network; 2] {
    [beyond(wired, 211), network(&wired.near, "client")]
}

#[test]
fn connections_stay_and_new_ones_change_over() {
    let wired = wired();
    let clients = clients(&wired);
    let old = network(&wired.near, "web");
    let at = address(&old);
    let old_service = serve(&old, b'o');
    let connect = |client: &Network| TcpStream::connect(client, at).unwrap();
    let mut kept: Vec<TcpStream> =
        clients.iter().flat_map(|one| [connect(one), connect(one)]).collect();
    assert!(kept.iter_mut().all(|stream| ask(stream, 1) == b'o'));
    old.hand_over().unwrap();
    assert!(!old.is_taken_over());
    let new = replacing(&wired.near, "web");
    assert_eq!(address(&new), at);
    let new_service = serve(&new, b'n');
    // Until the new network takes over, the old one has new connections too.
    kept.extend(clients.iter().map(connect));
    assert!(kept.iter_mut().all(|stream| ask(stream, 2) == b'o'));
    new.take_over().unwrap();
    assert_eq!(old_service.join().unwrap(), (6, ErrorKind::AddrNotAvailable));
    assert!(old.is_taken_over());
    let mut fresh: Vec<TcpStream> = clients.iter().map(connect).collect();
    for round in 3..50 {
        assert!(kept.iter_mut().all(|stream| ask(stream, round) == b'o'));
        assert!(fresh.iter_mut().all(|stream| ask(stream, round) == b'n'));
    }
    let refused = TcpListener::bind(&old, "0.0.0.0:8").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrNotAvailable);
    // The old network still makes connections, and the new one others, to the same peer; also to a host whose link address
    // both have to learn.
    let late = beyond(&wired, 212);
    for client in clients.iter().chain([&late]) {
        let listener = TcpListener::bind(client, "[::]:9").unwrap();
        let all = client.addresses().into_iter().filter(|ip| !is_link_local(*ip));
        for (from, ip) in all.flat_map(|ip| [(&old, ip), (&new, ip)]) {
            let to = SocketAddr::new(ip, 9);
            let mut begun = TcpStream::connect(from, to).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            begun.write_all(b"x").unwrap();
            accepted.read_exact(&mut [0]).unwrap();
        }
    }
    drop(kept);
    old.drain(LONG).unwrap();
    drop(old);
    assert!(fresh.iter_mut().all(|stream| ask(stream, 99) == b'n'));
    // And on to the next one.
    new.hand_over().unwrap();
    let newest = replacing(&wired.near, "web");
    let _newest_service = serve(&newest, b'N');
    newest.take_over().unwrap();
    assert_eq!(new_service.join().unwrap(), (2, ErrorKind::AddrNotAvailable));
    let mut last: Vec<TcpStream> = clients.iter().map(connect).collect();
    assert!(last.iter_mut().all(|stream| ask(stream, 100) == b'N'));
    assert!(fresh.iter_mut().all(|stream| ask(stream, 100) == b'n'));
    drop((fresh, last));
    drop((new, newest, clients, late));
    wired.stop();
}

/// Clients connect all the time, while networks replace each other: no connection is refused or reset, and each packet has a
/// receiver.
#[test]
fn no_connection_is_lost_in_a_row_of_replacements() {
    let wired = wired();
    let clients = clients(&wired);
    let mut current = network(&wired.near, "web");
    let at = address(&current);
    let mut service = serve(&current, 0);
    for client in &clients {
        assert_eq!(ask(&mut TcpStream::connect(client, at).unwrap(), 0), 0);
    }
    let before = wired.unmatched();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connecting: Vec<_> = clients
            .iter()
            .map(|client| {
                let stop = &stop;
                scope.spawn(move || {
                    let (mut count, mut letters) = (0u64, std::collections::BTreeSet::new());
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let mut stream = TcpStream::connect(client, at).unwrap();
                        letters.insert(ask(&mut stream, count));
                        letters.insert(ask(&mut stream, count + 1));
                        count += 1;
                    }
                    (count, letters.len())
                })
            })
            .collect();
        let mut accepted = 0;
        for letter in 1..=6 {
            std::thread::sleep(Duration::from_millis(30));
            current.hand_over().unwrap();
            let next = replacing(&wired.near, "web");
            let next_service = serve(&next, letter);
            std::thread::sleep(Duration::from_millis(10));
            next.take_over().unwrap();
            let (count, kind) = service.join().unwrap();
            accepted += count;
            assert_eq!(kind, ErrorKind::AddrNotAvailable);
            current.drain(LONG).unwrap();
            (current, service) = (next, next_service);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in connecting {
            let (count, letters) = thread.join().unwrap();
            assert!(count > 0 && letters > 1, "{count} connections to {letters} networks");
        }
        assert!(accepted > 0);
    });
    assert_eq!(wired.unmatched(), before, "packets found no receiver");
    drop((current, clients));
    wired.stop();
}

#[test]
fn datagrams_change_over_except_those_of_a_peer() {
    let wired = wired();
    let clients = clients(&wired);
    let old = network(&wired.near, "dns");
    let at = address(&old);
    let open = UdpSocket::bind(&old, "0.0.0.0:7").unwrap();
    let peers: Vec<UdpSocket> =
        clients.iter().map(|one| UdpSocket::bind(one, "0.0.0.0:5000").unwrap()).collect();
    let connected: Vec<UdpSocket> = (6000..)
        .zip(&clients)
        .map(|(port, client)| {
            let socket = UdpSocket::bind(&old, SocketAddr::new(at.ip(), port)).unwrap();
            socket.connect(SocketAddr::new(address(client).ip(), 5000)).unwrap();
            socket
        })
        .collect();
    old.hand_over().unwrap();
    let new = replacing(&wired.near, "dns");
    let new_open = UdpSocket::bind(&new, "0.0.0.0:7").unwrap();
    new.take_over().unwrap();
    for socket in [&open, &new_open] {
        socket.set_read_timeout(Some(LONG)).unwrap();
    }
    assert_eq!(open.recv_from(&mut [0; 8]).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    for (peer, socket) in peers.iter().zip(&connected) {
        peer.send_to(b"new", at).unwrap();
        let (len, from) = new_open.recv_from(&mut [0; 8]).unwrap();
        assert_eq!((len, from.port()), (3, 5000));
        socket.set_read_timeout(Some(LONG)).unwrap();
        peer.send_to(b"old", SocketAddr::new(at.ip(), socket.local_addr().unwrap().port()))
            .unwrap();
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 3);
        // The old network still sends, also by sockets without a peer.
        open.send_to(b"last", SocketAddr::new(peer.local_addr().unwrap().ip(), 5000)).ok();
    }
    drop((open, new_open, peers, connected));
    drop((old, new, clients));
    wired.stop();
}

/// A session keeps its addresses to itself until it hands over, and gives them to its own name and user only.
#[test]
fn only_a_network_that_hands_over_is_replaced() {
    let wired = wired();
    let old = network(&wired.near, "web");
    let options = Options { replace: Some(Duration::ZERO), ..SessionLink::options("web") };
    let attach = |options: &Options| {
        Session::attach_over(wired.near.connect().unwrap(), options).map(|one| one.info().mac)
    };
    let refused = attach(&options).unwrap_err().to_string();
    assert!(refused.contains("has not handed over"), "{refused}");
    let of_another_name = attach(&Options { name: "other".to_owned(), ..options.clone() }).unwrap();
    old.hand_over().unwrap();
    assert_ne!(attach(&Options { replace: None, ..options.clone() }).unwrap(), of_another_name);
    let new = replacing(&wired.near, "web");
    assert_eq!(address(&new), address(&old));
    // The new one has yet to take over, and hands nothing over before.
    assert_eq!(new.hand_over().unwrap_err().kind(), ErrorKind::InvalidInput);
    let refused = attach(&options).unwrap_err().to_string();
    assert!(refused.contains("has not handed over"), "{refused}");
    new.take_over().unwrap();
    new.take_over().unwrap();
    eventually("taken over", || old.is_taken_over());
    drop(old);
    // Alone again, the network needs no flows.
    let client = network(&wired.near, "client");
    let _service = serve(&new, b'n');
    assert_eq!(ask(&mut TcpStream::connect(&client, address(&new)).unwrap(), 1), b'n');
    // A network that replaces none gets new addresses, and is complete at once.
    let first = replacing(&wired.near, "first");
    first.take_over().unwrap();
    let _first_service = serve(&first, b'f');
    assert_eq!(ask(&mut TcpStream::connect(&client, address(&first)).unwrap(), 1), b'f');
    drop((new, client, first));
    wired.stop();
}

/// The new process ends before it takes over, and the old one goes on; then the old one ends first.
#[test]
fn either_network_may_end_at_any_time() {
    let wired = wired();
    let clients = clients(&wired);
    let old = network(&wired.near, "web");
    let at = address(&old);
    let _old_service = serve(&old, b'o');
    let connect = |client: &Network| TcpStream::connect(client, at).unwrap();
    let mut kept: Vec<TcpStream> = clients.iter().map(connect).collect();
    old.hand_over().unwrap();
    drop(replacing(&wired.near, "web"));
    kept.extend(clients.iter().map(connect));
    assert!(kept.iter_mut().all(|stream| ask(stream, 1) == b'o'));
    let new = replacing(&wired.near, "web");
    let _new_service = serve(&new, b'n');
    drop((kept, old));
    // No network answers until the new one takes over.
    new.take_over().unwrap();
    let mut fresh: Vec<TcpStream> = clients.iter().map(connect).collect();
    assert!(fresh.iter_mut().all(|stream| ask(stream, 2) == b'n'));
    drop(fresh);
    drop((new, clients));
    wired.stop();
}

/// Too many connections for the session's endpoints: the network says so, and continues.
#[test]
fn a_network_without_enough_endpoints_says_so() {
    let wired = wired();
    let client = beyond(&wired, 211);
    let old = attach(&wired.near, &Options { endpoints: 4, ..SessionLink::options("web") });
    let at = address(&old);
    let _service = serve(&old, b'o');
    let mut all: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(&client, at).unwrap()).collect();
    assert!(all.iter_mut().all(|stream| ask(stream, 1) == b'o'));
    assert_eq!(old.hand_over().unwrap_err().kind(), ErrorKind::QuotaExceeded);
    assert!(all.iter_mut().all(|stream| ask(stream, 2) == b'o'));
    // It continues as before, with more connections than a hand-over could keep.
    let more = (0..5).map(|_| TcpStream::connect(&client, at).unwrap());
    let mut more: Vec<TcpStream> = more.collect();
    assert!(more.iter_mut().all(|stream| ask(stream, 2) == b'o'));
    drop((more, all.pop()));
    eventually("some are closed", || old.connections() == 2);
    old.hand_over().unwrap();
    assert!(all.iter_mut().all(|stream| ask(stream, 3) == b'o'));
    drop((all, client, old));
    wired.stop();
}

/// Returns `true` if a session of the server has an endpoint for link control.
fn has_link_control(server: &Server) -> bool {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    report.to_string().contains("copies of ARP")
}

/// The new network keeps nothing for a replacement once the old one has ended, whichever step that comes before.
#[test]
fn a_replacement_leaves_nothing_behind() {
    let wired = wired();
    for before_the_link in [true, false] {
        let name = format!("web {before_the_link}");
        let old = network(&wired.near, &name);
        old.hand_over().unwrap();
        assert!(has_link_control(&wired.near));
        let options = Options { replace: Some(LONG), ..SessionLink::options(&name) };
        let session = Session::attach_over(wired.near.connect().unwrap(), &options).unwrap();
        let new = if before_the_link {
            drop(old);
            eventually("the old session has ended", || !has_link_control(&wired.near));
            Network::builder().over(session).unwrap()
        } else {
            let new = Network::builder().over(session).unwrap();
            drop(old);
            new
        };
        new.take_over().unwrap();
        eventually("the endpoint is closed", || !has_link_control(&wired.near));
        drop(new);
    }
    wired.stop();
}

/// The old application ends without a hand-over, while the new one waits. The new one gets the same addresses.
#[test]
fn a_network_that_ends_leaves_its_addresses_to_the_one_that_waits() {
    let wired = wired();
    for round in 0..10 {
        let name = format!("web {round}");
        let old = network(&wired.near, &name);
        let at = address(&old);
        let ending = std::thread::spawn(move || drop(old));
        let options = Options { replace: Some(LONG), ..SessionLink::options(&name) };
        let session = loop {
            match Session::attach_over(wired.near.connect().unwrap(), &options) {
                Ok(session) => break session,
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("handed over") || text.contains("ask again"), "{text}");
                }
            }
        };
        ending.join().unwrap();
        assert_eq!(address(&Network::builder().over(session).unwrap()), at);
    }
    wired.stop();
}

#[test]
fn fragments_and_new_sockets_of_the_old_network() {
    let wired = wired();
    let client = beyond(&wired, 211);
    let old = network(&wired.near, "dns");
    let at = SocketAddr::new(address(&old).ip(), 6000);
    let peer = UdpSocket::bind(&client, "0.0.0.0:5000").unwrap();
    let socket = UdpSocket::bind(&old, at).unwrap();
    socket.connect(SocketAddr::new(address(&client).ip(), 5000)).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    old.hand_over().unwrap();
    let new = replacing(&wired.near, "dns");
    new.take_over().unwrap();
    eventually("taken over", || old.is_taken_over());
    for len in [600, 6000] {
        peer.send_to(&vec![7; len], at).unwrap();
        assert_eq!(socket.recv(&mut [0; 8000]).unwrap(), len);
    }
    // Nothing can reach a new socket without a peer.
    let later = UdpSocket::bind(&old, "0.0.0.0:0").unwrap();
    later.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(later.recv_from(&mut [0; 8]).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    // The other network has this connection's addresses and ports.
    let listener = TcpListener::bind(&client, "0.0.0.0:9").unwrap();
    let to = SocketAddr::new(address(&client).ip(), 9);
    let from = SocketAddr::new(at.ip(), 50_000);
    let _first = TcpStream::connect_from(&old, from, to).unwrap();
    let _accepted = listener.accept().unwrap();
    let refused = TcpStream::connect_from(&new, from, to).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrInUse, "{refused}");
    drop((peer, socket, later, old, new, client));
    wired.stop();
}

/// The end of an earlier network becomes known in the middle of the next hand-over.
#[test]
fn an_end_amid_a_hand_over_costs_no_flow() {
    let wired = wired();
    let old = network(&wired.near, "web");
    old.hand_over().unwrap();
    let options = Options { replace: Some(LONG), ..SessionLink::options("web") };
    let session = Session::attach_over(wired.near.connect().unwrap(), &options).unwrap();
    let own = session.info().ipv4.unwrap().0;
    let mut link = SessionLink::new(session).unwrap();
    link.take_over().unwrap();
    link.begin().unwrap();
    drop(old);
    // The server closes the endpoint for link control, and the link opens another one.
    let opened = |server: &Server| {
        let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
        let sessions = report["sessions"].as_array().unwrap().len();
        (sessions, report.to_string().contains("copies of ARP"))
    };
    eventually("the old session has ended", || opened(&wired.near).0 == 1);
    eventually("the link knows", || {
        link.has_news().unwrap();
        link.receive(32, &mut |_, _| ()).unwrap();
        link.flush().unwrap();
        opened(&wired.near).1
    });
    let remote = "10.77.0.99:9".parse().unwrap();
    let flow = Flow { protocol: 6, local: SocketAddr::new(own.into(), 7), remote };
    link.keep(&flow).unwrap();
    link.hand_over().unwrap();
    let report = towpath_client::report_over(wired.near.connect().unwrap()).unwrap().to_string();
    assert!(link.is_shared() && report.contains("10.77.0.99"), "{report}");
    drop(link);
    wired.stop();
}
