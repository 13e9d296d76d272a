//! Refusals: one line that names the thing and the remedy, and the correct status.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use rustix::process::{Resource, Signal};
use towpath_client::{Options, Rule, Session};
use towpath_testkit::{TunMode, add_persistent_tun, enter_own_mounts, replace_tun, set_limit};

use crate::running::*;

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    let directory = Directory::new();
    let file = directory.text("bad.toml");
    let cases: &[(&[&str], &str)] = &[
        (&["frobnicate"], "'frobnicate'"),
        (&["serve"], "--device tap:NAME"),
        (&["serve", "--device"], "--device"),
        (&["serve", "--device", "tap:x", "--colour"], "'--colour'"),
        (&["serve", "--device", "tap:x", "--address", "10.0.0.1"], "10.77.0.1/24"),
        (
            &["serve", "--device", "tap:x", "--address", "10.0.0.1/24", "--address", "10.1.0.1/24"],
            "IPv4",
        ),
        (&["serve", "--device", "tap:x", "--mtu", "12"], "68 to 65521"),
        (&["serve", "--device", "tap:x", "--allow-user", "no-such-user-here"], "no-such-user-here"),
        (&["serve", "--device", "tap:x", "--user", "61001"], "USER:GROUP"),
        (&["serve", "--device", "tap:x", "--fault", "lose=1"], "\"lose\""),
        (&["serve", "--device", "tap:x", "--wait", "fast"], "block"),
        (&["serve", "--device", "tap:x", "--ready-fd", "77"], "--ready-fd 77"),
        (&["serve", "--device", "tap:x", "--ready-fd=-1"], "--ready-fd"),
        (&["serve", "--config", "/no/such/file"], "/no/such/file: No such file"),
        (&["serve", "--config", "/"], "/ is not a file"),
        (&["stat", "--count", "3"], "--watch"),
        (&["stat", "--watch", "0"], "--watch"),
        (&["ls", "--device", "a", "--socket", "b"], "--socket"),
        (&["ls", "--device", "../x"], "--socket"),
        (&["capture"], "-w"),
        (&["serve", "--device", "tap:x", "--pcap", "-"], "--pcap ./-"),
        (&["capture", "-w", "-", "-c", "0"], "-c"),
        (&["serve", "--device", "tap:x", "--set", "speed=1"], "--list"),
        (&["serve", "--device", "tap:x", "--set", "wait=poll"], "--wait poll"),
        (&["set", "x"], "nothing to set"),
        (&["set", "--device", "x"], "nothing to set"),
        (&["set", "--socket", "x", "tap0", "wait=poll"], "neither SETTING=VALUE"),
        (&["set"], "<DEVICE>"),
        (&["upgrade", "x", "--socket", "y"], "--socket"),
        (&["stat", "x", "--device", "y"], "--device"),
        (&["set", "bogus=1"], "name the device first"),
        (&["set", "rx_batch=3"], "name the device first"),
        (&["set", "rx_batch"], "name the device first"),
        (&["set", "x", "wait=fast"], "poll, block, "),
        (&["set", "x", "speed=1"], "--list"),
        (&["set", "x", "3/1"], "SETTING=VALUE"),
        (&["set", "x", "0/1", "wait=poll"], "SESSION/ENDPOINT"),
        (&["set", "x", "wait=poll", "3/1"], "3/1"),
        (&["set", "x", "3/1", "4/0", "priority=1"], "3/1"),
        (&["set", "x", "3/1", "wait=poll"], "--list"),
        (&["set", "wait=poll"], "set tap0 wait=poll"),
        (&["set", "x", "tick_hz=0"], "tick_hz=0: 1 to 100000 Hz is possible"),
        (&["set", "x", "tick_hz=100001"], "tick_hz=100001: 1 to 100000 Hz"),
        (&["set", "x", "tick_hz=-1"], "tick_hz=-1: 1 to 100000 Hz"),
        (&["set", "x", "tick_hz="], "tick_hz=: 1 to 100000 Hz"),
        (&["set", "x", "3/1", "rate_bps=1000000000001"], "rate_bps=1000000000001: 0 to 10000"),
        (&["set", "x", "3/1", "rate_bps=18446744073709551616"], "rate_bps=18446744073709551616: 0"),
        (&["set", "x", "4294967296/1", "weight=2"], "'4294967296/1'"),
        (&["serve", "--device", "tap:x", "--set", "tick_hz=0"], "tick_hz=0: 1 to 100000 Hz"),
        (
            &["serve", "--device", "tap:a b", "--print-config"],
            "no slash, colon, percent sign or blank",
        ),
        (&["completions"], "<SHELL>"),
        (&["completions", "tcsh"], "bash, zsh, fish"),
        (&["man", "a", "b"], "'b'"),
    ];
    for (arguments, part) in cases {
        let said = fails(&mut towpath(arguments), 2);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    // A subcommand that is not UTF-8.
    let said = fails(towpath(&[]).arg(OsStr::from_bytes(b"\xff")), 2);
    assert!(said.contains("see: towpath --help"), "{said}");
    for (content, part) in [
        ("device = \"tap:x\"\n\ncolour = 1\n", ":3: unknown key `colour`"),
        ("mtu = 1\n", ":1: 1 is out of range"),
        (
            "device = \"tap:x\"\nallow-user = [\"no-such-user-here\"]",
            ":2: no user no-such-user-here",
        ),
        ("device = \"tap:a/b\"\n", ":1: \"a/b\" is not a valid interface name"),
        ("device = [", ":1: "),
        ("device = \"tap:\u{fffd}\"\n\u{0}", ":2: "),
    ] {
        std::fs::write(&file, content).unwrap();
        let said = fails(&mut towpath(&["serve", "--config", &file]), 2);
        assert!(said.contains(&format!("{file}{part}")), "{content:?}: {said}");
    }
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    let said = fails(&mut towpath(&["serve", "--config", &file]), 2);
    assert!(said.contains("UTF-8"), "{said}");
}

#[test]
fn help_has_examples_and_fits() {
    for subcommand in subcommands() {
        let subcommand = subcommand.as_str();
        let help = prints(&mut towpath(&[subcommand, "--help"]));
        assert!(help.contains(&format!("Examples:\n  towpath {subcommand}")), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
    }
    assert!(prints(&mut towpath(&["--help"])).contains("Exit status: 0 done, 1 failed"));
    assert!(prints(&mut towpath(&["--version"])).starts_with("towpath "));
    assert_eq!(finish(&mut towpath(&[])).status.code(), Some(2));
    for arguments in [
        &["serve", "--print-config"][..],
        &["doctor", "--quick"],
        &["completions", "bash"],
        &["man"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = towpath(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output.stderr).lines().count() <= 1, "{}", text(&output.stderr));
    }
}

/// Values that contradict each other, or the machine, are found before the server touches anything.
#[test]
fn impossible_values_leave_a_prepared_interface_as_it_is() {
    towpath_testkit::isolated!(|| {
        if !tun("refusals::impossible_values_leave_a_prepared_interface_as_it_is") {
            return;
        }
        let directory = Directory::new();
        let pcap = directory.text("new.pcapng");
        add_persistent_tun("opA", TunMode::TapWithHeader, None).unwrap();
        let mut netlink = towpath_netlink::Netlink::open().unwrap();
        let before = netlink.link("opA").unwrap();
        for wrong in [["--set", "rx_batch=65"], ["--engine-cpu", "1023"]] {
            let mut serve = towpath(&["serve", "--device", "tap:opA", "--address", "10.77.0.1/24"]);
            serve.args(["--mtu", "1400", "--pcap", &pcap]);
            fails(serve.args(wrong), 2);
            fails(serve.arg("--print-config"), 2);
            assert_eq!(format!("{:?}", netlink.link("opA").unwrap()), format!("{before:?}"));
            assert!(!std::path::Path::new(&pcap).exists(), "{wrong:?}");
        }
    });
}

#[test]
fn names_paths_and_rights_are_checked() {
    towpath_testkit::isolated!(|| {
        if !tun("refusals::names_paths_and_rights_are_checked") {
            return;
        }
        let directory = Directory::new();
        let socket = directory.text("s.sock");
        let long = directory.text(&"x".repeat(120));
        let file = directory.text("file");
        std::fs::write(&file, "precious").unwrap();
        let under_file = format!("{file}/s.sock");
        for (arguments, status, part) in [
            (
                &["--device", "tap:a b", "--socket", &socket][..],
                2,
                "\"a b\" is not a valid interface name",
            ),
            (&["--device", "tap:sixteen-bytes-xx", "--socket", &socket], 2, "1 to 15 bytes"),
            (&["--device", "tap:lo", "--socket", &socket], 1, "lo exists and is not a TAP"),
            (&["--device", "tap:opA", "--socket", &long], 2, "107 are possible"),
            (&["--device", "tap:opA", "--socket", &under_file], 1, "may write with --socket"),
            (&["--device", "tap:opA", "--socket", "/proc/no/s.sock"], 1, "--socket"),
            (&["--device", "tap:opA", "--socket", &file], 1, "exists, and is no socket"),
            (
                &["--device", "tap:opA", "--socket", &socket, "--pcap", "/proc/no"],
                1,
                "--pcap /proc/no",
            ),
            (
                &[
                    "--device",
                    "tap:opA",
                    "--socket",
                    &socket,
                    "--batch",
                    "32",
                    "--set",
                    "rx_batch=64",
                ],
                2,
                "rx_batch=64 with a batch of 32; set rx_batch to 1 to 32, or choose a larger batch \
                 with --batch",
            ),
            (
                &["--device", "tap:opA", "--socket", &socket, "--engine-cpu", "1023"],
                2,
                "with --engine-cpu",
            ),
        ] {
            let mut command = towpath(&["serve"]);
            let said = fails(command.args(arguments), status);
            assert!(said.contains(part), "{arguments:?}: {said}");
            let mut netlink = towpath_netlink::Netlink::open().unwrap();
            assert!(netlink.link("opA").is_err(), "{arguments:?} left its interface");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        let left: Vec<_> = std::fs::read_dir(directory.join("")).unwrap().flatten().collect();
        assert!(left.len() <= 2, "{left:?}");
        for subcommand in ["ls", "stat", "capture"] {
            let mut arguments = vec![subcommand, "--socket", &socket];
            if subcommand == "capture" {
                arguments.extend(["-w", "-"]);
            }
            let said = fails(&mut towpath(&arguments), 1);
            assert!(said.contains("start a server with `towpath serve`"), "{said}");
        }
    });
}

/// A refused request leaves the settings of an existing object as they are.
#[test]
fn refused_settings_leave_the_old_ones() {
    towpath_testkit::isolated!(|| {
        if !tun("refusals::refused_settings_leave_the_old_ones") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &["--device", "tap:opA"]);
        let mut session = Session::attach(&server.socket, &Options::default()).unwrap();
        let endpoint = session.open(&Rule::new().ethertype(0x88b5)).unwrap();
        let number = session.info().session;
        let own = format!("{number}/{}", endpoint.id());
        prints(&mut towpath(&["set", &server.socket, "tick_hz=500", &own, "rate_bps=1000000"]));
        let set = || {
            let report = server.report();
            let of_endpoint = report["sessions"][0]["endpoints"][0]["settings"].to_string();
            (report["device"]["settings"].to_string(), of_endpoint)
        };
        let before = set();
        assert!(before.0.contains("\"tick_hz\":\"500\""), "{}", before.0);
        assert_eq!(before.1, "{\"rate_bps\":\"1000000\"}");

        let (no_session, no_endpoint) =
            (format!("{}/0", number + 1), format!("{number}/{}", endpoint.id().number() + 1));
        let far_too_many = format!("{number}/4294967295");
        for (device, changes, status, part) in [
            (&server.socket, &["tick_hz=0"][..], 2, "tick_hz=0: 1 to 100000 Hz is possible"),
            // The subcommand reads all settings before it changes the first.
            (&server.socket, &["tick_hz=700", "tick_hz=0"], 2, "tick_hz=0"),
            (
                &server.socket,
                &[own.as_str(), "rate_bps=1000000000001"],
                2,
                "rate_bps=1000000000001: 0 to",
            ),
            (&server.socket, &[no_session.as_str(), "rate_bps=5"], 1, no_session.as_str()),
            (&server.socket, &[no_endpoint.as_str(), "rate_bps=5"], 1, no_endpoint.as_str()),
            (&server.socket, &[far_too_many.as_str(), "rate_bps=5"], 1, far_too_many.as_str()),
            (&"opNone".to_owned(), &["tick_hz=700"], 1, "no server of opNone in "),
            (&directory.text("no.sock"), &["tick_hz=700"], 1, "no.sock: No such file"),
        ] {
            let mut command = towpath(&["set", device]);
            let said = fails(command.args(changes), status);
            assert!(said.contains(part), "{changes:?}: {said}");
            assert_eq!(set(), before, "{device} {changes:?}");
        }
        let said = fails(&mut towpath(&["set", &server.socket, &no_endpoint, "weight=2"]), 1);
        assert!(said.contains("set weight: there is no endpoint"), "{said}");
        assert!(said.contains("towpath ls"), "{said}");
    });
}

#[test]
fn a_directory_of_another_group_is_refused_with_the_remedies() {
    towpath_testkit::isolated!(|| {
        let test = "refusals::a_directory_of_another_group_is_refused_with_the_remedies";
        if !tun(test) {
            return;
        }
        let Some(users) = other_users(test) else { return };
        let [uid, gid] = [users.applications[0].uid, users.applications[1].gid];
        hide_servers();
        let directory = Path::new("/run/towpath");
        std::fs::create_dir(directory).unwrap();
        std::os::unix::fs::chown(directory, None, Some(gid)).unwrap();
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o1775)).unwrap();
        let user = format!("{uid}:{uid}");
        let said = fails(&mut towpath(&["serve", "--device", "tap:opA", "--user", &user]), 1);
        for part in [
            format!("/run/towpath belongs to the servers of group {gid}; "),
            format!("serve with --user {uid}:{gid}, "),
            "remove the directory".to_owned(),
        ] {
            assert!(said.contains(&part), "{said}");
        }
    });
}

#[test]
fn a_machine_without_tun_is_status_77() {
    towpath_testkit::isolated!(|| {
        let test = "refusals::a_machine_without_tun_is_status_77";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        let socket = directory.text("s.sock");
        let arguments = ["serve", "--device", "tap:opA", "--socket", &socket];
        enter_own_mounts().unwrap();
        replace_tun(None).unwrap();
        let said = fails(&mut towpath(&arguments), 77);
        assert!(said.contains("/dev/net/tun cannot be opened: No such file"), "{said}");
        assert!(said.contains("load the kernel module tun"), "{said}");
        assert!(!exists(&socket));
        let Some(users) = other_users(test) else { return };
        // As a user without rights, who may write the socket's directory, with a copy of the program
        // that this user may start.
        let open = PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(directory.join(""), open).unwrap();
        let program = directory.text("towpath");
        std::fs::copy(env!("CARGO_BIN_EXE_towpath"), &program).unwrap();
        let uid = users.applications[0].uid;
        let ordinary = |mode: u32, arguments: &[&str]| {
            replace_tun(Some(mode)).unwrap();
            let mut command = plain(&program);
            fails(command.args(arguments).uid(uid).gid(uid), 77)
        };
        let said = ordinary(0o600, &arguments);
        assert!(said.contains("may not be opened by this user"), "{said}");
        let said = ordinary(0o666, &arguments);
        assert!(said.contains("needs CAP_NET_ADMIN") && said.contains("ip tuntap add"), "{said}");
    });
}

#[test]
fn too_few_descriptors_and_too_little_memory_are_said() {
    towpath_testkit::isolated!(|| {
        let test = "refusals::too_few_descriptors_and_too_little_memory_are_said";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        let socket = directory.text("s.sock");
        let serve = |resource: Resource, amount: u64| {
            let mut command = towpath(&["serve", "--device", "tap:opA", "--socket", &socket]);
            set_limit(&mut command, Resource::Core, 0);
            set_limit(&mut command, resource, amount);
            command
        };
        for (resource, amount, remedy) in [
            (Resource::Nofile, 5, "ulimit -n"),
            (Resource::Nofile, 9, "ulimit -n"),
            (Resource::Nofile, 14, "ulimit -n"),
            (Resource::Fsize, 1000, "ulimit -f"),
        ] {
            let said = fails(&mut serve(resource, amount), 1);
            assert!(said.contains(remedy), "{amount}: {said}");
            assert!(!exists(&socket), "{amount}: {said}");
        }
        // The memory of the program itself depends on its build: with less it does not start, or it
        // aborts.
        let said = (12..64).step_by(2).find_map(|mib| {
            let output = finish(&mut serve(Resource::As, mib << 20));
            let said = text(&output.stderr);
            let begins = output.status.code() == Some(1) && !said.contains("memory allocation");
            begins.then_some(said)
        });
        let said = said.expect("a program that begins");
        assert_eq!(said.lines().filter(|line| !line.contains(" INFO ")).count(), 1, "{said}");
        assert!(said.contains("ulimit -v"), "{said}");
        assert!(!exists(&socket), "{said}");
    });
}

#[test]
fn an_ipv6_address_without_ipv6_is_refused_with_the_remedy() {
    towpath_testkit::isolated!(|| {
        if !tun("refusals::an_ipv6_address_without_ipv6_is_refused_with_the_remedy") {
            return;
        }
        let here = towpath_testkit::Namespace::current().unwrap();
        here.set("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
        let directory = Directory::new();
        let device = ["--device", "tap:opA", "--address"];
        let Err(said) = try_serve(&directory, "s.sock", &[&device[..], &["fd77::1/64"]].concat())
        else {
            panic!("served")
        };
        assert!(said.contains("IPv6 is disabled"), "{said}");
        assert!(said.contains("disable_ipv6=0), or leave out --address fd77::1/64"), "{said}");
        assert!(!said.contains("as root"), "{said}");
        let mut server = serve(&directory, "s.sock", &[&device[..], &["10.77.0.1/24"]].concat());
        assert!(server.stop(Signal::TERM).success());
    });
}

/// The command neither writes nor obeys files that another user made or can change, and leaves them as they are.
#[test]
fn files_of_other_users_are_refused() {
    const OTHER: u32 = 61_000;
    towpath_testkit::isolated!(|| {
        let name = "refusals::files_of_other_users_are_refused";
        if !tun(name) {
            return;
        }
        let directory = Directory::new();
        let [theirs, link, second, open] =
            ["theirs", "link", "second", "open.toml"].map(|name| directory.text(name));
        std::fs::write(&theirs, "theirs").unwrap();
        std::fs::hard_link(&theirs, &second).unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        std::fs::write(&open, "device = \"tap:opA\"").unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o666)).unwrap();
        let serve_with = |more: &[&str]| {
            let arguments = [&["--device", "tap:opA", "--address", "10.77.0.1/24"], more].concat();
            try_serve(&directory, "s.sock", &arguments).err().expect("it is refused")
        };
        let in_config = |path: &str| fails(&mut towpath(&["serve", "--config", path]), 2);
        assert!(in_config(&open).contains("chmod go-w"));
        assert!(serve_with(&["--policy", &open]).contains("chmod go-w"));
        assert!(serve_with(&["--pcap", &link]).contains("symbolic link"));
        std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(serve_with(&["--pcap", &second]).contains("2 names"));
        std::fs::remove_file(&second).unwrap();
        if std::os::unix::fs::chown(&theirs, Some(OTHER), Some(OTHER)).is_err() {
            println!("SKIP {name}: only root gives files to others; run as root");
            return;
        }
        assert!(serve_with(&["--pcap", &theirs]).contains("user 61000 owns it"));
        // A link on the way leads to this user's directory.
        let led = directory.text("led");
        std::os::unix::fs::symlink(".", &led).unwrap();
        let own = format!("{led}/own");
        std::fs::write(directory.text("own"), "own").unwrap();
        let permissions = || std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(directory.text("own"), permissions()).unwrap();
        std::os::unix::fs::lchown(&led, Some(OTHER), Some(OTHER)).unwrap();
        assert!(serve_with(&["--pcap", &own]).contains("symbolic link of user 61000"));
        assert!(in_config(&format!("{led}/open.toml")).contains("symbolic link of user 61000"));
        assert!(in_config(&theirs).contains("user 61000 owns it"));
        let server =
            serve(&directory, "s.sock", &["--device", "tap:opA", "--address", "10.77.0.1/24"]);
        for path in [&theirs, &link] {
            let said = fails(&mut server.subcommand("capture", &["-w", path, "-c", "1"]), 1);
            assert!(
                said.contains("user 61000 owns it") || said.contains("symbolic link"),
                "{said}"
            );
        }
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
    });
}
