//! What driver server and application say to each other: control messages, and the layout of the
//! memory they share.
//!
//! | module | holds |
//! |---|---|
//! | [`counters`] | what is counted, and where |
//! | [`layout`] | what is where in a session's memories |
//! | [`message`] | the control messages, their numbers and their checks |
//! | [`channel`] | a socket that carries messages with descriptors |
//! | [`doorbell`] | the sockets through which a server notifies its sessions |
//! | [`peer`] | who is at the other end |
//! | [`settings`] | what can be changed while a server runs |
//! | [`store`] | where objects are kept that must outlive the server |

pub mod channel;
pub mod counters;
pub mod doorbell;
pub mod layout;
pub mod message;
pub mod peer;
pub mod settings;
pub mod store;

/// The version of messages and layout together. Raised whenever either changes; a peer of another
/// version is refused with both numbers.
pub const VERSION: u16 = 3;
