//! One direction of the pair: its rings, a batch that is being written into them, and the doorbell
//! that wakes the end that waits for them.
//!
//! Unsafe lives here because this module copies packets directly into the ring's uninitialized
//! memory, and publishes them there.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

use rustix::event::EventfdFlags;
use towpath_device::{Assembly, Meta, PacketLimits, Part, Spaces, VlanTag};

pub(super) struct Sender {
    pub(super) bytes: rtrb::Producer<u8>,
    pub(super) packets: rtrb::Producer<Boundary>,
}

pub(super) struct Receiver {
    pub(super) bytes: rtrb::Consumer<u8>,
    pub(super) packets: rtrb::Consumer<Boundary>,
}

/// A packet's length and metadata; its bytes follow those of the previous packet.
#[derive(Clone, Copy)]
pub(super) struct Boundary {
    pub(super) len: u32,
    pub(super) meta: Meta,
}

/// The sleeper waits for packets.
pub(super) const WANTS_PACKETS: u8 = 1;
/// The sleeper waits for room.
pub(super) const WANTS_ROOM: u8 = 2;

/// The doorbell of one end. The sleeper writes `wants`, and the other end clears it when it
/// notifies the sleeper. The other end writes `closed` once, when it is dropped.
pub(super) struct Bell {
    pub(super) wants: AtomicU8,
    /// `true` if the descriptor may be readable. The other end sets it after it has written, so a
    /// sleeper that finds it set finds the notification too.
    notified: AtomicBool,
    pub(super) closed: AtomicBool,
    pub(super) fd: Option<OwnedFd>,
}

impl Bell {
    pub(super) fn new(sleeps: bool) -> io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = if sleeps { Some(rustix::event::eventfd(0, flags)?) } else { None };
        let (wants, notified, closed) = Default::default();
        Ok(Bell { wants, notified, closed, fd })
    }

    /// Notifies the sleeper if it waits for `why`, after the caller published. Returns the number
    /// of system calls made.
    ///
    /// The fence pairs with the one in `LoopbackQueue::arm`: either the sleeper sees the
    /// publications before this call, or this call sees the sleeper's `wants`.
    pub(super) fn ring(&self, why: u8) -> u64 {
        fence(Ordering::SeqCst);
        if self.wants.load(Ordering::Relaxed) & why == 0 {
            return 0;
        }
        self.wants.store(0, Ordering::Relaxed);
        self.notify_always()
    }

    pub(super) fn notify_always(&self) -> u64 {
        let Some(fd) = &self.fd else { return 0 };
        // This fails only when 2^64 - 2 notifications are unread, and then the eventfd is readable.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        self.notified.store(true, Ordering::Release);
        1
    }

    /// Takes the notifications. Returns `None` if there are none, and otherwise the number of
    /// system calls made.
    pub(super) fn take(&self) -> Option<u64> {
        let fd = self.fd.as_ref()?;
        if !self.notified.swap(false, Ordering::Acquire) {
            return None;
        }
        // Another notification that this read takes sets `notified` again, and the next call finds
        // nothing to read.
        let _ = rustix::io::read(fd, &mut [0; 8]);
        Some(1)
    }
}

/// The outcome of one packet.
pub(super) enum Sent {
    Yes(usize),
    Bad,
    NoRoom(usize),
}

/// Packets that this end writes into the free part of a direction's rings and publishes together.
pub(super) struct Batch<'a> {
    bytes: rtrb::chunks::WriteChunkUninit<'a, u8>,
    packets: rtrb::chunks::WriteChunkUninit<'a, Boundary>,
    room: usize,
    slots: usize,
    used_bytes: usize,
    used_packets: usize,
}

impl<'a> Batch<'a> {
    pub(super) fn new(tx: &'a mut Sender) -> Batch<'a> {
        // Only this end adds, so the free room can only grow until this end uses it.
        let (room, slots) = (tx.bytes.slots(), tx.packets.slots());
        let bytes = tx.bytes.write_chunk_uninit(room).expect("room just counted");
        let packets = tx.packets.write_chunk_uninit(slots).expect("room just counted");
        Batch { bytes, packets, room, slots, used_bytes: 0, used_packets: 0 }
    }

    pub(super) fn push(
        &mut self,
        limits: &PacketLimits,
        spaces: &Spaces,
        parts: &[Part],
        meta: Meta,
    ) -> Sent {
        let Some(len) = limits.packet_len(parts, meta) else { return Sent::Bad };
        if !limits.reaches(spaces, parts) {
            return Sent::Bad;
        }
        if self.used_packets == self.slots || len > self.room - self.used_bytes {
            return Sent::NoRoom(len);
        }
        let Some(at) = self.copy(spaces, parts) else { return Sent::Bad };
        self.end_packet(at, len, meta)
    }

    /// Adds a packet with a tag that the device inserts.
    #[cold]
    pub(super) fn push_tagged(
        &mut self,
        limits: &PacketLimits,
        spaces: &Spaces,
        parts: &[Part],
        tag: VlanTag,
        meta: Meta,
    ) -> Sent {
        let mut assembly = Assembly::default();
        if !limits.can.tx_tag
            || limits.packet_len(parts, meta).is_none()
            || !limits.reaches(spaces, parts)
        {
            return Sent::Bad;
        }
        let Some(packet) = assembly.assemble(spaces, parts) else { return Sent::Bad };
        let Some((addresses, rest)) = packet.split_at_checked(VlanTag::OFFSET) else {
            return Sent::Bad;
        };
        let len = packet.len() + VlanTag::BYTES;
        if self.used_packets == self.slots || len > self.room - self.used_bytes {
            return Sent::NoRoom(len);
        }
        let (first, second) = self.bytes.as_mut_slices();
        let places = first.iter_mut().chain(second).skip(self.used_bytes);
        let tag = tag.to_bytes();
        for (place, byte) in places.zip(addresses.iter().chain(&tag).chain(rest)) {
            place.write(*byte);
        }
        self.end_packet(self.used_bytes + len, len, meta.with_tag(VlanTag::BYTES as u16))
    }

    /// Copies a packet's parts behind the packets so far, and returns where it ends. The ring has
    /// room. Returns `None` if a part is not inside of its space.
    #[inline(always)]
    fn copy(&mut self, spaces: &Spaces, parts: &[Part]) -> Option<usize> {
        let (first, second) = self.bytes.as_mut_slices();
        let mut at = self.used_bytes;
        for part in parts {
            // The bytes copied so far lie after `used_bytes`, so the next packet overwrites them.
            if spaces.readable(part.space, part.offset, part.len).is_err() {
                return None;
            }
            let len = part.len as usize;
            // The free part of the ring may wrap, into at most two pieces.
            let split = first.len().saturating_sub(at).min(len);
            let mut copied = true;
            if split > 0 {
                let to = &mut first[at..at + split];
                copied &= spaces.copy_into(part.space, part.offset, to).is_ok();
            }
            if split < len {
                let start = at + split - first.len();
                let to = &mut second[start..start + len - split];
                copied &= spaces.copy_into(part.space, part.offset + split as u32, to).is_ok();
            }
            if !copied {
                return None;
            }
            at += len;
        }
        Some(at)
    }

    /// Ends a packet of `len` bytes, up to `at`.
    #[inline(always)]
    fn end_packet(&mut self, at: usize, len: usize, meta: Meta) -> Sent {
        let (first, second) = self.packets.as_mut_slices();
        let slot = match first.get_mut(self.used_packets) {
            Some(slot) => slot,
            None => &mut second[self.used_packets - first.len()],
        };
        slot.write(Boundary { len: len as u32, meta });
        self.used_packets += 1;
        self.used_bytes = at;
        Sent::Yes(len)
    }

    /// Publishes the bytes first, then the boundaries, so that an end that sees a boundary finds
    /// its bytes. Returns whether there were packets to publish.
    pub(super) fn publish(self) -> bool {
        if self.used_packets == 0 {
            return false;
        }
        // SAFETY: `push` has written the first `used_bytes` bytes, without a gap.
        unsafe { self.bytes.commit(self.used_bytes) };
        // SAFETY: `push` has written the first `used_packets` boundaries.
        unsafe { self.packets.commit(self.used_packets) };
        true
    }
}
