//! The kernel alone: sockets across a veth pair between two network namespaces.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath_testkit::{End, Namespace, connect};

/// A wire between this namespace and another one.
#[derive(Clone, Debug)]
pub(crate) struct KernelWire {
    there: Namespace,
}

/// The addresses of the near and the far end.
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The size of a UDP socket's receive buffer, if the kernel grants it.
const BUFFER_BYTES: usize = 4 << 20;

impl KernelWire {
    /// Makes the veth pair. Its ends are called `name` with a 0 and a 1 behind it.
    pub(crate) fn new(name: &str, mtu_bytes: u32) -> anyhow::Result<KernelWire> {
        let (here, there) = (Namespace::current()?, Namespace::create()?);
        let _ = here.silence();
        let _ = there.silence();
        let address = |ip: Ipv4Addr| format!("{ip}/24").parse();
        connect(
            &End { namespace: &here, name: &format!("{name}0"), addresses: &[address(NEAR)?] },
            &End { namespace: &there, name: &format!("{name}1"), addresses: &[address(FAR)?] },
            Some(mtu_bytes),
        )?;
        Ok(KernelWire { there })
    }

    /// Returns a non-blocking UDP socket at the near end; port 0 means any.
    pub(crate) fn near_udp(&self, port: u16) -> anyhow::Result<UdpSocket> {
        udp(NEAR, port)
    }

    /// Returns UDP sockets at the far end, from this port on.
    pub(crate) fn far_udp(&self, port: u16, count: usize) -> anyhow::Result<Vec<UdpSocket>> {
        self.there.run(|| {
            let ports = (0..count).map(|number| u16::try_from(usize::from(port) + number));
            ports.map(|port| udp(FAR, port?)).collect()
        })?
    }

    /// Returns a TCP connection from the far end.
    pub(crate) fn far_tcp(&self, to: SocketAddr) -> anyhow::Result<TcpStream> {
        Ok(self.there.run(|| TcpStream::connect(to))??)
    }

    /// Calls a function in the network namespace of the far end.
    pub(crate) fn at_far_end<R: Send>(&self, f: impl FnOnce() -> R + Send) -> anyhow::Result<R> {
        Ok(self.there.run(f)?)
    }

    /// Returns a TCP listener at the far end.
    pub(crate) fn far_listener(&self) -> anyhow::Result<TcpListener> {
        Ok(self.there.run(|| TcpListener::bind((FAR, 0)))??)
    }

    /// Returns a TCP connection: its near end, which connected, and its far end.
    pub(crate) fn tcp(&self) -> anyhow::Result<(TcpStream, TcpStream)> {
        let listener = self.far_listener()?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        Ok((near, listener.accept()?.0))
    }
}

fn udp(ip: Ipv4Addr, port: u16) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind((ip, port)).with_context(|| format!("UDP port {ip}:{port}"))?;
    socket.set_nonblocking(true)?;
    // Without the privilege for more, the kernel's limit applies.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)
        .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES))?;
    Ok(socket)
}

/// Reads from a stream. A signal that stops and continues the process interrupts a read with a time
/// limit (signal(7)).
pub(crate) fn read(mut stream: impl io::Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Receives a datagram if one waits.
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match socket.recv(buffer) {
        Ok(len) => Ok(Some(len)),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Receives as [`receive`] does, with the sender's address.
pub(crate) fn receive_from(
    socket: &UdpSocket,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, SocketAddr)>> {
    match socket.recv_from(buffer) {
        Ok(got) => Ok(Some(got)),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends; returns whether the kernel had room.
pub(crate) fn send_to(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) -> io::Result<bool> {
    match socket.send_to(bytes, to) {
        Ok(_) => Ok(true),
        Err(error)
            if would_block(&error)
                || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Raises the process's limit of open descriptors as far as it may; returns the limit.
pub(crate) fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
