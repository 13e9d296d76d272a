//! Resuming a session: the server was killed, and the next one has the session's memory.
//!
//! The client notices the hang-up of its doorbell, restarts its event queues, connects again, and
//! asks for its session. Until the answer it marks no events, and afterwards it marks every queue
//! pair with packets in flight and looks into every receive queue. So nothing depends on the events
//! that the killed server left.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use towpath_protocol::channel::Channel;
use towpath_protocol::message::{Attached, Resume};
use towpath_queue::events;

use crate::clock;
use crate::error::Lost;
use crate::options::read_info;
use crate::reconnect::Progress;
use crate::session::Session;

impl Session {
    /// Starts to resume the session, unless an attempt is under way. Returns `false` if no server
    /// can resume it.
    pub(crate) fn start_resuming(&mut self) -> bool {
        if !self.status.can_resume() {
            return false;
        }
        let Some(resumable) = &mut self.resumable else { return false };
        self.status.set_hung_up(true);
        if !resumable.begin() {
            return true;
        }
        resumable.forget(self.doorbell.as_fd());
        self.restart_event_queues();
        self.check_all_queue_pairs();
        true
    }

    /// Discards the events that a server left in the queues.
    fn restart_event_queues(&mut self) {
        for lane in &mut self.event_lanes {
            if let Err(violation) = lane.events.restart() {
                self.status.wrong(violation);
            }
        }
        self.transmit.lanes.iter_mut().for_each(|lane| lane.marker.restart());
    }

    /// Enters every queue pair for a check.
    fn check_all_queue_pairs(&mut self) {
        self.ready.enter_all();
        if let Some(oob) = &mut self.oob {
            oob.check_all();
        }
        if let Some(apertures) = &mut self.apertures {
            apertures.check_all();
        }
    }

    /// Goes on resuming, at most until a time. Returns `false` if the session is not resumed by
    /// then; without a time, returns at once.
    ///
    /// # Errors
    /// [`Lost`] if no server resumed the session in time.
    pub(crate) fn resume(&mut self, until: Option<Instant>) -> Result<bool, Lost> {
        loop {
            let question =
                Resume { epoch: self.info().epoch, session: self.info().session, reserved: 0 };
            let Some(resumable) = &mut self.resumable else { return Err(self.status.over()) };
            match resumable.step(question) {
                Progress::Resumed(granted, descriptors, channel) => {
                    self.adopt_server(&granted, descriptors, channel)?;
                    return Ok(true);
                }
                Progress::NotResumed => return Err(self.not_resumed()),
                Progress::Ended => {
                    // It may have served the session before it ended.
                    self.restart_event_queues();
                    if self.status.lost().is_some() {
                        return Err(self.not_resumed());
                    }
                    continue;
                }
                Progress::Pending => {}
            }
            let Some(wake_at) = resumable.wake_at() else { return Err(self.not_resumed()) };
            let limit = until.unwrap_or_else(clock::now);
            if limit <= clock::now() {
                // The caller sleeps in its own epoll.
                resumable.set_timer(Some(wake_at));
                return Ok(false);
            }
            let left = wake_at.min(limit).saturating_duration_since(clock::now());
            let mut polled: Vec<_> = resumable
                .asked()
                .iter()
                .map(|channel| PollFd::new(*channel, PollFlags::IN))
                .collect();
            match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return Err(self.not_resumed()),
            }
        }
    }

    fn not_resumed(&mut self) -> Lost {
        self.end_attempt();
        self.status.over()
    }

    fn end_attempt(&mut self) {
        if let Some(resumable) = &mut self.resumable {
            resumable.end();
        }
    }

    /// Adopts the answering server's doorbell and wake descriptors, and notifies it of all packets
    /// in flight.
    fn adopt_server(
        &mut self,
        granted: &Attached,
        mut descriptors: Vec<OwnedFd>,
        channel: Channel,
    ) -> Result<(), Lost> {
        self.end_attempt();
        if descriptors.len() != 1 + self.event_lanes.len()
            || granted.session != self.info().session
            || usize::from(granted.lanes) != self.event_lanes.len()
        {
            return Err(self.status.over());
        }
        let wakes = descriptors.split_off(1);
        let Some(doorbell) = descriptors.pop() else { return Err(self.status.over()) };
        if let Some(resumable) = &self.resumable
            && resumable.watch(doorbell.as_fd()).is_err()
        {
            return Err(self.status.over());
        }
        (self.channel, self.doorbell) = (channel, doorbell);
        self.status.set_hung_up(false);
        self.set_info(read_info(granted));
        for (lane, wake) in self.transmit.lanes.iter_mut().zip(wakes) {
            lane.wake = wake;
            lane.server_sleep_flag.restart();
            lane.parked_flag.restart();
        }
        self.event_lanes.iter_mut().for_each(|lane| lane.sleeper.awake());
        self.statistics.resumptions += 1;
        self.check_all_queue_pairs();
        self.mark_in_flight()?;
        self.status.update_revoked();
        Ok(())
    }

    /// Marks every queue pair with packets in flight, and notifies the server.
    fn mark_in_flight(&mut self) -> Result<(), Lost> {
        let transmit = &mut self.transmit;
        transmit.dirty.clear();
        let mut outcome = Ok(());
        for pair in &mut transmit.pairs {
            pair.queue.publish();
            pair.dirty = false;
        }
        let fenced = events::fence();
        for pair in &mut transmit.pairs {
            if pair.queue.in_flight() > 0 {
                let lane = &mut transmit.lanes[pair.lane];
                lane.unnotified = true;
                outcome = outcome.and(lane.marker.mark(fenced, pair.number).map(|_| ()));
            }
        }
        // The killed server may have been told, and not have fired.
        if let Some(apertures) = &mut self.apertures {
            let (lane, per_lane) = (&mut transmit.lanes[0], transmit.per_lane as u32);
            for tripwire in apertures.restart_imported() {
                lane.unnotified = true;
                outcome = outcome.and(lane.marker.mark(fenced, per_lane + tripwire).map(|_| ()));
            }
        }
        if let Err(violation) = outcome {
            return Err(self.status.wrong(violation));
        }
        for lane in &mut transmit.lanes {
            lane.marker.publish();
        }
        transmit.hold.hurry();
        transmit.notify_deferred();
        Ok(())
    }
}
