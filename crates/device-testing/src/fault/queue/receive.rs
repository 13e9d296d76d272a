//! The receive side of the wrapper: frames from the device into its lane, and from there into pool
//! buffers.

use std::time::Instant;

use towpath_device::{DeviceError, Kick, Meta, Part, Received, Spaces};
use towpath_packet::offload::MAX_SEGMENTS;
use towpath_packet::segment::complete_into;

use super::super::lane::{Frame, Place};
use super::{BATCH, FaultQueue};

impl FaultQueue {
    /// Returns the slots that one packet from the device may need: two for each segment.
    pub(super) fn places_to_fetch(&self) -> usize {
        if self.inner_can.rx_offload { 2 * MAX_SEGMENTS } else { 2 }
    }

    /// Returns the number of pool buffers that the waiting frames need at most.
    pub(super) fn needed(&self) -> usize {
        self.rx.waiting() * self.frame_buffers
    }

    /// Returns the first frame that may go now, if there are pool buffers for it, and their number.
    pub(super) fn next_deliverable(&self) -> Option<(Frame, usize)> {
        let frame = self.rx.next()?;
        let buffers = (frame.len as usize).div_ceil(self.data_bytes);
        (buffers <= self.empty.len()).then_some((frame, buffers))
    }

    /// Copies a frame into as many pool buffers as it takes. Returns `false` if the server removed
    /// their memory; the wrapper drops the buffers then.
    pub(super) fn hand_up(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        frame: Frame,
        count: usize,
    ) -> bool {
        let Place { space, offset } = frame.place;
        let part = Part { space, offset, len: frame.len };
        let bytes = self.assembly.assemble(spaces, &[part]).unwrap_or_default();
        let before = out.len();
        let mut copied = bytes.len() == frame.len as usize;
        let buffers = self.empty.drain(..count);
        for ((space, buffer), piece) in buffers.zip(bytes.chunks(self.data_bytes)) {
            let offset = buffer + self.headroom;
            copied &= spaces.copy_in(space, offset, piece).is_ok();
            let one = Received::whole(space, buffer, offset, piece.len() as u32, Meta::FULL);
            out.push(Received { continues: out.len() + 1 - before < count, ..one });
        }
        self.rx.free.push(frame.place);
        if !copied {
            out.truncate(before);
            self.counters.rx_dropped += 1;
        }
        copied
    }

    /// Fetches frames from the device, segments and stores them.
    pub(super) fn fetch(
        &mut self,
        spaces: &mut Spaces,
        budget: usize,
        now: Instant,
    ) -> Result<(), DeviceError> {
        let most = self.places_to_fetch();
        let mut left = budget;
        while left > 0 {
            let mut batch = (self.rx.free.len() / most).min(BATCH).min(left);
            if batch == 0 {
                if !self.rx.is_stalled() {
                    return Ok(());
                }
                // A stalled wire does not make the other side wait: it loses frames.
                batch = 1;
            }
            self.received.clear();
            let got = self.inner.rx_poll(spaces, &mut self.received, batch)?;
            left -= got.min(left);
            for buffers in Received::packets(&self.received) {
                self.empty.extend(buffers.iter().map(|one| (one.space, one.buffer)));
                let rx = &mut self.rx;
                let Some((packet, meta)) = self.assembly.received(spaces, buffers) else {
                    self.counters.rx_dropped += 1;
                    continue;
                };
                let mut fits = true;
                let finished = complete_into(packet, &meta, &mut self.scratch, |bytes| {
                    fits &= rx.admit(spaces, bytes, now);
                });
                if finished.is_err() || !fits {
                    self.counters.rx_dropped += 1;
                }
            }
            if got < batch {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Provides the device with the empty buffers that no waiting frame needs.
    pub(super) fn release(&mut self, spaces: &mut Spaces) -> Result<(), DeviceError> {
        let before = self.empty.len();
        while self.empty.len() > self.needed().max(self.spare) {
            let Some(&(space, buffer)) = self.empty.back() else { break };
            if self.inner.rx_fill(spaces, space, &[buffer]) == 0 {
                break;
            }
            self.empty.pop_back();
        }
        if self.empty.len() < before { self.inner.kick(spaces, Kick::Rx) } else { Ok(()) }
    }
}
