//! How commands find the servers, and what they say if they find none, several, or one that does not answer.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::interface_changes::rename;
use crate::running::*;

const OTHER: [&str; 4] = ["--device", "tap:opB", "--address", "10.78.0.1/24"];
const ONE: [&str; 4] = ["--device", "tap:opA", "--address", "10.77.0.1/24"];

/// A name that means two servers is an error that names both, for each command.
#[test]
fn a_name_of_two_servers_is_refused() {
    towpath_testkit::isolated!(|| {
        if !tun("finding::a_name_of_two_servers_is_refused") {
            return;
        }
        hide_servers();
        let directory = Directory::new();
        let one = serve(&directory, "/run/towpath/opA.sock", &ONE);
        rename("opA", "opC");
        until("the keeper knows", || one.report()["keeper"]["interface"] == "opC");
        let arguments = ["--device", "tap:opA", "--address", "10.78.0.1/24"];
        let other = serve(&directory, "/run/towpath/web.sock", &arguments);
        for command in ["stat", "ls", "upgrade", "set"] {
            let rest: &[&str] = if command == "set" { &["wait=block"] } else { &[] };
            let said = fails(towpath(&[command, "opA"]).args(rest), 1);
            for part in [
                "opA means several servers",
                "/run/towpath/opA.sock serves opC, which had the name opA",
                "/run/towpath/web.sock serves opA",
                "--socket",
            ] {
                assert!(said.contains(part), "{command}: {said}");
            }
        }
        let stat = prints(&mut towpath(&["stat", "opC"]));
        assert!(stat.starts_with("opC (opA): "), "{stat}");
        let stat = prints(&mut towpath(&["stat", "--socket", "/run/towpath/web.sock"]));
        assert!(stat.starts_with("opA: "), "{stat}");
        drop((one, other));
    });
}

/// A value that belongs elsewhere is refused with the value that belongs here.
#[test]
fn values_that_belong_elsewhere_are_refused_with_the_remedy() {
    towpath_testkit::isolated!(|| {
        hide_servers();
        let directory = Directory::new();
        let program = directory.text("towpath");
        std::fs::write(&program, "").unwrap();
        for (arguments, parts) in [
            (vec!["ls", "--device", "tap:t0"], ["towpath serve --device", "enough: t0"]),
            (vec!["stat", "xdp:eth0,mode=native"], ["towpath serve --device", "enough: eth0"]),
            (vec!["ls", "--socket", "t0"], ["no such socket", "--device t0"]),
            (vec!["upgrade", &program], ["is no socket", "and not a program"]),
            (vec!["stat", &program], ["is no socket", "the device's name"]),
        ] {
            let said = fails(&mut towpath(&arguments), 2);
            assert!(parts.iter().all(|part| said.contains(part)), "{arguments:?}: {said}");
        }
        let said = fails(&mut towpath(&["upgrade", "towpath"]), 1);
        assert!(said.contains("no server of towpath in "), "{said}");
        assert!(said.contains("an upgrade takes the device"), "{said}");
    });
}

/// A server that does not answer is shown with the remedy, and keeps no other server from being shown.
#[test]
fn a_stopped_server_hides_no_other_one() {
    towpath_testkit::isolated!(|| {
        if !tun("finding::a_stopped_server_hides_no_other_one") {
            return;
        }
        hide_servers();
        let directory = Directory::new();
        let stopped = serve(&directory, "/run/towpath/opA.sock", &ONE);
        let other = serve(&directory, "/run/towpath/opB.sock", &OTHER);
        let listed = prints(&mut towpath(&["ls"]));
        assert!(!listed.contains("no answer"), "{listed}");
        let server = stopped.server().unwrap();
        kill_process(server, Signal::STOP).unwrap();
        let (asked, listed) = (Instant::now(), prints(&mut towpath(&["ls"])));
        // A client waits for 10 s by default.
        assert!(asked.elapsed() < Duration::from_secs(9), "{:?}", asked.elapsed());
        let lines: Vec<_> = listed.lines().collect();
        assert!(lines[1].starts_with("opA ") && lines[1].contains("no answer"), "{listed}");
        assert!(lines[2].starts_with("opB ") && lines[2].contains("serving"), "{listed}");
        let keeper = stopped.child.id();
        let remedy = lines.iter().find(|line| line.starts_with("opA: ")).unwrap();
        assert!(remedy.contains(&format!("ps --ppid {keeper}")), "{listed}");
        let json = prints(&mut towpath(&["ls", "--json"]));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let [first, second] = &json["devices"].as_array().unwrap()[..] else { panic!("{json}") };
        assert_eq!(first["unanswered"]["is_late"], true, "{json}");
        assert!(second["unanswered"].is_null() && second["device"]["name"] == "opB", "{json}");
        kill_process(server, Signal::CONT).unwrap();
        until("it answers", || !prints(&mut towpath(&["ls"])).contains("no answer"));
        drop((stopped, other));
    });
}

/// The first restart is one restart.
#[test]
fn one_restart_is_singular() {
    towpath_testkit::isolated!(|| {
        if !tun("finding::one_restart_is_singular") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ONE);
        let second_line = || {
            let stat = prints(&mut server.subcommand("stat", &[]));
            stat.lines().nth(1).unwrap().to_owned()
        };
        assert!(second_line().starts_with("0 restarts; "), "{}", second_line());
        server.kill_server();
        until("another server", || server.log().matches("serving device=").count() == 2);
        until("the keeper knows", || server.state() == "serving");
        assert!(second_line().starts_with("1 restart; "), "{}", second_line());
    });
}
