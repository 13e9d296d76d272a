//! The events of a session, and the news that they tell of.

use crate::error::Lost;
use crate::ids::QueuePair;
use crate::session::Session;

impl Session {
    /// Returns whether a queue pair has news, without a system call, for callers that poll. Only
    /// [`Session::wait`] notices that the server has ended.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// while !session.poll()? {
    ///     std::hint::spin_loop();
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn poll(&mut self) -> Result<bool, Lost> {
        self.has_news()
    }

    /// Returns a queue pair that has news. With waiting packets, this is the same queue pair until
    /// the application takes them. Requested room is reported once.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(pair) = session.ready()? {
    ///     session.receiver().receive(pair, 64, |packet| println!("{}", packet.len()))?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn ready(&mut self) -> Result<Option<QueuePair>, Lost> {
        self.status.check()?;
        let Some(unit) = self.first_ready()? else { return Ok(None) };
        let pair = &mut self.transmit.pairs[unit as usize];
        (pair.room, pair.room_told) = (false, false);
        Ok(Some(QueuePair::new(pair.number)))
    }

    fn first_ready(&mut self) -> Result<Option<u32>, Lost> {
        while let Some(unit) = self.ready.first() {
            if self.transmit.pairs[unit as usize].wants {
                self.transmit.poll_for_room(&self.status, &mut self.ready, unit as usize)?;
            }
            let has_room = self.transmit.pairs[unit as usize].room;
            // This check follows the acknowledgement of the event: later packets are a new event.
            match self.receive.pairs[unit as usize].queue.observe() {
                Ok(0) if !has_room => self.ready.pop(),
                Ok(_) => return Ok(Some(unit)),
                Err(violation) => return Err(self.status.wrong(violation)),
            }
        }
        Ok(None)
    }

    /// Takes events. Returns whether any queue pair has news, new or left over.
    pub(crate) fn has_news(&mut self) -> Result<bool, Lost> {
        self.take_events()?;
        let revoked = self.status.take_revoked();
        // The client reports free space once, even if the caller never asks which queue pair has
        // it.
        if let Some(first) = self.ready.first() {
            let pair = &mut self.transmit.pairs[first as usize];
            pair.room &= !std::mem::take(&mut pair.room_told);
        }
        let first = self.first_ready()?;
        if let Some(unit) = first {
            let pair = &mut self.transmit.pairs[unit as usize];
            pair.room_told = pair.room;
        }
        let tripped = self.apertures.as_mut().is_some_and(|one| one.has_fired_any());
        let oob = self.oob.as_mut().map_or(Ok(None), |oob| oob.first_ready(true));
        let oob = oob.map_err(|violation| self.status.wrong(violation))?;
        Ok(first.is_some() || oob.is_some() || tripped || revoked)
    }

    /// Takes events, and records their news.
    pub(crate) fn take_events(&mut self) -> Result<(), Lost> {
        self.status.check()?;
        self.transmit.notify_if_due();
        let (pairs, ready) = (&mut self.receive.pairs, &mut self.ready);
        let per_lane = self.transmit.per_lane as u32;
        let (oob, apertures) = (&mut self.oob, &mut self.apertures);
        let first_tripwire = per_lane + oob.as_ref().map_or(0, |oob| oob.len());
        // All events that there can be: nothing sleeps while some are left.
        let budget = first_tripwire + apertures.as_ref().map_or(0, |one| one.tripwires());
        let (mut events, mut first) = (false, 0);
        let mut outcome = Ok(0);
        for lane in &mut self.event_lanes {
            if let Ok(Some(expected)) = lane.events.expected()
                && let Some(pair) = pairs.get((first + expected) as usize)
            {
                pair.queue.prefetch_news();
            }
            let taken = lane.events.take(budget, |queue_pair| {
                events = true;
                if queue_pair >= first_tripwire {
                    if let Some(apertures) = apertures {
                        apertures.record_event(queue_pair - first_tripwire);
                    }
                    return;
                }
                if queue_pair >= per_lane {
                    if let Some(oob) = oob {
                        oob.record_event(queue_pair - per_lane);
                    }
                    return;
                }
                ready.enter(first + queue_pair);
            });
            outcome = outcome.and(taken);
            first += per_lane;
        }
        if let Err(violation) = outcome {
            return Err(self.status.wrong(violation));
        }
        // The server marks an event when it has closed an endpoint.
        if events {
            self.status.update_revoked();
        }
        Ok(())
    }
}
