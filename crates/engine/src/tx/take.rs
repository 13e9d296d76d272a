//! Taking packets out of a queue, a batch at a time. The engine takes at most as many as the unit
//! may send, and no packet whose time has not come.

use towpath_memory::Mapping;
use towpath_queue::PoolShape;
use towpath_queue::buffers::BufferLedger;
use towpath_queue::descriptor::{
    Descriptor, EXPEDITED, META, MORE, OUT_OF_BAND, REQUEST, TOGETHER,
};
use towpath_queue::transmit::TransmitConsumer;

use crate::schedule::shape::{Class, Gate, Moment, Shape, Shaping};
use crate::schedule::{Schedule, Stop};
use crate::session::Session;
use crate::session::transmit_side::TransmitQueue;
use crate::source::{PREFIX_BYTES, WHOLE_BYTES};
use crate::tx::batch::{BATCH, Batch, EntryKind, Taken};
use crate::tx::outcome::BatchEnd;

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

/// What decides which packets the engine takes, beside the queue itself.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) schedule: &'a Schedule,
    /// The time, in nanoseconds.
    pub(crate) now: u64,
    /// The number of ticks.
    pub(crate) tick: u64,
    /// Expedited packets that precede others per poll iteration.
    pub(crate) expedited_share: usize,
}

/// The next packet of a queue.
#[derive(Clone, Copy)]
struct Next {
    first: u32,
    endpoint: u32,
    len: u32,
    flags: u16,
}

/// An endpoint's sending state, as it is once the packets taken so far are sent.
#[derive(Default)]
struct Ahead {
    shape: Option<Shape>,
    moment: Moment,
}

impl Batch {
    /// Takes packets of the batch's queue pair together, and prefetches their beginnings. Returns the
    /// reason for which it took no more. Packets taken before a violation count.
    pub(crate) fn take(
        &mut self,
        session: &mut Session,
        memory: &Mapping,
        rules: &Rules<'_>,
        allowance: Allowance,
    ) -> BatchEnd {
        (self.count, self.bytes, self.message_bytes) = (0, 0, allowance.message_bytes);
        self.max_message_bytes = u64::from(Shaping::default().max_message_bytes);
        let pool = session.shape().transmit_pool;
        let (queue, ledger, shapes) = session.transmit.parts(self.queue_pair);
        self.shaped = queue.is_shaped() || self.expedited;
        let moment = Moment { now: rules.now, tick: rules.tick, ..Moment::default() };
        let mut ahead = Ahead { shape: None, moment };
        let plain = !self.shaped && rules.schedule.class(self.unit) == Class::default();
        let most = BATCH.min(allowance.packets);
        let mut at = 0;
        while self.count < most {
            if queue.consumer.waiting() == 0 {
                match queue.consumer.observe() {
                    Ok(0) => return BatchEnd::Empty,
                    Ok(_) => {}
                    Err(violation) => return violation.into(),
                }
            }
            if plain && !self.shaped && self.message_bytes == 0 {
                let consumer = &mut queue.consumer;
                let taken = self.take_plain(consumer, ledger, at, &allowance, memory, &pool);
                at += taken;
                // A unit without credit, which the scheduler serves all the same, sends one packet.
                if taken > 0 {
                    if self.bytes as i64 >= allowance.bytes {
                        return BatchEnd::Stop(Stop::Over);
                    }
                    continue;
                }
            }
            match self.take_one(at, queue, ledger, shapes, &mut ahead, rules) {
                Ok(0) => continue,
                Ok(slots) => at += slots,
                Err(end) => return end,
            }
            self.prefetch_last(memory, &pool);
            if self.bytes as i64 >= allowance.bytes && self.message_bytes == 0 {
                return BatchEnd::Stop(Stop::Over);
            }
        }
        BatchEnd::Full
    }

    /// Takes one packet of any kind, and puts its descriptors at index `at`. Returns their number;
    /// 0 if only packets that a predecessor completed waited.
    ///
    /// # Errors
    /// The reason for which the batch does not take the packet.
    fn take_one(
        &mut self,
        at: usize,
        queue: &mut TransmitQueue,
        ledger: &mut BufferLedger,
        shapes: &[Option<Box<Shape>>],
        ahead: &mut Ahead,
        rules: &Rules<'_>,
    ) -> Result<usize, BatchEnd> {
        // There must be room for a chain of the greatest length; otherwise the packet waits for the
        // next batch.
        let Some(chain) = self.descriptors.get_mut(at..).and_then(|c| c.first_chunk_mut()) else {
            return Err(BatchEnd::Full);
        };
        // Packets that a predecessor completed were skipped.
        let Some((count, first)) = queue.consumer.take(ledger, chain)? else { return Ok(0) };
        let head = chain[0];
        let len = chain[..count].iter().map(|one| one.len).sum();
        let together = chain[count - 1].flags & TOGETHER != 0;
        let next = Next { first, endpoint: head.endpoint, len, flags: head.flags };
        let late = match self.decide(&next, ahead, queue, shapes, rules) {
            Ok(late) => late,
            Err(end) => {
                queue.consumer.put_back(ledger, first);
                return Err(end);
            }
        };
        self.push(Taken {
            first,
            chain: count as u32,
            at: at as u32,
            endpoint: head.endpoint,
            len,
            single: head.flags & (MORE | META | OUT_OF_BAND | REQUEST) == 0 && !late,
            kind: EntryKind::of(head.flags),
            together,
            late,
            ..Taken::default()
        });
        Ok(count)
    }

    /// Takes packets of one buffer and without flags, until the batch has used up its allowance. Puts
    /// their descriptors at index `at`, and prefetches the packets. Returns how many.
    #[inline(always)]
    fn take_plain(
        &mut self,
        queue: &mut TransmitConsumer,
        ledger: &mut BufferLedger,
        at: usize,
        allowance: &Allowance,
        memory: &Mapping,
        pool: &PoolShape,
    ) -> usize {
        let room = BATCH.min(allowance.packets) - self.count;
        let bytes = allowance.bytes - self.bytes as i64;
        // A long chain may have taken the place of later packets.
        let room = room.min(self.descriptors.len().saturating_sub(at));
        let descriptors = &mut self.descriptors[at..at + room];
        let (first, taken) = queue.take_plain(ledger, descriptors, bytes);
        let packets = &mut self.packets[self.count..][..taken];
        for ((one, descriptor), index) in packets.iter_mut().zip(descriptors).zip(0..) {
            let offset = descriptor.pool_offset(pool);
            memory.prefetch(offset, PREFETCH_BYTES.min(descriptor.len as usize));
            self.bytes += u64::from(descriptor.len);
            *one = Taken {
                first: first.wrapping_add(index),
                chain: 1,
                at: at as u32 + index,
                offset: offset as u32,
                endpoint: descriptor.endpoint,
                len: descriptor.len,
                single: true,
                ..Taken::default()
            };
        }
        self.count += taken;
        taken
    }

    /// Prefetches the beginning of the packet taken last, unless it is late.
    fn prefetch_last(&mut self, memory: &Mapping, pool: &PoolShape) {
        let one = &mut self.packets[self.count - 1];
        let first = &self.descriptors[one.at as usize];
        let offset = first.pool_offset(pool);
        one.offset = offset as u32;
        if !one.late {
            memory.prefetch(offset, PREFETCH_BYTES.min(first.len as usize));
        }
    }

    /// Adds a packet.
    #[inline(always)]
    fn push(&mut self, one: Taken) {
        self.packets[self.count] = one;
        self.count += 1;
        self.bytes += if one.late { 0 } else { u64::from(one.len) };
        self.message_bytes = if one.together { self.message_bytes + u64::from(one.len) } else { 0 };
        if self.message_bytes >= self.max_message_bytes {
            self.message_bytes = 0;
        }
    }

    /// Decides whether the batch takes the next packet. Returns `true` if the packet is late and
    /// the engine drops it.
    ///
    /// # Errors
    /// The reason for which the batch does not take the packet.
    #[inline(always)]
    fn decide(
        &mut self,
        next: &Next,
        ahead: &mut Ahead,
        queue: &mut TransmitQueue,
        shapes: &[Option<Box<Shape>>],
        rules: &Rules<'_>,
    ) -> Result<bool, BatchEnd> {
        let expedited = next.flags & EXPEDITED != 0;
        // An expedited packet overtakes others as soon as it is at the head of its queue. In the
        // middle of a message it goes with the message.
        if expedited != self.expedited
            && (self.expedited || rules.expedited_share > 0 && self.message_bytes == 0)
        {
            return Err(BatchEnd::OtherLine);
        }
        if !self.shaped && expedited {
            // The packet may name an endpoint of another queue pair, which has settings of its own.
            if self.count > 0 {
                return Err(BatchEnd::Full);
            }
            self.shaped = true;
        }
        let own = || shapes.get(next.endpoint as usize).and_then(Option::as_deref);
        if self.count == 0 && !self.expedited {
            let own = if self.shaped { own() } else { None };
            let class = own.map_or_else(Class::default, |shape| shape.set.class());
            if class != rules.schedule.class(self.unit) {
                return Err(BatchEnd::Stop(Stop::Class(class)));
            }
        }
        if !self.shaped {
            return Ok(false);
        }
        if self.count == 0 {
            ahead.shape = own().copied();
            if let Some(shape) = &ahead.shape {
                self.max_message_bytes = u64::from(shape.set.max_message_bytes);
            }
            ahead.moment.since = rules.schedule.since(self.unit);
        } else if next.endpoint != self.packets[0].endpoint {
            // A batch holds packets of one endpoint.
            return Err(BatchEnd::Full);
        }
        self.pass_gate(next, ahead, queue)
    }

    /// Decides whether the time of the next packet has come, by its endpoint's settings.
    fn pass_gate(
        &self,
        next: &Next,
        ahead: &mut Ahead,
        queue: &mut TransmitQueue,
    ) -> Result<bool, BatchEnd> {
        let Ahead { shape: Some(shape), moment } = ahead else { return Ok(false) };
        moment.came = queue.arrival(next.first, moment.now);
        moment.continues_message = self.message_bytes > 0;
        let gate = if next.flags & (OUT_OF_BAND | REQUEST) == 0 {
            shape.gate(next.len, moment)
        } else {
            // Out-of-band messages and requests wait for their rates, and are never late.
            let mut shape = *shape;
            shape.set.max_delay_us = 0;
            shape.gate(next.len, moment)
        };
        match gate {
            Gate::Open => {
                shape.charge(next.len, moment);
                Ok(false)
            }
            Gate::Late => Ok(true),
            Gate::Until(due) => Err(BatchEnd::Stop(Stop::Until(due))),
            Gate::Tick(tick) => Err(BatchEnd::Stop(Stop::Tick(tick))),
        }
    }

    /// Charges an endpoint with settings of its own for the first packets of the batch.
    pub(crate) fn charge(&self, session: &mut Session, sent: usize, rules: &Rules<'_>) {
        let Some(first) = self.packets[..sent].first() else { return };
        let Some(shape) = session.transmit.shape(first.endpoint) else { return };
        let since = rules.schedule.since(self.unit);
        let moment = Moment { now: rules.now, tick: rules.tick, since, ..Moment::default() };
        for one in self.packets[..sent].iter().filter(|one| !one.late) {
            shape.charge(one.len, &moment);
        }
    }

    /// Fetches the beginnings of the packets into private memory.
    pub(crate) fn fetch(&mut self, session: &Session, memory: &Mapping) {
        let pool = session.shape().transmit_pool;
        let packets = self.packets[..self.count].iter_mut().zip(&mut self.beginnings);
        for (one, beginning) in packets.filter(|(one, _)| !one.late) {
            let len = one.len as usize;
            let needed = if len <= WHOLE_BYTES { len } else { PREFIX_BYTES };
            let to = &mut beginning.0[..needed];
            one.held = needed as u32;
            one.fetched = if one.chain == 1 {
                memory.copy_out(one.offset as usize, to)
            } else {
                let descriptors = &self.descriptors[one.at as usize..][..one.chain as usize];
                fetch_chain(memory, &pool, descriptors, to)
            };
            one.single &= one.fetched;
        }
    }
}

/// Fetches the beginning of a packet in several buffers. Returns `false` if it is shorter, or does
/// not exist.
#[inline(never)]
fn fetch_chain(
    memory: &Mapping,
    pool: &PoolShape,
    descriptors: &[Descriptor],
    mut to: &mut [u8],
) -> bool {
    for one in descriptors {
        let (now, rest) = to.split_at_mut(to.len().min(one.len as usize));
        if !memory.copy_out(one.pool_offset(pool), now) {
            return false;
        }
        to = rest;
    }
    to.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memories::TransmitMemories;
    use crate::schedule::policy;
    use crate::testing::{Application, PORT, outward, session};

    struct World {
        schedule: Schedule,
        session: Box<Session>,
        memories: TransmitMemories,
        application: Application,
        batch: Batch,
    }

    impl World {
        fn new() -> World {
            let (mut session, application) = session(1);
            let mut schedule = Schedule::new(policy(0, 64));
            let unit = schedule.add(0, 0);
            session.transmit.queue(0).unit = unit;
            let mut memories = TransmitMemories::default();
            memories.insert(0, session.transmit.memory());
            let batch = Batch { unit, ..Batch::default() };
            World { schedule, session, memories, application, batch }
        }

        /// Takes packets with `bytes` bytes of credit. Returns how many, and why no more.
        fn take(&mut self, bytes: i64) -> (usize, BatchEnd) {
            let rules = Rules { schedule: &self.schedule, now: 0, tick: 0, expedited_share: 0 };
            let allowance = Allowance { packets: 64, bytes, message_bytes: 0 };
            let memory = self.memories.get(0).unwrap().mapping();
            let end = self.batch.take(&mut self.session, memory, &rules, allowance);
            (self.batch.count, end)
        }
    }

    #[test]
    fn a_unit_without_credit_sends_one_packet_of_any_kind() {
        for flags in [0, META] {
            let mut world = World::new();
            (0..2).for_each(|buffer| {
                world.application.send_with(buffer, 0, &outward(PORT), flags);
            });
            assert_eq!(world.take(0), (1, BatchEnd::Stop(Stop::Over)), "flags {flags}");
        }
    }

    #[test]
    fn plain_packets_are_taken_until_the_credit_is_used_up() {
        let mut world = World::new();
        let packet = outward(PORT);
        (0..5).for_each(|buffer| world.application.send(buffer, buffer % 2, &packet));
        assert_eq!(world.take(packet.len() as i64 * 2 + 1), (3, BatchEnd::Stop(Stop::Over)));
        assert_eq!(world.take(i64::MAX), (2, BatchEnd::Empty));
        assert!(world.batch.packets[..2].iter().all(|one| one.single && one.chain == 1));
    }

    /// An expedited packet may name an endpoint with settings of its own. Packets of other
    /// endpoints do not join its batch.
    #[test]
    fn a_batch_behind_an_expedited_packet_is_of_one_endpoint() {
        let mut world = World::new();
        world.application.send_with(0, 0, &outward(PORT), EXPEDITED);
        world.application.send(1, 1, &outward(PORT));
        assert_eq!(world.take(i64::MAX), (1, BatchEnd::Full));
        assert!(world.batch.shaped);
        assert_eq!(world.take(i64::MAX), (1, BatchEnd::Empty));
    }

    #[test]
    fn packets_put_back_are_taken_again() {
        let mut world = World::new();
        (0..3).for_each(|buffer| world.application.send(buffer, 0, &outward(PORT)));
        assert_eq!(world.take(i64::MAX).0, 3);
        world.batch.put_back(&mut world.session, 1);
        assert_eq!(world.take(i64::MAX).0, 2);
        assert_eq!(world.batch.packets[0].first, 1);
    }
}
