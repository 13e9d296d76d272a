//! Hosts over sessions of one server: TCP and UDP from application to application through the
//! engine, with an in-memory device.

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use towpath_client::{Options, Session};
use towpath_device_testing::loopback;
use towpath_net::{
    Driving, Events, Interest, LinkError, Lost, Network, Poller, SessionLink, TcpListener,
    TcpStream, Trigger, UdpSocket,
};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

fn serve() -> (Server, loopback::LoopbackDevice) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let subnets = Subnets {
        ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)),
        ipv6: Some(Subnet::new("fd77::1".parse().unwrap(), 64)),
    };
    let config = Config { subnets, ..Config::default() };
    (Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap(), far)
}

fn host(server: &Server, name: &str, driving: Driving) -> Network {
    let socket = server.connect().unwrap();
    let session = Session::attach_over(socket, &SessionLink::options(name)).unwrap();
    Network::builder().driving(driving).over(session).unwrap()
}

fn echo(address: &str, driving: Driving) {
    let (server, _far) = serve();
    let (a, b) = (host(&server, "a", Driving::Thread), host(&server, "b", driving));
    echo_between(&a, &b, address);
    server.stop().unwrap();
}

/// Sends a stream from `b` to `a`, which has the address, and back.
fn echo_between(a: &Network, b: &Network, address: &str) {
    let listener = TcpListener::bind(a, format!("{address}:7")).unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 64 << 10];
        loop {
            let count = stream.read(&mut bytes).unwrap();
            if count == 0 {
                break;
            }
            stream.write_all(&bytes[..count]).unwrap();
        }
    });
    let mut stream = TcpStream::connect(b, format!("{address}:7")).unwrap();
    let sent: Vec<u8> = (0..4_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let to_send = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&to_send).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == sent, "{} of {} bytes, or wrong ones", got.len(), sent.len());
    writing.join().unwrap();
    serving.join().unwrap();
}

#[test]
fn tcp_over_ipv4() {
    echo("10.77.0.2", Driving::Thread);
}

#[test]
fn tcp_over_ipv6() {
    echo("[fd77::2]", Driving::Thread);
}

fn host_within(server: &Server, vlan: u16, last: u8) -> Network {
    let ipv4 = Some(Ipv4Addr::new(10, 77, 0, last));
    let options = Options { ipv4, ..SessionLink::options("inside") };
    let session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let link = SessionLink::within_vlan(session, vlan).unwrap();
    let config = link.config();
    Network::builder().on(Box::new(link), config).unwrap()
}

/// Hosts within a VLAN reach each other on one server, and across a wire whose devices do the
/// offload work or leave it to the server.
#[test]
fn sockets_within_a_vlan() {
    let (server, _far) = serve();
    let (a, b) = (host_within(&server, 7, 2), host_within(&server, 7, 3));
    echo_between(&a, &b, "10.77.0.2");
    echo_between(&a, &b, "[fd77::2]");
    server.stop().unwrap();
    for offloads in [true, false] {
        let device = loopback::Config { offloads, ..Default::default() };
        let (near, far) = loopback::pair(&device).unwrap();
        let start = |device, own: &str| {
            let ipv4 = Some(Subnet::new(own.parse().unwrap(), 24));
            let config = Config { subnets: Subnets { ipv4, ipv6: None }, ..Config::default() };
            Server::start(&config, device, Box::<MemoryStore>::default()).unwrap()
        };
        let near = start(Box::new(near), "10.77.0.1");
        let far = start(Box::new(far), "10.77.0.128");
        let (a, b) = (host_within(&near, 7, 2), host_within(&far, 7, 3));
        echo_between(&a, &b, "10.77.0.2");
        near.stop().unwrap();
        // The other end of its wire is gone.
        let _ = far.stop();
    }
}

#[test]
fn tcp_driven_by_the_application() {
    echo("10.77.0.2", Driving::Application);
}

/// Drains connections, also with a deadline beyond the clock's range.
#[test]
fn drain_waits_for_connections_with_any_deadline() {
    let (server, _far) = serve();
    let a = host(&server, "a", Driving::Thread);
    let listener = TcpListener::bind(&a, "10.77.0.2:7").unwrap();
    for (name, driving) in [("b", Driving::Thread), ("c", Driving::Application)] {
        let network = host(&server, name, driving);
        for longest in [Duration::MAX, Duration::from_secs(1 << 62)] {
            let mut stream = TcpStream::connect(&network, "10.77.0.2:7").unwrap();
            // The other side closes first, so that this side has only data in flight.
            drop(listener.accept().unwrap());
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
            drop(stream);
            network.drain(longest).unwrap();
            assert_eq!(network.connections(), 0);
        }
    }
    server.stop().unwrap();
}

#[test]
fn datagrams_larger_than_the_mtu() {
    let (server, _far) = serve();
    let (a, b) = (host(&server, "a", Driving::Thread), host(&server, "b", Driving::Thread));
    let (at, from) =
        (UdpSocket::bind(&a, "10.77.0.2:9").unwrap(), UdpSocket::bind(&b, "10.77.0.3:0").unwrap());
    let mut bytes = vec![0; 70_000];
    at.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for len in [0, 1, 1472, 1473, 9000, 65_507] {
        let sent: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        from.send_to(&sent, "10.77.0.2:9").unwrap();
        let (count, who) = at.recv_from(&mut bytes).unwrap();
        assert_eq!((count, &bytes[..count]), (len, &sent[..]));
        assert_eq!(who.ip(), "10.77.0.3".parse::<std::net::IpAddr>().unwrap());
    }
    server.stop().unwrap();
}

#[test]
fn a_dead_server_is_a_named_error_at_once() {
    let (server, _far) = serve();
    let a = host(&server, "a", Driving::Thread);
    let listener = TcpListener::bind(&a, "10.77.0.2:7").unwrap();
    let waiting = std::thread::spawn(move || {
        let error = listener.accept().map(|_| ()).unwrap_err();
        (error.to_string(), Instant::now())
    });
    std::thread::sleep(Duration::from_millis(200));
    let stopped = Instant::now();
    server.stop().unwrap();
    let (error, at) = waiting.join().unwrap();
    assert!(error.contains("the connection to the driver server ended"), "{error}");
    assert!(at.duration_since(stopped) < Duration::from_millis(100));
}

/// On a dead network, a new socket fails with the named error, and a later registration has an event at once.
#[test]
fn a_new_socket_fails_on_a_dead_network() {
    for driving in [Driving::Thread, Driving::Application] {
        let (server, _far) = serve();
        let a = host(&server, "a", driving);
        let listener = TcpListener::bind(&a, "10.77.0.2:7").unwrap();
        server.stop().unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::NetworkDown);
        for error in [
            UdpSocket::bind(&a, "10.77.0.2:0").err(),
            TcpListener::bind(&a, "10.77.0.2:0").err(),
            TcpStream::connect(&a, "10.77.0.3:7").err(),
            TcpStream::connect_nonblocking(&a, "10.77.0.3:7".parse().unwrap()).err(),
        ] {
            let error = error.expect("the network is dead");
            assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
            assert!(matches!(cause, Some(LinkError::Lost(Lost::ServerGone))), "{error:?}");
        }
        let (poller, mut events) = (Poller::new().unwrap(), Events::default());
        poller.register(&listener, 7, Interest::READABLE, Trigger::Edge).unwrap();
        assert_eq!(poller.wait(&mut events, None).unwrap(), 1);
        let event = events.iter().next().unwrap();
        assert!(event.token == 7 && event.ready.is_error() && event.ready.is_readable());
    }
}

/// Threads that block one after the other, and together, each get their own answers: whichever
/// thread drives hands over when it leaves.
#[test]
fn threads_take_turns_at_driving() {
    const ROUNDS: u32 = 300;
    let (server, _far) = serve();
    let (a, b) = (host(&server, "a", Driving::Thread), host(&server, "b", Driving::Thread));
    let echo = UdpSocket::bind(&a, "10.77.0.2:7").unwrap();
    echo.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 64];
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                if let Ok((count, from)) = echo.recv_from(&mut bytes) {
                    echo.send_to(&bytes[..count], from).unwrap();
                }
            }
        });
        // Alone, together, and with pauses in which no thread drives.
        for threads in [1_u16, 3] {
            let threads: Vec<_> = (0..threads)
                .map(|number| {
                    let socket = UdpSocket::bind(&b, ("0.0.0.0", 100 + number)).unwrap();
                    socket.connect("10.77.0.2:7").unwrap();
                    scope.spawn(move || {
                        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                        let mut bytes = [0; 64];
                        for round in 0..ROUNDS {
                            socket.send(&round.to_le_bytes()).unwrap();
                            assert_eq!(socket.recv(&mut bytes).unwrap(), 4, "round {round}");
                            assert_eq!(bytes[..4], round.to_le_bytes());
                            if round % 100 == 50 {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop((echo, a, b));
    server.stop().unwrap();
}
