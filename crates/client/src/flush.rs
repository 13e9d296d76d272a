//! Publication of queued packets, and notifications of the server: at once, deferred or
//! suppressed.

use std::time::Duration;

use towpath_queue::doorbell::{self, Due};
use towpath_queue::{Violation, events};

use crate::error::Lost;
use crate::hold::Taken;
use crate::send::Sender;
use crate::status::Status;
use crate::transmit::Transmit;

impl Sender<'_> {
    /// Publishes all queued packets to the server, and notifies the server if it sleeps. The caller
    /// calls this once per batch.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, packets: &[Vec<u8>]) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sender = session.sender();
    /// for packet in packets {
    ///     sender.send_bytes(endpoint, packet)?;
    /// }
    /// sender.flush()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn flush(&mut self) -> Result<(), Lost> {
        self.transmit.flush(self.status)
    }

    /// Flushes as [`Sender::flush`] does, and sends a deferred notification at once, also to a
    /// timer-driven server. For the last packet of a burst.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, last: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sender = session.sender();
    /// sender.send_bytes(endpoint, last)?;
    /// sender.flush_now()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn flush_now(&mut self) -> Result<(), Lost> {
        self.transmit.hold.hurry();
        self.transmit.flush(self.status)?;
        self.transmit.notify_deferred();
        Ok(())
    }

    /// Defers notifications to the server until `packets` are queued, `delay` has passed, a queue
    /// is half full, or the application calls [`Sender::flush_now`], whichever is first. The
    /// client does not hold back the packets themselves: a server that is awake finds them at once.
    /// The exception is a session that had nothing to send for so long that the engine parked it
    /// (docs/signalling.md): its first packet waits for the notification.
    ///
    /// No thread watches the time. The next wait, poll, or flush of packets after the delay sends
    /// the notification, and so do [`Session::wait`](crate::Session::wait) and
    /// [`Session::arm`](crate::Session::arm) before each sleep. A
    /// program that computes meanwhile calls `flush_now` first. With one packet or no delay, the
    /// client notifies at once, as it does by default. (Hennrich calls this producer IPC saving.)
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) {
    /// let delay = std::time::Duration::from_micros(50);
    /// session.sender().defer_notifications(32, delay);
    /// # }
    /// ```
    pub fn defer_notifications(&mut self, packets: u32, delay: Duration) {
        if !self.status.is_parents() {
            return;
        }
        self.transmit.hold.defer(packets, delay);
        self.transmit.notify_deferred();
    }

    /// Sets whether the client notifies the server when half of a queue is in flight, even if the
    /// client defers notifications or the server is timer-driven; on by default. If off, also a
    /// full queue waits for its delay or tick.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) {
    /// session.sender().set_early_notification(false);
    /// # }
    /// ```
    pub fn set_early_notification(&mut self, on: bool) {
        self.transmit.hold.set_early(on);
    }

    /// Sets whether the client suppresses notifications to a server that is awake, timer-driven or
    /// already notified; on by default. If off, the client notifies the server for each batch, to
    /// measure the effect of suppression. The device's setting `notification_suppression` does the
    /// same in the other direction.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) {
    /// session.sender().set_notification_suppression(false);
    /// # }
    /// ```
    pub fn set_notification_suppression(&mut self, on: bool) {
        self.transmit.hold.set_suppression(on);
    }
}

impl Transmit {
    /// Publishes all queued packets.
    pub(crate) fn flush(&mut self, status: &Status) -> Result<(), Lost> {
        status.check()?;
        if self.dirty.is_empty() {
            return Ok(());
        }
        if status.hung_up() {
            // The next server learns of all packets when it resumes the session.
            for queue_pair in self.dirty.drain(..) {
                let pair = &mut self.pairs[queue_pair as usize];
                pair.queue.publish();
                pair.dirty = false;
            }
            return Ok(());
        }
        self.publish().map_err(|violation| status.wrong(violation))
    }

    /// Publishes all queued packets, and notifies the server. A function of its own, which keeps
    /// its loops in registers.
    #[inline(never)]
    fn publish(&mut self) -> Result<(), Violation> {
        let mut outcome = Ok(());
        for queue_pair in &self.dirty {
            let transmit = &mut self.pairs[*queue_pair as usize].queue;
            transmit.publish();
            let half = transmit.capacity() / 2;
            if transmit.in_flight() < half || !self.hold.is_early() {
                continue;
            }
            // The check above used the completions that the client had seen; this reclaims more.
            let free = &mut self.free;
            outcome = outcome.and(transmit.reclaim(|buffer| free.release(buffer)).map(|_| ()));
            // The queue is soon full, so the server should poll now, whatever its wait strategy.
            if transmit.in_flight() >= half {
                self.hold.note_half();
            }
        }
        let fenced = events::fence();
        for queue_pair in &self.dirty {
            let pair = &mut self.pairs[*queue_pair as usize];
            pair.dirty = false;
            let lane = &mut self.lanes[pair.lane];
            lane.unnotified = true;
            outcome = outcome.and(lane.marker.mark(fenced, pair.number).map(|_| ()));
        }
        self.dirty.clear();
        outcome?;
        self.statistics.batches += 1;
        let mut new = false;
        for lane in self.lanes.iter_mut().filter(|lane| lane.unnotified) {
            new |= lane.marker.publish();
        }
        self.notify_for(new);
        Ok(())
    }

    /// Notifies the server of published packets, now or later. `new`: no event for them was
    /// pending.
    pub(crate) fn notify_for(&mut self, new: bool) {
        match self.hold.is_time(new, self.statistics.sent) {
            None => {}
            Some(true) => self.notify(),
            Some(false) => self.statistics.notifications_deferred += 1,
        }
    }

    /// Sends a deferred notification if its delay has passed.
    pub(crate) fn notify_if_due(&mut self) {
        if self.hold.is_due() {
            self.notify();
        }
    }

    /// Sends a deferred notification.
    pub(crate) fn notify_deferred(&mut self) {
        if self.hold.is_pending() {
            self.notify();
        }
    }

    /// Wakes the server if it sleeps, or has parked this session.
    fn notify(&mut self) {
        let Taken { urgent, half, saves } = self.hold.take(self.statistics.sent);
        let fenced = doorbell::fence();
        for lane in self.lanes.iter_mut().filter(|lane| lane.unnotified) {
            lane.unnotified = false;
            let asleep = lane.server_sleep_flag.must_notify(fenced, urgent);
            // A server that has parked this session does not poll it at ticks.
            let parked = lane.parked_flag.must_notify(fenced, true);
            if asleep == Due::Now || parked == Due::Now || !saves {
                self.statistics.notifications += 1;
                self.statistics.notifications_early += u64::from(half);
                let _ = rustix::io::write(&lane.wake, &1u64.to_ne_bytes());
            } else {
                self.statistics.notifications_suppressed += 1;
            }
        }
    }
}
