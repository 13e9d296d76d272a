//! The Intel 82574L, which Linux's driver e1000e drives.
//!
//! | part | is |
//! |---|---|
//! | [`E1000eDevice`] | the control part: link, filters, events |
//! | `options`, `open` | how a card is opened, anew or after an earlier server |
//! | `card`, `filters` | the device as a whole: reset, start and stop; which packets it receives |
//! | `interrupts`, `rss` | how the card interrupts, and chooses a packet's queue |
//! | `queue` | the data part: kicks, sleep, packets |
//! | `memory`, `ring`, `descriptor` | the memory that the device shares, a ring in it, the bits of the ring's entries |
//! | `own` | the queue that a session has to itself |
//! | `going_on`, `ledger` | what an earlier server left running, and which buffers the device had |
//! | `packets` | packets in the transmit ring |
//! | `statistics` | the registers that count |
//! | `names` | registers and their bits |
//!
//! Registers and sequences follow Linux's driver (drivers/net/ethernet/intel/e1000e), not the data sheet. The
//! driver has run only on QEMU's model (hw/net/e1000e_core.c).

mod card;
mod descriptor;
mod filters;
mod going_on;
mod interrupts;
mod ledger;
mod memory;
mod names;
mod open;
mod options;
mod own;
mod packets;
mod queue;
mod ring;
mod rss;
mod statistics;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_device::{
    Access, Capabilities, Device, DeviceError, DeviceQueue, Dma, EarlierObjects, Event, Filter,
    FilterError, FlowRule, Info, Keeper, Limits, OwnQueueError, OwnQueueLimits, OwnQueues,
    PacketMemory, Registration, Spaces, TakeOver, TxHeadroom, addresses_in, longest_frame,
};

use super::dma::PciDma;
use super::error::PciError;
use super::events::CardEvents;
use super::interrupt::Interrupt;
use super::vfio::{Vfio, outlives_its_server};
use card::{Card, OWN_QUEUE};
use descriptor::MOST_PARTS;
use going_on::{Files, GoingOn};
use ledger::{Header, Opened, RingLedger};
use memory::{RING_ENTRIES, SharedRings};
use open::{LINK_INTERRUPT, NUMBERS, OpenCard, QUEUE_INTERRUPTS, REMOVAL, begin_anew, open_after};
pub use options::{MOST_DELAY_USECS, MOST_QUEUES, MOST_USECS, MTU, Moderation, Options};
use queue::{E1000eQueue, Owner, Position, QueueParts, RX_BUFFER_BYTES};

/// Returns `true` if the driver knows the card with these vendor and device numbers.
#[must_use]
pub fn is_supported(vendor: u16, device: u16) -> bool {
    (vendor, device) == NUMBERS
}

/// What fails without memory for the rings.
const RINGS: &str = "memory for its rings";

/// An 82574L.
pub struct E1000eDevice {
    info: Info,
    vfio: Arc<Vfio>,
    card: Arc<Card>,
    dma: Arc<PciDma>,
    events: CardEvents,
    keeper: Option<Arc<dyn Keeper>>,
    own_queue: Result<OwnQueueLimits, OwnQueueError>,
    /// The running queues of an earlier server, until they are opened.
    going_on: Vec<Option<GoingOn>>,
    opened: Opened,
    /// The sizes of the memory that the engine has asked for last.
    packets: PacketMemory,
    warnings: Vec<String>,
}

impl std::fmt::Debug for E1000eDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000eDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

impl E1000eDevice {
    /// Opens a card that `vfio-pci` has, and resets it. The card receives nothing before it
    /// has a filter.
    ///
    /// # Errors
    /// See [`PciError`].
    pub fn open(options: &Options) -> Result<E1000eDevice, PciError> {
        E1000eDevice::open_after(options, &EarlierObjects::default())
    }

    /// Opens a card as [`E1000eDevice::open`] does, after an earlier server. If that one left the card
    /// running, this one goes on with it: no packet is lost, and filters stay until
    /// [`Device::take_over`]. If that is impossible, the card is reset; [`E1000eDevice::warnings`] says so if an
    /// error is the reason.
    ///
    /// # Errors
    /// See [`PciError`].
    pub fn open_after(
        options: &Options,
        earlier: &EarlierObjects,
    ) -> Result<E1000eDevice, PciError> {
        let OpenCard { vfio, card, dma, events, going_on, opened, warnings } =
            open_after(options, earlier)?;
        Ok(E1000eDevice {
            info: info(options, card.own_address()),
            own_queue: own::limits(options),
            vfio,
            card: Arc::new(card),
            dma: Arc::new(dma),
            events,
            keeper: None,
            going_on: going_on.into_iter().map(Some).collect(),
            opened,
            packets: PacketMemory::default(),
            warnings,
        })
    }

    /// Returns what the operator should know.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the keeper, if a next server can go on with the card.
    fn keeper(&self) -> Option<&Arc<dyn Keeper>> {
        self.keeper.as_ref().filter(|_| outlives_its_server())
    }

    /// Starts the card with empty rings, which a keeper holds.
    fn start_queue(&mut self, index: usize) -> Result<E1000eQueue, DeviceError> {
        self.card.reset_if_stopped().map_err(self.info.failed("a reset"))?;
        let (shared, rings) = SharedRings::new().map_err(self.info.failed(RINGS))?;
        let registration = self.register(&shared)?;
        // The engine has just registered the queue's memory of packets, and then this driver the rings.
        let memories = self.dma.own_memories();
        let memories = memories.last_chunk().copied().unwrap_or_default();
        let (mac, opened, packets) = (self.info.mac, self.opened, self.packets);
        let header = Header { mac, opened, packets, memories };
        let (ledger, ledger_file) = RingLedger::new(&header).map_err(self.info.failed(RINGS))?;
        if let Some(keeper) = self.keeper() {
            let files = Files { rings, ledger: ledger_file };
            files.replace(&**keeper, index as u32).map_err(self.info.failed(RINGS))?;
            self.card.set_kept();
        }
        Ok(E1000eQueue::start(self.parts(index, shared, registration, ledger)))
    }

    /// Goes on with the queue of an earlier server.
    fn go_on(&mut self, index: usize, going_on: GoingOn) -> Result<E1000eQueue, DeviceError> {
        let GoingOn { shared, ledger, files, memory, rx_tail, tx_tail, buffers, drops, .. } =
            going_on;
        let registration = self.register(&shared)?;
        if let Some(keeper) = self.keeper() {
            let held = files.hold_again(&**keeper, index as u32, memory.as_fd());
            held.map_err(self.info.failed(RINGS))?;
            self.card.set_kept();
        }
        let parts = self.parts(index, shared, registration, ledger);
        Ok(E1000eQueue::go_on(parts, Position { rx_tail, tx_tail, buffers, drops }))
    }

    fn register(&self, shared: &SharedRings) -> Result<Registration, DeviceError> {
        let dma: Arc<dyn Dma> = self.dma.clone();
        Registration::new(&dma, &shared.mapping, Access::ReadWrite).map_err(self.info.failed(RINGS))
    }

    fn parts(
        &self,
        index: usize,
        shared: SharedRings,
        rings: Registration,
        ledger: RingLedger,
    ) -> QueueParts {
        let (info, card) = (self.info.clone(), self.card.clone());
        let interrupt = Interrupt::new(card.queue_interrupts()[index].clone());
        QueueParts {
            index: index as u32,
            owner: Owner::Engine,
            info,
            card,
            shared,
            rings,
            ledger,
            interrupt,
        }
    }
}

fn info(options: &Options, mac: [u8; 6]) -> Info {
    let can = Capabilities {
        tx_in_place: true,
        tx_checksum: true,
        tx_segmentation: options.segmentation,
        tx_tag: true,
        tx_asynchronous: true,
        ..Capabilities::default()
    };
    let frame_bytes = longest_frame(options.mtu);
    let limits = Limits {
        rx_packet_buffers: frame_bytes.div_ceil(RX_BUFFER_BYTES),
        rx_ring: RING_ENTRIES as usize - 1,
        tx_ring: RING_ENTRIES as usize - 1,
        tx_packet_parts: MOST_PARTS,
        tx_headroom: TxHeadroom::None,
        ..Limits::new(RX_BUFFER_BYTES)
    };
    let name = options.address.to_string();
    let rx_queue_packets = limits.rx_ring / limits.rx_packet_buffers;
    let queues = options.queues();
    Info { name, mac, mtu: options.mtu, can, queues, limits, rx_queue_packets }
}

impl Device for E1000eDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let interrupts = self.card.queue_interrupts();
        let interrupt = interrupts.get(index).filter(|_| index < self.info.queues);
        // An open queue has the other reference.
        let is_open = interrupt.is_some_and(|interrupt| Arc::strong_count(interrupt) > 1);
        if interrupt.is_none() || is_open {
            return Err(DeviceError::no_queue(&self.info.name, is_open));
        }
        let queue = match self.going_on.get_mut(index).and_then(Option::take) {
            Some(going_on) => self.go_on(index, going_on)?,
            None => self.start_queue(index)?,
        };
        Ok(Box::new(queue))
    }

    fn dma(&self) -> Option<Arc<dyn Dma>> {
        Some(self.dma.clone())
    }

    fn own_queue_limits(&self) -> Result<OwnQueueLimits, OwnQueueError> {
        self.own_queue.clone()
    }

    fn own_queues(&self) -> Option<Box<dyn OwnQueues>> {
        self.own_queue.as_ref().ok()?;
        let (info, card, dma) = (self.info.clone(), self.card.clone(), self.dma.clone());
        Some(Box::new(own::Opener { info, card, dma }))
    }

    /// The card receives all packets of IP in a session's own queue or none, whatever their flow.
    fn own_flow(&mut self, _: &FlowRule, _hardware: u32) -> Result<(), FilterError> {
        Ok(())
    }

    fn direct(&mut self, hardware: Option<u32>) {
        if self.own_queue.is_ok() {
            self.card.direct(hardware == Some(OWN_QUEUE));
        }
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        match filter {
            Filter::Address(address) => {
                return if self.card.add_address(*address) {
                    Ok(())
                } else {
                    Err(FilterError::Full)
                };
            }
            Filter::AllGroups => self.card.receive_groups(true),
            Filter::Everything => self.card.receive_everything(true),
            _ => return Err(FilterError::Unsupported),
        }
        Ok(())
    }

    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.card.would_have_room(addresses_in(wanted), addresses_in(removed))
    }

    fn remove_filter(&mut self, filter: &Filter) {
        match filter {
            Filter::Address(address) => self.card.remove_address(*address),
            Filter::AllGroups => self.card.receive_groups(false),
            Filter::Everything => self.card.receive_everything(false),
            _ => {}
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.fd())
    }

    fn take_event(&mut self) -> Option<Event> {
        let card = &self.card;
        let is_up = || {
            card.interrupts.enable_link(&card.registers);
            Some(card.is_link_up())
        };
        self.events.take(card.link_interrupt(), || card.is_gone(), is_up)
    }

    fn set_keeper(&mut self, keeper: Arc<dyn Keeper>) {
        self.keeper = Some(keeper);
    }

    /// If one of the queues has not the memory that the engine wants, the card is reset.
    fn earlier_memory(
        &mut self,
        queue: usize,
        memory: PacketMemory,
    ) -> io::Result<Option<OwnedFd>> {
        self.packets = memory;
        let fit = self.going_on.iter().flatten().map(|one| one.has_memory(memory));
        let fit: io::Result<Vec<bool>> = fit.collect();
        if fit?.contains(&false) {
            self.going_on.clear();
            begin_anew(&self.vfio, &self.card, &self.dma).map_err(io::Error::other)?;
        }
        let going_on = self.going_on.get(queue).and_then(Option::as_ref);
        going_on.map(|one| one.memory.try_clone()).transpose()
    }

    fn take_over(&mut self) -> Option<TakeOver> {
        let card = self.card.clone();
        Some(Box::new(move || {
            card.remove_left_filters();
            Ok(())
        }))
    }

    fn statistics(&mut self) -> Vec<(&'static str, u64)> {
        self.card.statistics()
    }

    fn leave(&mut self) {
        self.card.leave();
    }

    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let mut objects = self.vfio.objects();
        if !objects.is_empty() {
            let queues = self.card.queue_interrupts().iter().map(|event| event.as_fd());
            objects.extend(QUEUE_INTERRUPTS.into_iter().zip(queues));
            objects.extend([
                (LINK_INTERRUPT, self.card.link_interrupt().as_fd()),
                (REMOVAL, self.events.removal.as_fd()),
            ]);
        }
        objects
    }
}

/// Stops the card, so that it accesses no memory any more, and raises no interrupt while the kernel removes the
/// vectors; unless the next server goes on with it.
impl Drop for E1000eDevice {
    fn drop(&mut self) {
        if self.going_on.first().is_some_and(Option::is_some) {
            // The server does not start, and has opened no queue: the next one finds the card as this one did.
            self.card.set_kept();
            self.card.leave();
        }
        self.card.leave_in_panic();
        if self.card.leaves() {
            return;
        }
        self.card.stop();
        let _ = self.vfio.set_bus_master(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_at_most_as_many_buffers_as_its_bytes_need() {
        let address = "0000:00:03.0".parse().unwrap();
        let info = |mtu| info(&Options { mtu, ..Options::new(address) }, [2; 6]);
        for (mtu, buffers, packets) in [(1500, 1, 511), (9000, 5, 102)] {
            let info = info(mtu);
            assert_eq!((info.limits.rx_packet_buffers, info.rx_queue_packets), (buffers, packets));
        }
    }
}
