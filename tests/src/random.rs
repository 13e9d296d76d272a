//! Numbers that a seed repeats.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }
}

/// Returns the seed of a test: that in `TOWPATH_SEED`, or the test's own. Prints it, so that a
/// failure can be repeated.
#[must_use]
pub fn seed(own: u64) -> u64 {
    let seed = std::env::var("TOWPATH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(own);
    println!("TOWPATH_SEED={seed}");
    seed
}
