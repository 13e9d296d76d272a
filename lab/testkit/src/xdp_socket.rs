//! A bare AF_XDP socket, with nothing around its rings (Documentation/networking/af_xdp.rst): the
//! basis of comparison for a driver over such sockets. The kernel copies each packet.
//!
//! Unsafe lives here for the rings and the packet memory, which the kernel shares with this
//! process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

/// Entries of each ring, and chunks for each direction.
const ENTRIES: u32 = 64;
/// The bytes of a chunk.
const CHUNK_BYTES: usize = 2048;

/// Memory that ends with this value.
struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing points into it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A ring of entries of one type, which are plain numbers.
struct Ring<T> {
    map: Map,
    offsets: XdpRingOffset,
    /// This side's index: of the next entry to produce or to consume.
    next: u32,
    entries: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(socket: BorrowedFd<'_>, page: u64, offsets: XdpRingOffset) -> io::Result<Ring<T>> {
        let bytes = offsets.desc as usize + ENTRIES as usize * size_of::<T>();
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free range of addresses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, socket, page)? }.cast();
        let start = NonNull::new(start).ok_or(io::ErrorKind::InvalidData)?;
        let map = Map { start, bytes };
        Ok(Ring { map, offsets, next: 0, entries: std::marker::PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel's offsets of aligned words lie inside the mapping, before the entries.
        unsafe { self.map.start.add(offset as usize).cast().as_ref() }
    }

    fn entry(&self) -> NonNull<T> {
        let slot = (self.next % ENTRIES) as usize;
        // SAFETY: the mapping has `ENTRIES` entries from this offset on.
        unsafe { self.map.start.add(self.offsets.desc as usize).cast::<T>().add(slot) }
    }

    /// Stores an entry, and makes it visible to the kernel. There are never more entries than
    /// chunks, so there is room.
    #[inline]
    fn produce(&mut self, entry: T) {
        // SAFETY: the slot is free, and the kernel reads it only after the index.
        unsafe { self.entry().write(entry) };
        self.next = self.next.wrapping_add(1);
        self.word(self.offsets.producer).store(self.next, Ordering::Release);
    }

    /// Takes an entry, if there is one.
    #[inline]
    fn consume(&mut self) -> Option<T> {
        if self.word(self.offsets.producer).load(Ordering::Acquire) == self.next {
            return None;
        }
        // SAFETY: the kernel stored the entry before its index.
        let entry = unsafe { self.entry().read() };
        self.next = self.next.wrapping_add(1);
        self.word(self.offsets.consumer).store(self.next, Ordering::Release);
        Some(entry)
    }
}

/// `struct xdp_desc`, with plain numbers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == size_of::<XdpDesc>());

/// A bound socket of one hardware queue, which receives once a program redirects packets to it.
pub struct XdpSocket {
    rx: Ring<Descriptor>,
    tx: Ring<Descriptor>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    /// Chunks to send from.
    free: Vec<u64>,
    // The kernel reaches the memory until the socket is closed.
    fd: OwnedFd,
    memory: Map,
}

// SAFETY: the mappings have one owner, and do not depend on the thread.
unsafe impl Send for XdpSocket {}

impl std::fmt::Debug for XdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpSocket").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl XdpSocket {
    /// Opens a socket on the first hardware queue of an interface, by its number, in the calling
    /// thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error, for example without CAP_NET_RAW.
    pub fn bind(index: u32) -> io::Result<XdpSocket> {
        let fd = rustix::net::socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let bytes = 2 * ENTRIES as usize * CHUNK_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a free range of addresses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags)? }.cast();
        let memory = Map { start: NonNull::new(start).ok_or(io::ErrorKind::InvalidData)?, bytes };
        let registration = XdpUmemReg {
            addr: start as u64,
            len: bytes as u64,
            chunk_size: CHUNK_BYTES as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, registration)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_rx_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_tx_ring_size(&fd, ENTRIES)?;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let socket = fd.as_fd();
        let mut fill = Ring::map(socket, XDP_UMEM_PGOFF_FILL_RING, offsets.fr)?;
        let completion = Ring::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr)?;
        let rx = Ring::map(socket, XDP_PGOFF_RX_RING, offsets.rx)?;
        let tx = Ring::map(socket, XDP_PGOFF_TX_RING, offsets.tx)?;
        let chunk = |number: u32| u64::from(number) * CHUNK_BYTES as u64;
        (0..ENTRIES).for_each(|number| fill.produce(chunk(number)));
        let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        rustix::net::bind(&fd, &SocketAddrXdp::new(flags, index, 0))?;
        let free = (ENTRIES..2 * ENTRIES).map(chunk).collect();
        Ok(XdpSocket { rx, tx, fill, completion, free, fd, memory })
    }

    fn chunk(&self, address: u64) -> NonNull<u8> {
        let offset = address as usize % self.memory.bytes;
        // SAFETY: the offset is inside the mapping.
        unsafe { self.memory.start.add(offset) }
    }

    /// Takes a received packet, as much of it as fits; returns its length, or `None` when none
    /// waits.
    #[inline]
    pub fn receive(&mut self, into: &mut [u8]) -> Option<usize> {
        let Descriptor { address, len, .. } = self.rx.consume()?;
        let len = (len as usize).min(into.len()).min(CHUNK_BYTES);
        let inside = len.min(self.memory.bytes.saturating_sub(address as usize));
        // SAFETY: the bytes are inside the mapping, and the kernel writes them again only after the
        // chunk is in the fill ring.
        unsafe {
            self.chunk(address).copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), inside)
        };
        self.fill.produce(address - address % CHUNK_BYTES as u64);
        Some(inside)
    }

    /// Sends a packet, by one system call. Returns `false` if the kernel did not take it at once.
    ///
    /// # Errors
    /// The kernel's error.
    #[inline]
    pub fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        while let Some(address) = self.completion.consume() {
            self.free.push(address);
        }
        let Some(address) = self.free.pop() else { return Ok(false) };
        let len = packet.len().min(CHUNK_BYTES);
        // SAFETY: the chunk is free, and of this size.
        unsafe { self.chunk(address).copy_from_nonoverlapping(NonNull::from(packet).cast(), len) };
        self.tx.produce(Descriptor { address, len: len as u32, options: 0 });
        match rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
