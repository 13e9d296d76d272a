//! The system calls that a server makes after its start, and those that the keeper makes, which starts
//! the next one. The kernel refuses all others (seccomp(2)).
//!
//! The server's list has what the server's threads, the process that makes workers, and the workers call, by
//! the C library of Debian 12 and Rust's standard library. Among what is left out: to execute a program
//! (`execve`), to look into other processes (`ptrace`, `process_vm_readv`), to change namespaces or
//! mounts, sockets of the network (`socket` with other families), io_uring, and keys.
//!
//! The keeper's list has the server's calls, and what a server calls until it has given up its rights: to execute
//! a program, to make sockets for the interface and for ports, and to restrict itself.
//!
//! Threads and processes that start later have the filter too, and no process can remove it.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use serde::{Deserialize, Serialize};

/// What happens to a server's system calls that it does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Confinement {
    /// They fail.
    #[default]
    Refuse,
    /// They end the server, and another one follows.
    Kill,
    /// The server may make all calls and reach all files of its user.
    Off,
}

/// Calls that are allowed with any arguments.
const CALLS: &[libc::c_long] = &[
    // Reading, writing and waiting.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    // Calls on sockets. The rule of `socket` is below.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    // Files: landlock restricts which.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_umask,
    // Memory.
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_msync,
    libc::SYS_vmsplice,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads and processes, without execve; `clone` is below.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_prctl,
    libc::SYS_getrusage,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    // Signals and time.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    // Maps of programs that the server attached. It has no capability to load others.
    libc::SYS_bpf,
];

/// Calls that only this architecture has, as older forms of others.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_chmod,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_arch_prctl,
    libc::SYS_time,
    libc::SYS_getpgrp,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[libc::c_long] = &[];

/// The netlink protocols in use: interfaces, addresses and routes; and what AF_XDP offers on an
/// interface.
const NETLINK_PROTOCOLS: [libc::c_int; 2] = [libc::NETLINK_ROUTE, libc::NETLINK_GENERIC];

/// The flags of `clone` that give a process namespaces of its own. In a new user namespace it has every
/// capability.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Requests of `ioctl` that insert input into the terminal at which the server was started.
const TERMINAL_INPUT: [libc::c_ulong; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Calls with a process or thread as the first argument, which may be only 0: the caller. The kernel would otherwise
/// let a process set the limits and processors of every process of its user, the keeper among them.
const ON_ITSELF: [libc::c_long; 2] = [libc::SYS_prlimit64, libc::SYS_sched_setaffinity];

/// Calls of a keeper, and of a server that starts, with any arguments.
const STARTING: &[libc::c_long] = &[
    // The next server's program.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Sockets of the server's user, and a new file of --pcap.
    libc::SYS_fchown,
    // The restrictions of that server.
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
];

/// The families of the sockets that only a keeper makes, and a server that starts: those that hold
/// ports, and those of the interface.
const STARTING_FAMILIES: [libc::c_int; 4] =
    [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_XDP];

/// A process that is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// A server that has started.
    Server,
    /// A keeper, and a server that starts.
    Keeper,
}

/// Has the kernel refuse all other calls of this thread, and of threads and processes that it
/// starts.
///
/// # Errors
/// Fails if the kernel has no filters of system calls.
pub(super) fn confine(process: Process, mode: Confinement) -> Result<(), seccompiler::Error> {
    let refused = match mode {
        Confinement::Off => return Ok(()),
        // A program that is installed later may try calls that this list does not know. It has other
        // ways if the kernel seems to be without them.
        Confinement::Refuse if process == Process::Keeper => {
            SeccompAction::Errno(libc::ENOSYS as u32)
        }
        Confinement::Refuse => SeccompAction::Errno(libc::EPERM as u32),
        Confinement::Kill => SeccompAction::KillProcess,
    };
    // This filter comes first: the server's other one refuses the system call that adds a filter.
    seccompiler::apply_filter(&without_clone3()?)?;
    seccompiler::apply_filter(&program(process, refused)?)
}

/// Returns a filter that answers `clone3` with ENOSYS, because a filter cannot read its flags. The C
/// library then calls `clone`.
fn without_clone3() -> Result<BpfProgram, seccompiler::Error> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, architecture)?;
    Ok(filter.try_into()?)
}

fn program(process: Process, refused: SeccompAction) -> Result<BpfProgram, seccompiler::Error> {
    let any = |call: &libc::c_long| (*call, Vec::new());
    let (starting, families): (&[_], &[_]) = match process {
        Process::Server => (&[], &[]),
        Process::Keeper => (STARTING, &STARTING_FAMILIES),
    };
    let calls = CALLS.iter().chain(OLDER_CALLS).chain(starting);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(any).collect();
    let argument = |number: u8, operator: SeccompCmpOp, value: u64| {
        SeccompCondition::new(number, SeccompCmpArgLen::Dword, operator, value)
    };
    let family = |family: libc::c_int| argument(0, SeccompCmpOp::Eq, family as u64);
    // Control connections, and the C library's name services.
    let mut sockets = vec![SeccompRule::new(vec![family(libc::AF_UNIX)?])?];
    for other in families {
        sockets.push(SeccompRule::new(vec![family(*other)?])?);
    }
    for protocol in NETLINK_PROTOCOLS {
        let protocol = argument(2, SeccompCmpOp::Eq, protocol as u64)?;
        sockets.push(SeccompRule::new(vec![family(libc::AF_NETLINK)?, protocol])?);
    }
    rules.insert(libc::SYS_socket, sockets);
    let no_namespace = argument(0, SeccompCmpOp::MaskedEq(NAMESPACES as u32 as u64), 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespace])?]);
    let not = |request: libc::c_ulong| argument(1, SeccompCmpOp::Ne, request);
    let no_input = TERMINAL_INPUT.into_iter().map(not).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(no_input)?]);
    for call in ON_ITSELF {
        rules.insert(call, vec![SeccompRule::new(vec![argument(0, SeccompCmpOp::Eq, 0)?])?]);
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// Calls in a thread of its own, which alone is confined.
    fn confined<T: Send>(process: Process, call: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).unwrap();
                confine(process, Confinement::Refuse).unwrap();
                call()
            });
            thread.join().unwrap()
        })
    }

    /// Makes calls that neither a server nor a keeper makes, and checks the error.
    fn make_refused_calls(errno: i32) {
        let refused = |outcome: i64| {
            assert_eq!(outcome, -1);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(errno));
        };
        // SAFETY: calls without pointers.
        unsafe {
            refused(libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0));
            refused(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER));
            refused(libc::syscall(libc::SYS_io_uring_setup, 1, 0));
            refused(libc::syscall(libc::SYS_personality, 0));
            refused(libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSTI, 0));
            // Another process of the same user has other limits and processors only by its own call.
            for process in [libc::getpid(), libc::getppid()] {
                let nofile = libc::RLIMIT_NOFILE;
                refused(libc::syscall(libc::SYS_prlimit64, process, nofile, 0, 0));
                refused(libc::syscall(libc::SYS_sched_setaffinity, process, 0, 0));
            }
            for namespace in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
                let flags = namespace | libc::SIGCHLD;
                refused(libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0));
            }
            let (netlink, raw) = (libc::AF_NETLINK, libc::SOCK_RAW);
            refused(libc::syscall(libc::SYS_socket, netlink, raw, libc::NETLINK_NETFILTER));
            refused(libc::syscall(libc::SYS_socket, libc::AF_VSOCK, libc::SOCK_STREAM, 0));
            assert_eq!(libc::syscall(libc::SYS_clone3, 0, 0), -1);
            let missing = std::io::Error::last_os_error();
            assert_eq!(missing.raw_os_error(), Some(libc::ENOSYS));
        }
    }

    /// Makes calls that both make.
    fn make_allowed_calls() {
        std::os::unix::net::UnixDatagram::unbound().unwrap();
        towpath_netlink::Netlink::open().unwrap().links().unwrap();
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limits).unwrap();
        let processors = rustix::thread::sched_getaffinity(None).unwrap();
        rustix::thread::sched_setaffinity(None, &processors).unwrap();
        std::fs::read("/proc/self/status").unwrap();
        std::thread::spawn(|| ()).join().unwrap();
    }

    #[test]
    fn a_server_may_make_only_its_calls() {
        confined(Process::Server, || {
            make_refused_calls(libc::EPERM);
            let child = std::process::Command::new("/bin/true").status().unwrap_err();
            assert_eq!(child.kind(), ErrorKind::PermissionDenied);
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err();
            assert_eq!(socket.kind(), ErrorKind::PermissionDenied);
            make_allowed_calls();
        });
    }

    #[test]
    fn a_keeper_may_start_a_server_too() {
        confined(Process::Keeper, || {
            make_refused_calls(libc::ENOSYS);
            make_allowed_calls();
            assert!(std::process::Command::new("/bin/true").status().unwrap().success());
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            // A server that starts from here can restrict itself further.
            confine(Process::Server, Confinement::Refuse).unwrap();
            let child = std::process::Command::new("/bin/true").status().unwrap_err();
            assert_eq!(child.kind(), ErrorKind::PermissionDenied);
        });
    }
}
