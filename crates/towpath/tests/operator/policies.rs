//! A server with a policy file: what users get, and what a change of the file takes away.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use towpath_client::{
    AttachError, Lost, OpenError, Options, Rule, SendError, Session, Setting, Violation,
};
use towpath_net::{BindOptions, Network, SessionLink, UdpSocket};
use towpath_testkit::{PacketSocket, User};

use crate::running::*;

const PROTOCOL_TCP: u8 = 6;

/// Calls a function as another user and group, in a thread of which only these change.
pub(crate) fn as_user<T: Send>((uid, gid): (u32, u32), call: impl FnOnce() -> T + Send) -> T {
    let by_user = move || {
        let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        call()
    };
    std::thread::scope(|scope| scope.spawn(by_user).join().unwrap())
}

/// Attaches as another user.
pub(crate) fn attach_by(
    user: &User,
    socket: &str,
    options: &Options,
) -> Result<Session, AttachError> {
    as_user((user.uid, user.gid), || Session::attach(socket, options))
}

fn refused(error: AttachError) -> String {
    let AttachError::Refused { text, .. } = error else { panic!("{error}") };
    text
}

fn may_not(opened: Result<towpath_client::Endpoint, OpenError>) -> String {
    match opened {
        Err(OpenError::Refused { text, .. }) => text,
        other => panic!("{other:?}"),
    }
}

fn tcp(port: u16) -> Rule {
    Rule::new().protocol(PROTOCOL_TCP).port(port)
}

/// A server with a policy file, and the users of two applications.
struct Policed {
    server: Running,
    file: String,
    directory: Directory,
    users: [User; 2],
}

impl Policed {
    fn start(test: &str, policy: &str) -> Option<Policed> {
        if !tun(test) {
            return None;
        }
        let users = other_users(test)?;
        let directory = Directory::new();
        let file = directory.text("policy.toml");
        std::fs::write(&file, policy).unwrap();
        let server = serve(
            &directory,
            "s.sock",
            &["--device", "tap:opA", "--address", "10.77.0.1/24", "--policy", &file],
        );
        Some(Policed { server, file, directory, users: users.applications })
    }

    /// Changes the file, and waits until the server's log says so.
    fn change(&self, policy: &str, expected: &str) {
        let before = self.server.log().len();
        std::fs::write(&self.file, policy).unwrap();
        signal(&self.server.child, Signal::HUP);
        until(expected, || self.server.log()[before..].contains(expected));
    }

    fn attach(&self, user: usize, name: &str) -> Result<Session, AttachError> {
        let options = Options { name: name.to_owned(), endpoints: 8, ..Options::default() };
        attach_by(&self.users[user], &self.server.socket, &options)
    }
}

/// The server chooses the port of a socket of both families, also where one of its families is taken or absent.
#[test]
fn a_socket_of_both_families_gets_a_port_of_both() {
    towpath_testkit::isolated!(|| {
        let test = "policies::a_socket_of_both_families_gets_a_port_of_both";
        let ports =
            "[[grant]]\nusers = [61002]\nports = [\"udp:5000-5003\"]\nendpoints-per-session = 16\n";
        let Some(policed) = Policed::start(test, ports) else { return };
        // Twice: the ports are free again after the end of a network.
        for _ in 0..2 {
            let options = Options { endpoints: 16, ..SessionLink::options("both") };
            let session = attach_by(&policed.users[0], &policed.server.socket, &options).unwrap();
            let network = Network::builder().over(session).unwrap();
            let ours = network.addresses().into_iter().find(std::net::IpAddr::is_ipv4).unwrap();
            let _first = UdpSocket::bind(&network, "0.0.0.0:0").unwrap();
            let both = UdpSocket::bind(&network, "[::]:0").unwrap();
            both.set_read_timeout(Some(LIMIT)).unwrap();
            let kernel = std::net::UdpSocket::bind("10.77.0.1:0").unwrap();
            kernel.set_read_timeout(Some(LIMIT)).unwrap();
            let to = (ours, both.local_addr().unwrap().port());
            assert!((5000..5004).contains(&to.1), "{to:?}");
            kernel.send_to(b"question", to).unwrap();
            let (len, from) = both.recv_from(&mut [0; 16]).unwrap();
            both.send_to(b"answer", from).unwrap();
            assert_eq!((len, kernel.recv(&mut [0; 16]).unwrap()), (8, 6));
        }
    });
}

/// A granted port stays open until the last of the sockets that share it has been dropped.
#[test]
fn several_sockets_share_a_granted_port() {
    towpath_testkit::isolated!(|| {
        let test = "policies::several_sockets_share_a_granted_port";
        let ports =
            "[[grant]]\nusers = [61002]\nports = [\"udp:5000\"]\nendpoints-per-session = 8\n";
        let Some(policed) = Policed::start(test, ports) else { return };
        let options = Options { endpoints: 8, ..SessionLink::options("shared") };
        let session = attach_by(&policed.users[0], &policed.server.socket, &options).unwrap();
        let network = Network::builder().over(session).unwrap();
        let ours = network.addresses().into_iter().find(std::net::IpAddr::is_ipv4).unwrap();
        let endpoints = || {
            let report = policed.server.report();
            report["sessions"][0]["endpoints"].as_array().unwrap().len()
        };
        let before = endpoints();
        let mut reuse = BindOptions::default();
        reuse.reuse_port = true;
        let bind = |_| UdpSocket::bind_with(&network, "0.0.0.0:5000", reuse).unwrap();
        let mut sockets: Vec<UdpSocket> = (0..3).map(bind).collect();
        assert_eq!(endpoints(), before + 1);
        let kernel = std::net::UdpSocket::bind("10.77.0.1:0").unwrap();
        while let Some(last) = sockets.pop() {
            drop(last);
            sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
            let receives = |socket: &UdpSocket| socket.recv_from(&mut [0; 8]).is_ok();
            if !sockets.is_empty() {
                kernel.send_to(b"question", (ours, 5000)).unwrap();
                until("one of the others receives", || sockets.iter().any(receives));
            }
        }
        until("the port's endpoint is closed", || endpoints() == before);
        UdpSocket::bind(&network, "0.0.0.0:5000").unwrap();
    });
}

/// A session with limited ports has an endpoint for each protocol, and sends its MLD reports by that of ICMPv6.
#[test]
fn a_session_with_limited_ports_reports_its_groups() {
    towpath_testkit::isolated!(|| {
        let test = "policies::a_session_with_limited_ports_reports_its_groups";
        let web = "[[grant]]\nusers = [61002]\nports = [\"tcp:80\"]\nendpoints-per-session = 8\n";
        let Some(policed) = Policed::start(test, web) else { return };
        let receiver = PacketSocket::open("opA", 0x86dd).unwrap();
        let options = Options { endpoints: 8, ..SessionLink::options("web") };
        let session = attach_by(&policed.users[0], &policed.server.socket, &options).unwrap();
        let _network = Network::builder().over(session).unwrap();
        let mut frame = [0; 2048];
        // Hop-by-hop options, and behind them an MLDv2 report.
        until("a report", || {
            let len = receiver.receive(&mut frame).unwrap().unwrap_or(0);
            len > 62 && (frame[20], frame[62]) == (0, 143)
        });
    });
}

#[test]
fn users_get_what_the_policy_grants() {
    towpath_testkit::isolated!(|| {
        let web = "[[grant]]\nusers = [61002]\naddresses = [\"10.77.0.8-10.77.0.9\"]\nports = \
                   [\"tcp:80\"]\nendpoints-per-session = 8\nsettings = [\"weight=4\", \"priority=5\"]\n";
        let test = "policies::users_get_what_the_policy_grants";
        let Some(policed) = Policed::start(test, web) else { return };
        let said = refused(policed.attach(1, "other").unwrap_err());
        assert!(policed.server.log().contains("refused: the server's policy grants nothing"));
        assert!(said.contains("policy grants nothing to user 61003"), "{said}");
        let mut session = policed.attach(0, "web").unwrap();
        assert_eq!(session.info().ipv4.unwrap().0.to_string(), "10.77.0.8");
        let endpoint = session.open(&tcp(80)).unwrap();
        for (rule, part) in [
            (tcp(81), "may not use port 81"),
            (Rule::new().protocol(17).port(80), "port 80 of protocol 17"),
            (Rule::new(), "no protocol or no local port"),
            (Rule::capture(), "may not capture"),
            (Rule::promiscuous(), "may not open promiscuous"),
        ] {
            let said = may_not(session.open(&rule));
            assert!(said.contains(part) && said.contains("administrator"), "{said}");
        }
        session.open(&Rule::new().ethertype(0x806).with_group()).unwrap();
        let settings = &policed.server.report()["sessions"][0]["endpoints"][0]["settings"];
        assert_eq!((&settings["weight"], &settings["priority"]), (&"4".into(), &"5".into()));
        // An application may go below the priority of its grant, and back, and not beyond.
        session.set(endpoint, Setting::Priority, 6).unwrap_err();
        session.set(endpoint, Setting::Priority, 5).unwrap();

        // A file with an error, or with an address that the device does not have, changes nothing.
        policed.change("[[grant]]\nusers = 7\n", "policy.toml:2: a list is expected");
        let foreign = "[[reservation]]\nuser = 61002\nname = \"x\"\naddress = \"192.0.2.1\"\n";
        let foreign = format!("[[grant]]\nusers = [61002]\n{foreign}");
        let gives = "policy.toml:3: reservation of 192.0.2.1: opA gives 10.77.0.2 to 10.77.0.254";
        policed.change(&foreign, gives);
        let second = towpath(&["serve", "--device", "tap:opB", "--address", "10.77.1.1/24"])
            .args(["--socket", &policed.directory.text("t.sock"), "--policy", &policed.file])
            .output();
        let said = text(&second.as_ref().unwrap().stderr);
        assert_eq!(second.unwrap().status.code(), Some(2), "{said}");
        assert!(said.contains("policy.toml:3: reservation of 192.0.2.1: opB gives"), "{said}");
        assert!(policed.server.log().contains("the old policy stays in force"));
        assert!(!session.wait(Some(Duration::ZERO)).unwrap());

        // The endpoint of a port that is taken away is closed; the session goes on.
        policed.change(
            &web.replace("tcp:80", "tcp:81"),
            "policy reloaded sessions_closed=0 endpoints_closed=1",
        );
        assert!(session.wait(Some(LIMIT)).unwrap(), "the session is told");
        assert!(!session.wait(Some(Duration::ZERO)).unwrap(), "once");
        assert!(session.is_revoked(endpoint));
        assert_eq!(session.sender().send_bytes(endpoint, &[0; 60]), Err(SendError::Revoked));
        let report = policed.server.report();
        let receives = &report["sessions"][0]["endpoints"][0]["receives"];
        assert_eq!(receives, "nothing: closed, because the policy changed");
        session.set(endpoint, Setting::Priority, 5).unwrap_err();
        may_not(session.open(&tcp(80)));
        session.close(endpoint).unwrap();
        let endpoint = session.open(&tcp(81)).unwrap();
        assert!(!session.is_revoked(endpoint), "its number is that of the closed one");

        // Without its grant, or its address, a session ends.
        policed.change(
            &web.replace("0.8-", "0.9-"),
            "policy reloaded sessions_closed=1 endpoints_closed=0",
        );
        let lost = loop {
            if let Err(lost) = session.wait(Some(LIMIT)) {
                break lost;
            }
        };
        assert_eq!(lost, Lost::Revoked);
        drop(session);
        let session = policed.attach(0, "web").unwrap();
        assert_eq!(session.info().ipv4.unwrap().0.to_string(), "10.77.0.9");
        policed.change("", "sessions_closed=1 endpoints_closed=0");
        policed.change("", "sessions_closed=0 endpoints_closed=0");
        refused(policed.attach(0, "web").unwrap_err());
        let mut server = policed.server;
        assert!(server.stop(Signal::TERM).success());
        drop(policed.directory);
    });
}

#[test]
fn a_policy_that_the_servers_user_cannot_read_is_reported_at_the_start() {
    towpath_testkit::isolated!(|| {
        let test = "policies::a_policy_that_the_servers_user_cannot_read_is_reported_at_the_start";
        // Shows that the server can change its user here.
        let Some(policed) = Policed::start(test, "") else { return };
        let Policed { mut server, file, directory, .. } = policed;
        let warning = "will not be able to read this policy again";
        assert!(!server.log().contains(warning), "{}", server.log());
        assert!(server.stop(Signal::TERM).success());
        let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        std::fs::set_permissions(directory.join(""), PermissionsExt::from_mode(0o777)).unwrap();
        let device = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--user", "61001:61001"];
        for (readable, permissions) in [(false, 0o600), (true, 0o640)] {
            mode(permissions);
            let mut server =
                serve(&directory, "t.sock", &[&device[..], &["--policy", &file]].concat());
            assert_eq!(server.log().contains(warning), !readable, "{}", server.log());
            signal(&server.child, Signal::HUP);
            let said = if readable { "policy reloaded" } else { "the old policy stays in force" };
            until(said, || server.log().contains(said));
            if !readable {
                assert!(server.log().contains("chgrp 61001 "), "{}", server.log());
                std::os::unix::fs::chown(&file, None, Some(61001)).unwrap();
            }
            assert!(server.stop(Signal::TERM).success());
        }
    });
}

#[test]
fn an_application_keeps_the_address_that_is_reserved_for_it() {
    towpath_testkit::isolated!(|| {
        let policy = "[[grant]]\nusers = [61002, 61003]\n[[reservation]]\nuser = 61002\nname = \
                      \"web\"\naddress = \"10.77.0.2\"\n";
        let test = "policies::an_application_keeps_the_address_that_is_reserved_for_it";
        let Some(policed) = Policed::start(test, policy) else { return };
        let address = |session: &Session| session.info().ipv4.unwrap().0.to_string();
        for _ in 0..2 {
            let others: Vec<_> = (0..4).map(|_| policed.attach(1, "web").unwrap()).collect();
            assert!(others.iter().all(|session| address(session) != "10.77.0.2"));
            assert_eq!(address(&policed.attach(0, "web").unwrap()), "10.77.0.2");
            assert_ne!(address(&policed.attach(0, "other").unwrap()), "10.77.0.2");
        }
    });
}

#[test]
fn a_session_of_many_forbidden_packets_is_closed() {
    towpath_testkit::isolated!(|| {
        let policy = "[[grant]]\nusers = [61002]\nforbidden-packets-per-second = 5\n[[grant]]\nusers = [61003]\n";
        let test = "policies::a_session_of_many_forbidden_packets_is_closed";
        let Some(policed) = Policed::start(test, policy) else { return };
        // From the MAC address of another station.
        let mut frame = [0xff; 60];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        let sent = |session: &mut Session, packets: u64| {
            let endpoint = session.open(&Rule::new()).unwrap();
            for _ in 0..packets {
                session.sender().send_bytes(endpoint, &frame).unwrap();
            }
            session.sender().flush().unwrap();
            endpoint
        };
        let mut tolerated = policed.attach(1, "tolerated").unwrap();
        let endpoint = sent(&mut tolerated, 50);
        let counted =
            |session: &Session| session.counters(endpoint).get("tx_dropped_source_mac").unwrap();
        until("each packet is counted", || counted(&tolerated) == 50);
        tolerated.wait(Some(Duration::ZERO)).unwrap();
        let mut session = policed.attach(0, "closed").unwrap();
        sent(&mut session, 50);
        let lost = loop {
            if let Err(lost) = session.wait(Some(LIMIT)) {
                break lost;
            }
        };
        assert_eq!(lost, Lost::Violated(Violation::Forbidden));
        assert_eq!(counted(&tolerated), 50, "the other session goes on");
        tolerated.wait(Some(Duration::ZERO)).unwrap();
    });
}

#[test]
fn a_policy_is_checked_and_explained() {
    let directory = Directory::new();
    let file = directory.text("policy.toml");
    let check = |arguments: &[&str]| {
        let mut all = vec!["policy", "check", &file];
        all.extend(arguments);
        towpath(&all)
    };
    let policy = "[[grant]]\nusers = [61002]\ndevices = [\"eth0\"]\nports = [\"tcp:80\"]\n\n\
                  [[grant]]\ngroups = [61003]\ncapture = true\n\n[[reservation]]\nuser = \
                  61002\nname = \"web\"\naddress = \"192.0.2.70\"\n";
    std::fs::write(&file, policy).unwrap();
    let said = prints(&mut check(&[]));
    for part in [
        "device eth0\n  user 61002 (line 1)\n",
        "every other device\n  group 61003 (line 6)\n",
        "ports                         tcp:80\n",
        "192.0.2.70 is reserved for \"web\" of user 61002",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let said = prints(&mut check(&["--user", "61002", "--device", "eth0"]));
    assert!(said.contains("user 61002: by name (line 1)"), "{said}");
    assert!(said.contains("192.0.2.70 is reserved for \"web\""), "{said}");
    let said = prints(&mut check(&["--user", "61002"]));
    assert!(said.contains("every other device\n  the user may not attach"), "{said}");
    let said = fails(&mut check(&["--user", "61002", "--device", "eth1"]), 1);
    assert!(said.contains("user 61002 may not attach to eth1: no grant names it"), "{said}");
    let said = fails(&mut check(&["--user", "61009"]), 1);
    assert!(said.contains("policy.toml: user 61009 may not attach: no grant"), "{said}");
    let said = fails(&mut check(&["--user", "root"]), 1);
    assert!(said.contains("over SOCKET.admin, root may do everything"), "{said}");
    std::fs::write(&file, "[[grant]]\nusers = [\"root\"]\nports = [\"tcp:80\"]\n").unwrap();
    let said = prints(&mut check(&["--user", "root"]));
    assert!(said.contains("user root: by name (line 1)") && said.contains("tcp:80"), "{said}");
    std::fs::write(&file, "[[grant]]\nusers = [1]\ncolour = 1\n").unwrap();
    let said = fails(&mut check(&[]), 2);
    assert!(said.contains("policy.toml:3: unknown key `colour`"), "{said}");
    let said = fails(&mut towpath(&["policy", "check", &directory.text("absent.toml")]), 2);
    assert!(said.contains("absent.toml") && said.contains("can read"), "{said}");
    let fifo = directory.text("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let said = fails(&mut towpath(&["policy", "check", &fifo]), 2);
    assert!(said.contains("fifo is not a file"), "{said}");
    let both = ["serve", "--device", "tap:x", "--policy", &file, "--allow-user", "root"];
    assert!(fails(&mut towpath(&both), 2).contains("--policy"));
    let said = fails(&mut towpath(&["serve", "--device", "tap:x", "--policy", &file]), 2);
    assert!(said.contains("unknown key `colour`"), "{said}");
    assert!(Path::new(&file).exists());
}

#[test]
fn a_capture_and_a_promiscuous_endpoint_end_with_their_rights() {
    towpath_testkit::isolated!(|| {
        let open = "[[grant]]\nusers = [61002]\ncapture = true\npromiscuous = true\n";
        let test = "policies::a_capture_and_a_promiscuous_endpoint_end_with_their_rights";
        let Some(policed) = Policed::start(test, open) else { return };
        let mut session = policed.attach(0, "listens").unwrap();
        let promiscuous = session.open(&Rule::promiscuous()).unwrap();
        session.open(&Rule::capture()).unwrap();
        let said = may_not(session.open(&Rule::capture()));
        assert!(said.contains("2 promiscuous or capturing endpoints"), "{said}");
        // With limited ports, it may only receive.
        policed.change(&format!("{open}ports = [\"tcp:80\"]\n"), "endpoints_closed=1");
        until("the session is told", || session.wait(Some(Duration::ZERO)).unwrap());
        assert!(session.is_revoked(promiscuous));
        session.close(promiscuous).unwrap();
        session.open(&Rule::promiscuous()).unwrap();
        drop(session);

        policed.change(open, "endpoints_closed=0");
        let mut capture =
            policed.server.subcommand_as(Some(&policed.users[0]), "capture", &["-w", "-"]);
        let mut capture = capture
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        until("it captures", || {
            let report = policed.server.report();
            report["sessions"].as_array().unwrap().iter().any(|one| one["uid"] == 61002)
                && report.to_string().contains("a copy of every packet")
        });
        policed.change("[[grant]]\nusers = [61002]\n", "endpoints_closed=1");
        assert_eq!(wait(&mut capture).code(), Some(1));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut capture.stderr.take().unwrap(), &mut said).unwrap();
        assert!(said.contains("its policy changed"), "{said}");
    });
}
