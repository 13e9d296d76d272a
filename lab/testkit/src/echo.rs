//! Echo requests from the kernel's side, through a raw socket (RFC 792, RFC 4443).
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

/// The most bytes of an IPv4 header.
const IPV4_MAX_BYTES: usize = 60;

/// Sends an echo request with `len_bytes` bytes of data from the calling thread's network namespace, and waits for
/// the reply with the same bytes. The caller needs `CAP_NET_RAW`, which a test has in its namespace.
///
/// # Errors
/// `TimedOut` if no reply to this request arrives within the limit, `InvalidData` at once if one has other bytes or a
/// wrong checksum, or a system call's error.
pub fn ping(to: IpAddr, len_bytes: usize, limit: Duration) -> io::Result<()> {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let ipv4 = to.is_ipv4();
    let (family, protocol, request, reply) = if ipv4 {
        (AddressFamily::INET, ipproto::ICMP, 8, 0)
    } else {
        (AddressFamily::INET6, ipproto::ICMPV6, 128, 129)
    };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?;
    rustix::net::connect(&socket, &SocketAddr::new(to, 0))?;
    let identifier = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut message = vec![request, 0, 0, 0, identifier[0], identifier[1], 0, 1];
    message.extend((0..len_bytes).map(|at| ((at * 31) >> 2) as u8));
    // The kernel computes and verifies the checksum of ICMPv6 only.
    if ipv4 {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    rustix::net::send(&socket, &message, rustix::net::SendFlags::empty())?;
    let until = Instant::now() + limit;
    let mut buffer = vec![0; IPV4_MAX_BYTES + message.len() + 1];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no echo from {to}"));
        if left.is_zero() {
            return Err(late());
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(left.max(Duration::from_millis(1))))?;
        let got = match rustix::io::read(&socket, &mut buffer[..]) {
            Ok(got) => got,
            Err(rustix::io::Errno::AGAIN) => return Err(late()),
            Err(errno) => return Err(errno.into()),
        };
        let header = if ipv4 { usize::from(buffer[0] & 15) * 4 } else { 0 };
        let got = buffer.get(header..got).unwrap_or_default();
        // The socket also receives replies to other requests, and the requests of this namespace.
        if got.first() != Some(&reply) || got.get(4..8) != Some(&message[4..8]) {
            continue;
        }
        let intact = !ipv4 || checksum(got) == 0;
        if intact && got[8..] == message[8..] {
            return Ok(());
        }
        let text =
            format!("the echo from {to} has other bytes than the request, or a wrong checksum");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
}

/// Returns the checksum of RFC 1071; 0 for bytes that have a right one.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
