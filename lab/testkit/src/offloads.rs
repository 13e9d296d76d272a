//! An interface's offloads (`linux/ethtool.h`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// `ETHTOOL_STSO`: whether the interface takes TCP packets of several segments.
const SET_TSO: u32 = 0x1f;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Makes an interface of this thread's network namespace take TCP packets of several segments, or
/// none, which the kernel then segments itself.
///
/// # Errors
/// The kernel's, also for a name that is too long.
pub fn set_tcp_segmentation(interface: &str, on: bool) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let mut value = Value { command: SET_TSO, data: on.into() };
    // SAFETY: `ifreq` consists of integers, arrays and pointers, so all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request is a live `ifreq` with a terminated name, and points to the command's
    // live structure, which the kernel reads.
    let result = unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
