//! The `towpath` command: one subcommand for each task of an operator.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage, 77 not available on this machine. On failure the
//! command prints one line on standard error that names the thing and the remedy.

mod capture;
mod completions;
mod demo;
mod detach;
mod device;
mod doctor;
mod failure;
mod find;
mod ls;
mod man;
mod measure;
mod needed_calls;
mod number;
#[cfg(test)]
mod own_directory;
mod policy;
mod private_file;
mod report;
mod serve;
mod set;
mod signals;
mod standard_error;
mod stat;
mod table;
mod text_file;
mod trusted_path;
mod trusted_user;
mod upgrade;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use failure::Failure;

/// Fast, fair and safe access of many applications to one network interface, from user space.
#[derive(Parser, Debug)]
#[command(
    name = "towpath",
    version,
    arg_required_else_help = true,
    subcommand_value_name = "SUBCOMMAND",
    subcommand_help_heading = "Subcommands",
    after_help = "\
Exit status: 0 done, 1 failed, 2 wrong usage, 77 not available on this machine.

Examples:
  towpath demo                                          demonstrate Towpath on this machine
  towpath doctor                                        check what this machine supports
  towpath serve --device xdp:eth0 --share-host          serve an interface beside the kernel
  towpath ls                                            list the attached applications
  towpath capture -w - | tcpdump -nr -                  show the packets of the interface"
)]
struct Cli {
    #[command(subcommand)]
    subcommand: Subcommand,
}

#[derive(clap::Subcommand, Debug)]
enum Subcommand {
    /// Serve a network interface to applications, until SIGTERM or SIGINT
    #[command(after_help = serve::EXAMPLES)]
    Serve(Box<serve::Args>),
    /// Serve the network interfaces that a file names, each by a server of its own
    #[command(after_help = serve::up::EXAMPLES)]
    Up(serve::up::Args),
    /// Serve a device; `towpath serve` and `towpath up` start this process
    #[command(hide = true)]
    Server(serve::server::Args),
    /// Go on as the keeper of `towpath serve`, after an upgrade
    #[command(hide = true)]
    Keeper(serve::keeper::Args),
    /// List the devices, their applications, and the flow rules and peers of the endpoints
    #[command(after_help = ls::EXAMPLES)]
    Ls(ls::Args),
    /// Show a server's counters: packets, bytes, drops by reason
    #[command(after_help = stat::EXAMPLES)]
    Stat(stat::Args),
    /// Copy every packet that a server receives or sends into a pcapng file
    #[command(after_help = capture::EXAMPLES)]
    Capture(capture::Args),
    /// Change a setting of a running server
    #[command(after_help = set::EXAMPLES)]
    Set(set::Args),
    /// Hand a server's sessions over to a server of the program that is installed now
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(upgrade::Args),
    /// Check a policy file, and explain what it grants
    #[command(after_help = policy::EXAMPLES)]
    Policy(policy::Args),
    /// Detach a server's programs from an interface, when the server hangs or is stopped
    #[command(after_help = detach::EXAMPLES)]
    Detach(detach::Args),
    /// List network cards, and take one from the kernel for a server, or give it back
    #[command(after_help = device::EXAMPLES)]
    Device(device::Args),
    /// Compare the ways to serve an interface, by traffic on the interface itself
    #[command(after_help = measure::EXAMPLES)]
    Measure(measure::Args),
    /// Demonstrate Towpath in a network namespace of its own, and leave nothing behind
    #[command(after_help = "\
Examples:
  towpath demo
  towpath demo --embedded")]
    Demo(demo::Args),
    /// Check which features of this machine Towpath can use, and print remedies
    #[command(after_help = "\
Examples:
  towpath doctor
  towpath doctor --quick --json")]
    Doctor(doctor::Args),
    /// Print a shell's completion script for this command
    #[command(after_help = completions::EXAMPLES)]
    Completions(completions::Args),
    /// Print or write the manual's pages
    #[command(after_help = man::EXAMPLES)]
    Man(man::Args),
}

fn main() -> ExitCode {
    // Also after a panic.
    let _finish = FinishLog;
    run()
}

/// Waits at its end for the reader of the log's last lines.
struct FinishLog;

impl Drop for FinishLog {
    fn drop(&mut self) {
        standard_error::finish();
    }
}

fn run() -> ExitCode {
    failure::tell_defects_in_one_line();
    signals::survive_file_limit();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    let outcome = match cli.subcommand {
        Subcommand::Serve(args) => {
            return serve::run(&args).unwrap_or_else(|failure| Failure::report(&failure));
        }
        Subcommand::Up(args) => {
            return serve::up::run(&args).unwrap_or_else(|failure| Failure::report(&failure));
        }
        Subcommand::Keeper(args) => {
            standard_error::turn_on();
            return serve::keeper::run(&args).unwrap_or_else(|failure| Failure::report(&failure));
        }
        Subcommand::Server(args) => {
            standard_error::turn_on();
            serve::server::run(&args)
        }
        Subcommand::Ls(args) => ls::run(&args),
        Subcommand::Stat(args) => stat::run(&args),
        Subcommand::Capture(args) => capture::run(&args),
        Subcommand::Set(args) => set::run(&args),
        Subcommand::Upgrade(args) => upgrade::run(&args),
        Subcommand::Policy(args) => policy::run(&args),
        Subcommand::Detach(args) => detach::run(&args),
        Subcommand::Device(args) => device::run(&args),
        Subcommand::Measure(args) => measure::run(&args),
        Subcommand::Completions(args) => completions::run(&args, &Cli::command()),
        Subcommand::Man(args) => man::run(&args, &Cli::command()),
        Subcommand::Demo(args) => return demo::run(args),
        Subcommand::Doctor(args) => return doctor::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => Failure::report(&failure),
    }
}
