//! The socket, which sends requests and receives their answers.
//!
//! Unsafe lives here for options of netlink sockets, which rustix does not wrap.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::error::Error;
use crate::message::{
    Acknowledgement, Malformed, Message, Messages, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR,
    NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, Request, errno_of, i32_at,
};

/// The maximum time to wait for the kernel's answer. Deleting an interface may take some hundred
/// milliseconds; no request takes this long.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The size of the receive buffer. The kernel fills the datagrams of a dump up to 32 KiB.
const RECEIVE_BYTES: usize = 64 * 1024;

/// The maximum length of a dump, in datagrams: 128 MiB, more than a million routes.
const DUMP_MAX_DATAGRAMS: usize = 4096;

/// The maximum number of attempts at a dump that changes interrupt.
const DUMP_MAX_TRIES: usize = 8;

/// A netlink socket of one network namespace, mostly for rtnetlink.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    received: Vec<u8>,
}

/// The end of an answer.
enum End {
    Done,
    /// The tables changed during the dump, which may lack entries.
    Overtaken,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Socket`]: too many descriptors, or a seccomp filter without `AF_NETLINK`.
    pub fn open() -> Result<Netlink, Error> {
        // NETLINK_ROUTE is protocol 0.
        Netlink::of_protocol(None)
    }

    /// Opens a socket of another protocol than rtnetlink.
    pub(crate) fn of_protocol(protocol: Option<Protocol>) -> Result<Netlink, Error> {
        let failed = |operation| move |errno| Error::Socket { operation, errno };
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .map_err(failed("socket"))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0)).map_err(failed("bind"))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))
            .map_err(failed("set the timeout"))?;
        // Requests the kernel's messages beside its error numbers (Linux 4.12), without an echo of
        // the request before them. Without these options an error is only a number.
        set_flag(socket.as_fd(), libc::NETLINK_EXT_ACK);
        set_flag(socket.as_fd(), libc::NETLINK_CAP_ACK);
        Ok(Netlink { socket, sequence: 0, received: vec![0; RECEIVE_BYTES] })
    }

    /// Sends a request, and waits for the kernel's acknowledgement.
    pub(crate) fn carry_out(
        &mut self,
        operation: &'static str,
        subject: &str,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Request),
    ) -> Result<(), Error> {
        let mut request = Request::new(kind, flags | NLM_F_ACK);
        fill(&mut request);
        self.exchange(operation, subject, request, &mut |_| Ok(())).map(|_| ())
    }

    /// Requests one object, and passes each message of the answer to `read`.
    pub(crate) fn ask(
        &mut self,
        operation: &'static str,
        subject: &str,
        request: Request,
        read: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), Error> {
        self.exchange(operation, subject, request, read).map(|_| ())
    }

    /// Lists all objects of a kind. Returns the results of `read` for the messages of
    /// `answer_kind`.
    pub(crate) fn dump<T>(
        &mut self,
        operation: &'static str,
        kind: u16,
        answer_kind: u16,
        fill: impl Fn(&mut Request),
        read: impl Fn(&[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..DUMP_MAX_TRIES {
            let mut request = Request::new(kind, NLM_F_DUMP);
            fill(&mut request);
            let mut list = Vec::new();
            let end = self.exchange(operation, "", request, &mut |message| {
                if message.kind == answer_kind {
                    list.extend(read(message.body)?);
                }
                Ok(())
            })?;
            match end {
                End::Done => return Ok(list),
                End::Overtaken => {}
            }
        }
        Err(Error::Malformed { operation, cause: "the tables change faster than they are read" })
    }

    fn exchange(
        &mut self,
        operation: &'static str,
        subject: &str,
        request: Request,
        read: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<End, Error> {
        let refused = |errno, detail| Error::Refused {
            operation,
            subject: subject.to_owned(),
            errno,
            detail,
        };
        let no_answer = || Error::NoAnswer { operation, subject: subject.to_owned() };
        let malformed = |Malformed(cause)| Error::Malformed { operation, cause };

        self.sequence = self.sequence.wrapping_add(1);
        let request = request.finish(self.sequence);
        send(self.socket.as_fd(), &request)?;

        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut overtaken = false;
        for _ in 0..DUMP_MAX_DATAGRAMS {
            if Instant::now() > deadline {
                return Err(no_answer());
            }
            let len = match receive(self.socket.as_fd(), &mut self.received) {
                Ok(Some(len)) => len,
                Ok(None) => continue,
                Err(Errno::AGAIN) => return Err(no_answer()),
                Err(errno) => return Err(Error::Socket { operation: "receive", errno }),
            };
            let Some(datagram) = self.received.get(..len) else {
                return Err(malformed(Malformed("an answer longer than the receive buffer")));
            };
            for message in Messages::new(datagram) {
                let message = message.map_err(malformed)?;
                // An answer to an earlier request that timed out.
                if message.sequence != self.sequence {
                    continue;
                }
                overtaken |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_NOOP => {}
                    NLMSG_DONE => {
                        let code = i32_at(message.body, 0).unwrap_or(0);
                        return match errno_of(code).map_err(malformed)? {
                            Some(errno) => Err(refused(errno, None)),
                            None if overtaken => Ok(End::Overtaken),
                            None => Ok(End::Done),
                        };
                    }
                    NLMSG_ERROR => {
                        let answer = Acknowledgement::read(&message).map_err(malformed)?;
                        return match answer.errno {
                            Some(errno) => Err(refused(errno, answer.detail)),
                            None => Ok(End::Done),
                        };
                    }
                    _ => read(&message).map_err(malformed)?,
                }
            }
        }
        Err(malformed(Malformed("an answer without an end")))
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(crate) fn send(socket: BorrowedFd<'_>, request: &[u8]) -> Result<(), Error> {
    let kernel = SocketAddrNetlink::new(0, 0);
    loop {
        match rustix::net::sendto(socket, request, SendFlags::empty(), &kernel) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::Socket { operation: "send", errno }),
        }
    }
}

/// Receives a datagram, and returns its length. Returns `None` for a datagram that is not from the
/// kernel (any process of the namespace may send to a netlink port), or if a signal arrived first.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    match rustix::net::recvfrom(socket, &mut *buffer, RecvFlags::TRUNC) {
        Ok((_, len, Some(from))) => match SocketAddrNetlink::try_from(from) {
            Ok(from) if from.pid() == 0 => Ok(Some(len)),
            _ => Ok(None),
        },
        Ok((_, _, None)) | Err(Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn set_flag(socket: BorrowedFd<'_>, option: libc::c_int) {
    // Without these options, the kernel's errors have no text.
    let _ = set(socket, option, 1);
}

/// Has a socket receive the messages of a multicast group. The bits of an address have no room for
/// groups beyond the 32nd.
pub(crate) fn join(socket: BorrowedFd<'_>, group: u32) -> Result<(), Errno> {
    set(socket, libc::NETLINK_ADD_MEMBERSHIP, group as libc::c_int)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the value is a live integer, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
