//! The messages between the control thread and a worker. Each is one packet of a private
//! `SOCK_SEQPACKET` socket: a [`Head`], followed by a control message of an application or for an application.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use towpath_protocol::message::{self, MAX_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The maximum number of descriptors in one packet: an attached message's, and two more.
pub(crate) const MAX_DESCRIPTORS: usize = message::MAX_DESCRIPTORS + 2;
/// The largest packet.
pub(crate) const MAX_PACKET_BYTES: usize = size_of::<Head>() + MAX_BYTES;

/// The header of every packet.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    /// A [`command`] or a [`report`].
    pub(crate) kind: u32,
    /// Must be 0.
    pub(crate) reserved: u32,
    /// The connection's token, if the packet concerns a connection.
    pub(crate) token: u64,
    /// A value; its meaning depends on the kind.
    pub(crate) value: u64,
    /// In reports: the number of commands that the worker has executed.
    pub(crate) handled: u64,
}

/// Commands to a worker.
pub(crate) mod command {
    /// Serve this connection. With its socket and, if there is one, its process. Value: `TIMED`.
    pub(crate) const ADOPT: u32 = 1;
    /// Send the message, with the descriptors. Value: `LAST` and `TIMED`.
    pub(crate) const ANSWER: u32 = 2;
    /// Close the connection.
    pub(crate) const CLOSE_CONNECTION: u32 = 3;
    /// Seal a session's memory, and allocate the part that the server writes. Fails with `ENODATA`
    /// if the application has left a page of its part unallocated. With the five memory files, in
    /// the order of [`crate::prepare::Files`], and for each engine the epoll descriptor that the
    /// application notifies. Value: the data that the engine's epoll set reports then.
    pub(crate) const PREPARE_MEMORY: u32 = 4;
    /// Notify through this doorbell when its notification counter changes. Value: the counter's
    /// number.
    pub(crate) const OPEN_DOORBELL: u32 = 5;
    /// Close a doorbell: the session is over. With the server's own descriptor of it. Value: the
    /// counter's number.
    pub(crate) const CLOSE_DOORBELL: u32 = 6;
    /// Close these descriptors of a session that has ended. If its connection still exists, the
    /// worker ends it, too. It then closes the first descriptor, the server pages, some seconds
    /// later. Value: `WIPE`.
    pub(crate) const DISPOSE: u32 = 7;
    /// Send the message over this socket and close it. With the socket.
    pub(crate) const REFUSE: u32 = 8;

    /// Seal a memory file against every further writer but processes that have it mapped. With the
    /// file, which the application has allocated.
    pub(crate) const SEAL: u32 = 9;
    /// Allocate a memory file that only the server has. With the file.
    pub(crate) const ALLOCATE: u32 = 10;
    /// As `PREPARE_MEMORY`, for an application of a version before
    /// [`ALLOCATES_SINCE`](towpath_protocol::layout::ALLOCATES_SINCE): also allocate the pages that
    /// the application left unallocated.
    pub(crate) const PREPARE_OLDER: u32 = 11;
    /// Copy for the engine by this copy area. With its file, or without a file if there are no more copies.
    pub(crate) const SET_COPY_AREA: u32 = 12;
    /// Map a memory, to copy from and to it. With the file. Value: the memory's id.
    pub(crate) const MAP_MEMORY: u32 = 13;
    /// Unmap a memory. Value: the memory's id.
    pub(crate) const UNMAP_MEMORY: u32 = 14;

    /// A flag: the peer has a limited time for its next message.
    pub(crate) const TIMED: u64 = 1;
    /// A flag: the worker closes the connection after this message.
    pub(crate) const LAST: u64 = 2;
    /// A flag: free the memory of the files, even if an application keeps them open.
    pub(crate) const WIPE: u64 = 4;
}

/// Reports of a worker.
pub(crate) mod report {
    /// The worker executed commands.
    pub(crate) const HANDLED: u32 = 1;
    /// A message arrived. The worker reads the next message only after the server has answered this message. Value:
    /// [`VALID`](self::VALID) or the kind of error; in case of an error there is no message.
    pub(crate) const MESSAGE: u32 = 2;
    /// The connection has ended and is closed.
    pub(crate) const ENDED: u32 = 3;
    /// A session's memory is sealed and allocated. Value: 0 or the number of the error, and
    /// `UNFREEABLE`.
    pub(crate) const MEMORY_READY: u32 = 4;
    /// A memory file is allocated. Value: 0 or the number of the error.
    pub(crate) const ALLOCATED: u32 = 5;

    /// The message follows.
    pub(crate) const VALID: u64 = 0;
    /// The message is too long.
    pub(crate) const TOO_LONG: u64 = 1;
    /// Descriptors came with the message.
    pub(crate) const DESCRIPTORS: u64 = 2;

    /// A flag: the worker has allocated memory that the application left unallocated. No process can
    /// free this memory while an application keeps it.
    pub(crate) const UNFREEABLE: u64 = 1 << 32;
}

/// The descriptors that came with a packet, in their order.
pub(crate) type Descriptors = [Option<OwnedFd>; MAX_DESCRIPTORS];

/// Puts borrowed descriptors into `handed`. Returns their number.
pub(super) fn borrow<'a>(descriptors: &'a Descriptors, handed: &mut [BorrowedFd<'a>]) -> usize {
    let mut count = 0;
    for (slot, descriptor) in handed.iter_mut().zip(descriptors.iter().flatten()) {
        *slot = descriptor.as_fd();
        count += 1;
    }
    count
}

/// Sends a packet.
///
/// # Errors
/// Fails with the kernel's error; `EAGAIN` if there is no room and `flags` say not to wait.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    head: Head,
    body: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    send_parts(socket, &[head.as_bytes(), body], descriptors, flags)
}

/// Sends a packet of two parts, or of the second part if the first is empty.
///
/// # Errors
/// Fails as [`send`] does.
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
/// Fails with the kernel's error; `EAGAIN` if there is no packet; `EPROTO` if the data is no
/// packet.
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
    let mut slots = descriptors.iter_mut();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for (descriptor, slot) in rights.zip(&mut slots) {
                *slot = Some(descriptor);
            }
        }
    }
    if len == 0 {
        return Ok(None);
    }
    let (head, body) = Head::read_from_prefix(&buffer[..len]).map_err(|_| Errno::PROTO)?;
    Ok(Some((head, body)))
}
