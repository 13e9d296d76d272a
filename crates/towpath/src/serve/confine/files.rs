//! The files that a server reaches after its start (landlock(7)).
//!
//! It reads the directory of its policy, and those where the kernel and the C library's name services
//! have files ([`READ`]). It writes in the directory of its socket alone, and to `/dev/null`. It connects
//! to and binds no TCP port, and signals no process outside.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest version of the kernel's interface whose rights this file knows.
const KNOWN: ABI = ABI::V6;

/// What a server reads beside its policy: users and groups, name services, and the kernel's files.
const READ: [&str; 9] =
    ["/etc", "/usr", "/lib", "/lib64", "/proc", "/sys", "/run", "/var/lib/sss", "/var/db"];

/// Confines this thread, and threads and processes that it starts. Returns how far this kernel can.
///
/// # Errors
/// Fails if the kernel refuses a rule.
pub(super) fn confine(policy: Option<&Path>, socket: &Path) -> Result<RulesetStatus, RulesetError> {
    let all = AccessFs::from_all(KNOWN);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::Signal)?
        .create()?;
    let directory = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).to_owned()
    };
    // The policy's path may be a link.
    let target = policy.and_then(|path| path.canonicalize().ok());
    let policies = policy.into_iter().chain(target.as_deref()).map(directory);
    let reads = READ.iter().map(PathBuf::from).chain(policies);
    let reads = reads.map(|path| (path, AccessFs::ReadFile | AccessFs::ReadDir));
    let writes = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveFile;
    let nothing = (PathBuf::from("/dev/null"), AccessFs::ReadFile | AccessFs::WriteFile);
    for (path, access) in reads.chain([(directory(socket), writes), nothing]) {
        // What is not there cannot be reached either.
        let Ok(opened) = PathFd::new(&path) else { continue };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(KNOWN) };
        rules = rules.add_rule(PathBeneath::new(opened, access))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn only_the_sockets_directory_can_be_written() {
        let own = std::env::temp_dir().join(format!("towpath-files-{}", std::process::id()));
        let other = own.join("other");
        let (sockets, policies) = (own.join("sockets"), own.join("policies"));
        for directory in [&other, &sockets, &policies] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("file"), "text").unwrap();
        }
        let links = own.join("links");
        fs::create_dir(&links).unwrap();
        std::os::unix::fs::symlink(policies.join("file"), links.join("policy.toml")).unwrap();
        let confined = || {
            let status =
                confine(Some(&links.join("policy.toml")), &sockets.join("s.sock")).unwrap();
            if status == RulesetStatus::NotEnforced {
                println!("SKIP only_the_sockets_directory_can_be_written: no landlock here");
                return;
            }
            let denied = |outcome: std::io::Result<()>| {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::PermissionDenied);
            };
            denied(fs::read(other.join("file")).map(|_| ()));
            denied(fs::write(other.join("file"), "other"));
            denied(fs::write(policies.join("file"), "other"));
            denied(fs::write(policies.join("new"), ""));
            denied(fs::remove_file(policies.join("file")));
            assert_eq!(fs::read(links.join("policy.toml")).unwrap(), b"text");
            fs::read("/etc/passwd").unwrap();
            fs::write(sockets.join("s.sock.lock"), "").unwrap();
            fs::remove_file(sockets.join("s.sock.lock")).unwrap();
            let file = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            // As for an application's read-only descriptor.
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            fs::File::open(path).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(confined).join().unwrap());
        fs::remove_dir_all(own).unwrap();
    }
}
