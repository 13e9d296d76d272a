//! A part of a frame that may lie in several pieces.

use crate::format::OVERHEAD_BYTES;

/// The part of a frame's pieces that begins at one byte and has a given length; no piece is empty.
#[derive(Clone, Debug)]
pub struct Pieces<I> {
    from: I,
    skip: usize,
    left: usize,
}

impl<'f, I: Iterator<Item = &'f [u8]>> Pieces<I> {
    /// Returns `len` bytes of the frame after the headers: a fragment's part of its PDU.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// use towpath_pdu::Pieces;
    ///
    /// let frame = frame(1, 0, b"hello");
    /// // The frame lies in two buffers, and the cut is in the PDU.
    /// let parts = [&frame[..44], &frame[44..]];
    /// let part: Vec<_> = Pieces::after_headers(parts.into_iter(), 5).collect();
    /// assert_eq!(part, [&b"he"[..], b"llo"]);
    /// ```
    pub fn after_headers(frame: I, len: usize) -> Pieces<I> {
        Pieces { from: frame, skip: OVERHEAD_BYTES, left: len }
    }
}

impl<'f, I: Iterator<Item = &'f [u8]>> Iterator for Pieces<I> {
    type Item = &'f [u8];

    fn next(&mut self) -> Option<&'f [u8]> {
        while self.left > 0 {
            let piece = self.from.next()?;
            let skipped = self.skip.min(piece.len());
            self.skip -= skipped;
            let piece = &piece[skipped..];
            let piece = &piece[..piece.len().min(self.left)];
            if !piece.is_empty() {
                self.left -= piece.len();
                return Some(piece);
            }
        }
        None
    }
}

/// Returns the headers, and the length of the whole frame; `None` if the frame is shorter than its
/// headers.
pub(crate) fn headers<'f>(
    frame: impl Iterator<Item = &'f [u8]>,
) -> Option<([u8; OVERHEAD_BYTES], usize)> {
    let mut headers = [0; OVERHEAD_BYTES];
    let mut len = 0;
    for piece in frame {
        if len < OVERHEAD_BYTES {
            let here = piece.len().min(OVERHEAD_BYTES - len);
            headers[len..len + here].copy_from_slice(&piece[..here]);
        }
        len += piece.len();
    }
    (len >= OVERHEAD_BYTES).then_some((headers, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_equal_for_every_chunk_size() {
        let frame: Vec<u8> = (0..120).collect();
        for size in 1..=120 {
            let parts = frame.chunks(size);
            let (read, len) = headers(parts.clone()).unwrap();
            assert_eq!((&read[..], len), (&frame[..OVERHEAD_BYTES], 120));
            for len in 0..=78 {
                let pieces = Pieces::after_headers(parts.clone(), len);
                assert!(pieces.clone().all(|piece| !piece.is_empty()));
                let bytes: Vec<u8> = pieces.flatten().copied().collect();
                assert_eq!(bytes, frame[42..42 + len]);
            }
        }
        assert!(headers(frame[..41].chunks(5)).is_none());
        assert!(headers(std::iter::empty()).is_none());
    }
}
