//! The control connection: requests and their answers, each before a deadline.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use towpath_protocol::channel::{Channel, ChannelError, Incoming};
use towpath_protocol::message::{Message, Refusal};

use crate::clock;
use crate::entrance::{administration_socket, is_for_applications};
use crate::error::AttachError;

/// How long an operation waits for the server by default.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The deadline of one operation, for all of its requests together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// `None`: the deadline is beyond the clock's range, and never expires.
    at: Option<Instant>,
    after: Duration,
}

impl Deadline {
    /// Returns the deadline of an operation that begins now.
    pub(crate) fn after(after: Duration) -> Deadline {
        Deadline { at: clock::now().checked_add(after), after }
    }

    /// Returns `true` if more than this time is left.
    pub(crate) fn is_after(&self, time: Duration) -> bool {
        self.left().is_none_or(|left| left > time)
    }

    /// Returns the time left, which is zero when the deadline has passed.
    fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(clock::now()))
    }
}

/// Connects to a server, by the path of its applications' socket. An administrator connects to the administration
/// socket, if there is one. If the server accepts no connection, the caller waits until the deadline.
pub(crate) fn connect(path: &Path, deadline: Deadline) -> Result<OwnedFd, AttachError> {
    if let Some(admin) = administration_socket(path) {
        match connect_to(&admin, deadline) {
            Err(AttachError::NoServer { cause, .. }) if is_for_applications(&cause) => {}
            other => return other,
        }
    }
    connect_to(path, deadline)
}

/// Connects to one socket.
fn connect_to(path: &Path, deadline: Deadline) -> Result<OwnedFd, AttachError> {
    let failed = |cause: io::Error| AttachError::NoServer { path: path.to_owned(), cause };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    loop {
        // The kernel applies this timeout while the server's queue of connections is full. Zero would
        // mean no limit. A signal ends the wait, and the next one has the time that is left.
        if let Some(left) = deadline.left() {
            let left = left.max(Duration::from_millis(1));
            set_socket_timeout(&socket, Timeout::Send, Some(left))
                .map_err(|error| failed(error.into()))?;
        }
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) if deadline.left() != Some(Duration::ZERO) => {}
            Err(Errno::AGAIN | Errno::INTR) => {
                return Err(AttachError::NoAnswer {
                    path: Some(path.to_owned()),
                    after: deadline.after,
                });
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// The outcome of a request.
pub(crate) enum Answer {
    Message(Message, Vec<OwnedFd>),
    Refused(Refusal, String),
    HungUp,
    /// No answer came within this time, and the client shut the connection down.
    Missing(Duration),
    Wrong(String),
}

/// Sends a request, and waits for the answer until the deadline. If none has come by then, shuts
/// the connection down: the client would take a late answer for that of the next request.
pub(crate) fn ask(channel: &Channel, message: &Message, deadline: Deadline) -> Answer {
    match channel.send(message, &[]) {
        Ok(()) => {}
        // The server may have sent a refusal before it hung up, which the client reads below.
        Err(ChannelError::Socket(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(ChannelError::Socket(error)) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Answer::Wrong(error.to_string()),
    }
    // A server that hung up before it read the request leaves an error on the socket. The kernel
    // reports that error first. The second receive returns the server's refusal, with its reason.
    let answer = match receive(channel, deadline) {
        Ok(Some(Incoming::End)) => receive(channel, deadline),
        other => other,
    };
    match answer {
        Ok(Some(Incoming::Message(Message::Error(body), _))) => {
            Answer::Refused(body.refusal(), body.text())
        }
        Ok(Some(Incoming::Message(message, descriptors))) => Answer::Message(message, descriptors),
        Ok(Some(Incoming::End | Incoming::Nothing)) | Err(ChannelError::Socket(_)) => {
            Answer::HungUp
        }
        Ok(None) => {
            // This fails only when the connection is down already.
            let _ = rustix::net::shutdown(channel, Shutdown::Both);
            Answer::Missing(deadline.after)
        }
        Err(error) => Answer::Wrong(error.to_string()),
    }
}

/// Receives a message; `None` when the deadline passes first.
fn receive(channel: &Channel, deadline: Deadline) -> Result<Option<Incoming>, ChannelError> {
    loop {
        let left = deadline.left();
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(channel, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Ok(None),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return channel.receive().map(Some),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Answer {
    /// Returns the error of a session that attaches for an unexpected answer.
    pub(crate) fn into_attach_error(self) -> AttachError {
        match self {
            Answer::Refused(Refusal::Version, text) => AttachError::Protocol(text),
            Answer::Refused(refusal, text) => AttachError::Refused { refusal, text },
            Answer::HungUp => AttachError::HungUp,
            Answer::Missing(after) => AttachError::NoAnswer { path: None, after },
            Answer::Wrong(text) => AttachError::Protocol(text),
            Answer::Message(..) => {
                AttachError::Protocol("the server answered with another message".into())
            }
        }
    }
}
