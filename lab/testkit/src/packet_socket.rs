//! A socket of whole Ethernet frames on an interface (packet(7)): the means of a program without a
//! driver of its own, and so a basis of comparison for a driver.
//!
//! Unsafe lives here for its address, which rustix does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use towpath_netlink::Netlink;

use towpath_sandbox::Error;

/// Creates a non-blocking packet socket, which receives nothing before [`bind`].
pub(crate) fn create() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
}

/// Binds a packet socket to an interface, for frames of one ethertype.
pub(crate) fn bind(fd: &OwnedFd, index: u32, ethertype: u16) -> io::Result<()> {
    // SAFETY: all zeros is a value of this structure of integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length are those of a live address.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A non-blocking packet socket.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's network namespace. It receives frames
    /// of one ethertype, except its own.
    ///
    /// # Errors
    /// When there is no such interface, or no CAP_NET_RAW in its namespace.
    pub fn open(interface: &str, ethertype: u16) -> Result<PacketSocket, Error> {
        let index = Netlink::open()?.index(interface)?;
        let failed = |error| Error::failed(format!("read frames of {interface}"))(error);
        let fd = create().map_err(failed)?;
        bind(&fd, index, ethertype).map_err(failed)?;
        Ok(PacketSocket { fd })
    }

    /// Sends a frame. Returns `true` if there was room for it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match rustix::io::write(&self.fd, frame) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a frame, as much of it as fits; `None` when none waits.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
