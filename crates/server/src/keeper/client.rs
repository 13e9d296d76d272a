//! The server's side.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use zerocopy::{FromBytes, IntoBytes};

use super::ANSWER_TIMEOUT;
use super::holder::PortProtocol;
use super::wire::{
    Answer, END, HOLD_DESCRIPTOR, HOLD_TCP, HOLD_UDP, PROBE, RELEASE_TCP, RELEASE_UDP, Request,
    send,
};

/// The server's end.
#[derive(Debug)]
pub(crate) struct KeeperClient {
    pub(super) socket: OwnedFd,
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
    pub(crate) fn new(socket: OwnedFd) -> io::Result<KeeperClient> {
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(KeeperClient { socket, number: 0, late: HashMap::new() })
    }

    /// Binds a port; see [`hold`]. The keeper holds it, too.
    ///
    /// # Errors
    /// The kernel's error, `EAGAIN` if the keeper does not answer for 5 s, `EPIPE` or `ECONNRESET` if it
    /// has ended, or `EMFILE` without a descriptor for the socket.
    pub(crate) fn hold(
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
    pub(crate) fn release(
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
    pub(crate) fn probe(&mut self, address: IpAddr) -> Result<(), Errno> {
        self.ask(&Request::new(PROBE, address, 0), &[]).map(|_| ())
    }

    /// Has the keeper hold a copy of a descriptor.
    ///
    /// # Errors
    /// As [`KeeperClient::hold`].
    pub(crate) fn hold_descriptor(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        self.ask(&Request::bare(HOLD_DESCRIPTOR), &[descriptor]).map(|_| ())
    }

    /// Tells the keeper that the server ends, and that it must hold nothing.
    ///
    /// # Errors
    /// As [`KeeperClient::hold`].
    pub(crate) fn end(&mut self) -> Result<(), Errno> {
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
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
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
