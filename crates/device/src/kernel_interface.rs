//! What the drivers of an interface that the kernel keeps have in common.
//!
//! | part | is |
//! |---|---|
//! | `flow_filter` | the flows of applications in maps of the kernel, and the program that reads them |
//! | `groups` | packets to groups, of which the driver receives copies |
//! | `packet_socket` | a packet socket with a ring: copies of packets that the kernel receives too |
//! | `full_rings` | when to ask the kernel how many packets it has dropped |
//! | `packet_sender` | a packet socket that sends, large packets included |
//! | `host_traffic` | packets between applications and the kernel's sockets of this host |
//! | `link_events` | changes of the interface |
//! | `other_server` | a server that serves the interface already |
//! | `warnings` | what about an interface may keep packets from the applications |
//! | `ethtool` | the interface's driver, hardware queues and offloads |

pub(crate) mod ethtool;
pub(crate) mod flow_filter;
pub(crate) mod full_rings;
pub(crate) mod groups;
pub(crate) mod host_traffic;
pub(crate) mod link_events;
pub(crate) mod other_server;
pub(crate) mod packet_sender;
pub(crate) mod packet_socket;
pub(crate) mod socket_option;
pub(crate) mod warnings;
