//! Freed leases: those of ended sessions. The engine answers for their addresses until another session gets them.
//!
//! Peers of an application that was killed would otherwise wait for a silent host. The engine refuses their segments
//! and datagrams, as the kernel does for a program that has ended. It also answers requests for the link address,
//! without which peers send neither. The engine answers for no other addresses.
//!
//! The receive path copies the beginnings of packets without a rule, and of packets to groups (`FreedTable::take`).
//! The engine then answers a few of them per poll iteration, at a limited rate (`FreedTable::next_answer`).

mod answer;
mod lease;

use towpath_packet::AnswerRate;
use towpath_packet::headers::{Headers, PREFIX_BYTES};

#[cfg(test)]
use answer::ANSWER_BYTES;
pub(crate) use answer::Answer;
use answer::Claim;
use lease::BEGINNING_BYTES;
pub use lease::FreedLease;

/// The limit of freed leases. A further lease replaces the oldest, because peers of the applications that ended last
/// still wait. Each packet without a rule, or to a group, costs a search through all leases.
pub const MOST_FREED: usize = 256;

/// The limit of packets that the engine answers per poll iteration, so that the answers delay no session.
const MOST_PENDING: usize = 16;

/// Answers per second: the default of the stack (`Limits::errors_per_second`) and of Linux (`icmp_msgs_per_sec`).
const ANSWERS_PER_SECOND: u32 = 1_000;

/// The beginning of a packet that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Pending {
    bytes: [u8; BEGINNING_BYTES],
    /// The number of `bytes` that the packet has.
    held: usize,
    /// The length of the packet.
    len: usize,
}

/// The freed leases, and the packets that wait for answers.
#[derive(Debug)]
pub(crate) struct FreedTable {
    /// Oldest first.
    all: Vec<FreedLease>,
    pending: Vec<Pending>,
    /// The MAC addresses of removed leases, of which other hosts have claimed an address.
    claimed: Vec<[u8; 6]>,
    rate: AnswerRate,
    random: u64,
}

impl FreedTable {
    /// Returns a table without leases. The seed keeps senders from computing the state of the answers' limit.
    pub(crate) fn new(seed: u64) -> FreedTable {
        FreedTable {
            all: Vec::new(),
            pending: Vec::with_capacity(MOST_PENDING),
            claimed: Vec::with_capacity(MOST_FREED),
            rate: AnswerRate::new(ANSWERS_PER_SECOND, 0),
            random: seed | 1,
        }
    }

    /// `true` without a freed lease.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns `true` if packets wait for answers, or claims for [`FreedTable::take_claimed`].
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || !self.claimed.is_empty()
    }

    /// Returns the MAC address of a lease that [`FreedTable::take`] has removed.
    pub(crate) fn take_claimed(&mut self) -> Option<[u8; 6]> {
        self.claimed.pop()
    }

    /// Adds a freed lease, in place of the oldest one at the limit.
    pub(crate) fn insert(&mut self, lease: FreedLease) {
        self.remove(lease.mac);
        if self.all.len() == MOST_FREED {
            self.all.remove(0);
        }
        self.all.push(lease);
    }

    /// Removes the freed lease with a MAC address.
    pub(crate) fn remove(&mut self, mac: [u8; 6]) {
        self.all.retain(|one| one.mac != mac);
    }

    /// Copies the beginning of a packet without a rule, or to a group, if the packet is for the address of a freed
    /// lease. `beginning`: the packet's first bytes; `len`: its length. Ignores packets beyond the limit. The caller
    /// counts the packets without a rule, also those that get an answer. Removes the lease whose address the packet's
    /// sender claims, even beyond the limit.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(&mut self, beginning: &[u8], len: usize) {
        let beginning = &beginning[..beginning.len().min(PREFIX_BYTES)];
        let Ok(headers) = Headers::parse(beginning, len) else { return };
        if let Some(claim) = Claim::of(&headers) {
            let claimed = &mut self.claimed;
            self.all.retain(|one| {
                let is_claimed = claim.is_of(one, headers.source);
                if is_claimed {
                    claimed.push(one.mac);
                }
                !is_claimed
            });
        }
        if self.pending.len() == MOST_PENDING {
            return;
        }
        if !self.all.iter().any(|one| answer::is_answered(one, &headers)) {
            return;
        }
        let held = beginning.len().min(BEGINNING_BYTES);
        let mut pending = Pending { bytes: [0; BEGINNING_BYTES], held, len };
        pending.bytes[..held].copy_from_slice(&beginning[..held]);
        self.pending.push(pending);
    }

    /// Returns the next answer, at the time `now` in nanoseconds; `None` if no packet is left. Drops packets over the
    /// limited rate, and packets for leases that [`FreedTable::take`] has removed since.
    pub(crate) fn next_answer(&mut self, now: u64) -> Option<Answer> {
        while let Some(pending) = self.pending.pop() {
            let beginning = &pending.bytes[..pending.held];
            let Ok(headers) = Headers::parse(beginning, pending.len) else { continue };
            let answers = |one: &&FreedLease| answer::is_answered(one, &headers);
            let Some(own) = self.all.iter().find(answers) else { continue };
            let Some(answer) = answer::answer(own, &headers, beginning) else { continue };
            // Marsaglia's xorshift.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if self.rate.take(now, self.random) {
                return Some(answer);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
