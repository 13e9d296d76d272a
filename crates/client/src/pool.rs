//! Buffers as bytes.
//!
//! Unsafe lives here because the client reads and writes buffers in place.
//!
//! A received packet is a `&[u8]` into memory that another process, the server, has mapped
//! writable. Only here in the project does a reference rest on a peer's promise, and only on the
//! server's: the server writes a receive buffer only while the buffer is provided. The queue gives
//! the buffer to the application, and the session provides the buffer again only after the borrow
//! of the packet has ended. An application trusts its server in this as it trusts the kernel: the
//! server could as well forge the packets that it delivers. No application depends on another one
//! in this way, since a receive pool has one writer, the server, and one reader.
//!
//! Until the application pushes a transmit buffer, only the application writes it. The server has
//! the transmit pool mapped for reading, and reads only buffers that are in a queue.

use std::sync::{Arc, Mutex, PoisonError};

use towpath_memory::{ForkGuard, Mapping, Region};
use towpath_packet::Meta;
use towpath_queue::PoolShape;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN, META, OUTGOING};

use crate::ids::EndpointId;

/// A received packet, read in place. The session provides its buffers again after the callback of
/// [`crate::Receiver::receive`] returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pool: &'a ReceivePool,
    descriptors: &'a [Descriptor],
    len: usize,
}

/// The pieces of a [`Received`] packet, in order.
#[derive(Clone, Debug)]
pub struct ReceivedParts<'a> {
    pool: &'a ReceivePool,
    descriptors: &'a [Descriptor],
}

impl<'a> Iterator for ReceivedParts<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let first = self.descriptors.first()?;
        // Buffers that follow each other in the pool hold one piece.
        let mut pairs = self.descriptors.windows(2);
        let more = pairs.position(|pair| !pair[0].is_followed_by(&pair[1], &self.pool.shape));
        let count = more.map_or(self.descriptors.len(), |last| last + 1);
        let (piece, rest) = self.descriptors.split_at(count);
        self.descriptors = rest;
        let len = piece.iter().map(|one| one.len as usize).sum();
        Some(self.pool.bytes(first, len))
    }
}

impl<'a> Received<'a> {
    #[inline]
    pub(crate) fn new(pool: &'a ReceivePool, descriptors: &'a [Descriptor]) -> Received<'a> {
        let len = descriptors.iter().map(|one| one.len as usize).sum();
        Received { pool, descriptors, len }
    }

    /// Returns the length in bytes, from the Ethernet header on.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(packet: &Received<'_>) {
    /// println!("{} bytes", packet.len());
    /// # }
    /// ```
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a packet is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the endpoint to which the server delivered the packet.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(packet: &Received<'_>, endpoint: Endpoint) {
    /// let is_own = packet.endpoint() == endpoint.id();
    /// # }
    /// ```
    #[must_use]
    pub fn endpoint(&self) -> EndpointId {
        EndpointId::new(self.descriptors[0].endpoint)
    }

    /// `true` if the server captured the packet as it was sent (capturing endpoints only).
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(packet: &Received<'_>) {
    /// let arrow = if packet.is_outgoing() { "->" } else { "<-" };
    /// # }
    /// ```
    #[must_use]
    pub fn is_outgoing(&self) -> bool {
        self.descriptors[0].flags & OUTGOING != 0
    }

    /// Returns the packet's offload state. Always [`Meta::FULL`] unless the endpoint's rule has
    /// offload.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(packet: &Received<'_>) {
    /// let is_large = packet.meta().segmentation.is_some();
    /// # }
    /// ```
    #[must_use]
    pub fn meta(&self) -> Meta {
        let first = &self.descriptors[0];
        if first.flags & META == 0 {
            return Meta::FULL;
        }
        self.pool.meta(first.buffer)
    }

    /// Returns the packet's pieces, in order.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(packet: &Received<'_>) {
    /// let sum: u64 = packet.parts().flatten().map(|byte| u64::from(*byte)).sum();
    /// # }
    /// ```
    #[must_use]
    pub fn parts(&self) -> ReceivedParts<'a> {
        ReceivedParts { pool: self.pool, descriptors: self.descriptors }
    }

    /// Returns the whole packet if it is in one piece. Every packet up to the buffer size is, and
    /// so is a larger one whose buffers follow each other in the pool.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(packet: &Received<'_>) {
    /// if let Some(bytes) = packet.contiguous() {
    ///     println!("to {:?}", &bytes[..6]);
    /// }
    /// # }
    /// ```
    #[must_use]
    #[inline]
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        if let [one] = self.descriptors {
            return Some(self.pool.bytes(one, one.len as usize));
        }
        let whole = self.parts().next()?;
        (whole.len() == self.len).then_some(whole)
    }

    /// Appends the packet to a vector.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(packet: &Received<'_>) {
    /// let mut copy = Vec::new();
    /// packet.append_to(&mut copy);
    /// # }
    /// ```
    pub fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len);
        for part in self.parts() {
            to.extend_from_slice(part);
        }
    }
}

/// The receive pool, which this process maps read-only.
#[derive(Clone, Debug)]
pub(crate) struct ReceivePool {
    memory: Arc<Mapping>,
    shape: PoolShape,
}

impl ReceivePool {
    /// Creates the pool; `None` when the memory is smaller than the shape says.
    pub(crate) fn new(memory: Mapping, shape: PoolShape) -> Option<ReceivePool> {
        let fits = memory.len() >= shape.pool_bytes();
        fits.then(|| ReceivePool { memory: Arc::new(memory), shape })
    }

    /// Returns how many bytes of packets the pool holds.
    pub(crate) fn data_bytes(&self) -> usize {
        self.shape.buffers() as usize * self.shape.data_bytes() as usize
    }

    /// Prefetches `len` bytes of a buffer that the application will read soon; the server's core
    /// has them in its cache.
    #[inline]
    pub(crate) fn prefetch(&self, buffer: u32, len: usize) {
        let start = self.shape.buffer_offset(buffer) + HEADROOM_BYTES as usize;
        self.memory.prefetch(start, len.min(self.shape.data_bytes() as usize));
    }

    /// Returns `len` bytes from the start of a descriptor's data on. They lie in buffers that the
    /// queue gave to this side together.
    #[inline]
    fn bytes(&self, first: &Descriptor, len: usize) -> &[u8] {
        let offset = first.pool_offset(&self.shape);
        // SAFETY: the queue gave the buffers to this side, and the session provides them again only
        // after the borrow on which this slice depends has ended. The server writes only provided
        // buffers: that is its contract, which the application trusts (see the module). This
        // process does not write the pool, which it maps for reading.
        unsafe { self.memory.bytes(offset, len) }.unwrap_or(&[])
    }

    fn meta(&self, buffer: u32) -> Meta {
        let mut words = [[0; 8]; 2];
        let start = self.shape.buffer_offset(buffer);
        for (place, word) in words.iter_mut().enumerate() {
            if !self.memory.copy_out(start + place * 8, word) {
                return Meta::FULL;
            }
        }
        Meta::from_words(words.map(u64::from_ne_bytes)).unwrap_or_default()
    }
}

/// The transmit pool, which only this process writes.
#[derive(Debug)]
pub(crate) struct TransmitPool {
    memory: Region,
    shape: PoolShape,
}

impl TransmitPool {
    /// Creates the pool; `None` when the memory is smaller than the shape says.
    pub(crate) fn new(memory: Region, shape: PoolShape) -> Option<TransmitPool> {
        let fits = memory.len() >= shape.pool_bytes();
        fits.then(|| TransmitPool { memory, shape })
    }

    /// Returns the pool as the buffers that the application reserves know it.
    pub(crate) fn lent(&self, guard: ForkGuard) -> Arc<LentBuffers> {
        Arc::new(LentBuffers {
            memory: Arc::clone(self.memory.mapping()),
            offset: self.memory.offset(),
            shape: self.shape,
            guard,
            returned: Mutex::default(),
        })
    }

    #[inline]
    pub(crate) fn data_bytes(&self) -> usize {
        self.shape.data_bytes() as usize
    }

    /// Prefetches `len` bytes of a buffer that the application will write soon; the server's core
    /// has them in its cache.
    #[inline]
    pub(crate) fn prefetch(&self, buffer: u32, len: usize) {
        let start = self.shape.buffer_offset(buffer) + HEADROOM_BYTES as usize;
        self.memory.prefetch_to_write(start, len.min(self.data_bytes()));
    }

    /// Returns the first `len` data bytes of a buffer; `None` when it has fewer. The caller owns
    /// the buffer: it is neither free nor in a queue.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, buffer: u32, len: usize) -> Option<&mut [u8]> {
        if buffer >= self.shape.buffers() || len > self.data_bytes() {
            return None;
        }
        let offset = self.shape.buffer_offset(buffer) + HEADROOM_BYTES as usize;
        // SAFETY: only this process writes the transmit pool, the server reads only buffers that
        // are in a queue, and `&mut self` is the only access to the pool here.
        unsafe { self.memory.bytes_mut(offset, len) }
    }

    /// Lets `fill` write a packet of `len` bytes, its checksums full, into one buffer that holds
    /// it.
    #[inline]
    pub(crate) fn write_one(
        &mut self,
        buffer: u32,
        len: usize,
        endpoint: u32,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Descriptor {
        let descriptor =
            Descriptor { buffer, start: HEADROOM_BYTES, len: len as u32, endpoint, flags: 0 };
        let offset = descriptor.pool_offset(&self.shape);
        // SAFETY: only this process writes the transmit pool, the buffer is free, and `&mut self`
        // is the only access to the pool here.
        let bytes = unsafe { self.memory.bytes_mut(offset, len) }.unwrap_or(&mut []);
        fill(&mut [bytes]);
        descriptor
    }

    /// Lets `fill` write a packet of `len` bytes into `buffers`, and returns their descriptors,
    /// still without an endpoint. The buffers are distinct, and the caller owns them.
    pub(crate) fn write(
        &mut self,
        buffers: &[u32],
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> ([Descriptor; MAX_CHAIN], usize) {
        let mut descriptors = [Descriptor::default(); MAX_CHAIN];
        let data_bytes = self.data_bytes();
        for (place, buffer) in buffers.iter().enumerate() {
            descriptors[place] = Descriptor {
                buffer: *buffer,
                start: HEADROOM_BYTES,
                len: data_bytes.min(len - place * data_bytes) as u32,
                endpoint: 0,
                flags: if place == 0 && meta != Meta::FULL { META } else { 0 },
            };
        }
        let slice = |descriptor: &Descriptor| {
            let offset = descriptor.pool_offset(&self.shape);
            // SAFETY: only this process writes the transmit pool, the buffers are distinct and
            // free, and `&mut self` is the only access to the pool here.
            unsafe { self.memory.bytes_mut(offset, descriptor.len as usize) }.unwrap_or(&mut [])
        };
        if buffers.len() == 1 {
            fill(&mut [slice(&descriptors[0])]);
        } else {
            let mut parts: [&mut [u8]; MAX_CHAIN] = std::array::from_fn(|_| &mut [][..]);
            for (part, descriptor) in parts.iter_mut().zip(&descriptors[..buffers.len()]) {
                *part = slice(descriptor);
            }
            fill(&mut parts[..buffers.len()]);
        }
        if meta != Meta::FULL {
            let start = self.shape.buffer_offset(buffers[0]);
            let words = meta.to_words();
            for (place, word) in words.iter().enumerate() {
                let _ = self.memory.copy_in(start + place * 8, &word.to_ne_bytes());
            }
        }
        (descriptors, buffers.len())
    }
}

/// The transmit pool, for the buffers that the application has reserved. Each of them belongs to one
/// [`LentBuffer`], which may be on another thread than the session, and may live longer.
#[derive(Debug)]
pub(crate) struct LentBuffers {
    memory: Arc<Mapping>,
    /// The pool's offset in the mapping.
    offset: usize,
    shape: PoolShape,
    guard: ForkGuard,
    /// Buffers that were dropped without being sent.
    returned: Mutex<Vec<u32>>,
}

impl LentBuffers {
    /// Passes the buffers that were dropped to `free`.
    pub(crate) fn take_returned(&self, free: impl FnMut(u32)) {
        // A thread that panicked inside has pushed or not pushed its buffer.
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.drain(..).for_each(free);
    }
}

/// A transmit buffer that the application has reserved. Dropping it returns it to its session.
#[derive(Debug)]
pub(crate) struct LentBuffer {
    number: u32,
    /// `None` once the buffer is in a queue.
    pool: Option<Arc<LentBuffers>>,
}

impl LentBuffer {
    /// Lends a buffer. The caller took it from the free list of the pool, so nothing else uses it.
    pub(crate) fn new(number: u32, pool: &Arc<LentBuffers>) -> LentBuffer {
        LentBuffer { number, pool: Some(Arc::clone(pool)) }
    }

    /// Returns the number; `None` if the buffer is of another pool.
    pub(crate) fn number_in(&self, pool: &Arc<LentBuffers>) -> Option<u32> {
        let is_of_pool = self.pool.as_ref().is_some_and(|own| Arc::ptr_eq(own, pool));
        is_of_pool.then_some(self.number)
    }

    /// Ends the loan, when the buffer is in a queue. The session gets it back from there.
    pub(crate) fn into_queue(mut self) {
        self.pool = None;
    }

    /// Returns the buffer's data bytes; `None` in a child made by `fork`, which lacks the memory.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let pool = self.pool.as_ref().filter(|pool| pool.guard.is_parent())?;
        let len = pool.shape.data_bytes() as usize;
        let start = pool.shape.buffer_offset(self.number) + HEADROOM_BYTES as usize;
        let bytes = pool.memory.range(pool.offset + start, len)?;
        // SAFETY: the range is inside of the pool, which is mapped for writing as long as `memory`
        // lives. Only this process writes the pool, the server reads only buffers that are in a
        // queue, and the buffer is neither free nor in a queue: only this value stands for it, and
        // `&mut self` is the only access.
        Some(unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr(), len) })
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        // Another thread may have held the lock when this process was forked.
        if let Some(pool) = self.pool.as_ref().filter(|pool| pool.guard.is_parent()) {
            let returned = pool.returned.lock();
            returned.unwrap_or_else(PoisonError::into_inner).push(self.number);
        }
    }
}
