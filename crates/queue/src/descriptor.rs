//! The entries of a queue: 16 bytes that say where a packet's data is.
//!
//! ```text
//! word 0   0..24 buffer   24..44 start   44..64 length    (start and length in bytes)
//! word 1   0..32 endpoint   32..48 flags   48..64 zero
//! ```
//! A descriptor names a buffer by its number, not by its offset in the pool. The check then takes
//! three comparisons for any distance between buffers, and no division.

use crate::Violation;

/// The maximum number of buffers of a packet: a 64 KiB segment in buffers of 2 KiB, and room for
/// buffers that are not full.
pub const MAX_CHAIN: usize = 48;

/// The largest packet, in bytes: an IP packet of 64 KiB with its Ethernet and VLAN header.
pub const MAX_PACKET_BYTES: usize = 65_535 + 18;

/// Bytes at the start of each buffer. They hold the packet's metadata, or, in the second or a later
/// buffer of a received packet, data. They also make the distance between
/// buffers an odd number of cache line pairs, so that headers spread over the cache's sets.
pub const HEADROOM_BYTES: u32 = 128;

/// Returns how many packets ahead of a packet of `len` bytes a side prefetches a later packet's
/// buffer, where the side knows that buffer. About two kilobytes are then being fetched.
#[inline]
#[must_use]
pub const fn prefetch_distance(len: usize) -> u32 {
    if len <= 256 { 8 } else { 2 }
}

/// The packet continues in the next descriptor.
pub const MORE: u16 = 1;
/// The buffer's headroom holds metadata.
pub const META: u16 = 2;
/// The server captured the packet as it was sent (only on capture endpoints, only from the server).
pub const OUTGOING: u16 = 4;
/// The next packet in the queue belongs to the same message: the server places no other packet
/// between the two on the device, up to a limit of its own. Only to the server, on a packet's last
/// descriptor. "Several requests as one logical message" of Riddoch and Pope.
pub const TOGETHER: u16 = 8;
/// An expedited packet: one buffer and at most [`EXPEDITED_BYTES`], sent ahead of others (only to
/// the server, with no other flag). Tracey and Banerji's tiny messages, section 3.4.
pub const EXPEDITED: u16 = 16;
/// An out-of-band message, not a packet: one buffer with [`MESSAGE_BYTES`] (only to the server,
/// with no other flag).
pub const OUT_OF_BAND: u16 = 32;
/// A request, not a packet: one buffer with [`MESSAGE_BYTES`] (only to the server, with no other
/// flag but [`TOGETHER`]).
pub const REQUEST: u16 = 64;
/// The bytes of an out-of-band message, and of a request.
pub const MESSAGE_BYTES: u32 = 128;
/// The longest packet that may be [`EXPEDITED`], in bytes: packets that overtake all others must be
/// little work.
pub const EXPEDITED_BYTES: u32 = 128;

/// A pool's shape: the number of buffers and their distance. Private to each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    buffers: u32,
    frame_bytes: u32,
}

impl PoolShape {
    /// The maximum number of buffers of a pool.
    const MAX_BUFFERS: u32 = 1 << 24;
    /// The largest buffer, in bytes.
    const MAX_BUFFER_BYTES: u32 = 1 << 18;

    /// Returns the shape of a pool of `buffers` buffers that hold `data_bytes` each. A buffer's
    /// size is the sum of `data_bytes` and the headroom, rounded up to an odd number of 128-byte
    /// line pairs.
    ///
    /// `None` if either number is zero or too large.
    #[must_use]
    pub const fn new(buffers: u32, data_bytes: u32) -> Option<PoolShape> {
        if buffers == 0 || buffers > Self::MAX_BUFFERS || data_bytes == 0 {
            return None;
        }
        if data_bytes > Self::MAX_BUFFER_BYTES - 2 * HEADROOM_BYTES {
            return None;
        }
        let pairs = (data_bytes + HEADROOM_BYTES).div_ceil(128) | 1;
        Some(PoolShape { buffers, frame_bytes: pairs * 128 })
    }

    /// Returns the number of buffers.
    #[must_use]
    pub const fn buffers(&self) -> u32 {
        self.buffers
    }

    /// Returns the distance from one buffer to the next, in bytes.
    #[must_use]
    pub const fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// Returns how many data bytes a buffer holds.
    #[must_use]
    pub const fn data_bytes(&self) -> u32 {
        self.frame_bytes - HEADROOM_BYTES
    }

    /// Returns the number of bytes of the whole pool.
    #[must_use]
    pub const fn pool_bytes(&self) -> usize {
        self.buffers as usize * self.frame_bytes as usize
    }

    /// Returns where a buffer starts in the pool, in bytes.
    #[must_use]
    pub const fn buffer_offset(&self, buffer: u32) -> usize {
        buffer as usize * self.frame_bytes as usize
    }
}

/// A descriptor in private memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The buffer's number in its pool.
    pub buffer: u32,
    /// Where in the buffer its data starts, in bytes: at least [`HEADROOM_BYTES`]; or 0 in the
    /// second or a later buffer of a received packet, if the packet continues there without a gap.
    pub start: u32,
    /// The number of data bytes.
    pub len: u32,
    /// The endpoint: on transmit the sender's, on receive the one that the engine found for the
    /// packet.
    pub endpoint: u32,
    /// [`MORE`], [`META`], [`OUTGOING`], [`TOGETHER`], [`EXPEDITED`], [`OUT_OF_BAND`], [`REQUEST`].
    pub flags: u16,
}

impl Descriptor {
    /// Returns the descriptor's two words.
    #[inline]
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.buffer) | u64::from(self.start) << 24 | u64::from(self.len) << 44,
            u64::from(self.endpoint) | u64::from(self.flags) << 32,
        ]
    }

    /// Returns the descriptor that two fetched words form, if all of it lies inside the pool,
    /// behind the buffer's headroom.
    ///
    /// # Errors
    /// The check that failed.
    #[inline]
    pub fn check(words: [u64; 2], pool: &PoolShape, allowed: u16) -> Result<Descriptor, Violation> {
        let descriptor = Self::check_inside(words, pool, allowed)?;
        if descriptor.start < HEADROOM_BYTES {
            return Err(Violation::Range);
        }
        Ok(descriptor)
    }

    /// Returns the descriptor that two fetched words form, as [`Descriptor::check`] does, for the
    /// second or a later buffer of a received packet. Its data may also follow that of `before`,
    /// the packet's previous descriptor, without a gap.
    ///
    /// # Errors
    /// The check that failed.
    #[inline]
    pub(crate) fn check_next(
        words: [u64; 2],
        pool: &PoolShape,
        allowed: u16,
        before: &Descriptor,
    ) -> Result<Descriptor, Violation> {
        let descriptor = Self::check_inside(words, pool, allowed)?;
        if descriptor.start < HEADROOM_BYTES && !before.is_followed_by(&descriptor, pool) {
            return Err(Violation::Range);
        }
        Ok(descriptor)
    }

    #[inline]
    fn check_inside(
        words: [u64; 2],
        pool: &PoolShape,
        allowed: u16,
    ) -> Result<Descriptor, Violation> {
        let descriptor = Descriptor {
            buffer: (words[0] & 0xff_ffff) as u32,
            start: (words[0] >> 24 & 0xf_ffff) as u32,
            len: (words[0] >> 44) as u32,
            endpoint: words[1] as u32,
            flags: (words[1] >> 32) as u16,
        };
        if words[1] >> 48 != 0 || descriptor.flags & !allowed != 0 {
            return Err(Violation::Flags);
        }
        if descriptor.flags & EXPEDITED != 0
            && (descriptor.flags != EXPEDITED || descriptor.len > EXPEDITED_BYTES)
        {
            return Err(Violation::Flags);
        }
        if descriptor.flags & OUT_OF_BAND != 0
            && (descriptor.flags != OUT_OF_BAND || descriptor.len != MESSAGE_BYTES)
        {
            return Err(Violation::Flags);
        }
        if descriptor.flags & REQUEST != 0
            && (descriptor.flags & !TOGETHER != REQUEST || descriptor.len != MESSAGE_BYTES)
        {
            return Err(Violation::Flags);
        }
        if descriptor.buffer >= pool.buffers {
            return Err(Violation::Buffer);
        }
        // Both are below 2^20, so the sum cannot wrap.
        if descriptor.len == 0 || descriptor.start + descriptor.len > pool.frame_bytes {
            return Err(Violation::Range);
        }
        Ok(descriptor)
    }

    /// `true` if the data of `next` directly follows this descriptor's data in the pool.
    #[inline]
    #[must_use]
    pub fn is_followed_by(&self, next: &Descriptor, pool: &PoolShape) -> bool {
        next.start == 0
            && next.buffer == self.buffer + 1
            && self.start + self.len == pool.frame_bytes
    }

    /// `true` if the packet continues in the next descriptor.
    #[inline]
    #[must_use]
    pub fn has_next(&self) -> bool {
        self.flags & MORE != 0
    }

    /// Returns where the data starts in the pool, in bytes.
    #[inline]
    #[must_use]
    pub fn pool_offset(&self, pool: &PoolShape) -> usize {
        pool.buffer_offset(self.buffer) + self.start as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_band_messages_have_one_length_and_no_other_flag() {
        let pool = PoolShape::new(4, 2048).unwrap();
        let check = |len, flags, allowed| {
            let one = Descriptor { buffer: 1, start: HEADROOM_BYTES, len, endpoint: 0, flags };
            Descriptor::check(one.to_words(), &pool, allowed).err()
        };
        let all = MORE | META | TOGETHER | EXPEDITED | OUT_OF_BAND;
        assert_eq!(check(MESSAGE_BYTES, OUT_OF_BAND, all), None);
        for other in [MORE, META, TOGETHER, EXPEDITED] {
            let flags = OUT_OF_BAND | other;
            assert_eq!(check(MESSAGE_BYTES, flags, all), Some(Violation::Flags));
        }
        for len in [1, MESSAGE_BYTES - 1, MESSAGE_BYTES + 1] {
            assert_eq!(check(len, OUT_OF_BAND, all), Some(Violation::Flags));
        }
        let others = all & !OUT_OF_BAND;
        assert_eq!(check(MESSAGE_BYTES, OUT_OF_BAND, others), Some(Violation::Flags));
        let all = all | REQUEST;
        for flags in [REQUEST, REQUEST | TOGETHER] {
            assert_eq!(check(MESSAGE_BYTES, flags, all), None);
            assert_eq!(check(MESSAGE_BYTES - 1, flags, all), Some(Violation::Flags));
        }
        for other in [MORE, META, EXPEDITED, OUT_OF_BAND] {
            assert_eq!(check(MESSAGE_BYTES, REQUEST | other, all), Some(Violation::Flags));
        }
    }

    #[test]
    fn expedited_packets_are_short_and_have_no_other_flag() {
        let pool = PoolShape::new(4, 2048).unwrap();
        let check = |len, flags| {
            let one = Descriptor { buffer: 1, start: HEADROOM_BYTES, len, endpoint: 0, flags };
            Descriptor::check(one.to_words(), &pool, MORE | META | TOGETHER | EXPEDITED).err()
        };
        assert_eq!(check(EXPEDITED_BYTES, EXPEDITED), None);
        assert_eq!(check(1500, TOGETHER | META), None);
        assert_eq!(check(EXPEDITED_BYTES + 1, EXPEDITED), Some(Violation::Flags));
        for other in [MORE, META, TOGETHER] {
            assert_eq!(check(60, EXPEDITED | other), Some(Violation::Flags));
        }
    }
}
