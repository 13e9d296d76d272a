//! Port holders: kernel sockets that keep a port of the host for an application, and never receive.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The beginning of the names of ports.
pub(super) const PORT: &str = "port-";

/// Returns the name under which the keeper holds a port. A name has no colon, so an IPv6 address is
/// its 32 digits.
#[must_use]
pub fn port_name(protocol: PortProtocol, local: SocketAddr) -> String {
    let protocol = match protocol {
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
    };
    match local {
        SocketAddr::V4(local) => format!("{PORT}{protocol}-{}-{}", local.ip(), local.port()),
        SocketAddr::V6(local) => {
            format!("{PORT}{protocol}-{:032x}-{}", local.ip().to_bits(), local.port())
        }
    }
}

/// Binds a socket to a port, or with port 0 to one that the kernel chooses. No other socket can
/// bind the port while the holder lives: the holder has no option that shares it (`SO_REUSEADDR`,
/// `SO_REUSEPORT`). It never listens, and its filter drops every datagram.
///
/// # Errors
/// The kernel's error: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES` for a privileged port.
pub(crate) fn hold(protocol: PortProtocol, local: SocketAddr) -> io::Result<(OwnedFd, u16)> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = match protocol {
        PortProtocol::Tcp => SocketType::STREAM,
        PortProtocol::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if protocol == PortProtocol::Udp {
        drop_everything(&socket)?;
    }
    bind(&socket, &local)?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, bound.port()))
}

/// Has the kernel drop every packet for a socket.
fn drop_everything(socket: &OwnedFd) -> io::Result<()> {
    // "Return 0": keep no byte of the packet (linux/filter.h).
    let mut code =
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut code };
    // SAFETY: the program and its one instruction are live locals, and their sizes are given. The
    // kernel copies both.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn the_name_of_a_port() {
        let name = |text: &str| port_name(PortProtocol::Tcp, text.parse().unwrap());
        assert_eq!(name("192.0.2.1:80"), "port-tcp-192.0.2.1-80");
        assert_eq!(name("[2001:db8::1]:80"), "port-tcp-20010db8000000000000000000000001-80");
    }

    #[test]
    fn a_held_port_is_no_other_sockets() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = address.parse().unwrap();
            let (tcp, port) = hold(PortProtocol::Tcp, any).unwrap();
            let held = SocketAddr::new(any.ip(), port);
            // `TcpListener` sets SO_REUSEADDR.
            let taken = TcpListener::bind(held).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
            let again = hold(PortProtocol::Tcp, held).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
            let refused = TcpStream::connect(held).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "it does not listen");
            drop(tcp);
            drop(TcpListener::bind(held).unwrap());
        }
    }

    #[test]
    fn a_udp_holder_keeps_no_datagram() {
        let (udp, port) = hold(PortProtocol::Udp, "127.0.0.1:0".parse().unwrap()).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(("127.0.0.1", port)).unwrap();
        for _ in 0..3 {
            // No ICMP error comes back either.
            sender.send(b"for the application").unwrap();
        }
        let mut buffer = [0; 8];
        let empty = rustix::net::recv(&udp, &mut buffer, rustix::net::RecvFlags::DONTWAIT);
        assert_eq!(empty.map(|_| ()), Err(rustix::io::Errno::AGAIN));
        let taken = UdpSocket::bind(("127.0.0.1", port)).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
