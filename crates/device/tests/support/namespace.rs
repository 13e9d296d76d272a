//! The test's own network namespace: all objects that the test creates there vanish with it.

use std::process::{Command, exit};

/// Moves the process into a network namespace of its own, as root or in a user namespace. If the
/// kernel refuses, reports that and ends the process: with a failure if `TOWPATH_REQUIRE_ALL=1`,
/// and else successfully.
pub(crate) fn enter(test: &str) {
    // SAFETY: the call takes no pointers, and the process has one thread.
    let root = unsafe { libc::geteuid() } == 0;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let flags = if root { libc::CLONE_NEWNET } else { libc::CLONE_NEWUSER | libc::CLONE_NEWNET };
    // SAFETY: the call takes no pointers, and the process has one thread.
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
        skip(test, "there is no command ip (iproute2)");
    }
    // Without IPv6 the kernel sends nothing by itself. A kernel without IPv6 does not have these
    // files.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    ip("link set lo up");
}

/// Reports why a test cannot run here, and ends the process.
pub(crate) fn skip(test: &str, why: &str) -> ! {
    println!("SKIP {test}: {why}");
    exit(i32::from(required()));
}

/// `true` if a test that cannot run is a failure.
pub(crate) fn required() -> bool {
    std::env::var_os("TOWPATH_REQUIRE_ALL").is_some_and(|value| value == "1")
}

/// `true` if a command exists.
pub(crate) fn has(command: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(command).is_file())
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
}
