//! Checks that a process can create a TAP device in a private namespace.
//!
//! Unsafe lives here for one zeroed `ifreq`.

use std::io;

use rustix::fs::{Mode, OFlags};

use crate::enter::{check_inside, ioctl};
use crate::error::Unavailable;
use crate::refusal::Step;

/// `_IOW('T', 202, int)` of `linux/if_tun.h`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;

/// Checks that a TAP device can be created after [`enter`](crate::enter). Tries it in a child, so
/// that nothing is left behind.
///
/// # Errors
/// The obstacle: no namespace, no `/dev/net/tun`, or no right to it.
pub fn check_tun() -> Result<(), Unavailable> {
    check_inside(make_tap)
}

/// Creates a TAP device with only system calls. Closing the descriptor removes the interface.
fn make_tap() -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let tun = rustix::fs::open(c"/dev/net/tun", flags, Mode::empty())
        .map_err(|errno| Step::OpenTun.failed(errno))?;
    // SAFETY: an ifreq is numbers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request takes an `ifreq`.
    unsafe { ioctl(&tun, TUNSETIFF, &mut request) }.map_err(|errno| Step::MakeTap.failed(errno))
}
