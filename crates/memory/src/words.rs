//! Mapped memory as words, for the side that writes them and for the other side.
//!
//! Unsafe lives here because this module makes words from addresses.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use towpath_queue::{OwnWords, PeerWords};

use crate::{Mapping, Region};

/// Returns the words of a region, which this side writes from now on: a word has one writer.
///
/// # Panics
/// When the region does not start at a word: a mistake in the layout, which no peer can cause.
#[must_use]
pub fn own_words(mut region: Region) -> OwnWords {
    let first: NonNull<AtomicU64> = region.start().cast();
    assert!(first.is_aligned(), "own words that start within a word");
    // SAFETY: a region is mapped and writable for as long as its mapping lives. This function
    // consumes the region, so plain accesses to it have ended: the slices borrowed from it have
    // ended, and no new ones can begin.
    unsafe { OwnWords::new(first, region.len() / 8, region.mapping().clone()) }
}

/// Returns the words of a mapping that the other side writes.
#[must_use]
pub fn peer_words(mapping: &Arc<Mapping>) -> PeerWords {
    let first: NonNull<AtomicU64> = mapping.start().cast();
    // SAFETY: a mapping starts at a page, has the length that it reports, and lives as long as its
    // `Arc`. Only `Region::bytes_mut` allows plain writes to it, and its caller promises that no
    // access reads meanwhile.
    unsafe { PeerWords::new(first, mapping.len() / 8, mapping.clone()) }
}
