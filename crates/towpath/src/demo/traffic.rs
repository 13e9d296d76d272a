//! The kernel's side: its TCP, UDP and ICMP exchange packets with the applications through
//! ordinary sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType,
    ipproto, sockopt,
};
use sha2::{Digest, Sha256};
use towpath_sandbox::Unavailable;

use super::applications::{content_length, hex, read_head};

/// The time after which an answer counts as lost.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time without progress after which TCP fails.
const STALL: Duration = Duration::from_secs(10);
/// The longest round trip distinguished, in nanoseconds.
const LONGEST_NS: u64 = 10_000_000_000;
/// Bytes of a datagram, and of a ping's data.
const PAYLOAD_BYTES: usize = 64;
/// Bytes of a datagram to the application to be killed.
const FLOOD_BYTES: usize = 1024;
/// The number of them in flight at a time.
const FLOOD_WINDOW: u64 = 16;

/// The progress of all parts, for display; and whether to stop before the end.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes over TCP.
    pub(super) bytes: AtomicU64,
    /// UDP round trips.
    pub(super) round_trips: AtomicU64,
    /// Pings.
    pub(super) pings: AtomicU64,
    /// `true` if all traffic must stop: the time is over.
    pub(super) stop: AtomicBool,
    /// `true` if the round trips are done: TCP may end with its current file.
    pub(super) enough: AtomicBool,
}

impl Progress {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Round trips, in nanoseconds.
#[derive(Debug)]
pub(super) struct RoundTrips {
    pub(super) times: Histogram<u64>,
    pub(super) lost: u64,
}

impl RoundTrips {
    fn new() -> anyhow::Result<RoundTrips> {
        let times = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .map_err(|error| anyhow::anyhow!("a histogram: {error}"))?;
        Ok(RoundTrips { times, lost: 0 })
    }

    fn note(&mut self, since: Instant) {
        self.times.saturating_record(since.elapsed().as_nanos() as u64);
    }
}

/// The amount carried over TCP in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Carried {
    pub(super) bytes: u64,
    pub(super) time: Duration,
    /// Whole files, each with the right SHA-256.
    pub(super) files: u32,
}

/// The file, and the hash of its bytes.
pub(super) struct Content {
    pub(super) file: std::fs::File,
    pub(super) len: u64,
    pub(super) sha256: String,
}

impl Content {
    /// Makes a file in memory, with pseudo-random content.
    pub(super) fn make(len: u64) -> anyhow::Result<Content> {
        let file = rustix::fs::memfd_create(c"towpath-demo", rustix::fs::MemfdFlags::CLOEXEC)
            .context("a file in memory")?;
        let mut file = std::fs::File::from(file);
        let mut hash = Sha256::new();
        let mut chunk = vec![0; 1 << 20];
        let mut left = len;
        let mut random = fastrand::Rng::new();
        while left > 0 {
            let count = left.min(chunk.len() as u64) as usize;
            random.fill(&mut chunk);
            file.write_all(&chunk[..count])?;
            hash.update(&chunk[..count]);
            left -= count as u64;
        }
        Ok(Content { file, len, sha256: hex(&hash.finalize()) })
    }
}

/// Fetches the file over IPv4 and stores it again over IPv6, repeatedly, until the round trips are
/// done.
pub(super) fn files(
    content: &Content,
    from: Ipv4Addr,
    to: Ipv6Addr,
    progress: &Progress,
) -> anyhow::Result<[Carried; 2]> {
    let [mut fetched, mut put] = [Carried::default(); 2];
    while !progress.stopped() {
        fetch(content, (from, 80).into(), progress, &mut fetched)
            .with_context(|| format!("fetching from {from}"))?;
        store(content, (to, 80).into(), progress, &mut put)
            .with_context(|| format!("storing at {to}"))?;
        if progress.enough.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok([fetched, put])
}

fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let until = Instant::now() + STALL;
    let stream = loop {
        match TcpStream::connect_timeout(&to, STALL) {
            // An IPv6 address stays unusable for about a second, until no other host has claimed
            // it.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(50));
            }
            connected => break connected.context("connecting")?,
        }
    };
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}

fn fetch(
    content: &Content,
    to: SocketAddr,
    progress: &Progress,
    carried: &mut Carried,
) -> anyhow::Result<()> {
    let mut stream = connect(to)?;
    let start = Instant::now();
    write!(stream, "GET /file HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
    let mut body = Vec::new();
    let end = read_head(&stream, &mut body)?.context("no answer")?;
    let head = String::from_utf8_lossy(&body[..end]).into_owned();
    ensure!(head.starts_with("HTTP/1.1 200 "), "answered {head:?}");
    ensure!(content_length(&head) == content.len, "answered {head:?}");
    let mut hash = Sha256::new();
    hash.update(&body[end..]);
    let mut done = (body.len() - end) as u64;
    let mut chunk = vec![0; 256 << 10];
    while done < content.len {
        ensure!(!progress.stopped(), "{done} of {} bytes came in time", content.len);
        let count = stream.read(&mut chunk).with_context(|| format!("after {done} bytes"))?;
        ensure!(count > 0, "the connection ended after {done} bytes");
        hash.update(&chunk[..count]);
        done += count as u64;
        progress.bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
    ensure!(done == content.len, "{} bytes too many", done - content.len);
    ensure!(hex(&hash.finalize()) == content.sha256, "the bytes are not those of the file");
    carried.bytes += done;
    carried.time += start.elapsed();
    carried.files += 1;
    Ok(())
}

fn store(
    content: &Content,
    to: SocketAddr,
    progress: &Progress,
    carried: &mut Carried,
) -> anyhow::Result<()> {
    let mut stream = connect(to)?;
    let start = Instant::now();
    let len = content.len;
    write!(stream, "PUT /file HTTP/1.1\r\nHost: {to}\r\nContent-Length: {len}\r\n\r\n")?;
    let mut chunk = vec![0; 256 << 10];
    let mut done = 0;
    while done < len {
        ensure!(!progress.stopped(), "{done} of {len} bytes went in time");
        let count = content.file.read_at(&mut chunk, done)?;
        ensure!(count > 0, "the file has shrunk");
        stream.write_all(&chunk[..count]).with_context(|| format!("after {done} bytes"))?;
        done += count as u64;
        progress.bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
    let mut answer = Vec::new();
    let end = read_head(&stream, &mut answer)?.context("no answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    ensure!(head.starts_with("HTTP/1.1 201 "), "answered {head:?}");
    while (answer.len() - end) < content_length(&head) as usize {
        let count = stream.read(&mut chunk)?;
        ensure!(count > 0, "the connection ended in the answer");
        answer.extend_from_slice(&chunk[..count]);
    }
    ensure!(answer[end..] == *content.sha256.as_bytes(), "other bytes arrived than were sent");
    carried.bytes += done;
    carried.time += start.elapsed();
    carried.files += 1;
    Ok(())
}

/// Makes UDP round trips with an echo, one after the other.
pub(super) fn round_trips(
    to: Ipv4Addr,
    count: u64,
    progress: &Progress,
) -> anyhow::Result<RoundTrips> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((to, 7))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut outcome = RoundTrips::new()?;
    let (mut sent, mut got) = ([0; PAYLOAD_BYTES], [0; 2 * PAYLOAD_BYTES]);
    for number in 0..count {
        if progress.stopped() {
            outcome.lost += count - number;
            break;
        }
        fill(&mut sent, number);
        let start = Instant::now();
        socket.send(&sent).context("sending a datagram")?;
        loop {
            match socket.recv(&mut got) {
                Ok(len) if got[..len] == sent => {
                    outcome.note(start);
                    break;
                }
                // The answer to an earlier datagram, for which the sender no longer waits.
                Ok(len) if len == sent.len() && got[..8] < sent[..8] => {}
                Ok(len) => bail!("datagram {number} came back changed, {len} bytes long"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    outcome.lost += 1;
                    break;
                }
                Err(error) => return Err(error).context("receiving a datagram"),
            }
        }
        progress.round_trips.fetch_add(1, Ordering::Relaxed);
    }
    Ok(outcome)
}

/// Fills a payload with its number in big-endian order, so that payloads compare like their
/// numbers, and then with bytes that depend on the number.
fn fill(payload: &mut [u8], number: u64) {
    for (place, byte) in payload.iter_mut().enumerate() {
        *byte = (number as u8).wrapping_add(place as u8);
    }
    payload[..8].copy_from_slice(&number.to_be_bytes());
}

/// An ICMP echo socket of the kernel and the numbers of its messages.
struct Pinger {
    socket: OwnedFd,
    request: u8,
    answer: u8,
    /// Received packets begin with the IPv4 header.
    with_header: bool,
}

impl Pinger {
    fn open(to: Ipv4Addr) -> anyhow::Result<Pinger> {
        let socket = raw(AddressFamily::INET, ipproto::ICMP)?;
        rustix::net::connect(&socket, &SocketAddrV4::new(to, 0))?;
        Ok(Pinger { socket, request: 8, answer: 0, with_header: true })
    }

    fn open_v6(to: Ipv6Addr) -> anyhow::Result<Pinger> {
        let socket = raw(AddressFamily::INET6, ipproto::ICMPV6)?;
        rustix::net::connect(&socket, &SocketAddrV6::new(to, 0, 0, 0))?;
        Ok(Pinger { socket, request: 128, answer: 129, with_header: false })
    }

    /// Sends one ping. Returns `false` if no answer came in time.
    fn ping(&self, number: u64, identifier: u16, times: &mut RoundTrips) -> anyhow::Result<bool> {
        let mut message = [0; 8 + PAYLOAD_BYTES];
        message[0] = self.request;
        message[4..6].copy_from_slice(&identifier.to_be_bytes());
        message[6..8].copy_from_slice(&(number as u16).to_be_bytes());
        fill(&mut message[8..], number);
        if self.with_header {
            // The kernel computes the checksum of ICMPv6 (RFC 3542, 3.1).
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let start = Instant::now();
        rustix::net::send(&self.socket, &message, SendFlags::empty()).context("sending a ping")?;
        let mut buffer = [0; 2048];
        while start.elapsed() < PATIENCE {
            let count = match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, count)) => count,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(error) => return Err(error).context("receiving a ping"),
            };
            let header = if self.with_header { usize::from(buffer[0] & 15) * 4 } else { 0 };
            let got = buffer[..count].get(header..).unwrap_or_default();
            if got.len() >= 8 && got[0] == self.answer && got[4..8] == message[4..8] {
                ensure!(got[8..] == message[8..], "ping {number} came back changed");
                times.note(start);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn raw(family: AddressFamily, protocol: rustix::net::Protocol) -> anyhow::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))
            .map_err(|error| match error {
                Errno::PERM | Errno::ACCESS => towpath_sandbox::Error::Unavailable(Unavailable {
                    cause: "no raw socket for pings: this process lacks CAP_NET_RAW".to_owned(),
                    remedy: "run as an ordinary user, or with --cap-add NET_RAW".to_owned(),
                })
                .into(),
                error => anyhow::Error::from(error).context("a raw socket"),
            })?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let sum = bytes
        .chunks(2)
        .map(|two| u32::from(u16::from_be_bytes([two[0], two.get(1).copied().unwrap_or(0)])));
    let sum: u32 = sum.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Pings over IPv4 and IPv6 in turn.
pub(super) fn pings(
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    count: u64,
    progress: &Progress,
) -> anyhow::Result<RoundTrips> {
    let pingers = [Pinger::open(v4)?, Pinger::open_v6(v6)?];
    let identifier = std::process::id() as u16;
    let mut outcome = RoundTrips::new()?;
    for number in 0..count {
        if progress.stopped() {
            outcome.lost += count - number;
            break;
        }
        let pinger = &pingers[number as usize % 2];
        if !pinger.ping(number, identifier, &mut outcome)? {
            outcome.lost += 1;
        }
        progress.pings.fetch_add(1, Ordering::Relaxed);
    }
    Ok(outcome)
}

/// Datagrams for the application to be killed: enough of them in flight that its queues are in use
/// at that moment.
pub(super) struct Flood {
    socket: UdpSocket,
    sent: u64,
    answered: u64,
}

impl Flood {
    pub(super) fn start(to: Ipv4Addr) -> anyhow::Result<Flood> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((to, 7))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        Ok(Flood { socket, sent: 0, answered: 0 })
    }

    /// Keeps the window full until `until` returns `true`.
    pub(super) fn keep_up(&mut self, mut until: impl FnMut() -> bool) -> anyhow::Result<()> {
        let mut bytes = [0; FLOOD_BYTES];
        while !until() {
            while self.sent - self.answered < FLOOD_WINDOW {
                self.send(&mut bytes).context("a datagram to the application to be killed")?;
            }
            match self.socket.recv(&mut bytes) {
                Ok(_) => self.answered += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("the application to be killed"),
            }
        }
        Ok(())
    }

    /// Sends a few more datagrams, which no application receives.
    pub(super) fn send_after_death(&mut self) -> anyhow::Result<()> {
        let mut bytes = [0; FLOOD_BYTES];
        let mut left = FLOOD_WINDOW;
        while left > 0 {
            match self.send(&mut bytes) {
                Ok(()) => left -= 1,
                // The server has answered an earlier datagram for the application (port unreachable). The kernel
                // reports that once, and sends nothing in this call.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error).context("a datagram to the killed application"),
            }
        }
        Ok(())
    }

    fn send(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        fill(bytes, self.sent);
        self.socket.send(bytes)?;
        self.sent += 1;
        Ok(())
    }

    /// Returns the number of datagrams that came back.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns the number of datagrams that did not come back.
    pub(super) fn unanswered(&self) -> u64 {
        self.sent - self.answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 1071, section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
        assert_eq!(checksum(&[0xff]), !0xff00);
        assert_eq!(checksum(&[]), 0xffff);
    }

    #[test]
    fn payloads_tell_their_order() {
        let (mut one, mut other) = ([0; 64], [0; 64]);
        fill(&mut one, 255);
        fill(&mut other, 256);
        assert!(one[..8] < other[..8] && one != other);
    }

    #[test]
    fn a_content_matches_its_stated_hash() {
        let content = Content::make((1 << 20) + 5).unwrap();
        let mut bytes = vec![0; content.len as usize];
        content.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(hex(&Sha256::digest(&bytes)), content.sha256);
        assert_eq!(content.file.metadata().unwrap().len(), content.len);
    }
}
