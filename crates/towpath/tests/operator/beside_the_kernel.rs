//! An interface that the kernel keeps: both use it at the same time, and nothing is left behind.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use towpath_client::Session;
use towpath_device::xdp::{Mode, Options, XdpDevice, XdpError};
use towpath_net::{Network, SessionLink, TcpStream};
use towpath_netlink::Veth;
use towpath_testkit::{Namespace, Unavailable, skip};

use crate::networks::{both_ways, net, wire};
use crate::running::*;

pub(crate) const FAR: [&str; 2] = ["192.0.2.200/24", "2001:db8::200/64"];
pub(crate) const NEAR: [&str; 2] = ["192.0.2.1/24", "2001:db8::1/64"];
const LEASES: [&str; 4] = ["--lease", "192.0.2.64/28", "--lease", "2001:db8::40/124"];

/// Returns a user for the servers of this process. The kernel counts locked memory by user, and one
/// server may need all that a user may lock.
pub(crate) fn user() -> String {
    format!("{0}:{0}", user_id())
}

/// Returns the number of that user, and of its group.
pub(crate) fn user_id() -> u32 {
    70_000 + std::process::id() % 100_000
}

/// Makes a directory for the sockets of these servers.
pub(crate) fn sockets() -> Directory {
    let directory = Directory::new();
    let path = directory.join("");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    directory
}

/// Returns `true` if this user may attach XDP programs.
pub(crate) fn may_attach(test: &str) -> bool {
    let mut net = net();
    net.create_veth(&Veth::new("probe0", "probe1")).unwrap();
    net.set_up("probe0").unwrap();
    let options = Options { interface: "probe0".into(), mode: Mode::Generic, ..Options::default() };
    let outcome = XdpDevice::open(&options);
    let why = match outcome {
        Ok(_) => None,
        Err(error @ (XdpError::NotPermitted { .. } | XdpError::NoSockets { .. })) => {
            Some(error.to_string())
        }
        Err(error) => panic!("{error}"),
    };
    net.delete_link("probe0").unwrap();
    if let Some(cause) = why {
        skip(test, &Unavailable { cause, remedy: "run the test as root".into() });
        return false;
    }
    true
}

/// Two of the kernel's sockets, which exchange datagrams all the time.
pub(crate) struct KernelTraffic {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

impl KernelTraffic {
    /// Starts with a socket here and one on the far host.
    pub(crate) fn start(far: &Namespace) -> KernelTraffic {
        let near: SocketAddr = "192.0.2.1:7777".parse().unwrap();
        let echo = UdpSocket::bind(near).unwrap();
        let asking = far.run(|| UdpSocket::bind("192.0.2.200:7778").unwrap()).unwrap();
        asking.connect(near).unwrap();
        asking.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        echo.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (stop.clone(), answered.clone());
        let echoing = std::thread::spawn(move || {
            let mut buffer = [0; 8];
            while !told.load(Ordering::Relaxed) {
                if let Ok((len, from)) = echo.recv_from(&mut buffer) {
                    echo.send_to(&buffer[..len], from).unwrap();
                }
            }
        });
        let told = stop.clone();
        // The wire may lose packets until both hosts know each other.
        until("the kernel's sockets answer", || {
            asking.send(&0u64.to_ne_bytes()).unwrap();
            asking.recv(&mut [0; 8]).is_ok()
        });
        let thread = std::thread::spawn(move || {
            let (mut number, mut lost) = (0u64, 0);
            while !told.load(Ordering::Relaxed) {
                number += 1;
                asking.send(&number.to_ne_bytes()).unwrap();
                let mut buffer = [0; 8];
                // A late answer to an earlier datagram, which counted as lost, may come first.
                let answered = loop {
                    match asking.recv(&mut buffer).map(|_| u64::from_ne_bytes(buffer)) {
                        Ok(earlier) if earlier < number => {}
                        answer => break answer.is_ok_and(|answer| answer == number),
                    }
                };
                match answered {
                    true => {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    false => lost += 1,
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            echoing.join().unwrap();
            lost
        });
        KernelTraffic { stop, answered, thread }
    }

    /// Waits until some more datagrams were answered.
    pub(crate) fn still_answers(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        until("the kernel's sockets go on", || self.answered.load(Ordering::Relaxed) > before + 20);
    }

    /// Stops, and returns the number of datagrams that no answer came for.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Returns `true` if no program is on the interface.
pub(crate) fn is_bare() -> bool {
    let mut kernel = net();
    let Ok(link) = kernel.link("uplink") else { return true };
    link.xdp.is_none() && towpath_bpf::attached_at_ingress(link.index).unwrap().is_empty()
}

/// Waits until no program is on the interface.
pub(crate) fn until_bare() {
    until("no program is left", is_bare);
}

/// Returns the device of a way to serve the interface.
pub(crate) fn device(mode: &str) -> String {
    match mode {
        "packet" => "packet:uplink".to_owned(),
        mode => format!("xdp:uplink,mode={mode}"),
    }
}

fn attach(server: &Running) -> (Network, std::net::IpAddr) {
    let options = towpath_client::Options {
        ipv4: Some("192.0.2.70".parse().unwrap()),
        ..SessionLink::options("test")
    };
    let session = Session::attach(&server.socket, &options).unwrap();
    let ipv6 = session.info().ipv6.unwrap().0;
    (Network::builder().over(session).unwrap(), ipv6.into())
}

/// A server that does not end loses the interface by `detach`, which leaves other programs alone.
fn detached(server: &mut Running, mode: &str) {
    kill_process(server.server().unwrap(), Signal::STOP).unwrap();
    let said = prints(&mut towpath(&["detach", "uplink"]));
    assert!(said.contains("detached from uplink: id ") && said.contains("link "), "{said}");
    let copies = "their server's packet sockets still copy them; end the server's keeper";
    let remains =
        if mode == "packet" { copies } else { "at most packets to groups; end its keeper" };
    assert!(said.contains(remains), "{said}");
    until_bare();
    let said = fails(&mut towpath(&["detach", "uplink"]), 1);
    assert!(said.contains("no XDP program"), "{said}");
    let absent = fails(&mut towpath(&["detach", "absent"]), 1);
    assert!(absent.contains("no interface absent"), "{absent}");
}

/// An application with addresses of its own, and the kernel's sockets, on one interface.
fn shared(mode: &str) {
    let far = wire(&FAR, &NEAR);
    let kernel = KernelTraffic::start(&far);
    kernel.still_answers();
    let (directory, user) = (sockets(), user());
    let device = device(mode);
    let mut arguments = vec!["--device", device.as_str(), "--user", user.as_str()];
    arguments.extend(LEASES);
    let mut server = serve(&directory, "s.sock", &arguments);
    assert!(server.log().contains(" KiB for packets, in "), "{}", server.log());
    let (network, ipv6) = attach(&server);
    both_ways(&network, "192.0.2.70".parse().unwrap(), &far, "192.0.2.200".parse().unwrap());
    both_ways(&network, ipv6, &far, "2001:db8::200".parse().unwrap());
    kernel.still_answers();
    let other = directory.text("t.sock");
    let mut second = towpath(&["serve", "--socket", &other]);
    let said = fails(second.args(&arguments), 1);
    let program = if mode == "packet" { "towpath_packets" } else { "towpath_flows" };
    let why = "another Towpath server serves uplink: program id ";
    assert!(said.contains(why) && said.contains(program), "{said}");
    assert!(!said.contains("--device packet:"), "that one would be refused, too: {said}");

    // The application's connections, in packets that the kernel segments.
    let receiver = far.run(|| std::net::TcpListener::bind("192.0.2.200:81").unwrap()).unwrap();
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = receiver.accept().unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got
    });
    let sent = || server.report()["device"]["counters"]["tx_packets"].as_u64().unwrap();
    let before = sent();
    let mut stream = TcpStream::connect(&network, "192.0.2.200:81").unwrap();
    let data: Vec<u8> = (0..4 << 20).map(|at: u32| ((at.wrapping_mul(31)) >> 7) as u8).collect();
    stream.write_all(&data).unwrap();
    drop(stream);
    assert!(receiving.join().unwrap() == data, "the data arrived as it was sent");
    let packets = sent() - before;
    assert!(packets < data.len() as u64 / 1460 / 4, "{packets} packets");

    // The kernel's own connections, in large packets where the interface has such.
    let listener = std::net::TcpListener::bind("192.0.2.1:80").unwrap();
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got.len()
    });
    let stream = far.run(|| std::net::TcpStream::connect("192.0.2.1:80").unwrap()).unwrap();
    (&stream).write_all(&vec![7; 4 << 20]).unwrap();
    drop(stream);
    assert_eq!(receiving.join().unwrap(), 4 << 20);

    drop(network);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    until_bare();
    kernel.still_answers();
    let mut server = serve(&directory, "s.sock", &arguments);
    kernel.still_answers();
    server.kill();
    until_bare();
    let mut server = serve(&directory, "s.sock", &arguments);
    detached(&mut server, mode);
    kernel.still_answers();
    server.kill();
    kernel.still_answers();
    assert_eq!(kernel.stop(), 0, "datagrams of the kernel's sockets were lost");
    // Nothing is in the way of the next server.
    serve(&directory, "s.sock", &arguments).stop(Signal::TERM);
}

#[test]
fn shared_natively() {
    towpath_testkit::isolated!(|| {
        if may_attach("beside_the_kernel::shared_natively") {
            shared("native");
        }
    });
}

#[test]
fn shared_generically() {
    towpath_testkit::isolated!(|| {
        if may_attach("beside_the_kernel::shared_generically") {
            shared("generic");
        }
    });
}

#[test]
fn shared_by_packet_sockets() {
    towpath_testkit::isolated!(|| {
        if may_attach("beside_the_kernel::shared_by_packet_sockets") {
            shared("packet");
        }
    });
}

/// `auto` serves an interface that has another XDP program by packet sockets, and no interface that
/// another server has.
#[test]
fn auto_works_beside_another_xdp_program() {
    towpath_testkit::isolated!(|| {
        if !may_attach("beside_the_kernel::auto_works_beside_another_xdp_program") {
            return;
        }
        let far = wire(&FAR, &NEAR);
        // A program that passes every packet.
        let mut pass = towpath_bpf::Assembler::default();
        pass.set(towpath_bpf::Reg::R0, 2);
        pass.exit();
        let pass = towpath_bpf::Program::load_xdp("other", &pass.finish().unwrap(), true).unwrap();
        let index = net().index("uplink").unwrap();
        let mode = towpath_bpf::XdpMode::Generic;
        let other = towpath_bpf::Link::attach_xdp(&pass, index, mode).unwrap();
        let (directory, user) = (sockets(), user());
        let mut arguments = vec!["--device", "auto:uplink", "--user", user.as_str()];
        arguments.extend(LEASES);
        let mut refused = towpath(&["serve", "--device", "xdp:uplink", "--user", &user]);
        let said = fails(refused.args(LEASES).args(["--socket", &directory.text("t.sock")]), 1);
        assert!(said.contains("\"other\"") && said.contains("packet:"), "{said}");
        let mut server = serve(&directory, "s.sock", &arguments);
        let log = server.log();
        assert!(
            log.contains("no AF_XDP: ") && log.contains("packet sockets serve uplink"),
            "{log}"
        );
        let (network, _) = attach(&server);
        both_ways(&network, "192.0.2.70".parse().unwrap(), &far, "192.0.2.200".parse().unwrap());
        let socket = directory.text("u.sock");
        let mut second = towpath(&["serve", "--socket", &socket]);
        let said = fails(second.args(&arguments), 1);
        assert!(said.contains("another Towpath server serves uplink"), "{said}");
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        drop(other);
        until_bare();
    });
}

/// A link that goes and returns leaves sessions and addresses; an interface that goes ends the
/// server.
#[test]
fn the_interface_goes_down_and_vanishes() {
    towpath_testkit::isolated!(|| {
        if !may_attach("beside_the_kernel::the_interface_goes_down_and_vanishes") {
            return;
        }
        let far = wire(&FAR, &NEAR);
        let (directory, user) = (sockets(), user());
        let mut arguments = vec!["--device", "auto:uplink", "--user", user.as_str()];
        arguments.extend(&LEASES[..2]);
        let mut server = serve(&directory, "s.sock", &arguments);
        let options = SessionLink::options("test");
        let session = Session::attach(&server.socket, &options).unwrap();
        let own = session.info().ipv4.unwrap().0;
        let network = Network::builder().over(session).unwrap();
        net().set_down("uplink").unwrap();
        until("the server says so", || server.log().contains("link is down"));
        net().set_up("uplink").unwrap();
        until("the server says so", || server.log().contains("link is up"));
        both_ways(&network, own.into(), &far, "192.0.2.200".parse().unwrap());
        net().delete_link("uplink").unwrap();
        assert_eq!(wait(&mut server.child).code(), Some(1));
        let log = server.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(last.starts_with("towpath: ") && last.contains("uplink"), "{log}");
    });
}

/// Large packets pass the interface's queue, which may drop them. The others go on.
#[test]
fn a_queue_that_drops_large_packets_holds_nothing_up() {
    towpath_testkit::isolated!(|| {
        if !may_attach("beside_the_kernel::a_queue_that_drops_large_packets_holds_nothing_up") {
            return;
        }
        let far = wire(&FAR, &NEAR);
        // Nothing of more than 100 bytes passes.
        net().limit_queue("uplink", 100).unwrap();
        let (directory, user) = (sockets(), user());
        let mut arguments = vec!["--device", "xdp:uplink", "--user", user.as_str()];
        arguments.extend(LEASES);
        let server = serve(&directory, "s.sock", &arguments);
        let (network, _) = attach(&server);
        let receiver = far.run(|| std::net::TcpListener::bind("192.0.2.200:81").unwrap()).unwrap();
        let mut stream = TcpStream::connect(&network, "192.0.2.200:81").unwrap();
        let _accepted = receiver.accept().unwrap();
        stream.write_all(&[7; 60_000]).unwrap();
        let dropped = || server.report()["device"]["counters"]["tx_dropped_driver"] != 0;
        until("a large packet is dropped and counted", dropped);
        // The stream goes on in single segments, and so does everything else.
        let echo = far.run(|| UdpSocket::bind("192.0.2.200:7").unwrap()).unwrap();
        let asking = towpath_net::UdpSocket::bind(&network, "192.0.2.70:0").unwrap();
        let (mut asked, mut got) = ([0; 4], [0; 4]);
        for round in 0..20_u32 {
            asking.send_to(&round.to_be_bytes(), "192.0.2.200:7").unwrap();
            let (_, from) = echo.recv_from(&mut asked).unwrap();
            echo.send_to(&asked, from).unwrap();
            assert_eq!(asking.recv_from(&mut got).unwrap().0, 4);
            assert_eq!(got, round.to_be_bytes());
        }
    });
}

#[test]
fn what_cannot_be_is_refused_with_the_remedy() {
    towpath_testkit::isolated!(|| {
        if !may_attach("beside_the_kernel::what_cannot_be_is_refused_with_the_remedy") {
            return;
        }
        let _far = wire(&FAR, &NEAR);
        let mut net = net();
        net.create_veth(&Veth::new("low0", "low1")).unwrap();
        net.create_veth(&Veth::new("port0", "port1")).unwrap();
        net.set_up("port0").unwrap();
        net.create_bridge("br0").unwrap();
        net.enslave("port0", "br0").unwrap();
        let (directory, user) = (sockets(), user());
        let socket = directory.text("s.sock");
        let lease = ["--lease", "192.0.2.64/28"];
        let cases: [(&str, &[&str], i32, &str); 12] = [
            ("xdp:uplink", &[], 2, "--lease 192.0.2.64/28"),
            (
                "xdp:uplink",
                &["--lease", "198.51.100.0/28"],
                2,
                "no address in the network of this whole range",
            ),
            ("xdp:uplink", &["--lease", "192.0.2.0/28"], 2, "192.0.2.1, which is uplink's"),
            (
                "xdp:uplink",
                &["--subnet", "192.0.2.2/29"],
                2,
                "--subnet 192.0.2.2/29: uplink shares the network",
            ),
            ("xdp:uplink", &[lease[0], lease[1], "--mtu", "1400"], 2, "--mtu is for TAP"),
            (
                "xdp:uplink",
                &[lease[0], lease[1], "--address", "192.0.2.9/24"],
                2,
                "--address is for TAP",
            ),
            ("xdp:absent", &lease, 1, "no interface absent"),
            ("auto:absent", &lease, 1, "no interface absent"),
            ("xdp:low0", &lease, 1, "ip link set low0 up"),
            ("xdp:uplink,zero-copy", &lease, 1, "leave zero-copy out"),
            ("xdp:uplink,zero-copy,mode=native", &lease, 1, "leave zero-copy out"),
            ("tap:uplink", &[], 1, "--device xdp:uplink"),
        ];
        let port = ("xdp:port0", &lease[..], 1, "port0 is a port of br0");
        for (device, arguments, status, part) in cases.into_iter().chain([port]) {
            let mut serve = towpath(&["serve", "--device", device, "--socket", &socket]);
            serve.args(["--user", &user]);
            let said = fails(serve.args(arguments), status);
            assert!(said.contains(part), "{device} {arguments:?}: {said}");
            until_bare();
            assert!(!std::path::Path::new(&socket).exists());
        }
    });
}
