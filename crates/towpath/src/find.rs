//! Finds the server for a subcommand: by its device's name or its socket's path, or the only
//! running one.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use towpath_client::administration_socket;
use towpath_keeper::device_status;
use towpath_protocol::admin_socket::{is_admin_socket, without_admin};

use crate::failure::Failure;

/// The directory of the sockets of root's servers and of system services.
const SYSTEM: &str = "/run/towpath";
const SUFFIX: &str = ".sock";
/// What the name of a status file has after its socket's.
const STATUS_SUFFIX: &str = ".status";
/// The most entries of a directory that the search reads.
const MOST_ENTRIES: usize = 4096;

/// The arguments that name a server, the same in each subcommand.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ServerName {
    /// The device, or the path of its server's socket. Without it, ls shows all devices, and set fails; the others use
    /// the only running server
    #[arg(value_name = "DEVICE", conflicts_with_all = ["device", "socket"])]
    server: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl ServerName {
    /// Returns the sockets of the servers that the arguments name: by default those of all devices,
    /// also of those whose server does not serve now.
    pub(crate) fn resolve_all(&self) -> Result<Vec<PathBuf>, Failure> {
        match &self.server {
            Some(name) => named(name).map(|one| vec![one]),
            None => self.target.resolve_all(),
        }
    }

    /// Returns the socket of the server that the arguments name.
    pub(crate) fn resolve(&self) -> Result<PathBuf, Failure> {
        match &self.server {
            Some(name) => named(name),
            None => self.target.resolve(),
        }
    }
}

/// Options that name a server.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Target {
    /// The server of this device
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    device: Option<String>,
    /// The server that listens on this socket; administrators may also give its socket for administrators
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Target {
    /// `true` if an option names a server.
    pub(crate) fn is_given(&self) -> bool {
        self.socket.is_some() || self.device.is_some()
    }

    fn resolve_all(&self) -> Result<Vec<PathBuf>, Failure> {
        if self.is_given() {
            return self.resolve().map(|one| vec![one]);
        }
        let directories = directories();
        let all = all(&directories);
        if all.is_empty() { Err(none(&directories)) } else { Ok(all) }
    }

    /// Returns the socket of the server that the options name.
    pub(crate) fn resolve(&self) -> Result<PathBuf, Failure> {
        if let Some(socket) = &self.socket {
            return at_path(socket);
        }
        let directories = directories();
        match &self.device {
            Some(device) => of_device(device, &directories),
            None => only(&directories),
        }
    }
}

/// Returns the socket of a device's server, or the socket at a path: `tap0` or `./tap0.sock`.
pub(crate) fn named(name: &str) -> Result<PathBuf, Failure> {
    if name.contains('/') {
        return at_path(Path::new(name));
    }
    of_device(name, &directories())
}

/// Returns the path of a server's socket. Fails with the remedy if the path is another kind of file, or a bare name
/// without a file.
fn at_path(path: &Path) -> Result<PathBuf, Failure> {
    let shown = path.display();
    match path.metadata() {
        Ok(found) if !found.file_type().is_socket() => Err(Failure::usage(format!(
            "{shown} is no socket; give the device's name, or the path of its server's socket, such as \
             {SYSTEM}/tap0{SUFFIX}"
        ))),
        // While a device begins anew, only the keeper's status is there.
        Err(_) if path.components().count() == 1 && device_status(path).is_none() => {
            Err(Failure::usage(format!(
                "--socket {shown}: there is no such socket; --device {shown} finds the server of a device, and \
             --socket takes the path of its socket"
            )))
        }
        // The client finds the administration socket by the other one, which also has the keeper's status beside it.
        _ => Ok(socket_of(path).unwrap_or(path).to_owned()),
    }
}

/// Returns the applications' socket beside an administration socket, if both are of one user.
fn socket_of(path: &Path) -> Option<&Path> {
    let socket = without_admin(path);
    let owner = |path: &Path| path.symlink_metadata().ok().map(|found| found.uid());
    (is_admin_socket(path) && owner(socket).is_some() && owner(socket) == owner(path))
        .then_some(socket)
}

/// Returns this user's directory, and the system's.
fn directories() -> Vec<PathBuf> {
    let own = towpath_client::default_socket("x").parent().map(Path::to_path_buf);
    let mut all: Vec<PathBuf> = own.into_iter().filter(|own| is_ours(own)).collect();
    if !all.iter().any(|one| one == Path::new(SYSTEM)) {
        all.push(SYSTEM.into());
    }
    all
}

/// Returns `true` if the directory is this user's or root's. Below /tmp any user may have made a
/// directory of that name, with a server of their own listening in it.
fn is_ours(directory: &Path) -> bool {
    match directory.symlink_metadata() {
        Ok(found) => {
            let owner = found.uid();
            found.is_dir() && (owner == 0 || owner == rustix::process::geteuid().as_raw())
        }
        // Messages name the directory: a server would listen in it.
        Err(_) => true,
    }
}

fn shown(directories: &[PathBuf]) -> String {
    let all: Vec<_> = directories.iter().map(|one| one.display().to_string()).collect();
    all.join(" and ")
}

fn of_device(device: &str, directories: &[PathBuf]) -> Result<PathBuf, Failure> {
    if device.contains('/') || device.is_empty() {
        return Err(Failure::usage(format!(
            "{device:?} is not a device's name; give a path with --socket"
        )));
    }
    if let Some(name) = name_in(device) {
        return Err(Failure::usage(format!(
            "{device} is a value for towpath serve --device; here the device's name is enough: {name}"
        )));
    }
    let paths = directories.iter().map(|one| one.join(format!("{device}{SUFFIX}")));
    let paths: Vec<PathBuf> = paths.collect();
    // A server that answers goes before a socket that a dead server left.
    let is_alive = |path: &&PathBuf| answers(path) || device_status(path).is_some();
    let alive = paths.iter().filter(is_alive).cloned();
    let servers: BTreeSet<_> = alive.chain(of_interface(device, directories)).collect();
    let left = || paths.iter().find(|path| path.symlink_metadata().is_ok()).cloned();
    match servers.len() {
        0 => left().ok_or_else(|| {
            Failure::new(format!(
                "no server of {device} in {}; start one with towpath serve, or give its socket's path",
                shown(directories)
            ))
        }),
        1 => Ok(servers.into_iter().next().unwrap_or_default()),
        _ => {
            let each: Vec<_> = servers.iter().map(|socket| described(socket)).collect();
            Err(Failure::new(format!(
                "{device} means several servers: {}; choose one with --socket",
                each.join(", and ")
            )))
        }
    }
}

/// Returns a server's socket with the interface that the server serves.
fn described(socket: &Path) -> String {
    let shown = socket.display();
    let Some(status) = device_status(socket) else { return shown.to_string() };
    match status.interface {
        Some(now) => format!("{shown} serves {now}, which had the name {}", status.device),
        None => format!("{shown} serves {}", status.device),
    }
}

/// Returns the name in a value such as `tap:NAME` or `xdp:NAME,mode=native`.
fn name_in(device: &str) -> Option<&str> {
    let (driver, rest) = device.split_once(':')?;
    let name = rest.split(',').next().filter(|name| !name.is_empty())?;
    ["tap", "xdp", "packet", "pci", "auto"].contains(&driver).then_some(name)
}

/// Returns the sockets of the devices whose interface has this name at present, or had it when the first server
/// started.
fn of_interface(name: &str, directories: &[PathBuf]) -> Vec<PathBuf> {
    let has_name = |path: &PathBuf| {
        device_status(path).is_some_and(|status| {
            status.device == name || status.interface.as_deref() == Some(name)
        })
    };
    all(directories).into_iter().filter(has_name).collect()
}

/// Returns the sockets of all devices in these directories: those at which a server answers, and those
/// whose keeper lives.
fn all(directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    for directory in directories {
        let Ok(entries) = fs::read_dir(directory) else { continue };
        for entry in entries.take(MOST_ENTRIES).flatten() {
            let (path, kind) = (entry.path(), entry.file_type());
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(SUFFIX) && kind.is_ok_and(|kind| kind.is_socket()) && answers(&path) {
                found.insert(path);
            } else if let Some(socket) = name.strip_suffix(STATUS_SUFFIX)
                && socket.ends_with(SUFFIX)
                && device_status(&directory.join(socket)).is_some()
            {
                found.insert(directory.join(socket));
            }
        }
    }
    found.into_iter().collect()
}

fn none(directories: &[PathBuf]) -> Failure {
    Failure::new(format!(
        "no server runs: none in {}; start one with towpath serve, or give its --socket",
        shown(directories)
    ))
}

fn only(directories: &[PathBuf]) -> Result<PathBuf, Failure> {
    match all(directories).as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(none(directories)),
        several => {
            let names: Vec<_> = several
                .iter()
                .filter_map(|path| {
                    Some(path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.to_owned())
                })
                .collect();
            Err(Failure::new(format!(
                "several servers run: {}; choose one with --device or --socket",
                names.join(", ")
            )))
        }
    }
}

/// Returns `true` if a server listens there, even one that will refuse this user.
fn answers(path: &Path) -> bool {
    // At the applications' socket, a server warns of administrators.
    administration_socket(path).is_some_and(|admin| listens(&admin)) || listens(path)
}

fn listens(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    else {
        return false;
    };
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    matches!(
        rustix::net::connect(&socket, &address),
        Ok(()) | Err(Errno::ACCESS | Errno::PERM | Errno::AGAIN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    fn listen(path: &Path) -> OwnedFd {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&socket, 4).unwrap();
        socket
    }

    #[test]
    fn a_directory_of_another_user_is_not_searched() {
        let directory = std::env::temp_dir().join(format!("towpath-ours-{}", std::process::id()));
        assert!(is_ours(&directory), "none yet");
        fs::create_dir(&directory).unwrap();
        assert!(is_ours(&directory));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(4242), None).unwrap();
            assert!(!is_ours(&directory));
        }
        fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink("/", &directory).unwrap();
        assert!(!is_ours(&directory), "a link may lead anywhere");
        fs::remove_file(&directory).unwrap();
    }

    #[test]
    fn the_only_running_server_or_the_named_one_is_found() {
        let directory = std::env::temp_dir().join(format!("towpath-find-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let places = [directory.clone(), directory.join("absent")];
        assert!(only(&places).unwrap_err() == only(&places).unwrap_err());
        assert!(of_device("tap0", &places).is_err());

        let dead = listen(&directory.join("dead.sock"));
        drop(dead);
        fs::write(directory.join("file.sock"), "").unwrap();
        assert!(only(&places).is_err(), "leftover files are no servers");
        let first = listen(&directory.join("tap0.sock"));
        // Its socket for administrators is no server, and names the same one.
        let admin = listen(&directory.join("tap0.sock.admin"));
        assert_eq!(all(&places), [directory.join("tap0.sock")]);
        let named = at_path(&directory.join("tap0.sock.admin"));
        assert_eq!(named.unwrap(), directory.join("tap0.sock"));
        let alone = directory.join("other.sock.admin");
        let other = listen(&alone);
        assert_eq!(at_path(&alone).unwrap(), alone);
        assert_eq!(only(&places).unwrap(), directory.join("tap0.sock"));
        assert_eq!(of_device("dead", &places).unwrap(), directory.join("dead.sock"));
        let second = listen(&directory.join("tap1.sock"));
        let several = format!("{:?}", only(&places).unwrap_err());
        assert!(several.contains("tap0, tap1"), "{several}");
        assert_eq!(of_device("tap1", &places).unwrap(), directory.join("tap1.sock"));
        for bad in ["", "../tap0"] {
            assert!(of_device(bad, &places).is_err());
        }
        drop((first, second, admin, other));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_value_for_serve_or_a_bare_name_is_no_socket() {
        for (given, name) in
            [("tap:t0", Some("t0")), ("xdp:eth0,mode=native", Some("eth0")), ("tap:", None)]
        {
            assert_eq!(name_in(given), name, "{given}");
        }
        assert_eq!(name_in("pci:0000:00:03.0"), Some("0000:00:03.0"));
        for name in ["tap0", "0000:00:03.0", "eth0:1"] {
            assert_eq!(name_in(name), None, "{name}");
        }
        let said = at_path(Path::new("no-such-socket")).unwrap_err();
        assert!(said.text().contains("--device no-such-socket"), "{said:?}");
        let said = at_path(Path::new("/dev/null")).unwrap_err();
        assert!(said.text().contains("is no socket"), "{said:?}");
        assert!(at_path(Path::new("/run/no/such.sock")).is_ok(), "the attempt names the error");
    }
}
