//! Opens a TAP interface, takes over an open one, and queries the kernel about it.
//!
//! Unsafe lives here for the ioctls, which neither the standard library nor rustix offers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_uint, ifreq};
use rustix::fs::{Mode, OFlags};
use towpath_netlink::{Link, Netlink, RENAME_ATTEMPTS};

use crate::virtio;

/// The device file of TUN and TAP interfaces.
const CLONE_DEVICE: &str = "/dev/net/tun";

/// The reason why the driver cannot use a TAP interface, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel has no TUN/TAP driver, or the file system has no node for it.
    #[error(
        "/dev/net/tun cannot be opened: {cause}; load the kernel module tun, or let the \
         container have the device"
    )]
    NoTun {
        /// The kernel's error.
        cause: io::Error,
    },
    /// This user may not open the file.
    #[error("/dev/net/tun may not be opened by this user: {cause}; its mode should be 0666")]
    TunForbidden {
        /// The kernel's error.
        cause: io::Error,
    },
    /// This user may not create or take the interface.
    #[error(
        "no permission to use the TAP interface \"{name}\": needs CAP_NET_ADMIN, or an interface \
         made for this user beforehand: ip tuntap add dev {name} mode tap user USER vnet_hdr"
    )]
    NotPermitted {
        /// The interface.
        name: String,
    },
    /// A name that Linux does not allow for an interface.
    #[error(
        "\"{name}\" is not a valid interface name: 1 to {} bytes, no slash, colon, percent sign or blank",
        libc::IFNAMSIZ - 1
    )]
    BadName {
        /// The interface.
        name: String,
    },
    /// Another process has the interface.
    #[error("the TAP interface {name} is in use by another process")]
    Busy {
        /// The interface.
        name: String,
    },
    /// An interface of that name exists, and is not a TAP or has several queues.
    #[error("{name} exists and is not a TAP interface with one queue")]
    NotATap {
        /// The interface.
        name: String,
    },
    /// A descriptor that is not a TAP in the required mode.
    #[error("the descriptor is not a TAP with IFF_NO_PI and IFF_VNET_HDR: {cause}")]
    BadDescriptor {
        /// The kernel's error, or `EINVAL` for a TAP in another mode.
        cause: io::Error,
    },
    /// The kernel refused another operation.
    #[error("TAP interface {name}: {what}: {cause}")]
    Refused {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// The kernel's description of the interface.
pub(super) struct Interface {
    pub(super) name: String,
    /// The interface's number; `None` if the kernel does not say.
    pub(super) index: Option<u32>,
    pub(super) mac: [u8; 6],
    pub(super) mtu: usize,
    /// The number of packets that the kernel queues for the reader of the descriptor; `None` if the kernel does not say.
    pub(super) queue_packets: Option<usize>,
}

impl Interface {
    /// Returns `true` if the kernel said everything.
    fn is_whole(&self) -> bool {
        self.index.is_some() && self.queue_packets.is_some()
    }
}

/// The number of packets that the kernel queues for the reader: twice as many as an application's receive queue
/// holds by default, so that a burst for two applications fits. The kernel drops the packets beyond it.
/// The queue itself takes 8 bytes per packet. A waiting packet also takes its buffer: under 1 KiB for a segment
/// without data, and up to about 70 KiB for a large packet. So waiting packets take at most 290 MB, and only while
/// the server does not run.
const QUEUE_PACKETS: u32 = 4096;
/// The number that the kernel gives a TAP when an operator makes it (`DEFAULT_TX_QUEUE_LEN`).
const KERNELS_QUEUE_PACKETS: u32 = 1000;

/// # Safety
/// The argument matches the documentation of `request` (linux/if_tun.h, netdevice(7)): a live
/// variable of its type, or, for TUNSETOFFLOAD, a number instead of the pointer.
unsafe fn ioctl<T>(fd: c_int, request: libc::Ioctl, argument: *mut T) -> io::Result<()> {
    // SAFETY: the caller's promise.
    if unsafe { libc::ioctl(fd, request, argument) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn request(name: &str) -> ifreq {
    // SAFETY: `ifreq` consists of integers, arrays and unions of them, so all zeros is a valid
    // value.
    let mut request: ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: `is_name` allows only shorter names.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn name_of(request: &ifreq) -> String {
    let bytes: Vec<u8> =
        request.ifr_name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns whether an interface may have this name, by the rules of `dev_valid_name` in the
/// kernel's net/core/dev.c. The kernel handles `%d`.
fn is_name(name: &str) -> bool {
    (1..libc::IFNAMSIZ).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.bytes().any(|byte| byte == b'/' || byte == b':' || byte <= b' ')
}

/// Creates the interface, or takes an existing one that no process has open.
pub(super) fn create(name: &str) -> Result<OwnedFd, TapError> {
    let named = || name.to_owned();
    if !is_name(name) {
        return Err(TapError::BadName { name: named() });
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(CLONE_DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
            TapError::TunForbidden { cause: errno.into() }
        }
        other => TapError::NoTun { cause: other.into() },
    })?;
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    // SAFETY: the request takes a live `ifreq`.
    unsafe { ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }.map_err(
        |cause| match cause.raw_os_error() {
            Some(libc::EPERM) => TapError::NotPermitted { name: named() },
            Some(libc::EBUSY) => TapError::Busy { name: named() },
            Some(libc::EINVAL) => TapError::NotATap { name: named() },
            _ => TapError::Refused { name: named(), what: "TUNSETIFF", cause },
        },
    )?;
    Ok(fd)
}

/// Checks a descriptor that another process opened, and makes it nonblocking.
pub(super) fn adopt(fd: &OwnedFd) -> Result<(), TapError> {
    let bad = |cause| TapError::BadDescriptor { cause };
    let mut request = request("");
    // SAFETY: the request takes a live `ifreq`.
    unsafe { ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) }.map_err(bad)?;
    // SAFETY: TUNGETIFF has filled in the flags.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    let needed = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if flags & needed != needed {
        return Err(bad(io::Error::from_raw_os_error(libc::EINVAL)));
    }
    let status = rustix::fs::fcntl_getfl(fd).map_err(|errno| bad(errno.into()))?;
    rustix::fs::fcntl_setfl(fd, status | OFlags::NONBLOCK).map_err(|errno| bad(errno.into()))
}

/// Returns the interface's name, which fails if the interface is gone.
pub(super) fn name(fd: &OwnedFd) -> io::Result<String> {
    let mut request = request("");
    // SAFETY: the request takes a live `ifreq`.
    unsafe { ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) }?;
    Ok(name_of(&request))
}

/// Returns the interface's description. The MTU comes from a socket, so the interface must be in
/// the calling thread's network namespace.
pub(super) fn describe(fd: &OwnedFd) -> Result<Interface, TapError> {
    let name_now = || name(fd).map_err(|cause| TapError::BadDescriptor { cause });
    for _ in 1..RENAME_ATTEMPTS {
        let name = name_now()?;
        let described = describe_as(fd, name.clone());
        // The kernel finds the interface by its name, which may have changed in between, even twice. Then parts are
        // missing. Without netlink, they are missing each time.
        let is_whole = described.as_ref().is_ok_and(Interface::is_whole);
        if is_whole && name_now()? == name {
            return described;
        }
    }
    describe_as(fd, name_now()?)
}

fn describe_as(fd: &OwnedFd, name: String) -> Result<Interface, TapError> {
    let refused = |what| move |name: String, cause| TapError::Refused { name, what, cause };
    let mut request = request(&name);
    // SAFETY: the request takes a live `ifreq`.
    unsafe { ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR as libc::Ioctl, &raw mut request) }
        .map_err(|cause| refused("SIOCGIFHWADDR")(name.clone(), cause))?;
    // SAFETY: SIOCGIFHWADDR has filled in the address.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let mac = std::array::from_fn(|at| address[at] as u8);

    let link = Netlink::open().and_then(|mut netlink| netlink.link(&name)).ok();
    // Another interface with this name has another address.
    let link = link.filter(|link| link.mac == Some(mac));
    let mtu = match &link {
        Some(link) => link.mtu as usize,
        None => mtu(&mut request).map_err(|(what, cause)| refused(what)(name.clone(), cause))?,
    };
    let index = link.as_ref().map(|link| link.index);
    let queue_packets = link.and_then(|link| queue_packets(fd, &link));
    Ok(Interface { name, index, mac, mtu, queue_packets })
}

/// Returns the MTU of the interface that a request names, without netlink; or what failed.
fn mtu(request: &mut ifreq) -> Result<usize, (&'static str, io::Error)> {
    // SAFETY: the call takes no pointers, and the code checks the result before it owns it.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(("a socket to ask for the MTU", io::Error::last_os_error()));
    }
    // SAFETY: a descriptor just opened, with no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the request takes a live `ifreq`.
    unsafe { ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as libc::Ioctl, &raw mut *request) }
        .map_err(|cause| ("SIOCGIFMTU (is it in this network namespace?)", cause))?;
    // SAFETY: SIOCGIFMTU has filled in the MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// Returns how many packets the kernel queues for the reader (netdevice(7), `txqueuelen`), after it
/// raises the number; `None` if the kernel does not say. A persistent interface keeps a number that its owner set.
fn queue_packets(fd: &OwnedFd, link: &Link) -> Option<usize> {
    let mut flags = request("");
    // SAFETY: the request takes a live `ifreq`.
    unsafe { ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut flags) }.ok()?;
    // SAFETY: TUNGETIFF has filled in the flags.
    let persists = c_int::from(unsafe { flags.ifr_ifru.ifru_flags }) & libc::IFF_PERSIST != 0;
    let mut netlink = Netlink::open().ok()?;
    let now = link.queue_packets;
    let raises = if persists { now == KERNELS_QUEUE_PACKETS } else { now != QUEUE_PACKETS };
    // Without permission, the kernel keeps its own number. Unlike SIOCSIFTXQLEN, netlink also takes a number from the
    // administrator of a user namespace.
    let is_raised = raises && netlink.set_queue_packets(&link.name, QUEUE_PACKETS).is_ok();
    Some(if is_raised { QUEUE_PACKETS } else { now } as usize)
}

/// Sets the size of the header in front of each packet.
pub(super) fn set_header(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut size = virtio::HEADER_BYTES as c_int;
    // SAFETY: the request takes a live number.
    unsafe { ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw mut size) }
}

/// Requests large packets and partial checksums, with as many kinds as the kernel grants. Returns
/// whether the kernel grants any.
pub(super) fn set_offloads(fd: BorrowedFd<'_>, wanted: bool) -> io::Result<bool> {
    let large = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    let kinds: &[c_uint] =
        if wanted { &[large | libc::TUN_F_TSO_ECN, large, libc::TUN_F_CSUM] } else { &[] };
    for kind in kinds {
        let kind = *kind as usize as *mut c_uint;
        // SAFETY: the request takes a number instead of the pointer.
        match unsafe { ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, kind) } {
            Ok(()) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: as above.
    unsafe { ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, std::ptr::null_mut::<c_uint>()) }?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["tap0", "tap%d", "fifteen-bytes-x"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "sixteen-bytes-xx", "tab\t"] {
            assert!(is_name(bad).eq(&false), "{bad}");
            assert!(matches!(create(bad), Err(TapError::BadName { .. })), "{bad}");
        }
        assert_eq!(name_of(&request("tap0")), "tap0");
    }

    #[test]
    fn a_descriptor_of_something_else_is_refused() {
        let file = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap();
        assert!(matches!(adopt(&file), Err(TapError::BadDescriptor { .. })));
    }
}
