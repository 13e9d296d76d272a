//! The addresses of the demonstration.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The kernel's addresses on the TAP.
pub(super) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The addresses of the applications: web, echo, and the one to be killed.
pub(super) const WEB_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(super) const WEB_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
pub(super) const ECHO_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
pub(super) const ECHO_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3);
pub(super) const EXTRA_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);
