//! `towpath up`: all devices of a file, by one keeper, until a signal or the service manager ends it.
#![forbid(unsafe_code)]

mod file;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use towpath_keeper::Begin;

use super::keeper::{exit_code_of_all, is_served, own_objects};
use super::log::start_log;
use super::ready::Ready;
use super::servers::{Manner, Served, Servers};
use super::settings::{Level, Settings};
use super::{confine, directory, explain, interface};
use crate::failure::{Failure, print, says};
use crate::needed_calls;
use crate::signals::Signals;
use file::{DeviceTable, UpFile};

/// The file that is read by default.
const DEFAULT_FILE: &str = "/etc/towpath/up.toml";

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
The file has one table for each device. Its keys are the long options of towpath serve, except
user, confine and log, which are of all devices together and come first, and fd-store:

  user = \"towpath\"

  [[device]]
  device = \"xdp:eth0\"
  share-host = true
  policy = \"/etc/towpath/policy.toml\"

  [[device]]
  device = \"tap:tap0\"
  address = [\"10.77.0.1/24\"]
  allow-user = [\"alice\"]

Each device has a server of its own. If one fails, the others go on, and another start follows,
again and again: towpath ls shows the reason. The servers read their policy files again at SIGHUP;
a change of this file takes effect with the next start of towpath up.

Examples:
  towpath up
  towpath up --config devices.toml --check";

/// Options of `towpath up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file that names the devices
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    config: PathBuf,
    /// Check the file, and start nothing
    #[arg(long)]
    check: bool,
    /// Write a line to this open descriptor for each device to which applications can attach, then
    /// close it
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    ready_fd: Option<i32>,
}

/// Serves all devices of a file.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let ready = Ready::take(args.ready_fd)?;
    let UpFile { log, devices } = UpFile::read(&args.config)?;
    for device in &devices {
        check(&device.settings).map_err(|failure| failure.at(&device.place))?;
    }
    if args.check {
        return print(&summary(&args.config, &devices)).map(|()| ExitCode::SUCCESS);
    }
    needed_calls::check()?;
    start_log(log.unwrap_or(Level::Info));
    let signals = Signals::block()
        .map_err(|error| Failure::new(format!("waiting for signals: {}", says(&error))))?;
    confine::raise_descriptor_limit();
    confine::raise_memory_limit();
    let (mut served, mut begins) = (Vec::new(), Vec::new());
    for DeviceTable { settings, place } in devices {
        let (one, begin) = prepare(settings).map_err(|failure| failure.at(&place))?;
        served.push(one);
        begins.push(begin);
    }
    let servers = Servers::new(served, Manner::Up, ready, &signals);
    let servers = servers
        .map_err(|error| Failure::new(format!("the path of this program: {}", says(&error))))?;
    Ok(exit_code_of_all(&servers.supervise(begins)?))
}

/// Checks the settings of a device, before the server of any device makes an object.
fn check(settings: &Settings) -> Result<(), Failure> {
    settings.check_lanes()?;
    settings.check_total_bytes()?;
    settings.check_pcap()?;
    settings.check_sockets()?;
    let config = settings.config(PathBuf::new())?;
    config.check().map_err(|error| explain(&error, settings))
}

/// Returns a device with the directory of its socket prepared.
fn prepare(settings: Settings) -> Result<(Served, Begin), Failure> {
    let kind = interface::kind_of(settings.served()?)?;
    let socket = settings.socket.clone().unwrap_or_default();
    if is_served(&socket) {
        return Err(directory::busy(&socket));
    }
    directory::prepare_both(&settings)?;
    let begin = Begin::First { own: own_objects(&settings)?, left: Default::default() };
    Ok((Served::new(settings, kind)?, begin))
}

/// Returns what a checked file has, in words.
fn summary(path: &Path, devices: &[DeviceTable]) -> String {
    let names = devices.iter().filter_map(|device| device.settings.device.as_ref());
    let names: Vec<_> = names.map(ToString::to_string).collect();
    let noun = if devices.len() == 1 { "device" } else { "devices" };
    format!("{}: {} {noun}: {}\n", path.display(), devices.len(), names.join(", "))
}
