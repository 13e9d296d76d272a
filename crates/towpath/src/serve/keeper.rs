//! The keeper: the process that an operator starts. The keeper starts the server, and another one
//! after each that is killed, hangs, fails or is upgraded. After an upgrade, the keeper executes the new
//! program itself, too.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, SealFlags};
use towpath_keeper::{Begin, Continued, Supervision, keeper_path};

use super::confine::not_dumpable;
use super::directory::lock_path;
use super::fd_store::{self, Given};
use super::kind::Kind;
use super::log::start_log;
use super::notify::has_service_manager;
use super::ready::{Ready, inherited};
use super::servers::{Manner, Served, Servers, failed};
use super::settings::{Level, Settings};
use crate::failure::{Failure, says};
use crate::signals::Signals;

/// The name of the settings among the keeper's objects: a file of TOML.
pub(super) const SETTINGS: &str = "keeper-settings";

/// Arguments of the hidden subcommand that goes on as the keeper, in the keeper's process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The descriptor of a file with what the keeper's earlier program left
    #[arg(long)]
    state: i32,
    /// The path of the program, where an upgrade installs another one
    #[arg(long)]
    program: PathBuf,
    /// The kind of each device, in the order of the file
    #[arg(long, required = true)]
    kind: Vec<Kind>,
    /// Try devices that fail again, as `towpath up` does
    #[arg(long, conflicts_with = "fd_store")]
    up: bool,
    /// Leave everything to the service manager's descriptor store at SIGTERM
    #[arg(long)]
    fd_store: bool,
    /// Check that this program can go on, and end
    #[arg(long)]
    check: bool,
}

/// Goes on as the keeper, after an upgrade.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::new(format!("the keeper: {}", says(&error)));
    // An exec resets it.
    not_dumpable()?;
    let file = inherited(args.state).map_err(failed)?;
    let left = Continued::read(file.as_fd()).map_err(failed)?;
    drop(file);
    if left.len() != args.kind.len() {
        let (states, kinds) = (left.len(), args.kind.len());
        return Err(Failure::new(format!("the keeper: {states} devices of {kinds} kinds")));
    }
    let mut devices = Vec::new();
    for (state, kind) in left.iter().zip(&args.kind) {
        let settings = state.object(SETTINGS).and_then(Settings::from_keeper).map_err(failed)?;
        devices.push(Served::new(settings, *kind)?);
    }
    if args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let settings = devices[0].settings().clone();
    start_log(settings.log.unwrap_or(Level::Info));
    // An exec keeps signals blocked, so none is lost.
    let signals = Signals::block().map_err(failed)?;
    let names: Vec<_> = devices.iter().map(Served::interface).collect();
    tracing::info!(
        device = names.join(", "),
        version = env!("CARGO_PKG_VERSION"),
        "the keeper goes on with the installed program"
    );
    let manner = match (args.up, args.fd_store) {
        (true, _) => Manner::Up,
        (false, true) => Manner::ServeWithStore,
        (false, false) => Manner::Serve,
    };
    let servers = Servers::of_earlier(devices, manner, args.program.clone(), &signals)?;
    let ends = servers.supervise(left.into_iter().map(Begin::Continued).collect())?;
    if args.up { Ok(exit_code_of_all(&ends)) } else { end(ends, &settings, args.kind[0]) }
}

/// Returns the exit code of a keeper of several devices.
pub(super) fn exit_code_of_all(ends: &[Supervision]) -> ExitCode {
    let is_in_order = |end: &Supervision| match end {
        Supervision::Ended(status) => status.success(),
        Supervision::Stopped | Supervision::Left(_) => true,
        Supervision::GaveUp(_) => false,
    };
    if ends.iter().all(is_in_order) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns `true` if a living server holds the lock of a socket.
pub(super) fn is_served(socket: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(lock) = rustix::fs::open(lock_path(socket), flags, Mode::empty()) else {
        return false;
    };
    let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared);
    locked == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Ends a keeper of one device.
fn end(mut ends: Vec<Supervision>, settings: &Settings, kind: Kind) -> Result<ExitCode, Failure> {
    match ends.pop() {
        Some(Supervision::Ended(status)) => Ok(exit_code(status)),
        Some(Supervision::GaveUp(_)) => Ok(ExitCode::FAILURE),
        Some(Supervision::Stopped) | None => Ok(ExitCode::SUCCESS),
        Some(Supervision::Left(left)) => {
            let device = device_name(&settings.served()?.interface, kind);
            if let Err(error) = fd_store::leave(&left, &device) {
                return Err(Failure::new(format!(
                    "the service manager did not take the keeper's objects: {}; all sessions \
                     end; see FileDescriptorStoreMax= in systemd.service(5)",
                    says(&error)
                )));
            }
            let objects = left.objects.len();
            tracing::info!(objects, "the service manager holds the objects for the next keeper");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the name of the device that an earlier keeper of the service must have served, too.
fn device_name(interface: &str, kind: Kind) -> String {
    format!("{}{interface}", if kind == Kind::Tap { "tap:" } else { "" })
}

/// Returns the keeper's own objects for the servers of a device: its settings.
pub(super) fn own_objects(settings: &Settings) -> Result<Vec<(String, OwnedFd)>, Failure> {
    // A server does not need the option, and an older one does not know it.
    let text = Settings { fd_store: false, ..settings.clone() }.to_text()?;
    let socket = settings.socket.clone().unwrap_or_default();
    let file = in_memory(&text).map_err(|error| failed(&keeper_path(&socket), &error))?;
    Ok(vec![(SETTINGS.to_owned(), file)])
}

/// Starts servers of one device, as an operator's process.
pub(super) fn supervise_servers(
    settings: &Settings,
    kind: Kind,
    ready: Ready,
    given: Given,
    signals: &Signals,
) -> Result<ExitCode, Failure> {
    let own = own_objects(settings)?;
    let left = fd_store::adopt(given, &device_name(&settings.served()?.interface, kind));
    if settings.fd_store && !has_service_manager() {
        tracing::warn!(
            "--fd-store has no effect: there is no service manager (NOTIFY_SOCKET is not set), and a stop \
             ends all sessions"
        );
    }
    let manner = if settings.fd_store { Manner::ServeWithStore } else { Manner::Serve };
    let served = Served::new(settings.clone(), kind)?;
    let servers = Servers::new(vec![served], manner, ready, signals);
    let servers = servers
        .map_err(|error| Failure::new(format!("the path of this program: {}", says(&error))))?;
    end(servers.supervise(vec![Begin::First { own, left }])?, settings, kind)
}

/// Returns the exit code of a server as the keeper's own. The server has printed the reason.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns a memory file with a text, which no process can change.
fn in_memory(text: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("towpath-settings", flags)?);
    file.write_all(text.as_bytes())?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}
