//! Settings of sending, as the engine applies them: the policy, the hand-off, and each endpoint's
//! own settings.

use towpath_protocol::settings::Setting;
use towpath_queue::Violation;

use crate::clock::clock_ns;
use crate::engine::schedule;
use crate::engine::schedule::shape::{Class, Shape, Shaping};
use crate::engine::session::Session;
use crate::engine::sessions::SessionTable;
use crate::engine::tx::TxPath;
use crate::engine::tx::handoff::{HandoffMode, LinkDown};

/// Queue pairs that the engine checks again per poll iteration because settings changed, so that
/// one session's thousands do not delay other sessions. The engine checks all of a session's,
/// because expedited packets of an endpoint may wait in any.
const HURRIED_PER_ITERATION: usize = 64;

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
        let Some(Some(endpoint)) = session.endpoints.get(number as usize) else { return Ok(()) };
        let queue_pair = endpoint.queue_pair;
        let Some(slot) = session.shapes.get_mut(number as usize) else { return Ok(()) };
        let mut set = slot.as_deref().map_or_else(Shaping::default, |shape| shape.set);
        change(&mut set, setting, value);
        self.now = clock_ns();
        let old = slot.as_deref().copied();
        let new = match &old {
            Some(old) => old.changed(set, self.now),
            None => Shape::new(set),
        };
        *slot = (set != Shaping::default()).then(|| Box::new(new));
        let takes_time = |shape: &Option<Shape>| usize::from(shape.is_some_and(|s| s.takes_time()));
        let now_takes = usize::from(slot.as_deref().is_some_and(Shape::takes_time));
        self.timed = self.timed + now_takes - takes_time(&old);
        session.queue_pairs[queue_pair as usize].note_shape(old.as_ref(), slot.as_deref());
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
        let Some(slot) = session.shapes.get_mut(number as usize) else { return Ok(()) };
        let Some(old) = slot.take() else { return Ok(()) };
        self.drop_shape(&old);
        session.queue_pairs[queue_pair as usize].note_shape(Some(&old), None);
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
        if session.closing {
            return Ok(());
        }
        let unit = session.queue_pairs[queue_pair as usize].unit;
        if self.schedule.someone_waits() {
            let (left, _) = &mut session.to_hurry;
            if *left == 0 {
                self.hurrying.push_back(key);
            }
            *left = session.queue_pairs.len() as u32;
        }
        if self.schedule.withdraw(unit) {
            self.activate(unit, session, queue_pair)?;
        }
        Ok(())
    }

    /// Returns `true` if queue pairs wait for another check because settings changed.
    pub(crate) fn is_hurrying(&self) -> bool {
        !self.hurrying.is_empty()
    }

    /// Makes waiting queue pairs due for another check, a few per poll iteration and each session
    /// in its turn. Returns how many.
    pub(crate) fn go_on_hurrying(&mut self, sessions: &mut SessionTable) -> usize {
        let mut work = 0;
        while work < HURRIED_PER_ITERATION
            && let Some(key) = self.hurrying.pop_front()
        {
            let Some(session) = sessions.get_mut(key) else { continue };
            let (left, mut next) = session.to_hurry;
            let count = left.min((HURRIED_PER_ITERATION - work) as u32);
            for _ in 0..count {
                self.schedule.hurry(session.queue_pairs[next as usize].unit);
                next = (next + 1) % session.queue_pairs.len() as u32;
            }
            session.to_hurry = (left - count, next);
            if left > count {
                self.hurrying.push_back(key);
            }
            work += count as usize;
        }
        work
    }
}
