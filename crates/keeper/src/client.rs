//! The server's side: requests to the keeper.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use towpath_device::Keeper;
use zerocopy::{FromBytes, IntoBytes};

use super::device_objects;
use super::notify;
use super::options::ANSWER_TIMEOUT;
use super::port_holder::PortProtocol;
use super::wire::{
    ALL_GIVEN, ALLOW_XDP, Answer, END, HOLD_TCP, HOLD_UDP, LIMIT, PROBE, RELEASE_TCP, RELEASE_UDP,
    Received, Request, XDP_SOCKET, is_gone, receive, send,
};

/// The descriptors that the keeper holds for this server, and the most that it can hold.
#[derive(Debug)]
pub(super) struct Room {
    used: AtomicUsize,
    limit: usize,
}

impl Room {
    /// Takes room for a descriptor. Returns `false` if there is none.
    pub(super) fn take(&self) -> bool {
        let more = |used: usize| (used < self.limit).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives room back.
    pub(super) fn give_back(&self, count: usize) {
        self.used.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of descriptors that the keeper holds for this server.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// A server's access to its keeper.
#[derive(Clone, Debug)]
pub struct KeeperAccess {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) room: Arc<Room>,
    requests: Arc<Mutex<Requests>>,
    /// The number of this server, which is higher than those of the servers that left objects.
    number: u32,
    /// The sockets of this device that the keeper holds, and all objects of earlier devices: the
    /// number of objects by name.
    device: Arc<Mutex<HashMap<String, usize>>>,
}

impl KeeperAccess {
    /// Uses the connection that [`Supervised::launch`](super::Supervised::launch) gave this process.
    /// Asks the keeper how many descriptors it can hold.
    ///
    /// Also returns copies of the descriptors that the keeper holds, with their names: those of an
    /// earlier server.
    ///
    /// # Errors
    /// Fails if the keeper has ended or does not answer for 5 s.
    pub fn new(socket: OwnedFd) -> io::Result<(KeeperAccess, Vec<(String, OwnedFd)>)> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIMEOUT))?;
        }
        let left = receive_left(&socket)?;
        let socket = Arc::new(socket);
        let mut requests = Requests {
            socket: socket.clone(),
            number: 0,
            late: HashMap::new(),
            unsent: VecDeque::new(),
        };
        let limit = requests.ask(&Request::bare(LIMIT), None)?.0.value as usize;
        let room = Arc::new(Room { used: AtomicUsize::new(left.len()), limit });
        let mut device = HashMap::new();
        let mut number = 0;
        for (name, _) in &left {
            if let Some((_, server)) = device_objects::parse(name) {
                number = number.max(server.saturating_add(1));
                *device.entry(name.clone()).or_default() += 1;
            }
        }
        let (requests, device) = (Arc::new(Mutex::new(requests)), Arc::new(Mutex::new(device)));
        Ok((KeeperAccess { socket, room, requests, number, device }, left))
    }

    /// Tells the keeper that this server serves: from now on the keeper starts another one if this
    /// one is killed. A keeper that has ended is no error.
    pub fn ready(&self) {
        let _ = send(&self.socket, notify::READY.as_bytes(), &[], SendFlags::empty());
    }

    /// Tells the keeper why this server fails, for `towpath ls`. A keeper that has ended is no error.
    pub fn tell_failure(&self, reason: &str) {
        let text = notify::failure(reason);
        let _ = send(&self.socket, text.as_bytes(), &[], SendFlags::empty());
    }

    /// Lets this server and later ones have AF_XDP sockets made. `busy_poll`: they poll the hardware.
    ///
    /// # Errors
    /// Fails if the keeper has ended, or if a server has served with it before.
    pub fn allow_xdp_sockets(&self, busy_poll: bool) -> io::Result<()> {
        let request = Request { port: busy_poll.into(), ..Request::bare(ALLOW_XDP) };
        self.ask(&request, None)?;
        Ok(())
    }

    /// Returns the number of this server, which the names of its device's objects have.
    #[must_use]
    pub fn server_number(&self) -> u32 {
        self.number
    }

    /// Has the keeper close the objects of earlier servers' devices, once the device of this one
    /// needs them no more. Returns when they are closed.
    ///
    /// # Errors
    /// If the keeper does not answer. A keeper that has ended is no error.
    pub fn release_earlier_device(&self) -> io::Result<()> {
        self.release_device(|_, server| server != self.number)
    }

    /// Has the keeper close the objects of devices that `which` selects by name and server.
    fn release_device(&self, which: impl Fn(&str, u32) -> bool) -> io::Result<()> {
        let mut device = self.device();
        let is_meant = |name: &String, _: &mut usize| {
            device_objects::parse(name).is_some_and(|(name, server)| which(name, server))
        };
        let mut held: Vec<_> = device.extract_if(is_meant).collect();
        drop(device);
        if held.is_empty() {
            return Ok(());
        }
        while let Some((name, count)) = held.pop() {
            let text = notify::remove(&name);
            let sent = send(&self.socket, text.as_bytes(), &[], SendFlags::empty());
            if let Err(errno) = sent
                && !is_gone(errno)
            {
                // The keeper still has these.
                held.push((name, count));
                self.device().extend(held);
                return Err(refused(errno));
            }
            self.room.give_back(count);
        }
        self.barrier()
    }

    /// Tells the keeper that this server ends in order. Without this, the keeper starts
    /// another server.
    ///
    /// # Errors
    /// Fails if the keeper has ended.
    pub fn end(&self) -> io::Result<()> {
        self.ask(&Request::bare(END), None)?;
        Ok(())
    }

    /// Binds a port; see `port_holder::hold`. The keeper holds it, too.
    ///
    /// # Errors
    /// The kernel's error, `EAGAIN` if the keeper does not answer for 5 s, `EPIPE` or `ECONNRESET`
    /// if it has ended, or `EMFILE` if this server has no descriptor for the socket or the keeper
    /// has no room.
    pub fn hold(&self, protocol: PortProtocol, local: SocketAddr) -> Result<(OwnedFd, u16), Errno> {
        if !self.room.take() {
            return Err(Errno::MFILE);
        }
        let kind = match protocol {
            PortProtocol::Tcp => HOLD_TCP,
            PortProtocol::Udp => HOLD_UDP,
        };
        let request = Request::new(kind, local.ip(), local.port());
        let asked = self.ask(&request, Some((protocol, local.ip())));
        let (answer, socket) = asked.inspect_err(|_| self.room.give_back(1))?;
        let port = answer.value as u16;
        let Some(socket) = socket else {
            // The kernel had no descriptor for it.
            self.release(protocol, SocketAddr::new(local.ip(), port));
            return Err(Errno::MFILE);
        };
        Ok((socket, port))
    }

    /// Has the keeper release a port, before any later request. Does not wait for the keeper.
    pub fn release(&self, protocol: PortProtocol, local: SocketAddr) {
        let mut requests = self.requests();
        requests.unsent.push_back(release(protocol, local));
        // Releases that find no room go before the next request.
        let (sent, _) = requests.flush(SendFlags::DONTWAIT);
        self.room.give_back(sent);
    }

    /// Sends a request after all releases of ports, and waits for the answer.
    fn ask(
        &self,
        request: &Request,
        port: Option<(PortProtocol, IpAddr)>,
    ) -> Result<(Answer, Option<OwnedFd>), Errno> {
        let mut requests = self.requests();
        let (sent, outcome) = requests.flush(SendFlags::empty());
        self.room.give_back(sent);
        outcome.and_then(|()| requests.ask(request, port))
    }

    /// Has the kernel confirm a neighbour of the interface.
    ///
    /// # Errors
    /// As [`KeeperAccess::hold`].
    pub fn probe(&self, address: IpAddr) -> Result<(), Errno> {
        self.ask(&Request::new(PROBE, address, 0), None).map(|_| ())
    }

    /// Has the keeper hold a copy of a descriptor. A keeper that has ended is no error.
    pub(super) fn send_copy(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        if !self.room.take() {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "the server's keeper holds {} descriptors, the most that its limit allows; raise \
                     the limit (ulimit -n, LimitNOFILE=), or end some applications",
                    self.room.limit()
                ),
            ));
        }
        let text = notify::store(name);
        match send(&self.socket, text.as_bytes(), &[descriptor], SendFlags::empty()) {
            Err(errno) if !is_gone(errno) => {
                self.room.give_back(1);
                Err(refused(errno))
            }
            _ => Ok(()),
        }
    }

    /// Waits until the keeper has handled every message of this thread before, or has ended.
    ///
    /// # Errors
    /// Fails if the keeper does not answer for 5 s.
    pub(super) fn barrier(&self) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        let text = notify::BARRIER.as_bytes();
        match send(&self.socket, text, &[writer.as_fd()], SendFlags::empty()) {
            Err(errno) if is_gone(errno) => return Ok(()),
            Err(errno) => return Err(refused(errno)),
            Ok(()) => drop(writer),
        }
        let limit = Timespec { tv_sec: ANSWER_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        let mut heard = [PollFd::new(&reader, PollFlags::IN)];
        match poll(&mut heard, Some(&limit))? {
            0 => Err(refused(Errno::AGAIN)),
            _ => Ok(()),
        }
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives copies of the descriptors that a keeper holds.
fn receive_left(socket: &OwnedFd) -> io::Result<Vec<(String, OwnedFd)>> {
    let mut left = Vec::new();
    let mut buffer = [0; notify::MESSAGE_BYTES];
    loop {
        let Received { bytes, descriptors, .. } = match receive(socket, &mut buffer) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        match &buffer[..bytes] {
            [] => return Err(Errno::PIPE.into()),
            ALL_GIVEN => return Ok(left),
            text => {
                if let Some(notify::Notification::Store(name)) = notify::parse(text) {
                    left.extend(descriptors.into_iter().map(|one| (name.to_owned(), one)));
                }
            }
        }
    }
}

fn release(protocol: PortProtocol, local: SocketAddr) -> Request {
    let kind = match protocol {
        PortProtocol::Tcp => RELEASE_TCP,
        PortProtocol::Udp => RELEASE_UDP,
    };
    Request::new(kind, local.ip(), local.port())
}

/// Returns the error of a message that the keeper did not take.
fn refused(errno: Errno) -> io::Error {
    match errno {
        Errno::AGAIN => {
            let text = "the server's keeper has not answered for 5 s; restart the server";
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        errno => errno.into(),
    }
}

impl Keeper for KeeperAccess {
    fn xdp_socket(&self) -> io::Result<OwnedFd> {
        let made = self.ask(&Request::bare(XDP_SOCKET), None);
        let (_, socket) = made.map_err(|errno| match errno {
            errno if is_gone(errno) => {
                let text = "the keeper, which makes AF_XDP sockets, has ended; restart the server";
                io::Error::other(text)
            }
            errno => refused(errno),
        })?;
        socket.ok_or_else(|| Errno::MFILE.into())
    }

    fn hold_socket(&self, name: &str, socket: BorrowedFd<'_>) -> io::Result<()> {
        let stored = device_objects::stored_name(name, self.number);
        match self.send_copy(&stored, socket) {
            Ok(()) => *self.device().entry(stored).or_default() += 1,
            // The device works without. Other objects may have taken the room during a reset.
            Err(error) => tracing::warn!(
                "the keeper holds no copy of {name}, which therefore ends with this server: {error}"
            ),
        }
        Ok(())
    }

    fn release_sockets(&self, names: &[String]) -> io::Result<()> {
        self.release_device(|name, _| names.iter().any(|one| one == name))
    }
}

/// Requests, one at a time.
#[derive(Debug)]
struct Requests {
    socket: Arc<OwnedFd>,
    /// The number of the last request.
    number: u32,
    /// Requests for ports that the keeper did not answer in time. It may have held the ports.
    late: HashMap<u32, (PortProtocol, IpAddr)>,
    /// Releases of ports that are not sent yet.
    unsent: VecDeque<Request>,
}

impl Requests {
    /// Sends the releases of ports. Returns how many were sent, and the error that stopped it.
    fn flush(&mut self, flags: SendFlags) -> (usize, Result<(), Errno>) {
        let mut sent = 0;
        while let Some(request) = self.unsent.front() {
            if let Err(errno) = send(&self.socket, request.as_bytes(), &[], flags) {
                return (sent, Err(errno));
            }
            self.unsent.pop_front();
            sent += 1;
        }
        (sent, Ok(()))
    }

    /// Sends a request and waits for the answer. `port`: for a request that holds a port, its
    /// protocol and its address.
    fn ask(
        &mut self,
        request: &Request,
        port: Option<(PortProtocol, IpAddr)>,
    ) -> Result<(Answer, Option<OwnedFd>), Errno> {
        self.number = self.number.wrapping_add(1);
        let request = Request { number: self.number, ..*request };
        send(&self.socket, request.as_bytes(), &[], SendFlags::empty())?;
        loop {
            let received = self.receive();
            if let (Err(Errno::AGAIN), Some(port)) = (&received, port) {
                self.late.insert(request.number, port);
            }
            let (answer, socket) = received?;
            if answer.number == request.number {
                return match answer.errno {
                    0 => Ok((answer, socket)),
                    errno => Err(Errno::from_raw_os_error(errno)),
                };
            }
            // A late answer, perhaps with a port that this server does not need any more.
            if let Some((protocol, ip)) = self.late.remove(&answer.number)
                && answer.errno == 0
            {
                let late = release(protocol, SocketAddr::new(ip, answer.value as u16));
                send(&self.socket, late.as_bytes(), &[], SendFlags::empty())?;
            }
        }
    }

    fn receive(&self) -> Result<(Answer, Option<OwnedFd>), Errno> {
        let mut buffer = [0; size_of::<Answer>()];
        let Received { bytes, mut descriptors, .. } = loop {
            match receive(&self.socket, &mut buffer) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        if bytes == 0 {
            return Err(Errno::PIPE);
        }
        let answer = Answer::read_from_bytes(&buffer[..bytes]).map_err(|_| Errno::BADMSG)?;
        Ok((answer, descriptors.pop()))
    }
}
