//! The keeper: the process that starts servers, one after the other, and outlives each of them.
//!
//! It has two tasks.
//!
//! **Privileged acts.** A server gives up its privileges before it serves. For each privileged act
//! later, it sends a request of a fixed size to the keeper, which has the capabilities for it: to
//! bind ports below 1024 (`CAP_NET_BIND_SERVICE`), to have the kernel confirm a neighbour
//! (`CAP_NET_ADMIN`), and to make AF_XDP sockets (`CAP_NET_RAW`). With `xdp` and `packet`, the keeper
//! also has the capabilities that the next server needs to open the interface. It checks each request
//! against what it was started for: an interface, and the kinds of requests that a server of this
//! kind needs.
//!
//! **A killed server.** The keeper has copies of the descriptors that must outlive the server: the
//! programs' links, maps and sockets, which keep applications' flows from the kernel; the port
//! holders; the listening sockets; the memories of sessions. The server stores them under names, by
//! the messages of systemd's descriptor store (`notify`). If the server ends without the request
//! `END`, the keeper starts another one, which gets copies of all these by the same messages
//! (`supervise`). While none serves, for at most the time of `--hold`, the kernel answers no packet
//! of these flows; a TCP reset would end the connections.
//!
//! | module | holds |
//! |---|---|
//! | `process`, `privileged_acts`, `held` | the keeper's side: its connection, the acts on request, and the descriptors that it holds |
//! | `supervise`, `supervised` | the loop that serves all devices of a keeper, and its caller's part |
//! | `device_keeper` (with `advance`, `begin`, `end`, `report`, `upgrade`), `server_process`, `ends`, `hang_watch` | the start of a device's servers, one after the other; how each ended |
//! | `keeper_state` | the state of a keeper that executes another program |
//! | `client`, `store`, `device_objects` | the server's side: requests, the store, and names in it |
//! | `wire`, `notify` | the requests, and the messages of the store |
//! | `status` | the file that tells every user how the device is |
//! | `interface` | the device's interface, which the keeper follows when it gets another name |
//! | `listener` | the keeper's socket: requests for an upgrade |
//! | `port_holder` | the sockets that hold ports |
//! | `options` | the options of a keeper |
//! | `log_limit` | the limit of log lines, which the server also uses |
//!
//! The keeper reads no packet. The only memory that it maps is the page in which the server's threads
//! record where they stand.

#![deny(unsafe_code)]

mod client;
mod device_keeper;
mod device_objects;
mod ends;
mod hang_watch;
mod held;
mod interface;
#[allow(unsafe_code)]
mod keeper_state;
mod listener;
mod log_limit;
mod notify;
mod options;
#[allow(unsafe_code)]
mod port_holder;
mod privileged_acts;
mod process;
mod server_process;
mod status;
mod store;
mod supervise;
mod supervised;
#[cfg(test)]
mod tests;
mod wire;

pub use client::KeeperAccess;
pub use device_objects::{stored_name, take_device_objects};
pub use held::drop_capabilities;
pub use interface::{FollowedInterface, followed_interface};
pub use listener::{Upgrade, upgrade};
pub use log_limit::LogLimit;
pub use options::{Follows, KeeperOptions, OWN, keeper_path};
pub use port_holder::{PortProtocol, port_name};
pub use process::END_OF_SERVER;
pub use status::{DeviceState, DeviceStatus, ServerEnd, device_status, status_path};
pub use store::KeeperStore;
pub use supervise::supervise;
pub use supervised::{Begin, Continued, LeftObjects, Start, Supervised, Supervision};
