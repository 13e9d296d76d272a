//! A network namespace of the test's own: everything that the test makes there vanishes with it.

use std::process::{Command, exit};

/// Moves the process into a network namespace of its own, as root or in a user namespace. Where the
/// kernel refuses that, it says so and ends the process: as a failure when `TOWPATH_REQUIRE_ALL=1`,
/// successfully otherwise.
pub(crate) fn enter(test: &str) {
    // SAFETY: takes no pointers; the process has one thread.
    let root = unsafe { libc::geteuid() } == 0;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let flags = if root { libc::CLONE_NEWNET } else { libc::CLONE_NEWUSER | libc::CLONE_NEWNET };
    // SAFETY: takes no pointers; the process has one thread, whose namespaces are its own affair.
    if unsafe { libc::unshare(flags) } != 0 {
        let error = std::io::Error::last_os_error();
        skip(test, &format!("no network namespace of its own: unshare: {error}"));
    }
    if !root {
        let maps = [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("0 {uid} 1")),
            ("gid_map", format!("0 {gid} 1")),
        ];
        for (file, text) in maps {
            if let Err(error) = std::fs::write(format!("/proc/self/{file}"), text) {
                skip(test, &format!("no user namespace of its own: {file}: {error}"));
            }
        }
    }
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        skip(test, &format!("/dev/net/tun: {error}"));
    }
    if !has("ip") {
        skip(test, "the command ip (iproute2) is not there");
    }
    // Without IPv6 the kernel sends nothing of its own accord. Where there is none, there is no
    // file.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    ip("link set lo up");
}

/// Says why a test cannot run here, and ends the process.
pub(crate) fn skip(test: &str, why: &str) -> ! {
    println!("SKIP {test}: {why}");
    exit(i32::from(required()));
}

/// `true` if a test that cannot run is a failure.
pub(crate) fn required() -> bool {
    std::env::var_os("TOWPATH_REQUIRE_ALL").is_some_and(|value| value == "1")
}

/// `true` if a command is there.
pub(crate) fn has(command: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(command).is_file())
}

/// Gives a command a namespace in which it is the user `nobody`: in a user namespace a command
/// takes itself for root, and tcpdump then fails to become another user.
pub(crate) fn unprivileged(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    if std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny") {
        let enter = || {
            // SAFETY: takes no pointers; a system call and nothing else between fork and exec.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        };
        // SAFETY: `enter` makes one system call, which is allowed there.
        unsafe { command.pre_exec(enter) };
    }
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
}
