//! TUN and TAP interfaces that an administrator prepares for a program.
//!
//! Unsafe lives here for the ioctls, which neither the standard library nor rustix offers.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The kind of a prepared interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunMode {
    /// IP packets.
    Tun,
    /// Ethernet frames.
    Tap,
    /// Ethernet frames, each after its offload header (`IFF_VNET_HDR`).
    TapWithHeader,
}

/// Makes a persistent interface in this namespace, which stays after its program has ended. The interface
/// is down. `user` may open it; with `None`, only an administrator may.
///
/// # Errors
/// The kernel's refusal: `EINVAL` for an interface that exists in another mode, `EPERM` without
/// `CAP_NET_ADMIN`.
pub fn add_persistent_tun(name: &str, mode: TunMode, user: Option<u32>) -> io::Result<()> {
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: an ifreq is numbers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = match mode {
        TunMode::Tun => libc::IFF_TUN,
        TunMode::Tap => libc::IFF_TAP,
        TunMode::TapWithHeader => libc::IFF_TAP | libc::IFF_VNET_HDR,
    };
    request.ifr_ifru.ifru_flags = (flags | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request takes an `ifreq`, which lives during the call.
    done(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    if let Some(user) = user {
        // SAFETY: the request takes a number, not an address.
        done(unsafe {
            libc::ioctl(file.as_raw_fd(), libc::TUNSETOWNER, libc::c_ulong::from(user))
        })?;
    }
    let stays: libc::c_ulong = 1;
    // SAFETY: the request takes a number, not an address.
    done(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST, stays) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
