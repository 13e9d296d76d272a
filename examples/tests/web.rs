//! The web example against curl, ping and scanners: kernel sockets at a TAP's other end.

mod network;

use network::{Directory, Running, Served, assert_same, outcome, possible, run};
use towpath_device::tap::TapDevice;
use towpath_rig::isolated;

const BIG_BYTES: usize = 5_000_000;

/// A directory to serve: a small file, a big one, and one outside.
fn content() -> (Directory, Vec<u8>) {
    let directory = Directory::make();
    let root = directory.0.join("root");
    std::fs::create_dir(&root).unwrap();
    let big: Vec<u8> = (0..BIG_BYTES as u64).map(|n| ((n * n) >> 5) as u8).collect();
    std::fs::write(root.join("big"), &big).unwrap();
    std::fs::write(root.join("index.html"), "hello\n").unwrap();
    std::fs::write(directory.0.join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
    (directory, big)
}

fn plain(device: TapDevice) -> Box<dyn towpath_device::Device> {
    Box::new(device)
}

fn start(served: &Served, content: &Directory) -> Running {
    Running::start(env!("CARGO_BIN_EXE_web"), served, &[&content.0.join("root")])
}

/// What curl prints for requests, with a status line for each.
fn curl(arguments: &str) -> String {
    run(&format!("curl -sS --max-time 40 {arguments}"))
}

fn status(arguments: &str) -> String {
    curl(&format!("-o /dev/null -w %{{http_code}} {arguments}"))
}

#[test]
fn a_browser_gets_what_it_asks_for() {
    if !possible("a_browser_gets_what_it_asks_for", &["curl"]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        let (directory, big) = content();
        let mut web = start(&served, &directory);
        for host in ["10.77.0.2", "[fd77::2]"] {
            assert_eq!(curl(&format!("http://{host}/")), "hello\n");
            let copy = directory.0.join("copy");
            curl(&format!("-o {} http://{host}/big", copy.display()));
            assert_same(&std::fs::read(&copy).unwrap(), &big);
            let head = curl(&format!("-I http://{host}/big"));
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Length: {BIG_BYTES}\r\n")), "{head}");
            for (target, expected) in
                [("none", "404"), ("link", "404"), ("../secret", "404"), ("//etc/passwd", "404")]
            {
                let url = format!("--path-as-is http://{host}/{target}");
                assert_eq!(status(&url), expected, "{target}");
            }
            assert_eq!(status(&format!("-X DELETE http://{host}/")), "405");
            let chunked = format!("-H Transfer-Encoding:chunked -d x http://{host}/");
            assert_eq!(status(&chunked), "411");
            // Both ways of uploading, one of which asks before it sends.
            let file = directory.0.join("root/big");
            for way in ["-T", "-H Expect:100-continue --data-binary @"] {
                let space = if way == "-T" { " " } else { "" };
                let answer = curl(&format!("{way}{space}{} http://{host}/up", file.display()));
                assert_eq!(answer, format!("{BIG_BYTES} bytes\n"));
            }
        }
        web.assert_alive();
        served.server.stop().unwrap();
    });
}

#[test]
fn a_connection_serves_many_requests() {
    if !possible("a_connection_serves_many_requests", &["curl"]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        let (directory, _) = content();
        let mut web = start(&served, &directory);
        let format = "-o /dev/null -w %{http_code}:%{num_connects},";
        let requests: Vec<_> = ["", "big", "none", "", "big"]
            .into_iter()
            .map(|target| format!("{format} http://10.77.0.2/{target}"))
            .collect();
        // The first connects, the others do not.
        let said = curl(&requests.join(" --next -sS "));
        assert_eq!(said, "200:1,200:0,404:0,200:0,200:0,");
        web.assert_alive();
        served.server.stop().unwrap();
    });
}

#[test]
fn two_hundred_connections_at_once() {
    if !possible("two_hundred_connections_at_once", &["curl"]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        let (directory, _) = content();
        let mut web = start(&served, &directory);
        let out = directory.0.join("out");
        std::fs::create_dir(&out).unwrap();
        for host in ["10.77.0.2", "\\[fd77::2\\]"] {
            curl(&format!(
                "--parallel --parallel-immediate --parallel-max 200 --fail -o {}/#1 \
                 http://{host}/?n=[1-200]",
                out.display()
            ));
            let files: Vec<_> = std::fs::read_dir(&out).unwrap().map(|one| one.unwrap()).collect();
            assert_eq!(files.len(), 200);
            for file in files {
                assert_eq!(std::fs::read(file.path()).unwrap(), b"hello\n");
                std::fs::remove_file(file.path()).unwrap();
            }
        }
        web.assert_alive();
        served.server.stop().unwrap();
    });
}

fn pings(mtu_bytes: u32) {
    let served = Served::start(mtu_bytes, plain);
    let (directory, big) = content();
    let mut web = start(&served, &directory);
    // As large as one packet carries, and in many fragments.
    for bytes in [0, 56, mtu_bytes - 48, mtu_bytes, 20_000, 65_000] {
        for host in ["-4 10.77.0.2", "-6 fd77::2"] {
            let said = run(&format!("ping -n -q -c 5 -i 0.02 -W 2 -s {bytes} {host}"));
            assert!(said.contains("5 packets transmitted, 5 received, 0% packet loss"), "{said}");
        }
    }
    for host in ["10.77.0.2", "[fd77::2]"] {
        let copy = directory.0.join("copy");
        curl(&format!("-o {} http://{host}/big", copy.display()));
        assert_same(&std::fs::read(&copy).unwrap(), &big);
        let file = directory.0.join("root/big");
        let answer = curl(&format!("-T {} http://{host}/up", file.display()));
        assert_eq!(answer, format!("{BIG_BYTES} bytes\n"));
    }
    web.assert_alive();
    served.server.stop().unwrap();
}

#[test]
fn pings_of_all_sizes() {
    if possible("pings_of_all_sizes", &["curl", "ping"]) {
        isolated!(|| pings(1500));
    }
}

#[test]
fn pings_and_files_in_jumbo_frames() {
    if possible("pings_and_files_in_jumbo_frames", &["curl", "ping"]) {
        isolated!(|| pings(9000));
    }
}

/// Raw sockets are for root: ours, or that of the namespace.
fn scan(commands: &[&str]) {
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
        let output = outcome(command);
        // A scanner may well call it a failure that nobody answers what it sends.
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(arrived() >= before + 4, "nothing was sent: {command}: {output:?}");
        if command.contains(" -sS ") {
            assert!(said.contains("80/tcp open"), "{command}: {output:?}");
            assert!(said.contains("81/tcp closed"), "{command}: {output:?}");
        }
        web.assert_alive();
        assert_eq!(curl("http://10.77.0.2/"), "hello\n", "after {command}");
        assert_eq!(curl("http://[fd77::2]/"), "hello\n", "after {command}");
    }
    let copy = directory.0.join("copy");
    curl(&format!("-o {} http://10.77.0.2/big", copy.display()));
    assert_same(&std::fs::read(&copy).unwrap(), &big);
    served.server.stop().unwrap();
}

#[test]
fn scans_do_not_upset_it() {
    if !possible("scans_do_not_upset_it", &["curl", "nmap"]) {
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
        // What is fragmented in eight bytes a piece is to be put together, or left alone.
        let fragments = format!("nmap -f {nmap} 10.77.0.2");
        let lines: Vec<&str> = lines.iter().chain([&fragments]).map(String::as_str).collect();
        scan(&lines);
    });
}

#[test]
fn floods_do_not_upset_it() {
    if !possible("floods_do_not_upset_it", &["curl", "hping3"]) {
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
        .map(|kind| format!("timeout 4 hping3 {count} {kind} 10.77.0.2"))
        .collect();
        scan(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    });
}
