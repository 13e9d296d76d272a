//! The driver server: one process, one device, many applications.
//!
//! The server has one thread per lane and a control thread. The **engine** ([`towpath_engine`]) moves packets
//! and does nothing else. The **control** thread (`control`) accepts applications, decides their
//! rights, prepares their memory, and hands finished objects over; attaching never delays a packet.
//!
//! | module | holds |
//! |---|---|
//! | `control`, `event_loop` | the control thread: its parts, its loop |
//! | `access`, `arrivals`, `known_users`, `admitting` | the policy and the listening sockets; connections that begin |
//! | `worker_reports`, `requests`, `answers` | reports of workers; requests of connections; answers |
//! | `session_begin`, `session_end` | beginning and end of sessions |
//! | `application`, `control_session`, `control_endpoint` | an application, a session and an endpoint, as the control thread knows them |
//! | `connections` | all connections, found by token, number and user |
//! | `addresses` | the addresses of sessions |
//! | `policy` | the rights of users |
//! | `host` | sharing the host's own addresses: ports, routes, neighbours |
//! | `resume` | sessions of a killed server |
//! | `prepare` | the memory of a session, before the engine gets it |
//! | `worker` | a process per user for system calls that an application can prolong |

#![deny(unsafe_code)]

mod access;
mod addresses;
mod admitting;
mod answers;
mod apertures;
mod application;
mod arrivals;
mod config;
mod connection;
mod connections;
mod control;
mod control_endpoint;
mod control_request;
mod control_session;
mod device_control;
mod device_events;
mod device_settings;
mod direct_notification;
mod endpoint_rules;
mod engines;
mod event_loop;
mod filters;
mod freed;
mod hardware_queue_results;
mod host;
mod known_users;
mod listeners;
mod mapping_jobs;
mod numbered;
mod numbers;
mod open;
mod own_queues;
mod policy;
mod ports_in_use;
mod prepare;
mod queue_allocation;
mod queue_opener;
mod refusal;
mod report;
mod requests;
mod resume;
mod resumed_request;
mod revocation;
mod rules_in_use;
mod server;
mod server_run;
mod session_addresses;
mod session_begin;
mod session_end;
#[cfg(all(test, towpath_simulation))]
mod simulation;
mod socket;
mod state_pages;
mod turns;
mod unclaimed;
mod user_page;
mod wakeups;
mod worker;
mod worker_reports;

pub use addresses::{Subnet, Subnets};
pub use config::{Config, PolicyError, StartError};
pub use host::HostAccess;
pub use policy::{
    AddressRange, Admission, Entrance, Grant, Policy, PolicyChange, PortRange, Reservation, Role,
    Roles, Standing, Terms,
};
pub use prepare::session_bytes;
pub use server::Server;
pub use towpath_engine::WaitStrategy;
pub use towpath_engine::demux::FlowCache;
pub use towpath_engine::reach::Reach;
pub use towpath_protocol::settings::{Setting, SettingError, Values};
