//! The read path: a queue of received packets for each reader, after the receive half of Tracey and
//! Banerji (4.3).
//!
//! The thread that handles interrupts delivers into the queues, or a thread inside of the driver
//! that does this work for it. A reader that looks into its queue has its flag set. The thread that
//! delivers does not wait for that: it defers the packet, and the reader takes deferred packets
//! before it releases its flag. With [`Protection::Mutex`] the thread that delivers waits, as an
//! interrupt does while the interrupt level is raised.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::{EventfdFlags, eventfd};
use towpath_device::Meta;
use towpath_memory::ForkGuard;
use towpath_queue::optimistic::{Entered, Left, Optimistic};

use crate::packet::Packet;
use crate::{Protection, ReadError, ReaderCounts};

/// The most packets that a reader takes at once.
const BATCH: usize = 32;

/// How often a reader tries before it makes way: longer than a packet takes to deliver.
const SPINS: u32 = 100;

/// Chooses the reader of a received packet.
pub(crate) type Choose = Box<dyn Fn(&[u8]) -> Option<usize> + Send>;

/// All readers, for the thread that delivers.
pub(crate) struct Readers {
    choose: Choose,
    inboxes: Vec<Arc<Inbox>>,
}

impl Readers {
    /// Creates readers, each with room for `packets` packets of up to `bytes` bytes.
    pub(crate) fn new(
        count: usize,
        (packets, bytes): (u32, usize),
        read: Protection,
        choose: Choose,
        guard: &ForkGuard,
    ) -> io::Result<(Readers, Vec<Reader>)> {
        let inbox = |_| Inbox::new(packets, bytes, read).map(Arc::new);
        let inboxes: Vec<_> = (0..count).map(inbox).collect::<io::Result<_>>()?;
        let memory = || (0..BATCH).map(|_| Packet::with_capacity(bytes)).collect();
        let readers = inboxes.iter().map(|inbox| Reader {
            guard: guard.clone(),
            inbox: inbox.clone(),
            taken: VecDeque::with_capacity(BATCH),
            empty: memory(),
        });
        let readers = readers.collect();
        Ok((Readers { choose, inboxes }, readers))
    }

    /// Returns the reader of a packet, as the program chooses it.
    pub(crate) fn choose(&self, packet: &[u8]) -> Option<&Inbox> {
        let number = (self.choose)(packet)?;
        self.inboxes.get(number).map(|inbox| &**inbox)
    }
}

/// The packets of a reader.
pub(crate) struct Inbox {
    door: Door,
    /// Readable after a notification of the sleeping reader.
    doorbell: OwnedFd,
    /// Packets that were dropped because too many were deferred. The thread that delivers writes it.
    dropped_deferred: AtomicU64,
}

enum Door {
    Mutex(Box<Mutex<Queue>>),
    Optimistic(Box<Optimistic<Queue, Packet>>),
}

type Inside<'a> = Entered<'a, Queue, Packet>;

/// What the reader and the thread that delivers share.
struct Queue {
    packets: VecDeque<Packet>,
    /// Memory for packets that are yet to come.
    empty: Vec<Packet>,
    /// `true` if the reader sleeps.
    sleeps: bool,
    /// `true` if the doorbell holds a notification.
    is_notified: bool,
    counts: ReaderCounts,
}

impl Queue {
    /// Takes a packet in exchange for an empty memory, or drops and counts it. Returns whether the
    /// queue took it.
    fn put(&mut self, packet: &mut Packet) -> bool {
        let Some(mut empty) = self.empty.pop() else {
            self.counts.dropped_full += 1;
            return false;
        };
        std::mem::swap(packet, &mut empty);
        self.packets.push_back(empty);
        self.counts.delivered += 1;
        true
    }

    /// Wakes the reader if it sleeps and has packets.
    fn notify(&mut self, doorbell: &OwnedFd) {
        if !self.packets.is_empty() && std::mem::take(&mut self.sleeps) {
            let _ = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
            self.is_notified = true;
        }
    }

    /// Exchanges the reader's empty memories for packets, at most `budget`.
    fn exchange(&mut self, taken: &mut VecDeque<Packet>, empty: &mut Vec<Packet>, budget: usize) {
        while taken.len() < budget
            && let Some(packet) = self.packets.front_mut()
            && let Some(mut other) = empty.pop()
        {
            std::mem::swap(packet, &mut other);
            taken.push_back(other);
            self.empty.extend(self.packets.pop_front());
        }
        self.counts.read += taken.len() as u64;
    }

    /// Notes whether the reader is about to sleep. Returns `true` if it may.
    fn arm(&mut self, doorbell: &OwnedFd) -> bool {
        if std::mem::take(&mut self.is_notified) {
            let _ = rustix::io::read(doorbell, &mut [0; 8]);
        }
        self.sleeps = self.packets.is_empty();
        self.sleeps
    }
}

fn lock(mutex: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    fn new(packets: u32, bytes: usize, read: Protection) -> io::Result<Inbox> {
        let memory = || (0..packets).map(|_| Packet::with_capacity(bytes)).collect::<Vec<_>>();
        let queue = Queue {
            packets: VecDeque::with_capacity(packets as usize),
            empty: memory(),
            sleeps: false,
            is_notified: false,
            counts: ReaderCounts::default(),
        };
        let door = match read {
            Protection::Mutex => Door::Mutex(Box::new(Mutex::new(queue))),
            Protection::Optimistic => {
                let section = Optimistic::with_memory(memory(), queue);
                Door::Optimistic(Box::new(section.ok_or(io::ErrorKind::InvalidInput)?))
            }
        };
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { door, doorbell, dropped_deferred: AtomicU64::new(0) })
    }

    /// Delivers a packet, in exchange for an empty memory. One thread at a time delivers.
    pub(crate) fn deliver(&self, packet: &mut Packet) {
        match &self.door {
            Door::Mutex(mutex) => {
                let mut queue = match mutex.try_lock() {
                    Ok(queue) => queue,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => {
                        let mut queue = lock(mutex);
                        queue.counts.contended += 1;
                        queue
                    }
                };
                queue.put(packet);
                queue.notify(&self.doorbell);
            }
            Door::Optimistic(section) => self.deliver_by(section, packet),
        }
    }

    fn deliver_by(&self, section: &Optimistic<Queue, Packet>, packet: &mut Packet) {
        if let Some(mut entered) = section.try_enter() {
            // What this thread deferred comes first.
            self.accept(&mut entered);
            entered.state().put(packet);
            entered.state().notify(&self.doorbell);
            self.exit(section, entered);
            return;
        }
        // A delivery is one batch of the device, which bounds the work that is left.
        match section.leave_though_closed() {
            Some(mut leaving) => {
                leaving.write(|memory| std::mem::swap(memory, packet));
                leaving.publish();
            }
            None => {
                let dropped = self.dropped_deferred.load(Ordering::Relaxed);
                self.dropped_deferred.store(dropped + 1, Ordering::Relaxed);
            }
        }
        section.drive(|entered| self.accept(entered));
    }

    /// Moves deferred packets into the queue.
    fn accept(&self, entered: &mut Inside<'_>) -> bool {
        while let Some(slot) = entered.take() {
            let mut packet = Packet::default();
            entered.with_slot(slot, |memory| std::mem::swap(memory, &mut packet));
            let queue = entered.state();
            queue.counts.deferred += u64::from(queue.put(&mut packet));
            entered.with_slot(slot, |memory| std::mem::swap(memory, &mut packet));
            entered.release(slot);
        }
        entered.state().notify(&self.doorbell);
        true
    }

    fn exit(&self, section: &Optimistic<Queue, Packet>, entered: Inside<'_>) {
        if entered.exit() != Left::Nothing {
            section.drive(|entered| self.accept(entered));
        }
    }

    /// Lets the reader `look` at its queue, with its flag set.
    fn look<T>(&self, look: impl FnOnce(&mut Queue) -> T) -> T {
        match &self.door {
            Door::Mutex(mutex) => look(&mut lock(mutex)),
            Door::Optimistic(section) => {
                let mut entered = enter(section);
                self.accept(&mut entered);
                let looked = look(entered.state());
                self.exit(section, entered);
                looked
            }
        }
    }
}

/// Enters for the reader, which spins as the paper's does: the thread inside is about to deliver a
/// packet. If the kernel has stopped that thread, the reader makes way.
fn enter(section: &Optimistic<Queue, Packet>) -> Inside<'_> {
    for _ in 0..SPINS {
        if let Some(entered) = section.try_enter() {
            return entered;
        }
        std::hint::spin_loop();
    }
    loop {
        std::thread::yield_now();
        if let Some(entered) = section.try_enter() {
            return entered;
        }
    }
}

/// The packets that a program's function chose for one reader. Its thread takes them.
pub struct Reader {
    guard: ForkGuard,
    inbox: Arc<Inbox>,
    /// Packets that the reader took and has yet to show.
    taken: VecDeque<Packet>,
    /// Memory that goes back in exchange for packets.
    empty: Vec<Packet>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    /// Reads at most `budget` packets, and at most 32. Returns their number. `each` runs outside of
    /// any section or mutex, so it may send. If it panics, the next call goes on behind its packet.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(
        &mut self,
        budget: usize,
        mut each: impl FnMut(&[u8], Meta),
    ) -> Result<usize, ReadError> {
        self.check()?;
        let (taken, empty, budget) = (&mut self.taken, &mut self.empty, budget.min(BATCH));
        if taken.is_empty() {
            self.inbox.look(|queue| queue.exchange(taken, empty, budget));
        }
        let mut packets = 0;
        while packets < budget
            && let Some(packet) = self.taken.pop_front()
        {
            packets += 1;
            // The memory is back before a panic of `each`.
            self.empty.push(packet);
            if let Some(packet) = self.empty.last() {
                each(packet.bytes(), packet.meta());
            }
        }
        Ok(packets)
    }

    /// Requests a wake-up by the next packet; the caller calls this before each sleep on
    /// [`Reader::sleep_fd`]. Returns `false` if there is a packet already.
    ///
    /// # Errors
    /// [`ReadError`]; then no packet wakes this process.
    pub fn arm(&mut self) -> Result<bool, ReadError> {
        self.check()?;
        let doorbell = &self.inbox.doorbell;
        Ok(self.taken.is_empty() && self.inbox.look(|queue| queue.arm(doorbell)))
    }

    /// Fails in a child made by `fork`.
    #[inline]
    fn check(&self) -> Result<(), ReadError> {
        if self.guard.is_parent() { Ok(()) } else { Err(ReadError::Forked) }
    }

    /// Returns the descriptor that becomes readable when a packet comes after [`Reader::arm`].
    #[must_use]
    pub fn sleep_fd(&self) -> BorrowedFd<'_> {
        self.inbox.doorbell.as_fd()
    }

    /// Returns the counts. In a child made by `fork`, all are 0.
    #[must_use]
    pub fn counts(&self) -> ReaderCounts {
        if self.check().is_err() {
            return ReaderCounts::default();
        }
        let counts = self.inbox.look(|queue| queue.counts);
        let dropped_deferred = self.inbox.dropped_deferred.load(Ordering::Relaxed);
        ReaderCounts { dropped_deferred, ..counts }
    }
}

#[cfg(test)]
mod tests;
