//! Hand-off of checked packets to the device.
//!
//! There are two modes, and a setting switches between them at run time (Watson, "Changes in the
//! network interface queueing handoff model"). **Direct**: the engine places packets in the ring of
//! a device that no packet waits for while it still checks others, and kicks the device once per
//! poll iteration. **Queued**: the engine puts packets into the backlog, drains it a batch at a
//! time, and kicks the device after each batch. In both modes, packets that the device has no room
//! for wait in the backlog, in order, and only expedited packets overtake them
//! ([`EXPEDITED_SLOTS`]). No packet overtakes those that a device returned at a reset. The backlog
//! is short: packets that wait longer wait in their queues. There the scheduler still decides their
//! order, and the application sees back pressure.

use std::collections::VecDeque;

use towpath_device::{DeviceError, Kick, Packet};

use crate::port::DevicePort;
use crate::tx::bounce::{BounceBuffers, Slot};

/// The number of packets that the engine gives to a device at once. Also the number of waiting
/// packets from which on the engine takes no more packets from queues. In the backlog, a packet of
/// a higher priority waits for less than one such batch, and for the segments of at most one large
/// packet. All other packets wait in their queues, where the scheduler still decides their order.
pub(crate) const BATCH: usize = 32;
/// Slots of the backlog, of which [`BATCH`] packets use few: a packet that the engine segments into many
/// (`MAX_SENT_SEGMENTS`) has room behind those that wait.
pub(crate) const BACKLOG_SLOTS: usize = 256;
/// Expedited packets that may wait for the device; the engine reserves as many bounce buffers for
/// them. Their number is small because the engine sends them before all others.
pub(crate) const EXPEDITED_SLOTS: usize = 32;

const NO_PACKET: Packet<'static> =
    Packet { parts: &[], meta: towpath_device::Meta::FULL, tag: None, token: 0 };

/// Returns the packet in a slot for the device.
#[inline(always)]
fn packet_of(entry: &Slot, slot: u32) -> Packet<'_> {
    Packet { parts: &entry.parts, meta: entry.meta, tag: entry.tag, token: u64::from(slot) }
}

/// How packets are handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffMode {
    /// Into the device's ring as the engine checks them, while no other packet waits. One kick at
    /// the end of a poll iteration.
    Direct,
    /// A full batch together, or all waiting packets at the end of a poll iteration. One kick each
    /// time.
    Queued,
}

/// What becomes of packets while the device's link is down and the backlog is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkDown {
    /// The engine drops and counts them.
    Drop,
    /// They wait in their queues.
    Wait,
}

impl LinkDown {
    /// Returns the policy that the setting's value stands for.
    pub(crate) fn of(value: u64) -> LinkDown {
        if value == 0 { LinkDown::Drop } else { LinkDown::Wait }
    }
}

impl HandoffMode {
    /// Returns the mode that the setting's value stands for.
    pub(crate) fn of(value: u64) -> HandoffMode {
        if value == 0 { HandoffMode::Direct } else { HandoffMode::Queued }
    }
}

/// Counts of the hand-off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets that the device took at once.
    pub direct: u64,
    /// Packets put into the backlog.
    pub queued: u64,
    /// Packets that the device took out of the backlog.
    pub drained: u64,
    /// Times that the device took fewer packets than the engine offered.
    pub full: u64,
    /// Packets that waited because the device had no room; each counts once.
    pub backlogged: u64,
    /// Expedited packets that the device took.
    pub expedited: u64,
}

/// The backlog: packets that wait for the device, by bounce buffer.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// Packets that precede all others and that no packet overtakes: those that a device returned
    /// unsent, and expedited packets that lost their precedence.
    first: VecDeque<u32>,
    waiting: VecDeque<u32>,
    expedited: VecDeque<u32>,
    /// Expedited packets that precede each batch of others.
    expedited_share: usize,
    /// Expedited packets of this share that may still go.
    expedited_left: usize,
    /// Other packets sent since.
    others: usize,
    mode: HandoffMode,
    /// Checked packets that go to the device directly, and whether each is expedited. A group of
    /// them takes one call of the driver. Empty between poll iterations, and while `blocked`.
    direct: Vec<(u32, bool)>,
    blocked: bool,
    link_up: bool,
    link_down: LinkDown,
    /// Packets to drop because the link is down; the completions of this poll iteration free them.
    dropped: Vec<u32>,
    /// The counts.
    pub counts: Counts,
}

impl Handoff {
    /// Creates an empty backlog. At most `expedited_share` expedited packets go before a batch of
    /// others.
    #[must_use]
    pub(crate) fn new(mode: HandoffMode, link_down: LinkDown, expedited_share: usize) -> Handoff {
        Handoff {
            first: VecDeque::new(),
            waiting: VecDeque::with_capacity(BACKLOG_SLOTS),
            expedited: VecDeque::with_capacity(EXPEDITED_SLOTS),
            expedited_share,
            expedited_left: expedited_share,
            others: 0,
            mode,
            direct: Vec::with_capacity(BATCH),
            blocked: false,
            link_up: true,
            link_down,
            dropped: Vec::with_capacity(BACKLOG_SLOTS),
            counts: Counts::default(),
        }
    }

    /// Changes the mode. Waiting packets stay first.
    pub(crate) fn set_mode(&mut self, mode: HandoffMode) {
        self.mode = mode;
    }

    /// Changes what becomes of packets while the link is down.
    pub(crate) fn set_link_down(&mut self, link_down: LinkDown) {
        self.link_down = link_down;
    }

    /// Records that the device's link came up or went down. The device gets no packet while its
    /// link is down.
    pub(crate) fn set_link(&mut self, up: bool) {
        self.link_up = up;
    }

    /// Returns `true` if the device's link is up.
    #[inline]
    pub(crate) fn is_link_up(&self) -> bool {
        self.link_up
    }

    /// Returns `true` if there are packets to drop.
    #[inline]
    pub(crate) fn has_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// Takes a packet to drop.
    pub(crate) fn take_dropped(&mut self) -> Option<u32> {
        self.dropped.pop()
    }

    /// Returns `true` if the engine drops packets for which the backlog has no room.
    #[inline]
    fn drops(&self) -> bool {
        !self.link_up && self.link_down == LinkDown::Drop
    }

    /// Limits the expedited packets that go before a batch of others. With 0, waiting expedited
    /// packets go before all others, because no later share would admit them. If a later setting
    /// admits expedited packets again, these do not overtake the waiting ones.
    pub(crate) fn set_expedited_share(&mut self, packets: usize) {
        self.expedited_share = packets;
        self.expedited_left = self.expedited_left.min(packets);
        if packets == 0 {
            self.first.append(&mut self.expedited);
        }
    }

    /// Returns `true` if the device or the backlog has room for a packet that becomes `packets`
    /// device packets.
    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self, packets: usize) -> bool {
        if self.drops() {
            return self.dropped.len() + packets <= BACKLOG_SLOTS;
        }
        let waiting = self.first.len() + self.waiting.len();
        // The device may refuse direct packets, which then wait, too.
        waiting < BATCH && waiting + self.direct.len() + packets <= BACKLOG_SLOTS
    }

    /// Returns `true` if there is room for an expedited packet.
    #[inline]
    #[must_use]
    pub(crate) fn has_expedited_room(&self) -> bool {
        if self.drops() {
            return self.dropped.len() < BACKLOG_SLOTS;
        }
        self.expedited.len() + self.direct.len() < EXPEDITED_SLOTS
    }

    /// Returns `true` if a packet waits for the device.
    #[inline]
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting() > 0
    }

    /// Returns the number of packets that wait for the device.
    #[inline]
    #[must_use]
    pub(crate) fn waiting(&self) -> usize {
        self.first.len() + self.expedited.len() + self.waiting.len()
    }

    /// Returns the number of packets that wait for the device, that the engine is about to place in
    /// its ring, or that it is about to drop.
    #[inline]
    #[must_use]
    pub(crate) fn held(&self) -> usize {
        self.waiting() + self.direct.len() + self.dropped.len()
    }

    /// Returns `true` if the device had no room at the last attempt.
    #[inline]
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Gives a packet for which there is room to the device with the next group, or puts it into
    /// the backlog.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    #[inline]
    pub(crate) fn hand_off(
        &mut self,
        slot: u32,
        expedited: bool,
        bounce: &BounceBuffers,
        port: &mut DevicePort,
    ) -> Result<(), DeviceError> {
        if !self.link_up {
            self.keep(slot, expedited);
            return Ok(());
        }
        if self.mode == HandoffMode::Direct && !self.blocked && !self.is_waiting() {
            self.direct.push((slot, expedited));
            return if self.direct.len() < BATCH { Ok(()) } else { self.place(bounce, port) };
        }
        self.counts.queued += 1;
        if expedited {
            self.expedited.push_back(slot);
        } else {
            self.waiting.push_back(slot);
        }
        if self.blocked {
            self.counts.backlogged += 1;
        } else if self.waiting.len() >= BATCH {
            self.flush(bounce, port)?;
        }
        Ok(())
    }

    /// Places the direct packets in the device's ring. Those that the device has no room for wait.
    fn place(&mut self, bounce: &BounceBuffers, port: &mut DevicePort) -> Result<(), DeviceError> {
        let mut batch = [NO_PACKET; BATCH];
        for (packet, (slot, _)) in batch.iter_mut().zip(&self.direct) {
            let entry = &bounce.slots[*slot as usize];
            *packet = packet_of(entry, *slot);
        }
        let taken = port.submit(&batch[..self.direct.len()])?;
        self.counts.direct += taken as u64;
        let expedited = self.direct[..taken].iter().filter(|(_, expedited)| *expedited).count();
        self.counts.expedited += expedited as u64;
        let refused = self.direct.len() - taken;
        if refused > 0 {
            self.blocked = true;
            self.counts.full += 1;
            self.counts.queued += refused as u64;
            self.counts.backlogged += refused as u64;
            for (slot, expedited) in &self.direct[taken..] {
                let line = if *expedited { &mut self.expedited } else { &mut self.waiting };
                line.push_back(*slot);
            }
        }
        self.direct.clear();
        Ok(())
    }

    /// Puts a packet into the backlog while the link is down, or among those to drop.
    #[cold]
    fn keep(&mut self, slot: u32, expedited: bool) {
        let is_full = if expedited {
            self.expedited.len() >= EXPEDITED_SLOTS
        } else {
            self.first.len() + self.waiting.len() >= BATCH
        };
        if is_full && self.drops() {
            self.dropped.push(slot);
            return;
        }
        self.counts.queued += 1;
        self.counts.backlogged += 1;
        let line = if expedited { &mut self.expedited } else { &mut self.waiting };
        line.push_back(slot);
    }

    /// Gives the device the direct packets. If it has room for them, also gives it those of the
    /// backlog: first those that precede all others, then expedited packets within their share,
    /// then the rest.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn flush(
        &mut self,
        bounce: &BounceBuffers,
        port: &mut DevicePort,
    ) -> Result<(), DeviceError> {
        if !self.link_up {
            return Ok(());
        }
        if !self.direct.is_empty() {
            self.place(bounce, port)?;
            if self.blocked {
                return Ok(());
            }
        }
        let was_blocked = std::mem::replace(&mut self.blocked, false);
        while self.is_waiting() {
            let mut batch = [NO_PACKET; BATCH];
            // The share limits expedited packets against batches of others. While no others wait,
            // there is nothing to share.
            let share = if self.waiting.is_empty() { BATCH } else { self.expedited_left };
            let first = self.first.len().min(BATCH);
            let expedited = self.expedited.len().min(share).min(BATCH - first);
            let mut count = 0;
            let expedited_slots = self.expedited.iter().take(expedited);
            for slot in self.first.iter().chain(expedited_slots).chain(&self.waiting).take(BATCH) {
                let entry = &bounce.slots[*slot as usize];
                batch[count] = packet_of(entry, *slot);
                count += 1;
            }
            let taken = port.submit(&batch[..count])?;
            for index in 0..taken {
                let is_expedited = (first..first + expedited).contains(&index);
                let line = match index {
                    _ if is_expedited => &mut self.expedited,
                    index if index < first => &mut self.first,
                    _ => &mut self.waiting,
                };
                line.pop_front();
                self.counts.expedited += u64::from(is_expedited);
            }
            self.counts.drained += taken as u64;
            let expedited = taken.saturating_sub(first).min(expedited);
            self.expedited_left = self.expedited_left.saturating_sub(expedited);
            self.others += taken - expedited;
            if self.others >= BATCH || self.waiting.is_empty() {
                (self.others, self.expedited_left) = (0, self.expedited_share);
            }
            if taken < count {
                self.blocked = true;
                self.counts.full += 1;
                if !was_blocked {
                    // The call that gives a later packet counts that packet.
                    self.counts.backlogged += self.waiting() as u64;
                }
                break;
            }
        }
        // With direct hand-off, the one kick follows at the end of the poll iteration.
        if self.mode == HandoffMode::Queued { port.kick(Kick::Tx) } else { Ok(()) }
    }

    /// Puts packets that the device returned unsent before all others, in their order. The engine
    /// gave the expedited ones among them before the waiting ones, so no packet overtakes any of
    /// them. There may be more of them than the backlog's usual limit.
    pub(crate) fn again(&mut self, slots: &[u64]) {
        self.counts.queued += slots.len() as u64;
        for slot in slots.iter().rev() {
            self.first.push_front(*slot as u32);
        }
    }

    /// Removes the packets of an ended session, which `gone` selects.
    pub(crate) fn forget(&mut self, mut gone: impl FnMut(u32) -> bool) {
        for line in [&mut self.first, &mut self.expedited, &mut self.waiting] {
            line.retain(|slot| !gone(*slot));
        }
        self.blocked &= self.is_waiting();
    }
}

#[cfg(test)]
mod tests;
