//! The services with clients that others wrote, on the kernel's stack at the other end of a TAP. Beneath them, servers are
//! killed and upgraded.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath_testkit::{Namespace, Unavailable, check_tun, has_programs, isolated, probe, skip};

/// The kernel's address at the TAP.
const KERNEL: &str = "10.77.0.1";
/// Ends a wait for a program that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns `true` if a TAP can be created and the programs are there; prints the reason if not.
fn possible(test: &str, programs: &[(&str, &str)]) -> bool {
    if let Err(why) = check_tun() {
        skip(test, &why);
        return false;
    }
    has_programs(test, programs)
}

/// Returns the path of `towpath`: `TOWPATH`, or that of the project's debug build.
fn towpath() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug/towpath");
    let path = std::env::var_os("TOWPATH").map_or_else(built, PathBuf::from);
    assert!(path.exists(), "{}: build it (cargo build -p towpath), or set TOWPATH", path.display());
    path
}

/// A process, which dropping kills.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A served TAP, and a directory for the test's files.
struct Served {
    keeper: Running,
    directory: PathBuf,
}

impl Served {
    fn start(test: &str) -> Served {
        let _ = Namespace::current().unwrap().silence();
        let directory =
            std::env::temp_dir().join(format!("towpath-services-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        let address = format!("{KERNEL}/24");
        let mut command = Command::new(towpath());
        command
            .args(["serve", "--device", "tap:services0", "--address", &address])
            .arg("--socket")
            .arg(directory.join("s.sock"));
        let keeper = Running(command.stdin(Stdio::null()).stderr(log).spawn().unwrap());
        let served = Served { keeper, directory };
        served.until_served(1);
        served
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("s.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap()
    }

    /// Waits until so many servers have served.
    fn until_served(&self, servers: usize) {
        until(|| self.log().matches("serving device=").count() >= servers, || self.log());
    }

    /// Kills the server. The keeper starts another one.
    fn kill_server(&self) {
        let keeper = self.keeper.0.id();
        let children =
            fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
        let is_server = |child: &&str| {
            fs::read_to_string(format!("/proc/{child}/comm"))
                .is_ok_and(|name| name.trim() == "towpath-server")
        };
        let server = children.split_whitespace().find(is_server).expect("there is a server");
        assert!(Command::new("kill").args(["-9", server]).status().unwrap().success());
    }

    fn upgrade(&self) {
        let upgraded = finish(Command::new(towpath()).arg("upgrade").arg(self.socket()), b"");
        assert!(upgraded.status.success(), "{upgraded:?}");
    }

    /// Starts a service, waits for its first line of output, and returns its IPv4 address.
    fn serve(&self, program: &str, arguments: &[&str]) -> (Running, String) {
        let mut command = Command::new(program);
        command.arg(self.socket()).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split(['[', ',', ']']).find(|part| part.starts_with("10.77.0."));
        let address = address.unwrap_or_else(|| panic!("{program} said {line:?}")).to_owned();
        (Running(child), address)
    }

    fn path(&self) -> &str {
        self.directory.to_str().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn until(mut so: impl FnMut() -> bool, context: impl FnOnce() -> String) {
    let deadline = Instant::now() + LIMIT;
    while !so() {
        if Instant::now() > deadline {
            panic!("not within {LIMIT:?}: {}", context());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program with this input to its end.
fn finish(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command line of words, which has to succeed. Returns its output.
fn prints(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = finish(Command::new(words.next().unwrap()).args(words), b"");
    assert!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

const HTTP: &[(&str, &str)] = &[("curl", "curl"), ("wrk", "wrk")];

/// Returns the requests of a run of wrk without an error.
fn requests(said: &str) -> u64 {
    assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
    let line = said.lines().find(|line| line.contains(" requests in ")).expect(said);
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn http_of_axum() {
    if !possible("http_of_axum", HTTP) {
        return;
    }
    isolated!(|| {
        let served = Served::start("http");
        let (_service, host) = served.serve(env!("CARGO_BIN_EXE_http"), &[]);
        assert_eq!(prints(&format!("curl -sS http://{host}/")), "hello\n");
        let big = served.directory.join("big");
        fs::write(&big, vec![7; 1_000_000]).unwrap();
        let big = big.display();
        let counted = prints(&format!("curl -sS --data-binary @{big} http://{host}/count"));
        assert_eq!(counted, "1000000 bytes\n");
        // Kept connections, with servers that end beneath them; and a connection for each request.
        let kept = std::thread::spawn({
            let line = format!("wrk -t 2 -c 200 -d 6 --timeout 10 http://{host}/");
            move || requests(&prints(&line))
        });
        std::thread::sleep(Duration::from_secs(2));
        served.kill_server();
        served.until_served(2);
        std::thread::sleep(Duration::from_secs(1));
        served.upgrade();
        assert!(kept.join().unwrap() > 1000);
        // wrk leaves out a header without the space.
        let mut fresh = Command::new("wrk");
        fresh.args(["-t", "2", "-c", "200", "-d", "4", "--timeout", "10"]);
        fresh.args(["-H", "Connection: close"]).arg(format!("http://{host}/"));
        let fresh = finish(&mut fresh, b"");
        assert!(requests(&text(&fresh.stdout)) > 200, "{fresh:?}");
        assert_eq!(prints(&format!("curl -sS http://{host}/")), "hello\n");
    });
}

/// Connections at once.
const CONNECTIONS: usize = 10_000;
/// The most memory of the service for each connection before its first request, in bytes.
const MOST_BEFORE: u64 = 8 << 10;
/// The most memory after a request, buffers of the HTTP library included.
const MOST_AFTER: u64 = 32 << 10;

/// Returns the resident memory of a process, in bytes.
fn resident(process: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn ten_thousand_connections() {
    if !possible("ten_thousand_connections", &[]) {
        return;
    }
    isolated!(|| {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let served = Served::start("many");
        let (service, host) = served.serve(env!("CARGO_BIN_EXE_http"), &[]);
        let ask = |stream: &mut TcpStream| {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = [0; 512];
            let len = stream.read(&mut answer).unwrap();
            assert!(answer[..len].ends_with(b"hello\n"), "{}", text(&answer[..len]));
        };
        let connect = || {
            let stream = TcpStream::connect((host.as_str(), 80)).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream
        };
        // What the first connections allocate for all.
        let mut streams: Vec<_> = (0..100).map(|_| connect()).collect();
        streams.iter_mut().for_each(ask);
        let before = resident(&service);
        streams.extend((100..CONNECTIONS).map(|_| connect()));
        ask(streams.last_mut().unwrap());
        let each = || resident(&service).saturating_sub(before) / CONNECTIONS as u64;
        let accepted = each();
        streams.iter_mut().for_each(ask);
        let asked = each();
        println!("bytes for each connection: {accepted} accepted, {asked} after a request");
        assert!(accepted <= MOST_BEFORE && asked <= MOST_AFTER);
        // Every one still answers, also after another server.
        served.kill_server();
        served.until_served(2);
        streams.iter_mut().rev().for_each(ask);
    });
}

const OPENSSL: &[(&str, &str)] = &[("openssl", "openssl")];

#[test]
fn tls_of_rustls() {
    if !possible("tls_of_rustls", OPENSSL) {
        return;
    }
    isolated!(|| {
        let served = Served::start("tls");
        let (_service, host) = served.serve(env!("CARGO_BIN_EXE_tls"), &[served.path(), "serve"]);
        let certificate = served.directory.join("certificate.pem");
        for version in ["-tls1_2", "-tls1_3"] {
            let mut client = Command::new("openssl");
            client.args([
                "s_client",
                "-connect",
                &format!("{host}:443"),
                "-servername",
                "service.test",
            ]);
            client
                .args(["-quiet", "-no_ign_eof", "-verify_return_error", version, "-CAfile"])
                .arg(&certificate);
            let mut child = Running(
                client
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap(),
            );
            let mut input = child.0.stdin.take().unwrap();
            input.write_all(b"over the wire\n").unwrap();
            let mut line = String::new();
            BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "over the wire\n", "{version}");
        }

        // The client of rustls: the server of openssl reverses lines.
        let mut server = Command::new("openssl");
        server
            .args(["s_server", "-accept", &format!("{KERNEL}:4433"), "-rev", "-quiet", "-cert"])
            .arg(&certificate);
        server.arg("-key").arg(served.directory.join("key.pem"));
        let _server = Running(
            server
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        until(|| TcpStream::connect((KERNEL, 4433)).is_ok(), || "openssl listens".to_owned());
        let mut client = Command::new(env!("CARGO_BIN_EXE_tls"));
        client.arg(served.socket()).args([served.path(), &format!("{KERNEL}:4433")]);
        let asked = finish(&mut client, b"0123456789\n");
        assert_eq!(text(&asked.stdout), "9876543210\n", "{}", text(&asked.stderr));
    });
}

#[test]
fn quic_of_quinn() {
    if !possible("quic_of_quinn", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start("quic");
        let quic = env!("CARGO_BIN_EXE_quic");
        let (_service, host) = served.serve(quic, &[served.path(), "serve"]);
        let ask = |socket: &Path, host: &str| {
            let mut client = Command::new(quic);
            let asked =
                finish(client.arg(socket).args([served.path(), &format!("{host}:4433")]), b"");
            assert!(asked.status.success(), "{}", text(&asked.stderr));
            assert!(
                text(&asked.stdout).ends_with("16 streams of 1048576 bytes came back\n"),
                "{asked:?}"
            );
        };
        ask(Path::new("kernel"), &host);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| (0..5).for_each(|_| ask(Path::new("kernel"), &host)));
            served.kill_server();
            served.until_served(2);
            served.upgrade();
            asking.join().unwrap();
        });
        // The other way round.
        let mut kernel = Command::new(quic);
        kernel.args(["kernel", served.path(), "serve"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut kernel = Running(kernel.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(kernel.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        ask(&served.socket(), KERNEL);
    });
}

const DNS: &[(&str, &str)] = &[("dnsperf", "dnsperf")];

#[test]
fn names_of_hickory() {
    if !possible("names_of_hickory", DNS) {
        return;
    }
    isolated!(|| {
        let served = Served::start("dns");
        let (_service, host) = served.serve(env!("CARGO_BIN_EXE_dns"), &[]);
        let questions = served.directory.join("questions");
        let lines: String = (0..1000).map(|host| format!("host{host}.service.test A\n")).collect();
        fs::write(&questions, lines).unwrap();
        let said = prints(&format!("dnsperf -s {host} -d {} -n 100 -q 50", questions.display()));
        assert!(said.contains("Queries completed:    100000 (100.00%)"), "{said}");
        assert!(said.contains("Response codes:       NOERROR 100000 (100.00%)"), "{said}");
    });
}

/// The comparison with the kernel's sockets measures each load. Its result is not checked: the machine may be busy.
#[test]
fn services_are_compared_with_the_kernels_sockets() {
    const NAME: &str = "services_are_compared_with_the_kernels_sockets";
    if !possible(NAME, &[HTTP, OPENSSL, DNS].concat()) {
        return;
    }
    if let Err(cause) = probe::xdp_map() {
        let remedy = "root, and a kernel with CONFIG_XDP_SOCKETS".to_owned();
        skip(NAME, &Unavailable { cause: format!("no map for AF_XDP: {cause}"), remedy });
        return;
    }
    let compared = finish(
        Command::new(env!("CARGO_BIN_EXE_compare")).arg("--smoke").env("TOWPATH", towpath()),
        b"",
    );
    let said = text(&compared.stdout);
    assert!(compared.status.success(), "{said}{}", text(&compared.stderr));
    assert_eq!(said.matches("    requests per second: Towpath ").count(), 5, "{said}");
    assert!(!said.contains("without an answer"), "{said}");
}
