//! The end of a poll iteration: the engine publishes its progress and notifies clients.
//!
//! The engine first publishes all queues, then all events, then sends all notifications. Each fence
//! therefore costs once per poll iteration and not once per session. docs/signalling.md explains
//! each fence.

use towpath_protocol::counters::Device as Count;
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::doorbell::{self, Due};
use towpath_queue::events;

use crate::clock::clock_ns;
use crate::deadlines::Deadlines;
use crate::device_counters::DeviceCounters;
use crate::relays::Relays;
use crate::session::Session;
use crate::session::receive_side::ReceiveSide;
use crate::sessions::SessionTable;

/// Slots of a transmit queue whose packets are done.
#[derive(Clone, Copy, Debug)]
struct Completed {
    key: u32,
    queue_pair: u32,
    first: u32,
    slots: u32,
}

/// Counts of notifications in one poll iteration.
#[derive(Clone, Copy, Debug, Default)]
struct Notifications {
    made: u64,
    suppressed: u64,
    merged: u64,
    early: u64,
    relayed: u64,
}

/// The queue pairs that changed in a poll iteration, and the notifications that follow.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// Queue pairs to publish, by session key and number.
    touched: Vec<(u32, u32)>,
    /// Queues of out-of-band messages with news, by session key and endpoint number.
    touched_oob: Vec<(u32, u32)>,
    /// Tripwires that fired, by session key and number.
    fired: Vec<(u32, u32)>,
    /// In a measured poll iteration, the sessions that received packets, and how many.
    received: Vec<(u32, u32)>,
    completed: Vec<Completed>,
    deferred: Deadlines,
    notifications: Notifications,
    /// `true` if the engine itself notifies applications, instead of the workers of their users.
    directly: bool,
    /// `true` if workers also notify the applications that are trusted or alone.
    always_by_worker: bool,
    /// `true` if the engine suppresses notifications to clients that are awake.
    suppression: bool,
    /// `true` if the engine notifies coalescing clients early, once half of their buffers are used.
    early: bool,
    /// The time by which a deferred notification may be sent early, in nanoseconds, to save a
    /// sleep.
    slack_ns: u64,
    relays: Relays,
}

impl Notifier {
    /// Creates a notifier. At most `packets` packets are completed per poll iteration.
    pub(crate) fn new(values: &Values, relays: Relays, packets: usize) -> Notifier {
        let mut notifier = Notifier {
            touched: Vec::with_capacity(1024),
            touched_oob: Vec::with_capacity(1024),
            fired: Vec::with_capacity(1024),
            received: Vec::with_capacity(1024),
            completed: Vec::with_capacity(packets),
            deferred: Deadlines::default(),
            notifications: Notifications::default(),
            directly: true,
            always_by_worker: false,
            suppression: true,
            early: true,
            slack_ns: 0,
            relays,
        };
        notifier.set(values);
        notifier
    }

    /// Applies the settings.
    pub(crate) fn set(&mut self, values: &Values) {
        self.suppression = values.is_on(Setting::NotificationSuppression);
        self.early = values.is_on(Setting::EarlyNotification);
        self.always_by_worker = values.is_on(Setting::Notify);
        self.slack_ns = values.get(Setting::TimerSlackUs) * 1000;
    }

    /// Sets whether the engine itself notifies applications. If the server serves applications of
    /// several users, the engine notifies only the trusted ones.
    pub(crate) fn set_directly(&mut self, directly: bool) {
        self.directly = directly;
    }

    /// Reserves memory for sessions with keys below `keys`.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.deferred.reserve(keys);
    }

    /// Forgets a session that the engine closes. Another session may have its key before the engine
    /// publishes.
    pub(crate) fn forget(&mut self, key: u32) {
        self.deferred.forget(key);
        self.touched.retain(|(session, _)| *session != key);
        self.touched_oob.retain(|(session, _)| *session != key);
        self.fired.retain(|(session, _)| *session != key);
        self.completed.retain(|one| one.key != key);
    }

    /// Returns `true` if anything of a session is left here.
    pub(crate) fn knows(&self, key: u32) -> bool {
        self.deferred.has(key)
            || self.touched.iter().any(|(session, _)| *session == key)
            || self.completed.iter().any(|one| one.key == key)
    }

    /// Returns `true` if the next poll iteration publishes something.
    pub(crate) fn has_unpublished(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Makes a deferred notification due at once, because a setting changed under which it may
    /// already have waited long enough.
    pub(crate) fn make_due(&mut self, key: u32) {
        if self.deferred.has(key) {
            self.deferred.put(0, key);
        }
    }

    /// Returns the time of the first deferred notification, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.deferred.next()
    }

    /// Records a queue pair that the engine publishes at the end of the poll iteration.
    #[inline]
    pub(crate) fn touch(&mut self, side: &mut ReceiveSide, key: u32, queue_pair: u32) {
        if side.touch(queue_pair) {
            self.touched.push((key, queue_pair));
        }
    }

    /// Records a queue of out-of-band messages with a message or a state that its application is
    /// told of at the end of the poll iteration.
    pub(crate) fn touch_oob(&mut self, session: &mut Session, key: u32, endpoint: u32) {
        // The application of a session that ends is told by the end itself.
        if !session.is_closing()
            && let Some(queue) = session.extras.oob.queue(endpoint)
            && !std::mem::replace(&mut queue.touched, true)
        {
            self.touched_oob.push((key, endpoint));
            // The session is then among those whose events the engine publishes.
            self.touch(&mut session.receive, key, 0);
        }
    }

    /// Records a tripwire that fired. Its application is told at the end of the poll iteration.
    pub(crate) fn touch_tripwire(&mut self, session: &mut Session, key: u32, tripwire: u32) {
        self.add_fired(key, tripwire);
        // The session is then among those whose events the engine publishes.
        self.touch(&mut session.receive, key, 0);
    }

    /// Records a tripwire that fired, of a session that the caller touches.
    pub(crate) fn add_fired(&mut self, key: u32, tripwire: u32) {
        self.fired.push((key, tripwire));
    }

    /// Records packets that the engine delivered locally or dropped. The engine completes them at
    /// the end of the poll iteration, once their receivers can see them.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        session: &mut Session,
        key: u32,
        queue_pair: u32,
        first: u32,
        slots: u32,
    ) {
        self.completed.push(Completed { key, queue_pair, first, slots });
        self.touch(&mut session.receive, key, queue_pair);
    }

    /// Publishes the progress of the poll iteration, marks events, and notifies clients. Each fence
    /// runs once for all sessions.
    pub(crate) fn publish(&mut self, sessions: &mut SessionTable, counters: &mut DeviceCounters) {
        if self.touched.is_empty() {
            debug_assert!(self.completed.is_empty(), "completed packets have touched queue pairs");
            return;
        }
        self.publish_receive_queues(sessions);
        if !self.received.is_empty() {
            self.divide_receive_time(sessions);
        }
        // A successor engine resends packets that are not done: it may send a packet twice, but
        // loses none.
        for one in self.completed.drain(..) {
            if let Some(session) = sessions.get_mut(one.key) {
                session.transmit.complete(one.queue_pair, one.first, one.slots);
            }
        }
        for (key, queue_pair) in &self.touched {
            if let Some(session) = sessions.get_mut(*key) {
                session.transmit.publish(*queue_pair);
            }
        }
        self.mark_events(sessions);
        self.notify_touched(sessions);
        for (key, _) in &self.touched {
            if let Some(violation) = sessions.get(*key).and_then(Session::violation) {
                sessions.condemn(*key, violation);
            }
        }
        self.touched.clear();
        sessions.position.serve(0);
        self.count(counters);
    }

    /// Publishes the receive queues, and decides which clients to notify now.
    fn publish_receive_queues(&mut self, sessions: &mut SessionTable) {
        // The engine reads the clock only if it defers a notification.
        let mut now = None;
        let is_measured = sessions.meter.receive_ns() > 0;
        for (key, queue_pair) in &self.touched {
            let Some(session) = sessions.get_mut(*key) else { continue };
            let side = &mut session.receive;
            let published = side.publish(*queue_pair);
            if is_measured && published.packets > 0 {
                self.received.push((*key, published.packets));
            }
            let full = self.early && published.packets > 0 && side.is_half_used(*queue_pair);
            let now = || *now.get_or_insert_with(clock_ns);
            session.events.note_received(published, full, now);
        }
    }

    /// Divides the time to receive packets among the sessions that received some.
    #[cold]
    fn divide_receive_time(&mut self, sessions: &mut SessionTable) {
        let ns = sessions.meter.receive_ns();
        let all: u64 = self.received.iter().map(|(_, count)| u64::from(*count)).sum();
        for (key, count) in self.received.drain(..) {
            if let Some(session) = sessions.get_mut(key) {
                session.add_time(ns * u64::from(count) / all.max(1));
            }
        }
    }

    /// Marks and publishes the events of the touched queue pairs.
    fn mark_events(&mut self, sessions: &mut SessionTable) {
        let fenced = events::fence();
        for (key, queue_pair) in &self.touched {
            let Some(session) = sessions.serve(*key) else { continue };
            let received = session.receive.untouch(*queue_pair);
            let wanted = session.transmit.queue(*queue_pair).consumer.is_wanted();
            if let Err(violation) = session.events.mark(fenced, *queue_pair, received, wanted) {
                session.violate(violation);
            }
        }
        for (key, endpoint) in self.touched_oob.drain(..) {
            if let Some(session) = sessions.serve(key) {
                mark_oob(session, fenced, endpoint);
            }
        }
        for (key, tripwire) in self.fired.drain(..) {
            if let Some(session) = sessions.serve(key) {
                let event = session.shape().first_tripwire_event() + tripwire;
                mark_urgent(session, fenced, event);
            }
        }
        for (key, _) in &self.touched {
            if let Some(session) = sessions.get_mut(*key) {
                session.events.publish();
            }
        }
    }

    /// Notifies the clients of the touched queue pairs, or defers the notification.
    fn notify_touched(&mut self, sessions: &mut SessionTable) {
        let fenced = doorbell::fence();
        for index in 0..self.touched.len() {
            let (key, _) = self.touched[index];
            let Some(session) = sessions.get_mut(key) else { continue };
            // One notification covers the news of all of the session's queue pairs.
            let news = session.events.take_news();
            if news.urgent {
                session.events.notified();
                // The engine has already notified the client of a pending event, with two
                // exceptions. One is a deferred notification. The other is one suppressed for a
                // timer-driven client that can no longer wait for its next tick.
                let was_deferred = self.deferred.forget(key) || news.due != 0;
                if news.marked || was_deferred || news.full || !self.suppression {
                    self.notify(session, fenced, news.full);
                }
            } else if news.due != 0 {
                self.notifications.merged += 1;
                self.deferred.put(news.due, key);
            }
        }
    }

    /// Sends the deferred notifications that are due, and those due too soon for a separate sleep
    /// to be worthwhile.
    pub(crate) fn notify_deferred(
        &mut self,
        sessions: &mut SessionTable,
        counters: &mut DeviceCounters,
    ) {
        let Some(first) = self.deferred.next() else { return };
        let now = clock_ns();
        if now < first {
            return;
        }
        let until = now + self.slack_ns;
        let mut fenced = None;
        while let Some(key) = self.deferred.take(until) {
            let Some(session) = sessions.get_mut(key) else { continue };
            session.events.notified();
            let fenced = *fenced.get_or_insert_with(doorbell::fence);
            self.notify(session, fenced, false);
        }
        self.count(counters);
    }

    /// Wakes a session's application if it sleeps. With `full`, also wakes a timer-driven
    /// application before its buffers run out.
    #[inline]
    fn notify(&mut self, session: &mut Session, fenced: doorbell::Fenced, full: bool) {
        match session.events.must_notify(fenced, full) {
            Due::Now => {}
            Due::Already if self.suppression => {
                self.notifications.merged += 1;
                return;
            }
            Due::Not if self.suppression => {
                self.notifications.suppressed += 1;
                return;
            }
            Due::Already | Due::Not => {}
        }
        self.notifications.made += 1;
        self.notifications.early += u64::from(full);
        match session.events.doorbell().relay() {
            Some(relay) if self.always_by_worker || !self.directly && !relay.trusted => {
                self.notifications.relayed += 1;
                self.relays.notify(relay);
            }
            _ => session.events.doorbell().notify(),
        }
    }

    fn count(&mut self, counters: &mut DeviceCounters) {
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
                counters.add(count, by);
            }
        }
    }
}

/// Marks an event of a queue of out-of-band messages. The application of an unclaimed session looks
/// into all of its queues when it comes.
#[cold]
fn mark_oob(session: &mut Session, fenced: events::Fenced, endpoint: u32) {
    if let Some(queue) = session.extras.oob.queue(endpoint) {
        queue.touched = false;
    }
    mark_urgent(session, fenced, session.shape().queue_pairs + endpoint);
}

/// Marks an event of which the application is told at once.
#[cold]
fn mark_urgent(session: &mut Session, fenced: events::Fenced, event: u32) {
    if session.is_claimed()
        && let Err(violation) = session.events.mark(fenced, event, true, true)
    {
        session.violate(violation);
    }
}

#[cfg(test)]
mod tests {
    use towpath_memory::Region;

    use super::*;
    use crate::testing::{Application, session};
    use towpath_protocol::layout::STATE_WORDS;

    struct World {
        notifier: Notifier,
        sessions: SessionTable,
        counters: DeviceCounters,
        application: Application,
    }

    impl World {
        fn new() -> World {
            let (session, application) = session(1);
            let mut sessions = SessionTable::default();
            let key = sessions.reserve();
            sessions.insert(key, session);
            let mut notifier = Notifier::new(&Values::default(), Relays::none().unwrap(), 8);
            notifier.reserve(sessions.keys());
            let state = Region::private(STATE_WORDS * 8).unwrap();
            let counters = DeviceCounters::new(state, 1).0;
            World { notifier, sessions, counters, application }
        }

        /// Takes the packets that the application sent, and completes them.
        fn complete(&mut self, packets: u32) {
            let session = self.sessions.get_mut(0).unwrap();
            assert_eq!(session.transmit.queue(0).consumer.observe(), Ok(packets));
            let mut chain = [Default::default(); towpath_queue::descriptor::MAX_CHAIN];
            for _ in 0..packets {
                let (queue, ledger, _) = session.transmit.parts(0);
                let taken = queue.consumer.take(ledger, &mut chain).unwrap();
                let (count, first) = taken.unwrap();
                self.notifier.complete(session, 0, 0, first, count as u32);
            }
        }

        fn publish(&mut self) {
            self.notifier.publish(&mut self.sessions, &mut self.counters);
        }
    }

    #[test]
    fn completions_are_published_at_the_end_of_an_iteration() {
        let mut world = World::new();
        (0..3).for_each(|buffer| world.application.send(buffer, 0, &[7; 60]));
        world.complete(3);
        assert_eq!(world.application.completed(), 0);
        world.publish();
        assert_eq!(world.application.completed(), 3);
        assert_eq!(world.counters.get(Count::Notifications), 0, "the application asked for none");
    }

    #[test]
    fn a_forgotten_session_is_not_published() {
        let mut world = World::new();
        world.application.send(0, 0, &[7; 60]);
        world.complete(1);
        world.notifier.forget(0);
        world.publish();
        assert_eq!(world.application.completed(), 0);
    }

    #[test]
    fn a_violation_condemns_the_session() {
        let mut world = World::new();
        let session = world.sessions.get_mut(0).unwrap();
        session.violate(towpath_queue::Violation::Buffer);
        world.notifier.touch(&mut session.receive, 0, 0);
        world.publish();
        assert_eq!(world.sessions.take_condemned(), Some(0));
    }
}
