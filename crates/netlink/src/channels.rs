//! The hardware queues of an interface: the family `ethtool` of generic netlink
//! (`linux/ethtool_netlink.h`; Documentation/networking/ethtool-netlink.rst).
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Error;
use crate::feed::Feed;
use crate::generic::{HEADER_BYTES, question};
use crate::message::{Attributes, Malformed, Request, u32_at};
use crate::socket::{Netlink, join};

const FAMILY: &str = "ethtool";
/// The multicast group of all changes.
const MONITOR: &str = "monitor";

/// `ETHTOOL_MSG_CHANNELS_GET` and `_SET`; among the kernel's messages `_GET_REPLY` and `_NTF`.
const GET: u8 = 17;
const SET: u8 = 18;
const REPLY: u8 = 18;
const NOTIFICATION: u8 = 19;

const ETHTOOL_A_CHANNELS_HEADER: u16 = 1;
const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_A_CHANNELS_TX_COUNT: u16 = 7;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;
/// Attributes inside of the header.
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;

/// The size of the receive buffer; a message of one interface takes some hundred bytes.
const RECEIVE_BYTES: usize = 16 * 1024;

/// The hardware queues of an interface, as `ethtool -l` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Queues that only receive.
    pub receive: u32,
    /// Queues that only send.
    pub transmit: u32,
    /// Queues that receive and send.
    pub combined: u32,
}

impl Netlink {
    /// Returns the hardware queues of an interface of this thread's network namespace.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), towpath_netlink::Error> {
    /// let index = towpath_netlink::Netlink::open()?.index("eth0")?;
    /// let queues = towpath_netlink::Netlink::channels(index)?;
    /// println!("{} receive", queues.receive + queues.combined);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`]; `EOPNOTSUPP` if the interface does not report its queues, `ENOENT` from a kernel
    /// without this family (`CONFIG_ETHTOOL_NETLINK`).
    pub fn channels(index: u32) -> Result<Channels, Error> {
        let mut kernel = Netlink::generic()?;
        let family = kernel.family(FAMILY)?.number;
        let mut found = Channels::default();
        let request = about(family, GET, index);
        kernel.ask(
            "asking for the queues of",
            &format!("number {index}"),
            request,
            &mut |message| {
                if let Some((_, channels)) = read_channels(message.body)? {
                    found = channels;
                }
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// Sets the number of hardware queues (`ethtool -L`) of an interface of this thread's network
    /// namespace. Leaves a kind of queues as it is if the interface has none of it.
    ///
    /// # Errors
    /// Any [`Error`]; `EINVAL` if the interface cannot have this number, or if a queue to remove has an
    /// AF_XDP socket.
    pub fn set_channels(index: u32, channels: Channels) -> Result<(), Error> {
        let mut kernel = Netlink::generic()?;
        let family = kernel.family(FAMILY)?.number;
        let mut request = about(family, SET, index);
        for (kind, count) in [
            (ETHTOOL_A_CHANNELS_RX_COUNT, channels.receive),
            (ETHTOOL_A_CHANNELS_TX_COUNT, channels.transmit),
            (ETHTOOL_A_CHANNELS_COMBINED_COUNT, channels.combined),
        ] {
            if count > 0 {
                request.attribute_u32(kind, count);
            }
        }
        kernel.ask("set the queues of", &format!("number {index}"), request, &mut |_| Ok(()))
    }
}

/// Watches the hardware queues of one interface of the network namespace of the thread that makes the
/// watch.
#[derive(Debug)]
pub struct ChannelWatch {
    feed: Feed,
    family: u16,
    index: u32,
}

impl ChannelWatch {
    /// Watches the interface with this number. [`ChannelWatch::latest`] first returns the present
    /// queues.
    ///
    /// # Errors
    /// Any [`Error`]; `ENOENT` from a kernel without this family (`CONFIG_ETHTOOL_NETLINK`).
    pub fn new(index: u32) -> Result<ChannelWatch, Error> {
        let failed = |operation| move |errno| Error::Socket { operation, errno };
        let family = Netlink::generic()?.family(FAMILY)?;
        let group = family.groups.iter().find(|(name, _)| name == MONITOR);
        let (_, group) = group.ok_or(Error::Malformed {
            operation: "watching queues",
            cause: "a family without its multicast group",
        })?;
        let mut feed = Feed::open(Some(rustix::net::netlink::GENERIC), 0, RECEIVE_BYTES)?;
        join(feed.as_fd(), *group).map_err(failed("join a multicast group"))?;
        feed.begin(about(family.number, GET, index).finish(1))?;
        Ok(ChannelWatch { feed, family: family.number, index })
    }

    /// Returns the latest queues of the interface, if the kernel sent them since the last call. The
    /// descriptor is readable while messages wait, also of other interfaces.
    pub fn latest(&mut self) -> Option<Channels> {
        self.feed.latest(|message| {
            let read =
                if message.kind == self.family { read_channels(message.body) } else { Ok(None) };
            let (index, channels) = read.ok()??;
            (index == self.index).then_some(channels)
        })
    }
}

impl AsFd for ChannelWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.feed.as_fd()
    }
}

/// Begins a request about an interface.
fn about(family: u16, command: u8, index: u32) -> Request {
    let mut request = question(family, command);
    request.nested(NESTED | ETHTOOL_A_CHANNELS_HEADER, |header| {
        header.attribute_u32(ETHTOOL_A_HEADER_DEV_INDEX, index);
    });
    request
}

/// The flag of attributes with further ones inside (`NLA_F_NESTED`), which this family requires.
const NESTED: u16 = 1 << 15;

/// Reads the queues of an interface, with its number; `None` for a message about something else.
pub(crate) fn read_channels(body: &[u8]) -> Result<Option<(u32, Channels)>, Malformed> {
    if !matches!(body.first(), Some(&(REPLY | NOTIFICATION))) {
        return Ok(None);
    }
    let (mut index, mut channels) = (None, Channels::default());
    for attribute in Attributes::after(body, HEADER_BYTES)? {
        let (kind, value) = attribute?;
        let count = || u32_at(value, 0).unwrap_or(0);
        match kind {
            ETHTOOL_A_CHANNELS_HEADER => {
                for attribute in Attributes::of(value) {
                    let (kind, value) = attribute?;
                    if kind == ETHTOOL_A_HEADER_DEV_INDEX {
                        index = u32_at(value, 0);
                    }
                }
            }
            ETHTOOL_A_CHANNELS_RX_COUNT => channels.receive = count(),
            ETHTOOL_A_CHANNELS_TX_COUNT => channels.transmit = count(),
            ETHTOOL_A_CHANNELS_COMBINED_COUNT => channels.combined = count(),
            _ => {}
        }
    }
    Ok(index.map(|index| (index, channels)))
}
