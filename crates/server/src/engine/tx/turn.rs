//! The turn of one queue pair: batches that the engine takes, fetches and sends, until the queue
//! pair's share or the iteration's budget is used up.

use towpath_device::DeviceError;
use towpath_queue::Violation;

use crate::engine::port::FRAME_BYTES;
use crate::engine::schedule::{Stop, Turn};
use crate::engine::tx::batch::{Batch, Holds, Taken};
use crate::engine::tx::context::{Round, Sent, Served, TxContext};
use crate::engine::tx::requests::RequestTurn;
use crate::engine::tx::take::{Allowance, Ended, Rules};
use crate::engine::tx::{TxPath, local, oob};
use crate::engine::work::{Share, Spent};

/// What is left of a unit's turn.
struct Left {
    packets: usize,
    used: usize,
    bytes: i64,
    message_bytes: u64,
}

impl TxPath {
    /// Sends from one queue pair until its share or the iteration's budget is used up, by packets
    /// or by their extra cost. Puts packets that it fetched but did not send back into their queue.
    pub(super) fn serve(
        &mut self,
        batch: &mut Batch,
        turn: &Turn,
        left: usize,
        expedited: bool,
        context: &mut TxContext<'_>,
    ) -> Result<Round, DeviceError> {
        let began = context.delivery.parts().0.meter.now();
        let round = self.serve_turn(batch, turn, left, expedited, context);
        if began.is_some() {
            let (sessions, _) = context.delivery.parts();
            let ns = sessions.meter.since(began);
            if let Some(session) = sessions.get_mut(turn.key) {
                session.add_time(ns);
            }
        }
        round
    }

    fn serve_turn(
        &mut self,
        batch: &mut Batch,
        turn: &Turn,
        left: usize,
        expedited: bool,
        context: &mut TxContext<'_>,
    ) -> Result<Round, DeviceError> {
        (batch.key, batch.queue_pair, batch.unit, batch.expedited) =
            (turn.key, turn.queue_pair, turn.unit, expedited);
        self.interrupted = None;
        let packets = turn.packets.min(left);
        let Turn { bytes, message_bytes, .. } = *turn;
        let mut left = Left { packets, used: 0, bytes, message_bytes };
        let mut taken = 0;
        loop {
            let Some(ended) = self.take_batch(batch, &left, context) else {
                return Ok(Round { taken, used: left.used, served: Served::Gone });
            };
            let (sent, outcome) = self.send_batch(batch, context)?;
            let first = taken == 0;
            taken += sent;
            self.charge(batch, sent, &mut left);
            if let Some(served) = self.after(batch, sent, (first, ended, outcome), &left, context) {
                return Ok(Round { taken, used: left.used, served });
            }
        }
    }

    /// Takes and fetches a batch. Returns the reason for which it took no more; `None` if the
    /// session is gone or about to end.
    fn take_batch(
        &mut self,
        batch: &mut Batch,
        left: &Left,
        context: &mut TxContext<'_>,
    ) -> Option<Result<Ended, Violation>> {
        let iteration_bytes = self.iteration_bytes;
        let packets = left.packets - left.used;
        batch.share = Share { packets, bytes: left.bytes, iteration_bytes };
        self.spent = Spent::default();
        let allowance = Allowance {
            packets,
            bytes: left.bytes.min(iteration_bytes),
            message_bytes: left.message_bytes,
        };
        let memory = context.memories.get(batch.key)?;
        let (sessions, notifier) = context.delivery.parts();
        // The engine is at this session until it serves another one: a driver may fail later with
        // its packets.
        let session = sessions.serve(batch.key)?;
        if session.violation.is_some() || session.closing {
            return None;
        }
        let ended = batch.take(session, memory.mapping(), &self.rules(), allowance);
        // The engine reports skipped packets to the client, too.
        if session.queue_pairs[batch.queue_pair as usize].transmit.has_news() {
            notifier.touch(session, batch.key, batch.queue_pair);
        }
        batch.fetch(session, memory.mapping());
        Some(ended)
    }

    /// Returns what decides which packets a batch takes.
    fn rules(&self) -> Rules<'_> {
        let (now, tick, expedited_share) = (self.now, self.tick, self.expedited_share);
        Rules { schedule: &self.schedule, now, tick, expedited_share }
    }

    /// Charges the first `sent` packets of a batch to its unit and to the poll iteration.
    fn charge(&mut self, batch: &Batch, sent: usize, left: &mut Left) {
        let Spent { unit: beyond, captures, .. } = self.spent;
        left.used += sent + (beyond.copies + captures.copies) as usize;
        let sent_bytes;
        (sent_bytes, left.message_bytes) = batch.sent(sent, left.message_bytes);
        let cost = sent_bytes + beyond.cost();
        self.schedule.charge(batch.unit, cost);
        left.bytes = left.bytes.saturating_sub(cost as i64);
        self.iteration_bytes -= (cost + captures.cost()) as i64;
    }

    /// Decides after a batch, of which the first `sent` packets are sent, whether the unit's turn
    /// ends; `None`: it goes on. `first`: no packet was sent before in this turn.
    fn after(
        &mut self,
        batch: &Batch,
        sent: usize,
        (first, ended, outcome): (bool, Result<Ended, Violation>, Option<Violation>),
        left: &Left,
        context: &mut TxContext<'_>,
    ) -> Option<Served> {
        let unsent = sent < batch.count && outcome.is_none();
        let (sessions, _) = context.delivery.parts();
        let Some(session) = sessions.get_mut(batch.key) else { return Some(Served::Gone) };
        if unsent {
            batch.put_back(session, sent);
        }
        if let Some(violation) = outcome.or(ended.err()) {
            sessions.condemn(batch.key, violation);
            return Some(Served::Gone);
        }
        if batch.shaped {
            batch.charge(session, sent, &self.rules());
        }
        if unsent && let Some(stop) = self.interrupted.take() {
            // The request goes on in the unit's next turn.
            return Some(Served::More(stop, 0));
        }
        if unsent && self.has_used_share(batch, sent) {
            // A message does not keep other units waiting for copies; it continues in the unit's
            // next turn.
            return Some(Served::More(Stop::Over, 0));
        }
        if unsent {
            // The engine may segment a packet that is longer than a frame.
            let large = batch.packets[sent].len as usize > context.port.mtu() + FRAME_BYTES;
            let stop = Stop::Blocked { at_once: first && sent == 0, large };
            return Some(Served::More(stop, left.message_bytes));
        }
        let over = left.used >= left.packets
            || self.iteration_bytes <= 0
            || left.bytes <= 0 && left.message_bytes == 0;
        match ended {
            Ok(Ended::Empty) => Some(Served::Idle),
            Ok(Ended::OtherLine) => Some(Served::OtherLine),
            Ok(Ended::Stop(stop)) => Some(Served::More(stop, 0)),
            Ok(Ended::Over) => Some(Served::More(Stop::Over, left.message_bytes)),
            _ if over => Some(Served::More(Stop::Over, left.message_bytes)),
            _ => None,
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
    fn send_batch(
        &mut self,
        batch: &mut Batch,
        context: &mut TxContext<'_>,
    ) -> Result<(usize, Option<Violation>), DeviceError> {
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
    ) -> Result<(usize, Option<Violation>), DeviceError> {
        if !CAPTURES && let Some(sender) = context.delivery.session(batch.key) {
            local::admit(batch, sender, context.flows, context.port.mtu());
        }
        let mut index = 0;
        loop {
            if index < batch.count && batch.packets[index].local {
                index += local::deliver_run(batch, index, context);
            }
            if index == batch.count {
                return Ok((index, None));
            }
            match batch.packets[index].holds {
                Holds::Packet => {}
                Holds::Message => {
                    if let Err(violation) = oob::send(batch, index, context) {
                        return Ok((index + 1, Some(violation)));
                    }
                    index += 1;
                    continue;
                }
                Holds::Request => {
                    match self.carry_out(batch, index, context) {
                        Err(violation) => return Ok((index + 1, Some(violation))),
                        Ok(RequestTurn::Later(stop)) => {
                            self.interrupted = Some(stop);
                            return Ok((index, None));
                        }
                        Ok(RequestTurn::Ended | RequestTurn::Sent) => index += 1,
                    }
                    if self.has_used_share(batch, index) {
                        return Ok((index, None));
                    }
                    continue;
                }
            }
            let (later, costly) = match self.check_and_send::<CAPTURES>(batch, index, context)? {
                Sent::Now => (false, false),
                Sent::Later => (true, false),
                Sent::Costly { later } => (later, true),
                Sent::NoRoom => return Ok((index, None)),
                Sent::Violates(violation) => return Ok((index + 1, Some(violation))),
            };
            if !later {
                let one = batch.packets[index];
                context.delivery.complete((batch.key, batch.queue_pair), one.first, one.chain);
            }
            if costly && self.has_used_share(batch, index + 1) {
                return Ok((index + 1, None));
            }
            index += 1;
        }
    }
}
