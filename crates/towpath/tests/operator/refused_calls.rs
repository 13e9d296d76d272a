//! Starts of servers while a filter, like that of a container or like an old kernel, refuses a system call.
//!
//! Unsafe lives here for the hook between fork and exec, which makes only system calls.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::running::*;
use crate::serving::round_trip;

const TAP: [&str; 4] = ["--device", "tap:opA", "--address", "10.89.0.1/24"];

/// Makes a command start with a filter that answers one system call with an error.
fn refuse(command: &mut Command, call: libc::c_long, errno: i32) {
    refuse_some(command, call, Vec::new(), errno);
}

/// Makes a command start with a filter that answers a system call with an error if a rule matches the call's arguments.
/// Without rules, the filter always answers with the error.
fn refuse_some(command: &mut Command, call: libc::c_long, rules: Vec<SeccompRule>, errno: i32) {
    let (refused, allowed) = (SeccompAction::Errno(errno as u32), SeccompAction::Allow);
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let rules = [(call, rules)].into_iter().collect();
    let filter = SeccompFilter::new(rules, allowed, refused, architecture).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    let apply = move || apply_filter(&program).map_err(|_| std::io::ErrorKind::Other.into());
    // SAFETY: `apply` makes only system calls.
    unsafe { command.pre_exec(apply) };
}

/// The outcome of a start with a refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// An application attaches and exchanges packets.
    Serves,
    /// The start fails with status 77 and the name.
    Unavailable(&'static str),
}

use Outcome::{Serves, Unavailable};

/// Each call, with the outcomes for `EPERM` (a container's filter) and for `ENOSYS` (an old kernel).
const CASES: [(libc::c_long, Outcome, Outcome); 51] = [
    both(libc::SYS_epoll_pwait2, Unavailable("epoll_pwait2")),
    both(libc::SYS_epoll_create1, Unavailable("epoll_create1")),
    both(libc::SYS_memfd_create, Unavailable("memfd_create")),
    both(libc::SYS_fallocate, Unavailable("fallocate")),
    both(libc::SYS_pidfd_open, Unavailable("pidfd_open")),
    both(libc::SYS_pidfd_send_signal, Unavailable("pidfd_send_signal")),
    // The C library falls back only if there is no such call.
    (libc::SYS_clone3, Unavailable("clone3"), Serves),
    both(libc::SYS_close_range, Unavailable("close_range")),
    both(libc::SYS_signalfd4, Unavailable("signalfd4")),
    both(libc::SYS_eventfd2, Unavailable("eventfd2")),
    both(libc::SYS_socketpair, Unavailable("socketpair")),
    both(libc::SYS_pipe2, Unavailable("pipe2")),
    both(libc::SYS_vmsplice, Unavailable("vmsplice")),
    both(libc::SYS_fchmod, Unavailable("fchmod")),
    both(libc::SYS_flock, Unavailable("flock")),
    both(libc::SYS_epoll_ctl, Unavailable("epoll_ctl")),
    both(libc::SYS_fstat, Unavailable("fstat")),
    both(libc::SYS_lseek, Unavailable("lseek")),
    both(libc::SYS_madvise, Unavailable("madvise")),
    both(libc::SYS_clone, Unavailable("clone")),
    both(libc::SYS_rt_sigprocmask, Unavailable("rt_sigprocmask")),
    both(libc::SYS_socket, Unavailable("socket")),
    both(libc::SYS_listen, Unavailable("listen")),
    both(libc::SYS_ioctl, Unavailable("ioctl")),
    both(libc::SYS_recvfrom, Unavailable("recvfrom")),
    #[cfg(target_arch = "x86_64")]
    both(libc::SYS_dup2, Unavailable("dup2")),
    #[cfg(not(target_arch = "x86_64"))]
    both(libc::SYS_dup3, Unavailable("dup3")),
    both(libc::SYS_pwrite64, Unavailable("pwrite64")),
    both(libc::SYS_fstatfs, Unavailable("fstatfs")),
    both(libc::SYS_bind, Unavailable("bind")),
    #[cfg(target_arch = "x86_64")]
    both(libc::SYS_chmod, Unavailable("chmod")),
    #[cfg(target_arch = "x86_64")]
    both(libc::SYS_unlink, Unavailable("unlink")),
    #[cfg(not(target_arch = "x86_64"))]
    both(libc::SYS_fchmodat, Unavailable("fchmodat")),
    #[cfg(not(target_arch = "x86_64"))]
    both(libc::SYS_unlinkat, Unavailable("unlinkat")),
    both(libc::SYS_wait4, Unavailable("wait4")),
    both(libc::SYS_prlimit64, Unavailable("prlimit64")),
    // Each application's connection needs these.
    both(libc::SYS_accept4, Unavailable("accept4")),
    both(libc::SYS_getsockopt, Unavailable("getsockopt")),
    both(libc::SYS_setsockopt, Unavailable("setsockopt")),
    both(libc::SYS_sendto, Unavailable("sendto")),
    both(libc::SYS_sendmsg, Unavailable("sendmsg")),
    both(libc::SYS_writev, Unavailable("writev")),
    both(libc::SYS_recvmsg, Unavailable("recvmsg")),
    both(libc::SYS_ppoll, Unavailable("ppoll")),
    both(libc::SYS_shutdown, Unavailable("shutdown")),
    // Calls that a server does not need.
    both(libc::SYS_seccomp, Serves),
    both(libc::SYS_landlock_create_ruleset, Serves),
    both(libc::SYS_landlock_add_rule, Serves),
    both(libc::SYS_landlock_restrict_self, Serves),
    both(libc::SYS_membarrier, Serves),
    both(libc::SYS_mlock2, Serves),
    both(libc::SYS_statx, Serves),
    both(libc::SYS_rseq, Serves),
    both(libc::SYS_openat2, Serves),
];

const fn both(call: libc::c_long, outcome: Outcome) -> (libc::c_long, Outcome, Outcome) {
    (call, outcome, outcome)
}

#[test]
fn a_refused_call_is_named_at_the_start_or_not_needed() {
    towpath_testkit::isolated!(|| {
        if !tun("refused_calls::a_refused_call_is_named_at_the_start_or_not_needed") {
            return;
        }
        let directory = Directory::new();
        let with_errors =
            |(call, eperm, enosys)| [(call, libc::EPERM, eperm), (call, libc::ENOSYS, enosys)];
        for (call, errno, expected) in CASES.into_iter().flat_map(with_errors) {
            let mut program = towpath(&[]);
            refuse(&mut program, call, errno);
            let what = format!("call {call} with error {errno}");
            match Starting::with(program, &directory, "s.sock", &TAP).ready_or_end() {
                Ok(mut server) => {
                    assert_eq!(expected, Serves, "{what}");
                    round_trip(&server, 7);
                    assert!(server.stop(Signal::TERM).success(), "{what}: {}", server.log());
                }
                Err((status, said)) => {
                    let Unavailable(name) = expected else { panic!("{what}: {said}") };
                    assert_eq!(status.code(), Some(77), "{what}: {said}");
                    let [line] = said.lines().collect::<Vec<_>>()[..] else {
                        panic!("{what}: {said}")
                    };
                    assert!(line.contains(&format!("needs: {name}: ")), "{what}: {line}");
                    assert!(
                        line.ends_with(&format!("a seccomp filter that allows {name}")),
                        "{line}"
                    );
                }
            }
        }
    });
}

/// The filter refuses only calls that ask for a non-blocking socket. A server accepts with such calls; the attempt at
/// its start asks for a blocking socket.
#[test]
fn a_server_says_that_it_cannot_accept() {
    towpath_testkit::isolated!(|| {
        if !tun("refused_calls::a_server_says_that_it_cannot_accept") {
            return;
        }
        let directory = Directory::new();
        let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
        let are_these =
            SeccompCondition::new(3, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, flags).unwrap();
        let rule = SeccompRule::new(vec![are_these]).unwrap();
        let mut program = towpath(&[]);
        refuse_some(&mut program, libc::SYS_accept4, vec![rule], libc::EPERM);
        let starting = Starting::with(program, &directory, "s.sock", &TAP);
        let mut server = starting.ready_or_end().unwrap_or_else(|(_, said)| panic!("{said}"));
        assert!(!server.log().contains("cannot accept"), "{}", server.log());
        let flags = SocketFlags::CLOEXEC;
        let waits =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (waits, path) =
            (waits.unwrap(), SocketAddrUnix::new(directory.join("s.sock")).unwrap());
        rustix::net::connect(&waits, &path).unwrap();
        let said = "cannot accept a connection: accept4: Operation not permitted";
        until("a line of the log", || server.log().contains(said));
        // The server tries about 100 times per second. It logs the first 20 errors, and then one error per second.
        until("lines that were left out", || server.log().contains("were left out"));
        let lines = server.log().lines().filter(|line| line.contains(said)).count();
        assert!((20..60).contains(&lines), "{lines}");
        assert!(server.stop(Signal::TERM).success(), "{}", server.log());
    });
}
