//! Events between a session and its application, and what the engine notifies the application of.

use std::os::fd::OwnedFd;

use towpath_queue::Violation;
use towpath_queue::doorbell::{self, Due, PeerSleepFlag};
use towpath_queue::events::{self, Acknowledger, Marker};

use crate::session::doorbell::Doorbell;
use crate::session::receive_side::Published;

/// The news of one session at the end of a poll iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// `true` if the engine marked events.
    pub(crate) marked: bool,
    /// `true` if the engine must notify the client now, even if it deferred the notification.
    pub(crate) urgent: bool,
    /// `true` if half of a queue pair's buffers are used.
    pub(crate) full: bool,
    /// The deadline of a deferred notification, in nanoseconds; 0 if none is deferred.
    pub(crate) due: u64,
    /// `true` if the server closed an endpoint of the session.
    revoked: bool,
}

/// The events of a session.
#[derive(Debug)]
pub(crate) struct Events {
    /// Events to the application.
    to_client: Marker,
    /// Events from the application.
    from_client: Acknowledger,
    /// The application's sleep state.
    sleep_flag: PeerSleepFlag,
    /// The way in which the server notifies the application.
    doorbell: Doorbell,
    /// Readable when the application notifies the engine. This is an epoll instance that no
    /// application has. `None` while the session is unclaimed: its server was killed, and its
    /// application has yet to connect to this one. Until then the engine takes no packet from the
    /// session and marks no event, since the event queues may be inconsistent.
    wake: Option<OwnedFd>,
    /// The news for the session at the end of this poll iteration.
    news: News,
    /// Packets without a notification so far.
    unnotified: u32,
}

impl Events {
    pub(super) fn new(
        to_client: Marker,
        from_client: Acknowledger,
        sleep_flag: PeerSleepFlag,
        doorbell: Doorbell,
        wake: Option<OwnedFd>,
    ) -> Events {
        let (news, unnotified) = (News::default(), 0);
        Events { to_client, from_client, sleep_flag, doorbell, wake, news, unnotified }
    }

    /// Returns `true` if an application has the session, and `false` until one claims a session of
    /// an earlier server.
    #[inline]
    pub(crate) fn are_claimed(&self) -> bool {
        self.wake.is_some()
    }

    /// Returns the descriptor that is readable when the application notifies the engine.
    pub(crate) fn wake(&self) -> Option<&OwnedFd> {
        self.wake.as_ref()
    }

    /// Returns the events from the application.
    #[inline]
    pub(crate) fn events_from_client(&mut self) -> &mut Acknowledger {
        &mut self.from_client
    }

    /// Returns the way in which the server notifies the application.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Returns the server's end of the doorbell, which closes it.
    pub(super) fn doorbell_mut(&mut self) -> &mut Doorbell {
        &mut self.doorbell
    }

    /// Returns the descriptors.
    pub(super) fn into_descriptors(self) -> (Option<OwnedFd>, Doorbell) {
        (self.wake, self.doorbell)
    }

    /// Gives the events to the application, which has restarted its event queues.
    ///
    /// # Errors
    /// [`Violation::Index`] if the application's index is impossible.
    pub(super) fn claim(&mut self, doorbell: Doorbell, wake: OwnedFd) -> Result<(), Violation> {
        (self.doorbell, self.wake) = (doorbell, Some(wake));
        self.sleep_flag.restart();
        self.to_client.restart();
        self.from_client.restart()
    }

    /// Prefetches what [`Events::mark`] reads for an event.
    #[inline]
    pub(crate) fn prefetch(&self, event: u32) {
        self.to_client.prefetch(event);
    }

    /// Records what the engine published of a receive queue. `full`: `true` if half of the queue's buffers are used.
    /// `now` returns the time, which this function asks for only if it defers a notification.
    #[inline]
    pub(crate) fn note_received(
        &mut self,
        published: Published,
        full: bool,
        now: impl FnOnce() -> u64,
    ) {
        let Published { packets, rx_frames, rx_usecs } = published;
        let news = &mut self.news;
        news.full |= full;
        if rx_usecs == 0 {
            news.urgent |= packets > 0;
        } else if packets > 0 {
            self.unnotified = self.unnotified.saturating_add(packets);
            news.urgent |= self.unnotified >= rx_frames || full;
            let due = now() + u64::from(rx_usecs) * 1000;
            news.due = if news.due == 0 { due } else { news.due.min(due) };
        }
    }

    /// Records that the server closed an endpoint.
    pub(super) fn note_revoked(&mut self) {
        self.news.revoked = true;
    }

    /// Marks an event, if there is something new or the application has to be told at once (`wanted`). The application
    /// of an unclaimed session checks all its queue pairs when it comes.
    #[inline]
    pub(crate) fn mark(
        &mut self,
        fenced: events::Fenced,
        event: u32,
        is_new: bool,
        wanted: bool,
    ) -> Result<(), Violation> {
        let wanted = wanted || self.news.revoked;
        self.news.urgent |= wanted;
        if (is_new || wanted) && self.wake.is_some() {
            self.news.marked |= self.to_client.mark(fenced, event)?;
        }
        Ok(())
    }

    /// Publishes the events that the engine marked.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.news.marked {
            self.to_client.publish();
        }
    }

    /// Returns the news, and forgets them.
    #[inline]
    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Records that the engine notifies the application of all packets.
    #[inline]
    pub(crate) fn notified(&mut self) {
        self.unnotified = 0;
    }

    /// Returns whether the application sleeps and is to be notified. With `full`, also a timer-driven application is,
    /// before its buffers run out.
    #[inline]
    pub(crate) fn must_notify(&mut self, fenced: doorbell::Fenced, full: bool) -> Due {
        self.sleep_flag.must_notify(fenced, full)
    }
}
