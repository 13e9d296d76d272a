//! Frames as bytes: what a frame's header says, what is still to be done to it, and how it is
//! finished, cut and written to a capture file.
//!
//! Nothing here opens a file or a socket, and nothing here is unsafe: every function takes bytes
//! that may be hostile and answers with a value or an error.
#![forbid(unsafe_code)]

pub mod build;
pub mod checksum;
mod extension;
pub mod headers;
mod malformed;
pub mod meta;
pub mod offload;
pub mod pcapng;
pub mod plain;
pub mod quoted;
pub mod segment;
pub mod transport;

pub use checksum::Sum;
pub use headers::{Fragment, Headers, Ip, Malformed, Network};
pub use meta::{Checksum, Meta, Segmentation, SegmentationKind};
pub use transport::Transport;
