//! The test's own network namespace: all objects that the test creates there vanish with it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::process::exit;

use towpath_netlink::{Netlink, Veth};
use towpath_testkit::{Namespace, Unavailable};

/// Moves the process into a network namespace of its own, as root or in a user namespace. If the
/// kernel refuses, reports that and ends the process: with a failure if `TOWPATH_REQUIRE_ALL=1`,
/// and else successfully.
pub(crate) fn enter(test: &str) {
    if let Err(why) = towpath_testkit::check_tun() {
        skip(test, &why);
    }
    towpath_testkit::enter().unwrap();
    // Without IPv6 the kernel sends nothing by itself. A kernel without IPv6 does not have these
    // files.
    let here = Namespace::current().unwrap();
    for interfaces in ["all", "default"] {
        let _ = here.set(&format!("net.ipv6.conf.{interfaces}.disable_ipv6"), "1");
    }
}

/// Reports why a test cannot run here, and ends the process.
pub(crate) fn skip(test: &str, why: &Unavailable) -> ! {
    towpath_testkit::skip(test, why);
    exit(0);
}

/// Returns the means to change interfaces.
pub(crate) fn net() -> Netlink {
    Netlink::open().unwrap()
}

/// Makes a veth pair NAME and NAMEp with the settings that `set` chooses, and sets both ends up.
pub(crate) fn veth(name: &str, set: impl FnOnce(&mut Veth<'_>)) {
    let peer = format!("{name}p");
    let mut pair = Veth::new(name, &peer);
    set(&mut pair);
    let mut net = net();
    net.create_veth(&pair).unwrap();
    net.set_up(name).unwrap();
    net.set_up(&peer).unwrap();
}

/// Makes a veth pair as [`veth`] does, in the place of an earlier one.
pub(crate) fn new_veth(name: &str, set: impl FnOnce(&mut Veth<'_>)) {
    if net().link(name).is_ok() {
        net().delete_link(name).unwrap();
    }
    veth(name, set);
}
