//! The hand-off that Watson replaced, for threads of one program: a send queue and a driver, each
//! with a mutex.
//!
//! A thread inserts its packet under the queue's mutex, and then waits for the driver's mutex. The
//! thread that gets it removes all packets under the queue's mutex again, and gives them to the
//! device. So a packet pays two pairs of lock operations for the queue, besides the driver's.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::ensure;
use towpath_device::{
    Completion, Device, DeviceQueue, Kick, Meta, Packet, Part, Space, SpaceId, Spaces,
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
    /// How often a thread locked the queue.
    locked: u64,
}

struct Driver {
    queue: Box<dyn DeviceQueue>,
    /// The control part lives as long as the queue.
    _device: Box<dyn Device>,
    spaces: Spaces,
    space: SpaceId,
    done: Vec<Completion>,
    /// Packets that were removed, and that the device has yet to take, in order.
    removed: VecDeque<Queued>,
    taken: u64,
    returned: u64,
    failed: bool,
    /// How often a thread locked the driver, and how often it had to wait for that.
    locked: u64,
    waited: u64,
}

/// A device that any thread may use, behind two mutexes.
pub(super) struct TwoLocks {
    queue: Mutex<Queue>,
    driver: Mutex<Driver>,
}

/// Counts of [`TwoLocks`] since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Locked {
    /// Packets that the device took.
    pub(super) taken: u64,
    /// How often threads locked either mutex.
    pub(super) locked: u64,
    /// How often a thread waited for the driver's mutex.
    pub(super) waited: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TwoLocks {
    pub(super) fn new(mut device: Box<dyn Device>) -> anyhow::Result<TwoLocks> {
        let memory = Region::private(BUFFERS as usize * BUFFER_BYTES)?;
        let mut spaces = Spaces::default();
        let space = spaces.add(Space::new(memory.mapping().clone()));
        let queue = device.open_queue(0, &mut spaces)?;
        let all = BUFFERS as usize;
        let free = (0..BUFFERS).collect();
        let waiting = VecDeque::with_capacity(all);
        Ok(TwoLocks {
            queue: Mutex::new(Queue { memory, free, waiting, locked: 0 }),
            driver: Mutex::new(Driver {
                queue,
                _device: device,
                spaces,
                space,
                done: Vec::with_capacity(all),
                removed: VecDeque::with_capacity(all),
                taken: 0,
                returned: 0,
                failed: false,
                locked: 0,
                waited: 0,
            }),
        })
    }

    pub(super) fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        if packet.len() > BUFFER_BYTES {
            return Err(SendError::TooLong { len: packet.len(), most: BUFFER_BYTES });
        }
        let inserted = lock(&self.queue).insert(packet);
        // A thread without a buffer drains too: the device's completions give buffers back.
        self.drain()?;
        if inserted { Ok(()) } else { Err(SendError::WouldBlock) }
    }

    /// Gives all packets to the device, as far as it has room.
    pub(super) fn drain(&self) -> Result<(), SendError> {
        let mut driver = match self.driver.try_lock() {
            Ok(driver) => driver,
            Err(_) => {
                let mut driver = lock(&self.driver);
                driver.waited += 1;
                driver
            }
        };
        driver.locked += 1;
        driver.drain(&self.queue);
        if driver.failed { Err(SendError::Failed) } else { Ok(()) }
    }

    pub(super) fn counts(&self) -> Locked {
        let (driver, queue) = (lock(&self.driver), lock(&self.queue));
        let Driver { taken, waited, .. } = *driver;
        Locked { taken, locked: driver.locked + queue.locked, waited }
    }

    /// Checks that the device took all packets.
    pub(super) fn settle(&self, sent: u64) -> anyhow::Result<Locked> {
        self.drain()?;
        let counts = self.counts();
        ensure!(counts.taken == sent, "{} of {sent} packets were sent", counts.taken);
        Ok(counts)
    }
}

impl Queue {
    /// Copies a packet into a buffer, and inserts it. Returns whether there was a buffer.
    fn insert(&mut self, packet: &[u8]) -> bool {
        self.locked += 1;
        let Some(buffer) = self.free.pop() else { return false };
        let written = self.memory.copy_in(buffer as usize * BUFFER_BYTES, packet);
        debug_assert!(written, "a packet is not longer than its buffer");
        self.waiting.push_back((buffer, packet.len() as u32));
        true
    }

    /// Frees the buffers of completed packets, and removes packets into `removed`, at most a batch.
    /// Returns whether it removed as many as it may.
    fn remove(&mut self, done: &mut Vec<Completion>, removed: &mut VecDeque<Queued>) -> bool {
        self.locked += 1;
        self.free.extend(done.drain(..).map(|one| one.token as u32));
        let count = self.waiting.len().min(BATCH);
        removed.extend(self.waiting.drain(..count));
        count == BATCH
    }
}

impl Driver {
    fn drain(&mut self, queue: &Mutex<Queue>) {
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
                lock(queue).remove(&mut self.done, &mut self.removed)
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
    use towpath_device::conformance::{DeviceFarEnd, FarEnd};
    use towpath_device::loopback;

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
