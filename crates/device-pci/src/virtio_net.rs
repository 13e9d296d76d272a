//! Virtio network cards with the modern interface (virtio 1.2, sections 4.1 and 5.1), behind an IOMMU.
//!
//! | part | is |
//! |---|---|
//! | [`VirtioNetDevice`] | the control part: link, filters, events |
//! | `structures` | where the card has its registers |
//! | `card` | the device as a whole: reset, features, virtqueues, start and stop |
//! | `filters`, `control` | which packets it receives, and the commands that say so |
//! | `queue` | the data part: kicks, sleep, packets |
//! | `memory`, `ring` | the memory that the device shares, and a virtqueue in it |
//! | `packets` | packets in the transmit ring |
//! | `names` | registers, bits and numbers |
//!
//! The driver uses no offloads, and has run only on QEMU's model (hw/net/virtio-net.c).

mod card;
mod control;
mod filters;
mod memory;
mod names;
mod packets;
mod queue;
mod ring;
mod structures;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_device::{
    Access, Capabilities, Device, DeviceError, DeviceQueue, Dma, Event, Filter, FilterError, Info,
    Limits, Registration, Spaces, TxHeadroom, addresses_in, longest_frame,
};
use vfio_bindings::bindings::vfio::{VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX};

use super::address::PciAddress;
use super::dma::PciDma;
use super::error::PciError;
use super::events::CardEvents;
use super::interrupt::Interrupt;
use super::signals::{new_eventfd, signal};
use super::vfio::Vfio;
use card::Card;
use control::Control;
use memory::SharedRings;
use packets::MOST_PARTS;
use queue::{HEADROOM_BYTES, QueueParts, VirtioNetQueue};
use ring::MOST_ENTRIES;
use structures::Structures;

/// The vendor and device numbers of a modern network card (4.1.2).
const NUMBERS: (u16, u16) = (names::VENDOR, names::NETWORK_CARD);

/// The MTUs that the driver takes, in bytes: each packet is in one buffer.
pub const MTU: std::ops::RangeInclusive<usize> = 68..=9_000;

/// Options to open a card.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The card.
    pub address: PciAddress,
    /// The largest IP packet, in bytes, in [`MTU`].
    pub mtu: usize,
}

impl Options {
    /// Returns the options of a card, with an MTU of 1 500 bytes.
    #[must_use]
    pub fn new(address: PciAddress) -> Options {
        Options { address, mtu: 1500 }
    }
}

/// Returns `true` if the driver knows the card with these vendor and device numbers.
#[must_use]
pub fn is_supported(vendor: u16, device: u16) -> bool {
    (vendor, device) == NUMBERS
}

/// What fails without memory for the rings.
const RINGS: &str = "memory for its rings";

/// A virtio card.
pub struct VirtioNetDevice {
    info: Info,
    vfio: Arc<Vfio>,
    card: Arc<Card>,
    dma: Arc<PciDma>,
    /// The kernel signals it at each interrupt of the queue.
    queue_interrupt: Arc<OwnedFd>,
    events: CardEvents,
}

impl std::fmt::Debug for VirtioNetDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtioNetDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

impl VirtioNetDevice {
    /// Opens a card that `vfio-pci` has, and resets it. The card receives nothing before it has a filter; one that
    /// does not filter receives everything.
    ///
    /// # Errors
    /// See [`PciError`].
    pub fn open(options: &Options) -> Result<VirtioNetDevice, PciError> {
        let address = options.address;
        let vfio = Vfio::open(address)?;
        // No access of memory before the card is reset: an earlier process may have left it running.
        vfio.set_bus_master(false).map_err(vfio.refused("keeping it from memory"))?;
        vfio.check_numbers(NUMBERS, "modern virtio network cards (1af4:1041)")?;
        let structures = Structures::map(&vfio);
        let structures = structures.map_err(vfio.refused("finding its registers"))?;
        let eventfd = || new_eventfd().map_err(vfio.refused("making an eventfd"));
        let (queue_interrupt, link, removal) = (eventfd()?, eventfd()?, eventfd()?);
        let vectors = [queue_interrupt.as_fd(), queue_interrupt.as_fd(), link.as_fd()];
        let interrupts = vfio.set_interrupts(VFIO_PCI_MSIX_IRQ_INDEX, &vectors);
        interrupts.map_err(vfio.refused("setting its interrupts"))?;
        // The driver also serves a card whose removal the kernel does not announce.
        let _ = vfio.set_interrupts(VFIO_PCI_REQ_IRQ_INDEX, &[removal.as_fd()]);
        let events = CardEvents::new(link.as_fd(), removal);
        let events = events.map_err(vfio.refused("making an epoll instance"))?;
        let card = Card::new(structures, address, link);
        card.reset()?;
        let mac = card.own_address()?;
        let vfio = Arc::new(vfio);
        let dma = PciDma::new(vfio.clone());
        let dma = dma.map_err(vfio.refused("asking for its address space"))?;
        vfio.set_bus_master(true).map_err(vfio.refused("letting it access memory"))?;
        Ok(VirtioNetDevice {
            info: info(options, mac),
            vfio,
            card: Arc::new(card),
            dma: Arc::new(dma),
            queue_interrupt: Arc::new(queue_interrupt),
            events,
        })
    }

    /// Starts the card with empty rings.
    fn start_queue(&mut self) -> Result<VirtioNetQueue, DeviceError> {
        let shared = SharedRings::new().map_err(self.info.failed(RINGS))?;
        let dma: Arc<dyn Dma> = self.dma.clone();
        let rings = Registration::new(&dma, &shared.mapping, Access::ReadWrite)
            .map_err(self.info.failed(RINGS))?;
        let (rx, tx, control) = control::take_apart(shared);
        self.card.use_control(Control::new(control, rings.clone()));
        let (info, card) = (self.info.clone(), self.card.clone());
        let interrupt = Interrupt::new(self.queue_interrupt.clone());
        let mut queue = VirtioNetQueue::new(QueueParts { info, card, rx, tx, rings, interrupt });
        queue.start()?;
        Ok(queue)
    }

    /// Changes the filters by a function that returns `false` if there is no room.
    fn change_filters(
        &self,
        change: impl FnOnce(&mut filters::Filters) -> bool,
    ) -> Result<(), FilterError> {
        match self.card.change_filters(change) {
            None => Err(FilterError::Unsupported),
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => Err(FilterError::Full),
            Some(Err(cause)) => Err(FilterError::Failed(cause)),
        }
    }
}

fn info(options: &Options, mac: [u8; 6]) -> Info {
    let can = Capabilities { tx_in_place: true, tx_asynchronous: true, ..Capabilities::default() };
    let limits = Limits {
        rx_headroom_bytes: HEADROOM_BYTES,
        rx_ring: MOST_ENTRIES.into(),
        tx_ring: MOST_ENTRIES.into(),
        tx_packet_parts: MOST_PARTS,
        tx_headroom: TxHeadroom::None,
        ..Limits::new((HEADROOM_BYTES + longest_frame(options.mtu)).max(2048))
    };
    let name = options.address.to_string();
    Info {
        name,
        mac,
        mtu: options.mtu,
        can,
        queues: 1,
        limits,
        rx_queue_packets: MOST_ENTRIES.into(),
    }
}

impl Device for VirtioNetDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        // An open queue has the other reference.
        let is_open = Arc::strong_count(&self.queue_interrupt) > 1;
        if index != 0 || is_open {
            return Err(DeviceError::no_queue(&self.info.name, is_open));
        }
        Ok(Box::new(self.start_queue()?))
    }

    fn dma(&self) -> Option<Arc<dyn Dma>> {
        Some(self.dma.clone())
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        match *filter {
            Filter::Address(address) => self.change_filters(|filters| filters.add(address)),
            Filter::AllGroups => self.change_filters(|filters| {
                filters.groups = true;
                true
            }),
            Filter::Everything => self.change_filters(|filters| {
                filters.everything = true;
                true
            }),
            Filter::Flow(_) => Err(FilterError::Unsupported),
        }
    }

    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.card.would_have_room(addresses_in(wanted), addresses_in(removed))
    }

    fn remove_filter(&mut self, filter: &Filter) {
        // If the card does not execute it, it goes on to receive these packets, and the engine drops them.
        let _ = self.change_filters(|filters| {
            match *filter {
                Filter::Address(address) => filters.remove(address),
                Filter::AllGroups => filters.groups = false,
                Filter::Everything => filters.everything = false,
                Filter::Flow(_) => {}
            }
            true
        });
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.fd())
    }

    fn take_event(&mut self) -> Option<Event> {
        let (card, queue_interrupt) = (&self.card, &self.queue_interrupt);
        let is_up = || {
            if card.notes_to_fail() {
                // The engine may sleep.
                signal(queue_interrupt);
                return None;
            }
            Some(card.is_link_up())
        };
        self.events.take(card.link_interrupt(), || card.is_gone(), is_up)
    }
}

/// Stops the card, so that it accesses no memory any more, and raises no interrupt while the kernel removes the
/// vectors.
impl Drop for VirtioNetDevice {
    fn drop(&mut self) {
        self.card.stop();
        let _ = self.vfio.set_bus_master(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_in_one_buffer() {
        let address = "0000:00:03.0".parse().unwrap();
        let limits = |mtu| info(&Options { mtu, ..Options::new(address) }, [2; 6]).limits;
        assert_eq!((limits(1500).rx_packet_buffers, limits(1500).rx_buffer_bytes), (1, 2048));
        assert_eq!(limits(9000).rx_buffer_bytes, 128 + 9022);
    }
}
