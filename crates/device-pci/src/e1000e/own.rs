//! The second hardware queue, which a session has to itself.
//!
//! The device chooses a queue by a hash alone, and never by a flow. So while the session is alone, all
//! packets of IP go into its queue, and while it is not, none does: the engine's queue receives them. The
//! device reaches the session's memory through the IOMMU, until the queue is closed.

use std::io;
use std::sync::Arc;

use towpath_device::{
    Access, DeviceError, Dma, HardwareQueue, Info, OpenedOwnQueue, OwnMemory, OwnQueueError,
    OwnQueueLimits, OwnQueues, PacketMemory, Registration,
};
use towpath_memory::Region;
use towpath_queue::descriptor::HEADROOM_BYTES;

use super::card::{Card, OWN_QUEUE};
use super::ledger::{Header, Opened, RingLedger};
use super::memory::SharedRings;
use super::options::Options;
use super::queue::{E1000eQueue, Owner, QueueParts, RX_BUFFER_BYTES};
use crate::dma::{OfSessions, PciDma};
use crate::interrupt::Interrupt;

/// The longest distance between two receive buffers, in bytes.
const MOST_BUFFER_BYTES: u32 = 1 << 16;

/// Returns what a card that was opened with these options can give a session to itself.
pub(super) fn limits(options: &Options) -> Result<OwnQueueLimits, OwnQueueError> {
    options.check_own_queue()?;
    let least = RX_BUFFER_BYTES as u32 + HEADROOM_BYTES;
    let queues = OWN_QUEUE..OWN_QUEUE + 1;
    Ok(OwnQueueLimits { queues, buffer_bytes: least..=MOST_BUFFER_BYTES, takes_all: true })
}

/// Opens the hardware queue for sessions, one after the other.
pub(super) struct Opener {
    pub(super) info: Info,
    pub(super) card: Arc<Card>,
    pub(super) dma: Arc<PciDma>,
}

impl OwnQueues for Opener {
    fn open(&self, _: HardwareQueue, memory: &OwnMemory) -> Result<OpenedOwnQueue, DeviceError> {
        let dma: Arc<dyn Dma> = Arc::new(OfSessions(self.dma.clone()));
        let register = |what, mapping| {
            Registration::new(&dma, mapping, Access::ReadWrite).map_err(self.info.failed(what))
        };
        let registration = register("registering a session's memory", &memory.mapping)?;
        let failed = |cause: io::Error| self.info.failed("memory for a session's rings")(cause);
        let (shared, _) = SharedRings::new().map_err(failed)?;
        let rings = register("registering a session's rings", &shared.mapping)?;
        let discard = Region::private(RX_BUFFER_BYTES).map_err(failed)?;
        let discard = register("registering a buffer of a session's queue", discard.mapping())?;
        // No next server goes on with this queue.
        let opened = Opened { mtu: self.info.mtu, has_one_interrupt: false };
        let packets = PacketMemory::default();
        let header = Header { mac: self.info.mac, opened, packets, memories: [(0, 0); 2] };
        let (ledger, _) = RingLedger::new(&header).map_err(failed)?;
        let interrupt = self.card.queue_interrupts()[OWN_QUEUE as usize].clone();
        let interrupt = Interrupt::new(interrupt);
        let (info, card, index) = (self.info.clone(), self.card.clone(), OWN_QUEUE);
        let parts = info.limits.tx_packet_parts;
        let owner = Owner::Session { discard };
        let queue = QueueParts { index, owner, info, card, shared, rings, ledger, interrupt };
        Ok((Box::new(E1000eQueue::start(queue)), registration, parts))
    }

    /// The engine's queue receives all packets without a session's.
    fn take_back(&self, hardware: u32) -> Result<HardwareQueue, DeviceError> {
        Ok(HardwareQueue::new(hardware, Box::new(())))
    }
}
