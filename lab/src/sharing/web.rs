//! The example `web` on the shared address, beside the same source over the kernel's sockets, asked
//! by wrk from the far host.

use std::time::Duration;

use super::host::{Hosts, NEAR, Server};
use crate::process::XdpMode;
use crate::report::Outcome;
use crate::web::{Both, Load, Programs, compare, write_file};

/// Measures a mode while its server runs.
pub(super) fn measure(
    hosts: &Hosts,
    server: &Server,
    programs: &Programs,
    (mode, pairs, window): (XdpMode, usize, Duration),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let files = write_file(hosts.directory())?;
    let both = Both::start(programs, (&server.serve.socket, &files), None)?;
    let targets = both.targets(server.serve.pid()?, NEAR, Some(&hosts.there))?;
    for load in Load::ALL {
        let name = format!("{}: web, {}", mode.name(), connections(load));
        compare(programs, &targets, (load, &name), (pairs, window), outcome)?;
    }
    Ok(())
}

/// Returns the load's name. With 16 connections it has no number: earlier results and the pages
/// that refer to them have these rows alone.
fn connections(load: Load) -> String {
    match load.connections {
        16 => format!("{} connections", load.kind()),
        1 => format!("one {} connection", load.kind()),
        count => format!("{count} {} connections", load.kind()),
    }
}
