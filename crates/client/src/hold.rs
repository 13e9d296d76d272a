//! The time of a notification: the client notifies the server of published packets at once, or
//! defers the notification.

use std::time::{Duration, Instant};

/// The conditions for notifying the server.
#[derive(Debug)]
pub(crate) struct DoorbellHold {
    /// Packets after which the client notifies the server; 1: the client defers nothing.
    packets: u32,
    /// The longest time for which the client defers a notification.
    delay: Duration,
    /// The time since which the client has deferred a notification.
    since: Option<Instant>,
    /// Packets that the client had sent when it last notified the server.
    sent: u64,
    /// `true` if the client does not defer the next notification, and sends it also to a
    /// timer-driven server.
    urgent: bool,
    /// `true` if the notification is urgent because half of a queue is in flight.
    half: bool,
    /// `true` if a half-full queue causes a notification.
    notifications_early: bool,
    /// `true` if the client suppresses notifications to an awake server.
    saves: bool,
}

impl Default for DoorbellHold {
    fn default() -> DoorbellHold {
        DoorbellHold {
            packets: 1,
            delay: Duration::ZERO,
            since: None,
            sent: 0,
            urgent: false,
            half: false,
            notifications_early: true,
            saves: true,
        }
    }
}

/// The notification that the client is about to send.
pub(crate) struct Taken {
    /// `true` if the notification also goes to a timer-driven server.
    pub(crate) urgent: bool,
    /// `true` if the notification is urgent because half of a queue is in flight.
    pub(crate) half: bool,
    /// `true` if the client suppresses the notification to an awake server.
    pub(crate) saves: bool,
}

impl DoorbellHold {
    /// Defers notifications until `packets` are queued or `delay` has passed.
    pub(crate) fn defer(&mut self, packets: u32, delay: Duration) {
        self.packets = if delay.is_zero() { 1 } else { packets.max(1) };
        self.delay = delay;
    }

    /// Sets whether a half-full queue causes a notification.
    pub(crate) fn set_early(&mut self, on: bool) {
        self.notifications_early = on;
    }

    /// Sets whether the client suppresses notifications to an awake server.
    pub(crate) fn set_suppression(&mut self, on: bool) {
        self.saves = on;
    }

    /// `true` if a half-full queue causes a notification.
    #[inline]
    pub(crate) fn is_early(&self) -> bool {
        self.notifications_early
    }

    /// Makes the next notification urgent, because half of a queue is in flight.
    pub(crate) fn note_half(&mut self) {
        (self.half, self.urgent) = (true, true);
    }

    /// Makes the next notification urgent.
    pub(crate) fn hurry(&mut self) {
        self.urgent = true;
    }

    /// Returns `true` if the client sends a batch's notification now, and `false` if it defers the
    /// notification; `None` if the server was already notified, and has yet to poll. `new`: no
    /// event for the batch was pending. `sent`: the packets that the client has sent so far.
    #[inline]
    pub(crate) fn is_time(&mut self, new: bool, sent: u64) -> Option<bool> {
        if !new && !self.urgent && self.since.is_none() && self.saves {
            return None;
        }
        if self.packets == 1 || self.urgent {
            return Some(true);
        }
        let queued = (sent - self.sent) as u32;
        let since = *self.since.get_or_insert_with(Instant::now);
        Some(queued >= self.packets || since.elapsed() >= self.delay)
    }

    /// `true` if a notification is deferred, or the next one is urgent.
    pub(crate) fn is_pending(&self) -> bool {
        self.since.is_some() || self.urgent
    }

    /// `true` if the delay of a deferred notification has passed.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= self.delay)
    }

    /// Takes the notification that the client is about to send, after `sent` packets.
    #[inline]
    pub(crate) fn take(&mut self, sent: u64) -> Taken {
        (self.since, self.sent) = (None, sent);
        let urgent = std::mem::take(&mut self.urgent);
        Taken { urgent, half: std::mem::take(&mut self.half), saves: self.saves }
    }
}
