//! Bursts of resets: a peer ends thousands of connections at once. A TCP sends a reset once, so each reset that is
//! lost leaves a connection at the application. A burst that fits into the queues loses no reset, however late
//! server and application run.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use towpath_net::{KeepAlive, Network, TcpListener, TcpStream};
use towpath_testkit::{TunMode, add_persistent_tun};

use crate::beside_the_kernel::may_attach;
use crate::networks::net;
use crate::running::*;
use crate::sharing::SharedUplink;

/// Resets of a burst over a TAP: its queue and an application's receive queue hold 4 096 packets each.
const RESETS: usize = 3000;
/// Resets of a burst over AF_XDP where the limit of locked memory leaves the server the fewest receive buffers: 1 024
/// in generic mode.
const FEW_RESETS: usize = 1000;
const PORT: u16 = 7100;

/// The ends of the connections of a burst: the kernel's and the application's.
type Ends = (Vec<std::net::TcpStream>, Vec<TcpStream>);

/// Connects the kernel to the application.
fn connections(
    network: &Network,
    (count, to): (usize, SocketAddr),
    connect: impl Fn() -> std::io::Result<std::net::TcpStream>,
) -> Ends {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let listener = TcpListener::bind(network, to).unwrap();
    let pair = |_| (connect().unwrap(), listener.accept().unwrap().0);
    (0..count).map(pair).unzip()
}

/// Resets all connections while the server stands still. Then waits until the application has learned of each reset.
fn burst(server: &Running, (peers, ours): Ends) {
    for peer in &peers {
        rustix::net::sockopt::set_socket_linger(peer, Some(Duration::ZERO)).unwrap();
    }
    let process = server.server().expect("there is a server");
    kill_process(process, Signal::STOP).unwrap();
    drop(peers);
    kill_process(process, Signal::CONT).unwrap();
    let mut left: Vec<TcpStream> = ours;
    left.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    until("no connection is left", || {
        left.retain(|mut stream| match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            other => panic!("{other:?}"),
        });
        left.is_empty()
    });
    let report = server.report();
    let counters = &report["sessions"][0]["endpoints"];
    let dropped = counters
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["counters"]["rx_dropped_no_buffers"].as_u64());
    assert_eq!(dropped.sum::<u64>(), 0);
    assert_eq!(report["device"]["counters"]["rx_dropped_driver"].as_u64().unwrap_or(0), 0);
}

fn over_af_xdp(mode: &str) {
    let shared = SharedUplink::start(mode, &[]);
    let to = SocketAddr::from(([192, 0, 2, 1], PORT));
    let connect = || shared.far.run(|| std::net::TcpStream::connect(to)).unwrap();
    let is_small = shared.server.log().contains("because of the limit of locked memory");
    let count = if is_small { FEW_RESETS } else { RESETS };
    burst(&shared.server, connections(&shared.network, (count, to), connect));
}

#[test]
fn no_reset_of_a_burst_is_lost_generically() {
    towpath_testkit::isolated!(|| {
        if may_attach("bursts::no_reset_of_a_burst_is_lost_generically") {
            over_af_xdp("generic");
        }
    });
}

#[test]
fn no_reset_of_a_burst_is_lost_natively() {
    towpath_testkit::isolated!(|| {
        if may_attach("bursts::no_reset_of_a_burst_is_lost_natively") {
            over_af_xdp("native");
        }
    });
}

/// The interface exists before the server, and its queue has the kernel's default length.
#[test]
fn no_reset_of_a_burst_is_lost_over_a_tap() {
    towpath_testkit::isolated!(|| {
        add_persistent_tun("tpburst0", TunMode::TapWithHeader, None).unwrap();
        let directory = Directory::new();
        let arguments = ["--device", "tap:tpburst0", "--address", "10.77.0.1/24"];
        let server = serve(&directory, "s.sock", &arguments);
        let network = Network::attach(&server.socket).unwrap();
        let to = SocketAddr::from(([10, 77, 0, 2], PORT));
        let ends = connections(&network, (RESETS, to), || std::net::TcpStream::connect(to));
        burst(&server, ends);
    });
}

/// Without a keep-alive, an application that only reads does not learn of the end.
#[test]
fn a_keep_alive_finds_a_connection_whose_reset_was_lost() {
    towpath_testkit::isolated!(|| {
        let directory = Directory::new();
        let arguments = ["--device", "tap:tpburst0", "--address", "10.77.0.1/24"];
        let server = serve(&directory, "s.sock", &arguments);
        let network = Network::attach(&server.socket).unwrap();
        let to = SocketAddr::from(([10, 77, 0, 2], PORT));
        let (peers, ours) = connections(&network, (1, to), || std::net::TcpStream::connect(to));
        let stream = &ours[0];
        stream.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_linger(&peers[0], Some(Duration::ZERO)).unwrap();
        // While the interface is down, the kernel loses the reset.
        net().set_down("tpburst0").unwrap();
        drop(peers);
        net().set_up("tpburst0").unwrap();
        let read = || (&*stream).read(&mut [0]).unwrap_err().kind();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(read(), ErrorKind::WouldBlock);
        stream.set_keep_alive(Some(KeepAlive::every(Duration::from_millis(100)))).unwrap();
        until("the keep-alive finds it", || match read() {
            ErrorKind::WouldBlock => false,
            ErrorKind::ConnectionReset => true,
            other => panic!("{other:?}"),
        });
    });
}
