//! The files that a server reaches after its start, and those that the keeper reaches (landlock(7)).
//!
//! A server reads the directory of its policy, and those where the kernel and the C library's name services
//! have files ([`READ`]). It writes only in the directories of its sockets and to `/dev/null`. It connects
//! to and binds no TCP port, and signals no process outside.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    make_bitflags,
};

use super::super::kind::Kind;

/// The newest version of the kernel's interface whose rights this file knows.
const KNOWN: ABI = ABI::V6;

/// What a server reads beside its policy: users and groups, name services, and the kernel's files.
const READ: [&str; 9] =
    ["/etc", "/usr", "/lib", "/lib64", "/proc", "/sys", "/run", "/var/lib/sss", "/var/db"];

/// The rights in a directory in which a process makes sockets and files, and changes and removes
/// them.
const WRITE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | MakeReg | MakeSock | RemoveFile});

/// The rights to a device node.
const USE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});

/// A path, and the rights to it and beneath it.
type Rule = (PathBuf, BitFlags<AccessFs>);

/// Confines this thread, and threads and processes that it starts, as a server. Returns how far this
/// kernel can.
///
/// # Errors
/// Fails if the kernel refuses a rule.
pub(super) fn confine_server(
    policy: Option<&Path>,
    sockets: [&Path; 2],
) -> Result<RulesetStatus, RulesetError> {
    let rules =
        handled()?.handle_access(AccessNet::from_all(KNOWN))?.scope(Scope::Signal)?.create()?;
    // The policy's path may be a link.
    let target = policy.and_then(|path| path.canonicalize().ok());
    let policies = policy.into_iter().chain(target.as_deref()).map(directory);
    let reads = READ.iter().map(PathBuf::from).chain(policies);
    let reads = reads.map(|path| (path, AccessFs::ReadFile | AccessFs::ReadDir));
    let writes = sockets.map(|socket| (directory(socket), WRITE));
    restrict(rules, reads.chain(writes).chain([("/dev/null".into(), USE)]))
}

/// What a keeper needs for the servers of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForServers<'a> {
    pub(crate) kind: Kind,
    /// The applications' socket and the administration socket.
    pub(crate) sockets: [&'a Path; 2],
    pub(crate) pcap: Option<&'a Path>,
}

impl ForServers<'_> {
    /// Returns what the keeper may write.
    fn rules(&self) -> impl Iterator<Item = Rule> + use<> {
        let devices = match self.kind {
            Kind::Tap => "/dev/net/tun",
            // It opens no device file.
            Kind::HostInterface => "/dev/null",
            // The container of the IOMMU, and the card's group.
            Kind::Card => "/dev/vfio",
        };
        let pcap = self.pcap.map(|path| (path.to_owned(), AccessFs::WriteFile.into()));
        let sockets = self.sockets.map(|socket| (directory(socket), WRITE));
        pcap.into_iter().chain(sockets).chain([(devices.into(), USE)])
    }
}

/// Confines this thread, and threads and processes that it starts, as a keeper of these devices.
/// Returns how far this kernel can.
///
/// # Errors
/// Fails if the kernel refuses a rule.
pub(super) fn confine_keeper(devices: &[ForServers<'_>]) -> Result<RulesetStatus, RulesetError> {
    let rules = handled()?.create()?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
    let written = devices.iter().flat_map(ForServers::rules);
    restrict(rules, written.chain([("/dev/null".into(), USE), ("/".into(), read)]))
}

/// Returns a set of rules for all that this file knows of files.
fn handled() -> Result<Ruleset, RulesetError> {
    let all = AccessFs::from_all(KNOWN);
    Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(all)
}

/// Returns the directory of a file.
fn directory(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// Adds the rules, and restricts this thread by all of them.
fn restrict(
    mut rules: RulesetCreated,
    added: impl Iterator<Item = Rule>,
) -> Result<RulesetStatus, RulesetError> {
    for (path, access) in added {
        // A path that does not exist cannot be reached either.
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
    use crate::own_directory::Own;

    /// Calls in a thread of its own, which alone is confined, unless this kernel has no Landlock.
    fn confined(
        test: &str,
        confine: impl FnOnce() -> Result<RulesetStatus, RulesetError> + Send,
        call: impl FnOnce() + Send,
    ) {
        let run = || match confine().unwrap() {
            RulesetStatus::NotEnforced => println!("SKIP {test}: no landlock here"),
            _ => call(),
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    }

    fn denied(outcome: std::io::Result<()>) {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_keeper_reads_and_executes_all_and_writes_little() {
        let Own(own) = &Own::new("keeper-files");
        let (sockets, others) = (own.join("sockets"), own.join("others"));
        let admins = own.join("admins");
        for directory in [&sockets, &others, &admins] {
            fs::create_dir_all(directory).unwrap();
        }
        let pcap = own.join("wire.pcapng");
        fs::write(&pcap, "").unwrap();
        fs::write(own.join("file"), "text").unwrap();
        let (socket, other) = (sockets.join("s.sock"), others.join("s.sock"));
        let admin = admins.join("s.sock.admin");
        let devices = [
            ForServers { kind: Kind::Tap, sockets: [&socket, &admin], pcap: Some(&pcap) },
            ForServers { kind: Kind::HostInterface, sockets: [&other, &other], pcap: None },
        ];
        let confine = || confine_keeper(&devices);
        confined("a_keeper_reads_and_executes_all_and_writes_little", confine, || {
            assert_eq!(fs::read(own.join("file")).unwrap(), b"text");
            denied(fs::write(own.join("file"), "other"));
            denied(fs::remove_file(own.join("file")));
            denied(fs::write(own.join("new"), ""));
            denied(fs::remove_file(&pcap));
            fs::OpenOptions::new().append(true).open(&pcap).unwrap();
            fs::write("/dev/null", "").unwrap();
            for directory in [&sockets, &others, &admins] {
                fs::write(directory.join("s.sock.lock"), "").unwrap();
                fs::remove_file(directory.join("s.sock.lock")).unwrap();
            }
            assert!(std::process::Command::new("/bin/true").status().unwrap().success());
        });
    }

    #[test]
    fn a_server_writes_in_its_sockets_directory_alone() {
        let Own(own) = &Own::new("server-files");
        let other = own.join("other");
        let (sockets, policies) = (own.join("sockets"), own.join("policies"));
        let admins = own.join("admins");
        for directory in [&other, &sockets, &policies, &admins] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("file"), "text").unwrap();
        }
        let links = own.join("links");
        fs::create_dir(&links).unwrap();
        std::os::unix::fs::symlink(policies.join("file"), links.join("policy.toml")).unwrap();
        let both = [&*sockets.join("s.sock"), &*admins.join("s.sock.admin")];
        let confine = || confine_server(Some(&links.join("policy.toml")), both);
        confined("a_server_writes_in_its_sockets_directory_alone", confine, || {
            denied(fs::read(other.join("file")).map(|_| ()));
            denied(fs::write(other.join("file"), "other"));
            denied(fs::write(policies.join("file"), "other"));
            denied(fs::write(policies.join("new"), ""));
            denied(fs::remove_file(policies.join("file")));
            assert_eq!(fs::read(links.join("policy.toml")).unwrap(), b"text");
            fs::read("/etc/passwd").unwrap();
            for directory in [&sockets, &admins] {
                fs::write(directory.join("s.sock.lock"), "").unwrap();
                fs::remove_file(directory.join("s.sock.lock")).unwrap();
            }
            let file = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            // As for an application's read-only descriptor.
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            fs::File::open(path).unwrap();
        });
    }
}
