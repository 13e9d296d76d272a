//! Applications that end, over each kind of shared interface and with several engine threads: their last datagrams
//! arrive, and their peers are refused.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket as KernelSocket};
use std::time::Duration;

use rustix::process::Signal;
use towpath_client::{Options, Rule, Session};
use towpath_net::{Driving, Network, SessionLink, UdpSocket};

use crate::beside_the_kernel::{may_attach, sockets, until_bare, user};
use crate::lanes::{QUEUES, wire};
use crate::running::*;
use crate::sharing::remove_wire;

const DATAGRAMS: u32 = 1000;
/// Datagrams that wait for the neighbour's address.
const WAITING: u32 = 100;
const SINK: &str = "192.0.2.200:4000";
const OWN: &str = "192.0.2.70";
const PORT: u16 = 80;

fn attach(server: &Running, options: &Options) -> Session {
    let options = Options { ipv4: Some(OWN.parse().unwrap()), ..options.clone() };
    Session::attach(&server.socket, &options).unwrap()
}

/// Receives numbered datagrams at a host's kernel, in order, until all have come or none comes for 5 s.
fn count(sink: &KernelSocket, expected: u32) -> u32 {
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = [0; 4];
    let next = |number: &u32| sink.recv(&mut bytes).is_ok() && u32::from_ne_bytes(bytes) == *number;
    (0..expected).take_while(next).count() as u32
}

/// Ends networks right after their last datagrams, and then a session with an open port.
fn ends(device: &str, lanes: &str) {
    let far = wire(QUEUES);
    let (directory, user) = (sockets(), user());
    let arguments =
        ["--device", device, "--user", &user, "--lanes", lanes, "--lease", "192.0.2.64/28"];
    let mut server = serve(&directory, "s.sock", &arguments);
    let sink = far.run(|| KernelSocket::bind(SINK).unwrap()).unwrap();
    // The sink's receive buffer must not limit the count.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&sink, 4 << 20).unwrap();
    for (driving, datagrams) in [
        (Driving::Thread, WAITING),
        (Driving::Application, WAITING),
        (Driving::Thread, DATAGRAMS),
        (Driving::Application, DATAGRAMS),
    ] {
        let network = Network::builder()
            .driving(driving)
            .over(attach(&server, &SessionLink::options("last")))
            .unwrap();
        let socket = UdpSocket::bind(&network, "0.0.0.0:0").unwrap();
        if datagrams > WAITING {
            socket.send_to(&0u32.to_ne_bytes(), SINK).unwrap();
            network.drain(LIMIT).unwrap();
            assert_eq!(count(&sink, 1), 1, "{device}: the neighbour is known");
        }
        let received = std::thread::scope(|scope| {
            let received = scope.spawn(|| count(&sink, datagrams));
            for number in 0..datagrams {
                socket.send_to(&number.to_ne_bytes(), SINK).unwrap();
            }
            drop((socket, network));
            received.join().unwrap()
        });
        assert_eq!(received, datagrams, "{device}, {lanes} lanes, {driving:?}");
        until("the session's end", || server.report()["device"]["addresses_in_use"] == 0);
    }

    let mut session = attach(&server, &Options::default());
    session.open(&Rule::new().tcp(PORT)).unwrap();
    let at = SocketAddr::new(OWN.parse().unwrap(), PORT);
    // A session that ends without its application's doing leaves its port to the engine.
    drop(session);
    until("the session's end", || server.report()["device"]["addresses_in_use"] == 0);
    let refused = far.run(|| std::net::TcpStream::connect_timeout(&at, LIMIT).unwrap_err().kind());
    assert_eq!(refused.unwrap(), ErrorKind::ConnectionRefused, "{device}, {lanes} lanes");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    until_bare();
    drop(far);
    remove_wire();
}

#[test]
fn ends_are_seen_over_shared_interfaces() {
    towpath_testkit::isolated!(|| {
        if may_attach("ending::ends_are_seen_over_shared_interfaces") {
            for device in ["xdp:uplink,mode=native", "xdp:uplink,mode=generic", "packet:uplink"] {
                ends(device, "1");
            }
        }
    });
}

#[test]
fn ends_are_seen_with_two_lanes() {
    towpath_testkit::isolated!(|| {
        if may_attach("ending::ends_are_seen_with_two_lanes") {
            for device in ["xdp:uplink,mode=native", "xdp:uplink,mode=generic"] {
                ends(device, "2");
            }
        }
    });
}
