//! `towpath demo`: demonstrates Towpath on any Linux machine, with or without root, and leaves
//! nothing behind.
//!
//! In a network namespace of its own, a driver server serves one end of a veth pair by AF_XDP, or a
//! TAP, with the kernel's network stack at the other end. Two applications attach: one serves a
//! file over its own TCP, the other echoes datagrams and answers pings. Ordinary kernel sockets
//! talk to both at once. The demonstration kills a third application in the middle of its traffic.
//! It checks and shows the results.
//!
//! The applications are processes without any capability, and the server gives up its own before it
//! starts a thread. They are of three users where the machine
//! lets this program choose. The applications run in a network namespace without any interface, so
//! their packets can pass only through the server.
#![forbid(unsafe_code)]

mod addresses;
mod applications;
mod cast;
mod embedded;
mod host;
mod load;
mod parts;
mod processes;
mod progress;
mod table;
mod traffic;
mod wire;

use std::process::ExitCode;

use towpath_sandbox::{EXIT_UNAVAILABLE, Entered, Namespace, Unavailable};

use load::Amounts;
use parts::Script;
use traffic::Content;
use wire::{Choice, Wire};

/// Options of `towpath demo`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Run server and applications as threads of one process
    #[arg(long)]
    embedded: bool,
    /// Send a sixteenth of the traffic
    #[arg(long)]
    quick: bool,
    /// Device: xdp (one end of a veth pair, needs root), tap, or auto (xdp if permitted, else tap)
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    device: Choice,
    #[command(flatten)]
    script: Script,
}

/// Runs the demonstration. Call it while the process has one thread.
///
/// The exit status is 0 if every check held, 77 if this machine allows no network namespace or no
/// TAP, else 1.
#[must_use]
pub(crate) fn run(args: Args) -> ExitCode {
    if let Some(part) = args.script.part {
        return parts::play(part, &args.script);
    }
    match demonstrate(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let refused = error.downcast_ref::<towpath_sandbox::Error>();
            if let Some(Unavailable { cause, remedy }) =
                refused.and_then(|error| error.unavailable())
            {
                eprintln!("towpath demo: {cause}; {remedy}");
                return ExitCode::from(EXIT_UNAVAILABLE);
            }
            eprintln!("towpath demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns `true` if every check held.
fn demonstrate(args: &Args) -> anyhow::Result<bool> {
    let amounts = if args.quick {
        Amounts { file_bytes: 4 << 20, round_trips: 625, pings: 62 }
    } else {
        Amounts { file_bytes: 64 << 20, round_trips: 10_000, pings: 1000 }
    };
    let entered = towpath_sandbox::enter()?;
    // Without packets of the kernel's own, the counters are clearer. The demonstration works either
    // way.
    let _ = Namespace::current()?.silence();
    let wire = Wire::make(args.device)?;
    let kind = wire.kind();
    let content = Content::make(amounts.file_bytes)?;
    let mut outcome = if args.embedded {
        embedded::run(wire, &content, amounts)?
    } else {
        processes::run(wire, &content, amounts)?
    };
    outcome.judge(amounts.round_trips, amounts.pings);
    let who = match entered {
        Entered::AsRoot => "started by root",
        Entered::AsUser => "started without root",
    };
    let how = if args.embedded { "in one process, " } else { "" };
    println!(
        "Two applications and the kernel's own stack, {how}over {kind} in a network namespace; \
         {who}\n"
    );
    print!("{}", outcome.table());
    for failure in &outcome.failures {
        println!("FAILED: {failure}");
    }
    if outcome.failures.is_empty() {
        println!("every check held");
    }
    Ok(outcome.failures.is_empty())
}
