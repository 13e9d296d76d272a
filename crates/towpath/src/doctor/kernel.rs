//! The kernel itself: requirements that no device and no permission can replace.
#![forbid(unsafe_code)]

use rustix::fs::MemfdFlags;
use towpath_sandbox::probe;

use super::finding::{Finding, Standing, read, says};
use crate::needed_calls::{self, RefusedCall};

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
    let (files, slept) = (needed_calls::memory_files(), needed_calls::sleeping());
    let (processes, started) = (needed_calls::processes(), needed_calls::threads());
    let (made, connected) = (needed_calls::descriptors(), needed_calls::connections());
    let needed = [files, slept, processes, started, made, connected];
    let suffices = needed.iter().all(Result::is_ok);
    let findings = vec![
        version(),
        memory_files(files),
        sleeping(slept),
        threads(started),
        descriptors(made),
        connections(connected),
        peers(processes),
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

/// Returns in words whether a memory file can be executable.
fn kind_of_memory_files() -> &'static str {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
    match rustix::fs::memfd_create("towpath-doctor", flags) {
        Ok(_) => "never executable",
        Err(_) => "executable: before Linux 6.3",
    }
}

fn memory_files(sealed: Result<(), RefusedCall>) -> Finding {
    match sealed {
        Ok(()) => Finding::new(
            "memory files",
            Standing::Ok,
            format!("sealed against all writers but one; {}", kind_of_memory_files()),
            "applications and server share memory without trusting each other",
        ),
        Err(refused) => missing(
            "memory files",
            refused,
            "memory cannot be shared safely, so no application can attach",
        ),
    }
}

fn sleeping(slept: Result<(), RefusedCall>) -> Finding {
    match slept {
        Ok(()) => Finding::new(
            "sleeping",
            Standing::Ok,
            "epoll_pwait2",
            "a server can sleep until a notification or a tick, with microsecond precision",
        ),
        Err(refused) => missing("sleeping", refused, "no server can wait"),
    }
}

fn threads(started: Result<(), RefusedCall>) -> Finding {
    match started {
        Ok(()) => {
            Finding::new("threads", Standing::Ok, "clone3, or clone", "a server can start threads")
        }
        Err(refused) => missing("threads", refused, "no server can start a thread"),
    }
}

fn descriptors(made: Result<(), RefusedCall>) -> Finding {
    match made {
        Ok(()) => Finding::new(
            "descriptors",
            Standing::Ok,
            "eventfd2, signalfd4, pipe2, socketpair, vmsplice, close_range",
            "threads and processes can wake each other",
        ),
        Err(refused) => missing("descriptors", refused, "no server can start"),
    }
}

fn connections(connected: Result<(), RefusedCall>) -> Finding {
    match connected {
        Ok(()) => Finding::new(
            "connections",
            Standing::Ok,
            "socket, bind, listen, accept4, ioctl, getsockopt, setsockopt, sendto, sendmsg, recvfrom, recvmsg, writev, \
             ppoll, shutdown, and the calls that change and remove the socket's file",
            "applications can attach",
        ),
        Err(refused) => missing("connections", refused, "no application can attach"),
    }
}

/// Returns the finding for a refused call that every server needs.
fn missing(name: &'static str, refused: RefusedCall, means: &str) -> Finding {
    Finding::new(name, Standing::Missing, refused.found(), means).remedy(refused.remedy())
}

fn peers(processes: Result<(), RefusedCall>) -> Finding {
    if let Err(refused) = processes {
        return missing("peers", refused, "no keeper can start and watch a server");
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
