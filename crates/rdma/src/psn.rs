//! Packet sequence numbers.

const MASK: u32 = (1 << 24) - 1;

/// A packet sequence number: 24 bits, and 0 follows the highest one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Makes a number of the lowest 24 bits.
    #[must_use]
    pub const fn new(number: u32) -> Psn {
        Psn(number & MASK)
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the number that is `packets` later.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }

    /// Returns the number before this one.
    #[must_use]
    pub const fn before(self) -> Psn {
        Psn::new(self.0.wrapping_sub(1))
    }

    /// Returns how many packets later `other` is, which is less than 0 if it is earlier: from -2^23
    /// to 2^23 - 1.
    #[must_use]
    pub const fn to(self, other: Psn) -> i32 {
        (other.0.wrapping_sub(self.0) << 8).cast_signed() >> 8
    }
}

impl std::fmt::Debug for Psn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Psn({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round() {
        let last = Psn::new(u32::MAX);
        assert_eq!((last.number(), last.plus(1), Psn::new(0).before()), (MASK, Psn::new(0), last));
        for (from, to, distance) in
            [(5, 5, 0), (5, 7, 2), (7, 5, -2), (MASK, 1, 2), (1, MASK, -2), (0, 1 << 23, -1 << 23)]
        {
            assert_eq!(Psn::new(from).to(Psn::new(to)), distance, "{from} {to}");
        }
    }
}
