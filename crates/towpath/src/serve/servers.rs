//! The servers of a keeper: how they start, and the rights that the keeper keeps for them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use sd_notify::NotifyState;
use towpath_keeper::{
    Begin, KeeperOptions, Start, Supervised, Supervision, keeper_path, status_path, supervise,
};
use towpath_protocol::position::Crash;

use super::confine::{
    ForServers, confine_keeper, kept_capabilities, raise_ambient_capabilities,
    restore_ambient_capabilities, restrict_keeper,
};

use super::kind::Kind;
use super::notify::{has_service_manager, notify_now};
use super::oom_score::OomScore;
use super::ready::Ready;
use super::settings::{HOLD_S, Settings};
use crate::failure::{Failure, remedy, says};
use crate::signals::{Signals, ignore_broken_pipes};
use crate::standard_error;

/// The longest time that another program takes to check that it can be the keeper.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// A device that a keeper has servers for.
pub(super) struct Served {
    settings: Settings,
    interface: String,
    socket: PathBuf,
    admin: PathBuf,
    kind: Kind,
    /// The program of the servers after an upgrade, and the one of an upgrade under way.
    upgraded: Option<File>,
    installed: Option<File>,
}

impl Served {
    /// Returns a device with complete settings: they name the device and the socket.
    pub(super) fn new(settings: Settings, kind: Kind) -> Result<Served, Failure> {
        let interface = settings.served()?.interface.to_string();
        let socket = settings.socket.clone().unwrap_or_default();
        let admin = settings.admin_path();
        Ok(Served { settings, interface, socket, admin, kind, upgraded: None, installed: None })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the options of the device's keeper.
    fn options(&self, devices: usize, manner: Manner) -> KeeperOptions {
        let settings = &self.settings;
        KeeperOptions {
            interface: self.interface.clone(),
            follows: self.kind.follows(),
            devices,
            shares_host: settings.share_host,
            hold: Duration::from_secs(settings.hold.map_or(HOLD_S, |hold| hold.get() as u64)),
            retries: manner == Manner::Up,
            passes_hangup: manner != Manner::Up || settings.policy.is_some(),
            leaves_at_sigterm: manner == Manner::ServeWithStore && has_service_manager(),
            owner: settings.user.as_ref().map(|user| (user.uid, user.gid)),
            path: keeper_path(&self.settings.admin_path()),
            status: status_path(&self.socket),
        }
    }

    /// Returns the capabilities for servers of the device. `makes_interface`: also those of a server that
    /// makes its interface.
    fn capabilities(&self, makes_interface: bool) -> CapabilitySet {
        let mut kept = kept_capabilities(self.settings.share_host, self.kind);
        if self.kind == Kind::Tap && makes_interface {
            kept.insert(CapabilitySet::NET_ADMIN);
        }
        kept
    }
}

/// The command that the keeper is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// `towpath serve`: the keeper ends with its server.
    Serve,
    /// `towpath serve --fd-store`: at SIGTERM, everything is left to the service manager.
    ServeWithStore,
    /// `towpath up`: a device that fails does not end the others.
    Up,
}

/// The servers of a keeper.
pub(super) struct Servers<'a> {
    devices: Vec<Served>,
    manner: Manner,
    signals: &'a Signals,
    /// The path of this program, from which the next version starts.
    path: PathBuf,
    /// The programs to tell when the first servers serve; `None` afterwards, when the keeper has given
    /// up its rights.
    ready: Option<Ready>,
    /// Why the keeper cannot go on after the start of the first servers.
    failure: Option<Failure>,
    /// Has the kernel end servers before the keeper. `None` if the system does not allow that.
    oom_score: Option<OomScore>,
}

impl<'a> Servers<'a> {
    /// Returns the servers of a keeper that starts.
    pub(super) fn new(
        devices: Vec<Served>,
        manner: Manner,
        ready: Ready,
        signals: &'a Signals,
    ) -> io::Result<Servers<'a>> {
        // An upgrade replaces the file at this path, and not this process' own.
        let (path, ready) = (program_path()?, Some(ready));
        let oom_score = OomScore::open();
        Ok(Servers { devices, manner, signals, path, ready, failure: None, oom_score })
    }

    /// Returns the servers of a keeper that goes on after an upgrade, all of which serve.
    pub(super) fn of_earlier(
        devices: Vec<Served>,
        manner: Manner,
        path: PathBuf,
        signals: &'a Signals,
    ) -> Result<Servers<'a>, Failure> {
        let oom_score = OomScore::inherited();
        let (ready, failure) = (None, None);
        let servers = Servers { devices, manner, signals, path, ready, failure, oom_score };
        restore_ambient_capabilities(servers.kept_capabilities())?;
        standard_error::start_thread();
        Ok(servers)
    }

    /// Starts servers until one ends in order or leaves, a signal ends the last one, or none can
    /// follow. Returns the end of each device.
    pub(super) fn supervise(mut self, begins: Vec<Begin>) -> Result<Vec<Supervision>, Failure> {
        let _ = rustix::thread::set_name(c"towpath-keeper");
        let options = self.devices.iter().map(|one| one.options(self.devices.len(), self.manner));
        let devices = options.zip(begins).collect();
        let signals = self.signals;
        let outcome = supervise(devices, signals.as_fd(), &mut self);
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        outcome.map_err(|error| failed(&keeper_path(&self.devices[0].admin), &error))
    }

    /// Returns the capabilities that the keeper keeps, for all of its devices. A device of several that
    /// fails begins anew, and makes its interface once more.
    fn kept_capabilities(&self) -> CapabilitySet {
        let begins_anew = self.manner == Manner::Up;
        let each = self.devices.iter().map(|device| device.capabilities(begins_anew));
        each.fold(CapabilitySet::empty(), CapabilitySet::union)
    }

    /// Gives up every right that a keeper does not need.
    fn give_up_rights(&self) -> Result<(), Failure> {
        let kept = self.kept_capabilities();
        // All devices have the same user and the same confinement.
        let Settings { user, confine, .. } = &self.devices[0].settings;
        confine_keeper(user.as_ref(), kept)?;
        let files = self.devices.iter().map(|device| ForServers {
            kind: device.kind,
            sockets: [&device.socket, &device.admin],
            pcap: device.settings.pcap.as_deref(),
        });
        restrict_keeper(confine.unwrap_or_default(), &files.collect::<Vec<_>>())
    }

    /// Returns the command by which a program goes on as the keeper.
    fn keeper_command(&self, program: &File, state: BorrowedFd<'_>) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command.arg0("towpath").arg("keeper");
        command.arg("--state").arg(state.as_raw_fd().to_string());
        command.arg("--program").arg(&self.path);
        for device in &self.devices {
            command.args(["--kind", device.kind.name()]);
        }
        command.args((self.manner == Manner::Up).then_some("--up"));
        command.args((self.manner == Manner::ServeWithStore).then_some("--fd-store"));
        command
    }
}

/// Returns the failure of a keeper.
pub(super) fn failed(path: &Path, error: &io::Error) -> Failure {
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
    fn launch(&mut self, device: usize, connection: OwnedFd, start: Start) -> io::Result<Child> {
        if self.ready.is_none() && self.manner == Manner::Up {
            // The server starts with the capabilities of its own device alone.
            let needed = self.devices[device].capabilities(start.begins_anew);
            restore_ambient_capabilities(needed)
                .map_err(|failure| io::Error::other(failure.text().to_owned()))?;
        }
        let served = &self.devices[device];
        let program = if start.is_upgrade { &served.installed } else { &served.upgraded };
        let mut command = match program {
            Some(file) => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => Command::new("/proc/self/exe"),
        };
        command.arg0("towpath");
        command.args(["server", &served.interface]);
        if self.manner == Manner::Up {
            // The keeper itself tells the service manager of all devices together.
            command.env_remove("NOTIFY_SOCKET");
        }
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
        command.stdin(Stdio::from(connection));
        match &self.oom_score {
            Some(oom_score) => oom_score.start(|| command.spawn()),
            None => command.spawn(),
        }
    }

    fn prepare_upgrade(&mut self, device: usize) -> io::Result<String> {
        let opened = File::open(&self.path).map_err(|error| {
            let text = format!(
                "{}: {}; install the new program at this path",
                self.path.display(),
                says(&error)
            );
            io::Error::new(error.kind(), text)
        });
        self.devices[device].installed = Some(opened?);
        Ok(self.path.display().to_string())
    }

    fn end_upgrade(&mut self, device: usize, serves: bool) {
        let device = &mut self.devices[device];
        let installed = device.installed.take();
        if serves {
            device.upgraded = installed;
        }
    }

    fn replace(&mut self, device: usize, file: BorrowedFd<'_>) -> io::Error {
        let Some(program) = &self.devices[device].upgraded else {
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
        let kept = self.kept_capabilities();
        if let Err(failure) = raise_ambient_capabilities(kept) {
            return io::Error::other(failure.text().to_owned());
        }
        // The applications wait for the new keeper.
        standard_error::finish_within(Duration::from_millis(100));
        let set_inheritable = |is_inheritable| {
            if let Some(oom_score) = &self.oom_score {
                oom_score.set_inheritable(is_inheritable);
            }
        };
        set_inheritable(true);
        let error = self.keeper_command(program, file).exec();
        set_inheritable(false);
        // The attempt has restored the default of SIGPIPE, which would end this process.
        ignore_broken_pipes();
        if let Err(failure) = restore_ambient_capabilities(kept) {
            // The next servers start with a capability that they do not need, and drop it.
            tracing::error!("{}", failure.text());
        }
        error
    }

    fn ready(&mut self, has_served: &[bool]) -> io::Result<()> {
        if let Err(failure) = self.give_up_rights() {
            self.failure = Some(failure);
            return Err(io::Error::other("not confined"));
        }
        standard_error::start_thread();
        if let Some(ready) = self.ready.take() {
            let served = self.devices.iter().zip(has_served).filter(|(_, has_served)| **has_served);
            ready.tell(served.map(|(device, _)| (&*device.interface, &*device.socket)));
        }
        Ok(())
    }

    fn take_signal(&mut self) -> Option<i32> {
        let mut signal = self.signals.take()?;
        if self.manner == Manner::Up {
            if signal == libc::SIGHUP
                && self.devices.iter().all(|device| device.settings.policy.is_none())
            {
                // Without a policy, SIGHUP says that the terminal was closed.
                signal = libc::SIGTERM;
            }
            if signal != libc::SIGHUP {
                notify_now(&[NotifyState::Stopping]);
            }
        }
        Some(signal)
    }
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
