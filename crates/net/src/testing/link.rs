//! The link of a switch's host.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use towpath_stack::{Meta, Offload};

use super::doorbell::Doorbell;
use super::state::{Shared, State};
use crate::lock::lock;
use crate::{Armed, Link, LinkError, LinkInfo};

/// A host's connection with a switch.
pub(super) struct SwitchLink {
    pub(super) shared: Arc<Shared>,
    /// The index of the host's port.
    pub(super) index: usize,
    pub(super) mtu: usize,
    pub(super) doorbell: Arc<Doorbell>,
    /// `true` if the doorbell's timer is set.
    pub(super) has_timer: bool,
    /// The ports that were sent frames and that are yet to be notified.
    pub(super) told: Vec<usize>,
    /// The host's notifications when the present round began.
    pub(super) notified: u64,
}

impl SwitchLink {
    /// Passes the frames that have arrived by now to the host's port.
    ///
    /// # Errors
    /// If the test has ended the link.
    fn pass(&self, state: &mut State) -> Result<u64, LinkError> {
        let now = self.shared.now();
        state.pass(self.index, now);
        match state.ports[self.index].lost {
            Some(reason) => Err(reason.into()),
            None => Ok(now),
        }
    }
}

impl Drop for SwitchLink {
    fn drop(&mut self) {
        lock(&self.shared.state).ports[self.index].close();
    }
}

impl Link for SwitchLink {
    fn info(&self) -> LinkInfo {
        let mac = [2, 0, 0, 0, 0, self.index as u8 + 1].into();
        LinkInfo { mac, mtu: self.mtu, offload: Offload::default() }
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        self.doorbell.descriptor()
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        let mut state = self.shared.state();
        self.pass(&mut state)?;
        self.notified = state.ports[self.index].notified;
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let mut state = self.shared.state();
        self.pass(&mut state)?;
        let arrived = &mut state.ports[self.index].arrived;
        let count = arrived.len().min(budget);
        let frames: Vec<_> = arrived.drain(..count).collect();
        drop(state);
        frames.iter().for_each(|frame| take(frame, Meta::FULL));
        Ok(count)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        let mut state = self.shared.state();
        self.pass(&mut state)?;
        Ok(Some(!state.ports[self.index].arrived.is_empty()))
    }

    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, _: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut frame = vec![0; len];
        fill(&mut frame);
        let mut state = self.shared.state();
        // The next call that may fail returns the error; the frame is lost like one on its way.
        let Ok(now) = self.pass(&mut state) else { return true };
        let Some(at) = state.enter(self.index, now, &frame) else { return true };
        for to in state.receivers(&frame).filter(|to| *to != self.index) {
            state.send(self.index, to, frame.clone(), at, now);
            if !self.told.contains(&to) {
                self.told.push(to);
            }
        }
        true
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let mut state = self.shared.state();
        self.told.drain(..).for_each(|to| state.ports[to].notify());
        self.pass(&mut state).map(|_| ())
    }

    fn lost(&self) -> u64 {
        self.shared.state().ports[self.index].overflowed
    }

    fn arm(&mut self, _: bool) -> Result<Armed, LinkError> {
        let mut state = self.shared.state();
        let now = self.pass(&mut state)?;
        let port = &mut state.ports[self.index];
        if !port.arrived.is_empty() {
            return Ok(Armed::Work);
        }
        port.rested = self.notified;
        let due = port.next_frame();
        self.shared.rested.notify_all();
        drop(state);
        if due.is_some() || self.has_timer {
            self.has_timer = due.is_some();
            let left = due.map(|due| Duration::from_nanos(due.saturating_sub(now)));
            self.doorbell.set_timer(left)?;
        }
        Ok(Armed::Sleep { writable: false })
    }

    fn disarm(&mut self) {
        self.doorbell.clear();
    }
}
