//! The Intel 82574L, which Linux's driver e1000e drives.
//!
//! | part | is |
//! |---|---|
//! | [`E1000eDevice`] | the control part: link, filters, events |
//! | `card` | the device as a whole: reset, addresses, start and stop |
//! | `queue` | the data part: rings, kicks, sleep |
//! | `ring`, `descriptor` | a ring in shared memory, and the bits of its entries |
//! | `names` | registers and their bits |
//!
//! The data sheet of the 82574L was not at hand. Registers and sequences follow Linux's driver
//! (drivers/net/ethernet/intel/e1000e), and were tried on QEMU's model (hw/net/e1000e_core.c).

mod card;
mod descriptor;
mod names;
mod queue;
mod ring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, epoll, eventfd};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
};

use super::dma::PciDma;
use super::registers::Registers;
use super::vfio::Vfio;
use super::{PciAddress, PciError};
use crate::dma::Dma;
use crate::{
    Capabilities, Device, DeviceError, DeviceQueue, ETHERNET_HEADER_BYTES, Event, Filter,
    FilterError, Info, Limits, Spaces, TxHeadroom, VLAN_TAG_BYTES,
};
use card::Card;
use queue::{E1000eQueue, RING_ENTRIES, RX_BUFFER_BYTES};

/// The vendor's and the device's numbers of the 82574L, in the configuration space.
const VENDOR: (u64, u16) = (0, 0x8086);
const DEVICE: (u64, u16) = (2, 0x10d3);

/// The smallest and the largest IP packet, in bytes. The largest is that of Linux's driver, whose longest
/// frame has 9 234 bytes (`DEFAULT_JUMBO`).
pub const MTU: std::ops::RangeInclusive<usize> = 68..=9_000;

/// How the device is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The card.
    pub address: PciAddress,
    /// The largest IP packet, in bytes, in [`MTU`].
    pub mtu: usize,
    /// `true` to have the card segment large packets of TCP. QEMU 7 cuts them into IP fragments instead.
    pub segmentation: bool,
}

impl Options {
    /// Returns the options of a card, with an MTU of 1 500 bytes and without segmentation.
    #[must_use]
    pub fn new(address: PciAddress) -> Options {
        Options { address, mtu: 1500, segmentation: false }
    }
}

/// Returns `true` for the vendor's and the device's numbers of a card that this driver knows.
#[must_use]
pub fn is_supported(vendor: u16, device: u16) -> bool {
    (vendor, device) == (VENDOR.1, DEVICE.1)
}

/// An 82574L.
pub struct E1000eDevice {
    info: Info,
    vfio: Arc<Vfio>,
    card: Arc<Card>,
    dma: Arc<dyn Dma>,
    /// Written at each interrupt of the queue.
    queue_interrupt: Arc<OwnedFd>,
    /// The open queue's hold on `queue_interrupt`.
    open: Weak<OwnedFd>,
    /// Written at each change of the link.
    link_interrupt: OwnedFd,
    /// Written when the card is about to be removed, or has failed.
    removal: OwnedFd,
    /// Readable with either of these.
    events: OwnedFd,
    /// The state of the link that was reported last.
    is_up: bool,
}

impl std::fmt::Debug for E1000eDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000eDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Returns `true` if an eventfd was written to since the last call.
fn take(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}

impl E1000eDevice {
    /// Opens a card that `vfio-pci` has, and resets it. It receives nothing before it has a filter.
    ///
    /// # Errors
    /// See [`PciError`].
    pub fn open(options: &Options) -> Result<E1000eDevice, PciError> {
        let address = options.address;
        let vfio = Vfio::open(address)?;
        let configuration = |(at, _): (u64, u16)| {
            vfio.configuration(at).map_err(vfio.refused("reading its configuration"))
        };
        let (vendor, device) = (configuration(VENDOR)?, configuration(DEVICE)?);
        if vendor == u16::MAX {
            return Err(PciError::NoAnswer { address });
        }
        if !is_supported(vendor, device) {
            return Err(PciError::Unknown { address, vendor, device });
        }
        let bar = vfio.bar0().map_err(vfio.refused("finding its registers"))?;
        vfio.set_bus_master(true).map_err(vfio.refused("letting it access memory"))?;
        let registers = Registers::map(vfio.device(), bar);
        let registers = registers.map_err(vfio.refused("mapping its registers"))?;
        let card = Card::new(registers, address);
        card.reset()?;
        let mac = card.own_address();
        let make = || event().map_err(vfio.refused("making an eventfd"));
        let (queue_interrupt, link_interrupt, removal) = (Arc::new(make()?), make()?, make()?);
        let (queue, link) = (queue_interrupt.as_fd(), link_interrupt.as_fd());
        // In the order of `IVAR_ONE_EACH`.
        let vectors = [queue, queue, queue, queue, link];
        vfio.set_interrupts(VFIO_PCI_MSIX_IRQ_INDEX, &vectors)
            .map_err(vfio.refused("setting its interrupts"))?;
        for kind in [VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX] {
            // A card without such a report is served without.
            let _ = vfio.set_interrupts(kind, &[removal.as_fd()]);
        }
        let events = events(&[link, removal.as_fd()]);
        let events = events.map_err(vfio.refused("making an epoll instance"))?;
        let vfio = Arc::new(vfio);
        let dma = PciDma::new(vfio.clone());
        let dma = Arc::new(dma.map_err(vfio.refused("asking for its address space"))?);
        let device = E1000eDevice {
            info: info(options, mac),
            vfio,
            card: Arc::new(card),
            dma,
            queue_interrupt,
            open: Weak::new(),
            link_interrupt,
            removal,
            events,
            is_up: true,
        };
        // A link that is down is the first event.
        let _ = rustix::io::write(&device.link_interrupt, &1u64.to_ne_bytes());
        Ok(device)
    }
}

/// Makes an epoll instance that is readable with any of these descriptors.
fn events(of: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in of {
        epoll::add(&events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(events)
}

fn info(options: &Options, mac: [u8; 6]) -> Info {
    let can = Capabilities {
        tx_in_place: true,
        tx_checksum: true,
        tx_segmentation: options.segmentation,
        tx_segmentation_ecn: false,
        tx_large_copied: false,
        tx_to_host: false,
        rx_offload: false,
        tx_asynchronous: true,
    };
    let frame_bytes = options.mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
    let limits = Limits {
        rx_packet_buffers: frame_bytes.div_ceil(RX_BUFFER_BYTES),
        rx_ring: RING_ENTRIES as usize - 1,
        tx_ring: RING_ENTRIES as usize - 1,
        tx_headroom: TxHeadroom::None,
        ..Limits::new(RX_BUFFER_BYTES)
    };
    let name = options.address.to_string();
    let rx_queue_packets = RING_ENTRIES as usize - 1;
    Info { name, mac, mtu: options.mtu, can, queues: 1, limits, rx_queue_packets }
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
        let is_open = self.open.strong_count() > 0;
        if index != 0 || is_open {
            return Err(DeviceError::no_queue(&self.info.name, is_open));
        }
        // Not the device's own: it ends with the queue.
        let interrupt = self.queue_interrupt.try_clone().map_err(|cause| {
            let (name, what) = (self.info.name.clone(), "copying an eventfd");
            DeviceError::Failed { name, what, cause }
        })?;
        let interrupt = Arc::new(interrupt);
        let card = self.card.clone();
        let queue = E1000eQueue::new(self.info.clone(), card, &self.dma, (0, interrupt.clone()))?;
        self.open = Arc::downgrade(&interrupt);
        Ok(Box::new(queue))
    }

    fn dma(&self) -> Option<Arc<dyn Dma>> {
        Some(self.dma.clone())
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

    fn remove_filter(&mut self, filter: &Filter) {
        match filter {
            Filter::Address(address) => self.card.remove_address(*address),
            Filter::AllGroups => self.card.receive_groups(false),
            Filter::Everything => self.card.receive_everything(false),
            _ => {}
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn take_event(&mut self) -> Option<Event> {
        if take(&self.removal) {
            return Some(Event::Removed);
        }
        if !take(&self.link_interrupt) {
            return None;
        }
        if self.card.is_gone() {
            return Some(Event::Removed);
        }
        self.card.report_link();
        let up = self.card.is_link_up();
        (std::mem::replace(&mut self.is_up, up) != up).then_some(Event::Link { up })
    }
}

/// The card accesses no memory from then on, and its interrupts have ended before the kernel takes them
/// away.
impl Drop for E1000eDevice {
    fn drop(&mut self) {
        self.card.stop();
        let _ = self.vfio.set_bus_master(false);
    }
}
