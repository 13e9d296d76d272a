//! The device verbs of a queue with faults, its sleep and its reset.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use towpath_device::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Outcome, Packet, Received, SpaceId,
    Spaces,
};

use super::{FaultQueue, TX_TOKENS};
use crate::fault::lane::Place;
use crate::sleeper::Sleeper;

/// Pool buffers that the wrapper keeps for sending if the device sends only from its pool.
const POOL_SLOTS: usize = 64;
/// Pool buffers that the wrapper keeps for segments if the device receives large packets.
const SPARE_BUFFERS: usize = 64;
/// The wrapper keeps one of this many provided pool buffers until it has enough.
const KEPT_SHARE: usize = 4;

impl DeviceQueue for FaultQueue {
    crate::forward!(inner: holds, kick_rx);

    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        let inner = self.inner_can;
        let mut taken = 0;
        while taken < buffers.len() {
            let keeps_place = !inner.tx_in_place && self.pool_slots < POOL_SLOTS;
            let keeps_spare = inner.rx_offload && self.spare < SPARE_BUFFERS;
            let keeps = keeps_place || keeps_spare;
            let is_share = taken % KEPT_SHARE == KEPT_SHARE - 1;
            let is_missing = self.empty.len() < self.needed();
            if (keeps && is_share) || is_missing {
                let buffer = buffers[taken];
                let limits = self.info.limits;
                let is_writable = spaces.is_writable(space, buffer, limits.rx_buffer_bytes as u32);
                if !is_writable || !limits.is_aligned(buffer) {
                    break;
                }
                if keeps_place && !is_missing {
                    let offset = buffer + self.headroom;
                    self.tx.free.push(Place { space, offset });
                    self.pool_slots += 1;
                } else {
                    self.spare += usize::from(keeps_spare && !is_missing);
                    self.empty.push_back((space, buffer));
                }
                taken += 1;
                continue;
            }
            // The device gets all buffers up to the next one to keep in one call.
            let end = if keeps {
                (taken - taken % KEPT_SHARE + KEPT_SHARE - 1).min(buffers.len())
            } else {
                buffers.len()
            };
            let accepted = self.inner.rx_fill(spaces, space, &buffers[taken..end]);
            taken += accepted;
            if taken < end {
                break;
            }
        }
        taken
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.advance_sending(now);
        self.in_flight.push(&mut *self.inner, &mut self.tx, spaces)?;
        self.rx.advance(now);
        self.fetch(spaces, budget, now)?;
        let mut returned = 0;
        while returned < budget {
            let Some((frame, count)) = self.next_deliverable() else { break };
            self.rx.gone(1);
            returned += usize::from(self.hand_up(spaces, out, frame, count));
        }
        // Received packets stay received. A device that is gone reports the error again.
        match self.release(spaces) {
            Err(error) if returned == 0 => Err(error),
            _ => Ok(returned),
        }
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.advance_sending(now);
        self.in_flight.collect(&mut *self.inner, &mut self.tx)?;
        self.in_flight.push(&mut *self.inner, &mut self.tx, spaces)?;
        let mut taken = 0;
        let before = self.done.len();
        for packet in packets.iter().take(TX_TOKENS - self.done.len() - self.kept.len()) {
            let dropped = self.counters.tx_dropped;
            if !self.take(spaces, packet, now) {
                break;
            }
            let was_dropped = self.counters.tx_dropped > dropped;
            let outcome = if was_dropped { Outcome::Dropped } else { Outcome::Sent };
            self.done.push_back(Completion { token: packet.token, outcome });
            taken += 1;
        }
        // A stall that began with one of the packets keeps those before it too: none was sent yet.
        if self.tx.is_stalled() {
            self.kept.extend(self.done.drain(before..));
        }
        // Taken packets stay taken. A device that is gone reports the error again at the next call.
        match self.in_flight.push(&mut *self.inner, &mut self.tx, spaces) {
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.in_flight.collect(&mut *self.inner, &mut self.tx)?;
        Ok(Completion::take(&mut self.done, out, budget))
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.as_ref().map(Sleeper::fd)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.sleeper.is_none() {
            return Ok(Armed::Work);
        }
        self.in_flight.collect(&mut *self.inner, &mut self.tx)?;
        let now = Instant::now();
        let due = [self.rx.due(), self.tx.due()].into_iter().flatten().min();
        let deliverable = self.next_deliverable().is_some();
        let room =
            tx_waiting && self.tx.free.len() >= self.wanted_places && self.kept.len() < TX_TOKENS;
        if !self.done.is_empty() || deliverable || room || due.is_some_and(|due| due <= now) {
            return Ok(Armed::Work);
        }
        let sends = self.tx.next().is_some();
        // If frames that wait for their time hold all slots, the wrapper cannot fetch the device's
        // packets before, so packets must not wake the engine.
        let held = !self.rx.is_stalled() && self.rx.free.len() < self.places_to_fetch();
        let time_alone = held && due.is_some() && !sends;
        if let Some(sleeper) = &mut self.sleeper {
            let info = &self.info;
            self.counters.system_calls +=
                sleeper.wake_at(due, now).map_err(info.failed("timerfd"))?;
            if let Some(device) = self.inner.sleep_fd() {
                let watched =
                    sleeper.watch(device, !time_alone).map_err(info.failed("epoll_ctl"))?;
                self.counters.system_calls += watched;
            }
        }
        if time_alone { Ok(Armed::Sleep) } else { self.inner.arm(sends) }
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        let outcome = self.inner.reset(buffers);
        buffers.extend(self.empty.drain(..).map(|(_, buffer)| buffer));
        self.rx.clear();
        self.tx.clear();
        // The device returns every token after a reset, so every slot is free afterwards.
        let collected = self.in_flight.collect(&mut *self.inner, &mut self.tx);
        if !self.inner_can.tx_in_place {
            let headroom = self.headroom;
            let offset = |place: Place| place.offset - headroom;
            buffers.extend(self.tx.free.drain(..).map(offset));
            self.pool_slots = 0;
        }
        self.spare = 0;
        // The engine sends all kept packets again, except those that the wrapper dropped.
        for completion in &mut self.kept {
            if completion.outcome == Outcome::Sent {
                completion.outcome = Outcome::Returned;
            }
        }
        self.done.append(&mut self.kept);
        outcome.and(collected)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.inner.counters();
        counters.rx_dropped += self.counters.rx_dropped;
        counters.tx_dropped += self.counters.tx_dropped;
        counters.system_calls += self.counters.system_calls;
        counters
    }
}
