//! Taking packets out of a queue, a batch at a time. The engine takes at most as many as the unit
//! may send, and no packet whose time has not come.

use towpath_packet::plain;
use towpath_queue::Violation;
use towpath_queue::descriptor::{EXPEDITED, META, MORE, TOGETHER};

use crate::engine::Engine;
use crate::engine::bounce::{PREFIX_BYTES, WHOLE_BYTES};
use crate::engine::schedule::Stop;
use crate::engine::schedule::shape::{Class, Gate, Moment, Shape, Shaping};
use crate::engine::transmit::{BATCH, Batch, NO_SLOT, Taken};

/// The part of a packet that the engine prefetches before it reads the packet, without knowing yet
/// whether the packet may be sent.
const PREFETCH_BYTES: usize = 2048;

/// The amount that the engine may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) packets: usize,
    /// The packet that uses up the last bytes is taken whole.
    pub(crate) bytes: i64,
    /// Bytes of the message that continues.
    pub(crate) message_bytes: u64,
}

/// The reason for which the engine took no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The queue is empty.
    Empty,
    /// The batch is full, or the next packet belongs in another one.
    Full,
    /// The queue holds more than the allowance, and no message is to be ended.
    Over,
    /// The next packet has to wait, or is not of this class.
    Stop(Stop),
    /// The next packet belongs in another line: expedited packets have their own.
    OtherLine,
}

impl Batch {
    /// Returns the bytes of the first `sent` packets. Also returns how many of these bytes belong
    /// to a message that continues behind them and that the scheduler keeps together.
    pub(crate) fn sent(&self, sent: usize, mut message_bytes: u64) -> (u64, u64) {
        if sent == self.count {
            return (self.bytes, self.message_bytes);
        }
        let mut bytes = 0;
        for one in &self.packets[..sent] {
            bytes += if one.late { 0 } else { u64::from(one.len) };
            message_bytes = if one.together { message_bytes + u64::from(one.len) } else { 0 };
        }
        (bytes, if message_bytes < self.max_message_bytes { message_bytes } else { 0 })
    }
}

impl Engine {
    /// Takes packets of a queue pair together, and prefetches their beginnings. Packets taken
    /// before a violation count.
    pub(crate) fn take_batch(
        &mut self,
        batch: &mut Batch,
        allowance: Allowance,
    ) -> Result<Ended, Violation> {
        (batch.count, batch.bytes, batch.message_bytes) = (0, 0, allowance.message_bytes);
        batch.max_message_bytes = u64::from(Shaping::default().max_message_bytes);
        let Some(session) = &mut self.sessions[batch.key as usize] else {
            return Ok(Ended::Empty);
        };
        let Some((pool_memory, _)) = &self.transmit_pools[batch.key as usize] else {
            return Ok(Ended::Empty);
        };
        let pool = session.shape.transmit_pool;
        let set = &mut session.queue_pairs[batch.queue_pair as usize];
        batch.shaped = set.shaped || batch.expedited;
        let mut moment = Moment { now: self.now, tick: self.tick, ..Moment::default() };
        // The state of the endpoint's shape once the taken packets are sent.
        let mut shape: Option<Shape> = None;
        let mut at = 0;
        while batch.count < BATCH.min(allowance.packets) {
            // There must be room for a chain of the greatest length; otherwise the packet waits for
            // the next batch.
            let Some(chain) = batch.descriptors.get_mut(at..).and_then(|c| c.first_chunk_mut())
            else {
                break;
            };
            if set.transmit.waiting() == 0 && set.transmit.observe()? == 0 {
                return Ok(Ended::Empty);
            }
            let taken = set.transmit.take(&mut session.transmit_ledger, chain)?;
            // Packets that a predecessor completed were skipped; the loop continues with the
            // packets behind them.
            let Some((count, first)) = taken else { continue };
            let start = chain[0].pool_offset(&pool);
            let mut len = chain[0].len;
            for one in &chain[1..count] {
                len += one.len;
            }
            let endpoint = chain[0].endpoint;
            let mut late = false;
            let expedited = chain[0].flags & EXPEDITED != 0;
            // An expedited packet overtakes others as soon as it is at the head of its queue. In
            // the middle of a message it goes with the message.
            if expedited != batch.expedited
                && (batch.expedited || self.expedited_share > 0 && batch.message_bytes == 0)
            {
                set.transmit.put_back(&mut session.transmit_ledger, first);
                return Ok(Ended::OtherLine);
            }
            if !batch.shaped && expedited {
                // The packet may name an endpoint of another queue pair, which has settings of its
                // own.
                if batch.count > 0 {
                    set.transmit.put_back(&mut session.transmit_ledger, first);
                    return Ok(Ended::Full);
                }
                batch.shaped = true;
            }
            let mut stop = None;
            if batch.count == 0 && !batch.expedited {
                let own = session.shapes.get(endpoint as usize).and_then(Option::as_deref);
                let own = if batch.shaped { own } else { None };
                let class = own.map_or_else(Class::default, |shape| shape.set.class());
                if class != self.schedule.class(batch.unit) {
                    stop = Some(Ended::Stop(Stop::Class(class)));
                }
            }
            if batch.shaped && stop.is_none() {
                if batch.count == 0 {
                    let own = session.shapes.get(endpoint as usize);
                    shape = own.and_then(Option::as_deref).copied();
                    if let Some(shape) = &shape {
                        batch.max_message_bytes = u64::from(shape.set.max_message_bytes);
                    }
                    moment.since = self.schedule.since(batch.unit);
                }
                if batch.count > 0 && endpoint != batch.packets[0].endpoint {
                    // A batch holds packets of one endpoint.
                    stop = Some(Ended::Full);
                } else if let Some(shape) = &mut shape {
                    if let Some(arrivals) = &mut set.arrivals {
                        arrivals.note(set.transmit.seen(), moment.now);
                        moment.came = arrivals.of(first, moment.now);
                    } else {
                        moment.came = moment.now;
                    }
                    moment.goes_on = batch.message_bytes > 0;
                    match shape.gate(len, &moment) {
                        Gate::Open => shape.charge(len, &moment),
                        Gate::Late => late = true,
                        Gate::Until(due) => stop = Some(Ended::Stop(Stop::Until(due))),
                        Gate::Tick(tick) => stop = Some(Ended::Stop(Stop::Tick(tick))),
                    }
                }
            }
            if let Some(stop) = stop {
                set.transmit.put_back(&mut session.transmit_ledger, first);
                return Ok(stop);
            }
            if !late {
                pool_memory.prefetch(start, PREFETCH_BYTES.min(chain[0].len as usize));
            }
            let together = chain[count - 1].flags & TOGETHER != 0;
            batch.packets[batch.count] = Taken {
                first,
                chain: count as u32,
                at: at as u32,
                endpoint,
                len,
                single: chain[0].flags & (MORE | META) == 0 && !late,
                fetched: false,
                plain: false,
                no_local_match: false,
                together,
                late,
            };
            batch.count += 1;
            at += count;
            batch.bytes += if late { 0 } else { u64::from(len) };
            batch.message_bytes = if together { batch.message_bytes + u64::from(len) } else { 0 };
            if batch.message_bytes >= batch.max_message_bytes {
                batch.message_bytes = 0;
            }
            if batch.bytes as i64 >= allowance.bytes && batch.message_bytes == 0 {
                return Ok(Ended::Over);
            }
        }
        Ok(Ended::Full)
    }

    /// Charges an endpoint with settings of its own for the first packets of a batch.
    pub(crate) fn charge(&mut self, batch: &Batch, sent: usize) {
        let Some(session) = &mut self.sessions[batch.key as usize] else { return };
        let Some(first) = batch.packets[..sent].first() else { return };
        let shape = session.shapes.get_mut(first.endpoint as usize).and_then(Option::as_deref_mut);
        let Some(shape) = shape else { return };
        let since = self.schedule.since(batch.unit);
        let moment = Moment { now: self.now, tick: self.tick, since, ..Moment::default() };
        for one in batch.packets[..sent].iter().filter(|one| !one.late) {
            shape.charge(one.len, &moment);
        }
    }

    /// Fetches the beginnings of a batch's packets into the bounce buffers, as far as there is
    /// room, and reads the headers of the plain ones.
    ///
    /// A separate loop reads the headers. A processor that finds a value in several stores that
    /// have not reached its cache waits until all earlier stores complete. Among the stores of a
    /// delivery are some to lines that another core holds.
    pub(crate) fn fetch_batch(&mut self, batch: &mut Batch) {
        let Some(session) = &self.sessions[batch.key as usize] else { return };
        let Some((_, pool_words)) = &self.transmit_pools[batch.key as usize] else { return };
        let pool = session.shape.transmit_pool;
        for (one, slot) in batch.packets[..batch.count].iter_mut().zip(&mut batch.slots) {
            if *slot == NO_SLOT {
                let Some(free) = self.bounce.take() else { continue };
                *slot = free;
            }
            if one.late {
                continue;
            }
            let descriptors = &batch.descriptors[one.at as usize..][..one.chain as usize];
            let len = one.len as usize;
            let needed = if len <= WHOLE_BYTES { len } else { PREFIX_BYTES };
            one.fetched = self.bounce.fetch(*slot, pool_words, &pool, descriptors, needed);
        }
        for index in 0..batch.count {
            let one = &mut batch.packets[index];
            if one.single
                && one.fetched
                && let Some(plain) =
                    plain::read(self.bounce.bytes(batch.slots[index]), one.len as usize)
            {
                batch.plain[index] = plain;
                one.plain = true;
            }
        }
    }

    /// Puts the packets of a batch from `from` on back into their queue.
    pub(crate) fn put_back(&mut self, batch: &Batch, from: usize) {
        let Some(session) = &mut self.sessions[batch.key as usize] else { return };
        let set = &mut session.queue_pairs[batch.queue_pair as usize];
        set.transmit.put_back(&mut session.transmit_ledger, batch.packets[from].first);
    }
}
