//! Opens a card: its eventfds and registers, then a reset, or the running queues of an earlier server.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use towpath_device::EarlierObjects;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
};

use super::card::{Card, Wiring};
use super::going_on::GoingOn;
use super::interrupts::Interrupts;
use super::ledger::Opened;
use super::options::{MOST_QUEUES, Options};
use super::rss::{KEY_WORDS, Steering};
use crate::dma::PciDma;
use crate::error::PciError;
use crate::events::CardEvents;
use crate::registers::Registers;
use crate::signals::new_eventfd;
use crate::vfio::Vfio;

/// The vendor and device numbers of the 82574L.
pub(super) const NUMBERS: (u16, u16) = (0x8086, 0x10d3);

/// The bytes of the registers of BAR 0.
const BAR_BYTES: usize = 0x20000;

/// The names under which a keeper holds the eventfds of [`Events`].
pub(super) const QUEUE_INTERRUPTS: [&str; MOST_QUEUES] =
    ["device-card-queue-interrupt-0", "device-card-queue-interrupt-1"];
pub(super) const LINK_INTERRUPT: &str = "device-card-link-interrupt";
pub(super) const REMOVAL: &str = "device-card-removal";

/// The eventfds of a card.
struct Events {
    queues: Vec<OwnedFd>,
    link: OwnedFd,
    removal: OwnedFd,
    /// `true` if the kernel signals these already, for an earlier server.
    are_set: bool,
}

impl Events {
    fn new(queues: usize) -> io::Result<Events> {
        let (link, removal) = (new_eventfd()?, new_eventfd()?);
        let queues = (0..queues).map(|_| new_eventfd()).collect::<io::Result<_>>()?;
        Ok(Events { queues, link, removal, are_set: false })
    }

    /// Returns those of an earlier server, or new ones.
    fn after(earlier: &EarlierObjects, queues: usize) -> io::Result<Events> {
        let (link, removal) = (earlier.copy(LINK_INTERRUPT)?, earlier.copy(REMOVAL)?);
        let theirs = QUEUE_INTERRUPTS.iter().map(|name| earlier.copy(name));
        let theirs: Vec<OwnedFd> =
            theirs.filter_map(Result::transpose).collect::<io::Result<_>>()?;
        match (link, removal) {
            (Some(link), Some(removal)) if theirs.len() == queues => {
                Ok(Events { queues: theirs, link, removal, are_set: true })
            }
            _ => Events::new(queues),
        }
    }

    /// Has the kernel signal the eventfds at the card's interrupts.
    fn set(&self, vfio: &Vfio, interrupts: &Interrupts) -> Result<(), PciError> {
        let of = |queue: usize| self.queues[queue.min(self.queues.len() - 1)].as_fd();
        // In the order of `IVAR_ONE_EACH`; or one for all.
        let vectors = [of(0), of(1), of(0), of(1), self.link.as_fd()];
        let (kind, other, vectors) = match interrupts {
            Interrupts::Vectors(_) => {
                (VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX, &vectors[..])
            }
            Interrupts::One { .. } => {
                (VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, &vectors[..1])
            }
        };
        vfio.end_interrupts(other);
        vfio.set_interrupts(kind, vectors).map_err(vfio.refused("setting its interrupts"))?;
        // The driver also serves a card whose removal the kernel does not announce.
        let _ = vfio.set_interrupts(VFIO_PCI_REQ_IRQ_INDEX, &[self.removal.as_fd()]);
        Ok(())
    }
}

/// A card that is open, and what an earlier server left.
pub(super) struct OpenCard {
    pub(super) vfio: Arc<Vfio>,
    pub(super) card: Card,
    pub(super) dma: PciDma,
    pub(super) events: CardEvents,
    /// The running queues of an earlier server.
    pub(super) going_on: Vec<GoingOn>,
    pub(super) opened: Opened,
    /// What the operator should know.
    pub(super) warnings: Vec<String>,
}

/// Opens a card, and resets it or goes on with it after an earlier server.
pub(super) fn open_after(
    options: &Options,
    earlier: &EarlierObjects,
) -> Result<OpenCard, PciError> {
    let address = options.address;
    let copying = |cause| PciError::Refused { address, what: "copying a descriptor", cause };
    let vfio = match Vfio::of_earlier(address, earlier).map_err(copying)? {
        Some(vfio) => vfio,
        None => Vfio::open(address)?,
    };
    let registers = registers(&vfio)?;
    let eventfds = Events::after(earlier, options.hardware_queues());
    let eventfds = eventfds.map_err(vfio.refused("making an eventfd"))?;
    let wiring = wiring(&eventfds, &vfio, options).map_err(copying)?;
    let card = Card::new(registers, address, options.moderation.interrupts(), wiring);
    let vfio = Arc::new(vfio);
    let dma = PciDma::new(vfio.clone());
    let dma = dma.map_err(vfio.refused("asking for its address space"))?;
    let opened = Opened { mtu: options.mtu, has_one_interrupt: card.interrupts.is_one() };
    let (going_on, warnings) = if eventfds.are_set && vfio.is_bus_master() {
        running(earlier, &card, options, opened)
    } else {
        (Vec::new(), Vec::new())
    };
    if let Some(first) = going_on.first() {
        let memories: Vec<_> = going_on.iter().flat_map(|one| one.header.memories).collect();
        dma.go_on(&memories)
            .map_err(vfio.refused("unmapping the memories of an earlier server"))?;
        card.go_on(first.header.mac);
    } else {
        // No access of memory before the card is reset: an earlier process may have left it running.
        vfio.set_bus_master(false).map_err(vfio.refused("keeping it from memory"))?;
        begin_anew(&vfio, &card, &dma)?;
        eventfds.set(&vfio, &card.interrupts)?;
    }
    let events = CardEvents::new(eventfds.link.as_fd(), eventfds.removal);
    let events = events.map_err(vfio.refused("making an epoll instance"))?;
    Ok(OpenCard { vfio, card, dma, events, going_on, opened, warnings })
}

/// Returns the running queues of an earlier server; none if this one cannot go on with them, with a warning if an error
/// is the reason.
fn running(
    earlier: &EarlierObjects,
    card: &Card,
    options: &Options,
    opened: Opened,
) -> (Vec<GoingOn>, Vec<String>) {
    let address = options.address;
    match GoingOn::find(earlier, card, opened, options.queues()) {
        Ok(going_on) => (going_on, Vec::new()),
        Err(error) => {
            let warning = format!(
                "the rings of the earlier server of {address} cannot be used ({error}), so the card is reset, and \
                 packets that it has received are lost"
            );
            (Vec::new(), vec![warning])
        }
    }
}

/// Checks that the driver knows the card, and maps its registers.
fn registers(vfio: &Vfio) -> Result<Registers, PciError> {
    vfio.check_numbers(NUMBERS, "the Intel 82574L (8086:10d3)")?;
    let bar = vfio.bar(0).map_err(vfio.refused("finding its registers"))?;
    if bar.bytes < BAR_BYTES {
        let cause = io::Error::other(format!("it has {} bytes of registers", bar.bytes));
        return Err(vfio.refused("finding its registers")(cause));
    }
    Registers::map(vfio.device(), bar).map_err(vfio.refused("mapping its registers"))
}

/// Resets the card, which then reaches no memory of an earlier server.
pub(super) fn begin_anew(vfio: &Vfio, card: &Card, dma: &PciDma) -> Result<(), PciError> {
    card.reset()?;
    dma.begin_anew().map_err(vfio.refused("unmapping the memories of an earlier server"))?;
    vfio.set_bus_master(true).map_err(vfio.refused("letting it access memory"))
}

/// Returns what a card signals, and how it chooses the queue of a packet.
fn wiring(events: &Events, vfio: &Vfio, options: &Options) -> io::Result<Wiring> {
    let queues: io::Result<Vec<_>> =
        events.queues.iter().map(|event| event.try_clone().map(Arc::new)).collect();
    let queues = queues?;
    let steering = match (options.queues(), options.hardware_queues()) {
        (1, 1) => Steering::First,
        (1, _) => Steering::Directed,
        _ => Steering::Spread(key()?),
    };
    Ok(Wiring { link: events.link.try_clone()?, queues, steering, leaves: vfio.leaves().clone() })
}

/// Returns a random key for the hash.
fn key() -> io::Result<[u32; KEY_WORDS]> {
    let mut key = [0; KEY_WORDS * 4];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let (words, _) = key.as_chunks::<4>();
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
    Ok(std::array::from_fn(|_| words.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::super::card::double_of;
    use super::super::ledger::{Header, RingLedger};
    use super::*;
    use towpath_device::PacketMemory;

    #[test]
    fn rings_that_cannot_be_mapped_are_a_warning() {
        let opened = Opened { mtu: 1500, has_one_interrupt: false };
        let packets = PacketMemory::default();
        let header = Header { mac: [0; 6], opened, packets, memories: [(0, 0); 2] };
        let (_, ledger) = RingLedger::new(&header).unwrap();
        // Only for reading.
        let read_only = File::open(format!("/proc/self/fd/{}", ledger.as_raw_fd())).unwrap();
        let mut earlier = EarlierObjects::new(false);
        let other = || File::open("/dev/null").unwrap().into();
        for (name, object) in
            [("rings", other()), ("ledger", read_only.into()), ("memory", other())]
        {
            let prefix = if name == "memory" { "device" } else { "device-card" };
            earlier.add(&format!("{prefix}-{name}-0"), 1, object);
        }
        let options = Options::new("0000:00:03.0".parse().unwrap());
        let (going_on, warnings) = running(&earlier, &double_of(1), &options, opened);
        assert!(going_on.is_empty());
        assert!(matches!(&warnings[..], [one] if one.contains("0000:00:03.0")), "{warnings:?}");
        // Rings of another size are those of another version.
        let mut earlier = EarlierObjects::new(false);
        for name in ["device-card-rings-0", "device-card-ledger-0", "device-memory-0"] {
            earlier.add(name, 1, other());
        }
        let (going_on, warnings) = running(&earlier, &double_of(1), &options, opened);
        assert!(going_on.is_empty() && warnings.is_empty(), "{warnings:?}");
    }
}
