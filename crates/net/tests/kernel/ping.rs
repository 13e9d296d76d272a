//! Echo requests from the kernel's side, through a raw socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sends an echo request with `len` bytes and waits for the same bytes in the reply.
pub(crate) fn ping(to: IpAddr, len: usize) -> io::Result<()> {
    let v4 = to.is_ipv4();
    let (family, protocol) =
        if v4 { (libc::AF_INET, 1) } else { (libc::AF_INET6, libc::IPPROTO_ICMPV6) };
    // SAFETY: no memory is involved; the descriptor is new and has no other owner.
    let socket = unsafe {
        let fd = libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_secs(5)),
    )?;
    rustix::net::connect(&socket, &std::net::SocketAddr::new(to, 0))?;
    let mut message = vec![if v4 { 8 } else { 128 }, 0, 0, 0, 0x12, 0x34, 0, 1];
    message.extend((0..len).map(|at| ((at * 31) >> 2) as u8));
    if v4 {
        let sum = sum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    rustix::io::write(&socket, &message)?;
    let until = Instant::now() + Duration::from_secs(5);
    let mut buffer = vec![0; 70_000];
    while Instant::now() < until {
        let got = rustix::io::read(&socket, &mut buffer[..])?;
        let reply = if v4 { &buffer[20..got] } else { &buffer[..got] };
        if reply[0] == if v4 { 0 } else { 129 } {
            assert_eq!(reply[4..], message[4..], "the echo of {len} bytes differs");
            return Ok(());
        }
    }
    let _ = socket.as_raw_fd();
    Err(io::Error::new(io::ErrorKind::TimedOut, "no echo"))
}
