//! The keeper's side.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use towpath_netlink::Netlink;
use zerocopy::{FromBytes, IntoBytes};

use super::holder::{PortProtocol, hold};
use super::take_over::{BUSY, Listener};
use super::wire::{
    Answer, END, HOLD_DESCRIPTOR, HOLD_TCP, HOLD_UDP, PROBE, RELEASE_TCP, RELEASE_UDP, Request,
    send,
};
use super::{KeeperOptions, PAUSE};

/// The most descriptors that the keeper takes.
const MAX_DESCRIPTORS: usize = 16;

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
