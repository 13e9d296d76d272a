//! The driver server: one process, one device, many applications.
//!
//! The server has one thread per lane and a control thread. The **engine** (`engine`) moves packets
//! and does nothing else. The **control** thread (`control`) accepts applications, decides their
//! rights, prepares their memory, and hands finished objects over; attaching never delays a packet.
//!
//! | module | holds |
//! |---|---|
//! | `engine` | the poll iteration and its parts: see there |
//! | `rights` | the packets that an endpoint may send |
//! | `control` | connections, attach, endpoints, reports |
//! | `connections` | all connections, found by token, number and user |
//! | `addresses` | the addresses of sessions |
//! | `policy` | the rights of users |
//! | `host` | sharing the host's own addresses: ports, routes, neighbours |
//! | `keeper` | the process that starts servers, does privileged acts, and holds objects |
//! | `resume` | sessions of a killed server |
//! | `position` | where each engine stands, for the keeper and the next server |
//! | `prepare` | the memory of a session, before the engine gets it |
//! | `worker` | a process per user for system calls that an application can prolong |

#![deny(unsafe_code)]

mod account;
mod addresses;
mod admitting;
mod answering;
mod apertures;
mod ceding;
mod clock;
mod config;
mod connection;
mod connections;
mod control;
mod copying;
mod engine;
mod engines;
mod events;
mod filters;
mod freed;
mod host;
mod keeper;
mod listeners;
mod log;
mod open;
mod own_queues;
mod peers;
mod policy;
mod ports_in_use;
mod position;
mod prepare;
mod queue_opener;
mod reach;
mod report;
mod requests;
mod resume;
mod revocation;
mod rights;
mod roles;
mod server;
mod shares;
#[cfg(all(test, towpath_simulation))]
mod simulation;
mod slow;
mod socket;
mod state_pages;
mod user_page;
mod worker;

pub use addresses::{Subnet, Subnets};
pub use config::{Config, PolicyError, StartError};
pub use engine::WaitStrategy;
pub use engine::demux::FlowCache;
pub use engine::solo::packet_costs;
pub use host::HostAccess;
pub use keeper::{
    Begin, Continued, DeviceState, DeviceStatus, FollowedInterface, Follows, KeeperAccess,
    KeeperOptions, KeeperStore, LeftObjects, ServerEnd, Start, Supervised, Supervision, Upgrade,
    device_status, drop_capabilities, followed_interface, keeper_path, status_path, supervise,
    take_device_objects, upgrade,
};
pub use policy::{
    AddressRange, Admission, Entrance, Grant, Policy, PolicyChange, PortRange, Reservation, Role,
    Roles, Standing, Terms,
};
pub use position::Crash;
pub use prepare::session_bytes;
pub use reach::Reach;
pub use server::Server;
pub use towpath_protocol::settings::{Setting, SettingError, Values};

/// The engine's parts, for the laboratory and for tests of several threads. Programs that embed a
/// server do not need them, and they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::engine::commands::Command;
    pub use crate::engine::demux::{
        Destination, Direction as LookupDirection, FlowCounts, FlowTable, REST, Rule, Vlan, WINDOW,
    };
    pub use crate::engine::last_sent::LastSent;
    pub use crate::engine::relays::Relays;
    pub use crate::engine::remote::own_address::OwnAddress;
    pub use crate::engine::session::{Doorbell, Endpoint, Memories, Session};
    pub use crate::engine::solo::{Solo, Traffic, direct_and_queued, without_and_with_captures};
    pub use crate::engine::watchdog::{Arming, Verdict, Watchdog};
    pub use crate::engine::{Budgets, Engine, Link};
    pub use crate::position::Position;
    pub use crate::rights::{Addresses, Rights};
}
