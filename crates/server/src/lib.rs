//! The driver server: one process, one device, many applications.
//!
//! Two threads. The **engine** ([`engine`]) moves packets and does nothing else. The **control**
//! thread (`control`) accepts applications, decides what they may, prepares their memory, and
//! hands finished objects over; attaching never delays a packet.
//!
//! | module | holds |
//! |---|---|
//! | [`engine`] | the turn: orders, receive, transmit, complete, publish and ring, sleep |
//! | `publish` | the end of a turn: queues, events, rings |
//! | [`orders`] | what the control thread orders of the engine |
//! | [`demux`] | flow rules, and which endpoint a packet is for |
//! | [`rights`] | what an endpoint may send |
//! | `receive`, `transmit` | the two directions, a batch or a group of packets at a time |
//! | `take` | what is taken of a queue when its turn has come |
//! | `shaping` | settings of sending as the engine follows them |
//! | [`schedule`] | whose turn it is to send: priorities, shares, rates, ticks |
//! | `pass` | the short way of most packets: plain, and for an endpoint of this host |
//! | `send` | one packet of an application: checks, and where it goes |
//! | [`copy`], [`stage`] | the trust boundary: every copy between two sides' memory |
//! | [`source`] | where a packet's bytes are before they are copied |
//! | [`handoff`] | how checked packets reach the device; the backlog |
//! | [`watchdog`], `revive` | a device that stalls is noticed and reset |
//! | [`session`] | what the engine has of a session |
//! | [`embedded`] | a driver for all threads of one program, without a server |
//! | `connections` | all of them, found by token, number and user |
//! | `control` | connections, attach, endpoints, reports |
//! | [`addresses`] | which addresses sessions get |
//! | [`policy`] | who may what |

#![deny(unsafe_code)]

pub mod addresses;
mod coalescing;
mod complete;
mod connection;
mod connections;
mod control;
#[allow(unsafe_code)]
pub mod copy;
pub mod demux;
mod device_counters;
mod due;
pub mod embedded;
pub mod engine;
pub mod handoff;
mod log;
pub mod orders;
mod pass;
mod peers;
pub mod policy;
mod prepare;
mod publish;
mod receive;
pub mod relays;
pub mod report;
mod requests;
mod resting;
mod revive;
pub mod rights;
pub mod schedule;
mod send;
mod server;
pub mod session;
mod shaping;
mod slow;
pub mod source;
pub mod stage;
mod take;
mod transmit;
mod wait;
mod waiter;
pub mod watchdog;
mod work;
mod worker;

pub use addresses::Subnets;
pub use demux::FlowCache;
pub use engine::Mode;
pub use policy::Policy;
pub use server::{Config, Server, StartError};
pub use towpath_protocol::settings::{Setting, SettingError, Values};
