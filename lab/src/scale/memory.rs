//! The memory of idle connections, in a process that has nothing else.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use towpath_testkit::Census;

use super::connections::Hosts;
use crate::child::{Child, Role, tell, wait_for_end};
use crate::report::{Outcome, Row};

/// The most memory of an end that never carried data, and of one that is idle again, in bytes.
const AT_MOST: f64 = 2.0 * 1024.0;
const AT_MOST_AFTER_DATA: f64 = 5.0 * 1024.0;
/// The data that each connection carries, in each direction.
const DATA_BYTES: usize = 4096;
/// The connections that are tried first.
const FEW: usize = 1000;
/// If an end takes more than this among the first few, there are no more than these.
const TOO_MUCH: f64 = 16.0 * 1024.0;

/// The memory of each end of a connection, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Memory {
    /// Connections without data, and their ends.
    connections: usize,
    idle: f64,
    /// Connections that carried data, and their ends.
    used: usize,
    after_data: f64,
}

/// Measures in a process of its own, and adds the rows. Returns the number of connections for which
/// there was enough memory.
pub(super) fn measure(connections: usize, outcome: &mut Outcome) -> anyhow::Result<usize> {
    let mut child = Child::start(&IdleConnections { connections })?;
    let line = child.read_line().context("making idle connections")?;
    let Memory { connections, idle, used, after_data } = serde_json::from_str(&line)?;
    let row = |name: &str, count: usize, bytes: f64| {
        let name = format!("memory of an end of an idle connection, {name}");
        let row = Row::new(&name, &[("idle", count as f64)], "bytes", &[bytes]);
        Row { samples: 2 * count, ..row }
    };
    outcome.rows.extend([
        row("without data", connections, idle).at_most(AT_MOST),
        row("after data", used, after_data).at_most(AT_MOST_AFTER_DATA),
    ]);
    Ok(connections)
}

/// Makes idle connections between two stacks, and reports the memory of each end.
#[derive(Serialize, Deserialize)]
pub(crate) struct IdleConnections {
    /// The number of connections.
    pub(crate) connections: usize,
}

impl Role for IdleConnections {
    const NAME: &'static str = "IdleConnections";

    fn act(self) -> anyhow::Result<()> {
        idle_connections(self.connections)
    }
}

/// Runs the process of the connections: reports the memory of each end.
fn idle_connections(connections: usize) -> anyhow::Result<()> {
    tell("ready")?;
    let resident =
        || -> anyhow::Result<f64> { Ok(Census::of(std::process::id())?.resident_bytes as f64) };
    let each = |before: f64, after: f64, count: usize| (after - before) / (2 * count) as f64;
    // The few stay, so that no memory of theirs serves the many.
    let before = resident()?;
    let mut few = Hosts::new(FEW)?;
    let (made, idle) = (resident()?, each(before, resident()?, FEW));
    few.exchange(FEW, DATA_BYTES)?;
    let after_data = idle + each(made, resident()?, FEW);
    let mut memory = Memory { connections: FEW, idle, used: FEW, after_data };
    if idle <= TOO_MUCH && connections > FEW {
        let before = resident()?;
        let mut many = Hosts::new(connections)?;
        let made = resident()?;
        memory.connections = connections;
        memory.idle = each(before, made, connections);
        if after_data <= TOO_MUCH {
            many.exchange(connections, DATA_BYTES)?;
            memory.used = connections;
            memory.after_data = each(before, resident()?, connections);
        }
    }
    tell(&serde_json::to_string(&memory)?)?;
    wait_for_end()
}
