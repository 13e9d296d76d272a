//! Users for a server and its applications: distinct ones if the caller is root, else the caller
//! itself.
//!
//! Unsafe lives here for the hook between fork and exec, which makes only system calls, see
//! [`Confinement::apply`].

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::error::Error;

/// The first of the three user and group numbers. They need no account, and no system assigns them:
/// accounts end at 60000, and systemd's own ranges leave 60706 to 61183 free.
const FIRST_ID: u32 = 61001;

/// The number of the highest capability that a `u64` can hold; the kernel reports its own last one.
const LAST_CAPABILITY: u32 = 63;

/// A user that a process runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The number of its only group.
    pub gid: u32,
    /// `true` if this is another user than the caller.
    other: bool,
}

/// The users that run the server and the applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Users {
    /// The server's.
    pub server: User,
    /// The applications'.
    pub applications: [User; 2],
    /// `true` if these are three users, none of them the caller. Otherwise all are the caller, and
    /// tests cannot show the protection by separate users.
    pub distinct: bool,
}

impl Users {
    /// Returns three users with the numbers 61001 to 61003 if the caller may become any user; else
    /// the caller alone.
    #[must_use]
    pub fn find() -> Users {
        if may_become_anybody() {
            let user = |n| User { uid: FIRST_ID + n, gid: FIRST_ID + n, other: true };
            return Users { server: user(0), applications: [user(1), user(2)], distinct: true };
        }
        let own = User::caller();
        Users { server: own, applications: [own, own], distinct: false }
    }
}

fn may_become_anybody() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::SETPCAP;
    let may = capabilities(None).is_ok_and(|own| own.effective.contains(needed));
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    may && maps_ours(&text("/proc/self/uid_map"))
        && maps_ours(&text("/proc/self/gid_map"))
        // The file is absent on kernels whose user namespaces cannot deny it.
        && text("/proc/self/setgroups").trim() != "deny"
}

/// Returns `true` if the users exist in this user namespace, by its `uid_map`: lines of "first
/// here, first outside, count". One line must contain all three users.
fn maps_ours(map: &str) -> bool {
    maps(map, FIRST_ID, 3)
}

fn maps(map: &str, wanted: u32, many: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        let (wanted, many) = (u64::from(wanted), u64::from(many));
        first <= wanted && wanted + many <= first.saturating_add(count)
    })
}

impl User {
    /// Returns the caller.
    #[must_use]
    pub fn caller() -> User {
        User {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            other: false,
        }
    }

    /// Returns another user of the same group, one of up to a hundred. Such users are like the
    /// subordinate users that a user namespace gives to its creator. Returns `None` if the caller
    /// cannot become that user.
    #[must_use]
    pub fn subordinate(&self, number: u32) -> Option<User> {
        let uid = FIRST_ID + 3 + number;
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        (self.other && number < 100 && maps(&map, uid, 1)).then_some(User { uid, ..*self })
    }

    /// Makes a command run as this user, with no other group and no capability, `no_new_privs`, and
    /// no way to gain a capability from a program that it starts.
    pub fn confine(&self, command: &mut Command) {
        self.confine_but(command, CapabilitySet::empty());
    }

    /// Confines as [`confine`](User::confine) does, except for some capabilities, which programs
    /// that the command starts keep, too.
    pub fn confine_but(&self, command: &mut Command, kept: CapabilitySet) {
        let confinement = Confinement { user: *self, kept };
        // SAFETY: `apply` makes only system calls.
        unsafe { command.pre_exec(move || confinement.apply().map_err(io::Error::from)) };
    }
}

#[derive(Clone, Copy)]
struct Confinement {
    user: User,
    kept: CapabilitySet,
}

impl Confinement {
    /// Confines the process, with only system calls. The order matters: each step drops a right
    /// that earlier steps need.
    fn apply(&self) -> Result<(), Errno> {
        let (uid, gid) = (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid));
        let own = capabilities(None)?;
        if self.user.other {
            set_thread_groups(&[])?;
            // Changing the user drops all capabilities by default.
            set_keep_capabilities(!self.kept.is_empty())?;
        }
        // Without this right there are no capabilities to drop, or only those of root in a
        // namespace that dropped the right; `no_new_privs` then suffices.
        if own.effective.contains(CapabilitySet::SETPCAP) {
            for number in 0..=LAST_CAPABILITY {
                let capability = CapabilitySet::from_bits_retain(1 << number);
                if self.kept.contains(capability) {
                    continue;
                }
                match remove_capability_from_bounding_set(capability) {
                    // Beyond the last capability of this kernel.
                    Err(Errno::INVAL) => break,
                    other => other?,
                }
            }
        }
        clear_ambient_capability_set()?;
        if self.user.other {
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)?;
        }
        set_capabilities(
            None,
            CapabilitySets { effective: self.kept, permitted: self.kept, inheritable: self.kept },
        )?;
        for capability in self.kept {
            configure_capability_in_ambient_set(capability, true)?;
        }
        set_no_new_privs(true)
    }
}

/// A program that any user may start, even from a directory that only the caller may access, such
/// as a build directory in root's home.
#[derive(Debug)]
pub struct Executable {
    file: OwnedFd,
    name: OsString,
}

impl Executable {
    /// Returns the running program.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn current() -> Result<Executable, Error> {
        let name = std::env::current_exe().map_err(Error::failed("find the running program"))?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/self/exe", flags, Mode::empty())
            .map_err(Error::refused("open the running program"))?;
        Ok(Executable { file, name: name.into() })
    }

    /// Returns a command that starts the program. Spawn the command while `self` lives. The
    /// program's file has to be executable by others.
    #[must_use]
    pub fn command(&self) -> Command {
        // The exec closes the descriptor, after the kernel has found the file through it.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(&self.name);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_users_exist_if_the_user_map_has_them() {
        assert!(maps_ours("         0          0 4294967295\n"));
        assert!(maps_ours("0 1000 1\n61001 100000 3\n"));
        assert!(!maps_ours("0 1000 1\n"));
        assert!(!maps_ours("0 100000 61003\n"));
        assert!(maps_ours("0 100000 61004\n"));
        for bad in ["", "0", "0 0", "x y z", "-1 0 99999", "1 1 18446744073709551616"] {
            assert!(!maps_ours(bad), "{bad:?}");
        }
        assert!(maps_ours("1 1 18446744073709551615"));
    }
}
