//! The state of one interface, as the kernel multicasts it (`RTNLGRP_LINK`, rtnetlink(7)).
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::error::Error;
use crate::link::{Link, RTM_DELLINK, RTM_NEWLINK, get_link, read_link};
use crate::message::Messages;
use crate::socket::{receive, send};

/// The bit of `RTNLGRP_LINK` in a socket's groups.
const RTMGRP_LINK: u32 = 1;
/// The address family of messages about an interface itself (`AF_UNSPEC`).
const UNSPECIFIED: u8 = 0;
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
    /// `true` if the kernel dropped messages since the present state was last requested.
    overrun: bool,
}

/// The latest state of a watched interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The interface has this state.
    Here(Link),
    /// The interface is not in the watch's network namespace: it was deleted, or moved to another
    /// namespace, where this watch sees no state of it.
    Gone,
}

impl LinkWatch {
    /// Watches the interface with this number. [`LinkWatch::latest`] first returns the present
    /// state.
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
        let watch = LinkWatch { socket, index, received: vec![0; RECEIVE_BYTES], overrun: false };
        watch.ask()?;
        Ok(watch)
    }

    /// Requests the present state.
    fn ask(&self) -> Result<(), Error> {
        send(self.socket.as_fd(), &get_link(self.index).finish(1))
    }

    /// Returns the latest state of the interface, if the kernel sent one since the last call.
    /// The descriptor is readable while messages wait, also of other interfaces.
    pub fn latest(&mut self) -> Option<Watched> {
        let mut latest = None;
        for _ in 0..DATAGRAMS {
            match receive(self.socket.as_fd(), &mut self.received) {
                Ok(Some(len)) => latest = self.read(len).or(latest),
                Ok(None) => {}
                // The kernel dropped messages, and drops all further ones until those before are
                // read, answers too.
                Err(Errno::NOBUFS) => self.overrun = true,
                Err(_) if std::mem::take(&mut self.overrun) => {
                    let _ = self.ask();
                }
                Err(_) => break,
            }
        }
        latest
    }

    /// Reads a datagram of `len` bytes. Returns the latest state in it.
    fn read(&self, len: usize) -> Option<Watched> {
        let messages = Messages::new(self.received.get(..len)?).map_while(Result::ok);
        let states = messages.filter_map(|message| {
            let link = match message.kind {
                RTM_NEWLINK | RTM_DELLINK => read_link(message.body).ok()??,
                _ => return None,
            };
            let is_here = message.kind == RTM_NEWLINK;
            // An interface that leaves a bridge is deleted there, and only there.
            if !is_here && message.body.first() != Some(&UNSPECIFIED) {
                return None;
            }
            let state = if is_here { Watched::Here(link.clone()) } else { Watched::Gone };
            (link.index == self.index).then_some(state)
        });
        states.last()
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
