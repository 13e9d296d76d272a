//! The driver server: one process, one device, many applications.
//!
//! The server has two threads. The **engine** (`engine`) moves packets and does nothing else. The
//! **control** thread (`control`) accepts applications, decides their rights, prepares their
//! memory, and hands finished objects over; attaching never delays a packet.
//!
//! | module | holds |
//! |---|---|
//! | `engine` | the poll iteration: commands, receive, transmit, complete, publish, notify, sleep |
//! | `publish` | the end of a poll iteration: queues, events, notifications |
//! | `commands` | commands from the control thread to the engine |
//! | `demux` | flow rules, and the choice of a packet's endpoint |
//! | `rights` | the packets that an endpoint may send |
//! | `receive`, `transmit` | the two directions, a batch of packets at a time |
//! | `take` | taking packets out of a queue in its turn |
//! | `shaping` | settings of sending, as the engine applies them |
//! | `schedule` | the order of sending: priorities, shares, rates, ticks |
//! | `local` | the fast path of most packets: plain, and for an endpoint of this host |
//! | `send` | one packet of an application: checks and destinations |
//! | `copy`, `bounce` | the trust boundary: every copy between two sides' memory |
//! | `source` | the location of a packet's bytes before they are copied |
//! | `handoff` | the path of checked packets to the device; the backlog |
//! | `watchdog`, `revive` | detecting and resetting a device that stalls |
//! | `session` | the engine's view of a session |
//! | `connections` | all connections, found by token, number and user |
//! | `control` | connections, attach, endpoints, reports |
//! | `addresses` | the addresses of sessions |
//! | `policy` | the rights of users |

#![deny(unsafe_code)]

mod addresses;
mod bounce;
mod coalescing;
mod commands;
mod complete;
mod connection;
mod connections;
mod control;
#[allow(unsafe_code)]
mod copy;
mod deadlines;
mod demux;
mod device_counters;
mod engine;
mod handoff;
mod local;
mod log;
mod parking;
mod peers;
mod policy;
mod prepare;
mod publish;
mod receive;
mod relays;
mod report;
mod requests;
mod revive;
mod rights;
mod schedule;
mod send;
mod server;
mod session;
mod shaping;
mod slow;
mod solo;
mod source;
mod take;
mod transmit;
mod wait;
mod waiter;
mod watchdog;
mod work;
mod worker;

pub use addresses::Subnets;
pub use demux::FlowCache;
pub use engine::WaitStrategy;
pub use policy::Policy;
pub use server::{Config, Server, StartError};
pub use solo::packet_costs;
pub use towpath_protocol::settings::{Setting, SettingError, Values};

/// The engine's parts, for the laboratory and for tests of several threads. Programs that embed a
/// server do not need them, and they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::commands::Command;
    pub use crate::demux::{
        Destination, Direction as LookupDirection, FlowCounts, FlowTable, REST, Rule, Vlan, WINDOW,
    };
    pub use crate::engine::{Budgets, Engine, Link};
    pub use crate::relays::Relays;
    pub use crate::rights::{Addresses, Rights};
    pub use crate::session::{Doorbell, Endpoint, Memories, Session};
    pub use crate::solo::{Solo, Traffic, without_and_with_captures};
    pub use crate::watchdog::{Arming, Verdict, Watchdog};
}
