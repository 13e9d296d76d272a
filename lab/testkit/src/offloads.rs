//! An interface's offloads (`linux/ethtool.h`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// `ETHTOOL_STSO`: whether the interface takes TCP packets of several segments.
const SET_TSO: u32 = 0x1f;
/// `ETHTOOL_GTSO`, `ETHTOOL_GGSO` and `ETHTOOL_GGRO`, each with the command that sets what it reads:
/// TCP packets of several segments, any packets of several, and received packets that are merged.
const LARGE_PACKETS: [(u32, u32); 3] = [(0x1e, SET_TSO), (0x23, 0x24), (0x2b, 0x2c)];

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
    ask(interface, SET_TSO, on.into()).map(|_| ())
}

/// Makes an interface of this thread's network namespace take no packets of several segments, and
/// merge none that it receives: TSO, GSO and GRO are off.
///
/// # Errors
/// The kernel's, also for a name that is too long; and if the kernel leaves one of them on.
pub fn without_large_packets(interface: &str) -> io::Result<()> {
    for (get, set) in LARGE_PACKETS {
        // An interface that cannot change one refuses the command, also if it is off.
        let changed = ask(interface, set, 0);
        if ask(interface, get, 0)? != 0 {
            changed?;
            return Err(io::Error::other(format!("{interface}: offload {set:#x} stays on")));
        }
    }
    Ok(())
}

/// Runs a command of an interface. Returns its value.
fn ask(interface: &str, command: u32, data: u32) -> io::Result<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let mut value = Value { command, data };
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
    // live structure, which the kernel reads and writes.
    let result = unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value.data) }
}
