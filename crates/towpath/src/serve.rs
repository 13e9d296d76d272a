//! `towpath serve`: one device, served until a signal or the service manager ends it.

pub(crate) mod confine;
mod directory;
mod interface;
pub(crate) mod keeper;
mod log;
mod ready;
mod settings;
pub(crate) mod values;

use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_device::capture::{self, CaptureDevice, CaptureStatus};
use towpath_device::fault::FaultDevice;
use towpath_device::{Device, DeviceError};
use towpath_server::{Policy, PolicyError, Server, StartError};
use tracing::{info, warn};

use crate::failure::{Failure, print, remedy, says};
use crate::policy::file::PolicyFile;
use crate::signals::Signals;
use interface::Opened;
use keeper::Keeper;
use log::start_log;
use ready::Ready;
use settings::{Level, Settings};
use values::Identity;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  towpath serve --device tap:tap0 --address 10.77.0.1/24 --address fd77::1/64 --allow-user alice
  towpath serve --device tap:tap0 --address 10.77.0.1/24 --user towpath --allow-group net --wait poll
  towpath serve --device xdp:eth0 --share-host --user towpath --allow-user alice
  towpath serve --device xdp:eth0 --lease 192.0.2.64/28 --user towpath --allow-user alice
  towpath serve --device packet:eth0 --share-host --user towpath --policy /etc/towpath/policy.toml
  towpath serve --device auto:eth0 --share-host --user towpath --allow-group net
  towpath serve --config /etc/towpath/tap0.toml --log debug
  towpath serve --config /etc/towpath/tap0.toml --print-config
  towpath serve --device tap:tap0 --address 10.77.0.1/24 --fault drop=0.01,seed=42 --pcap wire.pcapng";

/// Options of `towpath serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read options from a TOML file; each key is an option's name; the command line overrides it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the options in effect as a TOML file, and exit
    #[arg(long)]
    print_config: bool,
    /// Write a line to this open descriptor when applications can attach, then close it
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    ready_fd: Option<i32>,
    #[command(flatten)]
    settings: Settings,
}

/// The time between two checks that the file of `--pcap` can still be written.
const PCAP_POLL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Serves.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let ready = Ready::take(args.ready_fd)?;
    let file = args.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
    let settings = args.settings.clone().over(file);
    // Checks all settings before the server makes any object.
    settings.check_lanes()?;
    settings.config(PathBuf::new())?.check().map_err(|error| explain(&error, &settings))?;
    if args.print_config {
        return print(&settings.with_defaults().to_text()?);
    }
    let served = settings.device.as_ref().ok_or_else(no_device)?;
    start_log(settings.log.unwrap_or(Level::Info));
    let signals = Signals::block()
        .map_err(|error| Failure::new(format!("waiting for signals: {}", says(&error))))?;

    let default_socket = || towpath_client::default_socket(&served.interface);
    let socket = settings.socket.clone().unwrap_or_else(default_socket);
    let left = keeper::take_over_from_killed(&socket, settings.user.as_ref())?;
    confine::raise_memory_limit();
    let mut config = settings.config(socket.clone())?;
    let own_queues = config.policy.own_queues();
    let Opened { mut device, subnets, xdp_sockets } =
        interface::open(served, &settings, own_queues)?;
    let device_info = device.info().clone();
    let name = device_info.name;
    config.subnets = subnets.unwrap_or(config.subnets);
    warn_without_grants(&config.policy, &name);
    directory::prepare(&socket, settings.user.as_ref())?;
    let mut pcap = None;
    if let Some(fault) = &settings.fault {
        device = Box::new(FaultDevice::new(device, &fault.spec));
    }
    if let Some(path) = &settings.pcap {
        let (wrapped, status) = record(device, path, settings.user.as_ref())?;
        device = wrapped;
        pcap = Some((path.as_path(), status));
    }
    // The keeper needs privileges that the next step gives up. It ends after the server, with this
    // value.
    let keeper = Keeper::start(&settings, &served.interface, &socket, xdp_sockets)?;
    if let Some(keeper) = &keeper {
        keeper.serve(device.as_mut());
    }
    let access = |keeper: &Keeper| keeper.host_access(&settings, &served.interface);
    config.host = keeper.as_ref().and_then(access);
    confine::confine(settings.user.as_ref())?;
    warn_of_unreadable_policy(settings.policy.as_deref());
    let store = keeper::store(keeper.as_ref(), left);
    let failed = |error: StartError| explain(&error, &settings);
    let server = Server::start(&config, device, store).map_err(failed)?;
    drop(config);
    info!(
        device = name,
        mtu = device_info.mtu,
        socket = %socket.display(),
        uid = rustix::process::geteuid().as_raw(),
        "serving"
    );
    ready.tell(&name, &socket);

    // Without a policy, SIGHUP says that the terminal was closed.
    while wait(&server, &signals, &mut pcap)? == Action::ReloadPolicy && settings.policy.is_some() {
        reload_policy(&server, &settings, &socket, &name);
    }
    signals.release_soon();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let outcome = server.stop();
    info!(device = name, "ended");
    outcome.map_err(|error| ended(&error))
}

fn no_device() -> Failure {
    Failure::usage(
        "no device to serve; give --device tap:NAME, xdp:INTERFACE, packet:INTERFACE or \
         auto:INTERFACE, or device = \"tap:NAME\" in a file",
    )
}

/// Reads the policy file again. With an error in it, the old policy stays in force.
fn reload_policy(server: &Server, settings: &Settings, socket: &Path, device: &str) {
    let _ = sd_notify::NotifyState::monotonic_usec_now()
        .and_then(|now| sd_notify::notify(&[sd_notify::NotifyState::Reloading, now]));
    let outcome = settings.config(socket.to_owned()).and_then(|config| {
        warn_without_grants(&config.policy, device);
        server.set_policy(config.policy).map_err(|error| explain_policy(&error, settings))
    });
    match outcome {
        Ok(change) => info!(
            sessions_closed = change.sessions,
            endpoints_closed = change.endpoints,
            "policy reloaded"
        ),
        Err(failure) => warn!("{}; the old policy stays in force", failure.text()),
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// Warns of a policy without a grant for this device.
fn warn_without_grants(policy: &Policy, device: &str) {
    if policy.may_change && policy.grants.is_empty() {
        warn!("no grant of the policy is for {device}: only administrators may attach");
    }
}

/// Warns of a policy file that the server could read before its change of user, and not after it.
fn warn_of_unreadable_policy(file: Option<&Path>) {
    let Some((path, error)) = file.and_then(|path| Some((path, File::open(path).err()?))) else {
        return;
    };
    let (shown, gid) = (path.display(), rustix::process::getegid().as_raw());
    warn!(
        "{shown}: {}: user {} will not be able to read a changed policy at SIGHUP; chgrp {gid} \
         {shown}, chmod g+r {shown}, and let that group search its directory",
        says(&error),
        rustix::process::geteuid().as_raw()
    );
}

/// Returns the reason why a server did not start, with the option that helps or another remedy.
fn explain(error: &StartError, settings: &Settings) -> Failure {
    if let StartError::Policy(error) = error {
        return explain_policy(error, settings);
    }
    if let StartError::Socket { path, cause } = error
        && !remedy(cause).is_empty()
    {
        return Failure::new(format!("{}: {}{}", path.display(), says(cause), remedy(cause)));
    }
    let remedy = match error {
        StartError::InUse(_) | StartError::Socket { .. } => " with --socket",
        StartError::Batch { .. } => " with --batch",
        StartError::Processor { .. } => "; choose one of them with --engine-cpu",
        StartError::Processors { .. } => " (--engine-cpu, --lanes)",
        StartError::Lanes { .. } => " (--lanes)",
        StartError::Resources { cause, .. } => remedy(cause),
        StartError::Device(DeviceError::Failed { cause, .. }) => remedy(cause),
        _ => "",
    };
    let text = format!("{error}{remedy}");
    match error {
        StartError::Batch { .. }
        | StartError::Processor { .. }
        | StartError::Processors { .. }
        | StartError::Lanes { .. } => Failure::usage(text),
        _ => Failure::new(text),
    }
}

/// Returns the reason why a server does not take a policy, with the place in the file if this user
/// can read the file.
fn explain_policy(error: &PolicyError, settings: &Settings) -> Failure {
    let (Some(path), Some(served)) = (&settings.policy, &settings.device) else {
        return Failure::new(error.to_string());
    };
    let (shown, interface) = (path.display(), &served.interface);
    let PolicyError::NotGiven { address, given } = error else {
        return Failure::usage(format!("{shown}: {error}"));
    };
    let file = PolicyFile::read(path).unwrap_or_default();
    let mut ours = file.reservations.iter().filter(|one| one.is_for(interface));
    let line = ours.find(|one| one.address == *address).map(|one| format!(":{}", one.line));
    Failure::usage(format!(
        "{shown}{}: reservation of {address}: {interface} gives {given}",
        line.unwrap_or_default()
    ))
}

/// Returns the remedy for a server that ended by itself.
fn ended(error: &DeviceError) -> Failure {
    match error {
        DeviceError::Gone { .. } => {
            Failure::new(format!("{error}; start the server again when the interface is back"))
        }
        DeviceError::Failed { cause, .. } => Failure::new(format!("{error}{}", remedy(cause))),
        DeviceError::Stalled { .. } => Failure::new(format!("{error}; start the server again")),
    }
}

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Read the policy file again.
    ReloadPolicy,
    /// Stop, or the server has ended by itself.
    Stop,
}

/// Waits until a signal arrives, or the server has ended by itself.
fn wait(
    server: &Server,
    signals: &Signals,
    pcap: &mut Option<(&Path, CaptureStatus)>,
) -> Result<Action, Failure> {
    loop {
        let timeout = pcap.as_ref().map(|_| PCAP_POLL);
        let mut heard = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(server.over().as_fd(), PollFlags::IN),
        ];
        match poll(&mut heard, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) if heard[1].revents().is_empty() => match signals.take() {
                Some(libc::SIGHUP) => return Ok(Action::ReloadPolicy),
                Some(_) => return Ok(Action::Stop),
                None => {}
            },
            Ok(_) => return Ok(Action::Stop),
            Err(errno) => {
                return Err(Failure::new(format!("waiting: {}", says(&errno.into()))));
            }
        }
        if let Some((path, status)) = pcap
            && let Some(failure) = status.take_failure()
        {
            warn!(
                "--pcap {}: {}; the capture ends after {} packets, the server goes on",
                path.display(),
                says(&failure),
                status.frames()
            );
            *pcap = None;
        }
    }
}

/// Wraps a device so that the wrapper writes its packets to a file.
fn record(
    device: Box<dyn Device>,
    path: &Path,
    user: Option<&Identity>,
) -> Result<(Box<dyn Device>, CaptureStatus), Failure> {
    let failed = |error: std::io::Error| {
        let said = says(&error);
        Failure::new(format!(
            "--pcap {}: {said}; choose a file that can be written",
            path.display()
        ))
    };
    // Captured traffic is private to this user.
    let file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    if let Some(user) = user {
        let (uid, gid) = (user.uid, user.gid);
        // Where root may not change the owner, the file stays root's; the server has it open.
        let _ = std::os::unix::fs::fchown(&file, Some(uid), Some(gid));
    }
    let wrapped = CaptureDevice::new(device, BufWriter::new(file), capture::Options::default())
        .map_err(failed)?;
    let status = wrapped.status();
    Ok((Box::new(wrapped), status))
}
