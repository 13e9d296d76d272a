//! Tests the echo examples against the kernel's sockets, and against another application.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::network::{Running, Served, TAP, possible};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use towpath_netlink::Netlink;
use towpath_server::{Grant, Policy, PortRange, Terms};
use towpath_testkit::{Unavailable, User, Users, isolated, skip};

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn datagrams_come_back() {
    if !possible("datagrams_come_back", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, |device| Box::new(device));
        let mut echo = Running::start(env!("CARGO_BIN_EXE_udp_echo"), &served, &[]);
        for (local, to) in [("0.0.0.0:0", "10.77.0.2:7"), ("[::]:0", "[fd77::2]:7")] {
            let socket = UdpSocket::bind(local).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut got = vec![0; 65_535];
            for len in [0, 1, 100, 1452, 1472, 1473, 9000, 65_000] {
                let sent: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
                socket.send(&sent).unwrap();
                let count = socket.recv(&mut got).unwrap();
                assert!(got[..count] == sent, "{len} bytes to {to}: {count} came back");
            }
            // Closed before the answer arrives: the port is unreachable, and the example still
            // answers the next datagram.
            let hasty = UdpSocket::bind(local).unwrap();
            hasty.send_to(b"good-bye", to).unwrap();
            drop(hasty);
            socket.send(b"still there?").unwrap();
            let count = socket.recv(&mut got).unwrap();
            assert_eq!(&got[..count], b"still there?");
        }
        echo.assert_alive();
        served.server.stop().unwrap();
    });
}

/// A policy that grants one UDP port to a user.
fn granting(user: &User, port: u16) -> Policy {
    let ports = vec![PortRange { protocol: 17, first: port, last: port }];
    let terms = Arc::new(Terms { ports: Some(ports), ..Terms::default() });
    let grant = Grant { users: vec![user.uid], terms, ..Grant::default() };
    Policy { grants: vec![grant], may_change: true, ..Policy::default() }
}

#[test]
fn an_echo_whose_port_the_policy_takes_away_ends() {
    let test = "an_echo_whose_port_the_policy_takes_away_ends";
    if !possible(test, &[]) {
        return;
    }
    isolated!(|| {
        let users = Users::find();
        if !users.distinct {
            let cause = "applications cannot be started as other users".to_owned();
            return skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
        }
        let user = users.applications[0];
        let served = Served::with_policy(granting(&user, 7), 1500, |device| Box::new(device));
        // The user may not have access to the build directory.
        let program = served.directory.0.join("udp_echo");
        std::fs::copy(env!("CARGO_BIN_EXE_udp_echo"), &program).unwrap();
        let mut command = Command::new(&program);
        command.arg(served.socket()).stdin(Stdio::null());
        user.confine(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut echo = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(echo.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("answering at"), "{line:?}");

        let change = served.server.set_policy(granting(&user, 8)).unwrap();
        assert_eq!(change.sessions, 0, "the session goes on");
        let output = ended(echo);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("udp_echo: the server's policy"), "{said}");
        served.server.stop().unwrap();
    });
}

/// Returns the output of a process that ends by itself, and kills one that does not.
fn ended(mut child: Child) -> Output {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Local experimental (IEEE 802).
const ETHERTYPE: u16 = 0x88b5;

/// A packet socket on the TAP (`packet(7)`).
fn packet_socket() -> OwnedFd {
    let number = u32::from(ETHERTYPE.to_be());
    let protocol = rustix::net::Protocol::from_raw(std::num::NonZeroU32::new(number).unwrap());
    let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
    let socket =
        rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol)).unwrap();
    // SAFETY: the type consists of numbers and bytes, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETHERTYPE.to_be();
    address.sll_ifindex = Netlink::open().unwrap().index(TAP).unwrap() as i32;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is of the length given.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn raw_packets_come_back() {
    if !possible("raw_packets_come_back", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, |device| Box::new(device));
        let mut echo = Running::start(env!("CARGO_BIN_EXE_echo"), &served, &[]);
        let socket = packet_socket();
        let report = towpath_client::report(served.socket()).unwrap();
        let mac = report["sessions"][0]["mac"].as_str().unwrap().to_owned();
        let mac: Vec<u8> =
            mac.split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
        let ours = Netlink::open().unwrap().link(TAP).unwrap().mac.unwrap();
        let mut got = [0; 2048];
        let mut exchange = |frame: &[u8]| {
            rustix::net::send(&socket, frame, SendFlags::empty()).unwrap();
            loop {
                let (_, count) = rustix::net::recv(&socket, &mut got, RecvFlags::empty()).unwrap();
                if got[..6] == ours {
                    return got[..count].to_vec();
                }
            }
        };
        for len in (60..=1514).step_by(97).chain([1514]) {
            let mut frame: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
            frame[..6].copy_from_slice(&mac);
            frame[6..12].copy_from_slice(&ours);
            frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
            let answer = exchange(&frame);
            let mut expected = frame;
            expected[..6].copy_from_slice(&ours);
            expected[6..12].copy_from_slice(&mac);
            assert!(answer == expected, "{len} bytes: {} came back", answer.len());
        }
        // Many frames at once: none is lost while it waits for room.
        let mut frame = [0; 200];
        frame[..6].copy_from_slice(&mac);
        frame[6..12].copy_from_slice(&ours);
        frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        for number in 0..100u8 {
            frame[14] = number;
            rustix::net::send(&socket, &frame, SendFlags::empty()).unwrap();
        }
        for number in 0..100u8 {
            let (_, count) = rustix::net::recv(&socket, &mut got, RecvFlags::empty()).unwrap();
            assert_eq!((count, got[14]), (200, number));
        }
        echo.assert_alive();
        served.server.stop().unwrap();
    });
}

#[test]
fn pdus_come_back() {
    if !possible("pdus_come_back", &[]) {
        return;
    }
    isolated!(|| {
        use towpath_pdu::{Options, PduEndpoint, Session, SessionOptions};
        let served = Served::start(1500, |device| Box::new(device));
        let mut echo = Running::start(env!("CARGO_BIN_EXE_pdu_echo"), &served, &[]);
        let report = towpath_client::report(served.socket()).unwrap();
        let mac = report["sessions"][0]["mac"].as_str().unwrap().to_owned();
        let mac: Vec<u8> =
            mac.split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
        let mac: [u8; 6] = mac.try_into().unwrap();
        let session = Session::attach(served.socket(), &SessionOptions::default()).unwrap();
        let mut pdus = PduEndpoint::open(session, &Options::default()).unwrap();
        for (channel, len) in [0, 1, 48, 1472, 1473, 20_000, 65_536].into_iter().enumerate() {
            let sent: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            pdus.send_bytes(mac, channel as u32, &sent).unwrap();
            let mut back = false;
            let until = std::time::Instant::now() + PATIENCE;
            while !back {
                assert!(std::time::Instant::now() < until, "{len} bytes: nothing came back");
                pdus.wait(Some(Duration::from_millis(50))).unwrap();
                pdus.receive(64, |pdu| {
                    assert_eq!((pdu.source(), pdu.channel()), (mac.into(), channel as u32));
                    assert!(pdu.parts().flatten().eq(&sent), "{len} bytes");
                    back = true;
                })
                .unwrap();
            }
        }
        echo.assert_alive();
        served.server.stop().unwrap();
    });
}

/// Both sides of the example, as two programs.
#[test]
fn out_of_band_messages_come_back() {
    if !possible("out_of_band_messages_come_back", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, |device| Box::new(device));
        let program = env!("CARGO_BIN_EXE_oob_echo");
        let mut echo = Running::start(program, &served, &[]);
        let ip = first_address(&served);
        for _ in 0..3 {
            let said = ask(program, &served, &[&format!("{ip}:7")], "one\ntwo\n");
            assert_eq!(said, (Some(0), "welcome\none\ntwo\n".to_owned(), String::new()));
        }
        let (status, _, error) = ask(program, &served, &[&format!("{ip}:8")], "");
        assert_eq!(status, Some(1));
        assert!(error.contains("refused: no endpoint takes messages"), "{error}");
        echo.assert_alive();
        served.server.stop().unwrap();
    });
}

/// Returns the address of the first session.
fn first_address(served: &Served) -> String {
    let report = towpath_client::report(served.socket()).unwrap();
    let ip = report["sessions"][0]["ipv4"].as_str().unwrap();
    ip.split('/').next().unwrap().to_owned()
}

/// Runs a program that reads lines. Returns its status and what it said.
fn ask(
    program: &str,
    served: &Served,
    arguments: &[&str],
    lines: &str,
) -> (Option<i32>, String, String) {
    let mut command = Command::new(program);
    command.arg(served.socket()).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn counters_are_read_without_their_owner() {
    if !possible("counters_are_read_without_their_owner", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, |device| Box::new(device));
        let program = env!("CARGO_BIN_EXE_board");
        let mut board = Running::start(program, &served, &[]);
        let at = format!("{}:9", first_address(&served));
        for _ in 0..2 {
            let (status, out, error) = ask(program, &served, &[&at], "");
            assert_eq!((status, error.as_str()), (Some(0), ""), "{out}");
            let ticks = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
            let ticks: Vec<u64> = out.lines().map(ticks).collect();
            assert!(ticks.len() == 3 && ticks.is_sorted() && ticks[0] < ticks[2], "{out}");
            assert!(out.lines().all(|line| line.ends_with(" 1 readers")), "{out}");
        }
        board.assert_alive();
        served.server.stop().unwrap();
    });
}

#[test]
fn values_are_looked_up_without_their_owner() {
    if !possible("values_are_looked_up_without_their_owner", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, |device| Box::new(device));
        let program = env!("CARGO_BIN_EXE_kv");
        let pairs: String =
            (0..300).map(|number| format!("key{number} value {number}\n")).collect();
        let mut keeper = Command::new(program);
        keeper.arg(served.socket()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = keeper.spawn().unwrap();
        keeper.stdin.take().unwrap().write_all(pairs.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("answering at"), "{line}");
        let at = format!("{}:9", first_address(&served));
        // More than the apertures that the keeper has at a time.
        for number in [0, 7, 150, 299].into_iter().cycle().take(70) {
            let said = ask(program, &served, &[&at, &format!("key{number}")], "");
            assert_eq!(said, (Some(0), format!("value {number}\n"), String::new()));
        }
        let (status, _, error) = ask(program, &served, &[&at, "key300"], "");
        assert_eq!((status, error.as_str()), (Some(1), "kv: no such key\n"));
        assert!(keeper.try_wait().unwrap().is_none());
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        served.server.stop().unwrap();
    });
}

#[test]
fn bytes_go_through_a_channel() {
    if !possible("bytes_go_through_a_channel", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, |device| Box::new(device));
        let program = env!("CARGO_BIN_EXE_channel");
        // More than the ring holds, and nothing.
        for lines in [(0..400_000).map(|line| format!("{line}\n")).collect(), String::new()] {
            let mut receiver = Command::new(program);
            receiver.arg(served.socket()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut receiver = receiver.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(receiver.stderr.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.starts_with("receiving at"), "{line}");
            let at = format!("{}:9", first_address(&served));
            let receiver = std::thread::spawn(|| receiver.wait_with_output().unwrap());
            let said = ask(program, &served, &[&at], &lines);
            assert_eq!(said, (Some(0), String::new(), String::new()));
            let received = receiver.join().unwrap();
            assert!(received.status.success());
            assert!(received.stdout == lines.as_bytes(), "{} bytes", received.stdout.len());
        }
        served.server.stop().unwrap();
    });
}
