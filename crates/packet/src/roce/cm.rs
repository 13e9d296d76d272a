//! The messages of InfiniBand's communication manager (CM), which set connections up and end them.
//!
//! Each is a management datagram ([`Mad`]): a datagram of 256 bytes to the general services queue
//! pair. The side that connects sends a [`Request`], the other a [`Reply`] or [`Reject`], and the
//! first one [`Ready`]. [`Disconnect`] and [`Disconnected`] end the connection.
//!
//! The layout is that of Linux, `include/rdma/ib_mad.h` and `include/rdma/ibta_vol1_c12.h`. Fields
//! that Towpath has no use for are written as Linux's `drivers/infiniband/core/cm.c` writes them for
//! RoCEv2, and ignored when read. Numbers that are wider than their fields are cut to the lower bits.

mod address;
mod connection;
mod mad;
mod mtu;
pub mod reason;
mod request;

pub use address::{IpHeader, USER_PRIVATE_BYTES, gid_of, ip_of_gid, port_of_service, service_of};
pub use connection::{Disconnect, Disconnected, Ready, Receipt, Reject, Reply};
pub use mad::{CmMessage, MAD_BYTES, Mad, MadError};
pub use mtu::PathMtu;
pub use request::Request;
