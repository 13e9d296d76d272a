//! Transmit path, from the applications to the device and to each other. The engine serves the
//! queue pairs that have something to send, in the scheduler's order and within budgets. `take.rs`
//! takes packets from the queues; `send.rs` decides what becomes of each packet.

use towpath_device::DeviceError;
use towpath_packet::plain::Plain;
use towpath_queue::Violation;
use towpath_queue::descriptor::{Descriptor, EXPEDITED, MAX_CHAIN};

use crate::engine::handoff::EXPEDITED_SLOTS;
use crate::engine::publish::touch;
use crate::engine::schedule::shape::Class;
use crate::engine::schedule::{Due, Stop, Turn};
use crate::engine::send::Sent;
use crate::engine::take::{Allowance, Ended};
use crate::engine::work::{ITERATION_BYTES, Share, Spent};
use crate::engine::{BOUNCE_SLOTS, Engine};

/// Packets of one queue pair that the engine fetches together, so that the processor waits once for
/// their memory.
pub(crate) const BATCH: usize = 32;

/// Events of one session that the engine takes per poll iteration; the rest waits for the next one.
pub(crate) const EVENTS: u32 = 256;

/// Expedited packets of one queue pair that precede those of the next one.
const EXPEDITED_PER_ITERATION: usize = 4;

/// Marks a packet without a bounce buffer.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// A packet that the engine took from a queue and that is not done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) first: u32,
    pub(crate) chain: u32,
    /// The index of the packet's first descriptor in the batch.
    pub(crate) at: u32,
    pub(crate) endpoint: u32,
    pub(crate) len: u32,
    /// `true` if the packet is not late and, by its descriptor, in one buffer without metadata.
    pub(crate) single: bool,
    /// `true` if the packet's beginning is in its bounce buffer.
    pub(crate) fetched: bool,
    /// `true` if the packet's headers are in [`Batch::plain`].
    pub(crate) plain: bool,
    /// `true` if the engine looked the destination up and found no endpoint of this host.
    pub(crate) no_local_match: bool,
    /// `true` if the next packet belongs to the same message.
    pub(crate) together: bool,
    /// `true` if the packet waited too long and the engine drops it.
    pub(crate) late: bool,
}

/// Packets of one queue pair that the engine took together, with their descriptors.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) key: u32,
    pub(crate) queue_pair: u32,
    pub(crate) unit: u32,
    /// `true` if the packets are expedited and precede the others.
    pub(crate) expedited: bool,
    /// `true` if all packets are of one endpoint, whose settings apply.
    pub(crate) shaped: bool,
    pub(crate) descriptors: [Descriptor; BATCH + MAX_CHAIN],
    pub(crate) packets: [Taken; BATCH],
    /// The packets' bounce buffers. The next batch reuses a slot that its packet no longer needs.
    pub(crate) slots: [u32; BATCH],
    /// The headers of the plain packets.
    pub(crate) plain: [Plain; BATCH],
    pub(crate) count: usize,
    /// Bytes of all packets.
    pub(crate) bytes: u64,
    /// Bytes of the message that continues behind the batch; 0 if there is none, or if the
    /// scheduler has kept enough of it together.
    pub(crate) message_bytes: u64,
    /// The limit up to which the scheduler keeps a message together, in bytes.
    pub(crate) max_message_bytes: u64,
    /// The limit of the packets' cost.
    pub(crate) share: Share,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            key: 0,
            queue_pair: 0,
            unit: 0,
            expedited: false,
            shaped: false,
            descriptors: [Descriptor::default(); BATCH + MAX_CHAIN],
            packets: [Taken::default(); BATCH],
            slots: [NO_SLOT; BATCH],
            plain: [Plain::default(); BATCH],
            count: 0,
            bytes: 0,
            message_bytes: 0,
            max_message_bytes: 0,
            share: Share::default(),
        }
    }
}

/// The result of a unit's turn.
struct Round {
    /// Packets taken.
    taken: usize,
    /// Packets taken, plus each packet's copies beyond the first.
    used: usize,
    served: Served,
}

/// The way in which a unit's turn ended.
enum Served {
    /// The unit has nothing more to send.
    Idle,
    /// The unit has more to send. The fields give the reason for the turn's end, and the bytes sent
    /// so far of the current message.
    More(Stop, u64),
    /// The unit's next packet belongs in another line.
    OtherLine,
    /// The unit's session is gone or about to end.
    Gone,
}

impl Engine {
    /// Takes packets from the queue pairs that have some, in the scheduler's order and within
    /// budgets.
    pub(crate) fn transmit(&mut self) -> Result<usize, DeviceError> {
        if self.timed > 0 || self.schedule.next_due().is_some() {
            self.read_clock();
        }
        while let Some(Due { unit, key, queue_pair }) = self.schedule.due(self.now, self.tick) {
            self.activate(unit, key, queue_pair);
        }
        self.discover()?;
        if self.handoff.is_waiting() {
            self.handoff.flush(&self.bounce, &mut self.spaces, self.device.as_mut())?;
        }
        let expedited = self.schedule.expedited(self.has_expedited_room());
        if self.schedule.ready(self.has_room()) + expedited == 0 {
            return Ok(0);
        }
        self.schedule.begin();
        self.iteration_bytes = ITERATION_BYTES as i64;
        let mut batch = self.tx_batch.take().unwrap_or_default();
        let expedited = self.transmit_expedited(&mut batch);
        let outcome =
            expedited.and_then(|expedited| Ok(expedited + self.transmit_units(&mut batch)?));
        self.tx_batch = Some(batch);
        outcome
    }

    /// Returns `true` if a packet may be sent towards the device.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.handoff.has_room(1) && self.has_slots(1 + EXPEDITED_SLOTS)
    }

    /// Returns `true` if an expedited packet may be sent towards the device.
    #[inline]
    pub(crate) fn has_expedited_room(&self) -> bool {
        self.handoff.has_expedited_room() && self.has_slots(1)
    }

    /// Returns `true` if packets in the backlog and in flight may take `slots` more bounce buffers.
    /// One batch's worth of slots stays reserved for packets under check, which may be for this
    /// host. There are as many in-flight entries as slots, and each entry has at least one slot.
    #[inline]
    pub(crate) fn has_slots(&self, slots: usize) -> bool {
        let taken = self.handoff.waiting() + self.out() as usize;
        taken + slots <= BOUNCE_SLOTS as usize - BATCH
    }

    /// Returns `true` if the engine has something to send that need not wait.
    pub(crate) fn can_transmit(&self) -> bool {
        self.schedule.ready(self.has_room()) > 0
            || self.schedule.expedited(self.has_expedited_room()) > 0
    }

    fn transmit_units(&mut self, batch: &mut Batch) -> Result<usize, DeviceError> {
        let ready = self.schedule.ready(self.has_room());
        let mut left = self.budgets.iteration_budget.min(self.budgets.transmit_budget * ready);
        // Each turn that sends nothing takes a unit out of its line, or leaves it to wait for room.
        let mut vain = 2 * ready;
        let mut work = 0;
        while left > 0 && vain > 0 && self.iteration_bytes > 0 {
            let Some(turn) = self.schedule.next(self.has_room()) else { break };
            let Round { taken, used, served } = self.serve(batch, &turn, left, false)?;
            match served {
                Served::Idle => self.schedule.idle(turn.unit),
                Served::More(stop, message_bytes) => {
                    self.schedule.more(turn.unit, stop, message_bytes)
                }
                Served::OtherLine => self.change_line(&turn),
                Served::Gone => self.end_if_violated(turn.key),
            }
            vain -= usize::from(taken == 0);
            work += taken;
            // Copies count against the unit's own part of the iteration's packets, and not against
            // the parts of other units.
            left -= used.min(taken.max(self.budgets.transmit_budget)).min(left);
        }
        Ok(work)
    }

    /// Sends expedited packets first, up to their limit per poll iteration. A unit that waits for
    /// room keeps its position, and units behind it may have packets for this host.
    fn transmit_expedited(&mut self, batch: &mut Batch) -> Result<usize, DeviceError> {
        let mut left = self.expedited_share;
        // A client can announce an expedited packet and then provide another one, but this wastes
        // at most one turn per unit.
        let mut vain = self.schedule.expedited(self.has_expedited_room());
        let mut work = 0;
        while left > 0 && vain > 0 && self.iteration_bytes > 0 {
            let Some(turn) = self.schedule.next_expedited(self.has_expedited_room()) else { break };
            let Round { taken, used, served } =
                self.serve(batch, &turn, left.min(EXPEDITED_PER_ITERATION), true)?;
            work += taken;
            left -= used.min(left);
            vain -= usize::from(taken == 0);
            match served {
                Served::Idle => self.schedule.idle(turn.unit),
                Served::More(Stop::Blocked { .. }, _) => {
                    self.schedule.more_expedited(turn.unit, true)
                }
                Served::More(stop @ (Stop::Until(_) | Stop::Tick(_)), _) => {
                    self.schedule.more(turn.unit, stop, 0);
                }
                Served::More(..) => self.schedule.more_expedited(turn.unit, false),
                Served::OtherLine => self.change_line(&turn),
                Served::Gone => self.end_if_violated(turn.key),
            }
        }
        Ok(work)
    }

    /// Moves a served queue pair to the line of its next packet: expedited packets have their own
    /// line, and other packets that of their class.
    fn change_line(&mut self, turn: &Turn) {
        self.schedule.leave_line(turn.unit);
        self.activate(turn.unit, turn.key, turn.queue_pair);
    }

    /// Finds the queue pairs of a session that have something to send, and returns how many the
    /// session named.
    pub(crate) fn discover_in(&mut self, key: u32) -> u32 {
        let Some(session) = &mut self.sessions[key as usize] else { return 0 };
        let mut found = std::mem::take(&mut self.discovered);
        found.clear();
        let outcome = session.work.take(EVENTS, |queue_pair| found.push(queue_pair));
        // All events are acknowledged before this check, so later packets cause a new event.
        for queue_pair in &found {
            let Some(session) = &mut self.sessions[key as usize] else { break };
            let set = &mut session.queue_pairs[*queue_pair as usize];
            let unit = set.unit;
            if !self.schedule.is_active(unit) {
                self.activate(unit, key, *queue_pair);
            } else if let Some(arrivals) = &mut set.arrivals
                && set.transmit.observe().is_ok()
            {
                arrivals.note(set.transmit.seen(), self.now);
            }
        }
        self.discovered = found;
        match outcome {
            Ok(count) => count,
            Err(violation) => {
                self.violates(key, violation);
                0
            }
        }
    }

    fn violates(&mut self, key: u32, violation: Violation) {
        if let Some(session) = &mut self.sessions[key as usize] {
            session.violation.get_or_insert(violation);
            self.end_if_violated(key);
        }
    }

    /// Puts a queue pair that stands in no line into the line of its next packet.
    pub(crate) fn activate(&mut self, unit: u32, key: u32, queue_pair: u32) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        if session.closing {
            return;
        }
        let set = &mut session.queue_pairs[queue_pair as usize];
        // The client writes this hint. The engine detects a false one when it takes the packet.
        match set.transmit.peek() {
            Ok(Some((endpoint, flags))) => {
                if let Some(arrivals) = &mut set.arrivals {
                    arrivals.note(set.transmit.seen(), self.now);
                }
                let class = if set.shaped { session.class(endpoint) } else { Class::default() };
                let expedited = flags & EXPEDITED != 0 && self.expedited_share > 0;
                self.schedule.enter(unit, class, expedited, self.now);
            }
            Ok(None) => self.schedule.idle(unit),
            Err(violation) => self.violates(key, violation),
        }
    }

    /// Sends from one queue pair until its share or the iteration's budget is used up, by packets
    /// or by their extra cost. Puts packets that it fetched but did not send back into their queue.
    fn serve(
        &mut self,
        batch: &mut Batch,
        turn: &Turn,
        left: usize,
        expedited: bool,
    ) -> Result<Round, DeviceError> {
        let Turn { unit, key, queue_pair, .. } = *turn;
        (batch.key, batch.queue_pair, batch.unit, batch.expedited) =
            (key, queue_pair, unit, expedited);
        let budget = turn.packets.min(left);
        let (mut taken, mut used, mut bytes, mut message_bytes) =
            (0, 0, turn.bytes, turn.message_bytes);
        loop {
            let iteration_bytes = self.iteration_bytes;
            batch.share = Share { packets: budget - used, bytes, iteration_bytes };
            self.spent = Spent::default();
            let allowance = Allowance {
                packets: budget - used,
                bytes: bytes.min(iteration_bytes),
                message_bytes,
            };
            let ended = self.take_batch(batch, allowance);
            // The engine reports skipped packets to the client, too.
            if let Some(session) = &mut self.sessions[key as usize]
                && session.queue_pairs[queue_pair as usize].transmit.has_news()
            {
                touch(&mut self.touched, session, key, queue_pair);
            }
            self.fetch_batch(batch);
            let (sent, outcome) = self.send_batch(batch)?;
            let Spent { unit: beyond, captures, .. } = self.spent;
            taken += sent;
            used += sent + (beyond.copies + captures.copies) as usize;
            let sent_bytes;
            (sent_bytes, message_bytes) = batch.sent(sent, message_bytes);
            let cost = sent_bytes + beyond.cost();
            self.schedule.charge(unit, cost);
            bytes = bytes.saturating_sub(cost as i64);
            self.iteration_bytes -= (cost + captures.cost()) as i64;
            let left = sent < batch.count && outcome.is_none();
            if left {
                self.put_back(batch, sent);
            }
            let served = |served| Ok(Round { taken, used, served });
            let Some(session) = &mut self.sessions[key as usize] else {
                return served(Served::Gone);
            };
            if let Some(violation) = outcome.or(ended.err()) {
                session.violation.get_or_insert(violation);
                return served(Served::Gone);
            }
            if batch.shaped {
                self.charge(batch, sent);
            }
            if left && self.has_used_share(batch, sent) {
                // A message does not keep other units waiting for copies; it continues in the
                // unit's next turn.
                return served(Served::More(Stop::Over, 0));
            }
            if left {
                // The engine may segment a packet that is longer than a frame.
                let large = batch.packets[sent].len as usize > self.device.info().mtu + 18;
                let stop = Stop::Blocked { at_once: taken == 0, large };
                return served(Served::More(stop, message_bytes));
            }
            let over =
                used >= budget || self.iteration_bytes <= 0 || bytes <= 0 && message_bytes == 0;
            return served(match ended {
                Ok(Ended::Empty) => Served::Idle,
                Ok(Ended::OtherLine) => Served::OtherLine,
                Ok(Ended::Stop(stop)) => Served::More(stop, 0),
                Ok(Ended::Over) => Served::More(Stop::Over, message_bytes),
                _ if over => Served::More(Stop::Over, message_bytes),
                _ => continue,
            });
        }
    }

    /// Returns `true` if the first `sent` packets of a batch have used up its share by their extra
    /// cost.
    fn has_used_share(&mut self, batch: &Batch, sent: usize) -> bool {
        let charged = |one: &Taken| if one.late { 0 } else { one.len };
        self.spent.has_used(&batch.share, batch.packets[..sent].iter().map(charged))
    }

    /// Sends the fetched packets one after the other. Returns how many are done or handed off, and
    /// the violation that ended the batch. If fewer than all were sent without a violation, the
    /// device has no room, or the packets have used up the batch's share.
    fn send_batch(&mut self, batch: &mut Batch) -> Result<(usize, Option<Violation>), DeviceError> {
        // No capture begins within a poll iteration: the engine executes commands before it.
        if self.flows.has_no_captures() {
            self.send_batch_to::<false>(batch)
        } else {
            self.send_batch_to::<true>(batch)
        }
    }

    /// Sends the batch, with or without captures and promiscuous endpoints.
    fn send_batch_to<const CAPTURES: bool>(
        &mut self,
        batch: &mut Batch,
    ) -> Result<(usize, Option<Violation>), DeviceError> {
        let mtu = self.device.info().mtu;
        let mut index = 0;
        loop {
            if !CAPTURES {
                index += self.deliver_locally(batch, index, mtu);
            }
            if index == batch.count {
                return Ok((index, None));
            }
            if batch.slots[index] == NO_SLOT {
                return Ok((index, None));
            }
            match self.check_and_send::<CAPTURES>(batch, index, mtu)? {
                Sent::Now => {
                    let one = batch.packets[index];
                    self.record_completion(batch, one.first, one.chain);
                }
                // A packet that the engine handed off keeps its slot.
                Sent::Later => batch.slots[index] = NO_SLOT,
                Sent::Costly { later } => {
                    if later {
                        batch.slots[index] = NO_SLOT;
                    } else {
                        let one = batch.packets[index];
                        self.record_completion(batch, one.first, one.chain);
                    }
                    if self.has_used_share(batch, index + 1) {
                        return Ok((index + 1, None));
                    }
                }
                Sent::NoRoom => return Ok((index, None)),
                Sent::Violates(violation) => return Ok((index + 1, Some(violation))),
            }
            index += 1;
        }
    }
}
