//! The keeper: the process that an operator starts. The keeper starts the server, and another one
//! after each that is killed, hangs, fails or is upgraded. After an upgrade, the keeper executes the new
//! program itself, too.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, SealFlags};
use towpath_server::{
    Begin, Continued, Crash, KeeperOptions, Start, Supervised, Supervision, keeper_path, supervise,
};

use super::confine::{
    confine_keeper, kept_capabilities, not_dumpable, raise_ambient_capabilities,
    restore_ambient_capabilities, restrict_keeper,
};
use super::directory::lock_path;
use super::fd_store::{self, Given};
use super::kind::Kind;
use super::log::start_log;
use super::ready::{Ready, inherited};
use super::settings::{HOLD_S, Level, Settings};
use crate::failure::{Failure, remedy, says};
use crate::signals::{Signals, ignore_broken_pipes};

/// The name of the settings among the keeper's objects: a file of TOML.
pub(super) const SETTINGS: &str = "keeper-settings";

/// The longest time that another program takes to check that it can be the keeper.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of the hidden subcommand that goes on as the keeper, in the keeper's process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The descriptor of a file with what the keeper's earlier program left
    #[arg(long)]
    state: i32,
    /// The path of the program, where an upgrade installs another one
    #[arg(long)]
    program: PathBuf,
    /// The kind of the device that the server serves
    #[arg(long)]
    kind: Kind,
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
    let settings = left.object(SETTINGS).and_then(Settings::from_keeper).map_err(failed)?;
    let served = settings.served()?;
    let socket = settings.socket.clone().unwrap_or_default();
    if args.check {
        return Ok(ExitCode::SUCCESS);
    }
    start_log(settings.log.unwrap_or(Level::Info));
    // An exec keeps signals blocked, so none is lost.
    let signals = Signals::block().map_err(failed)?;
    restore_ambient_capabilities(kept_capabilities(settings.share_host, args.kind))?;
    tracing::info!(
        interface = %served.interface,
        version = env!("CARGO_PKG_VERSION"),
        "the keeper goes on with the installed program"
    );
    let servers = Servers {
        settings: &settings,
        interface: &served.interface,
        socket: &socket,
        kind: args.kind,
        fd_store: args.fd_store,
        signals: &signals,
        path: args.program.clone(),
        upgraded: None,
        installed: None,
        ready: None,
        failure: None,
    };
    servers.supervise(Begin::Continued(left))
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

/// The servers of a keeper.
struct Servers<'a> {
    settings: &'a Settings,
    interface: &'a str,
    socket: &'a Path,
    kind: Kind,
    /// At SIGTERM, everything is left to the service manager.
    fd_store: bool,
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

impl Servers<'_> {
    /// Gives up every right that a keeper does not need.
    fn give_up_rights(&self) -> Result<(), Failure> {
        let Settings { user, share_host, pcap, confine, .. } = self.settings;
        confine_keeper(user.as_ref(), kept_capabilities(*share_host, self.kind))?;
        restrict_keeper(confine.unwrap_or_default(), self.kind, self.socket, pcap.as_deref())
    }

    /// Returns the command by which a program goes on as the keeper.
    fn keeper_command(&self, program: &File, state: BorrowedFd<'_>) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command.arg0("towpath").arg("keeper");
        command.arg("--state").arg(state.as_raw_fd().to_string());
        command.arg("--program").arg(&self.path);
        command.args(["--kind", self.kind.name()]);
        command.args(self.fd_store.then_some("--fd-store"));
        command
    }

    /// Starts servers until one ends in order or leaves, a signal ends the last one, or none can
    /// follow.
    fn supervise(mut self, begin: Begin) -> Result<ExitCode, Failure> {
        let _ = rustix::thread::set_name(c"towpath-keeper");
        let path = keeper_path(self.socket);
        let options = KeeperOptions {
            interface: self.interface.to_owned(),
            devices: 1,
            shares_host: self.settings.share_host,
            hold: Duration::from_secs(self.settings.hold.map_or(HOLD_S, |hold| hold.get() as u64)),
            leaves_at_sigterm: self.fd_store && fd_store::has_service_manager(),
            owner: self.settings.user.as_ref().map(|user| (user.uid, user.gid)),
            path: path.clone(),
        };
        let signals = self.signals;
        let outcome = supervise(vec![(options, begin)], signals.as_fd(), &mut self);
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        match outcome.map_err(|error| failed(&path, &error))?.pop() {
            Some(Supervision::Ended(status)) => Ok(exit_code(status)),
            Some(Supervision::GaveUp(_)) => Ok(ExitCode::FAILURE),
            Some(Supervision::Stopped) | None => Ok(ExitCode::SUCCESS),
            Some(Supervision::Left(left)) => {
                let device = device_name(self.interface, self.kind);
                if let Err(error) = fd_store::leave(&left, &device) {
                    return Err(Failure::new(format!(
                        "the service manager did not take the keeper's objects: {}; all sessions \
                         end; see FileDescriptorStoreMax= in systemd.service(5)",
                        says(&error)
                    )));
                }
                let objects = left.objects.len();
                tracing::info!(
                    objects,
                    "the service manager holds the objects for the next keeper"
                );
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Returns the name of the device that an earlier keeper of the service must have served, too.
fn device_name(interface: &str, kind: Kind) -> String {
    format!("{}{interface}", if kind == Kind::Tap { "tap:" } else { "" })
}

/// Returns the failure of a keeper.
fn failed(path: &Path, error: &io::Error) -> Failure {
    let remedy = match remedy(error) {
        "" => "; choose a socket path that this user may write with --socket",
        remedy => remedy,
    };
    Failure::new(format!("the keeper, {}: {}{remedy}", path.display(), says(error)))
}

/// Waits until a program has ended, or kills it when the time is over.
fn wait_at_most(child: &mut Child, at_most: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Supervised for Servers<'_> {
    fn launch(&mut self, _device: usize, connection: OwnedFd, start: Start) -> io::Result<Child> {
        let program = if start.is_upgrade { &self.installed } else { &self.upgraded };
        let mut command = match program {
            Some(file) => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => Command::new("/proc/self/exe"),
        };
        command.arg0("towpath");
        command.args(["server", self.interface]);
        for (option, is_given) in [
            ("--again", start.number > 0),
            ("--after-crash", start.crash == Some(Crash::InUnknownThread)),
            ("--upgrade", start.is_upgrade),
        ] {
            command.args(is_given.then_some(option));
        }
        if let Some(Crash::Hang(engine)) = start.crash {
            command.args(["--after-hang", &engine.to_string()]);
        }
        command.stdin(Stdio::from(connection)).spawn()
    }

    fn prepare_upgrade(&mut self, _device: usize) -> io::Result<String> {
        let opened = File::open(&self.path).map_err(|error| {
            let text = format!(
                "{}: {}; install the new program at this path",
                self.path.display(),
                says(&error)
            );
            io::Error::new(error.kind(), text)
        });
        self.installed = Some(opened?);
        Ok(self.path.display().to_string())
    }

    fn end_upgrade(&mut self, _device: usize, serves: bool) {
        let installed = self.installed.take();
        if serves {
            self.upgraded = installed;
        }
    }

    fn replace(&mut self, _device: usize, file: BorrowedFd<'_>) -> io::Error {
        let Some(program) = &self.upgraded else {
            return io::Error::other("no upgrade has installed a program");
        };
        let checked = self.keeper_command(program, file).arg("--check").spawn();
        match checked.and_then(|mut child| wait_at_most(&mut child, CHECK_TIMEOUT)) {
            Ok(Some(status)) if status.success() => {}
            Ok(Some(status)) => {
                return io::Error::other(format!(
                    "the installed program cannot go on as the keeper: its check ended with {status}; \
                     see the log"
                ));
            }
            Ok(None) => {
                return io::Error::other(
                    "the installed program cannot go on as the keeper: its check takes longer than 2 s",
                );
            }
            Err(error) => return error,
        }
        let kept = kept_capabilities(self.settings.share_host, self.kind);
        if let Err(failure) = raise_ambient_capabilities(kept) {
            return io::Error::other(failure.text().to_owned());
        }
        let error = self.keeper_command(program, file).exec();
        // The attempt has restored the default of SIGPIPE, which would end this process.
        ignore_broken_pipes();
        if let Err(failure) = restore_ambient_capabilities(kept) {
            // The next servers start with a capability that they do not need, and drop it.
            tracing::error!("{}", failure.text());
        }
        error
    }

    fn ready(&mut self) -> io::Result<()> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        if let Err(failure) = self.give_up_rights() {
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

/// Starts servers, as an operator's process.
pub(super) fn supervise_servers(
    settings: &Settings,
    interface: &str,
    (socket, kind): (&Path, Kind),
    (ready, given): (Ready, Given),
    signals: &Signals,
) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| failed(&keeper_path(socket), &error);
    // A server does not need the option, and an older one does not know it.
    let text = Settings { fd_store: false, ..settings.clone() }.to_text()?;
    let own = vec![(SETTINGS.to_owned(), in_memory(&text).map_err(failed)?)];
    let left = fd_store::adopt(given, &device_name(interface, kind));
    if settings.fd_store && !fd_store::has_service_manager() {
        tracing::warn!(
            "--fd-store has no effect: there is no service manager (NOTIFY_SOCKET is not set), and a stop \
             ends all sessions"
        );
    }
    // An upgrade replaces the file at this path, and not this process' own.
    let program = program_path().map_err(failed)?;
    let servers = Servers {
        settings,
        interface,
        socket,
        kind,
        fd_store: settings.fd_store,
        signals,
        path: program,
        upgraded: None,
        installed: None,
        ready: Some(ready),
        failure: None,
    };
    servers.supervise(Begin::First { own, left })
}

/// Returns the exit code of a server as the keeper's own. The server has printed the reason.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns the path of this program, as it was called if that is possible: a link may lead to another
/// program at the next upgrade.
fn program_path() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let is_own = |path: &PathBuf| {
        let (found, own) =
            (std::fs::metadata(path).ok()?, std::fs::metadata("/proc/self/exe").ok()?);
        Some((found.dev(), found.ino()) == (own.dev(), own.ino()))
    };
    let Some(called) = std::env::args_os().next().map(PathBuf::from) else { return Ok(own) };
    let places = if called.components().count() > 1 {
        vec![std::path::absolute(&called)?]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|place| place.join(&called)).collect()
    };
    Ok(places.into_iter().find(|path| is_own(path) == Some(true)).unwrap_or(own))
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
