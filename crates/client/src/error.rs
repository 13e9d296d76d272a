//! The errors of each operation, with the caller's remedies.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use towpath_queue::Violation;

use crate::ids::QueuePair;

pub use towpath_protocol::message::Refusal;

/// The session is over. All further calls on it fail; attach again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The server, or its worker process for this user, ended, and no server resumed the session
    /// within `Options::resume_timeout`.
    #[error(
        "the connection to the driver server ended (the server, or its worker process for this \
         user), and no server resumed the session: attach again"
    )]
    ServerGone,
    /// The server closed the session because of a violation by this application.
    #[error("the driver server closed the session: {0}")]
    Violated(Violation),
    /// The server's policy changed, and does not grant the session any more.
    #[error(
        "the driver server closed the session, because its policy changed; ask the administrator \
         for a grant, and attach again"
    )]
    Revoked,
    /// The host lost the address that the session shared.
    #[error(
        "the driver server closed the session, because the host lost the address that the session \
         shared; attach again when the interface has one"
    )]
    AddressGone,
    /// The session had a hardware queue to itself, and that stopped working.
    #[error(
        "the driver server closed the session, because its hardware queue sent nothing any more, \
         not even after a reset; attach again, without Options::own_queue if it happens again"
    )]
    QueueBroke,
    /// Two servers crashed or hung while they served the session, so the next one does not resume
    /// it.
    #[error(
        "the driver server does not resume the session, because two servers crashed or hung while they \
         served it; tell the administrator, whose log says more, and attach again"
    )]
    ServersCrashed,
    /// The server wrote an impossible value, so the client no longer relies on the session's
    /// memory.
    #[error("the driver server broke the protocol: {0}")]
    ServerWrong(Violation),
    /// The server did not answer a request in time ([`crate::Options::answer_timeout`]). The
    /// session is over, since the client could take a late answer for another request's.
    #[error(
        "the driver server did not answer within {after:?}, and the session is over; attach again \
         when the server's process runs, or allow a longer Options::answer_timeout"
    )]
    NoAnswer {
        /// How long the session waited.
        after: Duration,
    },
    /// This process is a child made by `fork`: the session belongs to its parent.
    #[error("this process was forked, and the session belongs to its parent; attach a new session")]
    Forked,
}

/// The reason why the client could not attach.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No server listens at the path.
    #[error("{path}: {cause}; {}", remedy(.cause))]
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
    /// The server speaks another version of the protocol, or another protocol.
    #[error("{0}")]
    Protocol(String),
    /// The server closed the connection before the session was attached: the server or its worker process for this
    /// user ended, or too many connections wait for admission. [`Session::attach`](crate::Session::attach) returns this
    /// error after six attempts.
    #[error(
        "the driver server hung up while this application attached; see in its log whether it ended or has too many \
         waiting connections, then attach again"
    )]
    HungUp,
    /// The server did not answer in time ([`crate::Options::answer_timeout`]): its process is
    /// stopped, or accepts no connections. The caller assumes that the server attached, reported
    /// and set nothing. A server that continues later may still carry the request out.
    #[error(
        "{}the driver server did not answer within {after:?}; see whether its process is stopped, \
         or whether its keeper's log says why none serves, and try again or restart it",
        prefix(.path)
    )]
    NoAnswer {
        /// The server's socket, where the caller named it.
        path: Option<PathBuf>,
        /// How long the caller waited.
        after: Duration,
    },
    /// Descriptors for the wait for another server could not be made.
    #[error(
        "making the descriptors to wait for a server: {0}; raise the limit of open files (ulimit -n), \
         or set Options::resume_timeout to zero"
    )]
    Descriptors(#[source] io::Error),
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

/// The reason why the session could not open or close an endpoint, or change a setting or its wait
/// strategy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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

/// The reason why an application could not access a memory or an aperture. Nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The range is not inside, or a word does not begin at a multiple of 8 bytes.
    #[error(
        "{len} bytes from byte {offset} on do not lie in the {bytes} bytes, or the word is not aligned to 8 bytes"
    )]
    Range {
        /// Where the range begins, in bytes.
        offset: usize,
        /// Its length, in bytes.
        len: usize,
        /// The length of the memory or aperture, in bytes.
        bytes: usize,
    },
    /// The aperture's rights, or its memory's sharing, do not include this access.
    #[error("the aperture is not exported for this access; ask its owner for another one")]
    Rights,
    /// The aperture's memory is not mapped: it is for requests alone.
    #[error("the aperture is for requests alone; its owner can create memory that importers map")]
    NotMapped,
    /// The owner revoked the aperture.
    #[error("the owner revoked the aperture; release it")]
    Revoked,
    /// The connection that the aperture was for is closed.
    #[error("the aperture's connection is closed; release it, and connect again for another one")]
    Closed,
    /// The session at the other end of the connection has ended.
    #[error("the application at the other end has ended; release the aperture")]
    Gone,
    /// This process is a child made by `fork`.
    #[error(
        "this process was forked, and the memory, aperture or channel belongs to its parent; attach a session \
         in this process"
    )]
    Forked,
}

/// The reason why the client did not queue a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The transmit queue is full: wait for room ([`crate::Sender::want_room`]).
    #[error("the transmit queue is full")]
    Full,
    /// A local range is empty, or not inside of its memory.
    #[error("a local range that is empty, or not inside of its memory")]
    Outside,
    /// The request has no local range, too many, or too many bytes.
    #[error("{count} local ranges; 1 to 6 are possible, and 1 GiB in all")]
    Ranges {
        /// The number of local ranges.
        count: usize,
    },
    /// The message is too long.
    #[error("a message of {len} bytes; 0 to 64 are possible")]
    Message {
        /// The message's length, in bytes.
        len: usize,
    },
    /// The endpoint can make no requests.
    #[error(
        "an endpoint that cannot make requests; attach with Options::apertures, and open it with \
         Rule::out_of_band"
    )]
    NotPossible,
    /// The server closed the endpoint, because its policy changed.
    #[error(
        "the driver server closed the endpoint, because its policy changed; ask the administrator \
         for a grant, and open another endpoint"
    )]
    Revoked,
    /// The session is over.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// The reason why a call that names a queue pair failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// The session has no such queue pair.
    #[error(
        "there is no queue pair {queue_pair}: the session has {queue_pairs}, numbered from 0; use one \
         of these, or attach with more Options::queue_pairs"
    )]
    NoQueuePair {
        /// The queue pair that the caller named.
        queue_pair: QueuePair,
        /// The number of queue pairs of the session.
        queue_pairs: u32,
    },
    /// The session is over.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// The reason why the client did not queue a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The queue is full: wait for room ([`crate::Sender::want_room`]), or drop the packet.
    #[error("the transmit queue is full")]
    Full,
    /// The packet has no bytes, or more than the longest chain of buffers of this session holds.
    #[error("a packet of {len} bytes; 1 to {max} are possible in this session")]
    Length {
        /// The packet's length.
        len: usize,
        /// The longest allowed length.
        max: usize,
    },
    /// The session has no such queue pair: the number is wrong, or the endpoint belongs to another
    /// session.
    #[error(
        "there is no queue pair {queue_pair}: the session has {queue_pairs}, numbered from 0, and the \
         number is wrong or the endpoint belongs to another session"
    )]
    NoQueuePair {
        /// The queue pair.
        queue_pair: QueuePair,
        /// The number of queue pairs of this session.
        queue_pairs: u32,
    },
    /// The server closed the endpoint: its policy changed, or another session took over the flow rule.
    #[error(
        "the driver server closed the endpoint: its policy changed, or another session took over the \
         endpoint's flow rule; ask the administrator for a grant, or use the other session"
    )]
    Revoked,
    /// The payload of an out-of-band message is too long: at most 64 bytes, or 56 of a request.
    #[error("an out-of-band message with {len} bytes of payload; 0 to {max} are possible")]
    Payload {
        /// The payload's length.
        len: usize,
        /// The longest allowed length.
        max: usize,
    },
    /// The endpoint takes and sends no out-of-band messages.
    #[error(
        "an endpoint without out-of-band messages; attach with Options::oob_slots, and open it with \
         Rule::out_of_band"
    )]
    NotOutOfBand,
    /// The endpoint is connected, or waits for an answer.
    #[error(
        "the endpoint has a peer, or waits for an answer; disconnect it first, or use another endpoint"
    )]
    HasPeer,
    /// The buffer belongs to another session.
    #[error("a buffer that another session reserved; send it with the sender of that session")]
    OtherSession,
    /// The session is over.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<QueuePairError> for SendError {
    fn from(error: QueuePairError) -> SendError {
        match error {
            QueuePairError::NoQueuePair { queue_pair, queue_pairs } => {
                SendError::NoQueuePair { queue_pair, queue_pairs }
            }
            QueuePairError::Lost(lost) => SendError::Lost(lost),
        }
    }
}

/// Returns what the user of a program that could not connect can do.
fn remedy(cause: &io::Error) -> &'static str {
    if cause.kind() == io::ErrorKind::PermissionDenied {
        "run the program as root or as the server's user, or let an administrator add this user to \
         the server's allow-user or policy"
    } else {
        "start a server with `towpath serve`, or give the path of a running server's socket"
    }
}

/// Returns the error for memory that the client could not map.
pub(crate) fn not_mapped(error: io::Error) -> OpenError {
    OpenError::Refused { refusal: Refusal::Limit, text: format!("mapping memory: {error}") }
}

/// Returns the error for a wrong answer of the server.
pub(crate) fn wrong_answer() -> OpenError {
    Lost::ServerWrong(Violation::Range).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_socket_is_not_taken_for_a_missing_server() {
        let text = |kind: io::ErrorKind| {
            let path = PathBuf::from("/run/towpath/tap0.sock");
            AttachError::NoServer { path, cause: kind.into() }.to_string()
        };
        let forbidden = text(io::ErrorKind::PermissionDenied);
        assert!(forbidden.starts_with("/run/towpath/tap0.sock: permission denied"), "{forbidden}");
        assert!(forbidden.contains("as root") && forbidden.contains("allow-user"), "{forbidden}");
        assert!(!forbidden.contains("start a server"), "{forbidden}");
        assert!(text(io::ErrorKind::NotFound).contains("start a server"));
    }
}
