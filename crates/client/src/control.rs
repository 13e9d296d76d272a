//! The control connection: requests and their answers.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use towpath_protocol::channel::{Channel, ChannelError, Incoming};
use towpath_protocol::message::{Message, Refusal};

use crate::error::AttachError;

/// Connects to a server's socket.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, AttachError> {
    let failed = |cause: io::Error| AttachError::NoServer { path: path.to_owned(), cause };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::connect(&socket, &address).map_err(|error| failed(error.into()))?;
    Ok(socket)
}

/// What a request came to.
pub(crate) enum Answer {
    Message(Message, Vec<OwnedFd>),
    Refused(Refusal, String),
    HungUp,
    Wrong(String),
}

/// Asks, and waits for the answer.
pub(crate) fn ask(channel: &Channel, message: &Message) -> Answer {
    match channel.send(message, &[]) {
        Ok(()) => {}
        // The refusal that came before the hang-up is worth reading.
        Err(ChannelError::Socket(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(ChannelError::Socket(error)) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Answer::Wrong(error.to_string()),
    }
    // A server that hung up before it read what we sent leaves an error on the socket, which is told
    // before what it said: its refusal, with the reason, comes with the second look.
    let answer = match channel.receive() {
        Ok(Incoming::End) => channel.receive(),
        other => other,
    };
    match answer {
        Ok(Incoming::Message(Message::Error(body), _)) => {
            Answer::Refused(body.refusal(), body.text())
        }
        Ok(Incoming::Message(message, descriptors)) => Answer::Message(message, descriptors),
        Ok(Incoming::End | Incoming::Nothing) => Answer::HungUp,
        Err(ChannelError::Socket(_)) => Answer::HungUp,
        Err(error) => Answer::Wrong(error.to_string()),
    }
}

impl Answer {
    /// What an answer that is not the expected one means to somebody who attaches.
    pub(crate) fn into_attach_error(self) -> AttachError {
        match self {
            Answer::Refused(Refusal::Version, text) => AttachError::Protocol(text),
            Answer::Refused(refusal, text) => AttachError::Refused { refusal, text },
            Answer::HungUp => AttachError::HungUp,
            Answer::Wrong(text) => AttachError::Protocol(text),
            Answer::Message(..) => {
                AttachError::Protocol("the server answered with another message".into())
            }
        }
    }
}
