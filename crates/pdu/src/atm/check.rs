//! The three checks: the HEC of a cell, the CRC-10 of AAL3/4, and the CRC-32 of AAL5.

use crc::{CRC_8_I_432_1, CRC_10_ATM, CRC_32_BZIP2, Crc, Table};

use super::sizes::PAYLOAD_BYTES;

static HEC: Crc<u8> = Crc::<u8>::new(&CRC_8_I_432_1);
static CRC_10: Crc<u16> = Crc::<u16>::new(&CRC_10_ATM);
/// AAL5's CRC-32 is the one that bzip2 uses, too: not reflected.
static CRC_32: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_BZIP2);

/// The generator of the CRC-10, with its highest term.
const CRC_10_GENERATOR: u16 = 0x633;

/// Returns the HEC of a header's first four bytes.
#[inline]
pub(super) fn hec(header: [u8; 4]) -> u8 {
    HEC.checksum(&header)
}

/// Returns `true` if the last ten bits of a payload are the CRC-10 of the bits before.
#[inline]
pub(super) fn has_right_crc10(payload: &[u8; PAYLOAD_BYTES]) -> bool {
    // The whole is a multiple of the generator then.
    CRC_10.checksum(payload) == 0
}

/// Returns the CRC-10 of a payload without its last ten bits, which must be 0.
pub(super) fn crc10(payload: &[u8; PAYLOAD_BYTES]) -> u16 {
    // The checksum counts the ten bits, too: it is the CRC times x^10. Each step divides by x.
    (0..10).fold(CRC_10.checksum(payload), |value, _| {
        if value & 1 == 0 { value >> 1 } else { (value ^ CRC_10_GENERATOR) >> 1 }
    })
}

/// A CRC-32 in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crc32(u32);

impl Default for Crc32 {
    fn default() -> Crc32 {
        Crc32(!0)
    }
}

impl Crc32 {
    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        let mut digest = CRC_32.digest_with_initial(self.0);
        digest.update(bytes);
        self.0 = !digest.finalize();
    }

    /// Returns the CRC of all bytes so far.
    pub(super) fn value(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGITS: &[u8] = b"123456789";

    /// Divides a polynomial, bit by bit: the definition.
    fn remainder(
        bits: impl Iterator<Item = bool>,
        width: u32,
        generator: u64,
        initial: u64,
    ) -> u64 {
        let mask = (1 << width) - 1;
        bits.fold(initial, |value, bit| {
            let out = value >> (width - 1) & 1 != u64::from(bit);
            value << 1 & mask ^ if out { generator } else { 0 }
        })
    }

    fn bits(bytes: &[u8]) -> impl Iterator<Item = bool> {
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 != 0))
    }

    #[test]
    fn check_values() {
        assert_eq!(HEC.checksum(DIGITS), 0xa1);
        assert_eq!(CRC_10.checksum(DIGITS), 0x199);
        let mut crc = Crc32::default();
        DIGITS.chunks(4).for_each(|chunk| crc.update(chunk));
        assert_eq!(crc.value(), 0xfc89_1918);
        assert_eq!(remainder(bits(DIGITS), 8, 0x07, 0) ^ 0x55, 0xa1);
        assert_eq!(remainder(bits(DIGITS), 10, 0x233, 0), 0x199);
        assert_eq!(remainder(bits(DIGITS), 32, 0x04c1_1db7, !0 >> 32) ^ !0 >> 32, 0xfc89_1918);
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_definition(
            mut payload in prop::array::uniform32(any::<u8>()).prop_map(|half| {
                let mut payload = [0; PAYLOAD_BYTES];
                payload[..32].copy_from_slice(&half);
                payload[32..].copy_from_slice(&half[16..]);
                payload
            }),
            damage in 0..PAYLOAD_BYTES * 8,
        ) {
            payload[46] &= 0xfc;
            payload[47] = 0;
            let sum = crc10(&payload);
            prop_assert_eq!(u64::from(sum), remainder(bits(&payload).take(374), 10, 0x233, 0));
            payload[46] |= (sum >> 8) as u8;
            payload[47] = sum as u8;
            prop_assert!(has_right_crc10(&payload));
            payload[damage / 8] ^= 1 << (damage % 8);
            prop_assert!(!has_right_crc10(&payload));
            let mut crc = Crc32::default();
            crc.update(&payload[..damage / 8]);
            crc.update(&payload[damage / 8..]);
            let whole = remainder(bits(&payload), 32, 0x04c1_1db7, !0 >> 32) ^ !0 >> 32;
            prop_assert_eq!(u64::from(crc.value()), whole);
        }
    }
}
