//! The keeper: a process beside a server that shares the host's addresses.
//!
//! It has two tasks.
//!
//! **Privileged acts.** A server gives up its privileges before it serves. For each privileged act
//! later, it sends a request of a fixed size to the keeper, which has two capabilities: to bind ports below 1024
//! (`CAP_NET_BIND_SERVICE`), and to have the kernel confirm a neighbour (`CAP_NET_ADMIN`). The keeper
//! checks each request against the interface that it was started for.
//!
//! **A killed server.** The keeper has copies of the descriptors that keep applications' flows from
//! the kernel: the attachments of the programs, and the sockets that hold ports. If the server ends
//! without a word, the keeper holds them for a while. The kernel then answers no packet of these flows:
//! a reset would tell the peers at once that the connection is gone. The next server takes over, or the time
//! expires; then the keeper closes everything, and the kernel removes what was attached.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socketpair,
};
use towpath_netlink::Netlink;
use towpath_protocol::peer::Peer;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::holder::{PortProtocol, hold};

/// The longest time that a server waits for a keeper's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const HOLD_TCP: u32 = 1;
const HOLD_UDP: u32 = 2;
const RELEASE_TCP: u32 = 3;
const RELEASE_UDP: u32 = 4;
const PROBE: u32 = 5;
/// Hold the descriptor that comes with the request.
const HOLD_DESCRIPTOR: u32 = 6;
/// The server is about to end: hold nothing.
const END: u32 = 7;

/// The pause after an operation for which there is no memory or descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// The most descriptors that the keeper takes.
const MAX_DESCRIPTORS: usize = 16;

/// The answers of a keeper to a server that wants to take over.
const BUSY: u8 = 0;
const GIVEN_UP: u8 = 1;

/// A request to the keeper.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Request {
    /// A number that the answer repeats.
    number: u32,
    kind: u32,
    port: u16,
    /// 4 or 6.
    ip_version: u16,
    /// An IPv4 address in the first four bytes.
    ip: [u8; 16],
}

/// The keeper's answer; a held port comes with its socket.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Answer {
    /// The request's.
    number: u32,
    /// An error number, or 0.
    errno: i32,
    port: u32,
}

impl Request {
    fn new(kind: u32, ip: IpAddr, port: u16) -> Request {
        let mut octets = [0; 16];
        let ip_version = match ip {
            IpAddr::V4(ip) => {
                octets[..4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                octets = ip.octets();
                6
            }
        };
        Request { number: 0, kind, port, ip_version, ip: octets }
    }

    /// Returns a request without an address.
    fn bare(kind: u32) -> Request {
        Request::new(kind, IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)
    }

    fn address(&self) -> Option<IpAddr> {
        match self.ip_version {
            4 => self.ip.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
            6 => Some(Ipv6Addr::from(self.ip).into()),
            _ => None,
        }
    }
}

/// Makes the connection between a server and its keeper, and returns the two ends: the server's for
/// [`HostAccess`](super::HostAccess), and the keeper's for [`run_keeper`].
///
/// # Errors
/// Fails with the error of `socketpair`.
pub fn keeper_connection() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The options of a keeper.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The interface whose addresses the server shares.
    pub interface: String,
    /// The time for which flows stay closed to the kernel after a server that was killed.
    pub hold: Duration,
    /// The path of the socket at which the next server takes over.
    pub path: PathBuf,
}

/// Returns the path at which the keeper of a server listens, by the path of the server's socket.
#[must_use]
pub fn keeper_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".keeper");
    path.into()
}

/// The keeper's state.
struct Keeper {
    netlink: Netlink,
    index: u32,
    ports: HashMap<(PortProtocol, SocketAddr), OwnedFd>,
    descriptors: Vec<OwnedFd>,
    /// `true` once the server has said that it is about to end.
    is_told_to_end: bool,
}

/// Serves a server's requests over `socket` until the server closes its end. If the server did not say
/// that it ends, holds its ports and descriptors for `options.hold`. Runs in a process of its own, which
/// needs `CAP_NET_BIND_SERVICE` and `CAP_NET_ADMIN`. `stop`: a descriptor that is readable when the
/// keeper must end its hold.
///
/// # Errors
/// Fails if there is no such interface, the path cannot be used, or the kernel fails.
pub fn run_keeper(
    socket: OwnedFd,
    options: &KeeperOptions,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut netlink = Netlink::open().map_err(io::Error::other)?;
    let index = netlink.index(&options.interface).map_err(io::Error::other)?;
    let listener = Listener::bind(&options.path)?;
    let mut keeper = Keeper {
        netlink,
        index,
        ports: HashMap::new(),
        descriptors: Vec::new(),
        is_told_to_end: false,
    };
    while keeper.serve_once(&socket, &listener)? {
        // Other copies of the server's end may still be open.
        if keeper.is_told_to_end {
            return Ok(());
        }
    }
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
    listener.wait(Instant::now() + options.hold, stop, || drop(keeper));
    Ok(())
}

impl Keeper {
    /// Waits for a request, or for another server that wants to take over, and handles it. Returns
    /// `false` at the end of the server.
    fn serve_once(&mut self, socket: &OwnedFd, listener: &Listener) -> io::Result<bool> {
        let mut heard =
            [PollFd::new(socket, PollFlags::IN), PollFd::new(&listener.socket, PollFlags::IN)];
        match poll(&mut heard, None) {
            Err(Errno::INTR) => return Ok(true),
            other => other?,
        };
        if !heard[1].revents().is_empty() {
            listener.answer(BUSY);
        }
        if heard[0].revents().is_empty() {
            return Ok(true);
        }
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; size_of::<Request>() + 1];
        let mut parts = [io::IoSliceMut::new(&mut buffer)];
        let len = match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::CONNRESET) => return Ok(false),
            Err(Errno::NOMEM | Errno::NOBUFS) => {
                std::thread::sleep(PAUSE);
                return Ok(true);
            }
            other => other?.bytes,
        };
        if len == 0 {
            return Ok(false);
        }
        let mut descriptor = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message {
                descriptor = rights.next();
            }
        }
        let request = Request::read_from_bytes(&buffer[..len]).ok();
        let number = request.map_or(0, |request| request.number);
        let outcome = match &request {
            Some(request) => self.act(request, descriptor),
            None => Err(Errno::BADMSG),
        };
        let held = outcome.as_ref().ok().and_then(|held| held.as_ref().map(|(_, port)| *port));
        let sent = match send_answer(socket, number, outcome) {
            // Without memory for the answer, or with too many descriptors on their way: without one.
            Err(errno) if !is_gone(errno) => {
                if let (Some(request), Some(port)) = (request, held) {
                    self.release_held(&request, port);
                }
                send_answer(socket, number, Err(errno))
            }
            sent => sent,
        };
        Ok(!sent.is_err_and(is_gone))
    }

    /// Carries a request out, if it is for the interface. Returns the port that it holds.
    fn act(
        &mut self,
        request: &Request,
        descriptor: Option<OwnedFd>,
    ) -> Result<Option<(BorrowedFd<'_>, u16)>, Errno> {
        let ip = request.address().ok_or(Errno::BADMSG)?;
        let local = SocketAddr::new(ip, request.port);
        match request.kind {
            HOLD_TCP => self.hold(PortProtocol::Tcp, local).map(Some),
            HOLD_UDP => self.hold(PortProtocol::Udp, local).map(Some),
            RELEASE_TCP => Ok(self.release(PortProtocol::Tcp, local)),
            RELEASE_UDP => Ok(self.release(PortProtocol::Udp, local)),
            PROBE => {
                let outcome = self.netlink.probe_neighbour(self.index, ip);
                outcome.map(|()| None).map_err(|error| error.errno().unwrap_or(Errno::IO))
            }
            HOLD_DESCRIPTOR if self.descriptors.len() < MAX_DESCRIPTORS => {
                self.descriptors.push(descriptor.ok_or(Errno::BADMSG)?);
                Ok(None)
            }
            END => {
                self.is_told_to_end = true;
                Ok(None)
            }
            _ => Err(Errno::BADMSG),
        }
    }

    fn hold(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> Result<(BorrowedFd<'_>, u16), Errno> {
        let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let addresses = self.netlink.addresses();
        let addresses = addresses.map_err(|error| error.errno().unwrap_or(Errno::IO))?;
        let is_ours = |one: &towpath_netlink::Address| {
            one.index == self.index && one.prefix.address() == local.ip()
        };
        if !addresses.iter().any(is_ours) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let (socket, port) = hold(protocol, local).map_err(failed)?;
        let key = (protocol, SocketAddr::new(local.ip(), port));
        let held = self.ports.entry(key).insert_entry(socket).into_mut();
        Ok((OwnedFd::as_fd(held), port))
    }

    /// Releases the port that a request held, since the server does not get it.
    fn release_held(&mut self, request: &Request, port: u16) {
        let protocol = match request.kind {
            HOLD_TCP => PortProtocol::Tcp,
            _ => PortProtocol::Udp,
        };
        if let Some(ip) = request.address() {
            self.ports.remove(&(protocol, SocketAddr::new(ip, port)));
        }
    }

    fn release<T>(&mut self, protocol: PortProtocol, local: SocketAddr) -> Option<T> {
        self.ports.remove(&(protocol, local));
        None
    }
}

/// Returns `true` for the error of a server that has ended.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}

fn send_answer(
    socket: &OwnedFd,
    number: u32,
    outcome: Result<Option<(BorrowedFd<'_>, u16)>, Errno>,
) -> Result<(), Errno> {
    let (errno, held) = match outcome {
        Ok(held) => (0, held),
        Err(errno) => (errno.raw_os_error(), None),
    };
    let port = held.as_ref().map_or(0, |(_, port)| u32::from(*port));
    let answer = Answer { number, errno, port };
    let descriptors: Vec<_> = held.iter().map(|(socket, _)| *socket).collect();
    send(socket, answer.as_bytes(), &descriptors)
}

/// Sends a packet with at most one descriptor.
fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let parts = [io::IoSlice::new(bytes)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL).map(|_| ())
}

/// The socket at which the next server takes over.
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Binds the socket, in place of one that a killed keeper left behind.
    fn bind(path: &Path) -> io::Result<Listener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let listener = Listener { socket, path: path.to_owned() };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, mode)?;
        rustix::net::listen(&listener.socket, 8)?;
        Ok(listener)
    }

    /// Accepts a server that wants to take over, if one does. Refuses users other than root and
    /// its own.
    fn accept(&self) -> Option<OwnedFd> {
        let server = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(server) => server,
            Err(_) => {
                // The connection stays, for example while there is no descriptor for it.
                std::thread::sleep(PAUSE);
                return None;
            }
        };
        let uid = Peer::of(&server).ok()?.uid;
        (uid == 0 || uid == rustix::process::geteuid().as_raw()).then_some(server)
    }

    fn answer(&self, word: u8) {
        if let Some(server) = self.accept() {
            let _ = rustix::net::send(&server, &[word], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Waits until another server takes over, the time expires or the process must stop. Then calls
    /// `give_up`, and tells the other server.
    fn wait(self, until: Instant, stop: BorrowedFd<'_>, give_up: impl FnOnce()) {
        let mut server = None;
        while server.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut heard = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            match poll(&mut heard, Some(&timeout)) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => break,
                Ok(_) if !heard[1].revents().is_empty() => break,
                Ok(_) => server = self.accept(),
            }
        }
        give_up();
        // The next server's keeper may bind the path from the answer on.
        drop(self);
        if let Some(server) = server {
            let _ = rustix::net::send(&server, &[GIVEN_UP], SendFlags::NOSIGNAL);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The outcome of [`take_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// No keeper was there, or it held nothing any more.
    Nothing,
    /// The keeper of a server that was killed has closed what it held.
    Done,
    /// The other server lives.
    Busy,
}

/// Takes over from a killed server with this socket: its keeper closes the flows and ports that it
/// still holds. `user`: the user as which this server, and so the other one, runs.
///
/// # Errors
/// Fails with the error of a system call, such as `EACCES` for another user's server.
pub fn take_over(socket: &Path, user: Option<u32>) -> io::Result<TakeOver> {
    let flags = SocketFlags::CLOEXEC;
    let keeper = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&keeper, direction, Some(ANSWER_TIMEOUT))?;
    }
    match rustix::net::connect(&keeper, &SocketAddrUnix::new(keeper_path(socket))?) {
        Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(TakeOver::Nothing),
        other => other?,
    }
    // Where others may write the directory, the socket may be anyone's.
    let uid = Peer::of(&keeper)?.uid;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() && Some(uid) != user {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("it is user {uid}'s")));
    }
    let mut word = [0];
    match rustix::net::recv(&keeper, &mut word, RecvFlags::empty()) {
        Ok((_, 1)) if word[0] == GIVEN_UP => Ok(TakeOver::Done),
        Ok((_, 1)) => Ok(TakeOver::Busy),
        Ok(_) | Err(Errno::CONNRESET) => Ok(TakeOver::Nothing),
        Err(errno) => Err(errno.into()),
    }
}

/// The server's end.
#[derive(Debug)]
pub(super) struct KeeperClient {
    socket: OwnedFd,
    /// The number of the last request.
    number: u32,
    /// Requests for ports that the keeper did not answer in time. It may have held the ports.
    late: HashMap<u32, (PortProtocol, IpAddr)>,
}

impl KeeperClient {
    /// Uses a connection from [`keeper_connection`].
    ///
    /// # Errors
    /// Fails with the error of `setsockopt`.
    pub(super) fn new(socket: OwnedFd) -> io::Result<KeeperClient> {
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(KeeperClient { socket, number: 0, late: HashMap::new() })
    }

    /// Binds a port; see [`hold`]. The keeper holds it, too.
    ///
    /// # Errors
    /// The kernel's error, `EAGAIN` if the keeper does not answer for 5 s, `EPIPE` or `ECONNRESET` if it
    /// has ended, or `EMFILE` without a descriptor for the socket.
    pub(super) fn hold(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> Result<(OwnedFd, u16), Errno> {
        let kind = match protocol {
            PortProtocol::Tcp => HOLD_TCP,
            PortProtocol::Udp => HOLD_UDP,
        };
        let asked = self.ask(&Request::new(kind, local.ip(), local.port()), &[]);
        if let Err(Errno::AGAIN) = asked {
            self.late.insert(self.number, (protocol, local.ip()));
        }
        let (answer, socket) = asked?;
        let port = answer.port as u16;
        let Some(socket) = socket else {
            // The kernel had no descriptor for it.
            let _ = self.release(protocol, SocketAddr::new(local.ip(), port));
            return Err(Errno::MFILE);
        };
        Ok((socket, port))
    }

    /// Has the keeper release a port.
    ///
    /// # Errors
    /// As [`KeeperClient::hold`].
    pub(super) fn release(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> Result<(), Errno> {
        let kind = match protocol {
            PortProtocol::Tcp => RELEASE_TCP,
            PortProtocol::Udp => RELEASE_UDP,
        };
        self.ask(&Request::new(kind, local.ip(), local.port()), &[]).map(|_| ())
    }

    /// Has the kernel confirm a neighbour of the interface.
    ///
    /// # Errors
    /// As [`KeeperClient::hold`].
    pub(super) fn probe(&mut self, address: IpAddr) -> Result<(), Errno> {
        self.ask(&Request::new(PROBE, address, 0), &[]).map(|_| ())
    }

    /// Has the keeper hold a copy of a descriptor.
    ///
    /// # Errors
    /// As [`KeeperClient::hold`].
    pub(super) fn hold_descriptor(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        self.ask(&Request::bare(HOLD_DESCRIPTOR), &[descriptor]).map(|_| ())
    }

    /// Tells the keeper that the server ends, and that it must hold nothing.
    ///
    /// # Errors
    /// As [`KeeperClient::hold`].
    pub(super) fn end(&mut self) -> Result<(), Errno> {
        self.ask(&Request::bare(END), &[]).map(|_| ())
    }

    fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Option<OwnedFd>), Errno> {
        self.number = self.number.wrapping_add(1);
        let request = Request { number: self.number, ..*request };
        send(&self.socket, request.as_bytes(), descriptors)?;
        loop {
            let (answer, socket) = self.receive()?;
            if answer.number == request.number {
                return match answer.errno {
                    0 => Ok((answer, socket)),
                    errno => Err(Errno::from_raw_os_error(errno)),
                };
            }
            // A late answer. The keeper answers in order, so the release of a port that it held then is
            // one more late answer, for the next request.
            if let Some((protocol, ip)) = self.late.remove(&answer.number)
                && answer.errno == 0
            {
                let kind = match protocol {
                    PortProtocol::Tcp => RELEASE_TCP,
                    PortProtocol::Udp => RELEASE_UDP,
                };
                send(&self.socket, Request::new(kind, ip, answer.port as u16).as_bytes(), &[])?;
            }
        }
    }

    /// Returns a descriptor that hangs up when the keeper ends.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive(&self) -> Result<(Answer, Option<OwnedFd>), Errno> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; size_of::<Answer>()];
        let len = loop {
            let mut parts = [io::IoSliceMut::new(&mut buffer)];
            match recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Ok(received) if received.bytes == 0 => return Err(Errno::PIPE),
                other => break other?.bytes,
            }
        };
        let mut held = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message {
                held = rights.next();
            }
        }
        let answer = Answer::read_from_bytes(&buffer[..len]).map_err(|_| Errno::BADMSG)?;
        Ok((answer, held))
    }
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use super::*;

    /// A keeper for the loopback interface in a thread, with the path of its server's socket.
    struct Started {
        client: Option<KeeperClient>,
        thread: Option<JoinHandle<io::Result<()>>>,
        directory: PathBuf,
        stop: OwnedFd,
    }

    impl Started {
        fn start(name: &str, hold: Duration) -> Started {
            let directory =
                std::env::temp_dir().join(format!("towpath-keeper-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let (ours, theirs) = keeper_connection().unwrap();
            let (stopped, stop) = std::io::pipe().unwrap();
            let path = keeper_path(&directory.join("s"));
            let options = KeeperOptions { interface: "lo".into(), hold, path };
            let thread = std::thread::spawn(move || run_keeper(theirs, &options, stopped.as_fd()));
            let client = Some(KeeperClient::new(ours).unwrap());
            Started { client, thread: Some(thread), directory, stop: stop.into() }
        }

        fn client(&mut self) -> &mut KeeperClient {
            self.client.as_mut().unwrap()
        }

        fn take_over(&self) -> TakeOver {
            take_over(&self.directory.join("s"), None).unwrap()
        }

        /// Waits for the keeper's end.
        fn join(&mut self) {
            self.thread.take().unwrap().join().unwrap().unwrap();
            assert_eq!(self.take_over(), TakeOver::Nothing);
        }
    }

    impl Drop for Started {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    fn local(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn is_free(address: SocketAddr) -> bool {
        std::net::TcpListener::bind(address).is_ok()
    }

    #[test]
    fn ports_of_the_interface_are_held_until_both_release_them() {
        let mut kept = Started::start("ports", LONG);
        let client = kept.client();
        for protocol in [PortProtocol::Tcp, PortProtocol::Udp] {
            let (held, port) = client.hold(protocol, local("127.0.0.1:0")).unwrap();
            let same = SocketAddr::new(local("127.0.0.1:0").ip(), port);
            drop(held);
            assert_eq!(client.hold(protocol, same).unwrap_err(), Errno::ADDRINUSE);
            client.release(protocol, same).unwrap();
            assert_eq!(client.hold(protocol, same).unwrap().1, port);
            // An address of another interface, or of none.
            let other = client.hold(protocol, local("192.0.2.1:0")).unwrap_err();
            assert_eq!(other, Errno::ADDRNOTAVAIL);
        }
        client.end().unwrap();
        kept.client = None;
        kept.join();
    }

    #[test]
    fn impossible_requests_are_refused_and_harm_nothing() {
        let mut kept = Started::start("requests", LONG);
        let client = kept.client();
        let socket = &client.socket;
        let valid = Request::new(HOLD_TCP, local("127.0.0.1:0").ip(), 0);
        let wrong = [
            Request { kind: 99, ..valid }.as_bytes().to_vec(),
            Request { ip_version: 5, ..valid }.as_bytes().to_vec(),
            Request::bare(HOLD_DESCRIPTOR).as_bytes().to_vec(),
            valid.as_bytes()[..20].to_vec(),
            [valid.as_bytes(), &[0; 40]].concat(),
        ];
        for request in wrong {
            rustix::net::send(socket, &request, SendFlags::NOSIGNAL).unwrap();
            let mut buffer = [0; size_of::<Answer>()];
            rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()).unwrap();
            let answer = Answer::read_from_bytes(&buffer).unwrap();
            assert_eq!(answer.errno, Errno::BADMSG.raw_os_error());
        }
        client.hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
        client.end().unwrap();
        kept.client = None;
        kept.join();
    }

    #[test]
    fn a_killed_servers_ports_are_held_until_the_next_one_takes_over() {
        let mut kept = Started::start("killed", LONG);
        let (socket, port) = kept.client().hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
        let held = SocketAddr::new(local("127.0.0.1:0").ip(), port);
        let (copied, copy) = std::io::pipe().unwrap();
        kept.client().hold_descriptor(copy.as_fd()).unwrap();
        drop(copy);
        assert_eq!(kept.take_over(), TakeOver::Busy);
        // As if the server were killed.
        drop(socket);
        kept.client = None;
        while kept.take_over() != TakeOver::Done {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_free(held));
        assert_eq!(io::Read::read(&mut &copied, &mut [0; 1]).unwrap(), 0, "the copy is closed");
        kept.join();
    }

    #[test]
    fn the_time_expires_or_the_process_is_stopped() {
        for (name, hold) in [("expires", Duration::from_millis(50)), ("stopped", LONG)] {
            let mut kept = Started::start(name, hold);
            let (socket, port) =
                kept.client().hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
            let held = SocketAddr::new(local("127.0.0.1:0").ip(), port);
            drop(socket);
            kept.client = None;
            if hold == LONG {
                assert!(!is_free(held));
                rustix::io::write(&kept.stop, &[1]).unwrap();
            }
            kept.join();
            assert!(is_free(held));
        }
    }

    #[test]
    fn a_keeper_that_has_ended_is_an_error() {
        let (ours, theirs) = keeper_connection().unwrap();
        let mut client = KeeperClient::new(ours).unwrap();
        drop(theirs);
        for _ in 0..2 {
            let ended = client.probe(local("127.0.0.1:0").ip()).unwrap_err();
            assert!(matches!(ended, Errno::PIPE | Errno::CONNRESET), "{ended}");
        }
    }
}
