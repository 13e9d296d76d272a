//! Words of shared memory, each with one writer. Bytes within words are in little-endian order, the
//! only one that this project supports.
//!
//! Unsafe lives here because shared memory is an address from outside. The caller that creates a
//! view promises that the memory stays mapped while the `keep` value of the call lives. The caller
//! also promises that this process makes no plain access to the memory that would race with one of
//! the view's. The view then uses atomics only, and forms no reference to plain data. (A second
//! writer of a word would break the protocol, not the memory.)
//!
//! While this process fetches a word, another process may write that word by accesses of any size,
//! and this process may write it by [`crate::copy`]. Rust's memory model does not define racing
//! atomics of different sizes. The processor does: each byte of the word is the old one or a new
//! one.

mod barrier;
mod own;
mod peer;

pub(crate) use barrier::{AtomicU64, Barrier, CACHE_LINE_WORDS, Ordering, full_fence};
pub use barrier::{Keep, LINE_WORDS};
pub use own::OwnWords;
pub(crate) use own::{prefetch_ahead, store_pair};
pub use peer::PeerWords;
