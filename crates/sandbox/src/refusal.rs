//! The machine's refusals of a private namespace or of a TAP device: the failed step, and its
//! remedy.

use std::fs;
use std::io;

use rustix::io::Errno;

use crate::error::Unavailable;

/// A step of the entry. A child that fails between fork and exec can report only an error number,
/// so that number also encodes the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Unshare = 1,
    DenyGroups = 2,
    MapUser = 3,
    MapGroup = 4,
    Loopback = 5,
    OpenTun = 6,
    MakeTap = 7,
    /// Not a failure: a check without an exec reached its end.
    Passed = 8,
}

const STEP_SHIFT: u32 = 16;

impl Step {
    pub(crate) fn failed(self, errno: Errno) -> io::Error {
        io::Error::from_raw_os_error((self as i32) << STEP_SHIFT | errno.raw_os_error())
    }

    /// Decodes an error of [`failed`](Step::failed); `None` for any other error.
    pub(crate) fn of(error: &io::Error) -> Option<(Step, Errno)> {
        let code = error.raw_os_error()?;
        let step = match code >> STEP_SHIFT {
            1 => Step::Unshare,
            2 => Step::DenyGroups,
            3 => Step::MapUser,
            4 => Step::MapGroup,
            5 => Step::Loopback,
            6 => Step::OpenTun,
            7 => Step::MakeTap,
            8 => Step::Passed,
            _ => return None,
        };
        let errno = code & ((1 << STEP_SHIFT) - 1);
        (1..4096).contains(&errno).then(|| (step, Errno::from_raw_os_error(errno)))
    }
}

pub(crate) fn explain_unavailable(error: &io::Error) -> Unavailable {
    match Step::of(error) {
        Some((step @ (Step::OpenTun | Step::MakeTap), errno)) => explain_tap(step, errno),
        Some((step, errno)) => explain_namespace(step, errno, &Settings::read()),
        None => Unavailable {
            cause: format!("a child process cannot be started: {error}"),
            remedy: "raise the limit on processes (ulimit -u) or memory".to_owned(),
        },
    }
}

/// The settings that decide whether an ordinary user may create namespaces.
#[derive(Debug, Default)]
struct Settings {
    /// `user.max_user_namespaces`.
    most_user: Option<u64>,
    /// `user.max_net_namespaces`.
    most_net: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, of Debian's kernels.
    ordinary_users: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, of Ubuntu's.
    apparmor: Option<u64>,
    /// `true` if a seccomp filter applies to this process, as in most containers.
    seccomp: bool,
}

impl Settings {
    fn read() -> Settings {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Settings {
            most_user: number("/proc/sys/user/max_user_namespaces"),
            most_net: number("/proc/sys/user/max_net_namespaces"),
            ordinary_users: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            seccomp: status.lines().any(|line| line == "Seccomp:\t2"),
        }
    }
}

fn explain_namespace(step: Step, errno: Errno, settings: &Settings) -> Unavailable {
    let what = match step {
        Step::Unshare => "unshare",
        Step::DenyGroups => "writing setgroups",
        Step::MapUser => "writing uid_map",
        Step::MapGroup => "writing gid_map",
        _ => "setting the loopback up",
    };
    let said = io::Error::from(errno);
    let (why, remedy) = if settings.most_user == Some(0) {
        (
            "user.max_user_namespaces is 0",
            "run as root, or: sysctl -w user.max_user_namespaces=10000",
        )
    } else if settings.most_net == Some(0) {
        ("user.max_net_namespaces is 0", "as root: sysctl -w user.max_net_namespaces=10000")
    } else if settings.ordinary_users == Some(0) {
        (
            "kernel.unprivileged_userns_clone is 0",
            "run as root, or: sysctl -w kernel.unprivileged_userns_clone=1",
        )
    } else if settings.apparmor == Some(1) {
        (
            "AppArmor keeps programs without a profile from user namespaces",
            "run as root, or: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    } else if matches!(errno, Errno::NOSYS | Errno::INVAL) {
        (
            "this kernel has no user namespaces, or none for this process",
            "run as root, or use a kernel with CONFIG_USER_NS and CONFIG_NET_NS",
        )
    } else if errno == Errno::NOENT {
        ("/proc is not mounted", "mount -t proc proc /proc, or run as root")
    } else if errno == Errno::NOSPC {
        (
            "there are as many namespaces as allowed",
            "raise user.max_user_namespaces and user.max_net_namespaces, or end what holds them",
        )
    } else if settings.seccomp {
        (
            "a seccomp filter forbids it, as in a container",
            "start the container with --cap-add SYS_ADMIN --cap-add NET_ADMIN \
             --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
        )
    } else {
        ("the kernel forbids it to this user", "run as root")
    };
    Unavailable {
        cause: format!("no network namespace of one's own: {what}: {said}: {why}"),
        remedy: remedy.to_owned(),
    }
}

fn explain_tap(step: Step, errno: Errno) -> Unavailable {
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
    fn a_failed_step_is_encoded_in_an_error_number() {
        for step in [Step::Unshare, Step::MapGroup, Step::MakeTap, Step::Passed] {
            assert_eq!(Step::of(&step.failed(Errno::PERM)), Some((step, Errno::PERM)));
        }
        assert_eq!(Step::of(&io::Error::from_raw_os_error(libc::EPERM)), None);
        assert_eq!(Step::of(&io::Error::other("no number")), None);
        for odd in [0x1_0000, 0x1_ffff, 0x7fff_0001, -1, i32::MIN] {
            assert_eq!(Step::of(&io::Error::from_raw_os_error(odd)), None, "{odd}");
        }
    }

    #[test]
    fn each_refusal_has_its_own_cause_and_remedy_of_one_line() {
        let cases = [
            (Settings { most_user: Some(0), ..Settings::default() }, Errno::NOSPC, "max_user"),
            (Settings { most_net: Some(0), ..Settings::default() }, Errno::NOSPC, "max_net"),
            (
                Settings { ordinary_users: Some(0), ..Settings::default() },
                Errno::PERM,
                "unprivileged_userns_clone=1",
            ),
            (Settings { apparmor: Some(1), ..Settings::default() }, Errno::ACCESS, "apparmor"),
            (Settings::default(), Errno::NOSYS, "CONFIG_USER_NS"),
            (Settings::default(), Errno::NOSPC, "raise"),
            (Settings::default(), Errno::NOENT, "mount -t proc"),
            (Settings { seccomp: true, ..Settings::default() }, Errno::PERM, "--cap-add"),
            (Settings::default(), Errno::PERM, "run as root"),
        ];
        for (settings, errno, word) in cases {
            let unavailable = explain_namespace(Step::Unshare, errno, &settings);
            assert!(unavailable.remedy.contains(word), "{unavailable:?}");
            assert_eq!(unavailable.to_string().lines().count(), 2);
        }
    }

    #[test]
    fn each_refusal_of_a_tap_is_two_lines() {
        for step in [Step::OpenTun, Step::MakeTap] {
            for errno in [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM, Errno::IO] {
                let unavailable = explain_unavailable(&step.failed(errno));
                assert_eq!(unavailable.to_string().lines().count(), 2, "{unavailable}");
            }
        }
    }
}
