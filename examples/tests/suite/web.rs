//! Runs curl and ping against the web example, from kernel sockets at a TAP's other end.

use crate::network::web::{BIG_BYTES, content, curl, plain, start};
use crate::network::{Served, assert_same, possible, run};
use towpath_testkit::isolated;

fn status(arguments: &str) -> String {
    curl(&format!("-o /dev/null -w %{{http_code}} {arguments}"))
}

#[test]
fn http_requests_get_the_expected_answers() {
    if !possible("http_requests_get_the_expected_answers", &["curl"]) {
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
            assert!(!head.contains("Connection:"), "{head}");
            let last = curl(&format!("-I -H Connection:close http://{host}/big"));
            assert!(last.contains("\r\nConnection: close\r\n"), "{last}");
            for (target, expected) in
                [("none", "404"), ("link", "404"), ("../secret", "404"), ("//etc/passwd", "404")]
            {
                let url = format!("--path-as-is http://{host}/{target}");
                assert_eq!(status(&url), expected, "{target}");
            }
            assert_eq!(status(&format!("-X DELETE http://{host}/")), "405");
            let chunked = format!("-H Transfer-Encoding:chunked -d x http://{host}/");
            assert_eq!(status(&chunked), "411");
            // Both ways of uploading, one of which waits for "100 Continue".
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
        // The first request connects; the others reuse the connection.
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
    // Sizes that fit into one packet, and sizes of many fragments.
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
