//! Frames that the wrapped device is sending.

use super::lane::{Lane, Place};
use crate::{Completion, DeviceError, DeviceQueue, Kick, Meta, Packet, Part, SpaceId, Spaces};

/// The maximum number of frames of one batch for the device.
const BATCH: usize = 64;

/// The slot of each frame in flight; the device's tokens are indices.
#[derive(Default)]
pub(super) struct InFlight {
    places: Vec<Option<Place>>,
    unused: Vec<u64>,
    done: Vec<Completion>,
}

impl InFlight {
    pub(super) fn new(places: usize) -> InFlight {
        InFlight {
            places: vec![None; places],
            unused: (0..places as u64).collect(),
            done: Vec::with_capacity(BATCH),
        }
    }

    /// Fetches the device's tokens, and frees their slots.
    pub(super) fn collect(
        &mut self,
        device: &mut dyn DeviceQueue,
        lane: &mut Lane,
    ) -> Result<(), DeviceError> {
        loop {
            self.done.clear();
            if device.tx_complete(&mut self.done, BATCH)? == 0 {
                return Ok(());
            }
            for Completion { token, .. } in self.done.iter().copied() {
                let place = self.places.get_mut(token as usize).and_then(Option::take);
                if let Some(place) = place {
                    lane.free.push(place);
                    self.unused.push(token);
                }
            }
        }
    }

    /// Submits the frames that may go to the device.
    pub(super) fn push(
        &mut self,
        device: &mut dyn DeviceQueue,
        lane: &mut Lane,
        spaces: &mut Spaces,
    ) -> Result<(), DeviceError> {
        loop {
            let mut parts = [Part { space: SpaceId(0), offset: 0, len: 0 }; BATCH];
            let mut count = 0;
            for frame in lane.ready().take(self.unused.len().min(BATCH)) {
                let Place { space, offset } = frame.place;
                parts[count] = Part { space, offset, len: frame.len };
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let last = self.unused.len() - 1;
            let packets: [Packet<'_>; BATCH] = std::array::from_fn(|at| Packet {
                parts: std::slice::from_ref(&parts[at]),
                meta: Meta::FULL,
                token: if at < count { self.unused[last - at] } else { u64::MAX },
            });
            let taken = device.tx_submit(spaces, &packets[..count])?;
            for part in &parts[..taken] {
                if let Some(token) = self.unused.pop() {
                    let place = Place { space: part.space, offset: part.offset };
                    self.places[token as usize] = Some(place);
                }
            }
            lane.gone(taken);
            device.kick(spaces, Kick::Tx)?;
            self.collect(device, lane)?;
            if taken < count {
                return Ok(());
            }
        }
    }
}
