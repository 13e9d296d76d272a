//! Checks that a process can create a TAP device in a private namespace.
//!
//! Unsafe lives here for one zeroed `ifreq`.

use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::enter::{Step, check_inside, ioctl};
use crate::error::Unavailable;

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

pub(crate) fn explain(error: &io::Error) -> Unavailable {
    let (step, errno) = Step::of(error).unwrap_or((Step::OpenTun, Errno::IO));
    let said = io::Error::from(errno);
    if step == Step::MakeTap {
        return Unavailable {
            cause: format!("no TAP can be made in a namespace of one's own: TUNSETIFF: {said}"),
            remedy: "run as root, or allow the program TAPs in AppArmor or SELinux".to_owned(),
        };
    }
    let remedy = match errno {
        Errno::NOENT => "modprobe tun; in a container: --device /dev/net/tun",
        Errno::NODEV | Errno::NXIO => "modprobe tun: the kernel lacks the driver behind the file",
        Errno::ACCESS | Errno::PERM => {
            "run as root, or: chmod 0666 /dev/net/tun, which is what udev does; \
             what may be done there is still decided by CAP_NET_ADMIN"
        }
        _ => "see what /dev/net/tun is",
    };
    Unavailable { cause: format!("/dev/net/tun cannot be opened: {said}"), remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_is_two_lines() {
        for step in [Step::OpenTun, Step::MakeTap] {
            for errno in [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM, Errno::IO] {
                let unavailable = explain(&step.failed(errno));
                assert_eq!(unavailable.to_string().lines().count(), 2, "{unavailable}");
            }
        }
    }
}
