//! The control connection by hand: messages that no client library would send, and the handshake
//! step by step.
//!
//! Unsafe lives here for `sendmsg` with arbitrary bytes and descriptors.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg,
};
use towpath_memory::SharedFile;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::{Attach, Attached, MAX_BYTES, Message, Open, Refusal, fixed_name};

/// An answer of the server.
#[derive(Debug)]
pub enum Reply {
    /// A message that is no refusal.
    Message(Message, Vec<OwnedFd>),
    /// A refusal.
    Refused(Refusal, String),
    /// The server hung up.
    HungUp,
    /// No answer in the time given.
    Nothing,
}

/// A control connection.
#[derive(Debug)]
pub struct Raw {
    /// The connection.
    pub channel: Channel,
}

/// Returns the request for a small session.
#[must_use]
pub fn attach(name: &str) -> Attach {
    Attach {
        queue_pairs: 1,
        endpoints: 4,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 2048,
        receive_buffer_bytes: 2048,
        name: fixed_name(name),
        ipv4: [0; 4],
        flags: 0,
        apertures: 0,
        tripwires: 0,
    }
}

/// Returns the request for an endpoint that receives every packet to the session's address.
#[must_use]
pub fn open() -> Open {
    Open::default()
}

/// Allocates the memory that the application of a session writes, as the client library does. `files`:
/// the descriptors that came with the session.
///
/// # Errors
/// The kernel's error.
pub fn allocate(files: &[OwnedFd]) -> io::Result<()> {
    for file in files.iter().skip(3).take(2) {
        SharedFile::adopt(file.try_clone()?)?.map_writable()?.allocate()?;
    }
    Ok(())
}

/// Receives an answer of any version: its bytes and descriptors.
///
/// # Errors
/// The kernel's error.
pub fn receive(channel: &Channel) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let count = recvmsg(channel, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    bytes.truncate(count);
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((bytes, rights.flatten().collect()))
}

/// Encodes a message.
#[must_use]
pub fn bytes(message: &Message) -> Vec<u8> {
    message.encode()
}

impl Raw {
    /// Connects, as an administrator if this process may.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn connect(path: &Path) -> io::Result<Raw> {
        let kind = SocketType::SEQPACKET;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let admin = towpath_client::administration_socket(path);
        let address = SocketAddrUnix::new(admin.as_deref().unwrap_or(path))?;
        rustix::net::connect(&socket, &address)?;
        Ok(Raw { channel: Channel::new(socket) })
    }

    /// Sends bytes, with descriptors. Does not wait for room.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let payload = size_of_val(descriptors);
        // SAFETY: arithmetic on a number.
        let space = unsafe { libc::CMSG_SPACE(payload as u32) } as usize;
        let mut control = vec![0_u64; space.div_ceil(8)];
        // SAFETY: numbers and null addresses, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = (&raw const part).cast_mut();
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = space;
            // SAFETY: the control buffer is aligned and as long as CMSG_SPACE says; the numbers
            // written are the descriptors', which are open for as long as they are borrowed.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(payload as u32) as usize;
                let data = libc::CMSG_DATA(header).cast::<i32>();
                for (place, descriptor) in descriptors.iter().enumerate() {
                    data.add(place).write_unaligned(descriptor.as_raw_fd());
                }
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message names live memory, which the kernel only reads.
        let sent =
            unsafe { libc::sendmsg(self.channel.as_fd().as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn say(&self, message: &Message) -> io::Result<()> {
        self.send(&bytes(message), &[])
    }

    /// Waits for an answer, at most this long.
    ///
    /// # Panics
    /// If the answer is no message: then the server is wrong.
    #[must_use]
    pub fn reply(&self, at_most: Duration) -> Reply {
        let timeout = Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let mut polled = [PollFd::new(&self.channel, PollFlags::IN)];
        if poll(&mut polled, Some(&timeout)).unwrap_or(0) == 0 {
            return Reply::Nothing;
        }
        // The kernel reports a hang-up with unread data before the answer.
        let received = match self.channel.receive() {
            Ok(Incoming::End) => self.channel.receive(),
            other => other,
        };
        match received {
            Ok(Incoming::Message(Message::Error(body), _)) => {
                Reply::Refused(body.refusal(), body.text())
            }
            Ok(Incoming::Message(message, descriptors)) => Reply::Message(message, descriptors),
            Ok(Incoming::End | Incoming::Nothing) => Reply::HungUp,
            Err(error) => panic!("the server sent an invalid message: {error}"),
        }
    }

    /// Sends a message and waits for the answer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ask(&self, message: &Message) -> io::Result<Reply> {
        self.say(message)?;
        Ok(self.reply(crate::PATIENCE))
    }

    /// Sends a message of a version of the protocol, and waits for the answer in it.
    ///
    /// # Errors
    /// The kernel's error, or an invalid answer.
    pub fn ask_in(&self, version: u16, message: &Message) -> io::Result<Reply> {
        self.send(&message.encode_for(version), &[])?;
        let (bytes, descriptors) = receive(&self.channel)?;
        let (answer, _) = Message::decode_any(&bytes).map_err(io::Error::other)?;
        Ok(match answer {
            Message::Error(body) => Reply::Refused(body.refusal(), body.text()),
            answer => Reply::Message(answer, descriptors),
        })
    }

    /// Sends bytes and waits for the answer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ask_bytes(&self, bytes: &[u8]) -> io::Result<Reply> {
        self.send(bytes, &[])?;
        Ok(self.reply(crate::PATIENCE))
    }

    /// Requests a session.
    ///
    /// # Errors
    /// An answer other than a session.
    pub fn attach(&self, attach: Attach) -> io::Result<(Attached, Vec<OwnedFd>)> {
        match self.ask(&Message::Attach(attach))? {
            Reply::Message(Message::Attached(attached), descriptors) => Ok((attached, descriptors)),
            other => Err(io::Error::other(format!("attach: {other:?}"))),
        }
    }

    /// Requests a session, allocates its memory, reports it as mapped, and so makes the session live.
    ///
    /// # Errors
    /// Any other answer.
    pub fn live(&self, attach: Attach) -> io::Result<(Attached, Vec<OwnedFd>)> {
        let attached = self.attach(attach)?;
        allocate(&attached.1)?;
        match self.ask(&Message::Mapped)? {
            Reply::Message(Message::Done, _) => Ok(attached),
            other => Err(io::Error::other(format!("mapped: {other:?}"))),
        }
    }
}
