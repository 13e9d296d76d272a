//! The web example, its content, a client of the kernel's, and curl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use towpath_device::tap::TapDevice;

use super::{Directory, Running, Served, outcome};

/// The time limit of operations that should take no time.
const LIMIT: Duration = Duration::from_secs(40);

pub(crate) const BIG_BYTES: usize = 5_000_000;

/// Creates a directory to serve, with a small file, a big file, and a link to a file outside.
///
/// Returns the directory and the big file's content.
pub(crate) fn content() -> (Directory, Vec<u8>) {
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

pub(crate) fn plain(device: TapDevice) -> Box<dyn towpath_device::Device> {
    Box::new(device)
}

pub(crate) fn start(served: &Served, content: &Directory) -> Running {
    Running::start(env!("CARGO_BIN_EXE_web"), served, &[&content.0.join("root")])
}

/// The addresses of the first application, here the web example.
pub(crate) const HOSTS: [&str; 2] = ["10.77.0.2", "fd77::2"];

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines of status and headers.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// A connection of the kernel's to the web example.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(host: &str) -> Client {
        let address = SocketAddr::new(host.parse().unwrap(), 80);
        let stream = TcpStream::connect_timeout(&address, LIMIT).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Client(BufReader::new(stream))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Sends the lines of a request without a body, and returns the answer.
    pub(crate) fn ask(&mut self, request: &str) -> Answer {
        self.send(request);
        self.answer(!request.starts_with("HEAD "))
    }

    /// Sends the lines of a request.
    pub(crate) fn send(&mut self, request: &str) {
        let lines = request.replace('\n', "\r\n");
        self.write(format!("{lines}\r\nHost: web\r\n\r\n").as_bytes());
    }

    /// Receives an answer, whose body a request for only the head leaves out.
    pub(crate) fn answer(&mut self, has_body: bool) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "the answer ends: {head:?}");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let len = len.filter(|_| has_body).map_or(0, |len| len.parse().unwrap());
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).unwrap();
        Answer { status, head, body }
    }

    /// Returns `true` if the example closes the connection.
    pub(crate) fn ends(&mut self) -> bool {
        self.0.read(&mut [0]).unwrap() == 0
    }
}

/// Fetches a file by a new connection.
pub(crate) fn get(host: &str, target: &str) -> Vec<u8> {
    let answer = Client::connect(host).ask(&format!("GET {target} HTTP/1.1"));
    assert_eq!(answer.status, 200, "{target}: {}", answer.head);
    answer.body
}

/// Uploads bytes by a new connection.
pub(crate) fn put(host: &str, bytes: &[u8]) {
    let mut client = Client::connect(host);
    client.send(&format!("PUT /up HTTP/1.1\nContent-Length: {}", bytes.len()));
    client.write(bytes);
    let answer = client.answer(true);
    assert_eq!(answer.body, format!("{} bytes\n", bytes.len()).as_bytes());
}

/// Returns the output of curl for these arguments.
pub(crate) fn curl(arguments: &str) -> String {
    let output = outcome(&format!("curl -sS {arguments}"), LIMIT);
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
