//! What driver server and application say to each other: control messages, and the layout of the
//! memory they share.

pub mod memory;
