//! The two applications: one serves a file over HTTP/1.1, one echoes UDP datagrams. Neither depends
//! on the demonstration.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use towpath_net::{Network, TcpListener, TcpStream, UdpSocket};

/// The most bytes of a request before its body.
const HEAD_BYTES: usize = 8 << 10;
/// Bytes read or written at once.
const CHUNK_BYTES: usize = 128 << 10;
/// Connections served at a time; the next one waits for the end of one of them.
const CONNECTIONS: usize = 32;
/// The time that a connection may be silent.
const SILENCE: Duration = Duration::from_secs(20);

/// Serves a file as `/file` on port 80 of every address until the link is gone. The answer to a PUT
/// is the SHA-256 of its body.
///
/// # Errors
/// The error of listening.
pub(super) fn web(network: &Network, file: File) -> io::Result<()> {
    let file = Arc::new(file);
    let listener = TcpListener::bind(network, "[::]:80")?;
    spawn("web", move || {
        let slots = Arc::new(());
        // An error here means that the server is gone.
        for stream in listener.incoming().map_while(Result::ok) {
            while Arc::strong_count(&slots) > CONNECTIONS {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (file, slot) = (file.clone(), slots.clone());
            // The application does not answer a client that breaks its connection.
            let served = spawn("connection", move || {
                let _ = serve(&stream, &file);
                drop(slot);
            });
            if served.is_err() {
                break;
            }
        }
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Answers the requests of one connection.
fn serve(mut stream: &TcpStream, file: &File) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut input = Vec::with_capacity(HEAD_BYTES);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let Some(end) = read_head(stream, &mut input)? else { return Ok(()) };
        let head = String::from_utf8_lossy(&input[..end]).into_owned();
        input.drain(..end);
        let mut words = head.split_whitespace();
        match (words.next(), words.next()) {
            (Some("GET"), Some("/file")) => {
                let len = file.metadata()?.len();
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
                let mut offset = 0;
                while offset < len {
                    let count = file.read_at(&mut chunk, offset)?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    stream.write_all(&chunk[..count])?;
                    offset += count as u64;
                }
            }
            (Some("PUT"), Some("/file")) => {
                let mut left = content_length(&head);
                let mut hash = Sha256::new();
                let early = left.min(input.len() as u64) as usize;
                hash.update(&input[..early]);
                input.drain(..early);
                left -= early as u64;
                while left > 0 {
                    let most = left.min(chunk.len() as u64) as usize;
                    let count = stream.read(&mut chunk[..most])?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    hash.update(&chunk[..count]);
                    left -= count as u64;
                }
                let text = hex(&hash.finalize());
                let len = text.len();
                write!(stream, "HTTP/1.1 201 Created\r\nContent-Length: {len}\r\n\r\n{text}")?;
            }
            _ => {
                // The loop would take a body, if there is one, for the next request.
                let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n";
                return write!(stream, "{answer}Connection: close\r\n\r\n");
            }
        }
    }
}

/// Reads until the empty line that ends a request's or an answer's head. Returns the head's length,
/// or `None` if the peer has ended the connection.
///
/// # Errors
/// If the head is too long, or ends in the middle.
pub(super) fn read_head(mut stream: impl Read, input: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut chunk = [0; 2048];
    loop {
        if let Some(at) = input.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if input.len() >= HEAD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the head is too long"));
        }
        match stream.read(&mut chunk)? {
            0 if input.is_empty() => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => input.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Returns the length of the body according to its head.
pub(super) fn content_length(head: &str) -> u64 {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

/// Formats bytes as text.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Echoes every datagram to port 7 until the link is gone (RFC 862). The stack answers pings.
///
/// # Errors
/// The error of binding.
pub(super) fn echo(network: &Network) -> io::Result<()> {
    let socket = UdpSocket::bind(network, "0.0.0.0:7")?;
    spawn("echo", move || {
        let mut datagram = vec![0; 64 << 10];
        loop {
            match socket.recv_from(&mut datagram) {
                // The application ignores a peer to which it cannot send an answer.
                Ok((count, from)) => drop(socket.send_to(&datagram[..count], from)),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    })
}
