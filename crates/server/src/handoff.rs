//! Hand-off: how packets that were checked reach the device.
//!
//! Two ways, switched while running (Watson, "Changes in the network interface queueing handoff
//! model"). **Direct**: a device that runs and that nothing waits for gets each packet at once.
//! **Queued**: packets go into the backlog, which is drained a batch at a time. Either way, what the
//! device has no room for waits in the backlog, in order, and nothing overtakes it but small packets
//! ([`SMALL_PLACES`]). What a device that was reset gave back nothing overtakes. The backlog is short:
//! packets that wait longer wait in their queues, where the scheduler still decides whose turn it is, and
//! the application sees back pressure.

use std::collections::VecDeque;

use towpath_device::{Device, DeviceError, Packet, Spaces};

use crate::stage::Stage;

/// Packets given to a device at once, and packets that may wait before nothing more is taken from
/// queues. A packet of a higher priority waits for at most one such batch; all others wait in their
/// queues, where the scheduler still decides their order.
pub(crate) const BATCH: usize = 32;
/// Places of the backlog: a packet that is cut into many (`MAX_SENT_SEGMENTS`) has room behind those that
/// wait.
pub(crate) const BACKLOG: usize = 256;
/// Small packets that may wait for the device; as many slots of the stage are kept for them. They are
/// sent before all others, so their number is small.
pub(crate) const SMALL_PLACES: usize = 32;

/// How packets are handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffMode {
    /// Each at once, while nothing waits.
    Direct,
    /// A batch together, or what there is at the end of a turn.
    Queued,
}

impl HandoffMode {
    /// As the setting's value has it.
    pub(crate) fn of(value: u64) -> HandoffMode {
        if value == 0 { HandoffMode::Direct } else { HandoffMode::Queued }
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets that the device took, each as often as it was given it.
    pub taken: u64,
    /// Their bytes.
    pub taken_bytes: u64,
    /// Packets that the device took at once.
    pub direct: u64,
    /// Packets put into the backlog.
    pub queued: u64,
    /// Packets that the device took out of the backlog.
    pub drained: u64,
    /// Times that the device took fewer than it was offered.
    pub full: u64,
    /// Packets that waited because the device had no room, each once.
    pub backlogged: u64,
    /// Small packets that the device took.
    pub small: u64,
}

/// Packets on their way to the device, by their slot in the stage.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// Before all others, and nothing goes past them: what a device gave back unsent, and small
    /// packets that go past nobody any more.
    first: VecDeque<u32>,
    waiting: VecDeque<u32>,
    small: VecDeque<u32>,
    /// Small packets that go before the others, of each batch of those.
    small_share: usize,
    /// Of these, how many may still go.
    small_left: usize,
    /// Others that went since.
    others: usize,
    mode: HandoffMode,
    blocked: bool,
    /// What was counted.
    pub counts: Counts,
}

impl Handoff {
    /// Nothing waits. At most `small_share` small packets go before a batch of others.
    #[must_use]
    pub(crate) fn new(mode: HandoffMode, small_share: usize) -> Handoff {
        Handoff {
            first: VecDeque::new(),
            waiting: VecDeque::with_capacity(BACKLOG),
            small: VecDeque::with_capacity(SMALL_PLACES),
            small_share,
            small_left: small_share,
            others: 0,
            mode,
            blocked: false,
            counts: Counts::default(),
        }
    }

    /// Hands off in another way from now on. What waits stays first.
    pub(crate) fn set_mode(&mut self, mode: HandoffMode) {
        self.mode = mode;
    }

    /// At most so many small packets go before a batch of others. With 0, those that wait go before
    /// all others: nobody would let them go past again. Later ones, should they go past again, do not
    /// go past these.
    pub(crate) fn set_small_share(&mut self, packets: usize) {
        self.small_share = packets;
        self.small_left = self.small_left.min(packets);
        if packets == 0 {
            self.first.append(&mut self.small);
        }
    }

    /// Whether a packet that becomes `packets` for the device may be given.
    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self, packets: usize) -> bool {
        let waiting = self.first.len() + self.waiting.len();
        waiting < BATCH && waiting + packets <= BACKLOG
    }

    /// Whether a small packet may be given.
    #[inline]
    #[must_use]
    pub(crate) fn has_small_room(&self) -> bool {
        self.small.len() < SMALL_PLACES
    }

    /// Whether anything waits for the device.
    #[inline]
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting() > 0
    }

    /// How many packets wait for the device.
    #[inline]
    #[must_use]
    pub(crate) fn waiting(&self) -> usize {
        self.first.len() + self.small.len() + self.waiting.len()
    }

    /// Whether the device had no room when it was last asked.
    #[inline]
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Gives a packet, for which there is room: to the device at once, or into the backlog.
    ///
    /// # Errors
    /// When the device as a whole fails.
    #[inline]
    pub(crate) fn give(
        &mut self,
        slot: u32,
        small: bool,
        stage: &Stage,
        spaces: &mut Spaces,
        device: &mut dyn Device,
    ) -> Result<(), DeviceError> {
        if self.mode == HandoffMode::Direct && !self.blocked && !self.is_waiting() {
            let entry = &stage.slots[slot as usize];
            let packet = Packet { parts: &entry.parts, meta: entry.meta, token: u64::from(slot) };
            if device.tx_provide(spaces, &[packet])? > 0 {
                self.counts.direct += 1;
                self.count_taken(slot, small, stage);
                return Ok(());
            }
            self.counts.full += 1;
            self.blocked = true;
        }
        self.counts.queued += 1;
        if small {
            self.small.push_back(slot);
        } else {
            self.waiting.push_back(slot);
        }
        if self.blocked {
            self.counts.backlogged += 1;
        } else if self.waiting.len() >= BATCH {
            self.flush(stage, spaces, device)?;
        }
        Ok(())
    }

    fn count_taken(&mut self, slot: u32, small: bool, stage: &Stage) {
        let parts = &stage.slots[slot as usize].parts;
        self.counts.taken += 1;
        self.counts.taken_bytes += parts.iter().map(|part| u64::from(part.len)).sum::<u64>();
        self.counts.small += u64::from(small);
    }

    /// Gives the device what it has room for: what goes before all others, then small packets, within
    /// their share.
    ///
    /// # Errors
    /// When the device as a whole fails.
    pub(crate) fn flush(
        &mut self,
        stage: &Stage,
        spaces: &mut Spaces,
        device: &mut dyn Device,
    ) -> Result<(), DeviceError> {
        let was_blocked = std::mem::replace(&mut self.blocked, false);
        while self.is_waiting() {
            let mut batch =
                [Packet { parts: &[], meta: towpath_device::Meta::FINISHED, token: 0 }; BATCH];
            // Their share is of batches of others, and where none wait there is nobody to share with.
            let share = if self.waiting.is_empty() { BATCH } else { self.small_left };
            let first = self.first.len().min(BATCH);
            let small = self.small.len().min(share).min(BATCH - first);
            let mut count = 0;
            let smalls = self.small.iter().take(small);
            for slot in self.first.iter().chain(smalls).chain(&self.waiting).take(BATCH) {
                let entry = &stage.slots[*slot as usize];
                batch[count] =
                    Packet { parts: &entry.parts, meta: entry.meta, token: u64::from(*slot) };
                count += 1;
            }
            let taken = device.tx_provide(spaces, &batch[..count])?;
            for place in 0..taken {
                let is_small = (first..first + small).contains(&place);
                let line = match place {
                    _ if is_small => &mut self.small,
                    place if place < first => &mut self.first,
                    _ => &mut self.waiting,
                };
                let Some(slot) = line.pop_front() else { break };
                self.count_taken(slot, is_small, stage);
            }
            self.counts.drained += taken as u64;
            let small = taken.saturating_sub(first).min(small);
            self.small_left = self.small_left.saturating_sub(small);
            self.others += taken - small;
            if self.others >= BATCH || self.waiting.is_empty() {
                (self.others, self.small_left) = (0, self.small_share);
            }
            if taken < count {
                self.blocked = true;
                self.counts.full += 1;
                if !was_blocked {
                    // What comes behind them is counted when it is given.
                    self.counts.backlogged += self.waiting() as u64;
                }
                break;
            }
        }
        Ok(())
    }

    /// Puts packets that the device gave back unsent before all others, in their order. Small ones
    /// among them were given before those that wait, so nothing goes past any of them. There may be
    /// more of them than the backlog holds otherwise.
    pub(crate) fn again(&mut self, slots: &[u64]) {
        self.counts.queued += slots.len() as u64;
        for slot in slots.iter().rev() {
            self.first.push_front(*slot as u32);
        }
    }

    /// Takes away the packets that `gone` names: their session ended.
    pub(crate) fn forget(&mut self, mut gone: impl FnMut(u32) -> bool) {
        for line in [&mut self.first, &mut self.small, &mut self.waiting] {
            line.retain(|slot| !gone(*slot));
        }
        self.blocked &= self.is_waiting();
    }
}

#[cfg(test)]
mod tests;
