//! The ring of a packet socket, which the kernel fills with copies of packets.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::tpacket2_hdr;
use rustix::mm::{MapFlags, ProtFlags};
use towpath_packet::{TagProtocol, VlanTag};

use super::packet_socket::{KERNEL_HEADER_BYTES, PacketSocket};
use crate::virtio::{self, HEADER_BYTES};
use crate::{Counters, Limits, Meta, Received, SpaceId, Spaces};

/// A packet in memory from which the driver copies it.
pub(crate) struct Copied<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) meta: Meta,
    pub(crate) tag: Option<VlanTag>,
}

/// The buffers for packets of a ring.
pub(crate) struct Target<'a> {
    pub(crate) pool: SpaceId,
    pub(crate) buffers: &'a mut VecDeque<u32>,
    pub(crate) limits: &'a Limits,
    /// The MAC addresses to write into packets, if they come from an interface without.
    pub(crate) mac: Option<[u8; 6]>,
}

impl Copied<'_> {
    /// Copies the packet into as many buffers as it needs. Returns its length in bytes, 0 if that
    /// is impossible.
    pub(crate) fn copy(
        &self,
        spaces: &mut Spaces,
        to: &Target<'_>,
        out: &mut Vec<Received>,
    ) -> usize {
        let (from, headroom) = (out.len(), to.limits.rx_headroom_bytes);
        let parts = self.bytes.chunks(to.limits.rx_buffer_bytes - headroom).zip(&*to.buffers);
        for (bytes, buffer) in parts {
            let offset = buffer + headroom as u32;
            if spaces.copy_in(to.pool, offset, bytes).is_err() {
                out.truncate(from);
                return 0;
            }
            let mut part =
                Received::whole(to.pool, *buffer, offset, bytes.len() as u32, Meta::FULL);
            part.continues = true;
            out.push(part);
        }
        let Some(last) = out[from..].last_mut() else { return 0 };
        last.continues = false;
        (out[from].meta, out[from].tag) = (self.meta, self.tag);
        if let Some(mac) = to.mac {
            for at in [0, 6] {
                let _ = spaces.copy_in(to.pool, out[from].offset + at, &mac);
            }
        }
        self.bytes.len()
    }
}

/// The socket's ring, mapped for as long as this value lives.
pub(crate) struct PacketRing {
    socket: Arc<PacketSocket>,
    map: NonNull<u8>,
    map_bytes: usize,
    /// The slot of the next packet.
    next: u32,
    /// The number of packets that were released, ever, which the last slot to be released has too.
    released: u32,
    /// Packets that were dropped at the beginning.
    dropped: u64,
}

/// Where a slot has the number of its release: four bytes of `struct tpacket2_hdr` that are there for
/// its alignment, and that the kernel clears when it fills the slot.
const RELEASE_NUMBER: usize = std::mem::offset_of!(tpacket2_hdr, tp_padding);

// SAFETY: the ring has one owner in this process, which accesses the mapping through `&self` or
// `&mut self`. The mapping does not depend on the thread.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Maps the ring of a socket, which has no other mapping that reads it.
    pub(crate) fn map(socket: Arc<PacketSocket>) -> io::Result<PacketRing> {
        let map_bytes = socket.ring_bytes as usize;
        // SAFETY: the kernel chooses a free range of addresses, so the call replaces no mapping.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &*socket,
                0,
            )?
        };
        let map = NonNull::new(map.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let mut ring = PacketRing { socket, map, map_bytes, next: 0, released: 0, dropped: 0 };
        ring.find_next();
        if ring.socket.drops_waiting.swap(false, Ordering::Relaxed) {
            while ring.dropped < u64::from(ring.socket.slots) && ring.is_ready() {
                ring.release();
                ring.dropped += 1;
            }
        }
        Ok(ring)
    }

    /// Finds the slot of the next packet: an earlier mapping, of this process or of an earlier server,
    /// may have taken packets. It follows the slot that was released last. The kernel fills that one
    /// only when it has filled all others; then the next packet is the oldest.
    fn find_next(&mut self) {
        let (mut last, mut oldest, mut is_full) = (None, None, true);
        for slot in 0..self.socket.slots {
            self.next = slot;
            let number = self.release_number().load(Ordering::Relaxed);
            let is_later = last.is_none() || (number.wrapping_sub(self.released) as i32) > 0;
            if number != 0 && is_later {
                (self.released, last) = (number, Some((slot, self.is_ready())));
            }
            is_full &= self.is_ready();
            // SAFETY: the slot begins with this structure of integers, for which any bytes are valid. The
            // kernel may write it meanwhile; then the time may be wrong, which is used only if every slot
            // was this process's when read, and the kernel writes into none of these.
            let header = unsafe { self.slot().cast::<tpacket2_hdr>().read_volatile() };
            let time = (header.tp_sec, header.tp_nsec, slot);
            oldest = Some(oldest.map_or(time, |oldest: (u32, u32, u32)| oldest.min(time)));
        }
        self.next = match (last, oldest) {
            // A server that was killed within `release` left this one unreleased.
            (Some((slot, true)), _) => slot,
            (Some((slot, false)), _) => (slot + 1) % self.socket.slots,
            (None, Some((.., slot))) if is_full => slot,
            _ => 0,
        };
    }

    fn slot(&self) -> NonNull<u8> {
        // SAFETY: `next` is below the number of slots in the mapping.
        unsafe { self.map.add(self.next as usize * self.socket.slot_bytes as usize) }
    }

    /// Returns the status word of the next slot.
    fn status(&self) -> &AtomicU32 {
        const _: () = assert!(std::mem::offset_of!(tpacket2_hdr, tp_status) == 0);
        // SAFETY: a slot begins with the aligned status word; the kernel and this process access it
        // atomically.
        unsafe { self.slot().cast().as_ref() }
    }

    /// Returns the word of the next slot with the number of its release.
    fn release_number(&self) -> &AtomicU32 {
        const _: () = assert!(RELEASE_NUMBER.is_multiple_of(4));
        // SAFETY: the aligned word is inside the slot's header. The kernel writes it only while the
        // slot is the kernel's.
        unsafe { self.slot().add(RELEASE_NUMBER).cast().as_ref() }
    }

    /// Returns `true` if there is a packet.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns the next packet, which stays until [`PacketRing::release`]. `None` if there is none;
    /// an error for one to drop: cut off, or with metadata that does not fit.
    fn next(&self) -> Option<Result<Copied<'_>, ()>> {
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot begins with this structure of integers, and is this process's until
        // `release`.
        let header = unsafe { self.slot().cast::<tpacket2_hdr>().read() };
        let (at, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let inside = at + len <= self.socket.slot_bytes as usize && at >= KERNEL_HEADER_BYTES;
        if header.tp_len != header.tp_snaplen || !inside {
            return Some(Err(()));
        }
        // SAFETY: the range is inside the frame, as just checked. The kernel does not write it
        // until `release`, which takes `&mut self`.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                self.slot().add(at - KERNEL_HEADER_BYTES).as_ptr(),
                KERNEL_HEADER_BYTES + len,
            )
        };
        let (kernel_header, bytes) = bytes.split_at(KERNEL_HEADER_BYTES);
        let mut virtio_header = [0; HEADER_BYTES];
        virtio_header[..KERNEL_HEADER_BYTES].copy_from_slice(kernel_header);
        let Some(meta) = virtio::meta(virtio_header, len) else { return Some(Err(())) };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(VlanTag {
            protocol: if header.tp_vlan_tpid == 0x88a8
                && status & libc::TP_STATUS_VLAN_TPID_VALID != 0
            {
                TagProtocol::Service
            } else {
                TagProtocol::Customer
            },
            control: header.tp_vlan_tci,
        });
        Some(Ok(Copied { bytes, meta, tag }))
    }

    /// Takes the next packet: copies it into buffers, which it removes from `to`, and appends it to
    /// `out`. Returns its length in bytes, 0 for a packet that is dropped. `None` if there is no
    /// packet, or too few buffers.
    fn take(
        &mut self,
        spaces: &mut Spaces,
        to: &mut Target<'_>,
        out: &mut Vec<Received>,
    ) -> Option<usize> {
        let next = self.next()?;
        let most = to.limits.rx_buffer_bytes - to.limits.rx_headroom_bytes;
        let wanted = next.as_ref().map_or(1, |packet| packet.bytes.len().div_ceil(most).max(1));
        if wanted > to.buffers.len() {
            return None;
        }
        let copied = match next {
            Ok(packet) if wanted <= to.limits.rx_packet_buffers => packet.copy(spaces, to, out),
            _ => 0,
        };
        if copied > 0 {
            to.buffers.drain(..wanted);
        }
        self.release();
        Some(copied)
    }

    /// Takes at most `budget` packets, and counts them. Returns how many, dropped ones included.
    pub(crate) fn poll(
        &mut self,
        spaces: &mut Spaces,
        to: &mut Target<'_>,
        out: &mut Vec<Received>,
        budget: usize,
        counters: &mut Counters,
    ) -> usize {
        let mut count = 0;
        while count < budget
            && let Some(len) = self.take(spaces, to, out)
        {
            count += 1;
            match len {
                0 => counters.rx_dropped += 1,
                len => counters.received(len),
            }
        }
        count
    }

    /// Gives the slot of the packet that [`PacketRing::next`] returned back to the kernel.
    fn release(&mut self) {
        // No slot has number 0.
        self.released = self.released.wrapping_add(1).max(1);
        self.release_number().store(self.released, Ordering::Relaxed);
        fence(Ordering::Release);
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.socket.slots;
    }

    /// Returns the socket, which is readable while there are packets.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the number of packets that the ring holds.
    pub(crate) fn slots(&self) -> usize {
        self.socket.slots as usize
    }

    /// Returns the number of packets that the ring had no room for, or that were dropped at the
    /// beginning, since the last call.
    pub(crate) fn take_drops(&mut self) -> u64 {
        self.socket.take_drops() + std::mem::take(&mut self.dropped)
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}
