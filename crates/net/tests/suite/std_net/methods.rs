//! The public methods of the sockets of `std::net`, in the order of its documentation.

use Here::{Differs, Omitted, Same};

/// The version of Rust whose methods these are.
pub(crate) const VERSION: &str = "1.95";

/// A method of `std::net` as it is here.
pub(crate) enum Here {
    Same,
    Differs(&'static str),
    Omitted(&'static str),
}

const NETWORK: Here = Differs("takes the network as first argument");
const V4: Here = Differs("the interface is `0.0.0.0` or the network's address");
const V6: Here = Differs("the interface is 0");
const LOOP: Here = Differs("for both families, and the sockets of this network");
const ONLY_V6: Here = Omitted("deprecated in `std::net`; `BindOptions::only_v6` in `bind_with`");

pub(crate) const STREAM: &[(&str, Here)] = &[
    ("connect", NETWORK),
    ("connect_timeout", NETWORK),
    ("peer_addr", Same),
    ("local_addr", Same),
    ("shutdown", Same),
    ("try_clone", Same),
    ("set_read_timeout", Same),
    ("set_write_timeout", Same),
    ("read_timeout", Same),
    ("write_timeout", Same),
    ("peek", Same),
    (
        "set_linger",
        Differs(
            "after the time, a reset ends the connection; the drop of a non-blocking stream does \
             not wait",
        ),
    ),
    ("linger", Same),
    ("set_nodelay", Same),
    ("nodelay", Same),
    ("set_ttl", Differs("also sets the hop limit of IPv6")),
    ("ttl", Same),
    ("take_error", Same),
    ("set_nonblocking", Same),
];

pub(crate) const LISTENER: &[(&str, Here)] = &[
    ("bind", NETWORK),
    ("local_addr", Same),
    ("try_clone", Same),
    ("accept", Same),
    ("incoming", Same),
    ("into_incoming", Same),
    ("set_ttl", Differs("is for accepted connections; also sets the hop limit of IPv6")),
    ("ttl", Same),
    ("set_only_v6", ONLY_V6),
    ("only_v6", ONLY_V6),
    ("take_error", Differs("always `None`: `accept` returns each error")),
    ("set_nonblocking", Same),
];

pub(crate) const UDP: &[(&str, Here)] = &[
    ("bind", NETWORK),
    ("recv_from", Same),
    ("peek_from", Same),
    ("send_to", Same),
    ("peer_addr", Same),
    ("local_addr", Same),
    ("try_clone", Same),
    ("set_read_timeout", Same),
    ("set_write_timeout", Same),
    ("read_timeout", Same),
    ("write_timeout", Same),
    ("set_broadcast", Same),
    ("broadcast", Same),
    ("set_multicast_loop_v4", LOOP),
    ("multicast_loop_v4", Same),
    ("set_multicast_ttl_v4", Differs("also sets the hop limit of IPv6; refuses 0")),
    ("multicast_ttl_v4", Same),
    ("set_multicast_loop_v6", LOOP),
    ("multicast_loop_v6", Same),
    ("set_ttl", Differs("also sets the hop limit of IPv6")),
    ("ttl", Same),
    ("join_multicast_v4", V4),
    ("join_multicast_v6", V6),
    ("leave_multicast_v4", V4),
    ("leave_multicast_v6", V6),
    ("take_error", Same),
    ("connect", Same),
    ("send", Same),
    ("recv", Same),
    ("peek", Same),
    ("set_nonblocking", Same),
];

/// Returns a list as a table for a document.
pub(crate) fn table(list: &[(&str, Here)]) -> String {
    let mut table = "| method | here |\n|---|---|\n".to_owned();
    for (method, here) in list {
        let here = match here {
            Same => "the same".to_owned(),
            Differs(how) => (*how).to_owned(),
            Omitted(why) => format!("**not here**: {why}"),
        };
        table += &format!("| `{method}` | {here} |\n");
    }
    table
}
