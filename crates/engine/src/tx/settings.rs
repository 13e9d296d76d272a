//! Settings of sending, as the engine applies them: the policy, the hand-off, and each endpoint's
//! own settings.

use towpath_protocol::settings::Setting;
use towpath_queue::Violation;

use crate::clock::clock_ns;
use crate::schedule;
use crate::schedule::shape::{Class, Shape, Shaping};
use crate::session::Session;
use crate::sessions::SessionTable;
use crate::tx::TxPath;
use crate::tx::handoff::{HandoffMode, LinkDown};

/// Queue pairs that the engine checks again per poll iteration because settings changed, so that
/// one session's thousands do not delay other sessions. The engine checks all of a session's,
/// because expedited packets of an endpoint may wait in any.
const RECHECKED_PER_ITERATION: usize = 64;

/// Changes one setting of an endpoint. The values were checked against the table.
fn change(set: &mut Shaping, setting: Setting, value: u64) {
    match setting {
        Setting::Priority => set.priority = value as u8,
        Setting::Weight => set.weight = value as u16,
        Setting::RateBps => set.rate_bps = value,
        Setting::RatePps => set.rate_pps = value,
        Setting::BurstBytes => set.burst_bytes = value as u32,
        Setting::BurstPackets => set.burst_packets = value as u32,
        Setting::Pacing => set.pacing = value != 0,
        Setting::MaxDelayUs => set.max_delay_us = value as u32,
        Setting::MaxMessageBytes => set.max_message_bytes = value as u32,
        Setting::Quota => set.quota = value as u32,
        Setting::TickMultiple => set.tick_multiple = value as u32,
        // Other modules apply the remaining settings.
        _ => {}
    }
}

impl TxPath {
    /// Applies a setting of the device's scheduling.
    pub(crate) fn set(&mut self, setting: Setting, value: u64) {
        match setting {
            Setting::Scheduler => {
                self.schedule.set_policy(schedule::policy(value, self.transmit_budget))
            }
            Setting::Handoff => self.handoff.set_mode(HandoffMode::of(value)),
            Setting::LinkDown => self.handoff.set_link_down(LinkDown::of(value)),
            Setting::Expedited => {
                self.expedited_share = value as usize;
                self.handoff.set_expedited_share(self.expedited_share);
                if self.expedited_share == 0 {
                    while let Some(one) = self.schedule.withdraw_expedited() {
                        self.schedule.enter(one.unit, Class::default(), false, self.now);
                    }
                }
            }
            // Other modules apply the remaining settings.
            _ => {}
        }
    }

    /// Applies a setting of an endpoint's sending.
    pub(crate) fn set_shape(
        &mut self,
        key: u32,
        session: &mut Session,
        number: u32,
        setting: Setting,
        value: u64,
    ) -> Result<(), Violation> {
        let Some(endpoint) = session.receive.endpoints.get(number) else { return Ok(()) };
        let queue_pair = endpoint.queue_pair;
        let old = session.transmit.shape(number).copied();
        let mut set = old.map_or_else(Shaping::default, |shape| shape.set);
        change(&mut set, setting, value);
        self.now = clock_ns();
        let new = match &old {
            Some(old) => old.changed(set, self.now),
            None => Shape::new(set),
        };
        let new = (set != Shaping::default()).then_some(new);
        let takes_time = |shape: &Option<Shape>| usize::from(shape.is_some_and(|s| s.takes_time()));
        self.timed = self.timed + takes_time(&new) - takes_time(&old);
        session.transmit.set_shape(number, queue_pair, new);
        self.reshape(key, session, queue_pair)
    }

    /// Removes the sending settings of a closed endpoint.
    pub(crate) fn forget_shape(
        &mut self,
        key: u32,
        session: &mut Session,
        number: u32,
        queue_pair: u32,
    ) -> Result<(), Violation> {
        let old = session.transmit.set_shape(number, queue_pair, None);
        let Some(old) = old else { return Ok(()) };
        self.drop_shape(&old);
        self.reshape(key, session, queue_pair)
    }

    /// Forgets the sending settings of an endpoint of an ending session.
    pub(crate) fn drop_shape(&mut self, shape: &Shape) {
        self.timed -= usize::from(shape.takes_time());
    }

    /// Moves a queue pair to its line after settings of its endpoints changed. Expedited packets of
    /// these endpoints may wait in any other queue pair, which the engine checks again.
    fn reshape(
        &mut self,
        key: u32,
        session: &mut Session,
        queue_pair: u32,
    ) -> Result<(), Violation> {
        if session.is_closing() {
            return Ok(());
        }
        let unit = session.transmit.queue(queue_pair).unit;
        if self.schedule.has_waiting_units() && session.transmit.recheck_all() {
            self.to_recheck.push_back(key);
        }
        if self.schedule.withdraw(unit) {
            self.activate(unit, session, queue_pair)?;
        }
        Ok(())
    }

    /// Returns `true` if queue pairs wait for another check because settings changed.
    pub(crate) fn has_to_recheck(&self) -> bool {
        !self.to_recheck.is_empty()
    }

    /// Makes waiting queue pairs due for another check, a few per poll iteration and each session
    /// in its turn. Returns how many.
    pub(crate) fn recheck_queue_pairs(&mut self, sessions: &mut SessionTable) -> usize {
        let mut work = 0;
        while work < RECHECKED_PER_ITERATION
            && let Some(key) = self.to_recheck.pop_front()
        {
            let Some(session) = sessions.get_mut(key) else { continue };
            let most = (RECHECKED_PER_ITERATION - work) as u32;
            let (count, has_more) =
                session.transmit.recheck(most, |unit| self.schedule.make_due(unit));
            if has_more {
                self.to_recheck.push_back(key);
            }
            work += count as usize;
        }
        work
    }
}
