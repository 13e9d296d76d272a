//! What a queue holds: 16 bytes that say where a frame's data is.
//!
//! ```text
//! word 0   0..24 frame   24..44 start   44..64 length    (start and length in bytes)
//! word 1   0..32 endpoint   32..48 flags   48..64 zero
//! ```
//! A frame is named by its number and not by its offset in the heap: the check is then three
//! comparisons for any distance between frames, without a division.

use crate::Violation;

/// The most frames that a packet may consist of: a 64 KiB segment in frames of 2 KiB, and room
/// for frames that are not full.
pub const MAX_CHAIN: usize = 48;

/// The largest packet, in bytes: an IP packet of 64 KiB with its Ethernet and VLAN header.
pub const MAX_PACKET_BYTES: usize = 65_535 + 18;

/// Bytes at the start of each frame that hold metadata, and that make the distance between
/// frames an odd number of cache line pairs, so that headers do not all fall into the same sets.
pub const HEADROOM_BYTES: u32 = 128;

/// How many packets ahead of one of `len` bytes the frame for the next one like it is brought near,
/// for whoever knows which frame that will be: so that some two kilobytes are on their way.
#[inline]
#[must_use]
pub const fn prefetch_distance(len: usize) -> u32 {
    if len <= 256 { 8 } else { 2 }
}

/// The packet goes on in the next descriptor.
pub const MORE: u16 = 1;
/// The frame's headroom holds metadata.
pub const META: u16 = 2;
/// The packet was captured on its way out (only on capture endpoints, only from the server).
pub const OUTGOING: u16 = 4;
/// The packet that follows in the queue belongs to the same message: on the device nothing comes
/// between the two, up to a limit that the server sets (only to the server, on a packet's last
/// descriptor). "Several requests as one logical message" of Riddoch and Pope.
pub const TOGETHER: u16 = 8;
/// A packet of one frame and at most [`SMALL_BYTES`] that goes past others (only to the server,
/// with no other flag). Tracey and Banerji's tiny messages, section 3.4.
pub const SMALL: u16 = 16;
/// The longest packet that may be [`SMALL`], in bytes: packets that go past all others must be little work.
pub const SMALL_BYTES: u32 = 128;

/// A heap's shape: how many frames and how far apart. Private to each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapShape {
    frames: u32,
    frame_bytes: u32,
}

impl HeapShape {
    /// The most frames of a heap.
    pub const MAX_FRAMES: u32 = 1 << 24;
    /// The largest frame, in bytes.
    pub const MAX_FRAME_BYTES: u32 = 1 << 18;

    /// A heap of `frames` frames that hold `data_bytes` each. The frame's size is that and the
    /// headroom, rounded up to an odd number of 128-byte line pairs.
    ///
    /// `None` when there are no frames, or too many or too large ones.
    #[must_use]
    pub const fn new(frames: u32, data_bytes: u32) -> Option<HeapShape> {
        if frames == 0 || frames > Self::MAX_FRAMES || data_bytes == 0 {
            return None;
        }
        if data_bytes > Self::MAX_FRAME_BYTES - 2 * HEADROOM_BYTES {
            return None;
        }
        let pairs = (data_bytes + HEADROOM_BYTES).div_ceil(128) | 1;
        Some(HeapShape { frames, frame_bytes: pairs * 128 })
    }

    /// How many frames.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    /// The distance from one frame to the next, in bytes.
    #[must_use]
    pub const fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// How many data bytes a frame holds.
    #[must_use]
    pub const fn data_bytes(&self) -> u32 {
        self.frame_bytes - HEADROOM_BYTES
    }

    /// Bytes of the whole heap.
    #[must_use]
    pub const fn heap_bytes(&self) -> usize {
        self.frames as usize * self.frame_bytes as usize
    }

    /// Where a frame starts in the heap, in bytes.
    #[must_use]
    pub const fn frame_offset(&self, frame: u32) -> usize {
        frame as usize * self.frame_bytes as usize
    }
}

/// A descriptor in private memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The frame's number in its heap.
    pub frame: u32,
    /// Where in the frame its data starts, in bytes; at least [`HEADROOM_BYTES`].
    pub start: u32,
    /// How many bytes.
    pub len: u32,
    /// Whose it is: on transmit the sender, on receive the one it was found for.
    pub endpoint: u32,
    /// [`MORE`], [`META`], [`OUTGOING`], [`TOGETHER`], [`SMALL`].
    pub flags: u16,
}

impl Descriptor {
    /// The two words.
    #[inline]
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.frame) | u64::from(self.start) << 24 | u64::from(self.len) << 44,
            u64::from(self.endpoint) | u64::from(self.flags) << 32,
        ]
    }

    /// What two fetched words mean, if they mean something inside of the heap.
    ///
    /// # Errors
    /// The check that failed.
    #[inline]
    pub fn check(words: [u64; 2], heap: &HeapShape, allowed: u16) -> Result<Descriptor, Violation> {
        let descriptor = Descriptor {
            frame: (words[0] & 0xff_ffff) as u32,
            start: (words[0] >> 24 & 0xf_ffff) as u32,
            len: (words[0] >> 44) as u32,
            endpoint: words[1] as u32,
            flags: (words[1] >> 32) as u16,
        };
        if words[1] >> 48 != 0 || descriptor.flags & !allowed != 0 {
            return Err(Violation::Flags);
        }
        if descriptor.flags & SMALL != 0
            && (descriptor.flags != SMALL || descriptor.len > SMALL_BYTES)
        {
            return Err(Violation::Flags);
        }
        if descriptor.frame >= heap.frames {
            return Err(Violation::Frame);
        }
        // Both are below 2^20, so the sum cannot wrap.
        if descriptor.start < HEADROOM_BYTES
            || descriptor.len == 0
            || descriptor.start + descriptor.len > heap.frame_bytes
        {
            return Err(Violation::Range);
        }
        Ok(descriptor)
    }

    /// Whether the packet goes on in the next descriptor.
    #[inline]
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.flags & MORE != 0
    }

    /// Where the data starts in the heap, in bytes.
    #[inline]
    #[must_use]
    pub fn heap_offset(&self, heap: &HeapShape) -> usize {
        heap.frame_offset(self.frame) + self.start as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_is_one_short_frame_and_nothing_else() {
        let heap = HeapShape::new(4, 2048).unwrap();
        let check = |len, flags| {
            let one = Descriptor { frame: 1, start: HEADROOM_BYTES, len, endpoint: 0, flags };
            Descriptor::check(one.to_words(), &heap, MORE | META | TOGETHER | SMALL).err()
        };
        assert_eq!(check(SMALL_BYTES, SMALL), None);
        assert_eq!(check(1500, TOGETHER | META), None);
        assert_eq!(check(SMALL_BYTES + 1, SMALL), Some(Violation::Flags));
        for other in [MORE, META, TOGETHER] {
            assert_eq!(check(60, SMALL | other), Some(Violation::Flags));
        }
    }
}
