//! Runs scanners and floods against the web example, from kernel sockets at a TAP's other end.

#[path = "suite/network/mod.rs"]
mod network;

use std::time::Duration;

use network::web::{HOSTS, content, get, plain, start};
use network::{Served, assert_same, outcome, possible};
use towpath_testkit::isolated;

/// Runs each command against the web example, no longer than a limit, and checks that the example still
/// answers.
///
/// The commands use raw sockets, which the kernel allows to root of the machine or of the
/// namespace.
fn scan(commands: &[&str], limit: Duration) {
    let served = Served::start(1500, plain);
    let (directory, big) = content();
    let mut web = start(&served, &directory);
    let arrived = || {
        let report = towpath_client::report(served.socket()).unwrap();
        assert_eq!(report["device"]["counters"]["violations"], 0, "{report}");
        report["device"]["counters"]["rx_packets"].as_u64().unwrap()
    };
    for command in commands {
        let before = arrived();
        let output = outcome(command, limit);
        // A scanner may exit with a failure if the example answers none of its packets.
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(arrived() >= before + 4, "nothing was sent: {command}: {output:?}");
        if command.contains(" -sS ") {
            assert!(said.contains("80/tcp open"), "{command}: {output:?}");
            assert!(said.contains("81/tcp closed"), "{command}: {output:?}");
        }
        web.assert_alive();
        for host in HOSTS {
            assert_eq!(get(host, "/"), b"hello\n", "after {command}");
        }
    }
    assert_same(&get(HOSTS[0], "/big"), &big);
    served.server.stop().unwrap();
}

#[test]
fn port_scans_do_not_disturb_the_web_example() {
    if !possible("port_scans_do_not_disturb_the_web_example", &[("nmap", "nmap")]) {
        return;
    }
    isolated!(|| {
        let nmap = "--privileged -n -Pn --max-retries 1 --host-timeout 8s -T5 -p 78-82";
        let lines: Vec<String> = ["-sS", "-sN", "-sF", "-sX", "-sA", "-sW", "-sM", "--badsum"]
            .into_iter()
            .map(|kind| format!("nmap {kind} {nmap} 10.77.0.2"))
            .chain([
                format!("nmap -6 -sS {nmap} fd77::2"),
                format!("nmap --scanflags SYNFINRSTURGPSHACK {nmap} 10.77.0.2"),
                "nmap --privileged -n -Pn -sU --max-retries 0 --host-timeout 5s -p 7,53 10.77.0.2"
                    .to_owned(),
            ])
            .collect();
        // nmap splits these packets into fragments of eight bytes. The stack reassembles or ignores
        // them.
        let fragments = format!("nmap -f {nmap} 10.77.0.2");
        let lines: Vec<&str> = lines.iter().chain([&fragments]).map(String::as_str).collect();
        scan(&lines, Duration::from_secs(20));
    });
}

#[test]
fn floods_do_not_disturb_the_web_example() {
    if !possible("floods_do_not_disturb_the_web_example", &[("hping3", "hping3")]) {
        return;
    }
    isolated!(|| {
        let count = "-n -q -i u200 -c 1000";
        let lines: Vec<String> = [
            "-S -p 80",
            "-S -p 80 --rand-source",
            "-S -p 80 --badcksum",
            "-SAFRPU -p 80",
            "-A -p 80 -d 600",
            "-S -p ++1",
            "-F -X -Y -p 80",
            "-S -p 80 -O 7",
            "-2 -p 7 -d 200",
            "-2 -p 80 -d 9000 -f",
            "-1 -d 1400",
            "-1 -C 13",
            "-0 -H 132 -d 40",
        ]
        .into_iter()
        .map(|kind| format!("hping3 {count} {kind} 10.77.0.2"))
        .collect();
        // A flood ends after its packets, and then waits for answers.
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        scan(&lines, Duration::from_secs(4));
    });
}
