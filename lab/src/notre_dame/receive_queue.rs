//! A client's receive queue: the bottom half of a driver appends packets, the client removes them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use towpath_memory::{Mapping, Region};
use towpath_queue::optimistic::{Entered, Left, Optimistic};

use super::pass::LONGEST;

/// The means of mutual exclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// One half waits for the other.
    Mutex,
    /// A half that finds the other one inside leaves its work to it.
    Optimistic,
}

/// The most packets of a queue, and the most packets that the bottom half may leave: a power of
/// two.
const QUEUED: usize = 32;
/// Bytes in front of a packet that was left; they hold its length.
const LENGTH_BYTES: usize = 8;
/// The memory of a packet that was left.
const SLOT_BYTES: usize = (LENGTH_BYTES + LONGEST).next_multiple_of(64);

/// The queue, and its protection.
pub(super) enum ReadPath {
    /// One half waits for the other.
    Locked(Mutex<Queue>),
    /// If the client is inside, the bottom half leaves the packet to it.
    Optimistic(Box<Optimistic<Queue, Region>>),
}

/// Packets in their order. Their buffers are allocated once.
pub(super) struct Queue {
    free: Vec<Vec<u8>>,
    waiting: VecDeque<Vec<u8>>,
    /// The memory of packets that were left, for reading.
    left: Option<Arc<Mapping>>,
}

impl Queue {
    fn new() -> Queue {
        let free = (0..QUEUED).map(|_| Vec::with_capacity(LONGEST)).collect();
        Queue { free, waiting: VecDeque::with_capacity(QUEUED), left: None }
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Appends a packet of `len` bytes that `write` writes. Returns whether there was room.
    fn append(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let Some(mut packet) = self.free.pop() else { return false };
        packet.resize(len, 0);
        write(&mut packet);
        self.waiting.push_back(packet);
        true
    }

    /// Copies the next packet into `to`. Returns whether there was one.
    fn remove(&mut self, to: &mut Vec<u8>) -> bool {
        let Some(packet) = self.waiting.pop_front() else { return false };
        to.clear();
        to.extend_from_slice(&packet);
        self.free.push(packet);
        true
    }

    /// Appends a packet that the bottom half left.
    fn append_left(&mut self, slot: u32) {
        let Some(left) = self.left.clone() else { return };
        let start = slot as usize * SLOT_BYTES;
        let mut len = [0; LENGTH_BYTES];
        let mut read = left.copy_out(start, &mut len);
        let len = u64::from_ne_bytes(len) as usize;
        let appended =
            self.append(len, |packet| read &= left.copy_out(start + LENGTH_BYTES, packet));
        debug_assert!(appended && read, "the queue has room, and a slot has its length");
    }
}

/// Takes the packets that the bottom half left, while the queue has room. Returns whether it has
/// room for more.
fn take_left(entered: &mut Entered<'_, Queue, Region>) -> bool {
    while entered.state().has_room() {
        let Some(slot) = entered.take() else { return true };
        entered.state().append_left(slot);
        entered.release(slot);
    }
    false
}

impl ReadPath {
    pub(super) fn new(protection: Protection) -> anyhow::Result<ReadPath> {
        if protection == Protection::Mutex {
            return Ok(ReadPath::Locked(Mutex::new(Queue::new())));
        }
        let mut memory = Region::private(QUEUED * SLOT_BYTES)?;
        let queue = Queue { left: Some(memory.mapping().clone()), ..Queue::new() };
        let slots = (0..QUEUED).map(|_| memory.split_off_front(SLOT_BYTES)).collect();
        let section = Optimistic::with_memory(slots, queue).context("a power of two of slots")?;
        Ok(ReadPath::Optimistic(Box::new(section)))
    }

    /// Appends a packet, or leaves it to the client that is inside. Returns whether there was room.
    pub(super) fn append(&self, packet: &[u8]) -> bool {
        let append =
            |queue: &mut Queue| queue.append(packet.len(), |to| to.copy_from_slice(packet));
        match self {
            ReadPath::Locked(queue) => {
                append(&mut queue.lock().unwrap_or_else(PoisonError::into_inner))
            }
            ReadPath::Optimistic(section) => {
                if let Some(mut entered) = section.try_enter() {
                    take_left(&mut entered);
                    let appended = append(entered.state());
                    finish(section, entered);
                    return appended;
                }
                let Some(mut leaving) = section.leave() else { return false };
                let written = leaving.write(|slot| {
                    slot.copy_in(0, &(packet.len() as u64).to_ne_bytes())
                        && slot.copy_in(LENGTH_BYTES, packet)
                });
                debug_assert!(written, "a slot is as long as the longest packet");
                leaving.publish();
                section.drive(take_left);
                true
            }
        }
    }

    /// Copies the next packet into `to`. Returns whether there was one; none if the bottom half is
    /// inside.
    pub(super) fn remove(&self, to: &mut Vec<u8>) -> bool {
        match self {
            ReadPath::Locked(queue) => {
                queue.lock().unwrap_or_else(PoisonError::into_inner).remove(to)
            }
            ReadPath::Optimistic(section) => {
                let Some(mut entered) = section.try_enter() else { return false };
                take_left(&mut entered);
                let removed = entered.state().remove(to);
                finish(section, entered);
                removed
            }
        }
    }
}

/// Leaves the section, and does the work that the other half left meanwhile.
fn finish(section: &Optimistic<Queue, Region>, entered: Entered<'_, Queue, Region>) {
    if entered.exit() != Left::Nothing {
        section.drive(take_left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads meet in the queue: every packet arrives, in its order.
    #[test]
    fn packets_keep_their_order_and_none_is_lost() {
        const PACKETS: u64 = 20_000;
        for protection in [Protection::Mutex, Protection::Optimistic] {
            let path = ReadPath::new(protection).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..PACKETS {
                        let mut packet = number.to_ne_bytes().to_vec();
                        packet.resize(60 + number as usize % 1000, number as u8);
                        while !path.append(&packet) {
                            std::thread::yield_now();
                        }
                    }
                });
                let mut packet = Vec::new();
                for number in 0..PACKETS {
                    while !path.remove(&mut packet) {
                        std::thread::yield_now();
                    }
                    assert_eq!(packet[..8], number.to_ne_bytes(), "{protection:?}");
                    assert_eq!(packet.len(), 60 + number as usize % 1000);
                    assert!(packet[8..].iter().all(|byte| *byte == number as u8));
                }
                assert!(!path.remove(&mut packet));
            });
        }
    }

    /// While the client is inside, the bottom half does not wait: it leaves packets, in their order.
    #[test]
    fn packets_are_left_to_the_client_inside() {
        let path = ReadPath::new(Protection::Optimistic).unwrap();
        let ReadPath::Optimistic(section) = &path else { unreachable!() };
        let entered = section.try_enter().unwrap();
        assert!(path.append(&[1; 60]) && path.append(&[2; 70]));
        let mut packet = Vec::new();
        assert!(!path.remove(&mut packet), "another thread is inside");
        finish(section, entered);
        for (byte, len) in [(1, 60), (2, 70)] {
            assert!(path.remove(&mut packet));
            assert_eq!(packet, vec![byte; len]);
        }
        assert!(!path.remove(&mut packet));
    }
}
