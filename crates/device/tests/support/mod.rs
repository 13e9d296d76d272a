//! Support for the tests of TAP interfaces: a network namespace, the kernel's side of the wire, and
//! a small peer.

pub(crate) mod namespace;
pub(crate) mod packet_socket;
pub(crate) mod peer;
