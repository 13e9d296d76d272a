//! The carrier of a network's frames.

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
    /// The offloads that the link performs on sent frames.
    pub offload: Offload,
}

/// Tells the network whether it may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// A frame arrived while arming: look again.
    Work,
    /// No frame waits: the descriptor becomes readable when one does.
    Sleep {
        /// `true` if the descriptor must be watched for writing too, which shows room for frames.
        writable: bool,
    },
}

/// The reason why a link carries nothing any more.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// The other side is gone: the server, the interface.
    #[error("the link is gone: {0}")]
    Gone(Arc<str>),
    /// A system call failed.
    #[error("the link failed: {0}")]
    Failed(Arc<std::io::Error>),
}

impl From<std::io::Error> for LinkError {
    fn from(error: std::io::Error) -> Self {
        LinkError::Failed(Arc::new(error))
    }
}

/// A carrier of frames: a session with a driver server, or a TAP.
///
/// One thread at a time calls the link, under the network's lock for the link. The network calls
/// `receive`, `room` and `transmit` under the stack's lock too, and they must make no system call;
/// `prepare`, `flush`, `arm` and `disarm` may.
///
/// A turn consists of `prepare`, `receive`, any number of `transmit`, and `flush`. The network
/// calls `arm` before it sleeps, and `disarm` afterwards.
pub trait Link: Send {
    /// Returns the link's properties, which do not change.
    fn info(&self) -> LinkInfo;

    /// Returns a descriptor to sleep on: readable while there is something to receive and the link
    /// is armed. It is a copy, since one thread sleeps on it while others use the link.
    ///
    /// # Errors
    /// When it cannot be copied.
    fn sleep_fd(&self) -> std::io::Result<OwnedFd>;

    /// Fetches received frames, as far as that takes system calls.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn prepare(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Passes at most `budget` received frames to `take`, oldest first. Returns their number.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError>;

    /// Returns `true` if the link would take a frame of `len` bytes now. An empty link must return
    /// `true` for the largest frame that [`LinkInfo::offload`] names.
    fn room(&mut self, len: usize) -> bool;

    /// Takes a frame of `len` bytes, which `fill` writes completely. The link calls `fill` once, or
    /// not at all when it has no room.
    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Sends the frames taken, or notifies the party that sends them.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Requests a wake-up, then looks once more. `blocked`: a frame found no room and waits.
    ///
    /// # Errors
    /// When the link carries nothing any more.
    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError>;

    /// Ends the sleep: the link need not wake the network any more.
    fn disarm(&mut self) {}
}
