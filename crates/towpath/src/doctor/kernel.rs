//! The kernel itself: requirements that no device and no permission can replace.
#![forbid(unsafe_code)]

use std::mem::MaybeUninit;

use rustix::event::{Timespec, epoll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use towpath_sandbox::probe;

use super::finding::{Finding, Standing, read, says};

/// The oldest kernel with all required features; the newest of these is a sleep of less than a
/// millisecond.
const OLDEST: (u32, u32) = (5, 11);

/// The version of Landlock's interface with everything that the server uses.
const FULL_LANDLOCK: u32 = 6;
/// The oldest kernel with all features; the newest of these is `SO_PASSRIGHTS`.
const FULL: (u32, u32) = (6, 16);

pub(super) struct Kernel {
    pub(super) findings: Vec<Finding>,
    /// `true` if Towpath can run on this kernel.
    pub(super) suffices: bool,
}

pub(super) fn look() -> Kernel {
    let seals = seals();
    let pidfd = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map(drop);
    let sleep = short_sleep();
    let suffices = seals.is_ok() && sleep.is_ok();
    let findings = vec![
        version(),
        memory_files(seals),
        sleeping(sleep),
        peers(pidfd),
        io_uring(),
        landlock(),
        seccomp(),
    ];
    Kernel { findings, suffices }
}

fn version() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let machine = uname.machine().to_string_lossy().into_owned();
    let found = format!("Linux {release} on {machine}");
    let full = format!("{}.{}", FULL.0, FULL.1);
    let oldest = format!("{}.{}", OLDEST.0, OLDEST.1);
    let (standing, means) = match parse(&release) {
        Some(version) if version >= FULL => {
            (Standing::Ok, format!("Towpath needs Linux {oldest}, and uses features up to {full}"))
        }
        Some(version) if version >= OLDEST => {
            (Standing::Limited, format!("sufficient, but some features need up to Linux {full}"))
        }
        Some(_) => (Standing::Missing, format!("Towpath needs Linux {oldest}")),
        None => (Standing::Limited, format!("unknown version; Towpath needs Linux {oldest}")),
    };
    let remedy = format!("Linux {full} or newer, which has all features");
    Finding::new("kernel", standing, found, means).remedy(remedy)
}

/// Parses the first two numbers of a release such as `6.18.44-generic`.
fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Makes a memory file and seals it like a session's. Returns in words whether the file
/// can be executable.
fn seals() -> Result<&'static str, (&'static str, Errno)> {
    let make = |flags| rustix::fs::memfd_create("towpath-doctor", flags);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let (file, kind) = match make(flags | MemfdFlags::NOEXEC_SEAL) {
        Ok(file) => (file, "never executable"),
        // Before Linux 6.3.
        Err(_) => {
            (make(flags).map_err(|errno| ("memfd_create", errno))?, "executable: before Linux 6.3")
        }
    };
    rustix::fs::ftruncate(&file, 4096).map_err(|errno| ("ftruncate", errno))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(|errno| ("F_SEAL_FUTURE_WRITE", errno))?;
    Ok(kind)
}

fn memory_files(seals: Result<&'static str, (&'static str, Errno)>) -> Finding {
    match seals {
        Ok(kind) => Finding::new(
            "memory files",
            Standing::Ok,
            format!("sealed against all writers but one; {kind}"),
            "applications and server share memory without trusting each other",
        ),
        Err((what, errno)) => Finding::new(
            "memory files",
            Standing::Missing,
            format!("{what}: {}", says(errno)),
            "memory cannot be shared safely, so no application can attach",
        )
        .remedy("Linux 5.1 or newer; in a container, a seccomp filter that allows memfd_create"),
    }
}

/// Sleeps as the server does.
fn short_sleep() -> Result<(), Errno> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut events = [const { MaybeUninit::uninit() }; 1];
    let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000 };
    epoll::wait(&epoll, &mut events[..], Some(&timeout)).map(drop)
}

fn sleeping(slept: Result<(), Errno>) -> Finding {
    match slept {
        Ok(()) => Finding::new(
            "sleeping",
            Standing::Ok,
            "epoll_pwait2",
            "a server can sleep until a notification or a tick, with microsecond precision",
        ),
        Err(errno) => Finding::new(
            "sleeping",
            Standing::Missing,
            format!("epoll_pwait2: {}", says(errno)),
            "no server can wait",
        )
        .remedy("Linux 5.11 or newer; in a container, a seccomp filter that allows epoll_pwait2"),
    }
}

fn peers(pidfd: Result<(), Errno>) -> Finding {
    if let Err(errno) = pidfd {
        return Finding::new(
            "peers",
            Standing::Limited,
            format!("pidfd_open: {}", says(errno)),
            "the server knows a peer's user and groups; its process number may be reused",
        )
        .remedy("Linux 5.3 or newer; in a container, a seccomp filter that allows pidfd_open");
    }
    match probe::peer_pidfd() {
        Ok(()) => Finding::new(
            "peers",
            Standing::Ok,
            "pidfd_open, SO_PEERPIDFD",
            "the server identifies a socket's peer, even if process numbers are reused",
        ),
        Err(errno) => Finding::new(
            "peers",
            Standing::Limited,
            format!("pidfd_open; SO_PEERPIDFD: {}", says(errno)),
            "the server knows a peer's user and groups; its process number may be reused",
        )
        .remedy("Linux 6.5 or newer"),
    }
}

fn io_uring() -> Finding {
    match probe::io_uring() {
        Ok(()) => Finding::new(
            "io_uring",
            Standing::Ok,
            "allowed",
            "not used yet; it could drive devices that are files, such as TAP",
        ),
        Err(errno) => {
            let setting = read("/proc/sys/kernel/io_uring_disabled");
            let remedy = match setting.as_deref() {
                Some("1" | "2") => "sysctl -w kernel.io_uring_disabled=0",
                _ => "in a container, a seccomp filter that allows io_uring_setup",
            };
            Finding::new(
                "io_uring",
                Standing::Limited,
                says(errno),
                "not used yet: devices that are files take a system call per packet",
            )
            .remedy(remedy)
        }
    }
}

fn landlock() -> Finding {
    match probe::landlock() {
        Ok(version) if version >= FULL_LANDLOCK => Finding::new(
            "Landlock",
            Standing::Ok,
            format!("interface version {version}"),
            "a server reaches few files, no TCP port, and no process outside by a signal",
        ),
        Ok(version) => Finding::new(
            "Landlock",
            Standing::Limited,
            format!("interface version {version}"),
            "a server reaches few files; version 4 forbids TCP ports too, and version 6 signals",
        )
        .remedy("Linux 6.12 or newer"),
        Err(errno) => Finding::new(
            "Landlock",
            Standing::Limited,
            says(errno),
            "an attacker who takes a server over reaches all files of the server's user",
        )
        .remedy("Linux 5.13 or newer with landlock in the lsm= list of its command line"),
    }
}

fn seccomp() -> Finding {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "errno") {
        return Finding::new(
            "seccomp",
            Standing::Ok,
            "filters of system calls",
            "the kernel refuses calls that a server does not need, such as to execute a program",
        );
    }
    Finding::new(
        "seccomp",
        Standing::Limited,
        "no filters of system calls",
        "an attacker who takes a server over may make all calls",
    )
    .remedy("a kernel with CONFIG_SECCOMP_FILTER")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        assert_eq!(parse("6.18.44-generic"), Some((6, 18)));
        assert_eq!(parse("5.3"), Some((5, 3)));
        assert_eq!(parse("5.10-rc1+"), Some((5, 10)));
        for odd in ["", "6", "six.one", "-1.2", "99999999999.1"] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
    }
}
