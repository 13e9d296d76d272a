//! What a receiving process counts, which its parent asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::child::tell;

/// The numbers of received packets and of IPCs, which another thread reports.
#[derive(Clone, Default)]
pub(super) struct Count(Arc<[AtomicU64; 2]>);

impl Count {
    pub(super) fn add_packets(&self, packets: usize) {
        self.add(0, packets as u64);
    }

    /// Adds messages between the processes, or notifications.
    pub(super) fn add_ipcs(&self, ipcs: u64) {
        self.add(1, ipcs);
    }

    fn add(&self, place: usize, by: u64) {
        // Only one thread adds.
        let sum = self.0[place].load(Ordering::Relaxed) + by;
        self.0[place].store(sum, Ordering::Relaxed);
    }

    /// Answers each line of the standard input until there is no more. `others`: the IPCs that this process does
    /// not see.
    pub(super) fn report(&self, others: impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<()> {
        for line in std::io::stdin().lines() {
            line?;
            let [packets, ipcs] = [0, 1].map(|place| self.0[place].load(Ordering::Relaxed));
            tell(&format!("{packets} {}", ipcs + others()?))?;
        }
        // The other thread sleeps in its card.
        std::process::exit(0)
    }
}
