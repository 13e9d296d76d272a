//! From the applications to the device, and to each other: a turn of those that have something to
//! send, in the scheduler's order and within budgets. What is taken is in `take.rs`, what becomes of
//! each packet in `send.rs`.

use towpath_device::DeviceError;
use towpath_packet::plain::Plain;
use towpath_queue::Violation;
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN, SMALL};

use crate::engine::{Engine, STAGE_SLOTS};
use crate::handoff::SMALL_PLACES;
use crate::publish::touch;
use crate::schedule::shape::Class;
use crate::schedule::{Due, Stop, Turn};
use crate::send::Sent;
use crate::take::{Allowance, Ended};
use crate::work::{Share, Spent, TURN_BYTES};

/// Packets of one queue set that are fetched together, so that the processor waits for their
/// memory once.
pub(crate) const GROUP: usize = 32;

/// Events of one session taken in a turn: the rest waits for the next one.
pub(crate) const EVENTS: u32 = 256;

/// Small packets of one queue set before the next one's.
const SMALL_TURN: usize = 4;

/// No slot of the stage.
pub(crate) const NO_SLOT: u32 = u32::MAX;

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
    /// The packet behind it belongs to the same message.
    pub(crate) together: bool,
    /// It waited too long, and is to be dropped.
    pub(crate) late: bool,
}

/// Packets of one queue set taken together, with their descriptors.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) place: u32,
    pub(crate) queue_set: u32,
    pub(crate) unit: u32,
    /// They are small ones, and go past the others.
    pub(crate) small: bool,
    /// They are of one endpoint, whose settings count.
    pub(crate) shaped: bool,
    pub(crate) descriptors: [Descriptor; GROUP + MAX_CHAIN],
    pub(crate) packets: [Taken; GROUP],
    /// Their slots of the stage. A slot whose packet needs it no more is the next group's.
    pub(crate) slots: [u32; GROUP],
    /// The headers of those that are plain.
    pub(crate) plain: [Plain; GROUP],
    pub(crate) count: usize,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Bytes of the message that goes on behind them; 0: none, or enough of it was kept together.
    pub(crate) run: u64,
    /// How much of a message is kept together, in bytes.
    pub(crate) max_run: u64,
    /// How much they may cost.
    pub(crate) share: Share,
}

impl Default for Group {
    fn default() -> Group {
        Group {
            place: 0,
            queue_set: 0,
            unit: 0,
            small: false,
            shaped: false,
            descriptors: [Descriptor::default(); GROUP + MAX_CHAIN],
            packets: [Taken::default(); GROUP],
            slots: [NO_SLOT; GROUP],
            plain: [Plain::default(); GROUP],
            count: 0,
            bytes: 0,
            run: 0,
            max_run: 0,
            share: Share::default(),
        }
    }
}

/// A unit's turn.
struct Round {
    /// Packets that were taken.
    taken: usize,
    /// The same, and copies beyond the first of each.
    used: usize,
    served: Served,
}

/// How a unit's turn ended.
enum Served {
    /// It has nothing more to send.
    Idle,
    /// It has, and why its turn ended; bytes of the message that it is in the middle of.
    More(Stop, u64),
    /// Its next packet belongs in another line.
    OtherLine,
    /// Its session is gone, or about to be.
    Gone,
}

impl Engine {
    /// Takes packets from the queue sets that have some, in the scheduler's order, within budgets.
    pub(crate) fn transmit(&mut self) -> Result<usize, DeviceError> {
        if self.timed > 0 || self.schedule.next_due().is_some() {
            self.read_clock();
        }
        while let Some(Due { unit, place, queue_set }) = self.schedule.due(self.now, self.tick) {
            self.activate(unit, place, queue_set);
        }
        self.discover()?;
        if self.handoff.is_waiting() {
            self.handoff.flush(&self.stage, &mut self.spaces, self.device.as_mut())?;
        }
        let small = self.schedule.small(self.has_small_room());
        if self.schedule.ready(self.has_room()) + small == 0 {
            return Ok(0);
        }
        self.schedule.begin();
        self.turn_bytes = TURN_BYTES as i64;
        let mut group = self.group.take().unwrap_or_default();
        let small = self.transmit_small(&mut group);
        let outcome = small.and_then(|small| Ok(small + self.transmit_units(&mut group)?));
        self.group = Some(group);
        outcome
    }

    /// Whether a packet may be on its way to the device.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.handoff.has_room(1) && self.has_slots(1 + SMALL_PLACES)
    }

    /// Whether a small one may.
    #[inline]
    pub(crate) fn has_small_room(&self) -> bool {
        self.handoff.has_small_room() && self.has_slots(1)
    }

    /// Whether so many more slots of the stage may be taken on the way to the device. As many as a
    /// group has are left for what is being checked: it may be for this host. There are as many
    /// flights as slots, and each has a slot at least.
    #[inline]
    pub(crate) fn has_slots(&self, slots: usize) -> bool {
        let taken = self.handoff.waiting() + self.out() as usize;
        taken + slots <= STAGE_SLOTS as usize - GROUP
    }

    /// Whether there is something to send that nothing is to be waited for.
    pub(crate) fn can_transmit(&self) -> bool {
        self.schedule.ready(self.has_room()) > 0 || self.schedule.small(self.has_small_room()) > 0
    }

    fn transmit_units(&mut self, group: &mut Group) -> Result<usize, DeviceError> {
        let ready = self.schedule.ready(self.has_room());
        let mut left = self.budgets.turn_budget.min(self.budgets.transmit_budget * ready);
        // Each turn that sends nothing takes a unit out of its line, or leaves it to wait for room.
        let mut vain = 2 * ready;
        let mut work = 0;
        while left > 0 && vain > 0 && self.turn_bytes > 0 {
            let Some(turn) = self.schedule.next(self.has_room()) else { break };
            let Round { taken, used, served } = self.serve(group, &turn, left, false)?;
            match served {
                Served::Idle => self.schedule.idle(turn.unit),
                Served::More(stop, run) => self.schedule.more(turn.unit, stop, run),
                Served::OtherLine => self.change_line(&turn),
                Served::Gone => self.end_if_violated(turn.place),
            }
            vain -= usize::from(taken == 0);
            work += taken;
            // Copies come out of the unit's own part of the turn's packets, and not out of the others'.
            left -= used.min(taken.max(self.budgets.transmit_budget)).min(left);
        }
        Ok(work)
    }

    /// Small packets go first: so many in a turn. Who waits for room keeps its place, and those behind
    /// it may have packets for this host.
    fn transmit_small(&mut self, group: &mut Group) -> Result<usize, DeviceError> {
        let mut left = self.small_share;
        // Who says that a packet is small, and has another one there when it is taken, says so once.
        let mut vain = self.schedule.small(self.has_small_room());
        let mut work = 0;
        while left > 0 && vain > 0 && self.turn_bytes > 0 {
            let Some(turn) = self.schedule.next_small(self.has_small_room()) else { break };
            let Round { taken, used, served } =
                self.serve(group, &turn, left.min(SMALL_TURN), true)?;
            work += taken;
            left -= used.min(left);
            vain -= usize::from(taken == 0);
            match served {
                Served::Idle => self.schedule.idle(turn.unit),
                Served::More(Stop::Blocked { .. }, _) => self.schedule.more_small(turn.unit, true),
                Served::More(stop @ (Stop::Until(_) | Stop::Tick(_)), _) => {
                    self.schedule.more(turn.unit, stop, 0);
                }
                Served::More(..) => self.schedule.more_small(turn.unit, false),
                Served::OtherLine => self.change_line(&turn),
                Served::Gone => self.end_if_violated(turn.place),
            }
        }
        Ok(work)
    }

    /// Small packets have a line of their own, and the others that of their class: a queue set that was
    /// served goes to the one of its next packet.
    fn change_line(&mut self, turn: &Turn) {
        self.schedule.leave_line(turn.unit);
        self.activate(turn.unit, turn.place, turn.queue_set);
    }

    /// Finds the queue sets of a session with something to send. Answers how many it named.
    pub(crate) fn discover_in(&mut self, place: u32) -> u32 {
        let Some(session) = &mut self.sessions[place as usize] else { return 0 };
        let mut found = std::mem::take(&mut self.discovered);
        found.clear();
        let outcome = session.work.take(EVENTS, |queue_set| found.push(queue_set));
        // Looked at now that all events are acknowledged: what comes later is a new event.
        for queue_set in &found {
            let Some(session) = &mut self.sessions[place as usize] else { break };
            let set = &mut session.queue_sets[*queue_set as usize];
            let unit = set.unit;
            if !self.schedule.is_active(unit) {
                self.activate(unit, place, *queue_set);
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
                self.violates(place, violation);
                0
            }
        }
    }

    fn violates(&mut self, place: u32, violation: Violation) {
        if let Some(session) = &mut self.sessions[place as usize] {
            session.violation.get_or_insert(violation);
            self.end_if_violated(place);
        }
    }

    /// Puts a queue set that stands in no line into the one that its next packet belongs to.
    pub(crate) fn activate(&mut self, unit: u32, place: u32, queue_set: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        if session.closing {
            return;
        }
        let set = &mut session.queue_sets[queue_set as usize];
        // Only a hint, but who lies is found out when the packet is taken.
        match set.transmit.peek() {
            Ok(Some((endpoint, flags))) => {
                if let Some(arrivals) = &mut set.arrivals {
                    arrivals.note(set.transmit.seen(), self.now);
                }
                let class = if set.shaped { session.class(endpoint) } else { Class::default() };
                let small = flags & SMALL != 0 && self.small_share > 0;
                self.schedule.enter(unit, class, small, self.now);
            }
            Ok(None) => self.schedule.idle(unit),
            Err(violation) => self.violates(place, violation),
        }
    }

    /// Sends from one queue set, until its share of the turn, or the turn, is used up: by packets, or by
    /// what they cost beyond themselves. What was fetched and is not sent goes back into its queue.
    fn serve(
        &mut self,
        group: &mut Group,
        turn: &Turn,
        left: usize,
        small: bool,
    ) -> Result<Round, DeviceError> {
        let Turn { unit, place, queue_set, .. } = *turn;
        (group.place, group.queue_set, group.unit, group.small) = (place, queue_set, unit, small);
        let budget = turn.packets.min(left);
        let (mut taken, mut used, mut bytes, mut run) = (0, 0, turn.bytes, turn.run);
        loop {
            let turn_bytes = self.turn_bytes;
            group.share = Share { packets: budget - used, bytes, turn_bytes };
            self.spent = Spent::default();
            let allowance = Allowance { packets: budget - used, bytes: bytes.min(turn_bytes), run };
            let ended = self.take_group(group, allowance);
            // What was passed over is to be told as well.
            if let Some(session) = &mut self.sessions[place as usize]
                && session.queue_sets[queue_set as usize].transmit.has_news()
            {
                touch(&mut self.touched, session, place, queue_set);
            }
            self.fetch_group(group);
            let (sent, outcome) = self.send_group(group)?;
            let Spent { unit: beyond, taps, .. } = self.spent;
            taken += sent;
            used += sent + (beyond.copies + taps.copies) as usize;
            let sent_bytes;
            (sent_bytes, run) = group.sent(sent, run);
            let cost = sent_bytes + beyond.cost();
            self.schedule.charge(unit, cost);
            bytes = bytes.saturating_sub(cost as i64);
            self.turn_bytes -= (cost + taps.cost()) as i64;
            let left = sent < group.count && outcome.is_none();
            if left {
                self.put_back(group, sent);
            }
            let served = |served| Ok(Round { taken, used, served });
            let Some(session) = &mut self.sessions[place as usize] else {
                return served(Served::Gone);
            };
            if let Some(violation) = outcome.or(ended.err()) {
                session.violation.get_or_insert(violation);
                return served(Served::Gone);
            }
            if group.shaped {
                self.charge(group, sent);
            }
            if left && self.has_used_share(group, sent) {
                // No message keeps others waiting for copies: it goes on when it is its turn again.
                return served(Served::More(Stop::Over, 0));
            }
            if left {
                // What is longer than a frame may be cut.
                let large = group.packets[sent].len as usize > self.device.info().mtu + 18;
                let stop = Stop::Blocked { at_once: taken == 0, large };
                return served(Served::More(stop, run));
            }
            let over = used >= budget || self.turn_bytes <= 0 || bytes <= 0 && run == 0;
            return served(match ended {
                Ok(Ended::Empty) => Served::Idle,
                Ok(Ended::OtherLine) => Served::OtherLine,
                Ok(Ended::Stop(stop)) => Served::More(stop, 0),
                Ok(Ended::Over) => Served::More(Stop::Over, run),
                _ if over => Served::More(Stop::Over, run),
                _ => continue,
            });
        }
    }

    /// Whether the first `sent` packets of a group have used up its share by what they cost beyond
    /// themselves.
    fn has_used_share(&mut self, group: &Group, sent: usize) -> bool {
        let charged = |one: &Taken| if one.late { 0 } else { one.len };
        self.spent.has_used(&group.share, group.packets[..sent].iter().map(charged))
    }

    /// Sends what was fetched, one after the other. Answers how many are done with or on their way,
    /// and the violation that ended it; fewer than there are and none: there is no room, or those that
    /// were sent have used up the group's share.
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
                Sent::Costly { later } => {
                    if later {
                        group.slots[place] = NO_SLOT;
                    } else {
                        let one = group.packets[place];
                        self.finish(group, one.first, one.chain);
                    }
                    if self.has_used_share(group, place + 1) {
                        return Ok((place + 1, None));
                    }
                }
                Sent::NoRoom => return Ok((place, None)),
                Sent::Violates(violation) => return Ok((place + 1, Some(violation))),
            }
            place += 1;
        }
    }
}
