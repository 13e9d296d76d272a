//! Completion: the engine frees the bounce buffers of completed packets, and their applications'
//! buffers. After a reset, it sends the packets that the device kept once more.
//!
//! A completion says whether the device sent a packet, dropped and counted it, or kept it until a
//! reset returned it. The engine sends returned packets again, in their order and before
//! everything that waited behind them. A driver tells the two apart as well as its device does. A
//! packet that a device sent without completing it is sent twice. The engine cannot know this, and
//! networks may duplicate packets anyway. No packet is lost.

use towpath_device::{Completion, DeviceError, Kick, Outcome};
use towpath_protocol::counters::Device as Count;

use crate::device_counters::DeviceCounters;
use crate::notifier::Notifier;
use crate::port::DevicePort;
use crate::session::Session;
use crate::sessions::SessionTable;
use crate::tx::TxPath;

impl TxPath {
    /// Collects the device's completions, after giving it the waiting packets. Returns how many
    /// there were.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn complete(
        &mut self,
        port: &mut DevicePort,
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
        counters: &mut DeviceCounters,
    ) -> Result<usize, DeviceError> {
        // The engine tries a device that had no room again in the next poll iteration.
        if !self.handoff.is_blocked() {
            self.handoff.flush(&self.bounce, port)?;
        }
        // The one kick of direct hand-off.
        port.kick(Kick::Tx)?;
        if self.handoff.has_dropped() {
            self.drop_link_down(sessions, notifier, counters);
        }
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let count = port.complete(&mut completions)?;
        self.complete_all(&completions, sessions, notifier, counters);
        self.completions = completions;
        Ok(count)
    }

    /// Frees the packets that the engine drops because the link is down.
    #[cold]
    fn drop_link_down(
        &mut self,
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
        counters: &mut DeviceCounters,
    ) {
        while let Some(slot) = self.handoff.take_dropped() {
            counters.add(Count::TxLinkDown, 1);
            self.complete_slot(slot, sessions, notifier);
        }
    }

    /// Completes packets, and sends those that a reset of the device returned once more. Returns
    /// the number of the latter.
    #[inline]
    pub(crate) fn complete_all(
        &mut self,
        completions: &[Completion],
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
        counters: &mut DeviceCounters,
    ) -> usize {
        let mut returned = 0;
        for completion in completions {
            if completion.outcome == Outcome::Returned {
                returned += 1;
            } else {
                self.complete_slot(completion.token as u32, sessions, notifier);
            }
        }
        if returned > 0 {
            self.resubmit(completions, sessions, notifier, counters);
        }
        returned
    }

    /// Completes a device packet that the device returned or that will never be sent, and frees its
    /// slot. The last device packet of an in-flight entry also frees the application's buffers.
    pub(crate) fn complete_slot(
        &mut self,
        slot: u32,
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
    ) {
        let number = self.bounce.slots[slot as usize].in_flight_slot;
        self.bounce.release(slot);
        let Some(one) = self.in_flight.complete_one(number) else { return };
        let Some(session) = sessions.get_mut(one.session) else { return };
        if session.transmit.end_in_flight() == 0 && session.is_closing() {
            self.closing_done.push(one.session);
        }
        session.transmit.complete(one.queue_pair, one.first, one.chain);
        notifier.touch(&mut session.receive, one.session, one.queue_pair);
    }

    /// Puts packets that a reset of the device returned before all others, in their order. Drops
    /// those of ended sessions.
    #[cold]
    fn resubmit(
        &mut self,
        completions: &[Completion],
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
        counters: &mut DeviceCounters,
    ) {
        let mut ended = 0;
        let returned = completions.iter().filter(|one| one.outcome == Outcome::Returned);
        let mut tokens: Vec<u64> = returned.map(|one| one.token).collect();
        tokens.retain(|token| {
            let number = self.bounce.slots[*token as usize].in_flight_slot;
            let session = sessions.get(self.in_flight.sender(number));
            let lives = session.is_some_and(|session| !session.is_closing());
            if !lives {
                ended += 1;
                self.complete_slot(*token as u32, sessions, notifier);
            }
            lives
        });
        self.handoff.again(&tokens);
        counters.add(Count::TxEnded, ended);
        counters.add(Count::TxResubmitted, tokens.len() as u64);
    }

    /// Drops the packets of a session that the engine closes, as far as they wait for the device.
    pub(crate) fn forget(
        &mut self,
        key: u32,
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
        counters: &mut DeviceCounters,
    ) {
        self.to_recheck.retain(|one| *one != key);
        let mut gone = Vec::new();
        let (bounce, in_flight) = (&self.bounce, &self.in_flight);
        self.handoff.forget(|slot| {
            let theirs = in_flight.sender(bounce.slots[slot as usize].in_flight_slot) == key;
            if theirs {
                gone.push(slot);
            }
            theirs
        });
        counters.add(Count::TxEnded, gone.len() as u64);
        for slot in gone {
            self.complete_slot(slot, sessions, notifier);
        }
        // What the device still has are the engine's own copies, unless it sends in place, or by a
        // queue that ends with the session. Otherwise the session need not wait for a device that
        // may be stalled, or whose link is down.
        let waits = |session: &Session| {
            session.transmit.sends_from.in_place || session.extras.own.place().is_some()
        };
        if let Some(session) = sessions.get_mut(key).filter(|session| !waits(session)) {
            session.transmit.forget_in_flight();
            self.in_flight.forget_session(key);
        }
    }

    /// Returns a closing session of which nothing is in flight any more.
    pub(crate) fn take_closing_done(&mut self) -> Option<u32> {
        self.closing_done.pop()
    }
}
