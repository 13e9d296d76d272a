//! Mapped memory as words: for the one side that writes them, and for the other.
//!
//! Unsafe lives here because words are made of addresses.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use towpath_queue::{OwnWords, PeerWords};

use crate::{Mapping, Region};

/// Returns the words of a region, which this side writes from now on: a word has one writer.
///
/// # Panics
/// When the region does not start at a word: a mistake in the layout, which no peer decides.
#[must_use]
pub fn own_words(mut region: Region) -> OwnWords {
    let first: NonNull<AtomicU64> = region.start().cast();
    assert!(first.is_aligned(), "own words from within a word on");
    // SAFETY: a region is mapped and writable for as long as its mapping lives. The region is used
    // up here, so plain accesses to it are over: the slices that it lends have ended, and no more
    // are lent.
    unsafe { OwnWords::new(first, region.len() / 8, region.mapping().clone()) }
}

/// Returns the words of a mapping that the other side writes.
#[must_use]
pub fn peer_words(mapping: &Arc<Mapping>) -> PeerWords {
    let first: NonNull<AtomicU64> = mapping.start().cast();
    // SAFETY: a mapping starts at a page, is as long as it says, and lives as long as its `Arc`.
    // Only `Region::bytes_mut` makes plain writes to it, whose caller promises that nothing reads
    // meanwhile.
    unsafe { PeerWords::new(first, mapping.len() / 8, mapping.clone()) }
}
