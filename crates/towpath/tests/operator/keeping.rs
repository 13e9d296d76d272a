//! The keeper: what it holds, for how long, and what it may do.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use towpath_client::{Options, Session};

use crate::beside_the_kernel::{FAR, NEAR, device, is_bare, may_attach, sockets, until_bare, user};
use crate::networks::{sh, wire};
use crate::running::*;
use crate::serving::{link_exists, round_trip};
use crate::sharing::{ECHO, Shared};

/// Returns the keeper of a server.
pub(crate) fn keeper_of(server: &Running) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", server.child.id());
    let children = fs::read_to_string(children).unwrap();
    let keeper = children.split_whitespace().find(|child| {
        let name = fs::read_to_string(format!("/proc/{child}/comm"));
        name.is_ok_and(|name| name.trim() == "towpath-keeper")
    });
    Pid::from_raw(keeper.unwrap().parse().unwrap()).unwrap()
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

/// Attaches a session that stays idle.
fn idle(server: &Running) -> Session {
    Session::attach(&server.socket, &Options::default()).unwrap()
}

#[test]
fn a_killed_servers_interface_is_held_for_the_next_one() {
    towpath_testkit::isolated!(|| {
        if !tun("keeping::a_killed_servers_interface_is_held_for_the_next_one") {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--hold", "60"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let session = idle(&server);
        let keeper = keeper_of(&server);
        server.kill();
        drop(session);
        assert!(link_exists("opA") && lives(keeper));
        assert!(exists(directory.join("s.sock.keeper")));
        // An application that attaches meanwhile waits for the next server.
        let socket = server.socket.clone();
        let attaching = std::thread::spawn(move || Session::attach(socket, &Options::default()));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!attaching.is_finished());
        let mut server = serve(&directory, "s.sock", &arguments);
        assert!(server.log().contains("took over from a server that was killed"));
        attaching.join().unwrap().unwrap();
        until("the first keeper has ended", || !lives(keeper));
        round_trip(&server, 7);

        // The keeper ends, too: the kernel removes everything.
        let keeper = keeper_of(&server);
        server.kill();
        assert!(link_exists("opA"));
        kill_process(keeper, Signal::TERM).unwrap();
        until("the interface goes", || !link_exists("opA"));
        let mut server = serve(&directory, "s.sock", &arguments);
        let keeper = keeper_of(&server);
        kill_process(keeper, Signal::KILL).unwrap();
        until("the server says so", || server.log().contains("the keeper has ended"));
        // The server serves without it.
        round_trip(&server, 7);
        server.kill();
        until("the interface goes", || !link_exists("opA"));

        // After an orderly end, nothing is held.
        let mut server = serve(&directory, "s.sock", &arguments);
        let keeper = keeper_of(&server);
        assert!(server.stop(Signal::TERM).success());
        assert!(!lives(keeper) && !link_exists("opA"));
        assert!(!exists(directory.join("s.sock.keeper")));
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
        let Some(first) = descriptors(keeper) else {
            println!("SKIP {TEST}: only root may look at the keeper's descriptors; run as root");
            return;
        };
        let memories = |found: &BTreeMap<String, usize>| {
            let each = found.iter().filter(|(kind, _)| kind.starts_with("/memfd:towpath"));
            each.map(|(_, count)| count).sum::<usize>()
        };
        // The state page.
        assert_eq!(memories(&first), 1, "{first:?}");
        assert_eq!(first.get("/dev/net/tun"), Some(&1), "{first:?}");
        for _ in 0..40 {
            let sessions = [idle(&server), idle(&server)];
            until("five memories of each session", || {
                memories(&descriptors(keeper).unwrap()) == 1 + 5 * sessions.len()
            });
            drop(sessions);
            until("as many as at first", || descriptors(keeper).unwrap() == first);
        }
        assert!(server.stop(Signal::TERM).success());
    });
}

/// The keeper holds the programs of a server whose applications have addresses of their own, too.
#[test]
fn a_killed_servers_program_is_held_for_a_time() {
    towpath_testkit::isolated!(|| {
        if !may_attach("keeping::a_killed_servers_program_is_held_for_a_time") {
            return;
        }
        for mode in ["generic", "packet"] {
            let _far = wire(&FAR, &NEAR);
            let (directory, device, user) = (sockets(), device(mode), user());
            let lease = ["--lease", "192.0.2.64/28", "--user", &user];
            let serve_for = |hold| {
                let arguments = [&["--device", &device, "--hold", hold], &lease[..]].concat();
                serve(&directory, "s.sock", &arguments)
            };
            let mut server = serve_for("60");
            let _session = idle(&server);
            let keeper = keeper_of(&server);
            let held = descriptors(keeper).unwrap();
            let memory = held.keys().any(|kind| kind.contains("towpath-packets"));
            assert_eq!(memory, mode == "generic", "the memory of AF_XDP's packets: {held:?}");
            assert!(held.keys().any(|kind| kind.contains("bpf-map")), "{held:?}");
            server.kill();
            assert!(!is_bare() && lives(keeper));
            let mut server = serve_for("1");
            assert!(server.log().contains("took over from a server that was killed"));
            let _session = idle(&server);
            server.kill();
            until_bare();
            let mut server = serve_for("60");
            let keeper = keeper_of(&server);
            server.kill();
            assert!(!is_bare());
            kill_process(keeper, Signal::KILL).unwrap();
            until_bare();
            let mut server = serve_for("0");
            server.kill();
            until_bare();
            sh("ip link delete uplink");
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
        let mut shared = Shared::start("generic", &stalls);
        shared.echo(ECHO);
        let keeper = keeper_of(&shared.server);
        let held = descriptors(keeper).unwrap();
        let asking =
            shared.far.run(|| std::net::UdpSocket::bind("192.0.2.200:0").unwrap()).unwrap();
        until("ten resets", || {
            shared.answers(&asking);
            shared.server.log().matches("the device works again").count() >= 10
        });
        until("an answer", || shared.answers(&asking));
        assert_eq!(descriptors(keeper).unwrap(), held);
        assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0));
        until_bare();
    });
}

/// The capabilities that docs/trust.md names, with their numbers (linux/capability.h).
const CAPABILITIES: [(&str, u32); 3] =
    [("CAP_NET_BIND_SERVICE", 10), ("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13)];

/// Returns the rows of the table in docs/trust.md for processes that a server keeps: the process,
/// the devices, and the capabilities as a mask.
fn table_of_rights() -> Vec<(String, String, u64)> {
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

/// Checks that a process has exactly these capabilities, and that no program which it starts has
/// any.
fn check_rights(process: u32, expected: u64) {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    for (set, expected) in
        [("CapPrm", expected), ("CapEff", expected), ("CapInh", 0), ("CapBnd", 0), ("CapAmb", 0)]
    {
        assert!(status.contains(&format!("{set}:\t{expected:016x}\n")), "{expected:x}: {status}");
    }
    assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
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
            ("`packet`", [packet, &lease].concat()),
            ("`packet` with `--share-host`", [packet, &["--share-host"]].concat()),
            ("`xdp`", [xdp, &lease].concat()),
            ("`xdp` with `--share-host`", [xdp, &["--share-host"]].concat()),
        ];
        // Each row of a keeper has its test.
        let keepers = rows.iter().filter(|row| row.0 == "keeper").count();
        assert_eq!(keepers, devices.len(), "{rows:?}");
        let (directory, user) = (sockets(), user());
        for (device, arguments) in devices {
            let arguments = [&arguments[..], &["--user", &user]].concat();
            let mut server = serve(&directory, "s.sock", &arguments);
            check_rights(server.child.id(), right("server, after the start", "all"));
            check_rights(keeper_of(&server).as_raw_nonzero().get() as u32, right("keeper", device));
            assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        }
    });
}
