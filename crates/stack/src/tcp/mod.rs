//! TCP: connections found by their four-tuple, each with its own socket of smoltcp.
//!
//! | file | holds |
//! |---|---|
//! | `table` | the table of connections |
//! | `input` | the path of a received segment |
//! | `connection` | one connection |
//! | `listener` | listeners, half-open connections, accept queues |
//! | `passive` | the operations of listeners, and connections that begin with the peer's SYN |
//! | `api` | the application's operations |
//! | `lifecycle` | the consequences of a connection's state, and its end |
//! | `egress` | transmission, and timers |
//! | `answer` | resets and other answers, and ICMP errors |
//! | `recovery` | loss detection, and retransmission |
//! | `window` | the end of our own window, as the peer knows it |
//! | `interface`, `narrow` | smoltcp's interfaces |
//! | `port` | the device between smoltcp and frames |
//! | `sequence` | initial sequence numbers |
//! | `time_wait` | TIME-WAIT entries |

mod answer;
mod api;
mod connection;
mod egress;
mod input;
mod interface;
mod lifecycle;
mod listener;
mod narrow;
mod passive;
mod port;
mod ports;
mod recovery;
mod segment;
mod sequence;
mod table;
mod time_wait;
mod window;

pub use api::{Shutdown, TcpState};
pub(crate) use table::Tcp;
