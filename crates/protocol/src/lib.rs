//! The protocol between driver server and application: control messages, and the layout of the
//! memory that they share.
//!
//! | module | holds |
//! |---|---|
//! | [`counters`] | the counters, and their location |
//! | [`layout`] | the layout of a session's memories |
//! | [`message`] | the control messages, their numbers and their checks |
//! | [`channel`] | a socket that carries messages with descriptors |
//! | [`doorbell`] | the sockets through which a server notifies its sessions |
//! | [`peer`] | the identity of the peer |
//! | [`settings`] | the settings that can be changed while a server runs |
//! | [`store`] | the store of objects that must outlive the server |

pub mod channel;
pub mod counters;
pub mod doorbell;
pub mod layout;
pub mod message;
pub mod peer;
pub mod settings;
pub mod store;

/// The version of messages and layout together. Each change of either raises the version. A side
/// refuses a peer of another version, and names both numbers.
pub const VERSION: u16 = 8;
