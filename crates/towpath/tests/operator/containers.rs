//! Servers in a container: their applications may be outside of it, and its memory is limited.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use towpath_client::{Options, Session};
use towpath_net::{Network, UdpSocket};
use towpath_testkit::{Unavailable, family, in_pid_namespace, skip};

use crate::running::*;
use crate::serving::round_trip;

const TAP: [&str; 4] = ["--device", "tap:opA", "--address", "10.88.0.1/24"];

/// Returns the keeper and the server of a command that [`in_pid_namespace`] started.
fn processes(command: u32) -> [Pid; 2] {
    let all = family(command).unwrap();
    let named = |wanted: &str| {
        let is_named = |pid: &&u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == wanted)
        };
        let found = all[1..].iter().find(is_named);
        found.and_then(|pid| Pid::from_raw(*pid as i32))
    };
    [Pid::from_raw(all[1] as i32), named("towpath-server")].map(Option::unwrap)
}

/// The kernel reports process number 0 for these applications (`SO_PEERCRED`), but their user, group and, since Linux
/// 6.5, a descriptor of the process.
#[test]
fn a_server_in_a_pid_namespace_serves_applications_outside() {
    towpath_testkit::isolated!(|| {
        if !tun("containers::a_server_in_a_pid_namespace_serves_applications_outside") {
            return;
        }
        let directory = Directory::new();
        let mut program = towpath(&[]);
        in_pid_namespace(&mut program);
        let mut server = Starting::with(program, &directory, "s.sock", &TAP).ready().unwrap();
        round_trip(&server, 7);

        let network = Network::attach(&server.socket).unwrap();
        let report = server.report();
        let session = &report["sessions"][0];
        assert_eq!((&session["pid"], &session["uid"]), (&0.into(), &0.into()), "{report}");
        let listed = prints(&mut server.subcommand("ls", &[]));
        let network_of = |line: &&str| line.contains("10.88.0.") && line.contains("protected");
        let line = listed.lines().find(network_of).unwrap();
        assert_eq!(line.split_whitespace().nth(2), Some("-"), "{listed}");

        if towpath_testkit::probe::peer_pidfd().is_ok() {
            // The next server recognises the application by the descriptor of its process.
            let own = network.addresses().into_iter().find(|address| address.is_ipv4()).unwrap();
            let own = format!("{own}:9");
            let socket = UdpSocket::bind(&network, &own).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            kill_process(processes(server.child.id())[1], Signal::KILL).unwrap();
            let kernel = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            let mut bytes = [0; 16];
            until("the next server serves the session", || {
                kernel.send_to(b"still", &own).unwrap();
                socket.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
                socket.recv_from(&mut bytes).is_ok()
            });
            assert_eq!(&bytes[..5], b"still");
        }
        drop(network);
        until("the session ends", || server.report()["sessions"].as_array().unwrap().is_empty());
        kill_process(processes(server.child.id())[0], Signal::TERM).unwrap();
        assert!(wait(&mut server.child).success(), "{}", server.log());
    });
}

pub(crate) fn oom_score_adj(process: i32) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn a_server_ends_before_its_keeper_if_memory_runs_out() {
    towpath_testkit::isolated!(|| {
        if !tun("containers::a_server_ends_before_its_keeper_if_memory_runs_out") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &TAP);
        let mut own = oom_score_adj(std::process::id() as i32);
        for _ in 0..2 {
            assert_eq!(oom_score_adj(server.child.id() as i32), own);
            let process = server.server().unwrap().as_raw_nonzero().get();
            assert_eq!(oom_score_adj(process), (own + 50).min(1000));
            // An administrator makes it less likely that the keeper ends; everyone may do the contrary.
            own += 1;
            fs::write(format!("/proc/{}/oom_score_adj", server.child.id()), own.to_string())
                .unwrap();
            server.kill_server();
            until("the next server serves", || server.state() == "serving");
        }
        assert!(server.stop(Signal::TERM).success());
    });
}

#[test]
fn sessions_together_take_at_most_total_bytes() {
    towpath_testkit::isolated!(|| {
        if !tun("containers::sessions_together_take_at_most_total_bytes") {
            return;
        }
        let directory = Directory::new();
        let first = serve(&directory, "first.sock", &TAP);
        let session = Session::attach(&first.socket, &Options::default()).unwrap();
        let each = first.report()["sessions"][0]["bytes"].as_u64().unwrap();
        drop((session, first));
        // Room for two sessions, and not for a third one.
        let total = (each * 3 - 1).to_string();
        let server = serve(&directory, "s.sock", &[&TAP[..], &["--total-bytes", &total]].concat());
        let attach = || Session::attach(&server.socket, &Options::default());
        let (one, other) = (attach().unwrap(), attach().unwrap());
        let refused = attach().unwrap_err().to_string();
        let expected =
            format!("{} bytes together; at most {total} are allowed (total-bytes", each * 3);
        assert!(refused.contains(&expected), "{refused}");
        assert!(refused.contains("towpath serve --total-bytes raises it"), "{refused}");
        let log = server.log();
        assert!(log.contains(&format!("total_bytes={total}")), "{log}");
        assert!(log.contains("a program that uses sockets takes "), "{log}");
        let device = &server.report()["device"];
        assert_eq!(device["total_bytes"].to_string(), total);
        assert_eq!(device["bytes_in_use"], each * 2);
        let stat = prints(&mut server.subcommand("stat", &[]));
        let shown =
            format!("sessions have {} KiB of {} KiB", each * 2 / 1024, (each * 3 - 1) / 1024);
        assert!(stat.contains(&shown), "{stat}");
        let said =
            fails(&mut towpath(&[&["serve"], &TAP[..], &["--total-bytes", "1"]].concat()), 2);
        assert!(said.contains("--total-bytes 1: the smallest session takes "), "{said}");
        drop(one);
        let mut third = None;
        until("the session's memory is free again", || {
            third = attach().ok();
            third.is_some()
        });
        drop((other, third));
    });
}

/// A control group with little memory; dropping it removes it.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group of this limit. Returns `None` and says SKIP where that is not possible.
    fn new(test: &str, bytes: u64) -> Option<ControlGroup> {
        let name = format!("towpath-test-{}", std::process::id());
        for (mount, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let path = Path::new(mount).join(&name);
            if fs::create_dir(&path).is_ok() {
                let group = ControlGroup(path);
                if fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        let cause = "no control group with a limit of memory can be made".into();
        skip(test, &Unavailable { cause, remedy: "root, and a writable /sys/fs/cgroup".into() });
        None
    }

    /// Has a command start in the group.
    ///
    /// Unsafe lives here for the hook between fork and exec, which only writes to an open file.
    fn hold(&self, command: &mut Command) {
        let processes = File::options().write(true).open(self.0.join("cgroup.procs")).unwrap();
        let enter = move || Ok(rustix::io::write(&processes, b"0").map(drop)?);
        // SAFETY: `enter` makes only a system call.
        unsafe { command.pre_exec(enter) };
    }

    /// Returns how many processes of the group the kernel has killed, since memory ran out.
    fn kills(&self) -> u64 {
        let files = ["memory.oom_control", "memory.events"].map(|file| self.0.join(file));
        let text = files.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap();
        count.parse().unwrap()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Its processes have ended, but the kernel may not have removed them yet.
        let _ = (0..100).find(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// Without `--total-bytes`, the sessions together take at most half of the group's memory, so that the kernel has to kill
/// no process. The memory is this program's too, but a server gives all of a session's pages at once.
#[test]
fn sessions_leave_half_of_a_groups_memory() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "containers::sessions_leave_half_of_a_groups_memory";
        const GROUP_BYTES: u64 = 64 << 20;
        if !tun(TEST) {
            return;
        }
        let directory = Directory::new();
        let Some(group) = ControlGroup::new(TEST, GROUP_BYTES) else { return };
        let mut program = towpath(&[]);
        group.hold(&mut program);
        let mut server = Starting::with(program, &directory, "s.sock", &TAP).ready().unwrap();
        let mut networks = Vec::new();
        let refused = loop {
            match Network::attach(&server.socket) {
                Ok(network) => networks.push(network),
                Err(error) => break error.to_string(),
            }
        };
        assert!(!networks.is_empty(), "{refused}");
        let allowed = format!("at most {} are allowed (total-bytes", GROUP_BYTES / 2);
        assert!(refused.contains(&allowed), "{refused}");
        // The sessions outlive servers, also in this memory.
        for _ in 0..3 {
            let count = |server: &Running| server.report()["sessions"].as_array().unwrap().len();
            assert_eq!(count(&server), networks.len());
            server.kill_server();
            until("the next server serves all sessions", || {
                let report = server.report();
                let all = report["sessions"].as_array().unwrap();
                all.iter().filter(|session| session["unclaimed"] != true).count() == networks.len()
            });
        }
        drop(networks);
        until("the memory is free again", || Network::attach(&server.socket).is_ok());
        assert_eq!(group.kills(), 0);
        assert!(server.stop(Signal::TERM).success(), "{}", server.log());
    });
}
