//! A guard that tells a child made by `fork` from its parent, without a system call.

use std::io;

use towpath_queue::PeerWords;

use crate::{Region, own_words, peer_words};

/// A page that the kernel wipes in children made by `fork` (`MADV_WIPEONFORK`, Linux 4.14). A check
/// costs one load and one comparison. Clones share the page.
///
/// The guard notices each copy of an address space: by `fork`, `clone` without `CLONE_VM`, and so
/// also a child's child. In the process that made the guard, the page never changes.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use towpath_memory::ForkGuard;
///
/// let guard = ForkGuard::new()?;
/// assert!(guard.is_parent());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ForkGuard {
    words: PeerWords,
}

impl ForkGuard {
    /// Makes a guard of this process.
    ///
    /// # Errors
    /// The error of `mmap` or `madvise`.
    pub fn new() -> io::Result<ForkGuard> {
        let page = Region::private(1)?;
        page.mapping().wipe_in_children()?;
        let words = peer_words(page.mapping());
        own_words(page).store(0, 1);
        Ok(ForkGuard { words })
    }

    /// `true` if this process made the guard.
    #[inline]
    #[must_use]
    pub fn is_parent(&self) -> bool {
        self.words.fetch(0) == 1
    }
}
