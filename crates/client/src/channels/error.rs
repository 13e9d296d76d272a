//! The errors of channels, with the caller's remedies.

use std::io;

use towpath_queue::Violation;

use crate::error::{Lost, OpenError};

/// The reason why an application could not send or receive in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// There is no room for the message: wait ([`crate::Channel::wait`]).
    #[error("the channel has no room now; wait with Channel::wait, and send again")]
    Full,
    /// The message is longer than the peer's ring can ever hold.
    #[error(
        "a message of {len} bytes, and the peer's ring holds at most {max}; send it in parts, or have \
         the peer offer a longer ring"
    )]
    TooLong {
        /// The length in bytes.
        len: usize,
        /// The longest possible length.
        max: usize,
    },
    /// The peer sends no more, and all of its messages are received; or this side has finished, and
    /// can send no more.
    #[error(
        "this side or the peer has finished sending in this direction; open another channel to send \
         more"
    )]
    Finished,
    /// The peer closed the channel, or the connection ended.
    #[error("the peer closed the channel, or its connection ended; close it, and open another one")]
    Closed,
    /// The peer's session has ended.
    #[error("the application at the other end has ended; close the channel")]
    Gone,
    /// The peer wrote into this side's memory what no sender writes. Nothing more can be received
    /// or sent.
    #[error("the peer broke the channel's protocol ({0}); close the channel")]
    Violated(Violation),
    /// This process is a child made by `fork`.
    #[error(
        "this process was forked, and the channel belongs to its parent; attach a session in this \
         process"
    )]
    Forked,
}

impl From<ChannelError> for io::Error {
    fn from(error: ChannelError) -> io::Error {
        let kind = match error {
            ChannelError::Full => io::ErrorKind::WouldBlock,
            ChannelError::TooLong { .. } => io::ErrorKind::InvalidInput,
            ChannelError::Finished => io::ErrorKind::BrokenPipe,
            ChannelError::Closed | ChannelError::Gone => io::ErrorKind::ConnectionReset,
            ChannelError::Violated(_) => io::ErrorKind::InvalidData,
            ChannelError::Forked => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// The reason why an application could not open a channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenChannelError {
    /// No ring has this length.
    #[error("a ring of {0} bytes; a power of two from 64 to 2^29 is possible")]
    RingBytes(usize),
    /// The ring does not lie in the memory, or does not begin at a multiple of 128 bytes.
    #[error(
        "a ring takes {len} bytes from byte {offset} on, but the memory has {bytes}; choose an offset \
         that is a multiple of 128, with the ring inside of the memory"
    )]
    Place {
        /// Where the ring would begin, in bytes.
        offset: usize,
        /// How many bytes it takes.
        len: usize,
        /// The length of the memory, in bytes.
        bytes: usize,
    },
    /// The memory is not one that the peer maps for writing.
    #[error("the memory of a channel has Sharing::MapWrite; create another one")]
    Sharing,
    /// What the peer offered holds no ring, or cannot be written.
    #[error(
        "the peer offered no ring that this side can write; the peer must use Channel::open or \
         ChannelOffer"
    )]
    Offer,
    /// The peer's offer came from another host, whose memory cannot be mapped. Until its offer comes,
    /// opening a channel waits as with any peer.
    #[error(
        "the peer is on another host, whose memory cannot be mapped; use requests and out-of-band \
         messages"
    )]
    OtherHost,
    /// The endpoint's transmit queue has no room for the offer.
    #[error(
        "the endpoint's transmit queue has no room for the offer; flush, wait for room, and open the \
         channel again"
    )]
    Full,
    /// The connection ended.
    #[error("the connection ended; connect again, and open another channel")]
    Closed,
    /// The peer made no offer in time.
    #[error("the peer offered no channel in time; it must open one, too")]
    TimedOut,
    /// The server refused memory, an aperture or a tripwire.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The session is over.
    #[error(transparent)]
    Lost(#[from] Lost),
}
