//! The sockets beside those of `std::net`: the same calls on both have the same outcomes, and each
//! public method of `std::net` is here or has a reason not to be. docs/sockets.md has the list.

#[path = "std_net/methods.rs"]
mod methods;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use methods::{Here, LISTENER, STREAM, UDP, VERSION};
use towpath_client::Session;
use towpath_device_testing::loopback;
use towpath_net::{Network, SessionLink, TcpListener, TcpStream, UdpSocket};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

const DOCUMENT: &str = "../../docs/sockets.md";

/// The calls that a script made, with their outcomes.
#[derive(Default)]
struct Calls {
    outcomes: Vec<(&'static str, String)>,
    used: BTreeSet<&'static str>,
}

impl Calls {
    fn note<T: Debug>(&mut self, method: &'static str, outcome: io::Result<T>) {
        self.used.insert(method);
        self.outcomes.push((method, format!("{:?}", outcome.map_err(|error| error.kind()))));
    }

    fn uses<T>(&mut self, method: &'static str, outcome: T) -> T {
        self.used.insert(method);
        outcome
    }
}

/// Calls a method, and notes its outcome to compare.
macro_rules! compare {
    ($calls:ident: $($on:ident.$method:ident($($argument:expr),*);)*) => {
        $($calls.note(stringify!($method), $on.$method($($argument),*));)*
    };
}

/// Calls a method whose outcome differs from socket to socket, and returns the outcome.
macro_rules! call {
    ($calls:ident: $on:ident.$method:ident($($argument:expr),*)) => {
        $calls.uses(stringify!($method), $on.$method($($argument),*))
    };
    ($calls:ident: $type:ident::$method:ident($($argument:expr),*)) => {
        $calls.uses(stringify!($method), $type::$method($($argument),*))
    };
}

const SECOND: Option<Duration> = Some(Duration::from_secs(1));

/// The timeouts and the time to live, which streams and UDP sockets have.
macro_rules! common_calls {
    ($calls:ident, $socket:ident) => {
        compare!($calls:
            $socket.read_timeout();
            $socket.set_read_timeout(SECOND);
            $socket.read_timeout();
            $socket.set_read_timeout(Some(Duration::ZERO));
            $socket.set_read_timeout(None);
            $socket.write_timeout();
            $socket.set_write_timeout(SECOND);
            $socket.write_timeout();
            $socket.set_write_timeout(Some(Duration::ZERO));
            $socket.ttl();
            $socket.set_ttl(17);
            $socket.ttl();
            $socket.set_ttl(0);
            $socket.set_ttl(256);
            $socket.take_error();
        );
    };
}

/// Calls on a stream whose peer has sent `request` and nothing more.
macro_rules! stream_calls {
    ($calls:ident, $stream:ident) => {{
        common_calls!($calls, $stream);
        let mut buffer = [0; 10];
        compare!($calls:
            $stream.nodelay();
            $stream.set_nodelay(true);
            $stream.nodelay();
            $stream.peek(&mut buffer);
            $stream.set_nonblocking(true);
            $stream.read(&mut buffer);
            $stream.peek(&mut buffer);
            $stream.read(&mut buffer);
            $stream.write(&[]);
            $stream.shutdown(Shutdown::Write);
            $stream.shutdown(Shutdown::Write);
            $stream.write(&buffer);
            $stream.shutdown(Shutdown::Read);
            $stream.read(&mut buffer);
        );
        assert_eq!(call!($calls: $stream.local_addr()).unwrap().port(), $stream.local_addr().unwrap().port());
        let clone = call!($calls: $stream.try_clone()).unwrap();
        assert_eq!(clone.peer_addr().unwrap(), call!($calls: $stream.peer_addr()).unwrap());
    }};
}

/// Calls on a listener to which no peer connects.
macro_rules! listener_calls {
    ($calls:ident, $listener:ident) => {{
        compare!($calls:
            $listener.ttl();
            $listener.set_ttl(17);
            $listener.ttl();
            $listener.set_ttl(0);
            $listener.take_error();
            $listener.set_nonblocking(true);
            $listener.accept();
        );
        let clone = call!($calls: $listener.try_clone()).unwrap();
        assert_eq!(clone.local_addr().unwrap(), call!($calls: $listener.local_addr()).unwrap());
        let next = call!($calls: $listener.incoming()).next().unwrap();
        assert_eq!(next.unwrap_err().kind(), ErrorKind::WouldBlock);
    }};
}

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3);

/// Calls on a UDP socket at `[::]`. `$interface`: the index of its interface.
macro_rules! udp_v6_calls {
    ($calls:ident, $socket:ident, $interface:expr) => {{
        compare!($calls:
            $socket.multicast_loop_v6();
            $socket.set_multicast_loop_v6(false);
            $socket.multicast_loop_v6();
            $socket.join_multicast_v6(&GROUP_V6, $interface);
            $socket.join_multicast_v6(&GROUP_V6, $interface);
            $socket.join_multicast_v6(&Ipv6Addr::LOCALHOST, $interface);
            $socket.leave_multicast_v6(&GROUP_V6, $interface);
            $socket.leave_multicast_v6(&GROUP_V6, $interface);
        );
    }};
}

/// Calls on a UDP socket. `$peer`: another one, which has sent it three datagrams of 7 bytes.
macro_rules! udp_calls {
    ($calls:ident, $socket:ident, $peer:ident) => {{
        common_calls!($calls, $socket);
        let (mut buffer, to) = ([0; 10], $peer.local_addr().unwrap());
        let IpAddr::V4(own) = $socket.local_addr().unwrap().ip() else { unreachable!() };
        compare!($calls:
            $socket.broadcast();
            $socket.set_broadcast(true);
            $socket.broadcast();
            $socket.multicast_ttl_v4();
            $socket.set_multicast_ttl_v4(3);
            $socket.multicast_ttl_v4();
            $socket.set_multicast_ttl_v4(256);
            $socket.multicast_loop_v4();
            $socket.set_multicast_loop_v4(false);
            $socket.multicast_loop_v4();
            $socket.set_multicast_loop_v4(true);
            $socket.join_multicast_v4(&GROUP, &own);
            $socket.join_multicast_v4(&GROUP, &own);
            $socket.join_multicast_v4(&Ipv4Addr::new(10, 1, 2, 3), &own);
            $socket.leave_multicast_v4(&GROUP, &own);
            $socket.leave_multicast_v4(&GROUP, &own);
            $socket.peer_addr();
            $socket.send_to(b"answer", to);
            $socket.connect(to);
            $socket.peek(&mut buffer);
            $socket.recv(&mut buffer);
            $socket.recv(&mut buffer[..3]);
            $socket.send(b"answer");
        );
        assert_eq!(call!($calls: $socket.peek_from(&mut buffer)).unwrap(), (7, to));
        assert_eq!(call!($calls: $socket.recv_from(&mut buffer)).unwrap(), (7, to));
        compare!($calls:
            $socket.set_nonblocking(true);
            $socket.recv_from(&mut buffer);
        );
        let clone = call!($calls: $socket.try_clone()).unwrap();
        assert_eq!(clone.local_addr().unwrap(), call!($calls: $socket.local_addr()).unwrap());
    }};
}

/// Two hosts on one server.
struct Hosts {
    a: Network,
    b: Network,
    server: Server,
    _far: loopback::LoopbackDevice,
}

fn hosts() -> Hosts {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let ipv4 = Some(Subnet::new("10.77.0.1".parse().unwrap(), 24));
    let config = Config { subnets: Subnets { ipv4, ipv6: None }, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let host = |name| {
        let socket = server.connect().unwrap();
        let session = Session::attach_over(socket, &SessionLink::options(name)).unwrap();
        Network::builder().over(session).unwrap()
    };
    let (a, b) = (host("a"), host("b"));
    Hosts { a, b, server, _far: far }
}

impl Hosts {
    fn end(self) {
        drop((self.a, self.b));
        self.server.stop().unwrap();
    }
}

/// Asserts that two scripts had the same outcomes, and that ours used what the list says.
fn check(kind: &str, ours: &Calls, theirs: &Calls, list: &[(&str, Here)]) {
    assert!(theirs.outcomes.len() > 6, "{kind}");
    for (ours, theirs) in ours.outcomes.iter().zip(&theirs.outcomes) {
        assert_eq!(ours, theirs, "{kind}: left: ours, right: std's");
    }
    assert_eq!(ours.outcomes.len(), theirs.outcomes.len(), "{kind}");
    for (method, here) in list {
        let is_omitted = matches!(here, Here::Omitted(_));
        assert_eq!(ours.used.contains(method), !is_omitted, "{kind}::{method}");
    }
}

#[test]
fn streams_behave_alike() {
    let hosts = hosts();
    let (mut ours, mut theirs) = (Calls::default(), Calls::default());
    let listener = TcpListener::bind(&hosts.a, "10.77.0.2:80").unwrap();
    let at: SocketAddr = "10.77.0.2:80".parse().unwrap();
    let mut stream = call!(ours: TcpStream::connect(&hosts.b, at)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(b"request").unwrap();
    stream_calls!(ours, stream);
    assert_eq!(call!(ours: stream.linger()).unwrap(), None);
    call!(ours: stream.set_linger(SECOND)).unwrap();
    assert_eq!(stream.linger().unwrap(), SECOND);
    let zero = call!(ours: TcpStream::connect_timeout(&hosts.b, &at, Duration::ZERO));
    assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
    TcpStream::connect_timeout(&hosts.b, &at, Duration::from_secs(20)).unwrap();

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(b"request").unwrap();
    stream_calls!(theirs, stream);
    let zero = std::net::TcpStream::connect_timeout(&at, Duration::ZERO);
    assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
    check("TcpStream", &ours, &theirs, STREAM);
    hosts.end();
}

#[test]
fn listeners_behave_alike() {
    let hosts = hosts();
    let (mut ours, mut theirs) = (Calls::default(), Calls::default());
    let listener = call!(ours: TcpListener::bind(&hosts.a, "10.77.0.2:80")).unwrap();
    listener_calls!(ours, listener);
    let mut incoming = call!(ours: listener.into_incoming());
    assert_eq!(incoming.next().unwrap().unwrap_err().kind(), ErrorKind::WouldBlock);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener_calls!(theirs, listener);
    check("TcpListener", &ours, &theirs, LISTENER);
    hosts.end();
}

#[test]
fn udp_sockets_behave_alike() {
    let hosts = hosts();
    let (mut ours, mut theirs) = (Calls::default(), Calls::default());
    let socket = call!(ours: UdpSocket::bind(&hosts.a, "10.77.0.2:53")).unwrap();
    let peer = UdpSocket::bind(&hosts.b, "10.77.0.3:0").unwrap();
    for broadcast in ["10.77.0.255:9", "255.255.255.255:9"] {
        let denied = peer.send_to(b"all", broadcast).unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    }
    for _ in 0..3 {
        peer.send_to(b"request", "10.77.0.2:53").unwrap();
    }
    udp_calls!(ours, socket, peer);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3 {
        peer.send_to(b"request", socket.local_addr().unwrap()).unwrap();
    }
    udp_calls!(theirs, socket, peer);
    let socket = UdpSocket::bind(&hosts.a, "[::]:54").unwrap();
    udp_v6_calls!(ours, socket, 0);
    let socket = std::net::UdpSocket::bind("[::]:0").unwrap();
    // The loopback interface.
    udp_v6_calls!(theirs, socket, 1);
    check("UdpSocket", &ours, &theirs, UDP);
    hosts.end();
}

const LISTS: [(&str, &[(&str, Here)]); 3] =
    [("TcpStream", STREAM), ("TcpListener", LISTENER), ("UdpSocket", UDP)];

/// The document has the list, as a table for each kind of socket.
#[test]
fn the_document_has_the_list() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    let text = std::fs::read_to_string(document).unwrap();
    assert!(text.contains(&format!("Rust {VERSION}")));
    for (kind, list) in LISTS {
        let table = methods::table(list);
        let found = text.contains(&format!("## {kind}\n\n{table}"));
        assert!(found, "docs/sockets.md has another table for {kind}, instead of:\n{table}");
    }
}

/// Returns the methods in a page of the standard library's documentation.
fn documented(page: &str) -> Vec<String> {
    let own = page.split("id=\"trait-implementations\"").next().unwrap();
    let marks = own.split("<section id=\"method.").skip(1);
    marks.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

/// Says why the list was not compared. That is no failure, even where all tests have to run: a
/// later Rust may have more methods, and an installation need not have the documentation.
fn not_compared(cause: &str, remedy: &str) {
    // In one write: other tests print at the same time.
    let line = format!("SKIP the_list_is_complete: {cause}; {remedy}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The list has every public method of `std::net`, as the toolchain's own documentation tells them.
#[test]
fn the_list_is_complete() {
    let rustc = |argument: &[&str]| {
        let output = Command::new("rustc").args(argument).output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let version = rustc(&["--version"]).unwrap_or_default();
    if !version.starts_with(&format!("rustc {VERSION}.")) {
        let cause = format!("the list is that of Rust {VERSION}, not of {:?}", version.trim());
        return not_compared(&cause, &format!("run with Rust {VERSION}, or renew the list"));
    }
    let sysroot = rustc(&["--print", "sysroot"]).unwrap_or_default();
    let pages = Path::new(sysroot.trim()).join("share/doc/rust/html/std/net");
    for (kind, list) in LISTS {
        let Ok(page) = std::fs::read_to_string(pages.join(format!("struct.{kind}.html"))) else {
            return not_compared("Rust has no documentation", "rustup component add rust-docs");
        };
        let listed: Vec<&str> = list.iter().map(|(method, _)| *method).collect();
        assert_eq!(documented(&page), listed, "{kind}");
    }
}
