//! The kernel's sockets on the other side of a TAP device receive all datagrams of a program that ends at once.

use std::time::{Duration, Instant};

use towpath_client::{Meta, Rule, Session};
use towpath_net::{Driving, Network, SessionLink, UdpSocket};
use towpath_packet::build::Flow;
use towpath_server::Server;
use towpath_testkit::isolated;

use crate::server_tap::serve;

const SINK: &str = "10.77.0.1:4000";

/// A socket of the kernel that counts the arrived datagrams, also those for which its buffer had no room.
struct Sink {
    counting: std::thread::JoinHandle<usize>,
}

impl Sink {
    /// Counts datagrams until `wanted` have come, or none comes for 2 s.
    fn at(address: &str, wanted: usize) -> Sink {
        let socket = std::net::UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let counting = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            let received = (0..wanted).take_while(|_| socket.recv(&mut buffer).is_ok()).count();
            received + dropped(&socket)
        });
        Sink { counting }
    }

    fn count(self) -> usize {
        self.counting.join().unwrap()
    }
}

/// Returns how many datagrams found no room in a socket's buffer.
fn dropped(socket: &std::net::UdpSocket) -> usize {
    let port = format!(":{:04X}", socket.local_addr().unwrap().port());
    let sockets = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let mut lines = sockets.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|columns| columns[1].ends_with(&port)).expect("the socket is listed");
    line.last().unwrap().parse().unwrap()
}

fn network(server: &Server, driving: Driving) -> Network {
    let socket = server.connect().unwrap();
    let session = Session::attach_over(socket, &SessionLink::options("last")).unwrap();
    Network::builder().driving(driving).over(session).unwrap()
}

fn send(network: &Network, count: usize, to: &str) {
    let socket = UdpSocket::bind(network, "0.0.0.0:0").unwrap();
    for number in 0..count {
        socket.send_to(&[number as u8; 64], to).unwrap();
    }
}

#[test]
fn the_last_drop_sends_datagrams_to_an_unknown_neighbour() {
    isolated!(|| {
        let server = serve(1500);
        for driving in [Driving::Thread, Driving::Application] {
            let (sink, network) = (Sink::at(SINK, 100), network(&server, driving));
            send(&network, 100, SINK);
            drop(network);
            assert_eq!(sink.count(), 100, "{driving:?}");
        }
        server.stop().unwrap();
    });
}

#[test]
fn the_last_drop_sends_datagrams_to_a_known_neighbour() {
    isolated!(|| {
        let server = serve(1500);
        for driving in [Driving::Thread, Driving::Application] {
            let network = network(&server, driving);
            let first = Sink::at(SINK, 1);
            send(&network, 1, SINK);
            if driving == Driving::Application {
                network.drain(Duration::from_secs(20)).unwrap();
            }
            assert_eq!(first.count(), 1, "the neighbour is known");
            let sink = Sink::at(SINK, 1000);
            send(&network, 1000, SINK);
            drop(network);
            assert_eq!(sink.count(), 1000, "{driving:?}");
        }
        server.stop().unwrap();
    });
}

#[test]
fn a_drain_waits_for_datagrams() {
    isolated!(|| {
        let server = serve(1500);
        for driving in [Driving::Thread, Driving::Application] {
            let (sink, network) = (Sink::at(SINK, 100), network(&server, driving));
            send(&network, 100, SINK);
            network.drain(Duration::from_secs(20)).unwrap();
            assert_eq!(sink.count(), 100, "{driving:?}");
            assert_eq!(network.end(Duration::ZERO).unsent_at_end, 0);
        }
        server.stop().unwrap();
    });
}

#[test]
fn datagrams_that_do_not_leave_are_counted() {
    isolated!(|| {
        let server = serve(1500);
        for driving in [Driving::Thread, Driving::Application] {
            let network = network(&server, driving);
            let other = network.clone();
            send(&network, 5, "10.77.0.200:1");
            let error = network.drain(Duration::from_millis(20)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            assert_eq!(network.end(Duration::from_millis(20)).unsent_at_end, 5, "{driving:?}");
            let error = other.drain(Duration::ZERO).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NetworkDown);
        }
        // The last drop waits for an answer, for a bounded time.
        let network = network(&server, Driving::Thread);
        send(&network, 5, "10.77.0.200:1");
        let began = Instant::now();
        drop(network);
        assert!(began.elapsed() >= Duration::from_secs(1), "a neighbour has time to answer");
        server.stop().unwrap();
    });
}

/// The engine sends the packets in the transmit queue of a session without a stack, after the session has detached.
#[test]
fn a_detached_sessions_queue_is_sent() {
    isolated!(|| {
        let server = serve(1500);
        // The kernel learns the address.
        let warm = network(&server, Driving::Thread);
        let first = Sink::at(SINK, 1);
        send(&warm, 1, SINK);
        assert_eq!(first.count(), 1);
        for _ in 0..20 {
            let sink = Sink::at(SINK, 100);
            let socket = server.connect().unwrap();
            let mut session = Session::attach_over(socket, &SessionLink::options("raw")).unwrap();
            let endpoint = session.open(&Rule::new()).unwrap();
            let (own, _) = session.info().ipv4.unwrap();
            let flow = Flow {
                source: own.into(),
                destination: "10.77.0.1".parse().unwrap(),
                ..Flow::v4()
            };
            let packet = flow.macs(session.info().mac, [0xff; 6]).ports(7, 4000).udp(&[1; 64]);
            for _ in 0..100 {
                session
                    .sender()
                    .send(endpoint, packet.len(), Meta::FULL, |parts| {
                        parts[0].copy_from_slice(&packet);
                    })
                    .unwrap();
            }
            session.sender().flush().unwrap();
            drop(session);
            assert_eq!(sink.count(), 100);
        }
        server.stop().unwrap();
    });
}
