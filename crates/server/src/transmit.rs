//! From the applications to the device, and to each other: whose turn it is, and what is taken,
//! a group of packets at a time. What becomes of each is in `send.rs`.

use std::ops::ControlFlow;

use towpath_device::DeviceError;
use towpath_packet::plain::{self, Plain};
use towpath_queue::Violation;
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN};

use crate::engine::Engine;
use crate::publish::touch;
use crate::send::Sent;
use crate::stage::{PREFIX_BYTES, WHOLE_BYTES};

/// Packets of one queue set that are fetched together, so that the processor waits for their
/// memory once.
const GROUP: usize = 32;

/// As much of a packet is brought near before it is looked at: nobody knows yet whether it may be
/// sent.
const PREFETCH_BYTES: usize = 2048;

/// Events of one session taken in a turn: the rest waits for the next one.
const EVENTS: u32 = 256;

/// No slot of the stage.
const NO_SLOT: u32 = u32::MAX;

/// A packet taken from a queue and not done with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) first: u32,
    pub(crate) chain: u32,
    /// Where its descriptors start among the group's.
    pub(crate) at: u32,
    pub(crate) endpoint: u32,
    pub(crate) len: u32,
    /// One finished frame, as far as its descriptor says.
    pub(crate) single: bool,
    /// Its beginning is in its slot.
    pub(crate) fetched: bool,
    /// It is in [`Group::plain`].
    pub(crate) plain: bool,
    /// It was looked up, and no endpoint of this host has its destination.
    pub(crate) for_nobody_here: bool,
}

/// Packets of one queue set taken together, with their descriptors.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) place: u32,
    pub(crate) queue_set: u32,
    pub(crate) descriptors: [Descriptor; GROUP + MAX_CHAIN],
    pub(crate) packets: [Taken; GROUP],
    /// Their slots of the stage. A slot whose packet needs it no more is the next group's.
    pub(crate) slots: [u32; GROUP],
    /// The headers of those that are plain.
    pub(crate) plain: [Plain; GROUP],
    pub(crate) count: usize,
}

impl Default for Group {
    fn default() -> Group {
        Group {
            place: 0,
            queue_set: 0,
            descriptors: [Descriptor::default(); GROUP + MAX_CHAIN],
            packets: [Taken::default(); GROUP],
            slots: [NO_SLOT; GROUP],
            plain: [Plain::default(); GROUP],
            count: 0,
        }
    }
}

impl Engine {
    /// Takes packets from the queue sets that have some, one set after the other, within budgets.
    pub(crate) fn transmit(&mut self) -> Result<usize, DeviceError> {
        self.discover();
        if self.active.is_empty() {
            return Ok(0);
        }
        let mut group = self.group.take().unwrap_or_default();
        let outcome = self.transmit_sets(&mut group);
        self.group = Some(group);
        outcome
    }

    fn transmit_sets(&mut self, group: &mut Group) -> Result<usize, DeviceError> {
        let mut left = self.budgets.turn_budget;
        let mut work = 0;
        for _ in 0..self.active.len() {
            if left == 0 {
                break;
            }
            let Some((place, queue_set)) = self.active.pop_front() else { break };
            let budget = self.budgets.transmit_budget.min(left);
            let (taken, go_on) = self.transmit_set(group, place, queue_set, budget)?;
            work += taken;
            left -= taken;
            self.end_if_violated(place);
            if go_on.is_break() {
                break;
            }
        }
        Ok(work)
    }

    /// Finds the queue sets with something to send: only sessions with events cost more than a
    /// look.
    fn discover(&mut self) {
        for place in 0..self.sessions.len() as u32 {
            let Some(session) = &mut self.sessions[place as usize] else { continue };
            if session.closing {
                continue;
            }
            let (active, sets) = (&mut self.active, &mut session.queue_sets);
            let outcome = session.work.take(EVENTS, |queue_set| {
                let set = &mut sets[queue_set as usize];
                if !set.active {
                    set.active = true;
                    active.push_back((place, queue_set));
                }
            });
            if let Err(violation) = outcome {
                session.violation.get_or_insert(violation);
                self.end_if_violated(place);
            }
        }
    }

    /// Sends from one queue set. Answers how many packets were taken, and whether others may go on:
    /// not when the device has no room. A set that has more to send stands in line again: last if it
    /// sent something, and first if there was no room for any of it, so that nobody whose packets are
    /// smaller is always before it.
    fn transmit_set(
        &mut self,
        group: &mut Group,
        place: u32,
        queue_set: u32,
        budget: usize,
    ) -> Result<(usize, ControlFlow<()>), DeviceError> {
        let mut done = 0;
        while done < budget {
            let more = self.take_group(group, place, queue_set, budget - done);
            // What was passed over is to be told as well.
            if let Some(session) = &mut self.sessions[place as usize]
                && session.queue_sets[queue_set as usize].transmit.has_news()
            {
                touch(&mut self.touched, session, place, queue_set);
            }
            self.fetch_group(group);
            let (sent, outcome) = self.send_group(group)?;
            done += sent;
            let no_room = sent < group.count && outcome.is_none();
            if no_room {
                self.put_back(group, sent);
            }
            let Some(session) = &mut self.sessions[place as usize] else {
                return Ok((done, ControlFlow::Continue(())));
            };
            if let Some(violation) = outcome.or(more.err()) {
                session.violation.get_or_insert(violation);
                return Ok((done, ControlFlow::Continue(())));
            }
            if no_room {
                if done > 0 {
                    self.active.push_back((place, queue_set));
                } else {
                    self.active.push_front((place, queue_set));
                }
                return Ok((done, ControlFlow::Break(())));
            }
            if more == Ok(false) {
                session.queue_sets[queue_set as usize].active = false;
                return Ok((done, ControlFlow::Continue(())));
            }
        }
        self.active.push_back((place, queue_set));
        Ok((done, ControlFlow::Continue(())))
    }

    /// Takes up to `budget` packets of a queue set together, and has their beginnings brought
    /// near. Answers whether there may be more. What was taken before a violation counts.
    fn take_group(
        &mut self,
        group: &mut Group,
        place: u32,
        queue_set: u32,
        budget: usize,
    ) -> Result<bool, Violation> {
        (group.place, group.queue_set, group.count) = (place, queue_set, 0);
        let Some(session) = &mut self.sessions[place as usize] else { return Ok(false) };
        let Some((heap_memory, _)) = &self.heaps[place as usize] else { return Ok(false) };
        let heap = session.shape.transmit_heap;
        let set = &mut session.queue_sets[queue_set as usize];
        let mut at = 0;
        while group.count < GROUP.min(budget) {
            // A chain of the greatest length finds room, or waits for the next group.
            let Some(chain) = group.descriptors.get_mut(at..).and_then(|c| c.first_chunk_mut())
            else {
                break;
            };
            if set.transmit.waiting() == 0 && set.transmit.observe()? == 0 {
                return Ok(false);
            }
            let taken = set.transmit.take(&mut session.transmit_ledger, chain)?;
            // What a predecessor had done with was passed over; what came behind it meanwhile is
            // looked at.
            let Some((count, first)) = taken else { continue };
            let start = chain[0].heap_offset(&heap);
            let mut len = chain[0].len;
            for one in &chain[1..count] {
                len += one.len;
            }
            heap_memory.prefetch(start, PREFETCH_BYTES.min(chain[0].len as usize));
            group.packets[group.count] = Taken {
                first,
                chain: count as u32,
                at: at as u32,
                endpoint: chain[0].endpoint,
                len,
                single: chain[0].flags == 0,
                fetched: false,
                plain: false,
                for_nobody_here: false,
            };
            group.count += 1;
            at += count;
        }
        Ok(true)
    }

    /// Fetches the beginnings of a group's packets into the stage, as far as it has room, and reads
    /// the headers of those that are plain.
    ///
    /// They are read in a loop of their own: a processor that finds a value in several stores on
    /// their way to its cache waits until all stores before them are made, and among those of a
    /// delivery are some to lines that another core has.
    fn fetch_group(&mut self, group: &mut Group) {
        let Some(session) = &self.sessions[group.place as usize] else { return };
        let Some((_, heap_words)) = &self.heaps[group.place as usize] else { return };
        let heap = session.shape.transmit_heap;
        for (one, slot) in group.packets[..group.count].iter_mut().zip(&mut group.slots) {
            if *slot == NO_SLOT {
                let Some(free) = self.stage.take() else { continue };
                *slot = free;
            }
            let descriptors = &group.descriptors[one.at as usize..][..one.chain as usize];
            let len = one.len as usize;
            let looked = if len <= WHOLE_BYTES { len } else { PREFIX_BYTES };
            one.fetched = self.stage.fetch(*slot, heap_words, &heap, descriptors, looked);
        }
        for place in 0..group.count {
            let one = &mut group.packets[place];
            if one.single
                && one.fetched
                && let Some(plain) =
                    plain::read(self.stage.bytes(group.slots[place]), one.len as usize)
            {
                group.plain[place] = plain;
                one.plain = true;
            }
        }
    }

    /// Sends what was fetched, one after the other. Answers how many are done with or on their way,
    /// and the violation that ended it; fewer than there are and none: there is no room.
    fn send_group(&mut self, group: &mut Group) -> Result<(usize, Option<Violation>), DeviceError> {
        // Nobody begins to capture in the middle of a turn: orders are followed before it.
        if self.flows.has_no_taps() {
            self.send_group_to::<false>(group)
        } else {
            self.send_group_to::<true>(group)
        }
    }

    /// The same when somebody captures or is promiscuous, or when nobody does.
    fn send_group_to<const TAPS: bool>(
        &mut self,
        group: &mut Group,
    ) -> Result<(usize, Option<Violation>), DeviceError> {
        let mtu = self.device.info().mtu;
        let mut place = 0;
        loop {
            if !TAPS {
                place += self.pass_on(group, place, mtu);
            }
            if place == group.count {
                return Ok((place, None));
            }
            if group.slots[place] == NO_SLOT {
                return Ok((place, None));
            }
            match self.check_and_send::<TAPS>(group, place, mtu)? {
                Sent::Now => {
                    let one = group.packets[place];
                    self.finish(group, one.first, one.chain);
                }
                // A packet on its way keeps its slot.
                Sent::Later => group.slots[place] = NO_SLOT,
                Sent::NoRoom => return Ok((place, None)),
                Sent::Violates(violation) => return Ok((place + 1, Some(violation))),
            }
            place += 1;
        }
    }

    /// Gives the packets of a group from `from` on back to their queue.
    fn put_back(&mut self, group: &Group, from: usize) {
        let Some(session) = &mut self.sessions[group.place as usize] else { return };
        let set = &mut session.queue_sets[group.queue_set as usize];
        set.transmit.put_back(&mut session.transmit_ledger, group.packets[from].first);
    }
}
