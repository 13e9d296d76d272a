//! Frames that the wrapped device is sending.

use std::io;
use std::sync::Arc;

use towpath_device::{
    Access, Completion, DeviceError, DeviceQueue, Dma, DmaError, Kick, Meta, Packet, Part,
    Registration, Space, SpaceId, Spaces,
};
use towpath_memory::Mapping;

use super::lane::{Lane, Place};

/// The maximum number of frames of one batch for the device.
const BATCH: usize = 64;

/// A device address at which nothing is mapped: drivers begin at the lowest addresses.
const ELSEWHERE: u64 = 0x7e_0000_0000;

/// Registers memory at a wrong address.
struct Misdirected;

impl Dma for Misdirected {
    fn register(&self, _: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        Ok(ELSEWHERE)
    }

    fn unregister(&self, _: u64) {}
}

/// Returns the space of a mapping at a wrong address.
pub(super) fn misdirected(mapping: &Arc<Mapping>) -> io::Result<Space> {
    let dma: Arc<dyn Dma> = Arc::new(Misdirected);
    let wrong = Registration::new(&dma, mapping, Access::Read).map_err(io::Error::other)?;
    Ok(Space::new(mapping.clone()).registered(Some(wrong)))
}

/// The slot of each frame in flight; the device's tokens are indices.
#[derive(Default)]
pub(super) struct FramesInFlight {
    /// The space of the slots at a wrong address.
    elsewhere: Option<SpaceId>,
    places: Vec<Option<Place>>,
    unused: Vec<u64>,
    done: Vec<Completion>,
}

impl FramesInFlight {
    pub(super) fn new(places: usize, elsewhere: Option<SpaceId>) -> FramesInFlight {
        FramesInFlight {
            elsewhere,
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
            let nowhere = Place { space: SpaceId(0), offset: 0 };
            let mut parts = [Part { space: SpaceId(0), offset: 0, len: 0 }; BATCH];
            let mut places = [nowhere; BATCH];
            let mut count = 0;
            for frame in lane.ready().take(self.unused.len().min(BATCH)) {
                let Place { space, offset } = frame.place;
                let space = self.elsewhere.filter(|_| frame.is_elsewhere).unwrap_or(space);
                parts[count] = Part { space, offset, len: frame.len };
                places[count] = frame.place;
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let last = self.unused.len() - 1;
            let packets: [Packet<'_>; BATCH] = std::array::from_fn(|at| Packet {
                parts: std::slice::from_ref(&parts[at]),
                meta: Meta::FULL,
                tag: None,
                token: if at < count { self.unused[last - at] } else { u64::MAX },
            });
            let taken = device.tx_submit(spaces, &packets[..count])?;
            for place in &places[..taken] {
                if let Some(token) = self.unused.pop() {
                    self.places[token as usize] = Some(*place);
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
