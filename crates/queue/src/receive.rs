//! The receive queue: from the server to the application.
//!
//! The application provides empty buffers. The server fills them in order, and writes a descriptor
//! for each into the slot of the same number. One index says both "received up to here" and
//! "provided buffers used up to here". With two indices, a server that dies between the two stores
//! would lose or duplicate a buffer.
//!
//! An application with a hardware queue of its own lets the server fill provided buffers in any
//! order. The server lends most of them to the device, which writes packets into them; other
//! packets for the same queue are copied into the rest meanwhile.

use alloc::boxed::Box;

use crate::Violation;
use crate::buffers::{FreeBuffers, Ledger, Slots};
use crate::descriptor::{Descriptor, MAX_CHAIN, META, MORE, OUTGOING, PoolShape};
use crate::layout::QueueShape;
use crate::spsc::{Observed, Published};
use crate::transmit::{TransmitConsumer, TransmitProducer};
use crate::word::{
    AtomicU64, CACHE_LINE_WORDS, Ordering, OwnWords, PeerWords, prefetch_ahead, store_pair,
};

/// Descriptors that this side prefetches before it fetches them.
const AHEAD: u32 = 64;

/// Provided buffers whose numbers the server prefetches. The application decides how many it
/// provides, and to prefetch more than a cache holds would only displace other data.
const AHEAD_PROVIDED: u32 = 512;

/// The application's side. It checks the server's words too: a faulty server must not make the
/// application read outside of its pool.
#[derive(Debug)]
pub struct ReceiveConsumer {
    provided: OwnWords,
    head: Published,
    commit: Observed,
    descriptors: PeerWords,
    taken: u32,
    slots: Slots,
    /// The provided buffers that the server may fill in any order; `None` if it fills them in the
    /// order in which they were provided.
    any_order: Option<Outstanding>,
    pool: PoolShape,
    capacity: u32,
}

impl ReceiveConsumer {
    /// Lets the server fill provided buffers in any order from now on, before it has filled one. A
    /// device that writes into the buffers of a queue of the session's own needs this.
    pub fn allow_any_order(&mut self) {
        let mut outstanding = Outstanding::new(self.pool.buffers());
        for ahead in 0..self.in_flight() {
            outstanding.add(self.slots.get(self.taken.wrapping_add(ahead)));
        }
        self.any_order = Some(outstanding);
    }

    /// Returns how many buffers the application can provide now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.capacity - self.head.now().wrapping_sub(self.taken)
    }

    /// Returns how many provided buffers the application has not taken back: empty ones, and filled
    /// ones that wait.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.head.now().wrapping_sub(self.taken)
    }

    /// Provides an empty buffer. Returns whether there was room. The server sees the buffer after
    /// [`ReceiveConsumer::publish`].
    #[inline]
    pub fn provide(&mut self, buffer: u32) -> bool {
        if self.room() == 0 {
            return false;
        }
        let index = self.head.now();
        self.provided
            .prefetch_slots((index & (self.capacity - 1)) as usize, self.capacity as usize);
        self.provided.store((index & (self.capacity - 1)) as usize, u64::from(buffer));
        self.slots.set(index, buffer);
        if let Some(outstanding) = &mut self.any_order {
            outstanding.add(buffer);
        }
        self.head.advance(1);
        true
    }

    /// Provides empty buffers from a list, at most `most` and as many as there is room for, as
    /// [`ReceiveConsumer::provide`] does. Returns their number.
    #[inline]
    pub fn provide_from(&mut self, free: &mut FreeBuffers, most: u32) -> u32 {
        let most = most.min(self.room()).min(u32::try_from(free.len()).unwrap_or(u32::MAX));
        let mut done = 0;
        // Two runs, where the slots go on at the start of the queue's memory.
        while done < most {
            let index = self.head.now();
            let first = (index & (self.capacity - 1)) as usize;
            let slots = self.slots.run_mut(index, most - done);
            for slot in (first..first + slots.len()).step_by(CACHE_LINE_WORDS) {
                let line = slot & !(CACHE_LINE_WORDS - 1);
                self.provided.prefetch_slots(line, self.capacity as usize);
            }
            let words = self.provided.run_mut(first, slots.len());
            let buffers = free.take_all(slots.len());
            for ((word, slot), buffer) in words.iter().zip(slots.iter_mut()).zip(buffers) {
                #[cfg(all(test, not(loom)))]
                crate::stop_tests::before_store();
                word.store(u64::from(buffer), Ordering::Relaxed);
                *slot = buffer;
                if let Some(outstanding) = &mut self.any_order {
                    outstanding.add(buffer);
                }
            }
            self.head.advance(slots.len() as u32);
            done += slots.len() as u32;
        }
        most
    }

    /// Publishes the provided buffers. Returns whether there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.head.publish()
    }

    /// Prefetches the server's index and the next descriptors, before anything shows that there are
    /// some.
    #[inline]
    pub fn prefetch_news(&self) {
        self.commit.prefetch();
        let slot = (self.commit.seen() & (self.capacity - 1)) as usize * 2;
        self.descriptors.prefetch_slots(slot, 1, self.capacity as usize * 2);
    }

    /// Observes the server's commit index. Returns how many descriptors wait.
    ///
    /// # Errors
    /// [`Violation::Index`] when the server's index is impossible.
    #[inline]
    pub fn observe(&mut self) -> Result<u32, Violation> {
        // The server cannot have filled buffers that it does not see yet.
        let published = self.head.now().wrapping_sub(self.head.unpublished());
        let commit = self.commit.observe(published)?;
        self.prefetch();
        Ok(commit.wrapping_sub(self.taken))
    }

    /// Returns how many descriptors wait, as last observed.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.commit.seen().wrapping_sub(self.taken)
    }

    /// Returns the buffer of the descriptor after `ahead` others that wait; `None` when no more
    /// than `ahead` wait. The server fills buffers in order, so this reads no shared memory.
    #[inline]
    #[must_use]
    pub fn waiting_buffer(&self, ahead: u32) -> Option<u32> {
        (ahead < self.waiting()).then(|| self.slots.get(self.taken.wrapping_add(ahead)))
    }

    /// Takes packets of one buffer into `out`, whose buffers belong to the application from now on:
    /// as many as wait, at most as many as `out` has room for, and only up to the end of the
    /// queue's memory. Returns their number. Takes no packet of several buffers:
    /// [`ReceiveConsumer::take`] does.
    ///
    /// # Errors
    /// The check that failed, once the packets before it are taken.
    #[inline]
    pub fn take_singles(&mut self, out: &mut [Descriptor]) -> Result<usize, Violation> {
        let first = self.taken;
        let most = self.waiting().min(u32::try_from(out.len()).unwrap_or(u32::MAX));
        let slots = self.slots.run(first, most);
        let slot = (first & (self.capacity - 1)) as usize;
        let words = self.descriptors.run(slot * 2, slots.len() * 2);
        let (mut taken, mut failed) = (0, None);
        for ((words, slot), place) in words.as_chunks::<2>().0.iter().zip(slots).zip(out) {
            let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            match Descriptor::check(words, &self.pool, MORE | META | OUTGOING) {
                Ok(descriptor) if descriptor.goes_on() => break,
                Ok(descriptor) if is_theirs(&mut self.any_order, descriptor.buffer, *slot) => {
                    *place = descriptor;
                }
                Ok(_) => failed = Some(Violation::Ownership),
                Err(violation) => failed = Some(violation),
            }
            if failed.is_some() {
                break;
            }
            taken += 1;
        }
        self.taken = first.wrapping_add(taken);
        self.prefetch();
        match failed {
            Some(violation) if taken == 0 => Err(violation),
            _ => Ok(taken as usize),
        }
    }

    /// Prefetches at most [`AHEAD`] waiting descriptors.
    #[inline]
    fn prefetch(&self) {
        let slot = (self.taken & (self.capacity - 1)) as usize * 2;
        let count = self.waiting().min(AHEAD) as usize * 2;
        self.descriptors.prefetch_slots(slot, count, self.capacity as usize * 2);
    }

    /// Takes the next packet, whose buffers belong to the application from now on. Returns the
    /// number of its buffers; 0 when nothing waits.
    ///
    /// # Errors
    /// The check that failed.
    #[inline]
    pub fn take(&mut self, packet: &mut [Descriptor; MAX_CHAIN]) -> Result<usize, Violation> {
        let waiting = self.waiting();
        if waiting == 0 {
            return Ok(0);
        }
        let mut count = 0;
        loop {
            if count == MAX_CHAIN || count as u32 == waiting {
                return Err(Violation::Chain);
            }
            let index = self.taken.wrapping_add(count as u32);
            let slot = (index & (self.capacity - 1)) as usize * 2;
            let words = self.descriptors.fetch_pair(slot);
            let allowed = MORE | META | OUTGOING;
            let descriptor = match packet[..count].last() {
                None => Descriptor::check(words, &self.pool, allowed)?,
                Some(before) => Descriptor::check_next(words, &self.pool, allowed, before)?,
            };
            let slot = self.slots.get(index);
            if !is_theirs(&mut self.any_order, descriptor.buffer, slot) {
                return Err(Violation::Ownership);
            }
            packet[count] = descriptor;
            count += 1;
            if !descriptor.goes_on() {
                break;
            }
        }
        self.taken = self.taken.wrapping_add(count as u32);
        Ok(count)
    }
}

/// Returns `true` if the server may name a buffer in a slot for which the application provided
/// `slot`. The buffer is the application's from then on.
#[inline(always)]
fn is_theirs(any_order: &mut Option<Outstanding>, buffer: u32, slot: u32) -> bool {
    match any_order {
        None => buffer == slot,
        Some(outstanding) => outstanding.remove(buffer),
    }
}

/// The buffers that the application provided and has not taken back.
#[derive(Debug)]
struct Outstanding {
    bits: Box<[u64]>,
}

impl Outstanding {
    fn new(buffers: u32) -> Outstanding {
        Outstanding { bits: alloc::vec![0; buffers.div_ceil(64) as usize].into_boxed_slice() }
    }

    fn add(&mut self, buffer: u32) {
        if let Some(word) = self.bits.get_mut(buffer as usize / 64) {
            *word |= 1 << (buffer % 64);
        }
    }

    /// Removes a buffer. Returns `true` if it was there.
    fn remove(&mut self, buffer: u32) -> bool {
        let Some(word) = self.bits.get_mut(buffer as usize / 64) else { return false };
        let bit = 1 << (buffer % 64);
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }
}

/// The server's side. The peer is not trusted.
///
/// The slots from the commit index on hold the buffers to fill. The last `lent` of the slots up to
/// the head hold none: their buffers are with the device.
#[derive(Debug)]
pub struct ReceiveProducer {
    head: Observed,
    provided: PeerWords,
    descriptors: OwnWords,
    commit: Published,
    slots: Slots,
    capacity: u32,
    /// The maximum number of buffers that the server saw provided at once.
    most: u32,
    /// The number of buffers that the server lent to a device.
    lent: u32,
}

impl ReceiveProducer {
    /// Observes which buffers the application provided, fetches and checks their numbers, and takes
    /// them. Returns how many the server can fill. The capacity bounds the loop.
    ///
    /// # Errors
    /// [`Violation::Index`], [`Violation::Buffer`], [`Violation::Ownership`].
    #[inline]
    pub fn observe(&mut self, ledger: &mut Ledger) -> Result<u32, Violation> {
        let before = self.head.seen();
        // Until `publish` releases filled buffers, their slots still name them, so the application
        // must not reuse the slots.
        let published = self.commit.now().wrapping_sub(self.commit.unpublished());
        let head = self.head.observe(published.wrapping_add(self.capacity))?;
        let new = head.wrapping_sub(before);
        let first = (before & (self.capacity - 1)) as usize;
        let near = new.min(AHEAD_PROVIDED) as usize;
        self.provided.prefetch_slots(first, near, self.capacity as usize);
        let mut done = 0;
        // Two runs, where the slots go on at the start of the queue's memory.
        while done < new {
            let index = before.wrapping_add(done);
            let slots = self.slots.run_mut(index, new - done);
            let slot = (index & (self.capacity - 1)) as usize;
            let words = self.provided.run(slot, slots.len());
            let (taken, failed) = match take_provided(words, slots, ledger) {
                Ok(taken) => (taken, None),
                Err((taken, violation)) => (taken, Some(violation)),
            };
            done += taken;
            if let Some(violation) = failed {
                // The server can fill only buffers that it checked and took, also if the caller
                // does not end the session at once.
                self.head.assume(before.wrapping_add(done));
                self.close_gap(before, done);
                return Err(violation);
            }
        }
        self.close_gap(before, new);
        self.most = self.most.max(self.unfilled());
        Ok(self.available())
    }

    /// Moves `new` buffers, which came at index `before`, in front of the slots of lent buffers.
    #[inline]
    fn close_gap(&mut self, before: u32, new: u32) {
        if self.lent == 0 {
            return;
        }
        for index in (0..new).map(|done| before.wrapping_add(done)) {
            let buffer = self.slots.get(index);
            self.slots.set(index.wrapping_sub(self.lent), buffer);
        }
    }

    /// Returns how many provided buffers are not filled, as last observed: those that the server
    /// can fill, and lent ones.
    #[inline]
    fn unfilled(&self) -> u32 {
        self.head.seen().wrapping_sub(self.commit.now())
    }

    /// Returns how many buffers the server can fill, as last observed.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u32 {
        self.unfilled() - self.lent
    }

    /// Returns how many buffers the server has lent to a device.
    #[inline]
    #[must_use]
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// Lends a buffer to a device that writes packets into it. The application must allow any order
    /// ([`ReceiveConsumer::allow_any_order`]). Returns `None` if none is available.
    pub fn lend(&mut self) -> Option<u32> {
        let ahead = self.available().checked_sub(1)?;
        let buffer = self.buffer(ahead);
        self.lent += 1;
        Some(buffer)
    }

    /// Takes back a lent buffer that the device did not fill, or whose packet goes nowhere.
    ///
    /// # Panics
    /// When no buffer is lent: a mistake of the caller, which no peer can cause.
    pub fn take_back(&mut self, buffer: u32) {
        assert!(self.lent > 0, "no buffer is lent");
        self.slots.set(self.head.seen().wrapping_sub(self.lent), buffer);
        self.lent -= 1;
    }

    /// Pushes a lent buffer, which the device filled, as [`ReceiveProducer::push`] does.
    pub fn push_lent(&mut self, descriptor: Descriptor) {
        // The buffer that stood in the next slot takes the place of this one.
        let next = self.commit.now();
        let stood_there = self.slots.get(next);
        self.take_back(stood_there);
        self.slots.set(next, descriptor.buffer);
        self.push(descriptor);
    }

    /// `true` if more than half of the buffers that the application provides are filled, as last
    /// observed. [`ReceiveProducer::observe`] tells whether the application has provided buffers
    /// again since. If not, the application should check now, whatever its wait strategy.
    #[inline]
    #[must_use]
    pub fn is_half_used(&self) -> bool {
        self.unfilled() < self.most.div_ceil(2)
    }

    /// Returns the buffer to fill after `ahead` others. `ahead` is below
    /// [`ReceiveProducer::available`].
    #[inline]
    #[must_use]
    pub fn buffer(&self, ahead: u32) -> u32 {
        debug_assert!(ahead < self.available());
        self.slots.get(self.commit.now().wrapping_add(ahead))
    }

    /// Pushes the next filled buffer: `descriptor` names the buffer and its data. The caller pushes
    /// all of a packet's buffers or none, and so checks [`ReceiveProducer::available`] first.
    #[inline]
    pub fn push(&mut self, descriptor: Descriptor) {
        let index = self.commit.now();
        debug_assert!(self.available() > 0 && descriptor.buffer == self.slots.get(index));
        let slot = (index & (self.capacity - 1)) as usize * 2;
        self.descriptors.prefetch_slots(slot, self.capacity as usize * 2);
        self.descriptors.store_pair(slot, descriptor.to_words());
        self.commit.advance(1);
    }

    /// Prefetches the line that [`ReceiveProducer::publish`] writes.
    #[inline]
    pub fn prefetch_publication(&self) {
        self.commit.prefetch();
    }

    /// Returns the buffers to fill next, up to the end of the queue's memory.
    #[inline]
    pub fn fill(&mut self) -> Filling<'_> {
        let first = self.commit.now();
        let slots = self.slots.run(first, self.available());
        let slot = (first & (self.capacity - 1)) as usize * 2;
        Filling {
            words: self.descriptors.run_mut(slot, slots.len() * 2).as_chunks().0,
            slots,
            commit: &mut self.commit,
            filled: 0,
        }
    }

    /// Publishes the filled buffers, which belong to the application from now on. Returns how many
    /// there were.
    #[inline]
    pub fn publish(&mut self, ledger: &mut Ledger) -> u32 {
        let filled = self.commit.unpublished();
        let first = self.commit.now().wrapping_sub(filled);
        self.slots.release(ledger, first, filled);
        self.commit.publish();
        filled
    }
}

/// The next buffers of a queue to fill. The queue has those that were pushed once this value is
/// dropped.
#[derive(Debug)]
pub struct Filling<'a> {
    slots: &'a [u32],
    words: &'a [[AtomicU64; 2]],
    commit: &'a mut Published,
    filled: usize,
}

impl Filling<'_> {
    /// Returns the buffer to fill after `ahead` others; `None` if there are no more.
    #[inline]
    #[must_use]
    pub fn buffer(&self, ahead: u32) -> Option<u32> {
        self.slots.get(self.filled + ahead as usize).copied()
    }

    /// Pushes the next filled buffer, which `descriptor` names, as [`ReceiveProducer::push`] does.
    /// Ignores it if there are no more buffers to fill.
    #[inline]
    pub fn push(&mut self, descriptor: Descriptor) {
        debug_assert_eq!(Some(descriptor.buffer), self.buffer(0));
        let Some(words) = self.words.get(self.filled) else { return };
        prefetch_ahead(&words[0]);
        store_pair(words, descriptor.to_words());
        self.filled += 1;
    }
}

impl Drop for Filling<'_> {
    #[inline]
    fn drop(&mut self) {
        self.commit.advance(self.filled as u32);
    }
}

/// Fetches the numbers of provided buffers once each, checks them, takes them, and puts them into
/// their slots. Returns how many there are.
///
/// # Errors
/// The number of those taken before the check that failed, and that check.
#[inline]
fn take_provided(
    words: &[AtomicU64],
    slots: &mut [u32],
    ledger: &mut Ledger,
) -> Result<u32, (u32, Violation)> {
    let mut ledger = ledger.taking();
    for (taken, (word, slot)) in (0..).zip(words.iter().zip(slots)) {
        let word = word.load(Ordering::Relaxed);
        let buffer = u32::try_from(word).map_err(|_| (taken, Violation::Buffer))?;
        ledger.take(buffer).map_err(|violation| (taken, violation))?;
        *slot = buffer;
    }
    Ok(words.len() as u32)
}

/// Returns the application's side of a queue pair. `own` are its words in the application pages,
/// new and zero; `peer` those in the server pages.
#[must_use]
pub fn application_side(
    shape: &QueueShape,
    receive_pool: PoolShape,
    own: OwnWords,
    peer: &PeerWords,
) -> (TransmitProducer, ReceiveConsumer) {
    let own = shape.application_own(own);
    let peer = shape.server_peer(peer);
    let head = Published::resume(own.receive_line);
    let taken = head.now();
    let receive = ReceiveConsumer {
        provided: own.provided,
        commit: Observed::new(peer.receive_line, taken),
        head,
        descriptors: peer.descriptors,
        taken,
        slots: Slots::new(shape.receive()),
        any_order: None,
        pool: receive_pool,
        capacity: shape.receive(),
    };
    let transmit =
        TransmitProducer::new(shape, own.transmit_line, own.descriptors, peer.transmit_line);
    (transmit, receive)
}

/// Returns the server's side of a queue pair, new or left by a predecessor: the server resumes at
/// the commit words. `own` are the pair's words in the server pages, `peer` those in the
/// application pages, `done` those in the ledger. The session's [`Ledger`] is new or was cleared.
#[must_use]
pub fn server_side(
    shape: &QueueShape,
    transmit_pool: PoolShape,
    own: OwnWords,
    peer: &PeerWords,
    done: OwnWords,
) -> (TransmitConsumer, ReceiveProducer) {
    let own = shape.server_own(own);
    let peer = shape.application_peer(peer);
    let commit = Published::resume(own.receive_line);
    let receive = ReceiveProducer {
        head: Observed::new(peer.receive_line, commit.now()),
        provided: peer.provided,
        descriptors: own.descriptors,
        commit,
        slots: Slots::new(shape.receive()),
        capacity: shape.receive(),
        most: 0,
        lent: 0,
    };
    let transmit = TransmitConsumer::new(
        shape,
        transmit_pool,
        own.transmit_line,
        peer.transmit_line,
        peer.descriptors,
        done,
    );
    (transmit, receive)
}
