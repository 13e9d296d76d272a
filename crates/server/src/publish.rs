//! The end of a turn: what it did is made known, and who must be woken is rung.
//!
//! First all queues, then all events, then all rings, so that each fence is made once a turn and not
//! once a session. docs/signalling.md says what each is for.

use towpath_protocol::counters::{self, Device as Count};
use towpath_queue::{doorbell, events};

use crate::engine::Engine;
use crate::session::Session;
use crate::transmit::Group;

/// Slots of a transmit queue whose packets need nothing more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) place: u32,
    queue_set: u32,
    first: u32,
    slots: u32,
}

impl Engine {
    /// Notes a queue set to be published at the end of the turn.
    #[inline]
    pub(crate) fn touch(&mut self, session: u32, queue_set: u32) {
        if let Some(one) = &mut self.sessions[session as usize] {
            touch(&mut self.touched, one, session, queue_set);
        }
    }

    /// Packets of a group were delivered here, or dropped. They are done with once those who got
    /// them can know: at the end of the turn.
    #[inline]
    pub(crate) fn finish(&mut self, group: &Group, first: u32, slots: u32) {
        let (place, queue_set) = (group.place, group.queue_set);
        self.finished.push(Finished { place, queue_set, first, slots });
        self.touch(place, queue_set);
    }

    /// Publishes all that the turn did, marks events, and rings who must be woken: each fence once
    /// for all sessions.
    pub(crate) fn publish_and_ring(&mut self) {
        if self.touched.is_empty() {
            debug_assert!(self.finished.is_empty(), "what is finished was touched");
            return;
        }
        for (place, queue_set) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize] {
                let set = &mut session.queue_sets[*queue_set as usize];
                set.touched = set.receive.publish();
            }
        }
        // A successor sends again what is not done with: rather twice than never.
        for one in self.finished.drain(..) {
            if let Some(session) = &mut self.sessions[one.place as usize] {
                let set = &mut session.queue_sets[one.queue_set as usize];
                set.transmit.complete(&mut session.transmit_ledger, one.first, one.slots);
            }
        }
        for (place, queue_set) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize] {
                session.queue_sets[*queue_set as usize].transmit.publish();
            }
        }
        let fenced = events::fence();
        for (place, queue_set) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize] {
                let set = &mut session.queue_sets[*queue_set as usize];
                if set.touched || set.transmit.is_wanted() {
                    match session.marker.mark(fenced, *queue_set) {
                        Ok(new) => session.marked |= new,
                        Err(violation) => {
                            session.violation.get_or_insert(violation);
                        }
                    }
                }
                set.touched = false;
            }
        }
        for (place, _) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize]
                && session.marked
            {
                session.marker.publish();
            }
        }
        let fenced = doorbell::fence();
        let mut rings = 0;
        let mut touched = std::mem::take(&mut self.touched);
        for (place, _) in &touched {
            let Some(session) = &mut self.sessions[*place as usize] else { continue };
            if std::mem::take(&mut session.marked) && session.ringer.must_ring(fenced) {
                session.ring();
                rings += 1;
            }
        }
        for (place, _) in &touched {
            self.end_if_violated(*place);
        }
        touched.clear();
        self.touched = touched;
        if rings > 0 {
            counters::add(&mut self.counters, Count::Rings as usize, rings);
        }
    }
}

/// Notes a queue set to be published at the end of the turn.
#[inline]
pub(crate) fn touch(
    touched: &mut Vec<(u32, u32)>,
    session: &mut Session,
    place: u32,
    queue_set: u32,
) {
    let set = &mut session.queue_sets[queue_set as usize];
    if !set.touched {
        set.touched = true;
        touched.push((place, queue_set));
    }
}
