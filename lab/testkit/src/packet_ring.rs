//! A packet socket with rings of frames in memory that it shares with the kernel
//! (Documentation/networking/packet_mmap.rst, `TPACKET_V2`): the fastest way of the kernel's own
//! drivers to a program, and so a basis of comparison for a driver.
//!
//! The kernel wakes a sleeping program at the first frame. With `TPACKET_V3` it would wait until a
//! block of frames is full or a timer of at least a millisecond ends.
//!
//! Unsafe lives here for the rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use towpath_netlink::Netlink;
use towpath_sandbox::Error;

use crate::packet_socket::{bind, create};

/// The bytes of a frame's place in a ring: a header, and a packet of up to 1 900 bytes.
const PLACE_BYTES: usize = 2048;
/// The bytes of a block of places, which the kernel allocates in one piece.
const BLOCK_BYTES: usize = 1 << 16;
/// Places of each ring.
const RX_PLACES: usize = 8192;
const TX_PLACES: usize = 1024;
/// Where a frame to send lies in its place (`TPACKET2_HDRLEN - sizeof(struct sockaddr_ll)`).
const TX_DATA_AT: usize = 32;

/// A packet socket with a receive ring and a transmit ring.
#[derive(Debug)]
pub struct PacketRing {
    fd: OwnedFd,
    start: NonNull<u8>,
    /// The next place of each ring.
    next_rx: usize,
    next_tx: usize,
    /// `true` if the transmit ring has frames of which the kernel has not been told.
    has_unsent: bool,
}

// SAFETY: the rings are this value's own, and only its methods access them, through `&mut self`.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Opens a socket on an interface of the calling thread's network namespace. It receives frames
    /// of one ethertype, except its own, and sends past the interface's queue.
    ///
    /// # Errors
    /// When there is no such interface, or no CAP_NET_RAW in its namespace.
    pub fn open(interface: &str, ethertype: u16) -> Result<PacketRing, Error> {
        let index = Netlink::open()?.index(interface)?;
        let failed = Error::failed(format!("map frames of {interface}"));
        Self::mapped(index, ethertype).map_err(failed)
    }

    fn mapped(index: u32, ethertype: u16) -> io::Result<PacketRing> {
        let fd = create()?;
        set(&fd, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        set(&fd, libc::PACKET_RX_RING, &request(RX_PLACES))?;
        set(&fd, libc::PACKET_TX_RING, &request(TX_PLACES))?;
        set(&fd, libc::PACKET_QDISC_BYPASS, &1_i32)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: the kernel chooses a free range of addresses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, flags, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = PacketRing { fd, start, next_rx: 0, next_tx: 0, has_unsent: false };
        bind(&ring.fd, index, ethertype)?;
        Ok(ring)
    }

    /// Passes at most `budget` received frames to `each`, which may change a frame and returns
    /// `true` to have the frame sent. Returns the number of received frames. A frame for which the
    /// transmit ring has no room is dropped. [`PacketRing::flush`] sends.
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&mut [u8]) -> bool) -> usize {
        let mut count = 0;
        while count < budget {
            let place = self.place(self.next_rx);
            if status(place).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                break;
            }
            // SAFETY: the kernel wrote this header before the status, and writes neither header nor
            // frame until the status is its own again.
            let frame = unsafe {
                let header = place.cast::<libc::tpacket2_hdr>().as_ptr();
                let (at, len) = ((*header).tp_mac as usize, (*header).tp_snaplen as usize);
                let len = len.min(PLACE_BYTES - at.min(PLACE_BYTES));
                std::slice::from_raw_parts_mut(place.as_ptr().add(at.min(PLACE_BYTES)), len)
            };
            if each(frame) {
                self.send(frame);
            }
            status(place).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next_rx = (self.next_rx + 1) % RX_PLACES;
            count += 1;
        }
        count
    }

    /// Places a frame in the transmit ring. Returns `true` if there was room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let place = self.place(RX_PLACES + self.next_tx);
        let is_free = status(place).load(Ordering::Acquire) == libc::TP_STATUS_AVAILABLE;
        if !is_free || frame.len() > PLACE_BYTES - TX_DATA_AT {
            return false;
        }
        // SAFETY: the place is this side's until the status is stored, and the frame fits. A frame
        // of the receive ring lies in another place.
        unsafe {
            let data = place.as_ptr().add(TX_DATA_AT);
            std::ptr::copy_nonoverlapping(frame.as_ptr(), data, frame.len());
            (*place.cast::<libc::tpacket2_hdr>().as_ptr()).tp_len = frame.len() as u32;
        }
        status(place).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next_tx = (self.next_tx + 1) % TX_PLACES;
        self.has_unsent = true;
        true
    }

    /// Sends all frames in the transmit ring, with one system call.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.has_unsent) {
            return Ok(());
        }
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: an empty message has no buffer.
        let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if sent < 0 {
            let error = io::Error::last_os_error();
            // The interface's ring is full: the frames stay in this one.
            self.has_unsent = true;
            let has_no_room = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS));
            return if has_no_room { Ok(()) } else { Err(error) };
        }
        Ok(())
    }

    /// Returns the place of a number; those of the transmit ring follow those of the receive ring.
    fn place(&self, number: usize) -> NonNull<u8> {
        debug_assert!(number < RX_PLACES + TX_PLACES);
        // SAFETY: all callers' numbers are below the number of places of both rings.
        unsafe { self.start.add(number * PLACE_BYTES) }
    }
}

/// The bytes of both rings, which follow each other.
const BYTES: usize = (RX_PLACES + TX_PLACES) * PLACE_BYTES;

impl AsFd for PacketRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing points into it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BYTES) };
    }
}

/// Returns the owner of a place, which stands first in its header.
fn status<'a>(place: NonNull<u8>) -> &'a AtomicU32 {
    // SAFETY: a place begins with an aligned word inside the mapping, and only atomic accesses of
    // this process reach it. No caller keeps the reference beyond a method of the ring.
    unsafe { place.cast::<AtomicU32>().as_ref() }
}

fn request(places: usize) -> libc::tpacket_req {
    libc::tpacket_req {
        tp_block_size: BLOCK_BYTES as u32,
        tp_block_nr: (places * PLACE_BYTES / BLOCK_BYTES) as u32,
        tp_frame_size: PLACE_BYTES as u32,
        tp_frame_nr: places as u32,
    }
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (pointer, size) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the pointer and size are those of a live value of the option's type.
    let set = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, option, pointer, size) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
