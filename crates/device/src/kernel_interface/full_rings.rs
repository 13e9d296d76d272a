//! When to ask the kernel how many packets it has dropped: after a ring may have been full, and now and then.

/// Sleeps, and polls, between two questions.
const SLEEPS_PER_READ: u32 = 64;
const POLLS_PER_READ: u32 = 1 << 16;

/// Counts the packets that a driver receives between two polls that find all rings of the kernel empty.
///
/// The kernel drops a packet when a ring has no room, so a ring's worth of packets comes in a row before or after each
/// drop. Each question costs system calls, and a sleeping engine asks none.
#[derive(Debug)]
pub(crate) struct FullRings {
    in_a_row: usize,
    /// The number of packets of one buffer that the smallest ring holds.
    smallest_ring: usize,
    sleeps: u32,
    polls: u32,
}

impl FullRings {
    /// `rings`: the number of packets of one buffer that each ring holds.
    pub(crate) fn new(rings: impl Iterator<Item = usize>) -> FullRings {
        FullRings { in_a_row: 0, smallest_ring: rings.min().unwrap_or(0), sleeps: 0, polls: 0 }
    }

    /// Counts a poll before it begins. Returns `true` once in many polls.
    #[inline]
    pub(crate) fn polls(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(POLLS_PER_READ)
    }

    /// Counts a sleep before it begins. Returns `true` once in many sleeps.
    pub(crate) fn sleeps(&mut self) -> bool {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.sleeps.is_multiple_of(SLEEPS_PER_READ)
    }

    /// Counts the buffers of a packet beyond its first one.
    #[inline]
    pub(crate) fn add_buffers(&mut self, further: u32) {
        self.in_a_row += further as usize;
    }

    /// Counts the packets of a poll. Returns `true` if all rings are empty now, and one may have been full.
    #[inline]
    pub(crate) fn polled(&mut self, packets: usize) -> bool {
        if packets > 0 {
            self.in_a_row += packets;
            return false;
        }
        std::mem::take(&mut self.in_a_row) >= self.smallest_ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_may_have_been_full_only_after_as_many_packets_in_a_row() {
        let mut rings = FullRings::new([200, 100].into_iter());
        assert!(![99, 0, 64, 35, 0].into_iter().any(|packets| rings.polled(packets)));
        assert!(!rings.polled(64) && !rings.polled(36) && rings.polled(0));
        assert!(!rings.polled(0), "only once");
        rings.add_buffers(99);
        assert!(!rings.polled(1) && rings.polled(0), "a packet of 100 buffers");
    }
}
