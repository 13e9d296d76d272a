//! The recipes of docs/operations.md: applications on a real network, by a bridge and by routes.
//! The real network is a veth pair, whose far end is a host of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream as KernelStream};
use std::thread::JoinHandle;
use std::time::Duration;

use towpath_client::Session;
use towpath_net::{Network, SessionLink, TcpListener, TcpStream};
use towpath_netlink::{Netlink, Route};
use towpath_testkit::{End, Namespace, connect};

use crate::running::*;

const AMOUNT: usize = 4 << 20;

/// Returns the means to change the interfaces of the calling thread's namespace.
pub(crate) fn net() -> Netlink {
    Netlink::open().unwrap()
}

/// Returns a route to a network.
pub(crate) fn route(to: &str) -> Route {
    Route::to(to.parse().unwrap())
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..AMOUNT).map(|n| (n >> 8) as u8 ^ n as u8 ^ seed).collect()
}

/// Starts a far host that receives `AMOUNT` bytes from the peer that connects, and then sends as
/// many back.
fn far_host(far: &Namespace, address: IpAddr) -> JoinHandle<()> {
    let listener = far.run(|| std::net::TcpListener::bind((address, 80)).unwrap()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut got = vec![0; AMOUNT];
        stream.read_exact(&mut got).unwrap();
        assert!(got == bytes(1));
        stream.write_all(&bytes(2)).unwrap();
    })
}

/// Tests TCP connections that the application opens, and that the far host opens.
pub(crate) fn both_ways(network: &Network, own: IpAddr, far: &Namespace, far_address: IpAddr) {
    let host = far_host(far, far_address);
    let mut stream = TcpStream::connect_timeout(network, &(far_address, 80).into(), LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&bytes(1)).unwrap();
    let mut got = vec![0; AMOUNT];
    stream.read_exact(&mut got).unwrap();
    assert!(got == bytes(2));
    host.join().unwrap();
    from_far(network, own, far, far_address);
}

/// Tests a TCP connection that the far host opens.
fn from_far(network: &Network, own: IpAddr, far: &Namespace, far_address: IpAddr) {
    let listener = TcpListener::bind(network, std::net::SocketAddr::new(own, 7)).unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, from) = listener.accept().unwrap();
        // Without address translation, the application sees the far host's own address.
        assert_eq!(from.ip(), far_address);
        let mut got = vec![0; AMOUNT];
        stream.read_exact(&mut got).unwrap();
        stream.write_all(&got).unwrap();
    });
    let mut stream =
        far.run(|| KernelStream::connect_timeout(&(own, 7).into(), LIMIT)).unwrap().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&bytes(3)).unwrap());
    let mut got = vec![0; AMOUNT];
    stream.read_exact(&mut got).unwrap();
    assert!(got == bytes(3));
    writing.join().unwrap();
    serving.join().unwrap();
}

/// Makes the far host with its end of the wire; the near end is `uplink`.
pub(crate) fn wire(far_addresses: &[&str], near_addresses: &[&str]) -> Namespace {
    let (here, far) = (Namespace::current().unwrap(), Namespace::create().unwrap());
    let parse = |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect::<Vec<_>>();
    connect(
        &End { namespace: &here, name: "uplink", addresses: &parse(near_addresses) },
        &End { namespace: &far, name: "far", addresses: &parse(far_addresses) },
        None,
    )
    .unwrap();
    far
}

#[test]
fn a_bridge() {
    towpath_testkit::isolated!(|| {
        let test = "networks::a_bridge";
        if !tun(test) {
            return;
        }
        let far = wire(&["192.0.2.200/24", "2001:db8::200/64"], &[]);
        let directory = Directory::new();
        let arguments =
            ["--device", "tap:tap0", "--subnet", "192.0.2.200/24", "--subnet", "2001:db8::200/64"];
        let server = serve(&directory, "s.sock", &arguments);
        let mut net = net();
        net.create_bridge("br0").unwrap();
        net.enslave("uplink", "br0").unwrap();
        net.enslave("tap0", "br0").unwrap();
        net.set_up("br0").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let options = towpath_client::Options {
            ipv4: Some("192.0.2.77".parse().unwrap()),
            ..SessionLink::options("test")
        };
        let session = Session::attach(&server.socket, &options).unwrap();
        let ipv6 = session.info().ipv6.unwrap().0;
        let network = Network::builder().over(session).unwrap();
        both_ways(&network, "192.0.2.77".parse().unwrap(), &far, "192.0.2.200".parse().unwrap());
        both_ways(&network, ipv6.into(), &far, "2001:db8::200".parse().unwrap());
    });
}

/// Behind a switch that snoops on multicast listeners, an application that reports no group would not be found: the
/// switch forwards no solicitation to it.
#[test]
fn a_bridge_that_snoops_on_groups() {
    towpath_testkit::isolated!(|| {
        let test = "networks::a_bridge_that_snoops_on_groups";
        if !tun(test) {
            return;
        }
        let here = Namespace::current().unwrap();
        let mut net = net();
        let response = Duration::from_millis(100);
        net.create_querying_bridge("br0", response).unwrap();
        // A bridge without an address sends no queries.
        here.set("net.ipv6.conf.br0.accept_dad", "0").unwrap();
        net.add_address("br0", "fe80::1/64".parse().unwrap()).unwrap();
        net.set_up("br0").unwrap();
        let far = wire(&["2001:db8::200/64"], &[]);
        net.enslave("uplink", "br0").unwrap();
        let directory = Directory::new();
        let arguments = ["--device", "tap:tap0", "--subnet", "2001:db8::200/64"];
        let server = serve(&directory, "s.sock", &arguments);
        net.enslave("tap0", "br0").unwrap();
        // The bridge begins to forward by reports only after the time for the answers to its first queries.
        std::thread::sleep(response * 10);
        let session = Session::attach(&server.socket, &SessionLink::options("test")).unwrap();
        let ipv6 = session.info().ipv6.unwrap().0;
        let network = Network::builder().over(session).unwrap();
        // The far host does not know the application's link address yet.
        from_far(&network, ipv6.into(), &far, "2001:db8::200".parse().unwrap());
    });
}

#[test]
fn routes() {
    towpath_testkit::isolated!(|| {
        let test = "networks::routes";
        if !tun(test) {
            return;
        }
        let here = Namespace::current().unwrap();
        let far =
            wire(&["192.0.2.200/24", "2001:db8::200/64"], &["192.0.2.1/24", "2001:db8::1/64"]);
        let directory = Directory::new();
        let arguments =
            ["--device", "tap:tap0", "--address", "10.77.0.1/24", "--address", "fd77::1/64"];
        let server = serve(&directory, "s.sock", &arguments);
        here.set("net.ipv4.ip_forward", "1").unwrap();
        here.set("net.ipv6.conf.all.forwarding", "1").unwrap();
        // On the far host, or on its router.
        far.run(|| {
            for (to, via) in [("10.77.0.0/24", "192.0.2.1"), ("fd77::/64", "2001:db8::1")] {
                net().add_route(&route(to).via(via.parse().unwrap())).unwrap();
            }
        })
        .unwrap();
        let network = Network::attach(&server.socket).unwrap();
        both_ways(&network, "10.77.0.2".parse().unwrap(), &far, "192.0.2.200".parse().unwrap());
        both_ways(&network, "fd77::2".parse().unwrap(), &far, "2001:db8::200".parse().unwrap());
    });
}
