//! Interfaces (`RTM_NEWLINK` and its kin, `linux/if_link.h`).
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::error::Error;
use crate::message::{Attributes, Malformed, NLM_F_ACK, Request, i32_at, text, u32_at};
use crate::socket::Netlink;

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;

pub(crate) const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
pub(crate) const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
pub(crate) const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_PID: u16 = 19;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PROMISCUITY: u16 = 30;
const IFLA_XDP: u16 = 43;
const IFLA_ALLMULTI: u16 = 61;
/// Inside of `IFLA_XDP`: what runs the program.
const IFLA_XDP_ATTACHED: u16 = 2;
const XDP_ATTACHED_DRV: u8 = 1;
/// Inside of `IFLA_XDP`: the program's number, and with several programs one per mode.
const XDP_PROG_IDS: std::ops::RangeInclusive<u16> = 4..=7;
pub(crate) const IFLA_INFO_KIND: u16 = 1;

const IFF_UP: u32 = 0x1;
const IFF_LOWER_UP: u32 = 0x1_0000;
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

/// The longest interface name, in bytes (`IFNAMSIZ` without its terminating zero).
const NAME_MAX_BYTES: usize = 15;

/// `struct ifinfomsg`: family, type, index, flags, mask of flags to change.
pub(crate) const IFINFOMSG_BYTES: usize = 16;

/// An interface, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number in its network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Its Ethernet address; `None` without one, as for a `tun` interface.
    pub mac: Option<[u8; 6]>,
    /// `true` if it was set up.
    pub up: bool,
    /// `true` if there is a carrier: a cable, or the other end of a veth pair that is also up.
    pub carrier: bool,
    /// The driver of a virtual interface: `veth`, `vlan`, `bridge`, `tun`; `None` for hardware and
    /// the loopback.
    pub kind: Option<String>,
    /// The number of the bridge or bond that contains the interface.
    pub master: Option<u32>,
    /// The number of the interface below (VLAN) or at the other end (veth), in that interface's own
    /// network namespace.
    pub below: Option<u32>,
    /// The number of the XDP program on the interface.
    pub xdp: Option<u32>,
    /// `true` if the interface's driver runs that program, and not the network stack.
    pub xdp_in_driver: bool,
    /// The number of packets that the kernel queues for sending.
    pub queue_packets: u32,
    /// The number of requests, by sockets and by the administrator, for packets to all addresses.
    pub promiscuity: u32,
    /// The number of requests for packets to all groups; `None` before Linux 6.0.
    pub all_multicast: Option<u32>,
}

/// A network namespace for an interface.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// The namespace of a descriptor of `/proc/<pid>/ns/net`.
    Descriptor(BorrowedFd<'a>),
    /// The namespace of a process or thread.
    Process(u32),
}

/// The most attempts of a sequence of requests that name an interface: another program may rename it in between.
pub const RENAME_ATTEMPTS: usize = 16;

impl Netlink {
    /// Returns all interfaces of the namespace.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.dump(
            "list the interfaces",
            RTM_GETLINK,
            RTM_NEWLINK,
            |request| {
                request.fixed(&ifinfomsg(0, 0, 0));
                request.attribute_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
            },
            read_link,
        )
    }

    /// Returns an interface by its number; or, if the number is not known, by its name.
    ///
    /// # Errors
    /// As [`Netlink::link_at`] and [`Netlink::link`].
    pub fn link_by(&mut self, name: &str, index: Option<u32>) -> Result<Link, Error> {
        match index {
            Some(index) => self.link_at(index),
            None => self.link(name),
        }
    }

    /// Returns the interface of a name.
    ///
    /// # Errors
    /// [`Error::NoSuchLink`], [`Error::BadName`], or any other [`Error`].
    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        check_name(name)?;
        let mut request = Request::new(RTM_GETLINK, NLM_F_ACK);
        request.fixed(&ifinfomsg(0, 0, 0));
        request.attribute_text(IFLA_IFNAME, name);
        request.attribute_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        self.ask_for_link(name.to_owned(), request)
    }

    /// Returns the interface with a number, which stays the same when the interface gets another name.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), towpath_netlink::Error> {
    /// let mut netlink = towpath_netlink::Netlink::open()?;
    /// let index = netlink.index("eth0")?;
    /// netlink.rename("eth0", "lan0")?;
    /// assert_eq!(netlink.link_at(index)?.name, "lan0");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchLink`] with the number as the name, or any other [`Error`].
    pub fn link_at(&mut self, index: u32) -> Result<Link, Error> {
        let name = format!("number {index}");
        let mut request = Request::new(RTM_GETLINK, NLM_F_ACK);
        request.fixed(&ifinfomsg(index, 0, 0));
        request.attribute_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        self.ask_for_link(name, request)
    }

    /// Asks for one interface.
    fn ask_for_link(&mut self, name: String, request: Request) -> Result<Link, Error> {
        let mut found = None;
        let answer = self.ask("look up", &name, request, &mut |message| {
            if message.kind == RTM_NEWLINK {
                found = read_link(message.body)?;
            }
            Ok(())
        });
        match answer {
            Err(error) if error.errno() == Some(Errno::NODEV) => {}
            other => other?,
        }
        found.ok_or(Error::NoSuchLink { name })
    }

    /// Returns the number of the interface of a name.
    ///
    /// # Errors
    /// As [`link`](Netlink::link).
    pub fn index(&mut self, name: &str) -> Result<u32, Error> {
        Ok(self.link(name)?.index)
    }

    /// Sets an interface up, so that it may send and receive.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn set_up(&mut self, name: &str) -> Result<(), Error> {
        self.change("set up", name, IFF_UP, IFF_UP, |_| {})
    }

    /// Sets an interface down.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn set_down(&mut self, name: &str) -> Result<(), Error> {
        self.change("set down", name, 0, IFF_UP, |_| {})
    }

    /// Gives an interface another name. It keeps its number.
    ///
    /// # Errors
    /// Any [`Error`]; `EEXIST` if the name is taken, `EBUSY` before Linux 6.2 if the interface is up.
    pub fn rename(&mut self, name: &str, to: &str) -> Result<(), Error> {
        check_name(to)?;
        self.change("rename", name, 0, 0, |request| request.attribute_text(IFLA_IFNAME, to))
    }

    /// Sets the largest IP packet, in bytes.
    ///
    /// # Errors
    /// Any [`Error`]; `EINVAL` if the interface does not support it.
    pub fn set_mtu(&mut self, name: &str, mtu_bytes: u32) -> Result<(), Error> {
        self.change("set the MTU of", name, 0, 0, |r| r.attribute_u32(IFLA_MTU, mtu_bytes))
    }

    /// Sets the Ethernet address.
    ///
    /// # Errors
    /// Any [`Error`]; `EADDRNOTAVAIL` for a multicast address, `EBUSY` if the interface has to be
    /// down for it.
    pub fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> Result<(), Error> {
        self.change("set the MAC address of", name, 0, 0, |r| r.attribute(IFLA_ADDRESS, &mac))
    }

    /// Sets the number of packets that the kernel queues on an interface: for a TAP, those that its
    /// program has not read.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn set_queue_packets(&mut self, name: &str, packets: u32) -> Result<(), Error> {
        let operation = "set the queue's length of";
        self.change(operation, name, 0, 0, |request| request.attribute_u32(IFLA_TXQLEN, packets))
    }

    /// Moves an interface to another network namespace. It arrives there down and without its IP
    /// addresses.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn set_place(&mut self, name: &str, place: Place<'_>) -> Result<(), Error> {
        self.change("move", name, 0, 0, |request| write_place(request, place))
    }

    /// Makes an interface part of a bridge.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn enslave(&mut self, name: &str, bridge: &str) -> Result<(), Error> {
        let bridge = self.index(bridge)?;
        let operation = "make part of a bridge";
        self.change(operation, name, 0, 0, |request| request.attribute_u32(IFLA_MASTER, bridge))
    }

    /// Removes an interface from its bridge.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn release(&mut self, name: &str) -> Result<(), Error> {
        self.change("take out of its bridge", name, 0, 0, |r| r.attribute_u32(IFLA_MASTER, 0))
    }

    /// Deletes an interface, and the other end of a veth pair with it.
    ///
    /// # Errors
    /// [`Error::NoSuchLink`], or any other [`Error`]; `EOPNOTSUPP` for hardware.
    pub fn delete_link(&mut self, name: &str) -> Result<(), Error> {
        let index = self.index(name)?;
        self.carry_out("delete", name, RTM_DELLINK, 0, |r| r.fixed(&ifinfomsg(index, 0, 0)))
    }

    pub(crate) fn change(
        &mut self,
        operation: &'static str,
        name: &str,
        flags: u32,
        mask: u32,
        fill: impl FnOnce(&mut Request),
    ) -> Result<(), Error> {
        let index = self.index(name)?;
        self.carry_out(operation, name, RTM_NEWLINK, 0, |request| {
            request.fixed(&ifinfomsg(index, flags, mask));
            fill(request);
        })
    }
}

pub(crate) fn write_place(request: &mut Request, place: Place<'_>) {
    match place {
        Place::Descriptor(fd) => request.attribute_u32(IFLA_NET_NS_FD, fd.as_raw_fd() as u32),
        Place::Process(pid) => request.attribute_u32(IFLA_NET_NS_PID, pid),
    }
}

pub(crate) fn ifinfomsg(index: u32, flags: u32, mask: u32) -> [u8; IFINFOMSG_BYTES] {
    let mut part = [0; IFINFOMSG_BYTES];
    part[4..8].copy_from_slice(&index.to_ne_bytes());
    part[8..12].copy_from_slice(&flags.to_ne_bytes());
    part[12..16].copy_from_slice(&mask.to_ne_bytes());
    part
}

/// Reads an interface from an `RTM_NEWLINK` message.
pub(crate) fn read_link(body: &[u8]) -> Result<Option<Link>, Malformed> {
    let short = Malformed("an interface without index and flags");
    let (Some(index), Some(flags)) = (i32_at(body, 4), u32_at(body, 8)) else {
        return Err(short);
    };
    let mut link = Link {
        index: u32::try_from(index).map_err(|_| Malformed("a negative index"))?,
        name: String::new(),
        mtu: 0,
        mac: None,
        up: flags & IFF_UP != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        kind: None,
        master: None,
        below: None,
        xdp: None,
        xdp_in_driver: false,
        queue_packets: 0,
        promiscuity: 0,
        all_multicast: None,
    };
    for attribute in Attributes::after(body, IFINFOMSG_BYTES)? {
        let (kind, value) = attribute?;
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
            IFLA_ADDRESS => link.mac = value.try_into().ok(),
            IFLA_MASTER => link.master = u32_at(value, 0),
            IFLA_LINK => link.below = u32_at(value, 0),
            IFLA_TXQLEN => link.queue_packets = u32_at(value, 0).unwrap_or(0),
            IFLA_PROMISCUITY => link.promiscuity = u32_at(value, 0).unwrap_or(0),
            IFLA_ALLMULTI => link.all_multicast = u32_at(value, 0),
            IFLA_XDP => {
                for attribute in Attributes::of(value) {
                    let (kind, value) = attribute?;
                    if kind == IFLA_XDP_ATTACHED {
                        link.xdp_in_driver = value.first() == Some(&XDP_ATTACHED_DRV);
                    }
                    if XDP_PROG_IDS.contains(&kind) {
                        link.xdp = u32_at(value, 0).filter(|id| *id != 0).or(link.xdp);
                    }
                }
            }
            IFLA_LINKINFO => {
                for attribute in Attributes::of(value) {
                    let (kind, value) = attribute?;
                    if kind == IFLA_INFO_KIND {
                        link.kind = Some(text(value));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Some(link))
}

/// Returns the request for the interface with this number.
pub(crate) fn get_link(index: u32) -> Request {
    let mut request = Request::new(RTM_GETLINK, 0);
    request.fixed(&ifinfomsg(index, 0, 0));
    request.attribute_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    request
}

/// Checks the rules of the kernel's `dev_valid_name`, so that the error names the defect.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let cause = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_MAX_BYTES {
        "it is longer than 15 bytes"
    } else if name == "." || name == ".." {
        "it is a directory's"
    } else if name.bytes().any(|b| b == 0 || b == b'/' || b == b':' || b.is_ascii_whitespace()) {
        "it contains a slash, a colon, a space or a zero"
    } else {
        return Ok(());
    };
    Err(Error::BadName { name: name.to_owned(), cause })
}
