//! `towpath-rdma-peer`: one end of an RDMA connection with another host, over a server with `--rdma`.
//!
//! It speaks the protocols of two programs of the kernel's RDMA: that of `lab/guest/rdma-peer.c`, which its first
//! lines describe, and that of `rping`. So either end may be the kernel's, or Towpath's. It writes a line on standard
//! output for each step that was right. The exit status is 0 if all were, 1 if one was not, and 2 for a wrong command
//! line.
#![forbid(unsafe_code)]

mod exchange;
mod link;
mod rping;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use exchange::Exchange;
use link::Link;

/// One end of an RDMA connection with another host.
#[derive(Debug, Parser)]
#[command(name = "towpath-rdma-peer")]
struct Args {
    /// The longest wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    limit: u64,
    #[command(subcommand)]
    role: Role,
}

/// What it does.
#[derive(Debug, Subcommand)]
enum Role {
    /// Serve one connection of rdma-peer, or of this program
    Serve(Served),
    /// Connect with one that serves
    Connect {
        #[command(flatten)]
        to: To,
        #[command(flatten)]
        steps: exchange::Steps,
    },
    /// Serve one connection of rping -c, or of this program
    RpingServe(Served),
    /// Connect with rping -s, or with this program
    RpingConnect {
        #[command(flatten)]
        to: To,
        /// The exchanges
        #[arg(long, default_value_t = 3)]
        count: u32,
    },
}

/// Where it serves.
#[derive(Debug, clap::Args)]
struct Served {
    /// The socket of the server
    socket: PathBuf,
    /// The port
    port: u16,
}

/// Whom it connects with.
#[derive(Debug, clap::Args)]
struct To {
    /// The socket of the server
    socket: PathBuf,
    /// The address of the other host
    address: IpAddr,
    /// The port
    port: u16,
}

impl Served {
    fn link(&self, limit: Duration) -> anyhow::Result<Link> {
        Link::serve(&self.socket, self.port, limit)
    }
}

impl To {
    fn link(&self, limit: Duration) -> anyhow::Result<Link> {
        Link::connect(&self.socket, (self.address, self.port), limit)
    }
}

fn main() -> ExitCode {
    let Args { limit, role } = Args::parse();
    let Err(error) = run(&role, Duration::from_secs(limit)) else { return ExitCode::SUCCESS };
    eprintln!("towpath-rdma-peer: {error:#}");
    ExitCode::FAILURE
}

fn run(role: &Role, limit: Duration) -> anyhow::Result<()> {
    match role {
        Role::Serve(at) => Exchange::begin(at.link(limit)?)?.serve(),
        Role::Connect { to, steps } => Exchange::begin(to.link(limit)?)?.connect(steps),
        Role::RpingServe(at) => rping::serve(at.link(limit)?),
        Role::RpingConnect { to, count } => rping::connect(to.link(limit)?, *count),
    }
}
