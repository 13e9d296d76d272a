//! Serves a directory over HTTP/1.1 (RFC 9112) and counts uploaded bytes, like a program for
//! `std::net`: `cargo run -p towpath-examples --bin web -- /run/towpath/tap0.sock public/`.
#![forbid(unsafe_code)]

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::Ipv6Addr;
use std::{error::Error, ffi::OsString, fs::File, path::Path, sync::Arc, time::Duration};

use towpath_net::{Network, TcpListener, TcpStream};

const HEAD_BYTES: u64 = 16 << 10;
const CONNECTIONS: usize = 512;
const SILENCE: Duration = Duration::from_secs(30);

fn main() -> std::process::ExitCode {
    towpath_examples::run("web SOCKET DIRECTORY [PORT]", "Serves a directory over HTTP.", listen)
}

fn listen([path, root, port]: [OsString; 3]) -> Result<(), Box<dyn Error>> {
    let port = if port.is_empty() { 80 } else { port.to_string_lossy().parse::<u16>()? };
    let wrong = |error| format!("{}: {error}; give a directory that exists", root.display());
    let root: Arc<Path> = Path::new(&root).canonicalize().map_err(wrong)?.into();
    let network = Network::attach(path)?;
    // This listener takes IPv6 and IPv4.
    let listener = TcpListener::bind(&network, (Ipv6Addr::UNSPECIFIED, port))?;
    println!("serving {} at port {port} of {:?}", root.display(), network.addresses());
    Ok(accept(&listener, &root)?)
}

/// Starts a thread per connection. At the limit, further connections wait in the listener.
fn accept(listener: &TcpListener, root: &Arc<Path>) -> io::Result<()> {
    loop {
        let (stream, root) = (listener.accept()?.0, root.clone());
        while Arc::strong_count(&root) > CONNECTIONS {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A broken connection is no error of the server.
        std::thread::Builder::new().spawn(move || serve(&stream, &root).ok())?;
    }
}

/// Answers one request after the other until one of the two sides closes.
fn serve(stream: &TcpStream, root: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    // A response does not wait for an acknowledgement of the one before.
    stream.set_nodelay(true)?;
    let mut output = BufWriter::with_capacity(128 << 10, stream);
    let (mut input, mut more) = (BufReader::new(stream), true);
    while more {
        let (mut head, mut lines) = (String::new(), (&mut input).take(HEAD_BYTES));
        while !head.ends_with("\r\n\r\n") {
            if lines.read_line(&mut head)? == 0 {
                return if head.is_empty() { Ok(()) } else { answer(output, "400 Bad Request", 0) };
            }
        }
        let header = |wanted: &str| {
            let mut fields = head.lines().filter_map(|line| line.split_once(':'));
            Some(fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted))?.1.trim())
        };
        let len = header("content-length").map_or(Ok(0), str::parse);
        let (None, Ok(len)) = (header("transfer-encoding"), len) else {
            return answer(output, "411 Length Required", 0);
        };
        if header("expect") == Some("100-continue") {
            { stream }.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let body = io::copy(&mut (&mut input).take(len), &mut io::sink())?;
        let mut words = head.split_whitespace();
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        more = words.next() == Some("HTTP/1.1") && header("connection") != Some("close");
        let ok = if more { "200 OK" } else { "200 OK\r\nConnection: close" };
        match (method, find(root, target)) {
            ("HEAD", Some((_, len))) => answer(&mut output, ok, len)?,
            ("GET", Some((file, len))) => {
                answer(&mut output, ok, len)?;
                // If the file has shrunk, only closing the connection tells the peer.
                more &= io::copy(&mut file.take(len), &mut output)? == len;
            }
            ("GET" | "HEAD", None) => answer(&mut output, "404 Not Found", 0)?,
            ("POST" | "PUT", _) => {
                answer(&mut output, ok, format!("{body} bytes\n").len() as u64)?;
                writeln!(output, "{body} bytes")?;
            }
            _ => answer(&mut output, "405 Method Not Allowed\r\nAllow: GET, HEAD, POST, PUT", 0)?,
        }
        output.flush()?;
    }
    Ok(())
}

fn answer(mut output: impl Write, status: &str, len: u64) -> io::Result<()> {
    output.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n").as_bytes())
}

/// Returns the file that a target names, unless its real path is outside `root`.
fn find(root: &Path, target: &str) -> Option<(File, u64)> {
    let path = root.join(target.split('?').next()?.trim_start_matches('/'));
    let path = if path.is_dir() { path.join("index.html") } else { path }.canonicalize().ok()?;
    // No pipe, whose opening would block, and no device, which has no end.
    let open = path.starts_with(root) && path.is_file();
    open.then(|| Some((File::open(&path).ok()?, path.metadata().ok()?.len())))?
}
