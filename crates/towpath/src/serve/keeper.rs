//! The keeper's process: it does privileged acts for a server, and holds applications' flows if the
//! server is killed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use towpath_device::Device;
use towpath_protocol::store::{MemoryStore, Store};
use towpath_server::{
    HostAccess, KeeperAccess, KeeperOptions, KeeperStore, TakeOver, keeper_connection, keeper_path,
    run_keeper, take_over,
};

use super::confine::{confine_keeper, raise_descriptor_limit};
use super::directory::{busy, lock_path};
use super::log::start_log;
use super::settings::{HOLD_S, Level, Settings};
use super::values::{Identity, InterfaceName};
use crate::failure::{Failure, remedy, says};
use crate::number::Number;
use crate::signals::Signals;

/// Arguments of the hidden subcommand that is the process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The interface that the server serves
    interface: InterfaceName,
    /// Bind ports of the interface's addresses, and have its neighbours confirmed
    #[arg(long)]
    share_host: bool,
    /// Make AF_XDP sockets for the interface
    #[arg(long)]
    xdp_sockets: bool,
    /// Have these sockets poll the hardware
    #[arg(long)]
    busy_poll: bool,
    /// Socket at which the next server takes over
    #[arg(long)]
    path: PathBuf,
    /// Seconds for which the keeper holds flows and ports after the server was killed
    #[arg(long)]
    hold: Number<0, 3600>,
    /// User that the process changes to
    #[arg(long)]
    user: Option<Identity>,
}

/// Serves the requests of a server, on standard input, until the server ends.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let path = args.path.display();
        Failure::new(format!("the keeper {path}: {}", says(&error)))
    };
    // A terminal or a service manager signals all processes at once; this one ends with the server.
    let signals = Signals::block_termination().map_err(failed)?;
    let _ = rustix::thread::set_name(c"towpath-keeper");
    start_log(Level::Info);
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3);
    confine_keeper(args.user.as_ref(), args.share_host, args.xdp_sockets)?;
    let options = KeeperOptions {
        interface: args.interface.to_string(),
        shares_host: args.share_host,
        xdp_sockets: args.xdp_sockets.then_some(args.busy_poll),
        hold: Duration::from_secs(args.hold.get() as u64),
        path: args.path.clone(),
    };
    let socket = socket.map_err(|errno| failed(errno.into()))?;
    // Nothing else has a copy: the end of the server is the end of the connection.
    run_keeper(socket, &options, signals.as_fd()).map_err(failed)
}

/// What a server that was killed left behind, by name.
pub(super) type Left = Vec<(String, OwnedFd)>;

/// Takes over from a server with this socket that was killed. Then gives its flows and ports back
/// to the kernel, and returns the rest.
pub(super) fn take_over_from_killed(
    socket: &Path,
    user: Option<&Identity>,
) -> Result<Left, Failure> {
    let shown = socket.display();
    // The keeper may hold more than this process may open by default.
    raise_descriptor_limit();
    match take_over(socket, user.map(|user| user.uid)) {
        Ok(TakeOver::Busy) => Err(busy(socket)),
        Ok(TakeOver::Done(mut left)) => {
            tracing::info!(objects = left.len(), "took over from a server that was killed");
            // Sessions are not resumed, so nothing needs these.
            left.retain(|(name, _)| !name.starts_with("device-") && !name.starts_with("port-"));
            Ok(left)
        }
        Ok(TakeOver::Nothing) => Ok(Left::new()),
        Err(_) if is_served(socket) => Err(busy(socket)),
        Err(error) => Err(Failure::new(format!(
            "taking over from the keeper {shown}.keeper: {}; serve with --user as the killed server \
             did, or end that process, or choose another socket path with --socket",
            says(&error)
        ))),
    }
}

/// Returns `true` if a living server holds the lock of a socket.
fn is_served(socket: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(lock) = rustix::fs::open(lock_path(socket), flags, Mode::empty()) else {
        return false;
    };
    let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared);
    locked == Err(rustix::io::Errno::WOULDBLOCK)
}

/// The server's side of the process.
pub(super) struct Keeper {
    child: Child,
    access: Option<KeeperAccess>,
}

impl Keeper {
    /// Starts the process, with the privileges that this one still has, if the server needs one: to
    /// bind ports, to make AF_XDP sockets, or to hold anything. `xdp_sockets`: as in
    /// [`Opened`](super::interface::Opened).
    pub(super) fn start(
        settings: &Settings,
        interface: &str,
        socket: &Path,
        xdp_sockets: Option<bool>,
    ) -> Result<Option<Keeper>, Failure> {
        let hold_s = settings.hold.map_or(HOLD_S, |hold| hold.get() as u64);
        if hold_s == 0 && !settings.share_host && xdp_sockets.is_none() {
            return Ok(None);
        }
        let failed = |error: io::Error| {
            Failure::new(format!("starting the keeper: {}{}", says(&error), remedy(&error)))
        };
        let (ours, theirs): (OwnedFd, OwnedFd) = keeper_connection().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("towpath");
        command.args(["keeper", interface, "--hold", &hold_s.to_string(), "--path"]);
        command.arg(keeper_path(socket));
        if settings.share_host {
            command.arg("--share-host");
        }
        if let Some(busy_poll) = xdp_sockets {
            command.arg("--xdp-sockets").args(busy_poll.then_some("--busy-poll"));
        }
        if let Some(user) = &settings.user {
            command.args(["--user", &user.to_string()]);
        }
        let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn();
        // The command has a copy of the keeper's end.
        drop(command);
        let mut keeper = Keeper { child: child.map_err(failed)?, access: None };
        let refused = |error: io::Error| {
            let path = keeper_path(socket);
            let (path, said) = (path.display(), says(&error));
            let remedy = match remedy(&error) {
                "" => "; choose a socket path that this user may write with --socket",
                remedy => remedy,
            };
            Failure::new(format!("starting the keeper, {path}: {said}{remedy}"))
        };
        keeper.access = Some(KeeperAccess::new(ours).map_err(refused)?);
        Ok(Some(keeper))
    }

    /// Lets a device use the keeper.
    pub(super) fn serve(&self, device: &mut dyn Device) {
        if let Some(access) = &self.access {
            device.set_keeper(Arc::new(access.clone()));
        }
    }

    /// Returns the access to the addresses of the interface, if the server shares them.
    pub(super) fn host_access(&self, settings: &Settings, interface: &str) -> Option<HostAccess> {
        let access = self.access.as_ref().filter(|_| settings.share_host);
        access.map(|access| HostAccess::new(access, interface))
    }
}

/// Returns the store of a server: its keeper's, or one that ends with the server.
pub(super) fn store(keeper: Option<&Keeper>, left: Left) -> Box<dyn Store> {
    match keeper.and_then(|keeper| keeper.access.as_ref()) {
        Some(access) => Box::new(KeeperStore::new(access, left)),
        None => {
            // An application can prolong the close of what it reaches.
            std::thread::spawn(move || drop(left));
            Box::<MemoryStore>::default()
        }
    }
}

impl Drop for Keeper {
    /// Ends the process, and waits for it. The server has stopped, or did not start.
    fn drop(&mut self) {
        if let Some(access) = self.access.take() {
            // A keeper that has ended already is what this asks for.
            let _ = access.end();
        }
        let _ = self.child.wait();
    }
}
