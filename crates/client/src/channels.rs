//! Channels: messages between two applications of one host through memory that both map. The server
//! moves no byte of them, and only wakes.
//!
//! | module | holds |
//! |---|---|
//! | `channel` | a side of a channel, and what it knows of the peer |
//! | `error` | why a channel was not opened, or moved nothing |
//! | `flush` | publication of messages, and the end of a channel |
//! | `message` | sending and receiving |
//! | `offer` | how a channel begins |
//! | `own_part` | what a side has of its own in the server's tables |
//! | `stream` | a channel as a stream of bytes |
//! | `waiting` | waiting for the news of a channel |

mod channel;
mod error;
mod flush;
mod message;
mod offer;
mod own_part;
mod stream;
mod waiting;

pub use channel::Channel;
pub use error::{ChannelError, OpenChannelError};
pub use message::{ReceivedMessage, ReservedMessage};
pub use offer::ChannelOffer;
pub use stream::ChannelStream;
