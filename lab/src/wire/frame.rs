//! A frame on the wire, in memory that the wire uses again.

use towpath_device::virtio::HEADER_BYTES;

/// The largest IP packet of the wire.
pub(super) const MTU_BYTES: usize = 1500;
/// The largest frame: Ethernet header and MTU.
pub(super) const FRAME_BYTES: usize = MTU_BYTES + 14;
/// The memory of a frame. A longer frame of the kernel fills it to the last byte.
const BUFFER_BYTES: usize = HEADER_BYTES + FRAME_BYTES + 1;

/// A frame without its checksum (FCS), behind the header that a TAP puts in front of it.
pub(super) struct Frame {
    bytes: Box<[u8]>,
    len: usize,
}

impl Frame {
    /// Makes an empty frame. Its header is all zeros: no offload.
    pub(super) fn new() -> Frame {
        Frame { bytes: vec![0; BUFFER_BYTES].into(), len: 0 }
    }

    /// Returns the frame's bytes.
    pub(super) fn data(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + self.len]
    }

    /// Makes the frame `len` bytes long, and returns them. `len` is at most [`FRAME_BYTES`].
    pub(super) fn resized(&mut self, len: usize) -> &mut [u8] {
        self.len = len.min(FRAME_BYTES);
        &mut self.bytes[HEADER_BYTES..HEADER_BYTES + self.len]
    }

    /// Copies another frame.
    pub(super) fn copy(&mut self, from: &Frame) {
        self.resized(from.len).copy_from_slice(from.data());
    }

    /// Returns the header and the frame, as a TAP takes them.
    pub(super) fn for_tap(&mut self) -> &[u8] {
        self.bytes[..HEADER_BYTES].fill(0);
        &self.bytes[..HEADER_BYTES + self.len]
    }

    /// Returns the memory into which a TAP puts a header and a frame.
    pub(super) fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Notes how many bytes a TAP put into the memory. Returns `false` for no whole frame.
    pub(super) fn filled(&mut self, bytes: usize) -> bool {
        self.len = bytes.saturating_sub(HEADER_BYTES).min(FRAME_BYTES);
        bytes < BUFFER_BYTES && self.len >= 14
    }

    /// Returns the Ethernet address that the frame is for.
    pub(super) fn destination(&self) -> [u8; 6] {
        std::array::from_fn(|place| self.data().get(place).copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_long_as_it_was_filled() {
        let mut frame = Frame::new();
        frame.memory()[HEADER_BYTES..HEADER_BYTES + 6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        assert!(frame.filled(HEADER_BYTES + 60));
        assert_eq!((frame.data().len(), frame.destination()), (60, [1, 2, 3, 4, 5, 6]));
        let mut copy = Frame::new();
        copy.copy(&frame);
        assert_eq!(copy.for_tap()[HEADER_BYTES..], *frame.data());
        assert!(frame.filled(HEADER_BYTES + FRAME_BYTES), "the largest frame");
        assert!(!frame.filled(HEADER_BYTES + FRAME_BYTES + 1), "a frame beyond the MTU");
        assert!(!frame.filled(HEADER_BYTES + 13) && !frame.filled(3), "less than a header");
        assert_eq!(frame.resized(99_999).len(), FRAME_BYTES);
    }
}
