//! The recent idle times between packets.

/// The longest idle time during which a side spins, in nanoseconds.
const LONGEST_SPIN: u64 = 1_000_000_000;
/// The number of classes of idle times by length, in powers of two of nanoseconds.
const LENGTHS: usize = 40;
/// The count of one idle time, large so that halving all counts does not lose a rare one.
const ONE: u32 = 256;

/// The recent idle times between packets. They tell how long a side must spin so that all but one
/// packet in a hundred find it awake.
#[derive(Clone, Debug)]
pub(crate) struct Gaps {
    lengths: [u32; LENGTHS],
    packets: u64,
    seen: u32,
    /// When packets last came.
    pub(crate) since: u64,
    /// How long the side spins after packets, in nanoseconds.
    pub(crate) spin: u64,
}

impl Default for Gaps {
    fn default() -> Gaps {
        Gaps { lengths: [0; LENGTHS], packets: 0, seen: 0, since: 0, spin: LONGEST_SPIN }
    }
}

impl Gaps {
    /// Notes that packets came `late` nanoseconds before now.
    pub(crate) fn add(&mut self, now: u64, late: u64, packets: u64) {
        let gap = now.saturating_sub(self.since).saturating_sub(late);
        self.since = now;
        let length = (64 - gap.leading_zeros()) as usize;
        self.lengths[length.min(LENGTHS - 1)] += ONE;
        self.packets += packets;
        self.seen += 1;
        if self.seen >= 1024 {
            self.seen /= 2;
            self.packets /= 2;
            for count in &mut self.lengths {
                *count /= 2;
            }
        }
        if self.seen.is_multiple_of(32) {
            let mut longer = 0;
            // A burst brings several packets in the time of a wake-up.
            let may_be_late = u64::from(ONE) * self.packets / 4096;
            let length = (0..LENGTHS).rev().find(|length| {
                longer += u64::from(self.lengths[*length]);
                longer > may_be_late
            });
            self.spin = length.map_or(0, |length| 2 << length).min(LONGEST_SPIN);
        }
    }
}
