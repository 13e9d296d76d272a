//! What the control thread and a worker say to each other: one packet of a private `SOCK_SEQPACKET`
//! socket each, a [`Head`] and, behind it, a control message of an application or for one.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use towpath_protocol::message::MAX_BYTES;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most descriptors in one packet: those of an attached message, and one more.
pub(crate) const MAX_DESCRIPTORS: usize = 8;
/// The largest packet.
pub(crate) const MAX_PACKET_BYTES: usize = size_of::<Head>() + MAX_BYTES;

/// What every packet starts with.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    /// A [`command`] or a [`report`].
    pub(crate) kind: u32,
    /// Must be 0.
    pub(crate) reserved: u32,
    /// The connection's token, where the packet concerns one.
    pub(crate) token: u64,
    /// What the kind says.
    pub(crate) value: u64,
    /// In reports: how many commands the worker has carried out.
    pub(crate) handled: u64,
}

/// What a worker is told.
pub(crate) mod command {
    /// Hear this connection. With its socket and, if there is one, its process. Value: `TIMED`.
    pub(crate) const ADOPT: u32 = 1;
    /// Send the message, with the descriptors. Value: `LAST` and `TIMED`.
    pub(crate) const ANSWER: u32 = 2;
    /// Close the connection.
    pub(crate) const CLOSE_CONNECTION: u32 = 3;
    /// Seal and allocate a session's memory. With its five memory files, in the order of
    /// [`crate::prepare::Files`], and the epoll descriptor that its application notifies. Value: what
    /// the engine's epoll says when that happens.
    pub(crate) const PREPARE_MEMORY: u32 = 4;
    /// Notify through this doorbell when its notification counter changes. Value: the counter's number.
    pub(crate) const OPEN_DOORBELL: u32 = 5;
    /// Close a doorbell: the session is over. With the server's own descriptor of it. Value as above.
    pub(crate) const CLOSE_DOORBELL: u32 = 6;
    /// Close these descriptors of a session that has ended. Where its connection is still there, that
    /// ends, too, and the first descriptor, the server pages, is closed some seconds later. Value:
    /// `WIPE`.
    pub(crate) const DISPOSE: u32 = 7;
    /// Send the message over this socket and close it. With the socket.
    pub(crate) const REFUSE: u32 = 8;

    /// A flag: the peer has a limited time for what it says next.
    pub(crate) const TIMED: u64 = 1;
    /// A flag: the connection is closed behind it.
    pub(crate) const LAST: u64 = 2;
    /// A flag: give the memory of the files back, even if an application keeps them open.
    pub(crate) const WIPE: u64 = 4;
}

/// What a worker says.
pub(crate) mod report {
    /// Commands were carried out.
    pub(crate) const HANDLED: u32 = 1;
    /// A message came in. It is the only one until it is answered. Value: [`VALID`](self::VALID) or what
    /// is wrong with it; then there is no message.
    pub(crate) const MESSAGE: u32 = 2;
    /// The connection has ended and is closed.
    pub(crate) const ENDED: u32 = 3;
    /// A session's memory is sealed and allocated. Value: 0 or the number of the error.
    pub(crate) const MEMORY_READY: u32 = 4;

    /// The message follows.
    pub(crate) const VALID: u64 = 0;
    /// It is too long.
    pub(crate) const TOO_LONG: u64 = 1;
    /// Descriptors came with it.
    pub(crate) const DESCRIPTORS: u64 = 2;
}

/// Descriptors that came with a packet, in their order.
pub(crate) type Descriptors = [Option<OwnedFd>; MAX_DESCRIPTORS];

/// Sends a packet.
///
/// # Errors
/// What the kernel answers; `EAGAIN` where there is no room and `flags` say not to wait.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    head: Head,
    body: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    send_parts(socket, &[head.as_bytes(), body], descriptors, flags)
}

/// Sends a packet of two parts, or one where the first is empty.
///
/// # Errors
/// As [`send`].
pub(crate) fn send_parts(
    socket: BorrowedFd<'_>,
    [head, body]: &[&[u8]; 2],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    loop {
        let parts = [IoSlice::new(head), IoSlice::new(body)];
        match sendmsg(socket, &parts, &mut control, flags | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Receives a packet. Returns `None` at the end of the connection.
///
/// # Errors
/// What the kernel answers; `EAGAIN` where nothing is there; `EPROTO` for what is no packet.
pub(crate) fn receive<'a>(
    socket: BorrowedFd<'_>,
    buffer: &'a mut [u8; MAX_PACKET_BYTES],
    descriptors: &mut Descriptors,
    flags: RecvFlags,
) -> Result<Option<(Head, &'a [u8])>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        let mut parts = [IoSliceMut::new(&mut buffer[..])];
        match recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            other => break other?.bytes,
        }
    };
    let mut places = descriptors.iter_mut();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for (descriptor, place) in rights.zip(&mut places) {
                *place = Some(descriptor);
            }
        }
    }
    if len == 0 {
        return Ok(None);
    }
    let (head, body) = Head::read_from_prefix(&buffer[..len]).map_err(|_| Errno::PROTO)?;
    Ok(Some((head, body)))
}
