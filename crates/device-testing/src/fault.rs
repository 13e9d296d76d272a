//! A wrapper that injects faults into a device's wire: frames lost, duplicated, out of order, late,
//! or with a flipped bit, or a whole direction stalled for a while.
//!
//! The wrapper works on frames as they are on the wire: it first completes partial checksums and
//! segments large packets. It keeps waiting frames in its own memory, so that later writes to the
//! original memory do not change them. With the same seed, the same sequence of frames meets the
//! same faults.

mod in_flight;
mod lane;
mod queue;
mod spec;

use towpath_device::{Capabilities, Device, DeviceError, DeviceQueue};

use crate::wrapped::{Opening, Wrap, Wrapped};
use queue::FaultQueue;

pub use lane::{FaultCounters, Injected};
pub use spec::{Faults, MAX_TIME_US, Spec, SpecError};

/// The wrapper, which shows one queue of the device.
pub type FaultDevice = Wrapped<Faulty>;

/// Makes a queue with faults.
pub struct Faulty {
    spec: Spec,
    counters: FaultCounters,
}

impl FaultDevice {
    /// Wraps a device none of whose queues is open.
    #[must_use]
    pub fn new(inner: Box<dyn Device>, spec: &Spec) -> FaultDevice {
        let counters = FaultCounters::default();
        let wrapped = Wrapped::around(inner, Faulty { spec: *spec, counters });
        wrapped.with_info(|info| {
            info.queues = 1;
            info.can = Capabilities {
                tx_in_place: true,
                tx_checksum: true,
                // A device that sends only from its pool leaves too few slots for a large packet's
                // segments.
                tx_segmentation: info.can.tx_in_place,
                tx_segmentation_ecn: info.can.tx_in_place,
                tx_to_host: info.can.tx_to_host,
                ..Capabilities::default()
            };
        })
    }

    /// Returns a handle that reports the faults, usable from any thread and after the device is
    /// dropped.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        self.wrap.counters.clone()
    }
}

impl Wrap for Faulty {
    fn wrap(
        &mut self,
        inner: Box<dyn DeviceQueue>,
        opening: Opening<'_>,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        Ok(Box::new(FaultQueue::new(inner, opening, &self.spec, &self.counters)?))
    }
}
