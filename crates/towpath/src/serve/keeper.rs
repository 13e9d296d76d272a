//! The keeper: the process that an operator starts. The keeper starts the server, and another one
//! after each that is killed, hangs, fails or is upgraded. This module also has the holder, which holds a killed server's objects
//! until the next keeper takes over.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use towpath_protocol::store::Store;
use towpath_server::{
    KeeperAccess, KeeperOptions, KeeperStore, Start, Supervised, Supervision, TakeOver,
    keeper_connection, keeper_path, run_keeper, supervise, take_over,
};

use super::confine::confine_keeper;
use super::directory::{busy, lock_path};
use super::log::start_log;
use super::ready::Ready;
use super::settings::{HOLD_S, Level, Settings};
use super::values::{Identity, InterfaceName};
use crate::failure::{Failure, remedy, says};
use crate::number::Number;
use crate::signals::Signals;

/// The name of the settings among the keeper's objects: a file of TOML.
pub(super) const SETTINGS: &str = "keeper-settings";

/// What a server that was killed left behind, by name.
pub(super) type Left = Vec<(String, OwnedFd)>;

/// Takes over from the keeper of a server with this socket that was killed. Without `is_tap`, gives
/// the device's objects back to the kernel: the next server makes its own.
pub(super) fn take_over_from_killed(
    socket: &Path,
    user: Option<&Identity>,
    is_tap: bool,
) -> Result<Left, Failure> {
    let shown = socket.display();
    match take_over(socket, user.map(|user| user.uid)) {
        Ok(TakeOver::Busy) => Err(busy(socket)),
        Ok(TakeOver::Done(mut left)) => {
            tracing::info!(objects = left.len(), "took over from a server that was killed");
            left.retain(|(name, _)| name != SETTINGS && (is_tap || !name.starts_with("device-")));
            Ok(left)
        }
        Ok(TakeOver::Nothing) => Ok(Left::new()),
        Err(_) if is_served(socket) => Err(busy(socket)),
        Err(error) => Err(Failure::new(format!(
            "taking over from the holder {shown}.keeper: {}; serve with --user as the killed server \
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

/// The servers of a keeper.
struct Servers<'a> {
    settings: &'a Settings,
    interface: &'a str,
    socket: &'a Path,
    signals: &'a Signals,
    /// The path of this program, from which the next version starts.
    path: PathBuf,
    /// The program of the servers after an upgrade, and the one of an upgrade under way.
    upgraded: Option<File>,
    installed: Option<File>,
    /// The programs to tell when the first server serves; `None` afterwards.
    ready: Option<Ready>,
    /// Why the keeper cannot go on after the start of the first server.
    failure: Option<Failure>,
}

impl Supervised for Servers<'_> {
    fn launch(&mut self, connection: OwnedFd, start: Start) -> io::Result<Child> {
        let program = if start.is_upgrade { &self.installed } else { &self.upgraded };
        let mut command = match program {
            Some(file) => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => Command::new("/proc/self/exe"),
        };
        command.arg0("towpath");
        command.args(["server", self.interface]);
        for (option, is_given) in [
            ("--again", start.number > 0),
            ("--after-crash", start.after_crash),
            ("--upgrade", start.is_upgrade),
        ] {
            command.args(is_given.then_some(option));
        }
        command.stdin(Stdio::from(connection)).spawn()
    }

    fn prepare_upgrade(&mut self) -> io::Result<()> {
        let opened = File::open(&self.path).map_err(|error| {
            let text = format!(
                "{}: {}; install the new program at this path",
                self.path.display(),
                says(&error)
            );
            io::Error::new(error.kind(), text)
        });
        self.installed = Some(opened?);
        Ok(())
    }

    fn end_upgrade(&mut self, serves: bool) {
        let installed = self.installed.take();
        if serves {
            self.upgraded = installed;
        }
    }

    fn ready(&mut self, makes_xdp_sockets: bool) -> io::Result<()> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        let Settings { user, share_host, .. } = self.settings;
        if let Err(failure) = confine_keeper(user.as_ref(), *share_host, makes_xdp_sockets) {
            self.failure = Some(failure);
            return Err(io::Error::other("not confined"));
        }
        ready.tell(self.interface, self.socket);
        Ok(())
    }

    fn take_signal(&mut self) -> Option<i32> {
        self.signals.take()
    }
}

/// Starts servers until one ends in order, a signal ends the last one, or none can follow.
pub(super) fn supervise_servers(
    settings: &Settings,
    interface: &str,
    (socket, is_tap): (&Path, bool),
    mut left: Left,
    ready: Ready,
    signals: &Signals,
) -> Result<ExitCode, Failure> {
    let path = keeper_path(socket);
    let failed = |error: io::Error| {
        let remedy = match remedy(&error) {
            "" => "; choose a socket path that this user may write with --socket",
            remedy => remedy,
        };
        Failure::new(format!("the keeper, {}: {}{remedy}", path.display(), says(&error)))
    };
    let text = settings.clone().to_text()?;
    left.push((SETTINGS.to_owned(), in_memory(&text).map_err(failed)?));
    let hold_s = settings.hold.map_or(HOLD_S, |hold| hold.get() as u64);
    let options = KeeperOptions {
        interface: interface.to_owned(),
        shares_host: settings.share_host,
        hold: Duration::from_secs(hold_s),
        // The next server can go on with the descriptor of a TAP. It makes every other device anew,
        // for which it needs the rights of the start.
        restarts: is_tap,
        owner: settings.user.as_ref().map(|user| (user.uid, user.gid)),
        path: path.clone(),
    };
    let _ = rustix::thread::set_name(c"towpath-keeper");
    let (ready, failure) = (Some(ready), None);
    // An upgrade replaces the file at this path, and not this process' own.
    let program = std::env::current_exe().map_err(failed)?;
    let (upgraded, installed) = (None, None);
    let mut servers = Servers {
        settings,
        interface,
        socket,
        signals,
        path: program,
        upgraded,
        installed,
        ready,
        failure,
    };
    let outcome = supervise(&options, left, signals.as_fd(), &mut servers);
    if let Some(failure) = servers.failure {
        return Err(failure);
    }
    match outcome.map_err(failed)? {
        Supervision::Ended(status) => Ok(exit_code(status)),
        Supervision::GaveUp(_) => Ok(ExitCode::FAILURE),
        Supervision::Killed(status, held) => {
            leave_to_holder(&options, held).map_err(failed)?;
            Ok(exit_code(status))
        }
        Supervision::Stopped => Ok(ExitCode::SUCCESS),
    }
}

/// Arguments of the hidden subcommand `holder`, which holds objects until the next keeper takes over.
#[derive(Debug, clap::Args)]
pub(crate) struct HolderArgs {
    /// The interface that the server served
    interface: InterfaceName,
    /// Socket at which the next server takes over
    #[arg(long)]
    path: PathBuf,
    /// Seconds for which the process holds them
    #[arg(long)]
    hold: Number<0, 3600>,
}

/// Holds what comes on standard input, until the next server takes over.
pub(crate) fn hold(args: &HolderArgs) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let path = args.path.display();
        Failure::new(format!("the holder {path}: {}", says(&error)))
    };
    // The terminal's signals are for the programs that it waits for.
    let signals = Signals::block_termination().map_err(failed)?;
    let _ = rustix::thread::set_name(c"towpath-holder");
    start_log(Level::Info);
    confine_keeper(None, false, false)?;
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3);
    let nothing = File::open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(&nothing).map_err(|errno| failed(errno.into()))?;
    let options = KeeperOptions {
        interface: args.interface.to_string(),
        shares_host: false,
        hold: Duration::from_secs(args.hold.get() as u64),
        restarts: false,
        owner: None,
        path: args.path.clone(),
    };
    let socket = socket.map_err(|errno| failed(errno.into()))?;
    run_keeper(socket, &options, signals.as_fd()).map_err(failed)
}

/// Starts a holder, and gives it everything that a killed server had. The service manager starts
/// another keeper, which takes over.
fn leave_to_holder(options: &KeeperOptions, held: Left) -> io::Result<()> {
    if options.hold.is_zero() {
        return Ok(());
    }
    let (ours, theirs) = keeper_connection()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("towpath").args(["holder", &options.interface, "--path"]).arg(&options.path);
    command.args(["--hold", &options.hold.as_secs().to_string()]);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
    // The command has a copy of the holder's end.
    drop(command);
    let (access, _) = KeeperAccess::new(ours)?;
    let mut store = KeeperStore::new(&access, Left::new());
    for (name, object) in held {
        store.put(&name, object.as_fd())?;
    }
    store.barrier()
}

/// Returns the exit code of a server as the keeper's own. The server has printed the reason.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns a memory file with a text.
fn in_memory(text: &str) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("towpath-settings", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}
