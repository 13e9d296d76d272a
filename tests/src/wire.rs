//! The kernel's side of a TAP, frame by frame (packet(7)).
//!
//! Unsafe lives here because packet sockets have no safe wrapper.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A socket that receives every frame that the device writes, and sends frames that the device
/// reads.
#[derive(Debug)]
pub struct Wire {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// `struct tpacket_auxdata` of `linux/if_packet.h`.
#[repr(C)]
struct Auxiliary {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// `TP_STATUS_VLAN_VALID`, `PACKET_AUXDATA` and `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h`.
const VLAN_VALID: u32 = 1 << 4;
const PACKET_AUXDATA: i32 = 8;
const PACKET_IGNORE_OUTGOING: i32 = 23;

impl Wire {
    /// Opens it on an interface of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(interface: &str) -> io::Result<Wire> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just opened, with no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let set = |level, name, value: i32| {
            // SAFETY: the pointer and length are those of a live integer.
            let result = unsafe {
                libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), 4)
            };
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        set(libc::SOL_PACKET, PACKET_AUXDATA, 1)?;
        set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        let size = 32 << 20;
        set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size)
            .or_else(|_| set(libc::SOL_SOCKET, libc::SO_RCVBUF, size))?;
        let name = CString::new(interface)?;
        // SAFETY: all zeros is a value of this structure of integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        // SAFETY: `name` is a string that ends with a zero and lives.
        address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
        let size = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the pointer and length are those of a live address.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Wire { fd, buffer: vec![0; 128 * 1024] })
    }

    /// Puts a frame on the wire, waiting while the interface's queue is full.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// When the queue stays full.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let until = Instant::now() + crate::PATIENCE;
        loop {
            match rustix::io::write(&self.fd, frame) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => {
                    assert!(Instant::now() < until, "the interface's queue stays full");
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the next frame that the device wrote, if there is one now. Puts a tag back that the
    /// kernel took out.
    ///
    /// # Panics
    /// When the socket fails.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let mut part =
            libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        let mut control = [0_u64; 16];
        // SAFETY: numbers and null addresses, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message names live memory of the lengths it says.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "packet socket: {error}");
            return None;
        };
        let mut frame = self.buffer[..got].to_vec();
        // SAFETY: the kernel filled the control buffer as the message now says.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_PACKET && (*header).cmsg_type == PACKET_AUXDATA
                {
                    let auxiliary: Auxiliary =
                        libc::CMSG_DATA(header).cast::<Auxiliary>().read_unaligned();
                    if auxiliary.status & VLAN_VALID != 0 {
                        let tpid = auxiliary.vlan_tpid.max(0x8100).to_be_bytes();
                        let tci = auxiliary.vlan_tci.to_be_bytes();
                        frame.splice(12..12, [tpid[0], tpid[1], tci[0], tci[1]]);
                    }
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        Some(frame)
    }

    /// Returns every frame that the device wrote, until none came for this long.
    pub fn drain(&mut self, quiet: Duration) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut last = Instant::now();
        while last.elapsed() < quiet {
            match self.receive() {
                Some(frame) => {
                    frames.push(frame);
                    last = Instant::now();
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        frames
    }
}
