//! The keeper: a process beside a server, which outlives it.
//!
//! It has two tasks.
//!
//! **Privileged acts.** A server gives up its privileges before it serves. For each privileged act
//! later, it sends a request of a fixed size to the keeper, which has the capabilities for it: to bind
//! ports below 1024 (`CAP_NET_BIND_SERVICE`), to have the kernel confirm a neighbour (`CAP_NET_ADMIN`),
//! and to make AF_XDP sockets (`CAP_NET_RAW`). The keeper checks each request against what it was
//! started for: an interface, and the kinds of requests that a server of this kind needs.
//!
//! **A killed server.** The keeper has copies of the descriptors that must outlive the server: the
//! attachments of the programs and what else keeps applications' flows from the kernel, the sockets that hold
//! ports, the listening socket, and the memories of sessions. The server stores them under names, by the
//! messages of systemd's descriptor store (`notify`). If the server ends without a word, the keeper holds
//! them for a while. The kernel then answers no packet of these flows: a reset would tell the peers at
//! once that the connection is gone. The next server takes over and gets everything, by the same
//! messages; or the time expires. Then the keeper closes everything.
//!
//! | module | holds |
//! |---|---|
//! | `process`, `held` | the keeper's side, and the descriptors that it holds |
//! | `client`, `store` | the server's side: requests, and the store |
//! | `wire`, `notify` | the requests, and the messages of the store |
//! | `take_over` | the next server's way in |
//! | `holder` | the sockets that hold ports |
//!
//! The keeper reads no packet and maps no memory.

mod client;
mod held;
#[allow(unsafe_code)]
mod holder;
mod notify;
mod options;
mod process;
mod store;
mod take_over;
#[cfg(test)]
mod tests;
mod wire;

pub use client::KeeperAccess;
pub(crate) use holder::PortProtocol;
pub use options::{KeeperOptions, keeper_connection, keeper_path};
pub use process::run_keeper;
pub use store::KeeperStore;
pub use take_over::{TakeOver, take_over};
