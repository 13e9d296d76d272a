//! The keeper: the process that an operator starts. The keeper starts the server, and another one
//! after each that is killed, hangs, fails or is upgraded.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use towpath_server::{
    Crash, KeeperOptions, Start, Supervised, Supervision, keeper_path, supervise,
};

use super::confine::{confine_keeper, kept_capabilities, restrict_keeper};
use super::directory::lock_path;
use super::ready::Ready;
use super::settings::{HOLD_S, Settings};
use crate::failure::{Failure, remedy, says};
use crate::signals::Signals;

/// The name of the settings among the keeper's objects: a file of TOML.
pub(super) const SETTINGS: &str = "keeper-settings";

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
    is_tap: bool,
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
        confine_keeper(user.as_ref(), kept_capabilities(*share_host, self.is_tap))?;
        restrict_keeper(confine.unwrap_or_default(), self.socket, pcap.as_deref())
    }
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

/// Starts servers until one ends in order, a signal ends the last one, or none can follow.
pub(super) fn supervise_servers(
    settings: &Settings,
    interface: &str,
    (socket, is_tap): (&Path, bool),
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
    let own = vec![(SETTINGS.to_owned(), in_memory(&text).map_err(failed)?)];
    let hold_s = settings.hold.map_or(HOLD_S, |hold| hold.get() as u64);
    let options = KeeperOptions {
        interface: interface.to_owned(),
        shares_host: settings.share_host,
        hold: Duration::from_secs(hold_s),
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
        is_tap,
        signals,
        path: program,
        upgraded,
        installed,
        ready,
        failure,
    };
    let outcome = supervise(&options, own, signals.as_fd(), &mut servers);
    if let Some(failure) = servers.failure {
        return Err(failure);
    }
    match outcome.map_err(failed)? {
        Supervision::Ended(status) => Ok(exit_code(status)),
        Supervision::GaveUp(_) => Ok(ExitCode::FAILURE),
        Supervision::Stopped => Ok(ExitCode::SUCCESS),
    }
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
