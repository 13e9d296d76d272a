//! The plan of a run, and the server of each part.

use std::time::Duration;

use towpath_client::Setting;
use towpath_device_testing::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

use super::traffic::CLOCK_HZ;
use crate::Settings;
use crate::report::Row;

/// A wait of this length is a lost wake-up; the longest waits on a loaded machine are a hundredth
/// of it.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// The number of attempts of each part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) bursts: u64,
    /// Sleeps of the engine, and as many of both applications together, for each pair of their
    /// strategies.
    pub(super) sleeps: u64,
    /// Passes; each changes from every strategy to every other.
    pub(super) passes: u64,
    pub(super) limit: Duration,
}

impl Plan {
    pub(super) fn of(settings: Settings) -> Plan {
        let part = if settings.quick { 100 } else { 1 };
        Plan {
            bursts: 100_000_000 / part,
            sleeps: 1_000_000 / part,
            passes: 10_000 / part,
            limit: LIMIT,
        }
    }
}

pub(super) fn serve(strategy: u64) -> anyhow::Result<(Server, loopback::LoopbackDevice)> {
    let (near, far) = loopback::pair(&loopback::Config::default())?;
    let mut config = Config {
        subnets: Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse()?, 24)), ipv6: None },
        ..Config::default()
    };
    config.settings.set(Setting::Wait, strategy)?;
    config.settings.set(Setting::TickHz, u64::from(CLOCK_HZ))?;
    // The controller ticks about as often.
    config.settings.set(Setting::LatencyUs, 1_000_000 / u64::from(CLOCK_HZ))?;
    Ok((Server::start(&config, Box::new(near), Box::<MemoryStore>::default())?, far))
}

pub(super) fn set(server: &Server, setting: Setting, value: u64) -> anyhow::Result<()> {
    Ok(towpath_client::set_over(server.connect()?, None, setting, value)?)
}

/// Returns a row with a count and the count that it must reach.
pub(super) fn goal(name: &str, done: u64, goal: u64, unit: &str) -> Row {
    Row::new(name, &[], unit, &[done as f64]).at_least(goal as f64)
}
