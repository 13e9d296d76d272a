//! Repeatable pseudo-random numbers: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
//! Number Generators, OOPSLA 2014). The same seed gives the same numbers, on every machine.

/// The generator, which is not for secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`; 0 when `limit` is 0. The bias is under `limit` / 2^64.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns `true` with probability `rate`. Draws one number for every rate, so that a change of
    /// one rate does not shift the numbers of another.
    pub fn chance(&mut self, rate: f64) -> bool {
        self.part() < rate
    }

    /// Returns a number from 0 to below 1.
    pub fn part(&mut self) -> f64 {
        // 53 bits: the length of an f64's fraction.
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        // From the reference implementation at prng.di.unimi.it, seed 1234567.
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.draw()).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn rates() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| !random.chance(0.0) && random.chance(1.0)));
        let hits = (0..100_000).filter(|_| random.chance(0.1)).count();
        assert!((9_000..11_000).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
    }
}
