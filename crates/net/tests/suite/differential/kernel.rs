//! The sockets of the kernel, over its loopback interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Type};

use towpath_net::BindOptions;

use super::calls::TIMEOUT;
use super::world::{Host, Ready, Socket, World};

pub(super) struct Kernel {
    /// The first three parts of the hosts' IPv4 addresses, which differ from sequence to sequence.
    net: [u8; 3],
    /// A listener that takes no more connections, with the connection that it has.
    silent: Option<(TcpListener, TcpStream)>,
}

impl Kernel {
    pub(super) fn new(number: u64) -> Kernel {
        // Neither 127.0.0.0/16, which other programs use, nor a number of 0 or 255.
        let number = number.wrapping_mul(977).wrapping_add(u64::from(std::process::id()));
        let net = [127, 1 + (number / 250 % 250) as u8, 1 + (number % 250) as u8];
        Kernel { net, silent: None }
    }

    /// Returns `true` if the kernel has IPv6 on its loopback interface.
    pub(super) fn has_v6() -> bool {
        UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
    }
}

fn socket(at: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<socket2::Socket> {
    socket2::Socket::new(Domain::for_address(at), kind, Some(protocol))
}

fn fd<'a>(of: &'a Socket<'_, Kernel>) -> BorrowedFd<'a> {
    match of {
        Socket::Listener(listener) => listener.as_fd(),
        Socket::Stream(stream) => stream.as_fd(),
        Socket::Udp(udp) => udp.as_fd(),
    }
}

impl World for Kernel {
    type Listener = TcpListener;
    type Stream = TcpStream;
    type Udp = UdpSocket;

    fn ip(&self, host: Host, v6: bool) -> IpAddr {
        let [one, two, three] = self.net;
        match (v6, host) {
            (true, _) => Ipv6Addr::LOCALHOST.into(),
            (false, Host::A) => Ipv4Addr::new(one, two, three, 1).into(),
            (false, Host::B) => Ipv4Addr::new(one, two, three, 2).into(),
        }
    }

    fn silent(&mut self) -> SocketAddr {
        let (listener, _) = self.silent.get_or_insert_with(|| {
            let [one, two, three] = self.net;
            let at = SocketAddr::from(([one, two, three, 3], 0));
            let listener = socket(at, Type::STREAM, Protocol::TCP).unwrap();
            listener.bind(&at.into()).unwrap();
            // The kernel drops each SYN after the first connection.
            listener.listen(0).unwrap();
            let listener = TcpListener::from(listener);
            let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (listener, first)
        });
        listener.local_addr().unwrap()
    }

    fn listen(&self, at: SocketAddr, options: BindOptions) -> io::Result<TcpListener> {
        let listener = socket(at, Type::STREAM, Protocol::TCP)?;
        // As `std::net` does.
        listener.set_reuse_address(true)?;
        listener.set_reuse_port(options.reuse_port)?;
        if at.is_ipv6() {
            listener.set_only_v6(options.only_v6)?;
        }
        listener.bind(&at.into())?;
        listener.listen(128)?;
        listener.set_nonblocking(true)?;
        Ok(listener.into())
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = listener.accept()?;
        stream.set_read_timeout(TIMEOUT)?;
        stream.set_write_timeout(TIMEOUT)?;
        Ok((stream, peer))
    }

    fn connect(&self, from: u16, to: SocketAddr, nonblocking: bool) -> io::Result<TcpStream> {
        let stream = socket(to, Type::STREAM, Protocol::TCP)?;
        let from = SocketAddr::new(self.ip(Host::B, to.is_ipv6()), from);
        stream.bind(&SockAddr::from(from))?;
        stream.set_nonblocking(nonblocking)?;
        match stream.connect(&to.into()) {
            Err(error) if nonblocking && error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            connected => connected?,
        }
        let stream = TcpStream::from(stream);
        stream.set_read_timeout(TIMEOUT)?;
        stream.set_write_timeout(TIMEOUT)?;
        Ok(stream)
    }

    fn bind(&self, _: Host, at: SocketAddr, options: BindOptions) -> io::Result<UdpSocket> {
        let udp = socket(at, Type::DGRAM, Protocol::UDP)?;
        udp.set_reuse_port(options.reuse_port)?;
        if at.is_ipv6() {
            udp.set_only_v6(options.only_v6)?;
        }
        udp.bind(&at.into())?;
        let udp = UdpSocket::from(udp);
        udp.set_read_timeout(TIMEOUT)?;
        udp.set_write_timeout(TIMEOUT)?;
        Ok(udp)
    }

    fn ready(&mut self, sockets: &[(u64, Socket<'_, Kernel>)]) -> Vec<(Ready, usize)> {
        let wanted = PollFlags::IN | PollFlags::OUT | PollFlags::PRI | PollFlags::RDHUP;
        let mut fds: Vec<_> =
            sockets.iter().map(|(_, one)| PollFd::from_borrowed_fd(fd(one), wanted)).collect();
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        let ready = fds.iter().zip(sockets).map(|(polled, (_, socket))| {
            let has = |flag| polled.revents().contains(flag);
            let ready = Ready {
                readable: has(PollFlags::IN),
                writable: has(PollFlags::OUT),
                priority: has(PollFlags::PRI),
                read_closed: has(PollFlags::RDHUP),
                both_closed: has(PollFlags::HUP),
                error: has(PollFlags::ERR),
            };
            let waiting = match socket {
                Socket::Stream(stream) => rustix::io::ioctl_fionread(stream).unwrap() as usize,
                _ => 0,
            };
            (ready, waiting)
        });
        ready.collect()
    }

    fn settle(&self) {}

    fn pass(&self) {
        std::thread::sleep(Duration::from_micros(200));
    }
}
