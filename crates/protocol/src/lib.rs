//! The protocol between driver server and application: control messages, and the layout of the
//! memory that they share.
//!
//! | module | holds |
//! |---|---|
//! | [`admin_socket`] | the paths of a server's two sockets |
//! | [`apertures`] | exported memory, its rights and its states |
//! | [`counters`] | the counters, and their location |
//! | [`layout`] | the layout of a session's memories |
//! | [`message`] | the control messages, their numbers and their checks |
//! | [`oob`] | out-of-band messages, and the states of an endpoint's peer |
//! | [`channel`] | a socket that carries messages with descriptors |
//! | [`doorbell`] | the sockets through which a server notifies its sessions |
//! | [`peer`] | the identity of the peer |
//! | [`position`] | the position page: where each engine stands |
//! | [`requests`] | requests to move bytes between a session's memory and an aperture |
//! | [`settings`] | the settings that can be changed while a server runs |
//! | [`store`] | the store of objects that must outlive the server |

pub mod admin_socket;
pub mod apertures;
pub mod channel;
pub mod counters;
pub mod doorbell;
pub mod layout;
pub mod message;
pub mod oob;
pub mod peer;
pub mod position;
pub mod requests;
pub mod settings;
pub mod store;

/// The version of messages and layout together. Each change of either raises the version. A server
/// speaks to an application as that one does, and lays out its session so, from
/// [`OLDEST_VERSION`] on; and it resumes such sessions of an earlier server. Each side refuses a
/// peer of any other version, and names both numbers.
///
/// | version | since | changed |
/// |---|---|---|
/// | 8 | 0.1.0 | |
/// | 9 | the version after 0.1.0 | the server pages have a line of accounts; [`message::OPEN_WITHIN_VLAN`] |
/// | 10 | the version after 0.1.0 | [`oob`]: queues of messages, [`message::OPEN_OUT_OF_BAND`] |
/// | 11 | the version after 0.1.0 | [`apertures`] and [`requests`]: [`message::Attach`] has two more fields; [`layout::ALLOCATES_SINCE`] |
/// | 12 | the version after 0.1.0 | hand-over: [`message::Message::HandOver`], [`message::ATTACH_REPLACE`], [`message::REPLACES`], [`message::OPEN_TAKE_OVER`], [`message::OPEN_LINK_CONTROL`] |
pub const VERSION: u16 = 12;
/// The oldest version that a server speaks.
pub const OLDEST_VERSION: u16 = 8;
