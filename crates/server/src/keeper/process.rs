//! The keeper's side.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use towpath_device::xdp::unbound_socket;
use towpath_netlink::Netlink;
use zerocopy::{FromBytes, IntoBytes};

use super::held::{self, Held};
use super::holder::{PortProtocol, hold, port_name};
use super::notify::{self, MESSAGE_BYTES, Notification};
use super::options::{ANSWER_TIMEOUT, KeeperOptions, PAUSE};
use super::take_over::{BUSY, Listener};
use super::wire::{
    Answer, END, HOLD_TCP, HOLD_UDP, LIMIT, PROBE, RELEASE_TCP, RELEASE_UDP, Received, Request,
    XDP_SOCKET, is_gone, receive, send,
};
use crate::log::LogLimit;

/// The result of a request.
#[derive(Default)]
struct Done {
    value: u32,
    /// A port that the keeper holds from now on, and its name; the server gets a copy.
    port: Option<(String, OwnedFd)>,
    /// A socket for the server alone.
    socket: Option<OwnedFd>,
}

/// The interface whose addresses the server shares.
struct Host {
    netlink: Netlink,
    index: u32,
}

/// The keeper's state.
struct Keeper {
    socket: OwnedFd,
    host: Option<Host>,
    interface: String,
    xdp_sockets: Option<bool>,
    held: Held,
    limit: usize,
    log: LogLimit,
    /// `true` once the server has said that it is about to end.
    is_told_to_end: bool,
}

/// Serves a server's requests over `socket` until the server closes its end. If the server did not
/// say that it ends, holds its ports and descriptors for `options.hold`. Runs in a process of its
/// own. With `options.shares_host`, the process needs `CAP_NET_BIND_SERVICE` and `CAP_NET_ADMIN`;
/// with `options.xdp_sockets`, `CAP_NET_RAW` and `CAP_NET_ADMIN`. `stop`: a descriptor that is
/// readable when the keeper must end its hold. If the keeper cannot start, the server gets the
/// reason: there is no such interface, or the path cannot be used.
///
/// # Errors
/// Fails if the kernel fails.
pub fn run_keeper(
    socket: OwnedFd,
    options: &KeeperOptions,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    // A server that does not read its answers stops only itself.
    set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_TIMEOUT))?;
    let (listener, mut keeper) = match Keeper::new(socket.try_clone()?, options) {
        Ok(both) => both,
        Err(error) => return refuse_to_start(&socket, &error),
    };
    drop(socket);
    while keeper.serve_once(&listener)? {
        // Other copies of the server's end may still be open.
        if keeper.is_told_to_end {
            return Ok(());
        }
    }
    let Keeper { socket, held, .. } = keeper;
    drop(socket);
    if !options.hold.is_zero() {
        tracing::warn!(
            interface = options.interface,
            pid = std::process::id(),
            "the server was killed: its flows and ports are held for {} s; SIGTERM to this process \
             ends that",
            options.hold.as_secs()
        );
    }
    let next = listener.wait(Instant::now() + options.hold, stop);
    listener.hand_over(next, held);
    Ok(())
}

/// Tells the server why there is no keeper, as the answer to its first request.
fn refuse_to_start(socket: &OwnedFd, error: &io::Error) -> io::Result<()> {
    let mut buffer = [0; MESSAGE_BYTES];
    let bytes = receive(socket, &mut buffer)?.bytes;
    let number = Request::read_from_bytes(&buffer[..bytes]).map_or(0, |request| request.number);
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO).raw_os_error();
    let answer = Answer { number, errno, value: 0 };
    Ok(send(socket, answer.as_bytes(), &[], SendFlags::empty())?)
}

impl Host {
    fn open(interface: &str) -> io::Result<Host> {
        let mut netlink = Netlink::open().map_err(io::Error::other)?;
        let index = netlink.index(interface).map_err(io::Error::other)?;
        Ok(Host { netlink, index })
    }

    fn probe(&mut self, request: &Request) -> Result<(), Errno> {
        let ip = request.address().ok_or(Errno::BADMSG)?;
        let outcome = self.netlink.probe_neighbour(self.index, ip);
        outcome.map_err(|error| error.errno().unwrap_or(Errno::IO))
    }

    /// Returns `true` if the interface has the address.
    fn has(&mut self, local: SocketAddr) -> Result<bool, Errno> {
        let addresses = self.netlink.addresses();
        let addresses = addresses.map_err(|error| error.errno().unwrap_or(Errno::IO))?;
        let is_it = |one: &towpath_netlink::Address| {
            one.index == self.index && one.prefix.address() == local.ip()
        };
        Ok(addresses.iter().any(is_it))
    }
}

impl Keeper {
    fn new(socket: OwnedFd, options: &KeeperOptions) -> io::Result<(Listener, Keeper)> {
        let host = options.shares_host.then(|| Host::open(&options.interface)).transpose()?;
        let limit = held::limit();
        let held = Held::new(limit)?;
        let listener = Listener::bind(&options.path)?;
        let keeper = Keeper {
            socket,
            host,
            interface: options.interface.clone(),
            xdp_sockets: options.xdp_sockets,
            held,
            limit,
            log: LogLimit::default(),
            is_told_to_end: false,
        };
        Ok((listener, keeper))
    }

    /// Waits for a message, or for another server that wants to take over, and handles it. Returns
    /// `false` at the end of the server.
    fn serve_once(&mut self, listener: &Listener) -> io::Result<bool> {
        let mut heard = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&listener.socket, PollFlags::IN),
        ];
        match poll(&mut heard, None) {
            Err(Errno::INTR) => return Ok(true),
            other => other?,
        };
        let [from_server, from_next] = heard.map(|one| !one.revents().is_empty());
        if from_next {
            listener.answer(BUSY);
        }
        if !from_server {
            return Ok(true);
        }
        let mut buffer = [0; MESSAGE_BYTES];
        let received = match receive(&self.socket, &mut buffer) {
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::CONNRESET) => return Ok(false),
            Err(Errno::NOMEM | Errno::NOBUFS) => {
                std::thread::sleep(PAUSE);
                return Ok(true);
            }
            other => other?,
        };
        let bytes = &buffer[..received.bytes];
        match bytes.first() {
            None => return Ok(false),
            Some(0) => {
                self.held.close(received.descriptors);
                return Ok(self.answer(bytes));
            }
            Some(_) => self.notified(bytes, received),
        }
        Ok(true)
    }

    /// Handles a message to the store. As with systemd's store, nothing answers it.
    fn notified(&mut self, bytes: &[u8], received: Received) {
        let Received { descriptors, is_cut, .. } = received;
        let notification = notify::parse(bytes).filter(|_| !is_cut);
        match (notification, descriptors.len()) {
            (Some(Notification::Store(name)), 1..) => {
                for descriptor in descriptors {
                    if self.held.has_room() {
                        self.held.put(name.to_owned(), descriptor);
                    } else {
                        self.refuse(vec![descriptor], "no room for another descriptor");
                    }
                }
            }
            (Some(Notification::Remove(name)), 0) => self.held.remove(name),
            // The server waits for the close.
            (Some(Notification::Barrier), 1) => drop(descriptors),
            _ => self.refuse(descriptors, "the descriptor store has no such message"),
        }
    }

    fn refuse(&mut self, descriptors: Vec<OwnedFd>, what: &str) {
        self.held.close(descriptors);
        if self.log.allows(0) {
            tracing::error!(
                "the keeper refused a message of the server: {what}; it closed the descriptors of the \
                 message"
            );
        }
    }

    /// Carries a request out, and answers all but the release of a port. Returns `false` at the end
    /// of the server.
    fn answer(&mut self, bytes: &[u8]) -> bool {
        let request = Request::read_from_bytes(bytes).ok();
        if let Some(request) = &request
            && matches!(request.kind, RELEASE_TCP | RELEASE_UDP)
        {
            // No answer: a session may end with thousands of ports.
            let _ = self.act(request);
            return true;
        }
        let number = request.map_or(0, |request| request.number);
        let outcome = request.ok_or(Errno::BADMSG).and_then(|request| self.act(&request));
        let (errno, done) = match outcome {
            Ok(done) => (0, done),
            Err(errno) => (errno.raw_os_error(), Done::default()),
        };
        let Done { value, port, socket } = done;
        let mut sent = {
            let held =
                port.and_then(|(name, socket)| Some((name.clone(), self.held.put(name, socket)?)));
            let held_one = held.iter().map(|(_, socket)| *socket);
            let descriptors: Vec<_> = held_one.chain(socket.iter().map(AsFd::as_fd)).collect();
            let answer = Answer { number, errno, value };
            let sent = send(&self.socket, answer.as_bytes(), &descriptors, SendFlags::empty());
            (sent, held.map(|(name, _)| name))
        };
        // Without memory for the answer, or with too many descriptors on their way: without one.
        if let Err(errno) = sent.0
            && !is_gone(errno)
        {
            if let Some(name) = sent.1.take() {
                self.held.remove(&name);
            }
            let answer = Answer { number, errno: errno.raw_os_error(), value: 0 };
            sent.0 = send(&self.socket, answer.as_bytes(), &[], SendFlags::empty());
        }
        !sent.0.is_err_and(is_gone)
    }

    /// Carries a request out, if it is one that the server may make.
    fn act(&mut self, request: &Request) -> Result<Done, Errno> {
        match request.kind {
            HOLD_TCP => self.hold(PortProtocol::Tcp, request),
            HOLD_UDP => self.hold(PortProtocol::Udp, request),
            RELEASE_TCP => self.release(PortProtocol::Tcp, request),
            RELEASE_UDP => self.release(PortProtocol::Udp, request),
            PROBE => {
                self.host.as_mut().ok_or(Errno::OPNOTSUPP)?.probe(request).map(|()| Done::default())
            }
            LIMIT => {
                let value = u32::try_from(self.limit).unwrap_or(u32::MAX);
                Ok(Done { value, ..Done::default() })
            }
            XDP_SOCKET => {
                let busy_poll = self.xdp_sockets.ok_or(Errno::OPNOTSUPP)?;
                let made = unbound_socket(&self.interface, busy_poll);
                let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Ok(Done { socket: Some(made.map_err(failed)?), ..Done::default() })
            }
            END => {
                self.is_told_to_end = true;
                Ok(Done::default())
            }
            _ => Err(Errno::BADMSG),
        }
    }

    fn hold(&mut self, protocol: PortProtocol, request: &Request) -> Result<Done, Errno> {
        let host = self.host.as_mut().ok_or(Errno::OPNOTSUPP)?;
        let local = SocketAddr::new(request.address().ok_or(Errno::BADMSG)?, request.port);
        if !host.has(local)? {
            return Err(Errno::ADDRNOTAVAIL);
        }
        if !self.held.has_room() {
            return Err(Errno::MFILE);
        }
        let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (socket, port) = hold(protocol, local).map_err(failed)?;
        let name = port_name(protocol, SocketAddr::new(local.ip(), port));
        Ok(Done { value: u32::from(port), port: Some((name, socket)), socket: None })
    }

    fn release(&mut self, protocol: PortProtocol, request: &Request) -> Result<Done, Errno> {
        let ip = request.address().ok_or(Errno::BADMSG)?;
        self.held.remove(&port_name(protocol, SocketAddr::new(ip, request.port)));
        Ok(Done::default())
    }
}
