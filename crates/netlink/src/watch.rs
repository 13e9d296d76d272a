//! News of one interface, as the kernel sends it to the group `RTNLGRP_LINK`.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::error::Error;
use crate::link::{Link, RTM_NEWLINK, get_link, read_link};
use crate::message::Messages;
use crate::socket::{receive, send};

/// The bit of `RTNLGRP_LINK` in a socket's groups.
const RTMGRP_LINK: u32 = 1;
/// The size of the receive buffer; a message of one interface takes some KiB.
const RECEIVE_BYTES: usize = 32 * 1024;
/// Datagrams that one call reads at most.
const DATAGRAMS: usize = 64;

/// Watches one interface of the network namespace of the thread that makes the watch.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
    index: u32,
    received: Vec<u8>,
}

impl LinkWatch {
    /// Watches the interface with this number. The first news are its present state.
    ///
    /// # Errors
    /// [`Error::Socket`]: too many descriptors, or a seccomp filter without `AF_NETLINK`.
    pub fn new(index: u32) -> Result<LinkWatch, Error> {
        let failed = |operation| move |errno| Error::Socket { operation, errno };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
            .map_err(failed("socket"))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))
            .map_err(failed("bind"))?;
        let watch = LinkWatch { socket, index, received: vec![0; RECEIVE_BYTES] };
        watch.ask()?;
        Ok(watch)
    }

    /// Requests the present state, which then is news.
    fn ask(&self) -> Result<(), Error> {
        send(self.socket.as_fd(), &get_link(self.index).finish(1))
    }

    /// Returns the latest state of the interface, if there is news since the last call. The
    /// descriptor is readable while there may be some, also of other interfaces.
    pub fn latest(&mut self) -> Option<Link> {
        let mut latest = None;
        for _ in 0..DATAGRAMS {
            let len = match receive(self.socket.as_fd(), &mut self.received) {
                Ok(Some(len)) => len,
                Ok(None) => continue,
                Err(Errno::NOBUFS) => {
                    // The kernel dropped news, so the present state counts.
                    let _ = self.ask();
                    continue;
                }
                Err(_) => break,
            };
            let Some(datagram) = self.received.get(..len) else { continue };
            for message in Messages::new(datagram) {
                let Ok(message) = message else { break };
                if message.kind == RTM_NEWLINK
                    && let Ok(Some(link)) = read_link(message.body)
                    && link.index == self.index
                {
                    latest = Some(link);
                }
            }
        }
        latest
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
