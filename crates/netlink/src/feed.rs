//! Messages that the kernel multicasts: all messages of some groups, or the state of one object, after a request for
//! the state.
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

    /// Calls `take` with each datagram since the last call; with `None` where the kernel dropped messages or cut a
    /// datagram to the buffer. Returns `false` after [`DATAGRAMS`] attempts, when more datagrams may wait.
    pub(crate) fn each(&mut self, mut take: impl FnMut(Option<&[u8]>)) -> bool {
        for _ in 0..DATAGRAMS {
            match receive(self.socket.as_fd(), &mut self.received) {
                Ok(Some(len)) => take(self.received.get(..len)),
                Ok(None) => {}
                Err(Errno::NOBUFS) => take(None),
                Err(_) => return true,
            }
        }
        false
    }

    /// Returns the latest state that `read` finds in the messages since the last call.
    pub(crate) fn latest<State>(
        &mut self,
        read: impl Fn(&Message<'_>) -> Option<State>,
    ) -> Option<State> {
        let mut latest = None;
        // The second round reads the answer to the request that follows dropped messages.
        for is_answer in [false, true] {
            let mut has_lost = false;
            let is_all = self.each(|datagram| {
                has_lost |= datagram.is_none();
                let messages = Messages::new(datagram.unwrap_or_default()).map_while(Result::ok);
                if let Some(state) = messages.filter_map(|message| read(&message)).last() {
                    latest = Some(state);
                }
            });
            self.overrun |= has_lost;
            // Once the kernel has dropped a message, it drops all further messages and answers until the earlier
            // messages are read.
            if !is_all || is_answer || !std::mem::take(&mut self.overrun) {
                // Another request here would make the socket readable again, and again, if the answer is longer than
                // the buffer. The next message leads to it.
                break;
            }
            let _ = self.ask();
        }
        latest
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
