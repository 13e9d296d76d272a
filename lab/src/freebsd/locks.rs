//! The hand-off that Watson replaced, for threads of one program: a send queue and a driver, each
//! with a mutex.
//!
//! A thread inserts its packet under the queue's mutex, and then waits for the driver's mutex. The
//! thread that gets it removes all packets under the queue's mutex again, and gives them to the
//! device. So a packet pays two pairs of lock operations for the queue, besides the driver's.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, ensure};
use towpath_device::{
    Access, Completion, Device, DeviceQueue, Event, Kick, Meta, Packet, Part, Registration, Space,
    SpaceId, Spaces, packet_memory,
};
use towpath_embedded::SendError;
use towpath_memory::Region;

/// Buffers, as many as the default configuration of `towpath-embedded` has for one kind.
const BUFFERS: u32 = 256;
const BUFFER_BYTES: usize = 128;
/// Packets that a thread removes at a time.
const BATCH: usize = 32;
/// Packets in flight from which a thread takes completions, as `towpath-embedded` does.
const COLLECT_AT: u64 = 32;

/// A packet: its buffer, and its length in bytes.
type Queued = (u32, u32);

/// The send queue, with the buffers of its packets.
struct Queue {
    memory: Region,
    free: Vec<u32>,
    waiting: VecDeque<Queued>,
    /// Packets that were inserted, and those that found no buffer.
    inserted: u64,
    refused: u64,
    locks: Locks,
}

/// What a mutex counts.
#[derive(Clone, Copy, Debug, Default)]
struct Locks {
    /// How often a thread locked it, and how often it had to wait for that.
    locked: u64,
    waited: u64,
    /// How long threads waited, in nanoseconds.
    waited_ns: u64,
}

struct Driver {
    queue: Box<dyn DeviceQueue>,
    /// The control part, which reports events.
    device: Box<dyn Device>,
    spaces: Spaces,
    space: SpaceId,
    done: Vec<Completion>,
    /// Packets that were removed, and that the device has yet to take, in order.
    removed: VecDeque<Queued>,
    taken: u64,
    returned: u64,
    failed: bool,
    /// `false` while the device's link is down: packets wait in the queue.
    is_link_up: bool,
    /// Packets that were inserted while the link was down: calls that drained nothing for that.
    link_down: u64,
    locks: Locks,
}

/// A device that any thread may use, behind two mutexes.
pub(crate) struct TwoLocks {
    queue: Mutex<Queue>,
    driver: Mutex<Driver>,
}

/// Counts of [`TwoLocks`] since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Locked {
    /// Packets that the device took.
    pub(crate) taken: u64,
    /// Packets that were inserted, of these those that found the link down, and refused ones.
    pub(crate) inserted: u64,
    pub(crate) link_down: u64,
    pub(crate) refused: u64,
    /// How often threads locked either mutex.
    pub(crate) locked: u64,
    /// How often a thread waited for the driver's mutex, and for the queue's.
    pub(crate) waited: u64,
    pub(crate) waited_for_queue: u64,
    /// How long threads waited for either mutex, in nanoseconds.
    pub(crate) waited_ns: u64,
}

/// Locks a mutex, and counts that with the value inside.
fn lock<T>(mutex: &Mutex<T>, locks: impl FnOnce(&mut T) -> &mut Locks) -> MutexGuard<'_, T> {
    if let Ok(mut inside) = mutex.try_lock() {
        locks(&mut inside).locked += 1;
        return inside;
    }
    let begun = Instant::now();
    let mut inside = mutex.lock().unwrap_or_else(PoisonError::into_inner);
    let locks = locks(&mut inside);
    locks.locked += 1;
    locks.waited += 1;
    locks.waited_ns += begun.elapsed().as_nanos() as u64;
    inside
}

fn lock_queue(mutex: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    lock(mutex, |queue| &mut queue.locks)
}

fn lock_driver(mutex: &Mutex<Driver>) -> MutexGuard<'_, Driver> {
    lock(mutex, |driver| &mut driver.locks)
}

impl TwoLocks {
    pub(crate) fn new(mut device: Box<dyn Device>) -> anyhow::Result<TwoLocks> {
        let dma = device.dma();
        let (memory, _) = packet_memory(BUFFERS as usize * BUFFER_BYTES, dma.is_some())?;
        let register = |dma| Registration::new(dma, memory.mapping(), Access::Read);
        let registration = dma.as_ref().map(register).transpose().context("the device's memory")?;
        let mut spaces = Spaces::default();
        let space = spaces.add(Space::new(memory.mapping().clone()).registered(registration));
        let queue = device.open_queue(0, &mut spaces)?;
        let all = BUFFERS as usize;
        let free = (0..BUFFERS).collect();
        let waiting = VecDeque::with_capacity(all);
        Ok(TwoLocks {
            queue: Mutex::new(Queue {
                memory,
                free,
                waiting,
                inserted: 0,
                refused: 0,
                locks: Locks::default(),
            }),
            driver: Mutex::new(Driver {
                queue,
                device,
                spaces,
                space,
                done: Vec::with_capacity(all),
                removed: VecDeque::with_capacity(all),
                taken: 0,
                returned: 0,
                failed: false,
                is_link_up: true,
                link_down: 0,
                locks: Locks::default(),
            }),
        })
    }

    pub(crate) fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        if packet.len() > BUFFER_BYTES {
            return Err(SendError::TooLong { len: packet.len(), most: BUFFER_BYTES });
        }
        let inserted = lock_queue(&self.queue).insert(packet);
        // A thread without a buffer drains too: the device's completions give buffers back.
        self.drain()?;
        if inserted { Ok(()) } else { Err(SendError::WouldBlock) }
    }

    /// Gives all packets to the device, as far as it has room.
    pub(crate) fn drain(&self) -> Result<(), SendError> {
        let mut driver = lock_driver(&self.driver);
        driver.drain(&self.queue);
        if driver.failed { Err(SendError::Failed) } else { Ok(()) }
    }

    /// Takes the device's events. Returns `true` if its link is up.
    pub(crate) fn take_events(&self) -> bool {
        let mut driver = lock_driver(&self.driver);
        while let Some(event) = driver.device.take_event() {
            if let Event::Link { up } = event {
                driver.is_link_up = up;
            }
        }
        driver.is_link_up
    }

    pub(crate) fn counts(&self) -> Locked {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        Locked {
            taken: driver.taken,
            inserted: queue.inserted,
            link_down: driver.link_down.min(queue.inserted),
            refused: queue.refused,
            locked: driver.locks.locked + queue.locks.locked,
            waited: driver.locks.waited,
            waited_for_queue: queue.locks.waited,
            waited_ns: driver.locks.waited_ns + queue.locks.waited_ns,
        }
    }

    /// Checks that the device took all packets.
    pub(crate) fn settle(&self, sent: u64) -> anyhow::Result<Locked> {
        self.drain()?;
        let counts = self.counts();
        ensure!(counts.taken == sent, "{} of {sent} packets were sent", counts.taken);
        Ok(counts)
    }
}

impl Queue {
    /// Copies a packet into a buffer, and inserts it. Returns whether there was a buffer.
    fn insert(&mut self, packet: &[u8]) -> bool {
        let Some(buffer) = self.free.pop() else {
            self.refused += 1;
            return false;
        };
        self.inserted += 1;
        let written = self.memory.copy_in(buffer as usize * BUFFER_BYTES, packet);
        debug_assert!(written, "a packet is not longer than its buffer");
        self.waiting.push_back((buffer, packet.len() as u32));
        true
    }

    /// Frees the buffers of completed packets, and removes packets into `removed`, at most a batch.
    /// Returns whether it removed as many as it may.
    fn remove(&mut self, done: &mut Vec<Completion>, removed: &mut VecDeque<Queued>) -> bool {
        self.free.extend(done.drain(..).map(|one| one.token as u32));
        let count = self.waiting.len().min(BATCH);
        removed.extend(self.waiting.drain(..count));
        count == BATCH
    }
}

impl Driver {
    fn drain(&mut self, queue: &Mutex<Queue>) {
        if !self.is_link_up {
            self.link_down += 1;
            return;
        }
        let before = self.taken;
        loop {
            // The packets that the device refused come before those in the queue.
            let blocked = !self.removed.is_empty();
            if blocked || self.taken - self.returned >= COLLECT_AT {
                self.collect();
            }
            let more = if blocked && self.done.is_empty() {
                false
            } else {
                lock_queue(queue).remove(&mut self.done, &mut self.removed)
            };
            if !self.submit() || !more {
                break;
            }
        }
        if self.taken > before {
            self.failed |= self.queue.kick(&mut self.spaces, Kick::Tx).is_err();
        }
    }

    fn collect(&mut self) {
        let (before, budget) = (self.done.len(), BUFFERS as usize);
        self.failed |= self.queue.tx_complete(&mut self.done, budget).is_err();
        self.returned += (self.done.len() - before) as u64;
    }

    /// Submits the removed packets. Returns whether the device took all.
    fn submit(&mut self) -> bool {
        while !self.removed.is_empty() {
            let count = self.removed.len().min(BATCH);
            let taken = if count == 1 {
                self.submit_first::<1>(1)
            } else {
                self.submit_first::<BATCH>(count)
            };
            self.removed.drain(..taken);
            self.taken += taken as u64;
            if taken < count {
                return false;
            }
        }
        true
    }

    fn submit_first<const MOST: usize>(&mut self, count: usize) -> usize {
        let mut parts = [[Part { space: self.space, offset: 0, len: 0 }; 1]; MOST];
        for ([part], (buffer, len)) in parts.iter_mut().zip(&self.removed) {
            (part.offset, part.len) = (buffer * BUFFER_BYTES as u32, *len);
        }
        let packets: [Packet<'_>; MOST] = std::array::from_fn(|place| Packet {
            parts: &parts[place],
            meta: Meta::FULL,
            tag: None,
            token: self.removed.get(place).map_or(u64::MAX, |(buffer, _)| u64::from(*buffer)),
        });
        match self.queue.tx_submit(&mut self.spaces, &packets[..count]) {
            Ok(taken) => taken,
            Err(_) => {
                self.failed = true;
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
    use towpath_device_testing::loopback;

    use super::*;

    fn packet(number: u8) -> [u8; 60] {
        let mut packet = [number; 60];
        packet[12..14].copy_from_slice(&[0x88, 0xb5]);
        packet
    }

    /// A device without room keeps the order, and a packet takes three locks otherwise.
    #[test]
    fn packets_keep_their_order_through_a_full_device() {
        let config = loopback::Config { ring_packets: 4, ..loopback::Config::default() };
        let (near, far) = loopback::pair(&config).unwrap();
        let mut far = DeviceFarEnd::new(Box::new(far));
        let two = TwoLocks::new(Box::new(near)).unwrap();
        for number in 0..4 {
            two.send(&packet(number)).unwrap();
        }
        assert_eq!(two.counts().locked, 4 * 3);
        for number in 4..100 {
            two.send(&packet(number)).unwrap();
        }
        let mut received = 0;
        while received < 100 {
            let (frame, _) = far.receive().expect("the device had room");
            assert_eq!(frame, packet(received));
            received += 1;
            two.drain().unwrap();
        }
        let counts = two.settle(100).unwrap();
        assert_eq!(counts.waited, 0, "one thread waits for no lock");
    }

    #[test]
    fn packets_wait_for_the_link() {
        let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let cable = near.cable();
        let mut far = DeviceFarEnd::new(Box::new(far));
        let two = TwoLocks::new(Box::new(near)).unwrap();
        cable.set_link(false);
        assert!(!two.take_events());
        (0..5).for_each(|number| two.send(&packet(number)).unwrap());
        assert_eq!(two.counts().taken, 0);
        cable.set_link(true);
        assert!(two.take_events());
        two.drain().unwrap();
        (0..5).for_each(|number| assert_eq!(far.receive().unwrap().0, packet(number)));
    }

    #[test]
    fn without_a_buffer_the_packet_stays_with_the_caller() {
        let config = loopback::Config { ring_packets: 4, ..loopback::Config::default() };
        let (near, _far) = loopback::pair(&config).unwrap();
        let two = TwoLocks::new(Box::new(near)).unwrap();
        for _ in 0..BUFFERS {
            two.send(&packet(1)).unwrap();
        }
        assert!(two.send(&packet(1)).is_ok(), "completions gave a buffer back");
        let refused = (0..8).filter(|_| two.send(&packet(1)) == Err(SendError::WouldBlock)).count();
        assert!(refused > 0);
        assert_eq!(two.counts().taken, 4);
    }
}
