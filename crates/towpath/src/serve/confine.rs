//! Confines the server and the keeper: another user, no capability, no way to regain one, and memory that other
//! processes of its user may not read; few system calls (`calls`), and few files (`files`).
//!
//! In Linux, each thread has its own credentials: all this happens before any other thread starts.

mod calls;
mod files;

pub(crate) use calls::Confinement;
use calls::Process;
pub(super) use files::ForServers;

use std::error::Error;
use std::io;
use std::path::Path;

use landlock::{RulesetError, RulesetStatus};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, no_new_privs, remove_capability_from_bounding_set,
    set_capabilities, set_keep_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use tracing::{info, warn};

use super::kind::Kind;
use super::values::Identity;
use crate::failure::{Failure, says};

/// The number of the highest capability that a `u64` can hold; the kernel reports where its own
/// capabilities end.
const LAST_CAPABILITY: u32 = 63;

/// The capabilities for programs and sockets on the host's interfaces, which a server needs until it
/// has opened its device.
pub(crate) const FOR_INTERFACES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON);

/// The capabilities of the keeper of a server which shares the host's addresses: to bind ports
/// below 1024, and to confirm neighbours.
const SHARES_HOST: CapabilitySet = CapabilitySet::NET_BIND_SERVICE.union(CapabilitySet::NET_ADMIN);

/// Returns the capabilities that the keeper keeps. With AF_XDP and packet sockets, each later server
/// opens the interface again, and needs the capabilities of the start. The keeper also makes AF_XDP
/// sockets.
pub(super) fn kept_capabilities(shares_host: bool, kind: Kind) -> CapabilitySet {
    let mut kept = CapabilitySet::empty();
    if shares_host {
        kept.insert(SHARES_HOST);
    }
    if kind == Kind::HostInterface {
        kept.insert(FOR_INTERFACES);
    }
    kept
}

/// Restricts the system calls and the files of a server that has started, and of its children. Warns
/// where the kernel cannot.
pub(super) fn restrict_server(
    mode: Confinement,
    policy: Option<&Path>,
    sockets: [&Path; 2],
) -> Result<(), Failure> {
    restrict(Process::Server, mode, || files::confine_server(policy, sockets))
}

/// Restricts the system calls and the files of a keeper, and of the servers that it starts. Warns
/// where the kernel cannot.
pub(super) fn restrict_keeper(
    mode: Confinement,
    devices: &[ForServers<'_>],
) -> Result<(), Failure> {
    restrict(Process::Keeper, mode, || files::confine_keeper(devices))
}

fn restrict(
    process: Process,
    mode: Confinement,
    confine_files: impl FnOnce() -> Result<RulesetStatus, RulesetError>,
) -> Result<(), Failure> {
    if mode == Confinement::Off {
        return Ok(());
    }
    let name = match process {
        Process::Server => "server",
        Process::Keeper => "keeper",
    };
    match confine_files() {
        Ok(RulesetStatus::NotEnforced) => {
            warn!(
                "this kernel has no Landlock, so the {name} reaches all files of its user; towpath doctor names the remedy"
            );
        }
        Ok(RulesetStatus::PartiallyEnforced) => info!(
            "this kernel's Landlock lacks restrictions that newer kernels have, for example of signals to other processes"
        ),
        Ok(RulesetStatus::FullyEnforced) => {}
        Err(error) if is_refused_call(&error) => {
            warn!(
                "a filter of system calls refuses Landlock, so the {name} reaches all files of its user: {error}; \
                 in a container, a seccomp filter that allows landlock_add_rule and landlock_restrict_self"
            );
        }
        Err(error) => {
            return Err(Failure::new(format!(
                "--confine: Landlock: {error}; --confine off serves without it"
            )));
        }
    }
    if let Err(error) = calls::confine(process, mode) {
        warn!(
            "there is no filter of system calls, so the {name} may make all: {error}; towpath doctor names the remedy"
        );
    }
    Ok(())
}

/// Returns `true` if the cause is a system call that a filter refuses, as of a container. Landlock itself refuses with
/// `EPERM` only a process that may gain rights.
fn is_refused_call(error: &(dyn Error + 'static)) -> bool {
    let may_gain_rights = !no_new_privs().unwrap_or(false);
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| match cause.downcast_ref().and_then(io::Error::raw_os_error) {
        Some(libc::EPERM) => !may_gain_rights,
        errno => errno == Some(libc::ENOSYS),
    })
}

/// Becomes `user`, if given, and drops every right but `kept`. Servers that it starts as an
/// ordinary user inherit those of `kept` that are in [`FOR_INTERFACES`]; as root, all of `kept`.
pub(super) fn confine_keeper(user: Option<&Identity>, kept: CapabilitySet) -> Result<(), Failure> {
    raise_descriptor_limit();
    set_keep_capabilities(true).map_err(|errno| failed("PR_SET_KEEPCAPS", errno))?;
    drop_all_but(kept, kept.intersection(FOR_INTERFACES), user)
}

/// Makes all of `kept` ambient, so that the program which this process executes next has it. Call
/// [`restore_ambient_capabilities`] in that program, or if the execution fails.
pub(super) fn raise_ambient_capabilities(kept: CapabilitySet) -> Result<(), Failure> {
    set_ambient(kept)
}

/// Makes only those of `kept` ambient that are in [`FOR_INTERFACES`]: those of a server that starts as an
/// ordinary user.
pub(super) fn restore_ambient_capabilities(kept: CapabilitySet) -> Result<(), Failure> {
    clear_ambient_capability_set().map_err(|errno| failed("ambient capabilities", errno))?;
    set_ambient(kept.intersection(FOR_INTERFACES))
}

/// Makes `capabilities_to_give` ambient, as far as this process has them.
fn set_ambient(capabilities_to_give: CapabilitySet) -> Result<(), Failure> {
    let has = capabilities(None).map_err(|errno| failed("capabilities", errno))?;
    let given = capabilities_to_give.intersection(has.permitted).intersection(has.inheritable);
    for one in given.iter() {
        configure_capability_in_ambient_set(one, true)
            .map_err(|errno| failed("ambient capabilities", errno))?;
    }
    Ok(())
}

/// Has the kernel send SIGTERM to this process when its parent, the keeper, ends. Call it after the
/// last change of rights, which cancels it.
pub(super) fn end_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|errno| failed("PR_SET_PDEATHSIG", errno))
}

/// Becomes `user`, if given, and drops every right that serving does not need.
///
/// Files that the server makes afterwards, above all session memories, belong to that user.
pub(super) fn confine(user: Option<&Identity>) -> Result<(), Failure> {
    raise_descriptor_limit();
    drop_all_but(CapabilitySet::empty(), CapabilitySet::empty(), user)
}

/// Raises the limit of locked memory as far as possible. AF_XDP locks the device's memory. Where
/// there is a swap device, the server also locks its sessions' memory. Call it before the change of
/// user.
pub(super) fn raise_memory_limit() {
    let most = rustix::process::getrlimit(Resource::Memlock).maximum;
    let no_limit = Rlimit { current: None, maximum: None };
    if rustix::process::setrlimit(Resource::Memlock, no_limit).is_err() {
        let limit = Rlimit { current: most, maximum: most };
        let _ = rustix::process::setrlimit(Resource::Memlock, limit);
    }
}

/// Raises the limit of descriptors. Each session takes a handful, and each port one. Call it before
/// the change of user.
pub(super) fn raise_descriptor_limit() {
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

/// Becomes `user`, if given, and drops every capability but `kept`. Programs that this process
/// starts as an ordinary user inherit those of `given`.
fn drop_all_but(
    kept: CapabilitySet,
    given: CapabilitySet,
    user: Option<&Identity>,
) -> Result<(), Failure> {
    // Before this process gives up the capabilities that other processes of its user lack: one of
    // them could otherwise take its descriptors.
    not_dumpable()?;
    let caps = |errno| failed("capabilities", errno);
    let has = capabilities(None).map_err(caps)?;
    let inheritable = kept.intersection(has.permitted);
    // Before the bounding set is emptied: a capability outside of it cannot become inheritable.
    set_capabilities(None, CapabilitySets { inheritable, ..has }).map_err(caps)?;
    drop_bounding_set().map_err(|errno| failed("the capability bounding set", errno))?;
    clear_ambient_capability_set().map_err(|errno| failed("ambient capabilities", errno))?;
    if let Some(user) = user {
        become_user(user)?;
    }
    let kept = kept.intersection(capabilities(None).map_err(caps)?.permitted);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })
        .map_err(caps)?;
    set_ambient(given)?;
    set_no_new_privs(true).map_err(|errno| failed("no_new_privs", errno))?;
    // A change of user may have reset it. Before the first memory file exists: a process that may
    // trace this one could open it writable.
    not_dumpable()
}

/// Makes this process undumpable, so that other processes of its user cannot look into its memory or its
/// descriptors.
pub(super) fn not_dumpable() -> Result<(), Failure> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| failed("PR_SET_DUMPABLE", errno))
}

/// Changes to `user`. The order matters: each step drops a right that the steps before it need.
fn become_user(user: &Identity) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let own = rustix::process::getuid() == uid && rustix::process::geteuid() == uid;
    if own && rustix::process::getgid() == gid && rustix::process::getegid() == gid {
        return Ok(());
    }
    let refused = |errno: Errno| {
        let why = match errno {
            Errno::PERM => {
                "only root may serve as another user: leave --user out, or start as root"
            }
            Errno::INVAL => "this user namespace has no such user: leave --user out",
            _ => "leave --user out",
        };
        Failure::new(format!("--user {user}: {}; {why}", says(&errno.into())))
    };
    set_thread_groups(&[gid]).map_err(refused)?;
    set_thread_res_gid(gid, gid, gid).map_err(refused)?;
    set_thread_res_uid(uid, uid, uid).map_err(refused)
}

fn drop_bounding_set() -> Result<(), Errno> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        // There is no capability to drop, and no_new_privs prevents that one comes back.
        return Ok(());
    }
    for number in 0..=LAST_CAPABILITY {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // Past the last capability that this kernel knows.
            Err(Errno::INVAL) => break,
            other => other?,
        }
    }
    Ok(())
}

fn failed(what: &str, errno: Errno) -> Failure {
    Failure::new(format!("dropping rights: {what}: {}", says(&errno.into())))
}
