//! Atomics, and the points at which the order of accesses matters.

use alloc::sync::Arc;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

const _: () = assert!(cfg!(target_endian = "little"), "bytes in words are little-endian here");

/// Words in a cache line pair. The layout keeps words that different sides write this far apart,
/// since processors fetch lines in pairs.
pub const LINE_WORDS: usize = 16;

/// Words in a single cache line.
pub(crate) const CACHE_LINE_WORDS: usize = 8;

/// The points at which the order of accesses matters, in pairs. But for the last two, a store must
/// become visible before a load: of each pair, at least one side sees the other's store. With either
/// barrier taken out, both sides may miss it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::enum_variant_names, reason = "each names a check")]
pub(crate) enum Barrier {
    /// The sleeper set its flag and checks the queue. Partner: [`Barrier::NotifierChecks`].
    SleeperChecks,
    /// The producer published and checks the flag. Partner: [`Barrier::SleeperChecks`].
    NotifierChecks,
    /// The acknowledger acknowledged events, and checks their queues. Partner:
    /// [`Barrier::MarkerChecks`].
    AcknowledgerChecks,
    /// The marker published queues, and checks the acknowledgements. Partners:
    /// [`Barrier::AcknowledgerChecks`]; and [`Barrier::RequesterChecks`] for the request for room,
    /// which the marker's side reads with them.
    MarkerChecks,
    /// A thread left work, and checks the flag. Partner: [`Barrier::HolderChecks`].
    LeaverChecks,
    /// The holder released the flag, and checks for work that other threads left. Partner:
    /// [`Barrier::LeaverChecks`].
    HolderChecks,
    /// The sender wrote a request for room, and checks whether there is room. Partner:
    /// [`Barrier::MarkerChecks`].
    RequesterChecks,
    /// The owner of a tripwire armed it, and looks at its memory. Partner:
    /// [`Barrier::AccessorChecks`].
    ArmerChecks,
    /// A side accessed memory, and checks whether a tripwire there is armed. Partner:
    /// [`Barrier::ArmerChecks`].
    AccessorChecks,
    /// The owner published a word ahead of its later stores ([`OwnWords::publish_ahead`](super::OwnWords::publish_ahead)).
    /// Partner: an acquire fence between a load of one of those and that of the word
    /// ([`Barrier::EarlierLoads`]). Not a full barrier.
    #[cfg(all(test, loom))]
    LaterStores,
    /// The reader fetched words, and checks whether the word that tells their state has changed
    /// ([`PeerWords::observe_around`](super::PeerWords::observe_around)). Partner: [`Barrier::LaterStores`].
    /// Not a full barrier.
    #[cfg(all(test, loom))]
    EarlierLoads,
}

/// Executes a full barrier: a fence, because SeqCst accesses order only among each other, and the
/// model checker misjudges them.
#[inline]
pub(crate) fn full_fence(barrier: Barrier) {
    #[cfg(all(test, loom))]
    if crate::loom_tests::is_taken_out(barrier) {
        return;
    }
    let _ = barrier;
    fence(Ordering::SeqCst);
}

/// A value that keeps the memory mapped while views of it exist.
pub type Keep = Arc<dyn Send + Sync>;
