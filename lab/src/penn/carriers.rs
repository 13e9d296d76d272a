//! The carriers of the paper's PDUs: Towpath, and the kernel.

use std::time::Duration;

use super::crossing::{Crossing, Direction};
use crate::kernel_wire::KernelWire;
use crate::messages::{self, Amount, Moved};
use crate::process::Process;

/// The paper's PDUs.
pub(super) const PDUS: [usize; 3] = [48, 4800, 48_000];
/// The rate of the paper's link.
pub(super) const LINK_BITS_PER_S: f64 = 135e6;

/// The carriers of PDUs.
pub(super) struct Carriers<'a> {
    pub(super) process: &'a Process,
    pub(super) crossing: Crossing,
    pub(super) wire: &'a KernelWire,
    /// The cores where the kernel has a thread for each side; `None`: both sides in one thread.
    pub(super) cores: Option<(usize, usize)>,
}

impl Carriers<'_> {
    pub(super) fn carry(
        &mut self,
        ours: bool,
        pdu_bytes: usize,
        window: Duration,
        rate: Option<f64>,
    ) -> anyhow::Result<Moved> {
        let amount = Amount::Time(window);
        if !ours {
            return match self.cores {
                Some(cores) => messages::udp(self.wire, cores, pdu_bytes, amount, rate),
                None => messages::udp_alone(self.wire, pdu_bytes, amount, rate),
            };
        }
        self.process.resume()?;
        let moved = self.crossing.run(Direction::Writing, pdu_bytes, amount, rate);
        self.process.pause()?;
        moved
    }
}
