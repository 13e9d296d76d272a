//! The errors of each operation, and the caller's remedies.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use towpath_queue::Violation;

pub use towpath_protocol::message::Refusal;

/// The session is over. Nothing on it works any more; attach again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The server ended, or was killed.
    #[error("the driver server is gone; attach again when it runs")]
    ServerGone,
    /// The server closed the session because of a violation by this application.
    #[error("the driver server closed the session: {0}")]
    Violated(Violation),
    /// The server wrote an impossible value; the client does not rely on the session's memory any
    /// more.
    #[error("the driver server has gone wrong: {0}")]
    ServerWrong(Violation),
    /// The server did not answer a request in time ([`crate::Options::answer_timeout`]). The
    /// session is over, since a late answer could be taken for another request's.
    #[error(
        "the driver server did not answer within {after:?}, and the session is over; attach again \
         when the server's process runs, or allow a longer Options::answer_timeout"
    )]
    NoAnswer {
        /// How long the session waited.
        after: Duration,
    },
    /// This is a child made by `fork`: the session is its parent's.
    #[error("this process was forked; the session is its parent's, attach one of your own")]
    Forked,
}

/// Why attaching failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No server listens there.
    #[error(
        "{path}: {cause}; start a server with `towpath serve`, or give the path of a running one's socket"
    )]
    NoServer {
        /// The socket's path.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The server refused.
    #[error("{text}")]
    Refused {
        /// The kind of refusal.
        refusal: Refusal,
        /// The server's text.
        text: String,
    },
    /// The server speaks another version, or not this protocol at all.
    #[error("{0}")]
    Protocol(String),
    /// The server ended meanwhile.
    #[error("the driver server hung up while this application attached")]
    HungUp,
    /// The server did not answer in time ([`crate::Options::answer_timeout`]): it is stopped, or
    /// does not accept connections. As far as the caller knows, the server attached, reported and
    /// set nothing; a server that goes on later may still follow the request.
    #[error(
        "{}the driver server did not answer within {after:?}; see whether its process is stopped, \
         and try again or restart it",
        prefix(.path)
    )]
    NoAnswer {
        /// The server's socket, where the caller named it.
        path: Option<PathBuf>,
        /// How long the caller waited.
        after: Duration,
    },
    /// Memory could not be mapped.
    #[error("mapping the session's memory: {0}")]
    Memory(#[from] io::Error),
}

/// Returns the text before an error about the server at `path`.
fn prefix(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(String::new, |path| format!("{}: ", path.display()))
}

impl AttachError {
    /// Names the server's socket in an error that has no path.
    pub(crate) fn at(self, path: &Path) -> AttachError {
        match self {
            AttachError::NoAnswer { path: None, after } => {
                AttachError::NoAnswer { path: Some(path.to_owned()), after }
            }
            other => other,
        }
    }
}

/// Why an endpoint could not be opened or closed, or a setting or the way of waiting changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server refused, or the client refused an impossible request.
    #[error("{text}")]
    Refused {
        /// The kind of refusal.
        refusal: Refusal,
        /// The text of the refusal.
        text: String,
    },
    /// The session is over.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why a packet was not put into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue is full: wait for room ([`crate::Session::want_room`]), or drop the packet.
    #[error("the transmit queue is full")]
    Full,
    /// The packet has no bytes, or more than any chain of buffers of this session holds.
    #[error("a packet of {len} bytes; 1 to {max} are possible in this session")]
    Length {
        /// Its length.
        len: usize,
        /// The longest allowed length.
        max: usize,
    },
    /// The endpoint belongs to another session: this one has no such queue pair.
    #[error(
        "an endpoint of queue set {queue_pair}, and this session has {queue_pairs}: it is another's"
    )]
    NoQueuePair {
        /// The endpoint's queue pair.
        queue_pair: u32,
        /// How many there are.
        queue_pairs: u32,
    },
    /// The buffer is not reserved: it was sent or released, or belongs to another session.
    #[error("a frame that is not reserved in this session: it was sent, released, or another's")]
    NotReserved,
    /// The session is over.
    #[error(transparent)]
    Lost(#[from] Lost),
}
