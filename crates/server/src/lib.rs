//! The driver server: one process, one device, many applications.
//!
//! Two threads. The **engine** (`engine`) moves packets and does nothing else. The **control**
//! thread (`control`) accepts applications, decides what they may, prepares their memory, and
//! hands finished objects over; attaching never delays a packet.
//!
//! | module | holds |
//! |---|---|
//! | `engine` | the turn: orders, receive, transmit, complete, publish and ring, sleep |
//! | `publish` | the end of a turn: queues, events, rings |
//! | `orders` | what the control thread orders of the engine |
//! | `demux` | flow rules, and which endpoint a packet is for |
//! | `rights` | what an endpoint may send |
//! | `receive`, `transmit` | the two directions, a batch or a group of packets at a time |
//! | `take` | what is taken of a queue when its turn has come |
//! | `shaping` | settings of sending as the engine follows them |
//! | `schedule` | whose turn it is to send: priorities, shares, rates, ticks |
//! | `pass` | the short way of most packets: plain, and for an endpoint of this host |
//! | `send` | one packet of an application: checks, and where it goes |
//! | `copy`, `stage` | the trust boundary: every copy between two sides' memory |
//! | `source` | where a packet's bytes are before they are copied |
//! | `handoff` | how checked packets reach the device; the backlog |
//! | `watchdog`, `revive` | a device that stalls is noticed and reset |
//! | `session` | what the engine has of a session |
//! | `connections` | all of them, found by token, number and user |
//! | `control` | connections, attach, endpoints, reports |
//! | `addresses` | which addresses sessions get |
//! | `policy` | who may what |

#![deny(unsafe_code)]

mod addresses;
mod coalescing;
mod complete;
mod connection;
mod connections;
mod control;
#[allow(unsafe_code)]
mod copy;
mod demux;
mod device_counters;
mod due;
mod engine;
mod handoff;
mod log;
mod orders;
mod pass;
mod peers;
mod policy;
mod prepare;
mod publish;
mod receive;
mod relays;
mod report;
mod requests;
mod resting;
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
mod stage;
mod take;
mod transmit;
mod wait;
mod waiter;
mod watchdog;
mod work;
mod worker;

pub use addresses::Subnets;
pub use demux::FlowCache;
pub use engine::Mode;
pub use policy::Policy;
pub use server::{Config, Server, StartError};
pub use solo::packet_costs;
pub use towpath_protocol::settings::{Setting, SettingError, Values};

/// The engine's parts, for the laboratory and for tests of several threads. No program that embeds a server
/// needs them, and they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::demux::{
        Destination, FlowCounts, FlowTable, REST, Rule, Vlan, WINDOW, Way as LookupWay,
    };
    pub use crate::engine::{Budgets, Engine, Link};
    pub use crate::orders::Order;
    pub use crate::relays::Relays;
    pub use crate::rights::{Addresses, Rights};
    pub use crate::session::{Doorbell, Endpoint, Memories, Session};
    pub use crate::solo::{Solo, Way, without_and_with_taps};
    pub use crate::watchdog::{Arming, Verdict, Watchdog};
}
