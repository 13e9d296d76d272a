//! The destination of sent frames.

use crate::Meta;

/// The link, which takes the frames that a [`Stack`](crate::Stack) sends.
pub trait Transmit {
    /// Returns `true` if the link has room for a frame of `len` bytes, Ethernet header included. A
    /// stack calls this before TCP makes a segment, since a refused segment counts as lost.
    fn room(&mut self, len: usize) -> bool;

    /// Sends a frame of `len` bytes, which `fill` writes completely. Returns `false` if the link
    /// has no room: then `fill` was not called, and the stack tries again at its next poll.
    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool;
}
