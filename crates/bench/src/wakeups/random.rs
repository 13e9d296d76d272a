//! Numbers that a seed repeats, and pauses of such lengths.

use std::time::{Duration, Instant};

/// The same numbers for the same seed (splitmix64: Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A pause before a packet: often none; awake, for about as long as sides spin; or asleep, for
    /// long enough that they sleep as well.
    pub(super) fn pause(&mut self) {
        match self.below(4) {
            0 => {
                let until = Instant::now() + Duration::from_nanos(self.below(60_000));
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            1 => std::thread::sleep(Duration::from_micros(self.below(150))),
            _ => {}
        }
    }
}
