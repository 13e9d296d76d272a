//! Several engine threads: an interface with four hardware queues and two lanes.

use std::net::{IpAddr, SocketAddr, UdpSocket as KernelSocket};

use rustix::process::Signal;
use rustix::thread::CpuSet;
use towpath_client::Session;
use towpath_net::{Network, SessionLink, TcpListener, TcpStream, UdpSocket};
use towpath_netlink::{Netlink, Veth};
use towpath_testkit::Namespace;

use crate::beside_the_kernel::{FAR, NEAR, may_attach, sockets, until_bare, user};
use crate::networks::both_ways;
use crate::running::*;

pub(crate) const QUEUES: u32 = 4;
const FLOWS: usize = 16;
const WINDOW: u32 = 3;
const ROUNDS: u32 = 40;

/// Makes the far host with its end of a wire of four queues; the near end is `uplink`.
pub(crate) fn wire(queues: u32) -> Namespace {
    let (here, far) = (Namespace::current().unwrap(), Namespace::create().unwrap());
    let mut netlink = here.netlink().unwrap();
    let pair =
        Veth { peer_place: Some(far.place()), queues: Some(queues), ..Veth::new("uplink", "far") };
    netlink.create_veth(&pair).unwrap();
    let up = |mut netlink: Netlink, name: &str, addresses: [&str; 2]| {
        for address in addresses {
            netlink.add_address(name, address.parse().unwrap()).unwrap();
        }
        netlink.set_up(name).unwrap();
    };
    up(netlink, "uplink", NEAR);
    up(far.netlink().unwrap(), "far", FAR);
    far
}

/// Keeps the calling thread on its processor. A veth queues each packet with the processor that
/// sends it: the packets of a thread that moves to another one may overtake each other.
fn stay() {
    let mut set = CpuSet::new();
    set.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

fn attach(server: &Running, ip: &str) -> Network {
    let options =
        towpath_client::Options { ipv4: Some(ip.parse().unwrap()), ..SessionLink::options("test") };
    let session = Session::attach(&server.socket, &options).unwrap();
    assert_eq!(session.info().lanes, 2);
    Network::builder().over(session).unwrap()
}

/// Returns a counter of each lane.
fn lanes(server: &Running, counter: &str) -> Vec<u64> {
    let report = server.report();
    let lanes = report["device"]["lanes"].as_array().unwrap();
    assert_eq!(lanes.len(), 2);
    lanes.iter().map(|lane| lane[counter].as_u64().unwrap()).collect()
}

/// Answers numbered datagrams, and asserts that those of each flow come in order.
fn answer(socket: &UdpSocket, packets: u32) {
    let mut next = std::collections::BTreeMap::<SocketAddr, u32>::new();
    let mut buffer = [0; 4];
    for _ in 0..packets {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(len, 4);
        let number = next.entry(from).or_default();
        assert_eq!(u32::from_ne_bytes(buffer), *number, "from {from}");
        *number += 1;
        socket.send_to(&buffer, from).unwrap();
    }
    assert_eq!(next.len(), FLOWS);
}

/// Sends numbered datagrams of many flows, a few of each at a time, and asserts that the answers to
/// each flow come in order.
fn ask(far: &Namespace, to: SocketAddr) {
    let bind = || -> Vec<KernelSocket> {
        (0..FLOWS).map(|_| KernelSocket::bind("192.0.2.200:0").unwrap()).collect()
    };
    let flows = far.run(bind).unwrap();
    stay();
    for flow in &flows {
        flow.connect(to).unwrap();
        flow.set_read_timeout(Some(LIMIT)).unwrap();
    }
    for first in (0..ROUNDS).map(|round| round * WINDOW) {
        for number in first..first + WINDOW {
            for flow in &flows {
                flow.send(&number.to_ne_bytes()).unwrap();
            }
        }
        for (index, flow) in flows.iter().enumerate() {
            for number in first..first + WINDOW {
                let mut buffer = [0; 4];
                flow.recv(&mut buffer).unwrap_or_else(|error| panic!("flow {index}: {error}"));
                assert_eq!(u32::from_ne_bytes(buffer), number, "flow {index}");
            }
        }
    }
}

/// Two applications of the server send to each other.
fn between(a: &Network, b: &Network, to: IpAddr) {
    let listener = TcpListener::bind(b, SocketAddr::new(to, 90)).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 5) as u8).collect();
    let expected = data.clone();
    let serving = std::thread::spawn(move || {
        use std::io::Read;
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == expected);
    });
    let mut stream = TcpStream::connect_timeout(a, &SocketAddr::new(to, 90), LIMIT).unwrap();
    std::io::Write::write_all(&mut stream, &data).unwrap();
    drop(stream);
    serving.join().unwrap();
}

fn two_lanes(mode: &str) {
    let far = wire(QUEUES);
    let (directory, user) = (sockets(), user());
    let device = format!("xdp:uplink,mode={mode}");
    let mut arguments = vec!["--device", &device, "--user", &user, "--lanes", "2"];
    arguments.extend(["--lease", "192.0.2.64/28", "--lease", "2001:db8::40/124"]);
    let mut server = serve(&directory, "s.sock", &arguments);
    let (a, b) = (attach(&server, "192.0.2.70"), attach(&server, "192.0.2.71"));
    let own: IpAddr = "192.0.2.70".parse().unwrap();
    both_ways(&a, own, &far, "192.0.2.200".parse().unwrap());

    let socket = UdpSocket::bind(&a, SocketAddr::new(own, 9)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let before = lanes(&server, "rx_packets");
    let packets = FLOWS as u32 * WINDOW * ROUNDS;
    let answering = std::thread::spawn(move || answer(&socket, packets));
    let to = SocketAddr::new(own, 9);
    std::thread::scope(|scope| scope.spawn(|| ask(&far, to)).join()).unwrap();
    answering.join().unwrap();
    let after = lanes(&server, "rx_packets");
    let each: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    assert!(each.iter().sum::<u64>() >= u64::from(packets), "{each:?}");
    assert!(each.iter().all(|count| *count > 100), "a lane had nothing to do: {each:?}");
    until("both lanes have sent", || lanes(&server, "tx_packets").iter().all(|count| *count > 0));

    between(&a, &b, "192.0.2.71".parse().unwrap());
    // A session ends in all lanes, and its address is another's.
    drop(b);
    until("the session's end", || server.report()["device"]["addresses_in_use"] == 1);
    between(&attach(&server, "192.0.2.72"), &a, own);

    drop(a);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    until_bare();
    // The queues are free for the next server.
    let mut server = serve(&directory, "s.sock", &arguments);
    server.kill();
    until_bare();
}

#[test]
fn flows_stay_in_order_natively() {
    towpath_testkit::isolated!(|| {
        if may_attach("lanes::flows_stay_in_order_natively") {
            two_lanes("native");
        }
    });
}

#[test]
fn flows_stay_in_order_generically() {
    towpath_testkit::isolated!(|| {
        if may_attach("lanes::flows_stay_in_order_generically") {
            two_lanes("generic");
        }
    });
}

#[test]
fn impossible_lanes_are_refused() {
    towpath_testkit::isolated!(|| {
        if !may_attach("lanes::impossible_lanes_are_refused") {
            return;
        }
        let _far = wire(2);
        let lease = ["--lease", "192.0.2.64/28"];
        for (arguments, part) in [
            (&["--device", "xdp:uplink", "--lanes", "3"][..], "has 2 hardware queues"),
            (
                &["--device", "packet:uplink", "--lanes", "2"],
                "TAP interfaces and packet sockets have one queue",
            ),
            (&["--device", "tap:tap0", "--lanes", "2"], "--device xdp:INTERFACE"),
            (&["--device", "pci:0000:00:1e.7", "--lanes", "3"], "give at most 2"),
            (
                &["--device", "pci:0000:00:1e.7,interrupts=msi", "--lanes", "2"],
                "one interrupt for one engine thread",
            ),
            (&["--device", "xdp:uplink", "--lanes", "2", "--pcap", "x"], "--pcap works with one"),
            (
                &["--device", "xdp:uplink", "--lanes", "2", "--engine-cpu", "0"],
                "1 processors for 2",
            ),
            (&["--device", "xdp:uplink", "--lanes", "9"], "--lanes"),
        ] {
            let mut serve = towpath(&["serve"]);
            let said = fails(serve.args(arguments).args(lease), 2);
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
        until_bare();
    });
}
