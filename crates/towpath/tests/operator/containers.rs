//! Servers in a container: applications outside of it, and the limits of its memory.

use rustix::process::{Pid, Signal, kill_process};
use towpath_client::{Options, Session};
use towpath_net::{Network, UdpSocket};
use towpath_testkit::{family, in_pid_namespace};

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
        let own = oom_score_adj(std::process::id() as i32);
        for _ in 0..2 {
            assert_eq!(oom_score_adj(server.child.id() as i32), own);
            let process = server.server().unwrap().as_raw_nonzero().get();
            assert_eq!(oom_score_adj(process), (own + 50).min(1000));
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
        drop(one);
        let mut third = None;
        until("the session's memory is free again", || {
            third = attach().ok();
            third.is_some()
        });
        drop((other, third));
    });
}
