//! `towpath-guest`: runs the scripts of `lab/guest`, or a command, in virtual machines.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use towpath_guest::Options;

/// Run the checks of lab/guest, or a command, in virtual machines.
#[derive(Debug, Parser)]
#[command(
    name = "towpath-guest",
    version,
    after_help = "\
Exit status: that of a command; without one, 0 if all checks passed, 1 if not; 2 wrong usage.

Examples:
  towpath-guest --script package
  towpath-guest -- sh -c 'ip link; ls /dev/vfio'"
)]
struct Args {
    /// The directory of the repository
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    repository: PathBuf,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let Args { repository, options } = Args::parse();
    let status = if options.has_command() {
        towpath_guest::run_command(&options).map(ExitCode::from)
    } else {
        let status = |passed| if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        towpath_guest::run(&repository, &options).map(status)
    };
    status.unwrap_or_else(|error| {
        eprintln!("towpath-guest: {error:#}");
        ExitCode::FAILURE
    })
}
