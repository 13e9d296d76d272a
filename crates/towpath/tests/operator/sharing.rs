//! Applications that use ports of the host's own addresses, beside the kernel and each other.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use towpath_client::{Addresses, AttachError, Lost, Options, Rule, Session};
use towpath_net::{Network, SessionLink, TcpListener, TcpStream, UdpSocket};
use towpath_netlink::Prefix;
use towpath_testkit::{
    End, Namespace, connect, enter_own_mounts, find_program, has_programs, mount_tmpfs, ping,
};

use crate::beside_the_kernel::{
    FAR, KernelTraffic, NEAR, device, may_attach, sockets, until_bare, user,
};
use crate::keeping::keeper_of;
use crate::networks::{both_ways, net, route, wire};
use crate::policies::attach_by;
use crate::running::*;

/// The port of the application's echo server.
pub(crate) const ECHO: u16 = 7000;
/// Another port of an application.
const OTHER: u16 = 7001;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn attach(server: &Running) -> Network {
    let session = Session::attach(&server.socket, &SessionLink::options("test")).unwrap();
    let info = session.info();
    assert!(info.shared && info.by_port);
    assert_eq!(info.ipv4.unwrap().0.to_string(), "192.0.2.1");
    Network::builder().over(session).unwrap()
}

/// Serves `uplink` with its own addresses, and an application on them.
pub(crate) struct SharedUplink {
    pub(crate) far: Namespace,
    pub(crate) server: Running,
    pub(crate) network: Network,
    _directory: Directory,
}

impl SharedUplink {
    pub(crate) fn start(mode: &str, more: &[&str]) -> SharedUplink {
        let far = wire(&FAR, &NEAR);
        let directory = sockets();
        let device = device(mode);
        let user = user();
        let mut arguments = vec!["--device", &device, "--user", &user, "--share-host"];
        arguments.extend(more);
        let server = serve(&directory, "s.sock", &arguments);
        let network = attach(&server);
        SharedUplink { far, server, network, _directory: directory }
    }

    /// Echoes the datagrams to a port of the application, in a thread that ends with the network.
    pub(crate) fn echo(&self, port: u16) {
        let socket = UdpSocket::bind(&self.network, ("192.0.2.1", port)).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
    }

    /// Returns `true` if the application answers the far host within a short time.
    pub(crate) fn answers(&self, asking: &std::net::UdpSocket) -> bool {
        asking.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        asking.send_to(b"are you there?", ("192.0.2.1", ECHO)).unwrap();
        asking.recv(&mut [0; 64]).is_ok()
    }
}

/// Removes the wire, which the kernel removes at some time after the far host.
pub(crate) fn remove_wire() {
    match net().delete_link("uplink") {
        Err(error) if error.not_found() => {}
        other => other.unwrap(),
    }
}

/// Returns `true` if the kernel gives the port to a program.
fn kernel_binds(port: u16) -> bool {
    let bound = std::net::TcpListener::bind(("192.0.2.1", port));
    if let Err(error) = &bound {
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
    bound.is_ok()
}

/// An application and the kernel's sockets, on different ports of one address.
fn check_sharing(mode: &str) {
    let mut shared = SharedUplink::start(mode, &[]);
    let (network, far) = (&shared.network, &shared.far);
    let kernel = KernelTraffic::start(far);
    kernel.still_answers();
    both_ways(network, ip("192.0.2.1"), far, ip("192.0.2.200"));
    both_ways(network, ip("2001:db8::1"), far, ip("2001:db8::200"));
    kernel.still_answers();

    let session = Session::attach(&shared.server.socket, &SessionLink::options("inside")).unwrap();
    let refused = SessionLink::within_vlan(session, 7).err().expect("it has no VLANs");
    assert!(refused.to_string().contains("attach without sharing"), "{refused}");

    // The kernel's listener and the application's, and a port that each of them has.
    let listener = std::net::TcpListener::bind("192.0.2.1:8080").unwrap();
    let refused = TcpListener::bind(network, "192.0.2.1:8080").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    assert!(refused.to_string().contains("a program of this host"), "{refused}");
    let ours = TcpListener::bind(network, "0.0.0.0:8081").unwrap();
    assert!(!kernel_binds(8081));
    for (port, accepting) in [(8080, false), (8081, true)] {
        let stream = far.run(|| std::net::TcpStream::connect(("192.0.2.1", port)).unwrap());
        let mut stream = stream.unwrap();
        stream.write_all(b"hello").unwrap();
        // The far host ends the connections, so that none is in TIME-WAIT here.
        drop(stream);
        let mut got = Vec::new();
        match accepting {
            true => ours.accept().unwrap().0.read_to_end(&mut got).unwrap(),
            false => listener.accept().unwrap().0.read_to_end(&mut got).unwrap(),
        };
        assert_eq!(got, b"hello");
    }
    drop(ours);
    until("the port is the kernel's again", || kernel_binds(8081));

    // UDP both ways, the far host's refusal, and a datagram that would need fragments.
    shared.echo(ECHO);
    let asking = far.run(|| std::net::UdpSocket::bind("192.0.2.200:0").unwrap()).unwrap();
    until("the echo answers", || shared.answers(&asking));
    let socket = UdpSocket::bind(network, "192.0.2.1:0").unwrap();
    socket.connect("192.0.2.200:9").unwrap();
    socket.send(b"anybody?").unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let refused = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    let long = socket.send(&[0; 3000]).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::InvalidInput, "{long}");
    let closed = TcpStream::connect(network, "192.0.2.200:9").unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::ConnectionRefused);

    // The kernel has everything back when the server ends, in whatever way.
    kernel.still_answers();
    assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0));
    until_bare();
    until("the kernel has the port", || std::net::UdpSocket::bind(("192.0.2.1", ECHO)).is_ok());
    assert_eq!(kernel.stop(), 0, "datagrams of the kernel's sockets were lost");
}

#[test]
fn kernel_and_applications_share_an_address_natively() {
    towpath_testkit::isolated!(|| {
        if may_attach("sharing::kernel_and_applications_share_an_address_natively") {
            check_sharing("native");
        }
    });
}

#[test]
fn kernel_and_applications_share_an_address_generically() {
    towpath_testkit::isolated!(|| {
        if may_attach("sharing::kernel_and_applications_share_an_address_generically") {
            check_sharing("generic");
        }
    });
}

/// The port of a socket stays the application's until the socket's last datagrams are sent.
#[test]
fn a_closed_sockets_datagrams_are_sent() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::a_closed_sockets_datagrams_are_sent") {
            return;
        }
        let shared = SharedUplink::start("generic", &[]);
        let sink = shared.far.run(|| std::net::UdpSocket::bind("192.0.2.200:7900").unwrap());
        let sink = sink.unwrap();
        sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = UdpSocket::bind(&shared.network, "192.0.2.1:0").unwrap();
        let port = socket.local_addr().unwrap();
        for _ in 0..100 {
            socket.send_to(&[1; 64], "192.0.2.200:7900").unwrap();
        }
        drop(socket);
        let count = (0..100).take_while(|_| sink.recv(&mut [0; 64]).is_ok()).count();
        assert_eq!(count, 100);
        // The port is free again.
        let until = Instant::now() + Duration::from_secs(20);
        while std::net::UdpSocket::bind(port).is_err() {
            assert!(Instant::now() < until, "the port is still taken");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(shared);
        remove_wire();
    });
}

/// The keeper ends after a server that is killed, and with it everything that they attached.
#[test]
fn kernel_and_applications_share_an_address_by_packet_sockets() {
    towpath_testkit::isolated!(|| {
        if may_attach("sharing::kernel_and_applications_share_an_address_by_packet_sockets") {
            check_sharing("packet");
        }
    });
}

/// With `--hold 0`, the keeper ends when its server is killed.
#[test]
fn a_killed_server_leaves_no_port_behind() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::a_killed_server_leaves_no_port_behind") {
            return;
        }
        let mut shared = SharedUplink::start("generic", &["--hold", "0"]);
        let _listener = TcpListener::bind(&shared.network, "192.0.2.1:80").unwrap();
        assert!(!kernel_binds(80));
        // A keeper that ends is an error for the operator.
        assert!(!shared.server.log().contains("the keeper has ended"));
        shared.server.kill_server();
        assert_eq!(wait(&mut shared.server.child).code(), Some(1));
        until_bare();
        until("the kernel has the port", || kernel_binds(80));
    });
}

/// Without server and keeper, the kernel removes everything that they attached, in whatever order
/// they end.
#[test]
fn killing_server_and_keeper_leaves_nothing() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::killing_server_and_keeper_leaves_nothing") {
            return;
        }
        for (mode, keeper_first) in
            [("native", false), ("generic", true), ("generic", false), ("packet", false)]
        {
            let mut shared = SharedUplink::start(mode, &["--hold", "60"]);
            let _listener = TcpListener::bind(&shared.network, "192.0.2.1:80").unwrap();
            if keeper_first {
                rustix::process::kill_process(keeper_of(&shared.server), Signal::KILL).unwrap();
            } else {
                shared.server.kill();
            }
            until_bare();
            until("the kernel has the port", || kernel_binds(80));
            remove_wire();
        }
    });
}

/// Applications of two users and the kernel, with ports of one address; the policy decides.
#[test]
fn users_have_the_ports_that_the_policy_grants() {
    towpath_testkit::isolated!(|| {
        let test = "sharing::users_have_the_ports_that_the_policy_grants";
        if !may_attach(test) {
            return;
        }
        let Some(users) = other_users(test) else { return };
        let file = Directory::new();
        let policy = file.text("policy.toml");
        let web = "[[grant]]\nusers = [61002]\nports = [\"tcp:80\", \"tcp:40000-40010\"]\n";
        let other_grant = "[[grant]]\nusers = [61003]\nhost-ports-per-user = 2\n";
        std::fs::write(&policy, format!("{web}{other_grant}")).unwrap();
        let shared = SharedUplink::start("native", &["--policy", &policy]);
        let network = |user: usize| {
            let options = SessionLink::options("test");
            let session = attach_by(&users.applications[user], &shared.server.socket, &options);
            Network::builder().over(session.unwrap()).unwrap()
        };
        let (web, other) = (network(0), network(1));
        let kernel = std::net::TcpListener::bind("192.0.2.1:8080").unwrap();
        let first = TcpListener::bind(&web, "192.0.2.1:80").unwrap();
        let second = TcpListener::bind(&other, "192.0.2.1:8081").unwrap();
        for (network, port, part) in [
            (&web, 81, "may not use port 81"),
            (&web, 8081, "may not use port 8081"),
            (&shared.network, 80, "an application has port 80 already"),
            (&other, 443, "only with a grant that names it"),
        ] {
            let refused = TcpListener::bind(network, ("192.0.2.1", port)).unwrap_err();
            assert!(refused.to_string().contains(part), "{port}: {refused}");
        }
        let _third = UdpSocket::bind(&other, "192.0.2.1:8082").unwrap();
        let most = UdpSocket::bind(&other, "192.0.2.1:0").unwrap_err();
        assert!(most.to_string().contains("host-ports-per-user"), "{most}");

        // All three serve at the same time.
        let ask = |port: u16| {
            let connect = || std::net::TcpStream::connect(("192.0.2.1", port)).unwrap();
            shared.far.run(connect).unwrap()
        };
        let mut streams = [80, 8080, 8081].map(ask);
        let mut accepted = first.accept().unwrap().0;
        accepted.write_all(b"web").unwrap();
        kernel.accept().unwrap().0.write_all(b"ker").unwrap();
        second.accept().unwrap().0.write_all(b"two").unwrap();
        for (stream, text) in streams.iter_mut().zip([b"web", b"ker", b"two"]) {
            let mut got = [0; 3];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(&got, text);
        }
        // A connection gets a port of the grant.
        let _far = shared.far.run(|| std::net::TcpListener::bind("192.0.2.200:9").unwrap());
        let session = &shared.server.socket;
        let mut late = attach_by(&users.applications[0], session, &Options::default()).unwrap();
        let rule = Rule::new().ip(ip("192.0.2.1")).protocol(6).port(40_007);
        let late_endpoint = late.open(&rule).unwrap();
        let out = TcpStream::connect(&web, "192.0.2.200:9").unwrap();
        assert!((40_000..=40_010).contains(&out.local_addr().unwrap().port()));

        // A port that the policy takes away fails what uses it, and nothing else.
        let none = "[[grant]]\nusers = [61002]\nports = []\n";
        std::fs::write(&policy, format!("{none}{other_grant}")).unwrap();
        signal(&shared.server.child, Signal::HUP);
        let gone = first.accept().unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::PermissionDenied, "{gone}");
        let gone = accepted.read(&mut [0; 8]).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::PermissionDenied, "{gone}");
        until("the kernel has the port", || kernel_binds(80));
        // An application that closes its endpoint later does not close the next one's port.
        until("the kernel has the port", || kernel_binds(40_007));
        let next = TcpListener::bind(&shared.network, "192.0.2.1:40007").unwrap();
        late.close(late_endpoint).unwrap();
        assert!(!kernel_binds(40_007), "the port is an application's");
        drop(next);
        let mut stream = ask(8081);
        second.accept().unwrap().0.write_all(b"two").unwrap();
        stream.read_exact(&mut [0; 3]).unwrap();
    });
}

/// Programs of the host and applications reach each other at the host's address.
#[test]
fn the_hosts_own_programs_reach_applications() {
    towpath_testkit::isolated!(|| {
        for mode in ["native", "generic"] {
            if !may_attach("sharing::the_hosts_own_programs_reach_applications") {
                return;
            }
            let mut shared = SharedUplink::start(mode, &[]);
            let network = &shared.network;
            for address in ["192.0.2.1", "2001:db8::1"] {
                println!("{mode} {address}");
                let here = Namespace::current().unwrap();
                both_ways(network, ip(address), &here, ip(address));
            }
            shared.echo(ECHO);
            let asking = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
            until("the echo answers", || shared.answers(&asking));
            // Another application, too.
            let other = attach(&shared.server);
            let listener = TcpListener::bind(&other, "192.0.2.1:9000").unwrap();
            let mut stream = TcpStream::connect(network, "192.0.2.1:9000").unwrap();
            stream.write_all(b"hello").unwrap();
            let mut got = [0; 5];
            listener.accept().unwrap().0.read_exact(&mut got).unwrap();
            // The kernel keeps all other packets.
            let closed = std::net::TcpStream::connect("192.0.2.1:9001").unwrap_err();
            assert_eq!(closed.kind(), ErrorKind::ConnectionRefused);
            let closed = TcpStream::connect(network, "192.0.2.1:9001").unwrap_err();
            assert_eq!(closed.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0));
            remove_wire();
        }
    });
}

/// Routes and neighbours are the kernel's: what changes there changes for applications.
#[test]
fn the_kernels_routes_and_neighbours_hold() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::the_kernels_routes_and_neighbours_hold") {
            return;
        }
        let shared = SharedUplink::start("generic", &[]);
        let (network, far) = (&shared.network, &shared.far);
        let elsewhere: SocketAddr = "203.0.113.9:7".parse().unwrap();
        let other = "203.0.113.9/32".parse().unwrap();
        far.run(|| net().add_address("far", other).unwrap()).unwrap();
        let listener = far.run(|| std::net::TcpListener::bind(elsewhere).unwrap()).unwrap();
        let begun = Instant::now();
        let unreachable = TcpStream::connect(network, elsewhere).unwrap_err();
        assert_eq!(unreachable.kind(), ErrorKind::HostUnreachable, "{unreachable}");
        assert!(begun.elapsed() < LIMIT);
        let via_far = route("203.0.113.0/24").via(ip("192.0.2.200"));
        net().add_route(&via_far).unwrap();
        let mut stream = TcpStream::connect(network, elsewhere).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_read_timeout(Some(LIMIT)).unwrap();
        let mut goes_on = |stream: &mut TcpStream| {
            stream.write_all(b"on").unwrap();
            let mut got = [0; 2];
            accepted.read_exact(&mut got).unwrap();
        };
        goes_on(&mut stream);

        // The gateway gets another link address, and says so by its next request.
        far.run(|| {
            net().set_mac("far", [2, 0, 0, 0, 0, 0x77]).unwrap();
            until("the gateway reaches the host", || {
                ping(ip("192.0.2.1"), 56, Duration::from_secs(1)).is_ok()
            });
        })
        .unwrap();
        goes_on(&mut stream);

        // A route over another interface is no route for an application.
        let here = Namespace::current().unwrap();
        connect(
            &End {
                namespace: &here,
                name: "other0",
                addresses: &["198.51.100.1/24".parse().unwrap()],
            },
            &End { namespace: &here, name: "other1", addresses: &[] },
            None,
        )
        .unwrap();
        let via_other = route("203.0.113.0/24").on(net().index("other0").unwrap());
        net().replace_route(&via_other).unwrap();
        // The server tells the application of it soon.
        until("there is no route", || {
            let refused = TcpStream::connect(network, elsewhere).err();
            refused.is_some_and(|error| error.kind() == ErrorKind::HostUnreachable)
        });
        net().replace_route(&via_far).unwrap();
        goes_on(&mut stream);

        // A neighbour that never answers is a named error.
        let silent = TcpStream::connect(network, "192.0.2.99:7").unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::HostUnreachable, "{silent}");
    });
}

/// An address that the interface loses ends the sessions that share it. Others come with new ones.
#[test]
fn an_address_that_goes_ends_its_sessions() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::an_address_that_goes_ends_its_sessions") {
            return;
        }
        let shared = SharedUplink::start("generic", &[]);
        let options = Options { addresses: Addresses::Shared, ..Options::default() };
        let mut session = Session::attach(&shared.server.socket, &options).unwrap();
        let own = session.info().ipv4.unwrap().0;
        session.open(&Rule::new().ip(own.into()).udp(5000)).unwrap();
        // The kernel keeps the addresses of an interface that is down only if it is told to.
        let here = Namespace::current().unwrap();
        here.set("net.ipv6.conf.uplink.keep_addr_on_down", "1").unwrap();
        net().set_down("uplink").unwrap();
        until("the server notices", || shared.server.log().contains("the link is down"));
        net().set_up("uplink").unwrap();
        until("the server notices", || shared.server.log().contains("the link is up"));
        session.wait(Some(Duration::ZERO)).unwrap();
        net().delete_address("uplink", prefix("192.0.2.1/24")).unwrap();
        net().add_address("uplink", prefix("192.0.2.5/24")).unwrap();
        let lost = loop {
            if let Err(lost) = session.wait(Some(LIMIT)) {
                break lost;
            }
        };
        assert_eq!(lost, Lost::AddressGone);
        let log = shared.server.log();
        assert!(log.contains("closed: the host lost its address 192.0.2.1"), "{log}");
        until("sessions share the new address", || {
            let session = Session::attach(&shared.server.socket, &options).unwrap();
            session.info().ipv4.is_some_and(|(ip, _)| ip.to_string() == "192.0.2.5")
        });
        // Without IPv6, sockets for every IPv6 address are possible, as those of a usual program.
        for gone in ["192.0.2.5/24", "2001:db8::1/64"] {
            net().delete_address("uplink", prefix(gone)).unwrap();
        }
        net().add_address("uplink", prefix("192.0.2.6/24")).unwrap();
        until("sessions have IPv4 alone", || {
            let session = Session::attach(&shared.server.socket, &SessionLink::options("test"));
            let session = session.unwrap();
            if session.info().ipv6.is_some() || session.info().ipv4.is_none() {
                return false;
            }
            let network = Network::builder().over(session).unwrap();
            let _listeners =
                ["0.0.0.0:81", "[::]:80"].map(|any| TcpListener::bind(&network, any).unwrap());
            let _sockets =
                ["0.0.0.0:80", "[::]:0"].map(|any| UdpSocket::bind(&network, any).unwrap());
            true
        });
    });
}

/// A port is served on the interface of the device. On another interface it is closed.
#[test]
fn another_interface_has_no_owned_flows() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::another_interface_has_no_owned_flows") {
            return;
        }
        let shared = SharedUplink::start("generic", &[]);
        let here = Namespace::current().unwrap();
        let side = Namespace::create().unwrap();
        connect(
            &End {
                namespace: &here,
                name: "other0",
                addresses: &["198.51.100.1/24".parse().unwrap()],
            },
            &End {
                namespace: &side,
                name: "side",
                addresses: &["198.51.100.2/24".parse().unwrap()],
            },
            None,
        )
        .unwrap();
        let back = route("192.0.2.0/24").via(ip("198.51.100.1"));
        side.run(|| net().add_route(&back).unwrap()).unwrap();
        let _listener = TcpListener::bind(&shared.network, ("192.0.2.1", ECHO)).unwrap();
        shared.echo(ECHO);
        let asking = side.run(|| std::net::UdpSocket::bind("198.51.100.2:0").unwrap()).unwrap();
        let connecting = || std::net::TcpStream::connect(("192.0.2.1", ECHO)).unwrap_err().kind();
        assert_eq!(side.run(connecting).unwrap(), ErrorKind::ConnectionRefused);
        assert!(!shared.answers(&asking));
        let asking =
            shared.far.run(|| std::net::UdpSocket::bind("192.0.2.200:0").unwrap()).unwrap();
        until("the echo answers", || shared.answers(&asking));
    });
}

#[test]
fn what_cannot_be_shared_is_refused() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::what_cannot_be_shared_is_refused") {
            return;
        }
        let shared = SharedUplink::start("generic", &[]);
        let socket = &shared.server.socket;
        let attach = |options: &Options| Session::attach(socket, options);
        let own = Options { addresses: Addresses::Own, ..Options::default() };
        let AttachError::Refused { text, .. } = attach(&own).unwrap_err() else { panic!() };
        assert!(text.contains("--lease"), "{text}");
        let named = Options { ipv4: Some("192.0.2.9".parse().unwrap()), ..Options::default() };
        assert!(attach(&named).is_err());
        let mut session = attach(&Options::default()).unwrap();
        let address = ip("192.0.2.1");
        let udp = Rule::new().ip(address).udp(6000);
        for (rule, part) in [
            (Rule::new(), "give the local address"),
            (Rule::new().udp(6000), "give the local address"),
            (Rule::new().ip(address).port(6000), "give the local address"),
            (Rule::new().ip(address).protocol(1), "give the local address"),
            (Rule::new().ip(ip("192.0.2.9")).udp(6000), "not given to this session"),
            (udp.vlan(7), "not possible"),
            (udp.with_group(), "not possible"),
            (udp.remote_port(9), "not possible"),
            (udp.ethertype(0x800), "not possible"),
            (udp.any_mac(), "not possible"),
        ] {
            let refused = session.open(&rule).unwrap_err().to_string();
            assert!(refused.contains(part), "{rule:?}: {refused}");
        }
        session.open(&udp).unwrap();
        session.open(&Rule::neighbours()).unwrap();
        let second = session.open(&Rule::neighbours()).unwrap_err().to_string();
        assert!(second.contains("has an endpoint for link addresses already"), "{second}");
        let tap = ["serve", "--device", "tap:tap9", "--address", "10.9.0.1/24", "--share-host"];
        let refused = fails(&mut towpath(&tap), 2);
        assert!(refused.contains("--share-host is for interfaces that the kernel keeps"));
        let mut serve = towpath(&["serve", "--socket", "/nonexistent/s", "--device"]);
        let refused = fails(serve.args(["xdp:uplink,exclusive", "--share-host"]), 2);
        assert!(refused.contains("exclude each other"), "{refused}");
        // The local addresses of the kernel's sockets, in hexadecimal (proc(5)).
        let address = format!("{:08X}:{:04X}", u32::from_ne_bytes([192, 0, 2, 1]), 6000);
        let ports = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
        let held = |line: &str| line.split_whitespace().nth(1) == Some(&address);
        assert!(ports.lines().any(held), "the administrator sees the port: {ports}");
    });
}

/// A server that is killed leaves no answer of the kernel to its applications' peers: neither a
/// reset nor an ICMP error. The next server resumes the connections.
#[test]
fn a_killed_servers_flows_stay_closed_to_the_kernel() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::a_killed_servers_flows_stay_closed_to_the_kernel") {
            return;
        }
        for mode in ["native", "generic", "packet"] {
            let mut shared = SharedUplink::start(mode, &["--hold", "30"]);
            let listener = TcpListener::bind(&shared.network, ("192.0.2.1", ECHO)).unwrap();
            let connect = || std::net::TcpStream::connect(("192.0.2.1", ECHO)).unwrap();
            let mut stream = shared.far.run(connect).unwrap();
            stream.write_all(b"before").unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.read_exact(&mut [0; 6]).unwrap();
            let mut here = std::net::TcpStream::connect(("192.0.2.1", ECHO)).unwrap();
            let (mut from_here, _) = listener.accept().unwrap();
            let other = TcpListener::bind(&shared.network, ("192.0.2.1", OTHER)).unwrap();
            // No server can follow for a while.
            shared.server.forbid_next();
            shared.server.kill_server();
            for peer in [&mut stream, &mut here] {
                peer.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                peer.write_all(b"after").unwrap();
                let silent = peer.read(&mut [0; 1]).unwrap_err();
                assert_eq!(silent.kind(), ErrorKind::WouldBlock, "{silent}");
            }
            assert!(!kernel_binds(ECHO), "the port is held");
            until("a next server fails", || shared.server.log().contains("before it served"));
            shared.server.allow_next();
            // The connections go on.
            for accepted in [&mut accepted, &mut from_here] {
                let mut after = [0; 5];
                accepted.read_exact(&mut after).unwrap();
                assert_eq!(&after, b"after", "{mode}");
            }
            assert!(!kernel_binds(ECHO), "the port is held");
            let mut again = shared.far.run(connect).unwrap();
            again.write_all(b"again").unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.read_exact(&mut [0; 5]).unwrap();
            // A port that it closes is the kernel's again.
            assert!(!kernel_binds(OTHER));
            drop(other);
            until("the kernel has the port", || kernel_binds(OTHER));
            // An orderly end leaves nothing.
            assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0));
            until_bare();
            assert!(!exists(format!("{}.keeper", shared.server.socket)));
            remove_wire();
        }
    });
}

/// The amount that an application receives while the kernel's own traffic goes on.
const BUSY_BYTES: usize = 200 << 20;

/// Starts Debian's sshd on the host's address, in a mount namespace in which /run is its own.
/// Returns the server, and a command for a session.
fn ssh(directory: &Directory) -> (std::process::Child, Command) {
    let path = |name: &str| directory.text(name);
    for key in ["host", "user"] {
        let mut keygen = Command::new("ssh-keygen");
        prints(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]));
    }
    let config = format!(
        "ListenAddress 192.0.2.1:2222\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
         StrictModes no\nPermitRootLogin yes\n",
        path("host"),
        path("user.pub")
    );
    std::fs::write(path("config"), config).unwrap();
    // It starts itself again, by its whole path.
    let mut server = Command::new(find_program("sshd").unwrap());
    server.args(["-D", "-f", &path("config"), "-E", &path("log")]);
    let in_its_run = || {
        enter_own_mounts().unwrap();
        mount_tmpfs(Path::new("/run"), "mode=755").unwrap();
        std::fs::create_dir("/run/sshd").unwrap();
        server.spawn().unwrap()
    };
    let server = std::thread::scope(|scope| scope.spawn(in_its_run).join()).unwrap();
    until("sshd listens", || std::net::TcpStream::connect("192.0.2.1:2222").is_ok());
    let mut session = Command::new("ssh");
    session.args(["-F", "none", "-p", "2222", "-i", &path("user"), "-o", "BatchMode=yes", "-o"]);
    session.args(["StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
    session.args(["-o", "LogLevel=ERROR", "root@192.0.2.1", "cat"]);
    (server, session)
}

/// Types lines into a session of the kernel's, each of which comes back.
struct Typing<I, O> {
    into: I,
    from: O,
    lines: usize,
}

impl<I: Write, O: BufRead> Typing<I, O> {
    fn line(&mut self) {
        self.lines += 1;
        let typed = format!("line {}\n", self.lines);
        self.into.write_all(typed.as_bytes()).unwrap();
        let mut shown = String::new();
        self.from.read_line(&mut shown).unwrap();
        assert_eq!(shown, typed);
    }
}

/// Sends an application much data by TCP, and types lines until it has all of them.
fn while_busy(shared: &SharedUplink, typing: &mut Typing<impl Write, impl BufRead>) {
    let listener = TcpListener::bind(&shared.network, ("192.0.2.1", ECHO)).unwrap();
    let connect = || std::net::TcpStream::connect(("192.0.2.1", ECHO)).unwrap();
    let mut sender = shared.far.run(connect).unwrap();
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(31) >> 7) as u8).collect();
    let sent = block.clone();
    let sending = std::thread::spawn(move || {
        for _ in 0..BUSY_BYTES / sent.len() {
            sender.write_all(&sent).unwrap();
        }
    });
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = vec![0; block.len()];
        for _ in 0..BUSY_BYTES / block.len() {
            stream.read_exact(&mut got).unwrap();
            assert!(got == block);
        }
    });
    typing.line();
    while !receiving.is_finished() {
        typing.line();
        std::thread::sleep(Duration::from_millis(5));
    }
    receiving.join().unwrap();
    sending.join().unwrap();
    typing.line();
}

/// A busy application loses the kernel no packet: echoes, datagrams and a connection go on.
#[test]
fn a_busy_application_leaves_the_kernels_traffic_alone() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::a_busy_application_leaves_the_kernels_traffic_alone") {
            return;
        }
        let mut shared = SharedUplink::start("generic", &[]);
        let far = &shared.far;
        let listener = std::net::TcpListener::bind("192.0.2.1:2222").unwrap();
        let stream = far.run(|| std::net::TcpStream::connect("192.0.2.1:2222").unwrap()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (session, _) = listener.accept().unwrap();
        let echoing = std::thread::spawn(move || std::io::copy(&mut &session, &mut &session));
        let from = BufReader::new(stream.try_clone().unwrap());
        let mut typing = Typing { into: stream, from, lines: 0 };
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let pings = move || {
            let (mut sent, mut lost) = (0, 0);
            while !told.load(Ordering::Relaxed) {
                sent += 1;
                lost += u64::from(ping(ip("192.0.2.1"), 56, Duration::from_secs(5)).is_err());
                std::thread::sleep(Duration::from_millis(10));
            }
            (sent, lost)
        };
        let pinging = far.run(|| std::thread::spawn(pings)).unwrap();
        let kernel = KernelTraffic::start(far);

        while_busy(&shared, &mut typing);
        assert_eq!(kernel.stop(), 0, "datagrams of the kernel's sockets were lost");
        over.store(true, Ordering::Relaxed);
        let (sent, lost) = pinging.join().unwrap();
        assert!(lost == 0 && sent > 0, "{lost} of {sent} echoes were lost");
        drop(typing);
        echoing.join().unwrap().unwrap();
        assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0));
    });
}

#[test]
fn an_ssh_session_goes_on_beside_a_busy_application() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "sharing::an_ssh_session_goes_on_beside_a_busy_application";
        let programs = [
            ("sshd", "openssh-server"),
            ("ssh", "openssh-client"),
            ("ssh-keygen", "openssh-client"),
        ];
        if !has_programs(TEST, &programs) || !may_attach(TEST) {
            return;
        }
        let mut shared = SharedUplink::start("generic", &[]);
        let keys = Directory::new();
        let (mut sshd, mut session) = ssh(&keys);
        session.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = shared.far.run(|| session.spawn().unwrap()).unwrap();
        let into = session.stdin.take().unwrap();
        let from = BufReader::new(session.stdout.take().unwrap());
        let mut typing = Typing { into, from, lines: 0 };
        while_busy(&shared, &mut typing);
        drop(typing);
        assert!(wait(&mut session).success());
        sshd.kill().unwrap();
        wait(&mut sshd);
        assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0));
    });
}

/// A server does not outlive its keeper, and says so.
#[test]
fn a_keeper_that_ends_is_reported() {
    towpath_testkit::isolated!(|| {
        if !may_attach("sharing::a_keeper_that_ends_is_reported") {
            return;
        }
        let mut shared = SharedUplink::start("generic", &[]);
        shared.echo(ECHO);
        shared.server.child.kill().unwrap();
        until("the server says so", || shared.server.log().contains("the keeper has ended"));
        until_bare();
        until("the kernel has the port", || kernel_binds(ECHO));
    });
}
