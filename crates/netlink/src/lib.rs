//! The few rtnetlink messages that Towpath needs: links, addresses, routes and neighbours of one
//! network namespace (Linux `rtnetlink(7)`, `linux/rtnetlink.h`, `linux/if_link.h`), and a few requests
//! of generic netlink, about hardware queues and AF_XDP.
//!
//! ```no_run
//! use towpath_netlink::{Netlink, Veth};
//!
//! # fn main() -> Result<(), towpath_netlink::Error> {
//! let mut netlink = Netlink::open()?;
//! netlink.create_veth(&Veth::new("left", "right"))?;
//! netlink.add_address("left", "192.0.2.1/24".parse()?)?;
//! netlink.set_up("left")?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Netlink`] always belongs to the network namespace of the thread that opened it; any thread
//! may use it. Each call waits for the kernel's answer, at most [`ANSWER_TIMEOUT`], and ignores
//! messages from user space. A [`LinkWatch`] reports the state of one link, a [`ChannelWatch`] its
//! hardware queues, a [`HostWatch`] changes of addresses, routes and neighbours; none ever waits.

mod address;
mod channels;
mod create_link;
mod error;
mod feed;
mod generic;
mod host_watch;
mod link;
mod message;
mod neighbour;
mod netdev;
mod prefix;
mod queue;
mod route;
mod socket;
mod traffic;
mod watch;

pub use address::Address;
pub use channels::{ChannelWatch, Channels};
pub use create_link::Veth;
pub use error::Error;
pub use host_watch::{HostEvent, HostWatch};
pub use link::{Link, Place, RENAME_ATTEMPTS};
pub use neighbour::{Neighbour, Reachability};
pub use netdev::XskFeatures;
pub use prefix::Prefix;
pub use route::{Route, RouteTo};
pub use socket::{ANSWER_TIMEOUT, Netlink};
pub use traffic::Sent;
pub use watch::{LinkWatch, Watched};

#[cfg(test)]
mod tests;
