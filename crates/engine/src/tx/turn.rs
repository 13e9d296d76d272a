//! The turns of queue pairs, in the scheduler's order. In its turn, a queue pair has batches that the engine takes, fetches
//! and sends, until the queue pair's share or the iteration's budget is used up.

use towpath_device::DeviceError;

use crate::closing::CLOSED_PER_ITERATION;
use crate::port::FRAME_BYTES;
use crate::schedule::{Stop, Turn};
use crate::tx::batch::{Batch, EntryKind, Taken};
use crate::tx::context::TxContext;
use crate::tx::outcome::{BatchEnd, BatchSent, EntryOutcome, TurnEnd, TurnOutcome};
use crate::tx::take::{Allowance, Rules};
use crate::tx::{TxPath, local, oob};
use crate::work::{ITERATION_BYTES, Share, Spent};

/// Expedited packets of one queue pair that precede those of the next one.
const EXPEDITED_PER_ITERATION: usize = 4;

/// What is left of a unit's turn, and what it has used.
struct TurnBudget {
    packets: usize,
    /// Entries taken and not put back.
    taken: usize,
    /// The same, plus each entry's copies beyond the first.
    used: usize,
    bytes: i64,
    message_bytes: u64,
}

impl TurnBudget {
    fn outcome(&self, end: TurnEnd) -> TurnOutcome {
        TurnOutcome { taken: self.taken, used: self.used, end }
    }

    /// Returns `true` if the unit may send no more in this turn.
    fn is_used_up(&self) -> bool {
        self.used >= self.packets || self.bytes <= 0 && self.message_bytes == 0
    }
}

impl TxPath {
    /// Takes packets from the queue pairs that have some, in the scheduler's order and within
    /// budgets. Returns how many.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn transmit(&mut self, context: &mut TxContext<'_>) -> Result<usize, DeviceError> {
        let expedited = self.schedule.expedited(self.has_expedited_room(context.port));
        if self.schedule.ready(self.has_room(context.port)) + expedited == 0 {
            return Ok(0);
        }
        self.schedule.begin();
        self.iteration_bytes = ITERATION_BYTES as i64;
        let mut batch = self.batch.take().unwrap_or_default();
        let expedited = self.transmit_expedited(&mut batch, context);
        let outcome = expedited
            .and_then(|expedited| Ok(expedited + self.transmit_units(&mut batch, context)?));
        self.batch = Some(batch);
        outcome
    }

    fn transmit_units(
        &mut self,
        batch: &mut Batch,
        context: &mut TxContext<'_>,
    ) -> Result<usize, DeviceError> {
        let ready = self.schedule.ready(self.has_room(context.port));
        let mut left = self.iteration_budget.min(self.transmit_budget * ready);
        // Each turn that sends nothing takes a unit out of its line, or leaves it to wait for room.
        let mut idle_turns = 2 * ready;
        let (mut work, mut gone) = (0, 0);
        while left > 0 && idle_turns > 0 && gone < CLOSED_PER_ITERATION && self.iteration_bytes > 0
        {
            let Some(turn) = self.schedule.next(self.has_room(context.port)) else { break };
            let TurnOutcome { taken, used, end } =
                self.serve(batch, &turn, left, false, context)?;
            match end {
                TurnEnd::Idle | TurnEnd::Gone => self.schedule.idle(turn.unit),
                TurnEnd::More { stop, message_bytes } => {
                    self.schedule.more(turn.unit, stop, message_bytes)
                }
                TurnEnd::OtherLine => self.change_line(&turn, context),
            }
            idle_turns -= usize::from(taken == 0);
            gone += usize::from(matches!(end, TurnEnd::Gone));
            work += taken;
            // Copies count against the unit's own part of the iteration's packets, and not against
            // the parts of other units.
            left -= used.min(taken.max(self.transmit_budget)).min(left);
        }
        Ok(work)
    }

    /// Sends expedited packets first, up to their limit per poll iteration. A unit that waits for
    /// room keeps its position, and units behind it may have packets for this host.
    fn transmit_expedited(
        &mut self,
        batch: &mut Batch,
        context: &mut TxContext<'_>,
    ) -> Result<usize, DeviceError> {
        let mut left = self.expedited_share;
        // A client can announce an expedited packet and then provide another one, but this wastes
        // at most one turn per unit.
        let mut idle_turns = self.schedule.expedited(self.has_expedited_room(context.port));
        let (mut work, mut gone) = (0, 0);
        while left > 0 && idle_turns > 0 && gone < CLOSED_PER_ITERATION && self.iteration_bytes > 0
        {
            let room = self.has_expedited_room(context.port);
            let Some(turn) = self.schedule.next_expedited(room) else { break };
            let most = left.min(EXPEDITED_PER_ITERATION);
            let TurnOutcome { taken, used, end } = self.serve(batch, &turn, most, true, context)?;
            work += taken;
            left -= used.min(left);
            idle_turns -= usize::from(taken == 0);
            gone += usize::from(matches!(end, TurnEnd::Gone));
            match end {
                TurnEnd::Idle | TurnEnd::Gone => self.schedule.idle(turn.unit),
                TurnEnd::More { stop: Stop::Blocked { .. }, .. } => {
                    self.schedule.more_expedited(turn.unit, true)
                }
                TurnEnd::More { stop: stop @ (Stop::Until(_) | Stop::Tick(_)), .. } => {
                    self.schedule.more(turn.unit, stop, 0);
                }
                TurnEnd::More { .. } => self.schedule.more_expedited(turn.unit, false),
                TurnEnd::OtherLine => self.change_line(&turn, context),
            }
        }
        Ok(work)
    }

    /// Moves a served queue pair to the line of its next packet: expedited packets have their own
    /// line, and other packets that of their class.
    fn change_line(&mut self, turn: &Turn, context: &mut TxContext<'_>) {
        self.schedule.leave_line(turn.unit);
        let (sessions, _) = context.delivery.parts();
        self.activate_unit(turn.unit, turn.key, turn.queue_pair, sessions);
    }

    /// Sends from one queue pair until its share or the iteration's budget is used up, by packets
    /// or by their extra cost. Puts packets that it fetched but did not send back into their queue.
    pub(super) fn serve(
        &mut self,
        batch: &mut Batch,
        turn: &Turn,
        left: usize,
        expedited: bool,
        context: &mut TxContext<'_>,
    ) -> Result<TurnOutcome, DeviceError> {
        let began = context.delivery.parts().0.meter.now();
        let outcome = self.serve_turn(batch, turn, left, expedited, context);
        if began.is_some() {
            let (sessions, _) = context.delivery.parts();
            let ns = sessions.meter.since(began);
            if let Some(session) = sessions.get_mut(turn.key) {
                session.add_time(ns);
            }
        }
        outcome
    }

    fn serve_turn(
        &mut self,
        batch: &mut Batch,
        turn: &Turn,
        left: usize,
        expedited: bool,
        context: &mut TxContext<'_>,
    ) -> Result<TurnOutcome, DeviceError> {
        (batch.key, batch.queue_pair, batch.unit, batch.expedited) =
            (turn.key, turn.queue_pair, turn.unit, expedited);
        let packets = turn.packets.min(left);
        let Turn { bytes, message_bytes, .. } = *turn;
        let mut budget = TurnBudget { packets, taken: 0, used: 0, bytes, message_bytes };
        loop {
            let Some(taking_end) = self.take_batch(batch, &budget, context) else {
                return Ok(budget.outcome(TurnEnd::Gone));
            };
            let sent = self.send_batch(batch, context)?;
            self.charge(batch, sent.count, &mut budget);
            if let Some(end) = self.after(batch, sent, taking_end, &budget, context) {
                return Ok(budget.outcome(end));
            }
        }
    }

    /// Takes and fetches a batch. Returns the reason for which it took no more; `None` if the
    /// session is gone or about to end.
    fn take_batch(
        &mut self,
        batch: &mut Batch,
        budget: &TurnBudget,
        context: &mut TxContext<'_>,
    ) -> Option<BatchEnd> {
        let iteration_bytes = self.iteration_bytes;
        let packets = budget.packets - budget.used;
        batch.share = Share { packets, bytes: budget.bytes, iteration_bytes };
        self.spent = Spent::default();
        let allowance = Allowance {
            packets,
            bytes: budget.bytes.min(iteration_bytes),
            message_bytes: budget.message_bytes,
        };
        let memory = context.memories.get(batch.key)?;
        let (sessions, notifier) = context.delivery.parts();
        // The engine is at this session until it serves another one: a driver may fail later with
        // its packets.
        let session = sessions.serve(batch.key)?;
        if session.violation().is_some() || session.is_closing() {
            return None;
        }
        let end = batch.take(session, memory.mapping(), &self.rules(), allowance);
        // The engine reports skipped packets to the client, too.
        if session.transmit.queue(batch.queue_pair).consumer.has_news() {
            notifier.touch(&mut session.receive, batch.key, batch.queue_pair);
        }
        batch.fetch(session, memory.mapping());
        Some(end)
    }

    /// Returns what decides which packets a batch takes.
    fn rules(&self) -> Rules<'_> {
        let (now, tick, expedited_share) = (self.now, self.tick, self.expedited_share);
        Rules { schedule: &self.schedule, now, tick, expedited_share }
    }

    /// Charges the first `sent` packets of a batch to its unit and to the poll iteration.
    fn charge(&mut self, batch: &Batch, sent: usize, budget: &mut TurnBudget) {
        let Spent { unit: beyond, captures, .. } = self.spent;
        budget.taken += sent;
        budget.used += sent + (beyond.copies + captures.copies) as usize;
        let sent_bytes;
        (sent_bytes, budget.message_bytes) = batch.sent(sent, budget.message_bytes);
        let cost = sent_bytes + beyond.cost();
        self.schedule.charge(batch.unit, cost);
        budget.bytes = budget.bytes.saturating_sub(cost as i64);
        self.iteration_bytes -= (cost + captures.cost()) as i64;
    }

    /// Decides after a batch whether the unit's turn ends; `None`: it does not. `taking_end`: the
    /// reason for which the batch took no more.
    fn after(
        &mut self,
        batch: &Batch,
        sent: BatchSent,
        taking_end: BatchEnd,
        budget: &TurnBudget,
        context: &mut TxContext<'_>,
    ) -> Option<TurnEnd> {
        let (sessions, _) = context.delivery.parts();
        let session = sessions.get_mut(batch.key);
        debug_assert!(session.is_some(), "session {} ended in its turn", batch.key);
        let Some(session) = session else { return Some(TurnEnd::Gone) };
        let is_violation = matches!(sent.end, Some(BatchEnd::Violation(_)));
        if sent.count < batch.count && !is_violation {
            batch.put_back(session, sent.count);
        }
        if batch.shaped {
            batch.charge(session, sent.count, &self.rules());
        }
        let message_bytes = budget.message_bytes;
        match sent.end_with(taking_end) {
            BatchEnd::Violation(violation) => {
                sessions.condemn(batch.key, violation);
                Some(TurnEnd::Gone)
            }
            BatchEnd::NoRoom => {
                // The engine may segment a packet that is longer than a frame.
                let next = &batch.packets[sent.count];
                let large = next.len as usize > context.port.mtu() + FRAME_BYTES;
                let stop = Stop::Blocked { at_once: budget.taken == 0, large };
                Some(TurnEnd::More { stop, message_bytes })
            }
            BatchEnd::Empty => Some(TurnEnd::Idle),
            BatchEnd::OtherLine => Some(TurnEnd::OtherLine),
            BatchEnd::Stop(stop) => Some(TurnEnd::stop(stop)),
            BatchEnd::Full if budget.is_used_up() || self.iteration_bytes <= 0 => {
                Some(TurnEnd::More { stop: Stop::Over, message_bytes })
            }
            BatchEnd::Full => None,
        }
    }

    /// Returns `true` if the first `sent` packets of a batch have used up its share by their extra
    /// cost.
    fn has_used_share(&mut self, batch: &Batch, sent: usize) -> bool {
        let charged = |one: &Taken| if one.late { 0 } else { one.len };
        self.spent.has_used(&batch.share, batch.packets[..sent].iter().map(charged))
    }

    /// Sends the fetched packets one after the other, until the device has no room or the packets
    /// have used up the batch's share.
    fn send_batch(
        &mut self,
        batch: &mut Batch,
        context: &mut TxContext<'_>,
    ) -> Result<BatchSent, DeviceError> {
        // No capture begins within a poll iteration: the engine executes commands before it.
        if context.flows.has_no_captures() {
            self.send_batch_to::<false>(batch, context)
        } else {
            self.send_batch_to::<true>(batch, context)
        }
    }

    /// Sends the batch, with or without captures and promiscuous endpoints.
    fn send_batch_to<const CAPTURES: bool>(
        &mut self,
        batch: &mut Batch,
        context: &mut TxContext<'_>,
    ) -> Result<BatchSent, DeviceError> {
        if !CAPTURES && let Some(sender) = context.delivery.session(batch.key) {
            local::admit(batch, sender, context.flows, context.port.mtu());
        }
        let mut index = 0;
        loop {
            if index < batch.count && batch.packets[index].local {
                index += local::deliver_run(batch, index, context);
            }
            if index == batch.count {
                return Ok(BatchSent { count: index, end: None });
            }
            let outcome = match batch.packets[index].kind {
                EntryKind::Packet => self.check_and_send::<CAPTURES>(batch, index, context)?,
                EntryKind::Message => {
                    oob::send(batch, index, context).unwrap_or_else(EntryOutcome::Violation)
                }
                EntryKind::Request => {
                    self.carry_out(batch, index, context).unwrap_or_else(EntryOutcome::Violation)
                }
            };
            match outcome {
                EntryOutcome::Done => {
                    let one = batch.packets[index];
                    context.delivery.complete(batch.key, batch.queue_pair, one.first, one.chain);
                }
                EntryOutcome::HandedOff => {}
                EntryOutcome::NoRoom => {
                    // A unit that has used up its share need not wait for the device.
                    let is_over = self.has_used_share(batch, index);
                    let end = if is_over { BatchEnd::Stop(Stop::Over) } else { BatchEnd::NoRoom };
                    return Ok(BatchSent { count: index, end: Some(end) });
                }
                EntryOutcome::Unfinished => {
                    let stop = self.continues_at.map_or(Stop::Over, Stop::Until);
                    return Ok(BatchSent { count: index, end: Some(BatchEnd::Stop(stop)) });
                }
                EntryOutcome::Violation(violation) => {
                    return Ok(BatchSent { count: index + 1, end: Some(violation.into()) });
                }
            }
            index += 1;
            if index < batch.count
                && self.spent.take_unchecked()
                && self.has_used_share(batch, index)
            {
                // A message does not keep other units waiting for copies; it continues in the unit's
                // next turn.
                return Ok(BatchSent { count: index, end: Some(BatchEnd::Stop(Stop::Over)) });
            }
        }
    }
}
