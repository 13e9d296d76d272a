//! The maximum payload of a path.

/// The maximum payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512,
    /// 1024 bytes.
    M1024,
    /// 2048 bytes.
    M2048,
    /// 4096 bytes.
    M4096,
}

impl PathMtu {
    const ALL: [PathMtu; 5] =
        [PathMtu::M256, PathMtu::M512, PathMtu::M1024, PathMtu::M2048, PathMtu::M4096];

    /// Returns the maximum payload, in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// Returns the maximum payload with this number, 1 to 5.
    #[must_use]
    pub fn from_number(number: u8) -> Option<PathMtu> {
        PathMtu::ALL.into_iter().find(|mtu| *mtu as u8 == number)
    }

    /// Returns the largest maximum payload of at most `bytes` bytes. `None` for less than 256.
    #[must_use]
    pub fn of_bytes(bytes: usize) -> Option<PathMtu> {
        PathMtu::ALL.into_iter().rfind(|mtu| mtu.bytes() <= bytes)
    }
}
