//! The sockets over a server in this process.

mod bursts;
mod datagrams;
#[cfg(feature = "testing")]
mod differential;
mod ended_sessions;
mod last_datagrams;
#[cfg(all(feature = "quinn", feature = "testing"))]
mod quic;
mod replacement;
mod reused_ports;
mod segments;
mod server_tap;
mod session;
mod std_net;
#[cfg(feature = "testing")]
mod switch;
#[cfg(feature = "testing")]
mod switch_links;
#[cfg(all(feature = "mio", feature = "tokio"))]
mod tasks;
