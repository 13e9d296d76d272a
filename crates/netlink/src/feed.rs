//! The state of one object, as the kernel multicasts it: a request at the beginning, and then the messages of a group.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType};

use crate::error::Error;
use crate::message::{Message, Messages};
use crate::socket::{receive, send};

/// Datagrams that one call reads at most.
const DATAGRAMS: usize = 64;

/// A socket that receives the messages of multicast groups, and asks again if the kernel drops some.
#[derive(Debug)]
pub(crate) struct Feed {
    socket: OwnedFd,
    /// The request for the present state.
    request: Vec<u8>,
    received: Vec<u8>,
    /// `true` if the kernel dropped messages since the present state was last requested.
    overrun: bool,
}

impl Feed {
    /// Opens a socket of a protocol in the groups of these bits. `receive_bytes`: the longest datagram.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub(crate) fn open(
        protocol: Option<Protocol>,
        groups: u32,
        receive_bytes: usize,
    ) -> Result<Feed, Error> {
        let failed = |operation| move |errno| Error::Socket { operation, errno };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)
                .map_err(failed("socket"))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups)).map_err(failed("bind"))?;
        let received = vec![0; receive_bytes];
        Ok(Feed { socket, request: Vec::new(), received, overrun: false })
    }

    /// Requests the present state, now and whenever the kernel has dropped messages.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub(crate) fn begin(&mut self, request: Vec<u8>) -> Result<(), Error> {
        self.request = request;
        self.ask()
    }

    fn ask(&self) -> Result<(), Error> {
        send(self.socket.as_fd(), &self.request)
    }

    /// Returns the latest state that `read` finds in the messages since the last call.
    pub(crate) fn latest<State>(
        &mut self,
        read: impl Fn(&Message<'_>) -> Option<State>,
    ) -> Option<State> {
        let mut latest = None;
        for _ in 0..DATAGRAMS {
            match receive(self.socket.as_fd(), &mut self.received) {
                Ok(Some(len)) => {
                    let datagram = self.received.get(..len).unwrap_or_default();
                    let messages = Messages::new(datagram).map_while(Result::ok);
                    latest = messages.filter_map(|message| read(&message)).last().or(latest);
                }
                Ok(None) => {}
                // The kernel dropped messages, and drops all further ones until those before are read, also
                // answers.
                Err(Errno::NOBUFS) => self.overrun = true,
                Err(_) if std::mem::take(&mut self.overrun) => {
                    let _ = self.ask();
                }
                Err(_) => break,
            }
        }
        latest
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
