//! Questions about an interface that rtnetlink does not answer (`linux/ethtool.h`, SIOCETHTOOL).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use towpath_netlink::RENAME_ATTEMPTS;

/// `ETHTOOL_GGRO`: does the interface merge received packets?
const GET_GRO: u32 = 0x0000_002b;
/// `ETHTOOL_GFLAGS`: some features, among them `ETH_FLAG_RXVLAN`.
const GET_FLAGS: u32 = 0x0000_0025;
const RX_VLAN: u32 = 1 << 8;
/// `ETHTOOL_GCHANNELS`: its hardware queues.
const GET_CHANNELS: u32 = 0x0000_003c;
/// `ETHTOOL_GRXFHINDIR`: the table by which it spreads packets among its hardware queues (RSS).
const GET_RSS_TABLE: u32 = 0x0000_0038;
/// The most entries of that table of which the kernel is asked.
const RSS_ENTRIES: usize = 4096;
/// `ETHTOOL_GDRVINFO`: its driver.
const GET_DRIVER: u32 = 0x0000_0003;
/// `struct ethtool_value`.
#[repr(C)]
#[derive(Default)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    /// The most receive, transmit, other and combined queues.
    most: [u32; 4],
    /// The present ones.
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_rxfh_indir`.
#[repr(C)]
struct RssTable {
    command: u32,
    size: u32,
    queues: [u32; RSS_ENTRIES],
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// Asks ethtool's questions about one interface. The kernel finds the interface by its name, which may change at any
/// time. So each question first asks for the name.
pub(crate) struct Ethtool {
    socket: OwnedFd,
    index: i32,
}

impl Ethtool {
    /// Prepares questions about an interface of this thread's network namespace.
    pub(crate) fn of(index: u32) -> io::Result<Ethtool> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(Ethtool { socket, index: index as i32 })
    }

    /// Asks a question whose structure begins with its command.
    fn ask<T>(&self, question: &mut T) -> io::Result<()> {
        for _ in 1..RENAME_ATTEMPTS {
            match self.ask_by_name(&self.name()?, question) {
                // The interface's name has changed since.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                other => return other,
            }
        }
        self.ask_by_name(&self.name()?, question)
    }

    /// Returns the interface's present name, in the first part of a request.
    fn name(&self) -> io::Result<libc::ifreq> {
        // SAFETY: `ifreq` consists of integers, arrays and pointers, so all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index;
        // SAFETY: the request takes a live `ifreq`.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNAME as libc::Ioctl, &raw mut request)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(request) }
    }

    /// Asks the interface that has a name.
    fn ask_by_name<T>(&self, name: &libc::ifreq, question: &mut T) -> io::Result<()> {
        // SAFETY: `ifreq` consists of integers, arrays and pointers, so all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = name.ifr_name;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(question).cast();
        // SAFETY: the request takes a live `ifreq`, and the kernel writes no more than the
        // structure of the command.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the number of hardware queues that receive; 1 for an interface that does not say.
    pub(crate) fn queues(&self) -> u32 {
        self.channels().map_or(1, |channels| (channels.receive + channels.combined).max(1))
    }

    /// Returns the number of hardware queues that send; 1 for an interface that does not say.
    pub(crate) fn sending_queues(&self) -> u32 {
        self.channels().map_or(1, |channels| (channels.transmit + channels.combined).max(1))
    }

    fn channels(&self) -> Option<Channels> {
        let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
        self.ask(&mut channels).ok()?;
        Some(channels)
    }

    /// Returns the hardware queues among which the interface spreads packets, as its table has
    /// them; `None` for an interface that does not say.
    pub(crate) fn rss_table(&self) -> Option<Vec<u32>> {
        let mut table = RssTable { command: GET_RSS_TABLE, size: 0, queues: [0; RSS_ENTRIES] };
        // Without room, the kernel tells the size.
        self.ask(&mut table).ok()?;
        let size = table.size as usize;
        let fits = (1..=RSS_ENTRIES).contains(&size);
        fits.then(|| self.ask(&mut table).ok()).flatten()?;
        Some(table.queues[..size].to_vec())
    }

    /// Returns `true` if the interface merges received packets (GRO), or does not say.
    pub(crate) fn merges(&self) -> bool {
        let mut value = Value { command: GET_GRO, ..Value::default() };
        self.ask(&mut value).is_err() || value.data != 0
    }

    /// Returns `true` if the interface takes the VLAN tags off received packets.
    pub(crate) fn strips_vlan_tags(&self) -> bool {
        let mut value = Value { command: GET_FLAGS, ..Value::default() };
        self.ask(&mut value).is_ok() && value.data & RX_VLAN != 0
    }

    /// Returns the driver's name; "unknown" for an interface that does not say.
    pub(crate) fn driver(&self) -> String {
        let mut driver = Driver { command: GET_DRIVER, driver: [0; 32], rest: [0; 160] };
        let is_answered = self.ask(&mut driver).is_ok();
        let name = driver.driver.into_iter().take_while(|byte| *byte != 0).collect();
        let name = String::from_utf8(name).ok().filter(|name| is_answered && !name.is_empty());
        name.unwrap_or_else(|| "unknown".to_owned())
    }
}

const _: () = assert!(size_of::<Driver>() == 196 && size_of::<Channels>() == 36);

#[cfg(test)]
mod tests {
    use towpath_netlink::{Netlink, Veth};
    use towpath_testkit::isolated;

    use super::*;

    /// The interface gets another name after the driver has found it, and another interface gets the old one.
    #[test]
    fn an_interface_answers_under_any_name() {
        isolated!(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.create_veth(&Veth { queues: Some(3), ..Veth::new("eth0", "far0") }).unwrap();
            let found = netlink.link("eth0").unwrap();
            let ethtool = Ethtool::of(found.index).unwrap();
            let before = (ethtool.queues(), ethtool.driver());
            assert_eq!(before.1, "veth");
            netlink.rename("eth0", "lan0").unwrap();
            netlink.create_bridge("eth0").unwrap();
            assert_eq!((ethtool.queues(), ethtool.driver()), before);
            assert_eq!(netlink.link_by("eth0", Some(found.index)).unwrap().name, "lan0");
            netlink.delete_link("lan0").unwrap();
            assert_eq!((ethtool.queues(), ethtool.driver()), (1, "unknown".to_owned()));
        });
    }
}
