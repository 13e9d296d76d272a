//! Reads of a header's fields.

#[inline]
pub(crate) const fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// Reads `N` bytes of a header in one read. The header must have them.
#[inline(always)]
pub(crate) fn piece<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    header[at..].first_chunk().copied().unwrap_or([0; N])
}
