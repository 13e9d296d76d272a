//! The client library against a server in this process.

mod apertures;
mod channels;
#[allow(dead_code, reason = "each test file uses some of it")]
mod connections;
mod ended;
mod hostile_apertures;
mod hostile_hosts;
mod hosts;
mod lanes;
mod loopback;
mod multicast_groups;
mod oob;
mod scale;
mod silent;
mod watchdog;
mod within_vlan;
