//! What carries a network's frames.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_stack::{Meta, Offload};

/// The properties of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkInfo {
    /// The Ethernet address to send from.
    pub mac: [u8; 6],
    /// The largest IP packet, in bytes.
    pub mtu: usize,
    /// What the link does to frames that are sent.
    pub offload: Offload,
}

/// Whether the network may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Something came while arming: look again.
    Work,
    /// Nothing is there: the descriptor becomes readable when something is.
    Sleep {
        /// To be watched for writing too: that is how room for frames shows.
        writable: bool,
    },
}

/// Why a link carries nothing any more.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// The other side is gone: the server, the interface.
    #[error("the link is gone: {0}")]
    Gone(Arc<str>),
    /// A call to the kernel failed.
    #[error("the link failed: {0}")]
    Failed(Arc<std::io::Error>),
}

impl From<std::io::Error> for LinkError {
    fn from(error: std::io::Error) -> Self {
        LinkError::Failed(Arc::new(error))
    }
}

/// What carries frames: a session with a driver server, a TAP.
///
/// One thread at a time calls it, under the network's lock for the link. `receive`, `room` and
/// `transmit` are called under the stack's lock too and must not call the kernel; `prepare`,
/// `flush`, `arm` and `disarm` may.
///
/// A turn is: `prepare`, `receive`, any number of `transmit`, `flush`. Before the network sleeps it
/// calls `arm`, afterwards `disarm`.
pub trait Link: Send {
    /// Returns the link's properties, which do not change.
    fn info(&self) -> LinkInfo;

    /// A descriptor to sleep on: readable while there is something to receive and the link is
    /// armed. A copy, since it is slept on while others use the link.
    ///
    /// # Errors
    /// When it cannot be copied.
    fn sleep_fd(&self) -> std::io::Result<OwnedFd>;

    /// Gets what has come, as far as that takes calls to the kernel.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn prepare(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Gives at most `budget` frames that came to `take`, oldest first. How many is the answer.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError>;

    /// Whether a frame of `len` bytes would be taken now. An empty link must say so of the largest
    /// frame that [`LinkInfo::offload`] names.
    fn room(&mut self, len: usize) -> bool;

    /// Takes a frame of `len` bytes, which `fill` writes completely; it is called once, or not at
    /// all when there is no room.
    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Sends the frames taken, or notifies the party that sends them.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Asks to be woken, then looks once more. `blocked`: a frame found no room and waits.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError>;

    /// Ends the sleep: the link need not wake the network any more.
    fn disarm(&mut self) {}
}
