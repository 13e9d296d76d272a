//! Frames as bytes: what a frame's header says, what is still to be done to it, and how it is
//! finished, cut and written to a capture file.
//!
//! Nothing here does input or output, and nothing here is unsafe: every function takes bytes that
//! may be hostile and answers with a value or an error.
#![forbid(unsafe_code)]

pub mod meta;

pub use meta::{Checksum, Meta, Segmentation, SegmentationKind};
