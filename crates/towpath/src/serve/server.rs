//! The server's process, which the keeper starts: one device, served until a signal ends it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use towpath_device::{Device, DeviceError, Info};
use towpath_device_testing::fault::FaultDevice;
use towpath_keeper::{
    FollowedInterface, KeeperAccess, KeeperStore, followed_interface, take_device_objects,
};
use towpath_protocol::position::Crash;
use towpath_protocol::store::Store;
use towpath_server::{Config, HostAccess, Policy, Server, StartError};
use tracing::{info, warn};

use super::interface::{self, Opened};
use super::keeper::SETTINGS;
use super::last_policy::{LAST_POLICY, LastPolicy};
use super::log::start_log;
use super::notify::{notify, notify_now};
use super::pcap::Pcap;
use super::settings::{Level, Settings};
use super::values::InterfaceName;
use super::{confine, explain, explain_policy, memory_limit};
use crate::failure::{Failure, remedy, says};
use crate::signals::Signals;
use crate::standard_error;

/// Arguments of the hidden subcommand that is the process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The interface that the server serves
    interface: InterfaceName,
    /// This keeper started another server before: append to the file of --pcap, and ask for no
    /// further rights
    #[arg(long)]
    again: bool,
    /// The server before crashed
    #[arg(long)]
    after_crash: bool,
    /// This engine of the server before hung
    #[arg(long)]
    after_hang: Option<usize>,
    /// A server of another program is before this one: end at once unless everything can be resumed
    #[arg(long)]
    upgrade: bool,
}

impl Args {
    /// Returns how the server before crashed, if it did.
    fn crash(&self) -> Option<Crash> {
        let anywhere = self.after_crash.then_some(Crash::InUnknownThread);
        self.after_hang.map(Crash::Hang).or(anywhere)
    }
}

/// The time between two checks that the file of `--pcap` can still be written.
const PCAP_POLL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Serves, with the keeper at standard input.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("the server of {}: {}", args.interface, says(&error)))
    };
    let signals = Signals::block_with_leave().map_err(failed)?;
    let _ = rustix::thread::set_name(c"towpath-server");
    let (keeper, found) = take_standard_input().and_then(KeeperAccess::new).map_err(failed)?;
    let outcome = run_with(args, &keeper, found, signals);
    outcome.inspect_err(|failure| keeper.tell_failure(&failure.line()))
}

/// Serves with what the keeper gave.
fn run_with(
    args: &Args,
    keeper: &KeeperAccess,
    mut found: Vec<(String, OwnedFd)>,
    signals: Signals,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("the server of {}: {}", args.interface, says(&error)))
    };
    let settings = settings_of(&found).map_err(failed)?;
    let served = settings.served()?;
    let socket = settings.socket.clone().unwrap_or_default();
    start_log(settings.log.unwrap_or(Level::Info));
    let interface = interface_of(&found, &served.interface);
    let mut earlier = take_device_objects(&mut found, args.crash().is_some());
    earlier.set_keeper(Arc::new(keeper.clone()));
    let last = last_policy_of(&found).map_err(failed)?;
    let mut store = KeeperStore::new(keeper, found);
    let policy = keep_policy(last, &mut store).map_err(failed)?;

    let (configured, policy_text) = configure(&settings, &socket, &policy)?;
    let mut config = Config {
        resumes_all: args.upgrade,
        crash: args.crash(),
        device_name: Some(served.interface.to_string()),
        server_number: keeper.server_number(),
        leaves_after_changes: settings.hold.is_none_or(|hold| hold.get() > 0),
        ..configured
    };
    let own_queues = config.policy.own_queues();
    let Opened { device, subnets, xdp_sockets, index } =
        interface::open(served, &interface, &settings, own_queues, &mut earlier)?;
    drop(earlier); // The device has copies of what it needs.
    let Info { name, mtu, .. } = device.info().clone();
    config.subnets = subnets.unwrap_or(config.subnets);
    warn_without_grants(&config.policy, &served.interface);
    let total_bytes = config.policy.total_bytes;
    memory_limit::warn_if_small(total_bytes, settings.lanes());
    let (mut device, mut pcap) = Pcap::wrap(with_faults(device, &settings), &settings, args.again)?;
    allow_xdp_sockets(keeper, xdp_sockets, args.again).map_err(failed)?;
    device.set_keeper(Arc::new(keeper.clone()));
    config.host = settings.share_host.then(|| host_access(keeper, &name, index));
    give_up_rights(&settings, &socket, pcap.as_mut())?;
    let failed = |error: StartError| explain(&error, &settings);
    let server = Server::start(&config, device, Box::new(store)).map_err(failed)?;
    drop(config);
    policy.set(&policy_text);
    info!(
        device = &*served.interface,
        interface = name,
        mtu,
        socket = %socket.display(),
        admin_socket = %settings.admin_path().display(),
        uid = rustix::process::geteuid().as_raw(),
        version = env!("CARGO_PKG_VERSION"),
        total_bytes, "serving"
    );
    report_started(keeper)?;
    let device = &served.interface;
    let action = serve(&server, &signals, &mut pcap, &settings, &socket, device, &policy)?;
    signals.release_soon();
    let leaves = action == Action::Leave;
    let outcome = end(server, keeper, action);
    info!(
        device = &*served.interface,
        "{}",
        if leaves { "left to the next server" } else { "ended" }
    );
    outcome.map_err(|error| ended(&error))
}

/// Returns the file of an earlier server's last policy.
fn last_policy_of(found: &[(String, OwnedFd)]) -> std::io::Result<Option<OwnedFd>> {
    let last = found.iter().find(|(name, _)| name == LAST_POLICY);
    last.map(|(_, file)| file.try_clone()).transpose()
}

/// Returns the interface, which may have another name than on the command line. The keeper follows it.
fn interface_of(found: &[(String, OwnedFd)], configured: &str) -> FollowedInterface {
    followed_interface(found).unwrap_or_else(|| FollowedInterface::named(configured))
}

/// Returns what the server needs to share the addresses of the interface with this name and number.
fn host_access(keeper: &KeeperAccess, name: &str, index: Option<u32>) -> HostAccess {
    let mut interface = FollowedInterface::named(name);
    interface.index = index;
    HostAccess::new(keeper, interface)
}

/// Tells the keeper whether the device needs AF_XDP sockets. `again`: an earlier server has told it.
fn allow_xdp_sockets(
    keeper: &KeeperAccess,
    xdp_sockets: Option<bool>,
    again: bool,
) -> std::io::Result<()> {
    let Some(busy_poll) = xdp_sockets else { return Ok(()) };
    let allowed = keeper.allow_xdp_sockets(busy_poll);
    // The keeper refuses a change once a server has served; the first setting stays.
    allowed.or_else(|error| if again { Ok(()) } else { Err(error) })
}

/// Returns the settings that the keeper gave.
fn settings_of(found: &[(String, OwnedFd)]) -> std::io::Result<Settings> {
    let object = found.iter().find(|(name, _)| name == SETTINGS).map(|(_, object)| object);
    let missing = || std::io::Error::other("the keeper gave no settings");
    object.ok_or_else(missing).and_then(OwnedFd::try_clone).and_then(Settings::from_keeper)
}

/// Wraps a device so that the wrapper injects the faults of `--fault`.
fn with_faults(device: Box<dyn Device>, settings: &Settings) -> Box<dyn Device> {
    let Some(fault) = &settings.fault else { return device };
    warn!("--fault: this server injects faults");
    Box::new(FaultDevice::new(device, &fault.spec))
}

/// Tells the keeper that the server serves, and has it close what an earlier server's device left.
fn report_started(keeper: &KeeperAccess) -> Result<(), Failure> {
    keeper.ready();
    // After `ready`, because closing these takes the kernel long.
    let released = keeper.release_earlier_device();
    released.map_err(|error| Failure::new(format!("the keeper: {}", says(&error))))
}

/// Gives up every right that serving does not need. Then starts the threads that wait for the readers of log and
/// capture.
fn give_up_rights(
    settings: &Settings,
    socket: &Path,
    pcap: Option<&mut Pcap<'_>>,
) -> Result<(), Failure> {
    let policy = settings.policy.as_deref();
    confine::confine(settings.user.as_ref())?;
    confine::end_with_parent()?;
    warn_of_unreadable_policy(policy);
    let sockets = [socket, &settings.admin_path()];
    confine::restrict_server(settings.confine.unwrap_or_default(), policy, sockets)?;
    standard_error::start_thread();
    pcap.map_or(Ok(()), Pcap::start_thread)
}

/// Ends a server, after a signal or because it has ended by itself.
fn end(server: Server, keeper: &KeeperAccess, action: Action) -> Result<(), DeviceError> {
    // An error of `KeeperAccess::end` means that the keeper has ended already.
    if action == Action::Stop {
        notify_now(&[NotifyState::Stopping]);
        let _ = keeper.end();
    }
    if action == Action::Leave {
        return server.leave();
    }
    let outcome = server.stop();
    // After a failure, another server follows, unless the device is gone.
    if outcome.as_ref().err().is_none_or(DeviceError::is_gone) {
        let _ = keeper.end();
    }
    outcome
}

/// Returns the connection at standard input, in whose place comes `/dev/null`.
fn take_standard_input() -> std::io::Result<OwnedFd> {
    let connection = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(connection)
}

/// Returns the file of the last policy: an earlier server's, or a new one in the store. A new one replaces a file
/// without the seals.
fn keep_policy(earlier: Option<OwnedFd>, store: &mut KeeperStore) -> std::io::Result<LastPolicy> {
    let text = match earlier.map(LastPolicy::of_earlier) {
        Some(Ok(policy)) => return Ok(policy),
        Some(Err(text)) => text,
        None => None,
    };
    let policy = LastPolicy::new()?;
    if let Some(text) = text {
        policy.set(&text);
    }
    drop(store.remove(LAST_POLICY));
    store.put(LAST_POLICY, policy.as_fd())?;
    Ok(policy)
}

/// Returns the configuration, and the text of its policy. If the policy file has an error or cannot be
/// read, the policy of an earlier server stays in force.
fn configure(
    settings: &Settings,
    socket: &Path,
    last: &LastPolicy,
) -> Result<(Config, String), Failure> {
    let with = |text: Option<String>| {
        let config = settings.config_with(socket.to_owned(), text.as_deref())?;
        config.check().map_err(|error| explain(&error, settings))?;
        Ok((config, text.unwrap_or_default()))
    };
    let failure = match settings.policy_text().and_then(with) {
        Ok(configured) => return Ok(configured),
        Err(failure) => failure,
    };
    // Only now: this process still has the rights of a start, and an earlier server has written the text.
    let Some(text) = last.text() else { return Err(failure) };
    let configured = with(Some(text))?;
    warn!("{}; the policy of the earlier server stays in force", failure.text());
    Ok(configured)
}

/// Reads the policy file again. With an error in it, the old policy stays in force.
fn reload_policy(
    server: &Server,
    settings: &Settings,
    socket: &Path,
    device: &str,
    last: &LastPolicy,
) {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify_now(&[NotifyState::Reloading, now]);
    }
    let outcome = settings.policy_text().and_then(|text| {
        let config = settings.config_with(socket.to_owned(), text.as_deref())?;
        warn_without_grants(&config.policy, device);
        let changed = server.set_policy(config.policy);
        let changed = changed.map_err(|error| explain_policy(&error, settings))?;
        last.set(&text.unwrap_or_default());
        Ok(changed)
    });
    match outcome {
        Ok(change) => info!(
            sessions_closed = change.sessions,
            endpoints_closed = change.endpoints,
            "policy reloaded"
        ),
        Err(failure) => warn!("{}; the old policy stays in force", failure.text()),
    }
    // The service manager counts the service as reloading until then.
    if let Err(error) = notify(&[NotifyState::Ready]) {
        warn!(
            "NOTIFY_SOCKET: {}; the service manager counts the service as reloading",
            says(&error)
        );
    }
}

/// Warns of a policy without a grant for this device.
fn warn_without_grants(policy: &Policy, device: &str) {
    if policy.may_change && policy.grants.is_empty() {
        warn!("no grant of the policy is for {device}: only administrators may attach");
    }
}

/// Warns of a policy file that this process could read before its change of user, and not after it.
fn warn_of_unreadable_policy(file: Option<&Path>) {
    let Some((path, error)) = file.and_then(|path| Some((path, File::open(path).err()?))) else {
        return;
    };
    let (shown, gid) = (path.display(), rustix::process::getegid().as_raw());
    warn!(
        "{shown}: {}: user {} will not be able to read this policy again: SIGHUP and a next server change \
         nothing of it; chgrp {gid} {shown}, chmod g+r {shown}, and let \
         that group search its directory",
        says(&error),
        rustix::process::geteuid().as_raw()
    );
}

/// Returns the remedy for a server that ended by itself.
fn ended(error: &DeviceError) -> Failure {
    match error {
        DeviceError::Gone { .. } => Failure::new(format!(
            "{error}; all sessions have ended; start the server again when the interface is back"
        )),
        DeviceError::Changed { .. } => Failure::new(error.to_string()),
        DeviceError::Failed { cause, .. } => Failure::new(format!("{error}{}", remedy(cause))),
        DeviceError::Stalled { .. } => Failure::new(error.to_string()),
    }
}

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Read the policy file again.
    ReloadPolicy,
    /// Stop.
    Stop,
    /// Stop, and leave everything for the next server.
    Leave,
    /// The server has ended by itself.
    Ended,
}

/// Serves until a signal ends that, or the server has ended by itself. Reads the policy again at
/// SIGHUP.
fn serve(
    server: &Server,
    signals: &Signals,
    pcap: &mut Option<Pcap<'_>>,
    settings: &Settings,
    socket: &Path,
    device: &str,
    last: &LastPolicy,
) -> Result<Action, Failure> {
    loop {
        match wait(server, signals, pcap)? {
            Action::ReloadPolicy if settings.policy.is_some() => {
                reload_policy(server, settings, socket, device, last);
            }
            // Without a policy, SIGHUP says that the terminal was closed.
            Action::ReloadPolicy => return Ok(Action::Stop),
            action => return Ok(action),
        }
    }
}

/// Waits until a signal arrives, or the server has ended by itself.
fn wait(
    server: &Server,
    signals: &Signals,
    pcap: &mut Option<Pcap<'_>>,
) -> Result<Action, Failure> {
    loop {
        let timeout = pcap.as_ref().map(|_| PCAP_POLL);
        let mut polled = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(server.over().as_fd(), PollFlags::IN),
        ];
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) if polled[1].revents().is_empty() => match signals.take() {
                Some(libc::SIGHUP) => return Ok(Action::ReloadPolicy),
                Some(libc::SIGUSR2) => return Ok(Action::Leave),
                Some(_) => return Ok(Action::Stop),
                None => {}
            },
            Ok(_) => return Ok(Action::Ended),
            Err(errno) => {
                return Err(Failure::new(format!("waiting: {}", says(&errno.into()))));
            }
        }
        if pcap.as_mut().is_some_and(|pcap| !pcap.check()) {
            *pcap = None;
        }
    }
}
