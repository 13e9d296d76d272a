//! The link of a switch's host.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_stack::{Meta, Offload};

use super::state::{MTU, Shared};
use crate::lock::lock;
use crate::{Armed, Link, LinkError, LinkInfo};

/// A host's connection with a switch.
pub(super) struct SwitchLink {
    pub(super) shared: Arc<Shared>,
    /// The index of the host's port.
    pub(super) index: usize,
    pub(super) doorbell: Arc<OwnedFd>,
    /// The ports that were sent frames and that are yet to be notified.
    pub(super) told: Vec<usize>,
    /// The host's notifications when the present round began.
    pub(super) notified: u64,
}

impl Drop for SwitchLink {
    fn drop(&mut self) {
        lock(&self.shared.state).ports[self.index].close();
    }
}

impl Link for SwitchLink {
    fn info(&self) -> LinkInfo {
        let mac = [2, 0, 0, 0, 0, self.index as u8 + 1].into();
        LinkInfo { mac, mtu: MTU, offload: Offload::default() }
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        self.doorbell.try_clone()
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        self.notified = self.shared.state().ports[self.index].notified;
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let mut state = self.shared.state();
        let arrived = &mut state.ports[self.index].arrived;
        let count = arrived.len().min(budget);
        let frames: Vec<_> = arrived.drain(..count).collect();
        drop(state);
        frames.iter().for_each(|frame| take(frame, Meta::FULL));
        Ok(count)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        Ok(Some(!self.shared.state().ports[self.index].arrived.is_empty()))
    }

    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, _: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut frame = vec![0; len];
        fill(&mut frame);
        let mut state = self.shared.state();
        for to in state.receivers(&frame).filter(|to| *to != self.index) {
            state.send(self.index, to, frame.clone());
            if !self.told.contains(&to) {
                self.told.push(to);
            }
        }
        true
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let mut state = self.shared.state();
        self.told.drain(..).for_each(|to| state.ports[to].notify());
        Ok(())
    }

    fn lost(&self) -> u64 {
        self.shared.state().ports[self.index].overflowed
    }

    fn arm(&mut self, _: bool) -> Result<Armed, LinkError> {
        let mut state = self.shared.state();
        let port = &mut state.ports[self.index];
        if !port.arrived.is_empty() {
            return Ok(Armed::Work);
        }
        port.rested = self.notified;
        self.shared.rested.notify_all();
        Ok(Armed::Sleep { writable: false })
    }

    fn disarm(&mut self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
    }
}
