//! A guard that tells a child made by `fork` from its parent, without a system call.

use std::io;

use towpath_memory::{Region, own_words, peer_words};
use towpath_queue::PeerWords;

/// A page that the kernel wipes in children.
#[derive(Clone, Debug)]
pub(crate) struct ForkGuard {
    words: PeerWords,
}

impl ForkGuard {
    pub(crate) fn new() -> io::Result<ForkGuard> {
        let page = Region::private(1)?;
        page.mapping().wipe_in_children()?;
        let words = peer_words(page.mapping());
        own_words(page).store(0, 1);
        Ok(ForkGuard { words })
    }

    /// `true` if this process made the guard.
    #[inline]
    pub(crate) fn is_parent(&self) -> bool {
        self.words.fetch(0) == 1
    }
}
