//! Requests and echoes of the kernel's sockets at a TAP's other end to the web example, and curl's.

use std::time::Duration;

use towpath_testkit::{isolated, ping};

use crate::network::web::{BIG_BYTES, Client, HOSTS, content, curl, get, plain, put, start};
use crate::network::{Served, assert_same, possible};

const CURL: &[(&str, &str)] = &[("curl", "curl")];

#[test]
fn http_requests_get_the_expected_answers() {
    if !possible("web::http_requests_get_the_expected_answers", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        let (directory, big) = content();
        let mut web = start(&served, &directory);
        for host in HOSTS {
            let ask = |request: &str| Client::connect(host).ask(request);
            assert_eq!(get(host, "/"), b"hello\n");
            assert_same(&get(host, "/big"), &big);
            let head = ask("HEAD /big HTTP/1.1").head;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Length: {BIG_BYTES}\r\n")), "{head}");
            assert!(!head.contains("Connection:"), "{head}");
            let mut last = Client::connect(host);
            let head = last.ask("HEAD /big HTTP/1.1\nConnection: close").head;
            assert!(head.contains("\r\nConnection: close\r\n") && last.ends(), "{head}");
            for target in ["/none", "/link", "/../secret", "///etc/passwd"] {
                assert_eq!(ask(&format!("GET {target} HTTP/1.1")).status, 404, "{target}");
            }
            assert_eq!(ask("DELETE / HTTP/1.1").status, 405);
            assert_eq!(ask("POST / HTTP/1.1\nTransfer-Encoding: chunked").status, 411);
            // Both ways of uploading, one of which waits for "100 Continue".
            put(host, &big);
            let mut client = Client::connect(host);
            let expects = format!("POST /up HTTP/1.1\nContent-Length: {BIG_BYTES}");
            client.send(&format!("{expects}\nExpect: 100-continue"));
            assert_eq!(client.answer(false).status, 100);
            client.write(&big);
            assert_eq!(client.answer(true).body, format!("{BIG_BYTES} bytes\n").as_bytes());
        }
        web.assert_alive();
        served.server.stop().unwrap();
    });
}

#[test]
fn a_connection_serves_many_requests() {
    if !possible("web::a_connection_serves_many_requests", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        let (directory, big) = content();
        let mut web = start(&served, &directory);
        let mut client = Client::connect(HOSTS[0]);
        for (target, status, len) in [
            ("", 200, 6),
            ("big", 200, big.len()),
            ("none", 404, 0),
            ("", 200, 6),
            ("big", 200, big.len()),
        ] {
            let answer = client.ask(&format!("GET /{target} HTTP/1.1"));
            assert_eq!((answer.status, answer.body.len()), (status, len), "{target}");
        }
        web.assert_alive();
        served.server.stop().unwrap();
    });
}

#[test]
fn two_hundred_connections_at_once() {
    if !possible("web::two_hundred_connections_at_once", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        let (directory, _) = content();
        let mut web = start(&served, &directory);
        for host in HOSTS {
            let mut clients: Vec<Client> = (0..200).map(|_| Client::connect(host)).collect();
            clients.iter_mut().for_each(|client| client.send("GET /?n=1 HTTP/1.1"));
            for client in &mut clients {
                assert_eq!(client.answer(true).body, b"hello\n");
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
        for host in HOSTS {
            for _ in 0..5 {
                let answer = ping(host.parse().unwrap(), bytes as usize, Duration::from_secs(5));
                answer.unwrap_or_else(|error| panic!("{host}, {bytes} bytes: {error}"));
            }
        }
    }
    for host in HOSTS {
        assert_same(&get(host, "/big"), &big);
        put(host, &big);
    }
    web.assert_alive();
    served.server.stop().unwrap();
}

#[test]
fn pings_of_all_sizes() {
    if possible("web::pings_of_all_sizes", &[]) {
        isolated!(|| pings(1500));
    }
}

#[test]
fn pings_and_files_in_jumbo_frames() {
    if possible("web::pings_and_files_in_jumbo_frames", &[]) {
        isolated!(|| pings(9000));
    }
}

fn status(arguments: &str) -> String {
    curl(&format!("-o /dev/null -w %{{http_code}} {arguments}"))
}

#[test]
fn curl_gets_the_expected_answers() {
    if !possible("web::curl_gets_the_expected_answers", CURL) {
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
fn curl_reuses_its_connection() {
    if !possible("web::curl_reuses_its_connection", CURL) {
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
fn curl_opens_two_hundred_connections() {
    if !possible("web::curl_opens_two_hundred_connections", CURL) {
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
