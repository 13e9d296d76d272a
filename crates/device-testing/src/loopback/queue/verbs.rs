//! The device verbs of the queue of one end, its sleep and its reset.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use towpath_device::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Kick, MAX_PARTS, Outcome, Packet,
    Received, SpaceId, Spaces,
};

use super::LoopbackQueue;
use crate::loopback::ring::{Batch, Sent, WANTS_PACKETS, WANTS_ROOM};
use crate::loopback::timing::Done;
use crate::sleeper::Sleeper;

impl DeviceQueue for LoopbackQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.pool = Some(space);
        let room = (self.ring_packets - self.buffers.len()).min(buffers.len());
        let mut buffers = &buffers[..room];
        let limits = self.info.limits;
        let len = limits.rx_buffer_bytes as u32;
        // One check for all buffers, as all are good but for a mistake of the caller.
        let all = buffers.iter().fold(0, |all, at| all | at);
        if self.registers || !limits.is_aligned(all) {
            let good = |at: &&u32| {
                limits.is_aligned(**at)
                    && (!self.registers || spaces.device_address(space, **at, len).is_some())
            };
            buffers = &buffers[..buffers.iter().take_while(good).count()];
        }
        let taken = limits.writable(spaces, space, buffers);
        self.buffers.extend(taken.iter().map(|buffer| (space, *buffer)));
        taken.len()
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.fetch_held(spaces);
        // This checks before it reads the rings, so that this end still sees the last packets of a
        // dropped end.
        let gone = self.other_is_gone();
        let waiting = self.rx.packets.slots();
        if waiting == 0 && gone {
            return Err(self.gone());
        }
        let returned = if self.reception.is_plain() {
            self.receive_whole(spaces, out, waiting.min(budget))
        } else {
            self.receive_processed(spaces, out, waiting.min(budget))
        };
        if returned > 0 {
            self.counters.system_calls += self.peer.ring(WANTS_ROOM);
        }
        Ok(returned)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        if self.other_is_gone() {
            return Err(self.gone());
        }
        self.fetch_held(spaces);
        let room = self.ring_packets.saturating_sub(self.done.len() + self.held.len());
        let packets = &packets[..room.min(packets.len())];
        if self.holds {
            return Ok(self.hold(packets));
        }
        if !self.shared.moves(self.end) {
            return Ok(0);
        }
        let limits = self.limits();
        let mut batch = Batch::new(&mut self.tx);
        let done = self.done.open();
        let (mut taken, mut free) = (0, self.free_descriptors);
        for packet in packets {
            let mut descriptors = packet.parts.len();
            if descriptors > free && descriptors <= MAX_PARTS {
                break;
            }
            let sent = match packet.tag {
                None => batch.push(&limits, spaces, packet.parts, packet.meta),
                Some(tag) => batch.push_tagged(&limits, spaces, packet.parts, tag, packet.meta),
            };
            let outcome = match sent {
                Sent::Yes(len) => self.counters.sent(len),
                Sent::Bad => {
                    // The driver drops the packet, and places nothing in the ring.
                    descriptors = 0;
                    self.counters.dropped()
                }
                Sent::NoRoom(len) => {
                    self.wanted_bytes = len;
                    break;
                }
            };
            free -= descriptors;
            let descriptors = descriptors as u32;
            done.push_back(Done { token: packet.token, outcome, descriptors });
            taken += 1;
        }
        self.free_descriptors = free;
        self.done.note_time();
        self.unannounced |= batch.publish();
        Ok(taken)
    }

    fn kick(&mut self, spaces: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        if ring == Kick::Rx {
            return Ok(());
        }
        if self.unannounced || self.kicked < self.held.len() {
            self.timing.kick();
        }
        self.kicked = self.held.len();
        self.fetch_held(spaces);
        if std::mem::take(&mut self.unannounced) {
            self.counters.system_calls += self.peer.ring(WANTS_PACKETS);
        }
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.advance();
        let before = out.len();
        for done in self.done.take(budget) {
            self.free_descriptors += done.descriptors as usize;
            out.push(done.completion());
        }
        Ok(out.len() - before)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        let bell = self.own.fd.as_ref().map(AsFd::as_fd);
        self.sleeper.as_ref().map(Sleeper::fd).or(bell)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.own.fd.is_none() {
            return Ok(Armed::Work);
        }
        // This empties the doorbell before it sets `wants`, so that a later notification stays.
        let rang = self.own.take();
        self.counters.system_calls += rang.unwrap_or(0);
        self.advance();
        let now = self.sleeper.as_ref().map(|_| Instant::now());
        if rang.is_some() {
            self.interrupted = now;
        }
        let quiet_until = self.quiet_until(now);
        let receives = self.buffers.len() >= self.wanted_buffers;
        let room_wanted = tx_waiting || self.kicked > 0;
        let mut wants = 0;
        if quiet_until.is_none() {
            wants |= if receives { WANTS_PACKETS } else { 0 };
            wants |= if room_wanted { WANTS_ROOM } else { 0 };
        }
        self.own.wants.store(wants, Ordering::Relaxed);
        // Pairs with the fence in `Bell::ring`: the other end sees `wants`, or this end sees its
        // work.
        fence(Ordering::SeqCst);
        if self.has_work(receives, tx_waiting) {
            self.own.wants.store(0, Ordering::Relaxed);
            return Ok(Armed::Work);
        }
        if let (Some(sleeper), Some(now)) = (&mut self.sleeper, now) {
            let late = self.done.due().filter(|_| !self.shared.is_stalled(self.end));
            let due = [late, quiet_until].into_iter().flatten().min();
            let set = sleeper.wake_at(due, now);
            self.counters.system_calls += set.map_err(self.info.failed("a timer"))?;
        }
        Ok(Armed::Sleep)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        buffers.extend(self.buffers.drain(..).map(|(_, buffer)| buffer));
        // As a card does on a reset, the device forgets packets that it has not fetched, but
        // returns their tokens.
        self.shared.end_stall(self.end);
        self.done.report_all();
        for held in self.held.drain(..) {
            let (token, descriptors) = (held.token, held.parts as u32);
            self.done.push_returned(Done { token, outcome: Outcome::Returned, descriptors });
        }
        self.held_parts.clear();
        self.kicked = 0;
        if self.other_is_gone() { Err(self.gone()) } else { Ok(()) }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
