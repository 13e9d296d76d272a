//! Servers: the objects that they make, report and leave behind.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use towpath_net::{Network, UdpSocket};
use towpath_netlink::Netlink;
use towpath_testkit::{TunMode, add_persistent_tun, replace_tun};

use crate::policies::as_user;
use crate::running::*;

pub(crate) fn link_exists(name: &str) -> bool {
    Netlink::open().unwrap().link(name).is_ok()
}

/// Sends one datagram there and back, between the kernel and an application on the server.
pub(crate) fn round_trip(server: &Running, port: u16) {
    let network = Network::attach(&server.socket).unwrap();
    let own = network.addresses().into_iter().find(|address| address.is_ipv4()).unwrap();
    let application = UdpSocket::bind(&network, format!("{own}:{port}")).unwrap();
    application.set_read_timeout(Some(LIMIT)).unwrap();
    let kernel = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    kernel.set_read_timeout(Some(LIMIT)).unwrap();
    kernel.send_to(b"there", format!("{own}:{port}")).unwrap();
    let mut bytes = [0; 16];
    let (count, from) = application.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"there");
    application.send_to(b"back", from).unwrap();
    let count = kernel.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"back");
}

#[test]
fn an_interface_is_made_shown_and_taken_away() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::an_interface_is_made_shown_and_taken_away") {
            return;
        }
        let directory = Directory::new();
        for end in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut server = serve(
                &directory,
                "run/s.sock",
                &[
                    "--device",
                    "tap:opA",
                    "--address",
                    "10.77.0.1/24",
                    "--address",
                    "fd77::1/64",
                    "--mtu",
                    "9000",
                ],
            );
            let mut netlink = Netlink::open().unwrap();
            let link = netlink.link("opA").unwrap();
            assert!(link.up && link.mtu == 9000, "{link:?}");
            let addresses = netlink.addresses().unwrap();
            for wanted in ["10.77.0.1/24", "fd77::1/64"] {
                let wanted = wanted.parse().unwrap();
                assert!(
                    addresses.iter().any(|one| one.prefix == wanted && one.index == link.index)
                );
            }
            round_trip(&server, 7);

            let report = server.report();
            assert_eq!(report["device"]["name"], "opA");
            assert_eq!(report["device"]["mtu"], 9000);
            assert_eq!(report["device"]["wait"], "spin-then-block");
            assert!(report["device"]["counters"]["rx_packets"].as_u64().unwrap() >= 2);
            let network = Network::attach(&server.socket).unwrap();
            let listed = prints(&mut server.subcommand("ls", &[]));
            assert!(listed.contains("opA") && listed.contains("9000"), "{listed}");
            assert!(listed.contains("10.77.0.2/24"), "{listed}");
            let json = prints(&mut server.subcommand("ls", &["--json"]));
            assert!(json.contains("\"ipv4\": \"10.77.0.2/24\""), "{json}");
            let counted = prints(&mut server.subcommand("stat", &[]));
            assert!(counted.contains("rx_dropped_no_match"), "{counted}");
            let rates = prints(&mut server.subcommand("stat", &["--watch", "1", "--count", "1"]));
            assert!(rates.contains("PER SECOND") && rates.contains("opA"), "{rates}");
            drop(network);

            prints(&mut towpath(&["set", &server.socket, "wait=poll"]));
            assert_eq!(server.report()["device"]["wait"], "poll");
            prints(&mut towpath(&["set", &server.socket, "wait=block"]));

            assert!(server.stop(end).success(), "{}", server.log());
            assert!(!link_exists("opA"), "the interface is still there");
            assert_eq!(std::fs::read_dir(directory.join("run")).unwrap().count(), 0);
            let log = server.log();
            assert!(log.contains("serving") && log.contains("ended"), "{log}");
        }
    });
}

#[test]
fn an_interface_that_was_there_stays() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::an_interface_that_was_there_stays") {
            return;
        }
        let directory = Directory::new();
        add_persistent_tun("opA", TunMode::TapWithHeader, None).unwrap();
        for _ in 0..2 {
            // In the second round, the interface already has the address.
            let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--mtu", "1400"];
            let mut server = serve(&directory, "s.sock", &arguments);
            round_trip(&server, 9);
            assert_eq!(server.report()["device"]["mtu"], 1400);
            assert!(server.stop(Signal::TERM).success());
            assert!(link_exists("opA"));
        }
    });
}

#[test]
fn a_second_server_is_refused_and_the_first_goes_on() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::a_second_server_is_refused_and_the_first_goes_on") {
            return;
        }
        let directory = Directory::new();
        let first =
            serve(&directory, "s.sock", &["--device", "tap:opA", "--address", "10.77.0.1/24"]);
        let said = fails(&mut first.subcommand("serve", &["--device", "tap:opB"]), 1);
        assert!(said.contains("another server serves here"), "{said}");
        assert!(!link_exists("opB"), "what was made on the way is taken away");
        let other = directory.text("other.sock");
        let said = fails(&mut towpath(&["serve", "--device", "tap:opA", "--socket", &other]), 1);
        assert!(said.contains("opA is in use"), "{said}");
        let arguments =
            ["serve", "--device", "tap:opB", "--socket", &other, "--address", "10.77.0.1/24"];
        let said = fails(&mut towpath(&arguments), 1);
        assert!(said.contains("10.77.0.1 belongs to opA"), "{said}");
        assert!(!exists(&other));
        round_trip(&first, 7);
        // Beside it, with its own device.
        let second =
            serve(&directory, "t.sock", &["--device", "tap:opB", "--address", "10.78.0.1/24"]);
        round_trip(&second, 7);
        round_trip(&first, 7);
    });
}

#[test]
fn a_successor_takes_over_after_a_killed_server() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::a_successor_takes_over_after_a_killed_server") {
            return;
        }
        let directory = Directory::new();
        // Keeper and server are killed, so that only files are left.
        let plain = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--hold", "0"];
        let other_user = [&plain[..], &["--user", "61001:61001"]].concat();
        let both: &[&[&str]] =
            if users().is_some() { &[&plain, &other_user] } else { &[&plain, &plain] };
        std::fs::create_dir(directory.join("run")).unwrap();
        if users().is_some() {
            // The server makes a missing directory in this way: for root and for its own group.
            std::os::unix::fs::chown(directory.join("run"), None, Some(61001)).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1775);
            std::fs::set_permissions(directory.join("run"), mode).unwrap();
        }
        for first in both {
            for second in both {
                let mut server = serve(&directory, "run/s.sock", first);
                server.kill();
                assert!(exists(&server.socket), "left behind");
                let said = fails(&mut server.subcommand("ls", &[]), 1);
                assert!(said.contains("Connection refused; start a server"), "{said}");
                until("the interface goes", || !link_exists("opA"));
                let mut server = serve(&directory, "run/s.sock", second);
                round_trip(&server, 7);
                assert!(server.stop(Signal::TERM).success());
                assert!(!exists(&server.socket));
            }
        }
    });
}

#[test]
fn an_interface_that_vanishes_ends_the_server() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::an_interface_that_vanishes_ends_the_server") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &["--device", "tap:opA"]);
        Netlink::open().unwrap().delete_link("opA").unwrap();
        assert_eq!(wait(&mut server.child).code(), Some(1));
        let log = server.log();
        let line = log.lines().find(|line| line.starts_with("towpath: ")).unwrap_or(&log);
        assert!(line.contains("device opA is gone"), "{log}");
        assert!(!exists(&server.socket));
    });
}

#[test]
fn the_server_keeps_no_right_that_it_does_not_need() {
    towpath_testkit::isolated!(|| {
        let test = "serving::the_server_keeps_no_right_that_it_does_not_need";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        let users = users();
        let mut arguments = vec!["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let pcap = directory.text("run/p.pcapng");
        std::fs::create_dir(directory.join("run")).unwrap();
        arguments.extend(["--pcap", &pcap]);
        if users.is_some() {
            std::os::unix::fs::chown(directory.join("run"), Some(61001), Some(61001)).unwrap();
            arguments.extend(["--user", "61001:61001", "--allow-user", "61002"]);
        }
        let mut server = serve(&directory, "run/s.sock", &arguments);
        let process = server.server().unwrap().as_raw_nonzero();
        let path = format!("/proc/{process}/status");
        let status = std::fs::read_to_string(path).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        assert_eq!(field("NoNewPrivs"), "1");
        if let Some(users) = users {
            for set in ["Uid", "Gid"] {
                assert_eq!(field(set), "61001 61001 61001 61001", "{set}");
            }
            assert_eq!(field("Groups"), "61001");
            assert_eq!(std::fs::metadata(&pcap).unwrap().uid(), 61001);
            // A process of the server's own user may not open the server's open files.
            let open_files = format!("/proc/{process}/fd");
            let user = (users.server.uid, users.server.gid);
            let look = as_user(user, || std::fs::read_dir(&open_files).map(drop));
            let refused = look.expect_err("the server's descriptors can be opened");
            assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");

            let [allowed, stranger] = users.applications;
            let listed = prints(&mut server.subcommand_as(Some(&allowed), "ls", &[]));
            assert!(listed.contains("opA"), "{listed}");
            let said = fails(&mut server.subcommand_as(Some(&stranger), "ls", &[]), 1);
            assert!(said.contains("opA: user 61003") && said.contains("to allow-user"), "{said}");
            let file = directory.text("no.pcapng");
            let capture = ["-w", &file, "-c", "1"];
            let said = fails(&mut server.subcommand_as(Some(&allowed), "capture", &capture), 1);
            assert!(said.contains("opA: your user may not capture"), "{said}");
            assert!(said.contains("sudo"), "{said}");
            assert!(!exists(&file));
            let set = ["set", &server.socket, "wait=poll"];
            let said = fails(&mut towpath_as(Some(&allowed), &set), 1);
            assert!(said.contains("only root and the server's user"), "{said}");
        }
        round_trip(&server, 7);
        assert!(server.stop(Signal::TERM).success());
        assert!(!exists(&server.socket));
        assert!(std::fs::metadata(&pcap).unwrap().len() > 500);
    });
}

#[test]
fn readiness_is_told_to_the_service_manager() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::readiness_is_told_to_the_service_manager") {
            return;
        }
        let directory = Directory::new();
        let manager = UnixDatagram::bind(directory.join("notify")).unwrap();
        manager.set_read_timeout(Some(LIMIT)).unwrap();
        let socket = directory.text("s.sock");
        let mut child =
            towpath(&["serve", "--device", "tap:opA", "--socket", &socket, "--log", "error"])
                .env("NOTIFY_SOCKET", directory.join("notify"))
                .spawn()
                .unwrap();
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).unwrap();
        assert_eq!(text(&bytes[..count]).trim(), "READY=1");
        prints(&mut towpath(&["ls", "--socket", &socket]));
        signal(&child, Signal::TERM);
        let count = manager.recv(&mut bytes).unwrap();
        assert_eq!(text(&bytes[..count]).trim(), "STOPPING=1");
        assert!(wait(&mut child).success());
    });
}

#[test]
fn command_line_options_overrule_the_file() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::command_line_options_overrule_the_file") {
            return;
        }
        let directory = Directory::new();
        let file = directory.text("op.toml");
        std::fs::write(
            &file,
            "device = \"tap:opA\"\naddress = [\"10.77.0.1/24\"]\nmtu = 1300\nwait = \"poll\"\n\
             fault = \"drop=0,seed=1\"\nlog = \"warn\"\nsessions-per-user = 1\n",
        )
        .unwrap();
        let mut server = serve(&directory, "s.sock", &["--config", &file, "--mtu", "1400"]);
        let report = server.report();
        assert_eq!(
            (&report["device"]["mtu"], &report["device"]["wait"]),
            (&1400.into(), &"poll".into())
        );
        round_trip(&server, 7);
        let mut one = None;
        until("the first session is forgotten", || {
            one = Network::attach(&server.socket).ok();
            one.is_some()
        });
        let second = Network::attach(&server.socket).unwrap_err().to_string();
        assert!(second.contains("the most allowed"), "{second}");
        assert!(server.stop(Signal::TERM).success());
        let log = server.log();
        let lines: Vec<_> = log.lines().filter(|line| !line.contains("injects faults")).collect();
        assert!(lines.is_empty(), "a server that logs only warnings logs none: {log}");

        let printed =
            prints(&mut towpath(&["serve", "--config", &file, "--mtu", "1400", "--print-config"]));
        for line in ["device = \"tap:opA\"", "mtu = 1400", "wait = \"poll\"", "batch = 64"] {
            assert!(printed.lines().any(|one| one == line), "{line}: {printed}");
        }
        // The printed settings are a file with the same settings.
        let again = directory.text("again.toml");
        std::fs::write(&again, &printed).unwrap();
        let arguments = ["serve", "--config", &again, "--print-config"];
        assert_eq!(prints(&mut towpath(&arguments)), printed);
    });
}

#[test]
fn the_server_survives_total_loss_and_a_full_disk() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::the_server_survives_total_loss_and_a_full_disk") {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--pcap", "/dev/full"];
        let mut server = match try_serve(&directory, "s.sock", &arguments) {
            Ok(server) => server,
            Err(said) => panic!("{said}"),
        };
        for port in 7..20 {
            round_trip(&server, port);
        }
        until("the log reports the full disk", || {
            server.log().contains("--pcap /dev/full: No space left on device")
        });
        assert!(server.stop(Signal::TERM).success());

        let arguments =
            ["--device", "tap:opA", "--address", "10.77.0.1/24", "--fault", "rx.drop=1"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let kernel = std::net::UdpSocket::bind("10.77.0.1:0").unwrap();
        for _ in 0..10 {
            kernel.send_to(b"lost", "10.77.0.9:9").unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        let received = &server.report()["device"]["counters"]["rx_packets"];
        assert_eq!(received, &0, "the fault dropped every packet");
        assert!(server.stop(Signal::TERM).success());
    });
}

#[test]
fn the_only_server_needs_no_name() {
    towpath_testkit::isolated!(|| {
        let test = "serving::the_only_server_needs_no_name";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        hide_servers();
        let servers = Path::new("/run/towpath");
        let serve = |interface: &str| {
            let command = towpath(&[]);
            let arguments = ["--log", "warn"];
            let starting =
                Starting::in_place(command, &directory, servers, interface, &arguments).ready();
            starting.unwrap_or_else(|said| panic!("{said}"))
        };
        let lists = |arguments: &[&str], interfaces: &[&str]| {
            let listed = prints(&mut towpath(&[&["ls"], arguments].concat()));
            interfaces.iter().for_each(|one| assert!(listed.contains(one), "{one}: {listed}"));
        };
        let said = fails(&mut towpath(&["ls"]), 1);
        assert!(said.contains("no server runs"), "{said}");
        let mut first = serve("opA");
        lists(&[], &["opA"]);
        lists(&["--device", "opA"], &["opA"]);
        prints(&mut towpath(&["set", "opA", "wait=poll"]));
        let counted = prints(&mut towpath(&["stat"]));
        assert!(counted.contains("poll"), "{counted}");
        let mut second = serve("opB");
        let said = fails(&mut towpath(&["stat"]), 1);
        assert!(said.contains("several servers run: opA, opB"), "{said}");
        lists(&[], &["opA", "opB"]);
        lists(&["--device", "opB"], &["opB"]);
        let said = fails(&mut towpath(&["ls", "--device", "opC"]), 1);
        assert!(said.contains("no server of opC"), "{said}");
        assert!(second.stop(Signal::TERM).success());
        lists(&[], &["opA"]);
        assert_eq!(servers.metadata().unwrap().mode() & 0o7777, 0o755);
        assert!(first.stop(Signal::TERM).success());
        assert_eq!(std::fs::read_dir(servers).unwrap().count(), 0);
    });
}

#[test]
fn an_unprivileged_user_serves_a_prepared_interface() {
    towpath_testkit::isolated!(|| {
        let test = "serving::an_unprivileged_user_serves_a_prepared_interface";
        if !tun(test) {
            return;
        }
        // Without other users, the user itself has the right to make interfaces.
        let Some(users) = other_users(test) else { return };
        let user = users.server;
        hide_servers();
        replace_tun(Some(0o666)).unwrap();
        add_persistent_tun("opA", TunMode::TapWithHeader, Some(user.uid)).unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink.add_address("opA", "10.77.0.1/24".parse().unwrap()).unwrap();
        netlink.set_mtu("opA", 1400).unwrap();
        netlink.set_up("opA").unwrap();
        let directory = Directory::new();
        let program = directory.text("towpath");
        std::fs::copy(env!("CARGO_BIN_EXE_towpath"), &program).unwrap();
        let runtime = directory.join(&user.uid.to_string());
        std::fs::create_dir(&runtime).unwrap();
        std::os::unix::fs::chown(&runtime, Some(user.uid), Some(user.gid)).unwrap();
        let by_user = |arguments: &[&str]| {
            let mut command = plain(&program);
            command.args(arguments).stdin(Stdio::null()).env("XDG_RUNTIME_DIR", &runtime);
            command.uid(user.uid).gid(user.gid);
            command
        };
        let allowed = users.applications[0].uid.to_string();
        let arguments = ["--address", "10.77.0.1/24", "--mtu", "1400", "--allow-user", &allowed];
        let servers = runtime.join("towpath");
        let starting =
            Starting::in_place(by_user(&[]), &directory, &servers, "opA", &arguments).ready();
        let mut server = starting.unwrap_or_else(|said| panic!("{said}"));
        let listed = prints(&mut by_user(&["ls", "--device", "opA"]));
        assert!(listed.contains("opA"), "{listed}");
        let counted = prints(&mut by_user(&["stat"]));
        assert!(counted.contains("wait=spin-then-block"), "{counted}");
        assert!(server.stop(Signal::TERM).success(), "{}", server.log());
        assert_eq!(std::fs::read_dir(&servers).unwrap().count(), 0);
        // The user lacks the right to set another MTU.
        let said = fails(&mut by_user(&["serve", "--device", "tap:opA", "--mtu", "1500"]), 77);
        assert!(said.contains("set the MTU of opA: Operation not permitted"), "{said}");
        assert!(link_exists("opA"));
    });
}

#[test]
fn an_unwritable_log_does_not_stop_the_server() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::an_unwritable_log_does_not_stop_the_server") {
            return;
        }
        let directory = Directory::new();
        let (reader, gone) = std::io::pipe().unwrap();
        drop(reader);
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        for log in [std::process::Stdio::from(gone), full.into()] {
            let mut server = serve_with_log(
                &directory,
                "s.sock",
                &["--device", "tap:opA", "--address", "10.77.0.1/24"],
                log,
            )
            .unwrap();
            for port in 7..10 {
                round_trip(&server, port);
            }
            assert!(server.stop(Signal::TERM).success());
            assert!(!exists(&server.socket));
        }
    });
}

#[test]
fn each_subcommand_takes_each_name_of_a_server() {
    towpath_testkit::isolated!(|| {
        if !tun("serving::each_subcommand_takes_each_name_of_a_server") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &["--device", "tap:opA"]);
        let file = directory.text("packets");
        for name in [vec![server.socket.as_str()], vec!["--socket", server.socket.as_str()]] {
            for (subcommand, arguments) in [
                ("ls", vec![]),
                ("stat", vec![]),
                ("capture", vec!["-w", &file, "--seconds", "1"]),
                ("set", vec!["wait=block", "tick_hz=100"]),
                ("upgrade", vec![]),
            ] {
                let words = [vec![subcommand], name.clone(), arguments].concat();
                let output = finish(&mut towpath(&words));
                assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
            }
            assert_eq!(server.report()["device"]["wait"], "block");
            prints(&mut towpath(&[vec!["set"], name, vec!["wait=poll"]].concat()));
        }
    });
}
