//! What the kernel reports of its TCP connections.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// Returns the congestion window of a connection of the kernel, in bytes (`TCP_INFO` in
/// `include/uapi/linux/tcp.h`).
///
/// # Errors
/// Fails if the socket is no TCP socket.
pub fn congestion_window(socket: impl AsFd) -> io::Result<u64> {
    // Zero is valid in each of its fields: an older kernel fills fewer of them.
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of it is initialised, with zeros or by the kernel, and holds numbers only.
    let info = unsafe { info.assume_init() };
    Ok(u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn a_new_connection_has_the_initial_window() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // Ten segments (RFC 6928), unless the route says otherwise.
        let window = congestion_window(&stream).unwrap();
        assert!((1_000..10_000_000).contains(&window), "{window}");
        assert!(congestion_window(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
