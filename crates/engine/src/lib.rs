//! The engine: one thread that runs one poll iteration after the other.
//!
//! It knows no connection, policy or process. The control thread checks what applications ask for, and gives the engine
//! finished sessions and endpoints ([`commands`]).
//!
//! The engine consists of parts that own their state, and that receive each other as arguments:
//!
//! | part | file | owns |
//! |---|---|---|
//! | `DevicePort` | `port.rs` | the device, its memory, the watchdog |
//! | `SessionTable` | `sessions.rs` | the sessions, active or parked, and those to close |
//! | `TransmitMemories` | `memories.rs` | the memories from which sessions send, for reading |
//! | `FlowTable` | `demux.rs` | flow rules, captures, the last-flow cache, freed leases |
//! | `OobTable` | `oob/table.rs` | the addresses of endpoints for out-of-band messages |
//! | `ApertureTable` | `apertures/table.rs` | the apertures that may be used |
//! | `RemoteTable` | `remote/table.rs` | the connections with other hosts |
//! | `Delivery` | `delivery.rs` | nothing: it borrows what a delivery needs |
//! | `RxPath` | `rx.rs` | the device's free buffers, the received batch |
//! | `TxPath` | `tx.rs` | scheduler, batch, bounce buffers, backlog, packets in flight |
//! | `Notifier` | `notifier.rs` | touched queue pairs, deferred notifications |
//! | `EngineWait` | `wait.rs` | wait strategy, epoll set, sleep flag |
//! | `CommandPort` | `commands.rs` | the channels to the control thread |
//!
//! [`Engine`] (`engine.rs`) owns the parts. Below it, `iteration.rs` runs the poll iterations, `execute.rs` executes commands,
//! and `ending.rs` ends sessions.
//!
//! Every loop has a budget. The engine itself does not allocate, lock, log or make a system call
//! per packet; only the driver may.

#![deny(unsafe_code)]

pub mod account;
pub mod apertures;
pub mod clock;
mod closing;
pub mod coalescing;
pub mod commands;
mod control_link;
#[allow(unsafe_code)]
mod copy;
mod deadlines;
mod delivery;
pub mod demux;
mod device_counters;
mod draining;
mod engine;
mod forbidden;
pub mod freed;
pub mod last_sent;
mod memories;
mod meter;
pub mod neighbours;
mod notifier;
pub mod oob;
pub mod own;
mod port;
pub mod reach;
pub mod relays;
pub mod remote;
pub mod rights;
pub mod roles;
mod rx;
mod schedule;
pub mod session;
mod sessions;
pub mod shares;
pub mod solo;
mod source;
#[cfg(any(test, towpath_simulation))]
pub mod testing;
mod tx;
mod untagged;
mod wait;
mod waiter;
pub mod watchdog;
mod wiring;
mod work;

pub use control_link::{Budgets, ControlLink};
pub use engine::Engine;
pub use wait::wake_data;
pub use waiter::WaitStrategy;
