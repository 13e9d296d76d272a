//! What changes on the interface while a driver serves it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use towpath_netlink::{ChannelWatch, Link, LinkWatch, Watched};

use crate::{Event, Info};

/// The changes that a driver has not reported yet.
pub(crate) struct LinkEvents {
    /// `None` if the kernel refuses the watch; the driver then reports no change.
    watch: Option<LinkWatch>,
    reported: State,
    events: VecDeque<Event>,
}

/// The state of the interface that the driver reported.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    name: String,
    up: bool,
    mtu: usize,
    mac: [u8; 6],
}

impl LinkEvents {
    /// Watches an interface, by its number.
    pub(crate) fn new(index: u32, info: &Info) -> LinkEvents {
        let name = info.name.clone();
        LinkEvents {
            watch: LinkWatch::new(index).ok(),
            reported: State { name, up: true, mtu: info.mtu, mac: info.mac },
            events: VecDeque::new(),
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Returns the next event.
    pub(crate) fn take(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            match self.watch.as_mut()?.latest()? {
                Watched::Here(link) => self.compare(link),
                // The kernel does not report the state of an interface in another namespace: the
                // driver reports the interface as removed.
                Watched::Gone => self.events.push_back(Event::Removed),
            }
        }
        self.events.pop_front()
    }

    /// Notes what changed.
    fn compare(&mut self, link: Link) {
        let now = State {
            up: link.up && link.carrier,
            mtu: link.mtu as usize,
            mac: link.mac.unwrap_or(self.reported.mac),
            name: link.name,
        };
        // The name comes first: the log lines of the other changes show it.
        if now.name != self.reported.name {
            self.events.push_back(Event::Name(now.name.clone()));
        }
        if now.up != self.reported.up {
            self.events.push_back(Event::Link { up: now.up });
        }
        if now.mtu != self.reported.mtu {
            self.events.push_back(Event::Mtu(now.mtu));
        }
        if now.mac != self.reported.mac {
            self.events.push_back(Event::Address(now.mac));
        }
        self.reported = now;
    }
}

/// The changes of an interface's hardware queues, beside those of the interface itself.
pub(crate) struct QueueEvents {
    watch: ChannelWatch,
    /// Readable while either watch is.
    either: OwnedFd,
    /// The number of queues that receive, as the driver reported it.
    reported: u32,
}

impl QueueEvents {
    /// Watches the hardware queues of an interface, by its number. `served`: the queues that the driver
    /// serves.
    ///
    /// # Errors
    /// If the kernel does not report them (`CONFIG_ETHTOOL_NETLINK`), or descriptors are not available.
    pub(crate) fn new(index: u32, served: u32, link: &LinkEvents) -> io::Result<QueueEvents> {
        let watch = ChannelWatch::new(index).map_err(io::Error::other)?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for one in link.fd().into_iter().chain([watch.as_fd()]) {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&either, one, data, epoll::EventFlags::IN)?;
        }
        Ok(QueueEvents { watch, either, reported: served })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }

    /// Returns the number of queues that receive, if it has changed.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let channels = self.watch.latest()?;
        let present = (channels.receive + channels.combined).max(1);
        (std::mem::replace(&mut self.reported, present) != present).then_some(present)
    }
}
