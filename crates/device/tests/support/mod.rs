//! Support for the tests of TAP interfaces: a network namespace and a small peer.

pub(crate) mod namespace;
pub(crate) mod peer;
