//! The end of a poll iteration: the engine publishes its progress and notifies clients.
//!
//! The engine first publishes all queues, then all events, then sends all notifications. Each fence
//! therefore costs once per poll iteration and not once per session. docs/signalling.md explains
//! each fence.

use towpath_protocol::counters::{self, Device as Count};
use towpath_protocol::settings::Setting;
use towpath_queue::buffers::Ledger;
use towpath_queue::doorbell::{self, Due};
use towpath_queue::{Violation, events};

use crate::engine::Engine;
use crate::engine::session::{QueuePair, Session};
use crate::engine::transmit::Batch;
use crate::engine::wait::clock_ns;

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
pub(crate) struct Completed {
    pub(crate) key: u32,
    queue_pair: u32,
    first: u32,
    slots: u32,
}

impl Engine {
    /// Records a queue pair that the engine publishes at the end of the poll iteration.
    #[inline]
    pub(crate) fn touch(&mut self, session: u32, queue_pair: u32) {
        if let Some(one) = &mut self.sessions[session as usize] {
            touch(&mut self.touched, one, session, queue_pair);
        }
    }

    /// Records packets of a batch that the engine delivered locally or dropped. The engine
    /// completes them at the end of the poll iteration, once their receivers can see them.
    #[inline]
    pub(crate) fn record_completion(&mut self, batch: &Batch, first: u32, slots: u32) {
        let (key, queue_pair) = (batch.key, batch.queue_pair);
        self.completed.push(Completed { key, queue_pair, first, slots });
        self.touch(key, queue_pair);
    }

    /// Publishes the progress of the poll iteration, marks events, and notifies clients. Each fence
    /// runs once for all sessions.
    pub(crate) fn publish_and_notify(&mut self) {
        if self.touched.is_empty() {
            debug_assert!(self.completed.is_empty(), "completed packets have touched queue pairs");
            return;
        }
        // The engine reads the clock only if it defers a notification.
        let mut now = None;
        for (key, queue_pair) in &self.touched {
            if let Some(session) = &mut self.sessions[*key as usize] {
                let set = &mut session.queue_pairs[*queue_pair as usize];
                let received = set.receive.publish();
                set.touched = received > 0;
                let news = &mut session.news;
                let full = self.early_notification
                    && set.touched
                    && set.receive.is_half_used()
                    && !has_provided(set, &mut session.receive_ledger, &mut session.violation);
                news.full |= full;
                if set.rx_usecs == 0 {
                    news.urgent |= set.touched;
                } else if set.touched {
                    session.unnotified = session.unnotified.saturating_add(received);
                    news.urgent |= session.unnotified >= set.rx_frames || full;
                    let due = *now.get_or_insert_with(clock_ns) + u64::from(set.rx_usecs) * 1000;
                    news.due = if news.due == 0 { due } else { news.due.min(due) };
                }
            }
        }
        // A successor engine resends packets that are not done: it may send a packet twice, but
        // loses none.
        for one in self.completed.drain(..) {
            if let Some(session) = &mut self.sessions[one.key as usize] {
                let set = &mut session.queue_pairs[one.queue_pair as usize];
                set.transmit.complete(&mut session.transmit_ledger, one.first, one.slots);
            }
        }
        for (key, queue_pair) in &self.touched {
            if let Some(session) = &mut self.sessions[*key as usize] {
                session.queue_pairs[*queue_pair as usize].transmit.publish();
            }
        }
        let fenced = events::fence();
        for (key, queue_pair) in &self.touched {
            if let Some(session) = &mut self.sessions[*key as usize] {
                let set = &mut session.queue_pairs[*queue_pair as usize];
                let wanted = set.transmit.is_wanted();
                session.news.urgent |= wanted;
                if set.touched || wanted {
                    match session.marker.mark(fenced, *queue_pair) {
                        Ok(new) => session.news.marked |= new,
                        Err(violation) => {
                            session.violation.get_or_insert(violation);
                        }
                    }
                }
                set.touched = false;
            }
        }
        for (key, _) in &self.touched {
            if let Some(session) = &mut self.sessions[*key as usize]
                && session.news.marked
            {
                session.marker.publish();
            }
        }
        let fenced = doorbell::fence();
        let mut touched = std::mem::take(&mut self.touched);
        for (key, _) in &touched {
            let Some(session) = &mut self.sessions[*key as usize] else { continue };
            // One notification covers the news of all of the session's queue pairs.
            let news = std::mem::take(&mut session.news);
            if news.urgent {
                session.unnotified = 0;
                // The engine has already notified the client of a pending event, with two
                // exceptions. One is a deferred notification. The other is one suppressed for a
                // timer-driven client that can no longer wait for its next tick.
                let was_deferred = self.deferred.forget(*key) || news.due != 0;
                if news.marked || was_deferred || news.full || !self.notification_suppression {
                    self.notify(*key, fenced, news.full);
                }
            } else if news.due != 0 {
                self.notifications.merged += 1;
                self.deferred.put(news.due, *key);
            }
        }
        for (key, _) in &touched {
            self.end_if_violated(*key);
        }
        touched.clear();
        self.touched = touched;
        self.count_notifications();
    }

    /// Sends the deferred notifications that are due, and those due too soon for a separate sleep
    /// to be worthwhile.
    pub(crate) fn notify_deferred(&mut self) {
        let Some(first) = self.deferred.next() else { return };
        let now = self.read_clock();
        if now < first {
            return;
        }
        let until = now + self.values.get(Setting::TimerSlackUs) * 1000;
        let mut fenced = None;
        while let Some(key) = self.deferred.take(until) {
            let Some(session) = &mut self.sessions[key as usize] else { continue };
            session.unnotified = 0;
            let fenced = *fenced.get_or_insert_with(doorbell::fence);
            self.notify(key, fenced, false);
        }
        self.count_notifications();
    }

    /// Wakes a session's application if it sleeps. With `full`, also wakes a timer-driven
    /// application before its buffers run out.
    #[inline]
    fn notify(&mut self, key: u32, fenced: doorbell::Fenced, full: bool) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        match session.notifier.must_notify(fenced, full) {
            Due::Now => {}
            Due::Already if self.notification_suppression => {
                self.notifications.merged += 1;
                return;
            }
            Due::Not if self.notification_suppression => {
                self.notifications.suppressed += 1;
                return;
            }
            Due::Already | Due::Not => {}
        }
        self.notifications.made += 1;
        self.notifications.early += u64::from(full);
        match session.doorbell.relay() {
            Some(relay) if self.always_by_worker || !self.notifies_directly && !relay.trusted => {
                self.notifications.relayed += 1;
                self.relays.notify(relay);
            }
            _ => session.doorbell.notify(),
        }
    }

    fn count_notifications(&mut self) {
        self.relays.call();
        let notifications = std::mem::take(&mut self.notifications);
        for (count, by) in [
            (Count::Notifications, notifications.made),
            (Count::NotificationsSuppressed, notifications.suppressed),
            (Count::NotificationsMerged, notifications.merged),
            (Count::NotificationsEarly, notifications.early),
            (Count::NotificationsRelayed, notifications.relayed),
        ] {
            if by > 0 {
                counters::add(&mut self.counters, count as usize, by);
            }
        }
    }
}

/// Reads the buffers that the application has provided since the engine last read the queue, which
/// it does when it has none left. By that earlier state, half of the queue pair's buffers seemed
/// used. Returns `true` if they are not.
#[cold]
fn has_provided(
    set: &mut QueuePair,
    ledger: &mut Ledger,
    violated: &mut Option<Violation>,
) -> bool {
    if let Err(violation) = set.receive.observe(ledger) {
        violated.get_or_insert(violation);
    }
    !set.receive.is_half_used()
}

/// Counts of notifications in one poll iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notifications {
    made: u64,
    suppressed: u64,
    merged: u64,
    early: u64,
    relayed: u64,
}

/// Records a queue pair that the engine publishes at the end of the poll iteration.
#[inline]
pub(crate) fn touch(
    touched: &mut Vec<(u32, u32)>,
    session: &mut Session,
    key: u32,
    queue_pair: u32,
) {
    let set = &mut session.queue_pairs[queue_pair as usize];
    if !set.touched {
        set.touched = true;
        touched.push((key, queue_pair));
    }
}
