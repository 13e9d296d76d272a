//! The state of one interface, as the kernel multicasts it (`RTNLGRP_LINK`, rtnetlink(7)).
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Error;
use crate::feed::Feed;
use crate::link::{Link, RTM_DELLINK, RTM_NEWLINK, get_link, read_link};
use crate::message::Message;

/// The bit of `RTNLGRP_LINK` in a socket's groups.
const RTMGRP_LINK: u32 = 1;
/// The address family of messages about an interface itself (`AF_UNSPEC`).
const UNSPECIFIED: u8 = 0;
/// The size of the receive buffer; a message of one interface takes some KiB.
const RECEIVE_BYTES: usize = 32 * 1024;

/// Watches one interface of the network namespace of the thread that makes the watch.
#[derive(Debug)]
pub struct LinkWatch {
    feed: Feed,
    index: u32,
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
        let mut feed = Feed::open(None, RTMGRP_LINK, RECEIVE_BYTES)?;
        feed.begin(get_link(index).finish(1))?;
        Ok(LinkWatch { feed, index })
    }

    /// Returns the latest state of the interface, if the kernel sent one since the last call.
    /// The descriptor is readable while messages wait, also of other interfaces.
    pub fn latest(&mut self) -> Option<Watched> {
        self.feed.latest(|message| read(message, self.index))
    }
}

/// Returns the state of an interface in a message.
fn read(message: &Message<'_>, index: u32) -> Option<Watched> {
    let link = match message.kind {
        RTM_NEWLINK | RTM_DELLINK => read_link(message.body).ok()??,
        _ => return None,
    };
    let is_here = message.kind == RTM_NEWLINK;
    // An interface that leaves a bridge is deleted there, and only there.
    if link.index != index || !is_here && message.body.first() != Some(&UNSPECIFIED) {
        return None;
    }
    Some(if is_here { Watched::Here(link) } else { Watched::Gone })
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.feed.as_fd()
    }
}
