//! The destination of sent frames.

use crate::Meta;

/// Takes the frames that a [`Stack`](crate::Stack) sends.
pub trait Transmit {
    /// Returns `true` if a frame of `len` bytes, Ethernet header included, would be taken now. A
    /// stack asks before it lets TCP make a segment, since a refused segment counts as lost.
    fn room(&mut self, len: usize) -> bool;

    /// Sends a frame of `len` bytes, which `fill` writes completely. `false` when there is no room
    /// now: `fill` was not called then, and the stack tries again at its next poll.
    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool;
}
