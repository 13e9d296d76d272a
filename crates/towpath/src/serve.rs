//! `towpath serve`: one device, served until a signal or the service manager ends it.

pub(crate) mod confine;
mod directory;
mod fd_store;
mod interface;
pub(crate) mod keeper;
mod kind;
mod last_policy;
mod log;
mod memory_limit;
mod notify;
mod oom_score;
mod pcap;
mod ready;
pub(crate) mod server;
mod servers;
mod settings;
mod toml_text;
pub(crate) mod up;
pub(crate) mod values;

use std::path::PathBuf;
use std::process::ExitCode;

use towpath_device::DeviceError;
use towpath_server::{PolicyError, StartError};

use crate::failure::{Failure, print, remedy, says};
use crate::needed_calls;
use crate::policy::file::PolicyFile;
use crate::signals::Signals;
use log::start_log;
use ready::Ready;
use settings::{Level, Settings};

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
  towpath serve --device tap:tap0 --address 10.77.0.1/24 --pcap wire.pcapng";

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

/// Serves: starts a server, and another one whenever a server is killed.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let given = fd_store::take_given().map_err(|error| {
        Failure::new(format!(
            "the service manager's descriptors: {}; start the service by systemd, or unset LISTEN_FDS",
            says(&error)
        ))
    })?;
    let ready = Ready::take(args.ready_fd)?;
    let file = args.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
    let settings = args.settings.clone().over(file);
    // Checks all settings before the server makes any object.
    settings.check_lanes()?;
    settings.check_total_bytes()?;
    settings.check_pcap()?;
    settings.check_sockets()?;
    settings.config(PathBuf::new())?.check().map_err(|error| explain(&error, &settings))?;
    if args.print_config {
        print(&settings.with_defaults().to_text()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let served = settings.served()?.clone();
    needed_calls::check()?;
    start_log(settings.log.unwrap_or(Level::Info));
    let signals = Signals::block()
        .map_err(|error| Failure::new(format!("waiting for signals: {}", says(&error))))?;
    let default_socket = || towpath_client::default_socket(&served.interface);
    let socket = settings.socket.clone().unwrap_or_else(default_socket);
    let settings = Settings { socket: Some(socket.clone()), ..settings };
    confine::raise_descriptor_limit();
    let kind = interface::kind_of(&served)?;
    if keeper::is_served(&socket) {
        return Err(directory::busy(&socket));
    }
    confine::raise_memory_limit();
    directory::prepare_both(&settings)?;
    keeper::supervise_servers(&settings, kind, ready, given, &signals)
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
        StartError::LongAdminPath { .. } | StartError::OneSocket(_) => {
            " (--socket, --admin-socket)"
        }
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
