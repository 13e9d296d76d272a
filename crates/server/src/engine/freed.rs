//! The addresses of ended sessions, for which the engine answers until another session has them.
//!
//! Peers of an application that was killed would otherwise wait for a host that is silent. The engine refuses their segments
//! and datagrams as the kernel does for a program that has ended, and answers requests for the link address, so that peers
//! reach the refusal at all. It answers for no other addresses.
//!
//! The receive path copies the beginnings of packets that no session takes ([`FreedAddresses::take`]). The engine then
//! answers them, a few per poll iteration and at a limited rate ([`FreedAddresses::next_answer`]).

mod address;
mod answer;

use towpath_packet::AnswerRate;
use towpath_packet::headers::{Headers, PREFIX_BYTES};

use address::BEGINNING_BYTES;
pub(crate) use address::FreedAddress;
#[cfg(test)]
use answer::ANSWER_BYTES;
pub(crate) use answer::Answer;
use answer::Reaction;

/// The addresses that the engine knows at most. The oldest ones give way: peers of the applications that ended last still
/// wait. A search reads all of them, and only for packets that no session takes.
pub(crate) const MOST_FREED: usize = 256;

/// Packets that the engine answers per poll iteration: as many as fit between two batches without a delay for sessions.
const PENDING: usize = 16;

/// Answers per second, as of a host's stack (`Limits::errors_per_second`), and Linux' `icmp_msgs_per_sec`.
const ANSWERS_PER_SECOND: u32 = 1_000;

/// The beginning of a packet that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Pending {
    bytes: [u8; BEGINNING_BYTES],
    /// The bytes that are there, and the length of the packet.
    held: usize,
    len: usize,
}

/// The addresses of ended sessions, and packets for them.
#[derive(Debug)]
pub(crate) struct FreedAddresses {
    /// Oldest first.
    all: Vec<FreedAddress>,
    pending: Vec<Pending>,
    rate: AnswerRate,
    random: u64,
}

impl FreedAddresses {
    /// Knows no address. The seed keeps others from computing the limit's state.
    pub(crate) fn new(seed: u64) -> FreedAddresses {
        FreedAddresses {
            all: Vec::new(),
            pending: Vec::with_capacity(PENDING),
            rate: AnswerRate::new(ANSWERS_PER_SECOND, 0),
            random: seed | 1,
        }
    }

    /// Returns `true` if there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns `true` if packets wait for answers.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Enters the addresses of a session that has ended.
    pub(crate) fn insert(&mut self, freed: FreedAddress) {
        self.remove(freed.mac);
        if self.all.len() == MOST_FREED {
            self.all.remove(0);
        }
        self.all.push(freed);
    }

    /// Removes addresses, which another session gets.
    pub(crate) fn remove(&mut self, mac: [u8; 6]) {
        self.all.retain(|one| one.mac != mac);
    }

    /// Takes a packet that no session's rule matches, or one to a group. `beginning`: its first bytes; `len`: its length.
    /// Ignores a packet that is not for one of the addresses, or beyond the limit: the caller counts it among those without
    /// a rule.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(&mut self, beginning: &[u8], len: usize) {
        let beginning = &beginning[..beginning.len().min(PREFIX_BYTES)];
        let Ok(headers) = Headers::parse(beginning, len) else { return };
        let concerns = |one: &FreedAddress| answer::reaction(one, &headers) != Reaction::None;
        if !self.all.iter().any(concerns) {
            return;
        }
        if self.pending.len() == PENDING {
            return;
        }
        let held = beginning.len().min(BEGINNING_BYTES);
        let mut pending = Pending { bytes: [0; BEGINNING_BYTES], held, len };
        pending.bytes[..held].copy_from_slice(&beginning[..held]);
        self.pending.push(pending);
    }

    /// Returns the next answer to a packet taken, at the time `now` in nanoseconds; `None` if no packet is left. Forgets an
    /// address that another host claims.
    pub(crate) fn next_answer(&mut self, now: u64) -> Option<Answer> {
        while let Some(pending) = self.pending.pop() {
            let beginning = &pending.bytes[..pending.held];
            let Ok(headers) = Headers::parse(beginning, pending.len) else { continue };
            self.all.retain(|one| answer::reaction(one, &headers) != Reaction::Forget);
            let answers = |one: &&FreedAddress| answer::reaction(one, &headers) == Reaction::Answer;
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
