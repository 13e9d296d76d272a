//! Kernel sockets that segment and merge UDP datagrams (udp(7), `linux/udp.h`).

use std::io;
use std::mem::size_of;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// Has the kernel make a datagram of each `bytes` bytes that the socket sends in one call (`UDP_SEGMENT`).
///
/// # Errors
/// The kernel's: it is older than Linux 4.18.
pub fn set_udp_segment(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set(socket, libc::UDP_SEGMENT, bytes.into())
}

/// Lets the kernel return several datagrams at once (`UDP_GRO`).
///
/// # Errors
/// The kernel's: it is older than Linux 5.0.
pub fn set_udp_gro(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::UDP_GRO, 1)
}

fn set(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is a live integer of this size, which the kernel only reads.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, (&raw const value).cast(), size)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one datagram, or several of a socket with [`set_udp_gro`]. Returns the number of bytes, and the length of each
/// datagram but the last.
///
/// # Errors
/// The kernel's.
pub fn recv_udp_gro(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Words, since control messages are aligned as they are.
    let mut control = [0_u64; 8];
    // SAFETY: `msghdr` consists of integers and pointers, so all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_name, message.msg_iov, message.msg_iovlen) = (null_mut(), &raw mut part, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message names live memory with its lengths, which the kernel fills.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has written well-formed control messages, and their length to `msg_controllen`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: a pointer that is not null is that of a whole header in `control`.
    while let Some(found) = unsafe { header.as_ref() } {
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
            // SAFETY: the data of this message is an integer (udp_cmsg_recv of net/ipv4/udp.c).
            let stride = unsafe { libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned() };
            return Ok((len, usize::try_from(stride).unwrap_or(len)));
        }
        // SAFETY: as of the first header.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok((len, len))
}
