//! What the drivers of an interface that the kernel keeps have in common.
//!
//! | part | is |
//! |---|---|
//! | `flow_filter` | the flows of applications in maps of the kernel, and the program that reads them |
//! | `filters` | a filter in all parts of the interface that have it |
//! | `groups` | packets to groups, of which the driver receives copies |
//! | `packet_socket`, `packet_ring` | a packet socket with a ring: copies of packets that the kernel receives too |
//! | `full_rings` | when to ask the kernel how many packets it has dropped |
//! | `edge_sleep` | the descriptor on which an engine sleeps |
//! | `packet_sender` | a packet socket that sends, large packets included |
//! | `host_traffic` | packets between applications and the kernel's sockets of this host |
//! | `link_events` | changes of the interface |
//! | `other_server` | a server that serves the interface already |
//! | `warnings` | what about an interface may keep packets from the applications |
//! | `ethtool` | the interface's driver, hardware queues and offloads |

pub(crate) mod edge_sleep;
pub(crate) mod ethtool;
pub(crate) mod filters;
pub(crate) mod flow_filter;
pub(crate) mod full_rings;
pub(crate) mod groups;
pub(crate) mod host_traffic;
pub(crate) mod link_events;
pub(crate) mod other_server;
pub(crate) mod packet_ring;
pub(crate) mod packet_sender;
pub(crate) mod packet_socket;
pub(crate) mod socket_option;
pub(crate) mod warnings;

use std::io;

use crate::{DeviceError, Info};

/// Converts a system call's error into the fault of an interface as a whole.
pub(crate) fn failure(info: &Info, what: &'static str, cause: io::Error) -> DeviceError {
    match cause.raw_os_error() {
        // The kernel unbinds the AF_XDP sockets of an interface that it removes (`xsk_notifier` in
        // net/xdp/xsk.c). The file of a TAP outlives the interface: EBADFD from then on (`tun_get`
        // in drivers/net/tun.c).
        Some(libc::EBADFD | libc::ENODEV | libc::ENXIO) => {
            DeviceError::Gone { name: info.name.clone(), cause }
        }
        _ => info.failed(what)(cause),
    }
}
