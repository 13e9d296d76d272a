//! The keeper: what it holds, for how long, and what it may do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use towpath_client::{Lost, Options, Rule, Session};
use towpath_net::{Network, UdpSocket};
use towpath_netlink::Netlink;

use crate::beside_the_kernel::{FAR, NEAR, device, is_bare, may_attach, sockets, until_bare, user};
use crate::networks::{net, wire};
use crate::policies::attach_by;
use crate::running::*;
use crate::serving::{link_exists, round_trip};
use crate::sharing::{ECHO, SharedUplink};

/// Returns the keeper of a server.
pub(crate) fn keeper_of(server: &Running) -> Pid {
    Pid::from_child(&server.child)
}

/// Returns `true` if a process lives, and is no zombie.
fn lives(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// Returns the descriptors of a process: how many there are of each kind, or `None` if this user
/// may not look.
fn descriptors(process: Pid) -> Option<BTreeMap<String, usize>> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).ok()?.flatten() {
        // A descriptor may be closed meanwhile.
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        let kind = link.to_str().unwrap().split(['[', ' ']).next().unwrap().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    Some(kinds)
}

/// Returns a keeper's objects once they have been the same for half a second: it may still hold a
/// message's pipe, or, without a processor, not have read yet what a server gave it.
fn settled(keeper: Pid) -> BTreeMap<String, usize> {
    let mut held = descriptors(keeper).unwrap();
    let mut since = Instant::now();
    until("no message is on its way", || {
        let now = descriptors(keeper).unwrap();
        if now != held {
            (held, since) = (now, Instant::now());
        }
        since.elapsed() >= Duration::from_millis(500)
    });
    held
}

/// Waits until a keeper has these objects, and no others.
fn holds_again(keeper: Pid, held: &BTreeMap<String, usize>) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let now = descriptors(keeper).unwrap();
        if now == *held {
            return;
        }
        assert!(Instant::now() < deadline, "the keeper had {held:?}, and has {now:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Attaches a session that stays idle.
fn idle(server: &Running) -> Session {
    Session::attach(&server.socket, &Options::default()).unwrap()
}

/// Another server follows one that is killed, with the same interface, and resumes its sessions.
#[test]
fn a_killed_server_is_followed_by_another_one() {
    towpath_testkit::isolated!(|| {
        if !tun("keeping::a_killed_server_is_followed_by_another_one") {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--hold", "60"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let index = Netlink::open().unwrap().index("opA").unwrap();
        let mut session = idle(&server);
        let (keeper, epoch) = (keeper_of(&server), session.info().epoch);
        for resumed in 1..=10 {
            server.kill_server();
            assert!(session.wait(Some(LIMIT)).unwrap(), "it waits for the next server");
            assert_eq!(session.statistics().resumptions, resumed);
            assert_ne!(session.info().epoch, epoch);
            // Sessions go on before the keeper hears that the server serves. A server that ends between
            // the two has failed to start.
            until("the keeper knows", || server.state() == "serving");
        }
        round_trip(&server, 7);
        assert_eq!(server.log().matches("another server starts").count(), 10);
        assert_eq!(Netlink::open().unwrap().index("opA").unwrap(), index, "one interface");
        assert_eq!(server.report()["sessions"][0]["session"], session.info().session);
        drop(session);
        until("the session is over", || server.report()["device"]["addresses_in_use"] == 0);
        // After an orderly end, nothing is held.
        assert!(server.stop(Signal::TERM).success());
        assert!(!lives(keeper) && !link_exists("opA"));
        assert!(!exists(directory.join("s.sock.keeper")));

        // A server does not outlive its keeper.
        let mut server = serve(&directory, "s.sock", &arguments);
        let mut session = idle(&server);
        let process = server.server().unwrap();
        server.child.kill().unwrap();
        until("the server ends", || !lives(process));
        assert!(server.log().contains("the keeper has ended"));
        assert!(!link_exists("opA") && !exists(&server.socket));
        assert_eq!(session.wait(Some(LIMIT)).unwrap_err(), Lost::ServerGone);
    });
}

/// With server and keeper killed, an application does not wait for another server.
#[test]
fn without_a_keeper_no_session_waits() {
    towpath_testkit::isolated!(|| {
        if !tun("keeping::without_a_keeper_no_session_waits") {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let mut session = idle(&server);
        server.kill();
        assert_eq!(session.wait(None).unwrap_err(), Lost::ServerGone);
        until("the interface goes", || !link_exists("opA"));
    });
}

/// A server that cannot start again is tried again after a pause, until the time to hold is over.
#[test]
fn a_server_that_cannot_serve_is_tried_again() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "keeping::a_server_that_cannot_serve_is_tried_again";
        if !tun(TEST) {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--hold", "1"];
        let mut server = serve(&directory, "s.sock", &arguments);
        server.forbid_next();
        server.kill_server();
        until("a second start", || {
            server.log().contains("before it served (attempt 1): another start in 100 ms")
        });
        server.allow_next();
        until("a server", || server.log().matches("serving device=").count() == 2);
        server.forbid_next();
        server.kill_server();
        assert_eq!(wait(&mut server.child).code(), Some(1));
        assert!(
            server.log().contains("no server has served for 1 s, and the keeper ends"),
            "{}",
            server.log()
        );
        assert!(!link_exists("opA"));
    });
}

/// The next server goes on with the last valid policy, if the file has an error or is gone.
#[test]
fn the_last_valid_policy_stays_in_force() {
    towpath_testkit::isolated!(|| {
        if !tun("keeping::the_last_valid_policy_stays_in_force") {
            return;
        }
        let directory = Directory::new();
        let policy = directory.text("policy.toml");
        fs::write(&policy, "[[grant]]\nusers = [7]\n").unwrap();
        let arguments = ["--device", "tap:opA", "--policy", &policy];
        let mut server = serve(&directory, "s.sock", &arguments);
        let mut session = idle(&server);
        let mut resumptions = 0;
        let mut kill = |server: &Running| {
            server.kill_server();
            resumptions += 1;
            while session.statistics().resumptions < resumptions {
                assert!(session.wait(Some(LIMIT)).unwrap());
            }
        };
        let told = |server: &Running| {
            server.log().matches("; the policy of the earlier server stays in force").count()
        };
        fs::write(&policy, "no policy").unwrap();
        kill(&server);
        assert_eq!(told(&server), 1, "{}", server.log());
        // A reload that fails changes nothing of it.
        signal(&server.child, Signal::HUP);
        until("a reload", || server.log().contains("; the old policy stays in force"));
        fs::remove_file(&policy).unwrap();
        kill(&server);
        assert_eq!(told(&server), 2, "{}", server.log());
        fs::write(&policy, "").unwrap();
        kill(&server);
        assert_eq!(told(&server), 2);
        // An empty policy is valid, and the last one.
        assert!(server.log().contains("only administrators may attach"), "{}", server.log());
        assert!(server.stop(Signal::TERM).success());
    });
}

/// A server that fails leaves its sessions to the next one.
#[test]
fn a_server_that_fails_is_followed_by_another_one() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "keeping::a_server_that_fails_is_followed_by_another_one";
        if !tun(TEST) {
            return;
        }
        let Some(users) = other_users(TEST) else { return };
        let directory = Directory::new();
        let device = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let arguments = [&device[..], &["--allow-user", "61002"]].concat();
        let mut server = serve(&directory, "s.sock", &arguments);
        let mut session = idle(&server);
        // Without the process that makes workers, a server can serve no further user.
        let children = |pid: Pid| {
            let path = format!("/proc/{0}/task/{0}/children", pid.as_raw_nonzero());
            let children = fs::read_to_string(path).unwrap();
            children.split_whitespace().map(|one| one.parse().unwrap()).collect::<Vec<i32>>()
        };
        let first = server.server().unwrap();
        let [spawner] = children(first)[..] else { panic!("{:?}", children(first)) };
        kill_process(Pid::from_raw(spawner).unwrap(), Signal::KILL).unwrap();
        let attach = || attach_by(&users.applications[0], &server.socket, &Options::default());
        // A request that the process had before its end may come to nothing.
        until("the server fails", || {
            assert!(attach().is_err() || server.server() != Some(first));
            server.log().contains("another server starts")
        });
        while session.statistics().resumptions < 1 {
            assert!(session.wait(Some(LIMIT)).unwrap());
        }
        let log = server.log();
        assert!(log.contains("the process that they are made from has ended"), "{log}");
        assert!(log.contains("the server ended with exit code 1: another server starts"), "{log}");
        attach().unwrap();
        assert!(link_exists("opA"));
        assert!(server.stop(Signal::TERM).success());
        assert!(!exists(&server.socket));

        // A device that is gone gets no other server.
        let mut server = serve(&directory, "s.sock", &arguments);
        let mut session = idle(&server);
        net().delete_link("opA").unwrap();
        assert_eq!(session.wait(Some(LIMIT)).unwrap_err(), Lost::ServerGone);
        assert_eq!(wait(&mut server.child).code(), Some(1));
        assert!(!server.log().contains("another server"));
    });
}

/// A session that makes every server crash, or hang, is not resumed after the second one. All others
/// are.
#[test]
fn a_session_that_crashes_servers_is_not_resumed() {
    towpath_testkit::isolated!(|| {
        if !tun("keeping::a_session_that_crashes_servers_is_not_resumed") {
            return;
        }
        let directory = Directory::new();
        for (fault, end) in [
            ("tx.crash=1", "the server ended with exit code 101"),
            ("tx.hang=1", "engine 0 hung, and the server was killed"),
            ("tx.block=1", "engine 0 hung, and the server was killed"),
        ] {
            let device = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
            let arguments = [&device[..], &["--fault", fault]].concat();
            let mut server = serve(&directory, "s.sock", &arguments);
            let mut quiet = idle(&server);
            let network = Network::attach(&server.socket).unwrap();
            let socket = UdpSocket::bind(&network, "0.0.0.0:1000").unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            // The driver crashes with the first packet, and again when it is sent once more.
            socket.send_to(b"crash", "10.77.0.1:1000").unwrap();
            let error = socket.recv_from(&mut [0; 8]).unwrap_err().to_string();
            assert!(error.contains("two servers crashed or hung"), "{error}");
            while quiet.statistics().resumptions < 1 {
                assert!(quiet.wait(Some(LIMIT)).unwrap());
            }
            let log = server.log();
            let crash = format!("{end} (engine 0: transmit of session 2): another server starts");
            assert_eq!(log.matches(&crash).count(), 2, "{log}");
            let counted =
                |line: &str| line.contains("session=2 name=") && line.contains("crashes=2");
            assert!(log.lines().any(counted), "{log}");
            assert!(
                log.contains("not resumed: 2 servers crashed or hung while they served it"),
                "{log}"
            );
            quiet.open(&Rule::new().udp(1)).unwrap();
            assert_eq!(server.report()["sessions"].as_array().unwrap().len(), 1);
            assert!(server.stop(Signal::TERM).success());
        }
    });
}

/// A server that gets no processor time, and one that sleeps, does not hang.
#[test]
fn a_stopped_server_does_not_hang() {
    towpath_testkit::isolated!(|| {
        if !tun("keeping::a_stopped_server_does_not_hang") {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let process = server.server().unwrap();
        kill_process(process, Signal::STOP).unwrap();
        // The keeper looks several times.
        std::thread::sleep(Duration::from_secs(3));
        kill_process(process, Signal::CONT).unwrap();
        round_trip(&server, 7);
        assert_eq!(server.server(), Some(process));
        assert!(server.stop(Signal::TERM).success());
    });
}

/// A server that does not end when it is asked to is killed at the second time.
#[test]
fn a_second_signal_ends_a_server_that_hangs() {
    towpath_testkit::isolated!(|| {
        if !tun("keeping::a_second_signal_ends_a_server_that_hangs") {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let mut server = serve(&directory, "s.sock", &arguments);
        kill_process(server.server().unwrap(), Signal::STOP).unwrap();
        signal(&server.child, Signal::TERM);
        std::thread::sleep(Duration::from_millis(300));
        assert!(server.server().is_some());
        assert_eq!(server.stop(Signal::TERM).code(), Some(1));
        assert!(!link_exists("opA"));
    });
}

/// Sessions that come and go leave no descriptor in the keeper.
#[test]
fn the_keeper_holds_what_there_is_and_no_more() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "keeping::the_keeper_holds_what_there_is_and_no_more";
        if !tun(TEST) {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let keeper = keeper_of(&server);
        if descriptors(keeper).is_none() {
            println!("SKIP {TEST}: only root may look at the keeper's descriptors; run as root");
            return;
        }
        let first = settled(keeper);
        let memories = |found: &BTreeMap<String, usize>| {
            let each = found.iter().filter(|(kind, _)| kind.starts_with("/memfd:towpath"));
            each.map(|(_, count)| count).sum::<usize>()
        };
        // The state page, the position page, the settings of the start, and those that were changed; the
        // device's packets, and those in hand; the last policy; the interface that the keeper follows.
        assert_eq!(memories(&first), 8, "{first:?}");
        assert_eq!(first.get("/dev/net/tun"), Some(&1), "{first:?}");
        for _ in 0..40 {
            let sessions = [idle(&server), idle(&server)];
            until("five memories of each session, and its record", || {
                memories(&descriptors(keeper).unwrap()) == 8 + 6 * sessions.len()
            });
            drop(sessions);
            holds_again(keeper, &first);
        }
        assert!(server.stop(Signal::TERM).success());
    });
}

/// What a server attached to an interface stays there when it is killed, and goes with the keeper. So
/// it is for applications with addresses of their own, too.
#[test]
fn a_killed_servers_program_stays_attached() {
    towpath_testkit::isolated!(|| {
        if !may_attach("keeping::a_killed_servers_program_stays_attached") {
            return;
        }
        for mode in ["native", "generic", "packet"] {
            let _far = wire(&FAR, &NEAR);
            let (directory, device, user) = (sockets(), device(mode), user());
            let lease = ["--lease", "192.0.2.64/28", "--user", &user];
            let serve_for = |hold| {
                let arguments = [&["--device", &device, "--hold", hold], &lease[..]].concat();
                serve(&directory, "s.sock", &arguments)
            };
            let mut server = serve_for("60");
            let mut session = idle(&server);
            let keeper = keeper_of(&server);
            let kinds = || descriptors(keeper).unwrap();
            let memory = kinds().keys().any(|kind| kind.contains("towpath-packets"));
            assert_eq!(memory, mode != "packet", "the memory of AF_XDP's packets: {:?}", kinds());
            let held = settled(keeper);
            for resumptions in 1..=3 {
                server.kill_server();
                assert!(!is_bare());
                while session.statistics().resumptions < resumptions {
                    assert!(session.wait(Some(LIMIT)).unwrap());
                }
                holds_again(keeper, &held);
            }
            let goes_on = server.log().contains("goes on with the memory of the earlier server");
            assert_eq!(goes_on, mode != "packet", "{}", server.log());
            // A server resumes its sessions before it reports that it serves.
            until("the keeper knows", || server.state() == "serving");
            let upgraded = prints(&mut towpath(&["upgrade", &server.socket]));
            assert!(
                upgraded.ends_with("the server and its keeper run the installed program\n"),
                "{upgraded}"
            );
            while session.statistics().resumptions < 4 {
                assert!(session.wait(Some(LIMIT)).unwrap());
            }
            until("as many objects as before, and the installed program", || {
                let mut now = kinds();
                now.remove(env!("CARGO_BIN_EXE_towpath"));
                now == held
            });
            assert_eq!(server.stop(Signal::TERM).code(), Some(0));
            until_bare();
            let mut server = serve_for("0");
            server.kill_server();
            assert_eq!(wait(&mut server.child).code(), Some(1));
            until_bare();
            net().delete_link("uplink").unwrap();
        }
    });
}

/// The keeper makes the sockets that a server needs when it resets its device, and closes its
/// copies of the old ones first: these would keep the hardware queue busy.
#[test]
fn a_device_is_reset_as_often_as_it_stalls() {
    towpath_testkit::isolated!(|| {
        if !may_attach("keeping::a_device_is_reset_as_often_as_it_stalls") {
            return;
        }
        let stalls = ["--fault", "tx.stall=0.2,tx.stall_us=10000000", "--set", "watchdog_ms=20"];
        let mut shared = SharedUplink::start("generic", &stalls);
        shared.echo(ECHO);
        let keeper = keeper_of(&shared.server);
        let held = settled(keeper);
        let asking =
            shared.far.run(|| std::net::UdpSocket::bind("192.0.2.200:0").unwrap()).unwrap();
        until("ten resets", || {
            shared.answers(&asking);
            shared.server.log().matches("the device works again").count() >= 10
        });
        until("an answer", || shared.answers(&asking));
        // During a reset, the keeper has one socket less.
        until("as many objects as before", || {
            shared.answers(&asking);
            descriptors(keeper).unwrap() == held
        });
        assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0));
        until_bare();
    });
}

/// The capabilities that docs/trust.md names, with their numbers (linux/capability.h).
const CAPABILITIES: [(&str, u32); 5] = [
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];
/// Those that the servers on an interface start with.
pub(crate) const OF_A_START: u64 = 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39;

/// Returns the rows of the table in docs/trust.md for processes that a server keeps: the process,
/// the devices, and the capabilities as a mask.
pub(crate) fn table_of_rights() -> Vec<(String, String, u64)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/trust.md");
    let page = fs::read_to_string(page).unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = page.lines().map(cells).filter(|cells| cells.len() == 6);
    let kept = rows.filter(|cells| ["server, after the start", "keeper"].contains(&&*cells[1]));
    kept.map(|cells| {
        let named = cells[3].split(", ").filter(|name| *name != "none").map(|name| {
            let known = CAPABILITIES.iter().find(|(one, _)| *one == name);
            1u64 << known.unwrap_or_else(|| panic!("{name} is no capability of a keeper")).1
        });
        (cells[1].clone(), cells[2].clone(), named.fold(0, |all, one| all | one))
    })
    .collect()
}

/// Returns the number of filters of system calls of a process.
pub(crate) fn filters_of(process: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
    count.unwrap().trim().parse().unwrap()
}

/// Checks that a process has exactly these capabilities, its other threads none beside them, and that programs which
/// it starts have at most those of `given`.
pub(crate) fn check_rights(process: u32, expected: u64, given: u64) {
    for thread in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let thread = thread.unwrap();
        // A thread may have ended since.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let is_first = thread.file_name().to_str() == Some(&process.to_string());
        for (set, most) in [
            ("CapPrm:", expected),
            ("CapEff:", expected),
            ("CapInh:", expected),
            ("CapBnd:", 0),
            ("CapAmb:", expected & given),
        ] {
            let found = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
            let found = u64::from_str_radix(found.trim(), 16).unwrap();
            let others = found & !most;
            assert!(others == 0 && (found == most || !is_first), "{set} {most:x}: {status}");
        }
        assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
    }
}

/// Server and keeper have the rights that docs/trust.md says, and no other ones.
#[test]
fn rights_are_those_of_the_table() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "keeping::rights_are_those_of_the_table";
        if !may_attach(TEST) || !tun(TEST) {
            return;
        }
        let _far = wire(&FAR, &NEAR);
        let rows = table_of_rights();
        let right = |process: &str, device: &str| {
            let mut row = rows.iter().filter(|row| row.0 == process && row.1 == device);
            let found = row.next().unwrap_or_else(|| panic!("no row of {process} for {device}"));
            assert!(row.next().is_none(), "two rows of {process} for {device}");
            found.2
        };
        let lease = ["--lease", "192.0.2.64/28"];
        let tap: &[&str] = &["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let xdp: &[&str] = &["--device", "xdp:uplink,mode=generic"];
        let packet: &[&str] = &["--device", "packet:uplink"];
        let devices = [
            ("`tap`", [tap, &[]].concat()),
            ("`packet`, `xdp`", [packet, &lease].concat()),
            ("`packet`, `xdp`", [xdp, &lease].concat()),
            ("`packet` or `xdp` with `--share-host`", [packet, &["--share-host"]].concat()),
            ("`packet` or `xdp` with `--share-host`", [xdp, &["--share-host"]].concat()),
        ];
        // Each row of a keeper has its test; lab/guest/card.sh has that of a card.
        let keepers = rows.iter().filter(|row| row.0 == "keeper" && row.1 != "`pci`").count();
        assert_eq!(right("keeper", "`pci`"), 0);
        let tested: BTreeSet<_> = devices.iter().map(|(device, _)| device).collect();
        assert_eq!(keepers, tested.len(), "{rows:?}");
        let (directory, user) = (sockets(), user());
        for (device, arguments) in devices {
            let arguments = [&arguments[..], &["--user", &user]].concat();
            let mut server = serve(&directory, "s.sock", &arguments);
            let process = server.server().unwrap().as_raw_nonzero().get() as u32;
            check_rights(process, right("server, after the start", "all"), 0);
            assert!(filters_of(process) > 0);
            let given = if device == "`tap`" { 0 } else { OF_A_START };
            let keeper = server.child.id();
            check_rights(keeper, right("keeper", device), given);
            let filters = filters_of(keeper);
            assert!(filters > 0);
            server.kill_server();
            until("another server", || server.log().matches("serving device=").count() == 2);
            until("the keeper knows", || server.state() == "serving");
            // The new program has the rights that the keeper had, and no others.
            prints(&mut towpath(&["upgrade", &server.socket]));
            check_rights(keeper, right("keeper", device), given);
            assert_eq!(filters_of(keeper), filters);
            server.kill_server();
            until("another server", || server.log().matches("serving device=").count() == 4);
            let process = server.server().unwrap().as_raw_nonzero().get() as u32;
            check_rights(process, right("server, after the start", "all"), 0);
            assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        }
    });
}
