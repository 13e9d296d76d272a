//! The end of a poll iteration: the engine publishes its progress and notifies clients.
//!
//! The engine first publishes all queues, then all events, then sends all notifications. Each fence
//! therefore costs once per poll iteration and not once per session. docs/signalling.md explains
//! each fence.

use towpath_protocol::counters::{self, Device as Count};
use towpath_protocol::settings::Setting;
use towpath_queue::doorbell::{self, Due};
use towpath_queue::frames::Ledger;
use towpath_queue::{Violation, events};

use crate::engine::Engine;
use crate::session::{QueueSet, Session};
use crate::transmit::Group;
use crate::wait::clock_ns;

/// The news of one session at the end of a poll iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// `true` if the engine marked events.
    marked: bool,
    /// `true` if the engine must notify the client now, even if it deferred the notification.
    urgent: bool,
    /// `true` if half of a queue pair's buffers are used.
    full: bool,
    /// The deadline of a deferred notification, in nanoseconds; 0 if none is deferred.
    due: u64,
}

/// Slots of a transmit queue whose packets are done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) place: u32,
    queue_set: u32,
    first: u32,
    slots: u32,
}

impl Engine {
    /// Records a queue pair that the engine publishes at the end of the poll iteration.
    #[inline]
    pub(crate) fn touch(&mut self, session: u32, queue_set: u32) {
        if let Some(one) = &mut self.sessions[session as usize] {
            touch(&mut self.touched, one, session, queue_set);
        }
    }

    /// Records packets of a batch that the engine delivered locally or dropped. The engine
    /// completes them at the end of the poll iteration, once their receivers can see them.
    #[inline]
    pub(crate) fn finish(&mut self, group: &Group, first: u32, slots: u32) {
        let (place, queue_set) = (group.place, group.queue_set);
        self.finished.push(Finished { place, queue_set, first, slots });
        self.touch(place, queue_set);
    }

    /// Publishes the progress of the poll iteration, marks events, and notifies clients. Each fence
    /// runs once for all sessions.
    pub(crate) fn publish_and_ring(&mut self) {
        if self.touched.is_empty() {
            debug_assert!(self.finished.is_empty(), "what is finished was touched");
            return;
        }
        // The engine reads the clock only if it defers a notification.
        let mut now = None;
        for (place, queue_set) in &self.touched {
            if let Some(session) = &mut self.sessions[*place as usize] {
                let set = &mut session.queue_sets[*queue_set as usize];
                let received = set.receive.publish();
                set.touched = received > 0;
                let news = &mut session.news;
                let full = self.ring_half
                    && set.touched
                    && set.receive.is_half_used()
                    && !has_provided(set, &mut session.receive_ledger, &mut session.violation);
                news.full |= full;
                if set.rx_usecs == 0 {
                    news.urgent |= set.touched;
                } else if set.touched {
                    session.unrung = session.unrung.saturating_add(received);
                    news.urgent |= session.unrung >= set.rx_frames || full;
                    let due = *now.get_or_insert_with(clock_ns) + u64::from(set.rx_usecs) * 1000;
                    news.due = if news.due == 0 { due } else { news.due.min(due) };
                }
            }
        }
        // A successor engine resends packets that are not done: it may send a packet twice, but
        // loses none.
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
                let wanted = set.transmit.is_wanted();
                session.news.urgent |= wanted;
                if set.touched || wanted {
                    match session.marker.mark(fenced, *queue_set) {
                        Ok(new) => session.news.marked |= new,
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
                && session.news.marked
            {
                session.marker.publish();
            }
        }
        let fenced = doorbell::fence();
        let mut touched = std::mem::take(&mut self.touched);
        for (place, _) in &touched {
            let Some(session) = &mut self.sessions[*place as usize] else { continue };
            // One notification tells the news of all of the session's queue pairs.
            let news = std::mem::take(&mut session.news);
            if news.urgent {
                session.unrung = 0;
                // The engine has already notified the client of a pending event, with two
                // exceptions: a deferred notification, and one suppressed because the client polls
                // by the clock and can no longer wait for its next tick.
                let put_off = self.held.forget(*place) || news.due != 0;
                if news.marked || put_off || news.full || !self.ring_saving {
                    self.ring(*place, fenced, news.full);
                }
            } else if news.due != 0 {
                self.rings.merged += 1;
                self.held.put(news.due, *place);
            }
        }
        for (place, _) in &touched {
            self.end_if_violated(*place);
        }
        touched.clear();
        self.touched = touched;
        self.count_rings();
    }

    /// Sends the deferred notifications that are due. Includes those due so soon that a separate
    /// sleep is not worthwhile.
    pub(crate) fn ring_the_held(&mut self) {
        let Some(first) = self.held.next() else { return };
        let now = self.read_clock();
        if now < first {
            return;
        }
        let until = now + self.values.get(Setting::TimerSlackUs) * 1000;
        let mut fenced = None;
        while let Some(place) = self.held.take(until) {
            let Some(session) = &mut self.sessions[place as usize] else { continue };
            session.unrung = 0;
            let fenced = *fenced.get_or_insert_with(doorbell::fence);
            self.ring(place, fenced, false);
        }
        self.count_rings();
    }

    /// Wakes a session's application if it sleeps. With `full` it also wakes an application that
    /// polls by the clock, before its buffers run out.
    #[inline]
    fn ring(&mut self, place: u32, fenced: doorbell::Fenced, full: bool) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        match session.ringer.must_ring(fenced, full) {
            Due::Now => {}
            Due::Rung if self.ring_saving => {
                self.rings.merged += 1;
                return;
            }
            Due::Not if self.ring_saving => {
                self.rings.saved += 1;
                return;
            }
            Due::Rung | Due::Not => {}
        }
        self.rings.made += 1;
        self.rings.half += u64::from(full);
        match session.doorbell.relay() {
            Some(relay) if self.always_by_worker || !self.notifies_directly && !relay.trusted => {
                self.rings.relayed += 1;
                self.relays.notify(relay);
            }
            _ => session.doorbell.notify(),
        }
    }

    fn count_rings(&mut self) {
        self.relays.call();
        let rings = std::mem::take(&mut self.rings);
        for (count, by) in [
            (Count::Rings, rings.made),
            (Count::RingsSaved, rings.saved),
            (Count::RingsMerged, rings.merged),
            (Count::RingsHalf, rings.half),
            (Count::RingsRelayed, rings.relayed),
        ] {
            if by > 0 {
                counters::add(&mut self.counters, count as usize, by);
            }
        }
    }
}

/// Reads the buffers that the application has provided since the last look, which the engine took
/// when it had none left. Only by that look, half of the queue pair's buffers seem used. Returns
/// `true` if they are not.
#[cold]
fn has_provided(set: &mut QueueSet, ledger: &mut Ledger, violated: &mut Option<Violation>) -> bool {
    if let Err(violation) = set.receive.observe(ledger) {
        violated.get_or_insert(violation);
    }
    !set.receive.is_half_used()
}

/// Counts of notifications in one poll iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rings {
    made: u64,
    saved: u64,
    merged: u64,
    half: u64,
    relayed: u64,
}

/// Records a queue pair that the engine publishes at the end of the poll iteration.
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
