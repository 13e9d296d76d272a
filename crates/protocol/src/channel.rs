//! A socket that carries messages, each with a few descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::message::{MAX_BYTES, MAX_DESCRIPTORS, Message, MessageError};

/// A connected `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// The result of receiving.
#[derive(Debug)]
pub enum Incoming {
    /// A message and its descriptors.
    Message(Message, Vec<OwnedFd>),
    /// The peer closed its end.
    End,
    /// There is no message (only on a nonblocking socket).
    Nothing,
}

/// The reason why no message was received or sent.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The socket failed.
    #[error("control connection: {0}")]
    Socket(#[from] io::Error),
    /// The received bytes are no message.
    #[error("control connection: {0}")]
    Message(#[from] MessageError),
    /// More bytes or descriptors than any message has.
    #[error("control connection: a message is too long, or has too many descriptors")]
    TooLong,
}

impl From<rustix::io::Errno> for ChannelError {
    fn from(error: rustix::io::Errno) -> ChannelError {
        ChannelError::Socket(error.into())
    }
}

impl Channel {
    /// Creates a channel over a connected socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    /// Sends one message. The call never waits for the peer: if the peer does not read, the caller
    /// gets `EAGAIN` and closes the channel.
    ///
    /// # Errors
    /// The socket's error.
    pub fn send(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.send_bytes(&message.encode(), descriptors)
    }

    /// Sends a message that was encoded before.
    ///
    /// # Errors
    /// The socket's error.
    pub fn send_bytes(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::TooLong);
        }
        loop {
            match sendmsg(
                &self.socket,
                &[IoSlice::new(bytes)],
                &mut control,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Receives one message; waits for it if the socket is blocking.
    ///
    /// # Errors
    /// [`ChannelError`]. Descriptors that came with a bad message are closed.
    pub fn receive(&self) -> Result<Incoming, ChannelError> {
        let mut bytes = vec![0; MAX_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(Incoming::Nothing),
                Err(rustix::io::Errno::CONNRESET) => return Ok(Incoming::End),
                Err(error) => return Err(error.into()),
                Ok(received) => break received,
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(Incoming::End);
        }
        // The space for an odd number of descriptors, rounded up, has room for one more.
        if received.bytes > MAX_BYTES
            || descriptors.len() > MAX_DESCRIPTORS
            || received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(ChannelError::TooLong);
        }
        Ok(Incoming::Message(Message::decode(&bytes[..received.bytes])?, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Opened;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Channel, Channel) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        (Channel::new(a), Channel::new(b))
    }

    #[test]
    fn a_message_and_its_descriptors() {
        let (a, b) = pair();
        let (read, write) = rustix::pipe::pipe().unwrap();
        a.send(&Message::Opened(Opened { endpoint: 4, port: 0 }), &[write.as_fd(), read.as_fd()])
            .unwrap();
        let Incoming::Message(message, descriptors) = b.receive().unwrap() else { panic!() };
        assert_eq!(message, Message::Opened(Opened { endpoint: 4, port: 0 }));
        rustix::io::write(&descriptors[0], b"x").unwrap();
        let mut byte = [0];
        rustix::io::read(&read, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
        drop(a);
        assert!(matches!(b.receive().unwrap(), Incoming::End));
    }

    #[test]
    fn bad_messages_are_errors() {
        let (a, b) = pair();
        rustix::net::send(&a, b"hello", SendFlags::empty()).unwrap();
        assert!(matches!(b.receive(), Err(ChannelError::Message(MessageError::Magic))));
        rustix::net::send(&a, &[0; MAX_BYTES + 1], SendFlags::empty()).unwrap();
        assert!(matches!(b.receive(), Err(ChannelError::TooLong)));
        // More descriptors than any message has: the channel refuses them, and none of them leaks.
        let bytes = Message::Done.encode();
        for count in [MAX_DESCRIPTORS + 1, MAX_DESCRIPTORS + 2, 20] {
            let (read, write) = rustix::pipe::pipe().unwrap();
            let many: Vec<_> = (0..count).map(|_| read.as_fd()).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            let message = [IoSlice::new(&bytes)];
            sendmsg(&a, &message, &mut control, SendFlags::empty()).unwrap();
            assert!(matches!(b.receive(), Err(ChannelError::TooLong)), "{count} descriptors");
            drop(many);
            drop(read);
            // No read end is left anywhere.
            assert_eq!(rustix::io::write(&write, b"x"), Err(rustix::io::Errno::PIPE));
        }
    }

    #[test]
    fn a_peer_that_never_reads_does_not_block_us() {
        let (a, _b) = pair();
        let mut sent = 0;
        while a.send(&Message::Done, &[]).is_ok() {
            sent += 1;
            assert!(sent < 1_000_000, "never full");
        }
    }
}
