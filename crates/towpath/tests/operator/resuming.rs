//! Servers that are killed under load: what applications notice, and what they do not.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use towpath_client::{Endpoint, Lost, Options, QueuePair, Rule, SendError, Session, Setting};
use towpath_net::{Network, TcpListener, TcpStream, UdpSocket};
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::{self, Attach, Close, Message, Refusal, Resume};
use towpath_testkit::PacketSocket;

use crate::beside_the_kernel::{FAR, NEAR, device, may_attach, sockets, until_bare, user};
use crate::networks::wire;
use crate::running::*;
use crate::sharing::{SharedUplink, remove_wire};

const ARGUMENTS: [&str; 5] =
    ["--device", "tap:opA", "--address", "10.77.0.1/24", "--address=fd77::1/64"];

/// Returns a network's address of the family that the tests use.
fn own(network: &Network) -> IpAddr {
    network.addresses().into_iter().find(IpAddr::is_ipv4).unwrap()
}

/// Returns the byte at a place of a stream.
fn byte_at(stream: usize, place: usize) -> u8 {
    let word = (place / 8 + stream * 1_000_003) as u64;
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[place % 8]
}

fn send(mut to: impl Write, stream: usize, bytes: usize) {
    let all: Vec<u8> = (0..bytes).map(|place| byte_at(stream, place)).collect();
    to.write_all(&all).unwrap();
}

fn receive(mut from: impl Read, stream: usize) -> usize {
    let (mut buffer, mut got) = (vec![0; 1 << 16], 0);
    loop {
        let count = from.read(&mut buffer).unwrap();
        if count == 0 {
            return got;
        }
        for (place, byte) in buffer[..count].iter().enumerate() {
            assert_eq!(*byte, byte_at(stream, got + place), "stream {stream}, byte {got}+{place}");
        }
        got += count;
    }
}

const CONNECTIONS: usize = 8;
const KILLS: usize = 10;

/// Sends `bytes` over each of several connections from a host's kernel to an application, which
/// answers each byte with the same, while servers are killed. `connect`: connects from that host.
fn echo_through_kills(
    server: &Running,
    listener: &TcpListener,
    bytes: usize,
    connect: impl Fn() -> std::net::TcpStream + Sync,
) {
    std::thread::scope(|scope| {
        let kernel = scope.spawn(|| {
            let connected = |_| {
                let stream = connect();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream
            };
            let streams: Vec<_> = (0..CONNECTIONS).map(connected).collect();
            std::thread::scope(|scope| {
                for (number, stream) in streams.iter().enumerate() {
                    scope.spawn(move || {
                        send(stream, number, bytes);
                        stream.shutdown(std::net::Shutdown::Write).unwrap();
                    });
                    scope.spawn(move || assert_eq!(receive(stream, number), bytes));
                }
            });
        });
        for _ in 0..CONNECTIONS {
            let (stream, _) = listener.accept().unwrap();
            scope.spawn(move || {
                let mut stream = stream;
                let mut buffer = vec![0; 1 << 16];
                loop {
                    let count = stream.read(&mut buffer).unwrap();
                    if count == 0 {
                        break;
                    }
                    stream.write_all(&buffer[..count]).unwrap();
                }
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            });
        }
        for killed in 1..=KILLS {
            std::thread::sleep(Duration::from_millis(20));
            server.kill_server();
            until("another server", || {
                server.log().matches("serving device=").count() == killed + 1
            });
        }
        kernel.join().unwrap();
    });
}

/// TCP in both directions with the kernel at the other end: every byte arrives once and in order,
/// through any number of servers.
#[test]
fn connections_outlive_their_servers() {
    towpath_testkit::isolated!(|| {
        if !tun("resuming::connections_outlive_their_servers") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &ARGUMENTS);
        let network = Network::attach(&server.socket).unwrap();
        let listener = TcpListener::bind(&network, (own(&network), 80)).unwrap();
        let at = listener.local_addr().unwrap();
        echo_through_kills(&server, &listener, 8 << 20, || {
            std::net::TcpStream::connect(at).unwrap()
        });
        // The application connects, too, and datagrams go both ways.
        let far = std::net::TcpListener::bind("10.77.0.1:0").unwrap();
        let stream = TcpStream::connect(&network, far.local_addr().unwrap()).unwrap();
        drop((far.accept().unwrap(), stream));
        crate::serving::round_trip(&server, 7);
        assert!(server.stop(Signal::TERM).success());
    });
}

/// The same over an interface whose address the kernel shares: it answers no packet of these
/// connections while no server runs, with a reset for instance.
#[test]
fn connections_of_shared_addresses_outlive_their_servers() {
    towpath_testkit::isolated!(|| {
        if !may_attach("resuming::connections_of_shared_addresses_outlive_their_servers") {
            return;
        }
        for mode in ["native", "generic", "packet"] {
            let mut shared = SharedUplink::start(mode, &[]);
            let listener = TcpListener::bind(&shared.network, ("192.0.2.1", 80)).unwrap();
            let connect = || std::net::TcpStream::connect("192.0.2.1:80").unwrap();
            echo_through_kills(&shared.server, &listener, 2 << 20, || {
                shared.far.run(connect).unwrap()
            });
            if mode != "packet" {
                let log = shared.server.log();
                assert!(log.contains("goes on with the memory of the earlier server"), "{log}");
            }
            let mut here = connect();
            here.write_all(b"here").unwrap();
            listener.accept().unwrap().0.read_exact(&mut [0; 4]).unwrap();
            drop(here);
            assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0), "{mode}");
            until_bare();
            remove_wire();
        }
    });
}

/// Datagrams that arrive over AF_XDP while no server runs are delivered, all of them and in order,
/// whatever the number of kills. What a killed server had just delivered may come again.
#[test]
fn no_datagram_is_lost_while_no_server_runs() {
    towpath_testkit::isolated!(|| {
        if !may_attach("resuming::no_datagram_is_lost_while_no_server_runs") {
            return;
        }
        for mode in ["native", "generic"] {
            let mut shared = SharedUplink::start(mode, &[]);
            let socket = UdpSocket::bind(&shared.network, ("192.0.2.1", 7)).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            let sender =
                shared.far.run(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
            let mut next = 0u32;
            let mut pass = |count: u32| {
                for number in next..next + count {
                    sender.send_to(&number.to_le_bytes(), "192.0.2.1:7").unwrap();
                }
                next += count;
            };
            let mut got = 0;
            let mut receive = |until: u32| {
                let mut bytes = [0; 16];
                while got < until {
                    assert_eq!(socket.recv_from(&mut bytes).unwrap().0, 4);
                    let number = u32::from_le_bytes(*bytes.first_chunk().unwrap());
                    assert!(number <= got, "{mode}: {number} after {got}");
                    got = got.max(number + 1);
                }
            };
            pass(10);
            receive(10);
            for kill in 1..=8 {
                // A keeper that does not run starts no server.
                kill_process(Pid::from_child(&shared.server.child), Signal::STOP).unwrap();
                shared.server.kill_server();
                pass(200);
                kill_process(Pid::from_child(&shared.server.child), Signal::CONT).unwrap();
                receive(10 + 200 * kill);
            }
            drop(socket);
            assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0), "{mode}");
            until_bare();
            remove_wire();
        }
    });
}

/// Datagrams for which the kernel's rings have no room, while a server stands still or after it was killed, are soon
/// counted, although the server then is idle.
#[test]
fn datagrams_without_room_in_the_kernels_rings_are_counted() {
    /// More than any ring holds.
    const SENT: u64 = 6000;
    towpath_testkit::isolated!(|| {
        if !may_attach("resuming::datagrams_without_room_in_the_kernels_rings_are_counted") {
            return;
        }
        for (mode, is_killed) in [
            ("native", true),
            ("native", false),
            ("generic", true),
            ("generic", false),
            ("packet", false),
        ] {
            let mut shared = SharedUplink::start(mode, &[]);
            let socket = UdpSocket::bind(&shared.network, ("192.0.2.1", 7)).unwrap();
            let sender =
                shared.far.run(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
            // A keeper that does not run starts no server.
            let keeper = Pid::from_child(&shared.server.child);
            let stopped = if is_killed { keeper } else { shared.server.server().unwrap() };
            kill_process(stopped, Signal::STOP).unwrap();
            if is_killed {
                shared.server.kill_server();
            }
            for _ in 0..SENT {
                sender.send_to(&[7], "192.0.2.1:7").unwrap();
            }
            kill_process(stopped, Signal::CONT).unwrap();
            let mut counts = [0; 2];
            until("each datagram is received or counted as dropped", || {
                let report = shared.server.report();
                let counters = &report["device"]["counters"];
                counts = ["rx_packets", "rx_dropped_driver"]
                    .map(|name| counters[name].as_u64().unwrap_or(0));
                counts[0] + counts[1] >= SENT
            });
            assert!(counts[1] > 0, "{mode}: {counts:?}");
            drop(socket);
            assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0), "{mode}");
            until_bare();
            remove_wire();
        }
    });
}

/// The same for frames to groups, which come through a packet socket's ring: each server goes on at
/// the place where the one before it stopped, also when the ring has been around.
#[test]
fn no_broadcast_is_lost_while_no_server_runs() {
    const ETHERTYPE: u16 = 0x88b5;
    const ROUND: u32 = 700;
    towpath_testkit::isolated!(|| {
        if !may_attach("resuming::no_broadcast_is_lost_while_no_server_runs") {
            return;
        }
        let far = wire(&FAR, &NEAR);
        let (directory, device, user) = (sockets(), device("generic"), user());
        let arguments = ["--device", &device, "--user", &user, "--lease", "192.0.2.64/28"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let options = Options { receive_slots: 1024, ..Options::default() };
        let mut session = Session::attach(&server.socket, &options).unwrap();
        session.open(&Rule::new().ethertype(ETHERTYPE).with_group()).unwrap();
        let socket = far.run(|| PacketSocket::open("far", ETHERTYPE).unwrap()).unwrap();
        let frame = |number: u32| {
            let head = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &ETHERTYPE.to_be_bytes()].concat();
            [&head[..], &number.to_le_bytes(), &[0; 42]].concat()
        };
        let (mut sent, mut next) = (0, 0);
        for round in 1..=5 {
            // A keeper that does not run starts no server.
            kill_process(Pid::from_child(&server.child), Signal::STOP).unwrap();
            server.kill_server();
            while sent < round * ROUND {
                assert!(socket.send(&frame(sent)).unwrap());
                sent += 1;
            }
            kill_process(Pid::from_child(&server.child), Signal::CONT).unwrap();
            let deadline = std::time::Instant::now() + LIMIT;
            while next < sent {
                assert!(std::time::Instant::now() < deadline, "{next} of {sent}");
                session.wait(Some(Duration::from_millis(100))).unwrap();
                while let Some(frame) = session.receiver().receive_one(QueuePair::FIRST).unwrap() {
                    let number = u32::from_le_bytes(frame[14..18].try_into().unwrap());
                    assert!(number <= next, "{number} after {next}");
                    next = next.max(number + 1);
                }
            }
        }
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    });
}

/// Datagrams that the kernel queued for the interface while no server ran are delivered, and a
/// socket that waits goes on waiting.
#[test]
fn a_waiting_application_gets_what_came_meanwhile() {
    towpath_testkit::isolated!(|| {
        if !tun("resuming::a_waiting_application_gets_what_came_meanwhile") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        let network = Network::attach(&server.socket).unwrap();
        let socket = UdpSocket::bind(&network, (own(&network), 7)).unwrap();
        let at: SocketAddr = socket.local_addr().unwrap();
        let kernel = std::net::UdpSocket::bind("10.77.0.1:0").unwrap();
        // The kernel learns the link address.
        kernel.send_to(b"first", at).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(socket.recv_from(&mut bytes).unwrap().0, 5);
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut got = 0;
                while got < 100 {
                    socket.recv_from(&mut [0; 16]).unwrap();
                    got += 1;
                }
                got
            });
            // A keeper that does not run starts no server.
            kill_process(Pid::from_child(&server.child), Signal::STOP).unwrap();
            server.kill_server();
            for number in 0..100u32 {
                kernel.send_to(&number.to_le_bytes(), at).unwrap();
            }
            kill_process(Pid::from_child(&server.child), Signal::CONT).unwrap();
            waiting.join().unwrap()
        });
        assert_eq!(waiting, 100);
    });
}

/// Returns the report on a session's endpoints, without the counters.
fn endpoints(server: &Running) -> Vec<serde_json::Value> {
    let mut report = server.report();
    let sessions = report["sessions"].as_array_mut().unwrap();
    let mut endpoints = sessions[0]["endpoints"].take();
    for endpoint in endpoints.as_array_mut().unwrap() {
        endpoint.as_object_mut().unwrap().remove("counters");
    }
    endpoints.as_array().unwrap().clone()
}

/// No counter of the device begins anew with the next server.
#[test]
fn the_devices_counters_go_on() {
    towpath_testkit::isolated!(|| {
        if !tun("resuming::the_devices_counters_go_on") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &ARGUMENTS);
        for port in 7..27 {
            crate::serving::round_trip(&server, port);
        }
        let counters = || server.report()["device"]["counters"].as_object().unwrap().clone();
        let mut before = counters();
        for _ in 0..2 {
            server.kill_server();
            crate::serving::round_trip(&server, 7);
            let after = counters();
            for (name, value) in &before {
                assert!(after[name].as_u64() >= value.as_u64(), "{name}: {value}, {}", after[name]);
            }
            before = after;
        }
        assert!(before["tx_packets"].as_u64().unwrap() >= 22, "{before:?}");
        assert!(server.stop(Signal::TERM).success());
    });
}

/// Endpoints keep their numbers, rules, ports and settings, and closed ones stay closed.
#[test]
fn endpoints_and_settings_are_as_before() {
    towpath_testkit::isolated!(|| {
        if !tun("resuming::endpoints_and_settings_are_as_before") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        let options =
            Options { name: "many".into(), queue_pairs: 3, endpoints: 64, ..Options::default() };
        let mut session = Session::attach(&server.socket, &options).unwrap();
        let address = session.info().ipv4;
        let mut opened = Vec::new();
        for number in 0..20u16 {
            let rule =
                Rule::new().queue_pair(QueuePair::new(u32::from(number % 3))).udp(1000 + number);
            opened.push(session.open(&rule).unwrap());
        }
        opened.push(session.open(&Rule::new().tcp(0)).unwrap());
        session.open(&Rule::new().ethertype(0x88b5).with_offload()).unwrap();
        let inside = session.open(&Rule::new().ethertype(0x88b5).within_vlan(7)).unwrap();
        session.set(opened[3], Setting::RxUsecs, 77).unwrap();
        let at = format!("{}/{}", session.info().session, 4);
        prints(&mut towpath(&["set", &server.socket, &at, "rate_bps=8000000", "weight=3"]));
        prints(&mut towpath(&["set", &server.socket, "rx_batch=17"]));
        for one in [5, 9, 10] {
            session.close(opened[one]).unwrap();
        }
        let before = endpoints(&server);
        assert_eq!(before.len(), 20);
        for kills in 1..=3 {
            server.kill_server();
            assert!(session.wait(Some(LIMIT)).unwrap());
            assert_eq!(session.statistics().resumptions, kills);
            assert_eq!(endpoints(&server), before);
            assert_eq!(session.info().ipv4, address);
            assert_eq!(server.report()["device"]["settings"]["rx_batch"], "17");
            sends_within_its_vlan(&mut session, inside, kills);
        }
        // Free numbers are used again, taken ones are not.
        let next = session.open(&Rule::new().udp(2000)).unwrap();
        assert_eq!(next.id(), opened[5].id());
        let taken = session.open(&Rule::new().udp(1003)).unwrap_err().to_string();
        assert!(taken.contains("an endpoint with the same flow rule"), "{taken}");
        session.close(opened[3]).unwrap();
        session.open(&Rule::new().udp(1003)).unwrap();
        // The address stays this application's.
        let other = Options { ipv4: address.map(|(ip, _)| ip), ..Options::default() };
        assert!(Session::attach(&server.socket, &other).is_err());
        drop(session);
        until("the session is over", || server.report()["device"]["addresses_in_use"] == 0);
    });
}

/// An endpoint within a VLAN still sends packets without the tag, and none with one. `kills`: how
/// often the server was killed.
fn sends_within_its_vlan(session: &mut Session, endpoint: Endpoint, kills: u64) {
    let mut packet = vec![0xee; 60];
    packet[..6].fill(0xff);
    packet[6..12].copy_from_slice(&session.info().mac.octets());
    packet[12..14].copy_from_slice(&[0x88, 0xb5]);
    session.sender().send_bytes(endpoint, &packet).unwrap();
    packet.splice(12..12, [0x81, 0, 0, 7]);
    session.sender().send_bytes(endpoint, &packet).unwrap();
    session.sender().flush().unwrap();
    until("both are counted", || {
        let counters = session.counters(endpoint);
        counters.tx_packets() == kills && counters.get("tx_dropped_outside_rule") == Some(kills)
    });
}

/// The next server closes endpoints and sessions that the policy no longer grants, and the
/// application reads why.
#[test]
fn the_policy_of_the_next_server_holds() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "resuming::the_policy_of_the_next_server_holds";
        if !tun(TEST) {
            return;
        }
        let Some(users) = other_users(TEST) else { return };
        let directory = Directory::new();
        let policy = directory.text("policy.toml");
        let grant = |text: &str| std::fs::write(&policy, text).unwrap();
        let (user, gid) = (users.applications[0].uid, users.applications[0].gid);
        let wait = |session: &mut Session| {
            crate::policies::as_user((user, gid), || session.wait(Some(LIMIT)))
        };
        grant("[[grant]]\nusers = [61002]\nports = [\"udp:1000-2000\"]\n");
        let arguments = [&ARGUMENTS[..], &["--policy", &policy]].concat();
        let server = serve(&directory, "s.sock", &arguments);
        let options = Options::default();
        let mut session =
            crate::policies::attach_by(&users.applications[0], &server.socket, &options).unwrap();
        let stays = session.open(&Rule::new().udp(1000)).unwrap();
        let goes = session.open(&Rule::new().udp(2000)).unwrap();
        grant("[[grant]]\nusers = [61002]\nports = [\"udp:1000\"]\n");
        // The second time, the application knows already. It may close the endpoint at any time.
        for resumed in 1..=2 {
            server.kill_server();
            while session.statistics().resumptions < resumed {
                assert!(wait(&mut session).unwrap());
            }
            assert!(!session.is_revoked(stays) && session.is_revoked(goes));
            assert_eq!(session.sender().send_bytes(goes, &[0; 60]), Err(SendError::Revoked));
        }
        assert_eq!(session.revoked_endpoints(), 1);
        session.close(goes).unwrap();
        grant("[[grant]]\nusers = [61003]\n");
        server.kill_server();
        let lost = loop {
            if let Err(lost) = wait(&mut session) {
                break lost;
            }
        };
        assert_eq!(lost, Lost::Revoked);
        let log = server.log();
        assert!(log.contains("an endpoint is not resumed: open: "), "{log}");
        assert!(log.contains("not resumed: the server's policy grants nothing"), "{log}");
        assert_eq!(server.report()["device"]["addresses_in_use"], 0);
    });
}

/// An application that ends while no server runs leaves nothing behind.
#[test]
fn an_application_ends_while_no_server_runs() {
    towpath_testkit::isolated!(|| {
        if !tun("resuming::an_application_ends_while_no_server_runs") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        let file = directory.text("c.pcapng");
        for stays_for_a_while in [false, true] {
            let mut capture = server.subcommand("capture", &["-w", &file]).spawn().unwrap();
            let sessions = |server: &Running| server.report()["sessions"].as_array().unwrap().len();
            until("it is attached", || sessions(&server) == 1);
            // The application does not come back, and its process may go on for a while.
            kill_process(Pid::from_child(&capture), Signal::STOP).unwrap();
            kill_process(Pid::from_child(&server.child), Signal::STOP).unwrap();
            server.kill_server();
            if !stays_for_a_while {
                capture.kill().unwrap();
            }
            kill_process(Pid::from_child(&server.child), Signal::CONT).unwrap();
            until("another server", || {
                server.subcommand("ls", &[]).output().unwrap().status.success()
            });
            if stays_for_a_while {
                assert_eq!(sessions(&server), 1, "{}", server.log());
                capture.kill().unwrap();
            }
            capture.wait().unwrap();
            until("nothing is left", || sessions(&server) == 0);
            assert_eq!(server.report()["device"]["addresses_in_use"], 0);
            let ends =
                if stays_for_a_while { "an unclaimed session ends" } else { "a session ends" };
            assert!(server.log().contains(ends), "{}", server.log());
        }
    });
}

/// Connects to a server, as an administrator.
fn connect(path: &str) -> Channel {
    let path = format!("{path}.admin");
    let kind = rustix::net::SocketType::SEQPACKET;
    let family = rustix::net::AddressFamily::UNIX;
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
    rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    Channel::new(socket)
}

/// Sends a request, and returns the answer.
fn ask(channel: &Channel, request: &Message) -> Message {
    channel.send(request, &[]).unwrap();
    match channel.receive().unwrap() {
        Incoming::Message(answer, _) => answer,
        other => panic!("{other:?}"),
    }
}

/// Returns the kind of the error that answers a request.
fn refusal(channel: &Channel, request: &Message) -> Refusal {
    match ask(channel, request) {
        Message::Error(body) => body.refusal(),
        other => panic!("{other:?}"),
    }
}

/// A request for an endpoint that cannot exist harms nothing, whatever the progress of its
/// connection.
#[test]
fn an_endpoint_of_any_number_is_refused() {
    towpath_testkit::isolated!(|| {
        if !tun("resuming::an_endpoint_of_any_number_is_refused") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        let process = server.server();
        let channel = connect(&server.socket);
        let is_refused = || {
            for endpoint in [0, 1, 63, 64, 1 << 16, u32::MAX] {
                let close = Message::Close(Close { endpoint });
                assert_eq!(refusal(&channel, &close), Refusal::NotFound);
            }
        };
        is_refused();
        let attach = Attach {
            queue_pairs: 1,
            endpoints: 64,
            transmit_slots: 64,
            receive_slots: 64,
            transmit_buffer_bytes: 2048,
            receive_buffer_bytes: 2048,
            name: message::fixed_name("raw"),
            ipv4: [0; 4],
            flags: 0,
            apertures: 0,
            tripwires: 0,
        };
        channel.send(&Message::Attach(attach), &[]).unwrap();
        let answer = channel.receive().unwrap();
        let Incoming::Message(Message::Attached(_), files) = answer else { panic!("{answer:?}") };
        is_refused();
        allocate(files);
        assert_eq!(ask(&channel, &Message::Mapped), Message::Done);
        is_refused();
        assert_eq!(server.server(), process);
    });
}

/// Only the process that attached gets its session back, and only once.
#[test]
fn only_the_process_that_attached_claims_a_session() {
    towpath_testkit::isolated!(|| {
        if !tun("resuming::only_the_process_that_attached_claims_a_session") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        let mut capture =
            server.subcommand("capture", &["-w", &directory.text("c.pcapng")]).spawn().unwrap();
        until("it is attached", || server.report()["sessions"][0]["session"] == 1);
        let mut session = Session::attach(&server.socket, &Options::default()).unwrap();
        kill_process(Pid::from_child(&capture), Signal::STOP).unwrap();
        server.kill_server();
        while session.statistics().resumptions < 1 {
            assert!(session.wait(Some(LIMIT)).unwrap());
        }
        let epoch = session.info().epoch;
        let ask = |session, reserved| {
            let resume = Message::Resume(Resume { epoch, session, reserved });
            refusal(&connect(&server.socket), &resume)
        };
        assert_eq!(server.report()["sessions"][0]["unclaimed"], true);
        // Another process's, one that does not exist, one that is claimed, and nonsense.
        assert_eq!(ask(1, 0), Refusal::NotFound);
        assert_eq!(ask(99, 0), Refusal::NotFound);
        assert_eq!(ask(session.info().session, 0), Refusal::NotFound);
        assert_eq!(ask(1, 1), Refusal::Malformed);
        // Nothing came of that.
        assert!(!session.wait(Some(Duration::ZERO)).unwrap());
        kill_process(Pid::from_child(&capture), Signal::CONT).unwrap();
        until("its own process claims it", || {
            server.report()["sessions"]
                .as_array()
                .unwrap()
                .iter()
                .all(|one| one["unclaimed"].is_null())
        });
        signal(&capture, Signal::TERM);
        assert!(wait(&mut capture).success());
        until("only one session is left", || {
            server.report()["sessions"].as_array().unwrap().len() == 1
        });
        session.open(&Rule::new().udp(1)).unwrap();
    });
}
