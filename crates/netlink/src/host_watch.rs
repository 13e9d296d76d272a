//! Changes of a network namespace's addresses, routes and neighbours, as the kernel multicasts them
//! (rtnetlink(7)).
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use crate::address::{RTM_DELADDR, RTM_NEWADDR};
use crate::error::Error;
use crate::feed::Feed;
use crate::message::{Message, Messages};
use crate::neighbour::{Neighbour, RTM_DELNEIGH, RTM_NEWNEIGH, read_neighbour};
use crate::route::{RTM_DELROUTE, RTM_NEWROUTE};

const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;

/// The bits of the groups `RTNLGRP_NEIGH`, and for IPv4 and IPv6 `_IFADDR`, `_ROUTE` and `_RULE`.
const GROUPS: u32 = 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18;
/// The size of the receive buffer; a message of one object takes some hundred bytes.
const RECEIVE_BYTES: usize = 16 * 1024;

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// The state of a neighbour changed; an entry that the kernel deleted is unknown.
    Neighbour(Neighbour),
    /// Routes or rules changed.
    Routes,
    /// Addresses changed, and perhaps routes with them.
    Addresses,
    /// The kernel dropped messages: anything may have changed.
    Lost,
}

/// Watches the network namespace of the thread that makes the watch.
#[derive(Debug)]
pub struct HostWatch {
    feed: Feed,
}

impl HostWatch {
    /// Watches for changes from now on.
    ///
    /// # Errors
    /// [`Error::Socket`]: too many descriptors, or a seccomp filter without `AF_NETLINK`.
    pub fn new() -> Result<HostWatch, Error> {
        Ok(HostWatch { feed: Feed::open(None, GROUPS, RECEIVE_BYTES)? })
    }

    /// Appends the changes since the last call. The descriptor stays readable while there are more.
    pub fn events(&mut self, events: &mut Vec<HostEvent>) {
        self.feed.each(|datagram| match datagram {
            Some(datagram) => read_events(datagram, events),
            None => events.push(HostEvent::Lost),
        });
    }
}

/// Reads the changes of one datagram.
fn read_events(datagram: &[u8], events: &mut Vec<HostEvent>) {
    for message in Messages::new(datagram) {
        match message {
            Ok(message) => events.extend(read_event(&message)),
            Err(_) => return events.push(HostEvent::Lost),
        }
    }
}

/// Reads a change; `None` if it is of no interest, or malformed.
fn read_event(message: &Message<'_>) -> Option<HostEvent> {
    match message.kind {
        RTM_NEWNEIGH | RTM_DELNEIGH => {
            let mut neighbour = read_neighbour(message.body).ok()??;
            if message.kind == RTM_DELNEIGH {
                neighbour.reachability = crate::Reachability::Unknown;
            }
            Some(HostEvent::Neighbour(neighbour))
        }
        RTM_NEWROUTE | RTM_DELROUTE | RTM_NEWRULE | RTM_DELRULE => Some(HostEvent::Routes),
        RTM_NEWADDR | RTM_DELADDR => Some(HostEvent::Addresses),
        _ => None,
    }
}

impl AsFd for HostWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.feed.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_cannot_be_read_counts_as_lost() {
        let mut events = Vec::new();
        read_events(&[0; 8], &mut events);
        assert_eq!(events, [HostEvent::Lost]);
        // A header that claims more bytes than there are (netlink(7)).
        let mut datagram = [0; 16];
        datagram[..4].copy_from_slice(&64u32.to_ne_bytes());
        read_events(&datagram, &mut events);
        assert_eq!(events, [HostEvent::Lost; 2]);
        read_events(&[], &mut events);
        assert_eq!(events.len(), 2);
    }
}
