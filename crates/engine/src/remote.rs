//! Connections with endpoints of other hosts, by RoCEv2: the server owns UDP port 4791.
//!
//! | part | file | does |
//! |---|---|---|
//! | `Inbox` | `inbox.rs` | holds the frames of a poll iteration that are for this part |
//! | `RemoteTable` | `table.rs`, `connection.rs` | the connections by QPN, and whose turn it is |
//! | requests for connections | `setup.rs`, `manager.rs`, `answers.rs` | the messages of the InfiniBand communication manager |
//! | link addresses | `neighbours.rs`, `link_addresses.rs`, `own_address.rs` | those of other hosts, and answers for endpoints here |
//! | multicast groups | `groups.rs` | reports of those for solicitations, and answers to queries |
//! | poll | `poll.rs` | what arrives, what is due, what is sent, within budgets |
//! | ends | `ending.rs` | what becomes of requests and of the endpoint when a connection ends |
//! | requests | `requests.rs`, `pending.rs` | from a transmit queue into a connection |
//! | ledger | `ledger.rs` | what the next server needs of each connection |
//! | a successor's start | `restore.rs` | goes on with the connections in the ledger |
//! | memory | `host.rs`, `copies.rs` | what the peer reads and writes, and what requests move |
//!
//! The protocol itself is in `towpath-rdma`, which knows no session. To the other parts of the
//! engine, an endpoint of another host has a name as every endpoint has, so
//! connections, apertures and rights hold for it.

mod answers;
mod connection;
mod copies;
mod ending;
mod groups;
mod host;
mod inbox;
mod ledger;
mod link_addresses;
mod lists;
mod manager;
mod neighbours;
pub mod own_address;
mod pending;
mod poll;
mod random;
pub(crate) mod requests;
mod restore;
mod setup;
pub(crate) mod table;

pub(crate) use inbox::Inbox;
pub use ledger::{LEDGER_BYTES, peers};
pub(crate) use neighbours::concerns;
pub(crate) use poll::{PacketOutput, poll};
