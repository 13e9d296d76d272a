//! Where a card has its registers: capabilities in the configuration space name structures in BARs (virtio
//! 1.2, 4.1.4).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::names::*;
use crate::registers::{Register, Registers};
use crate::vfio::Vfio;

/// The status register of the configuration space, its bit for a list of capabilities, and the pointer to
/// the first one (PCI Local Bus Specification 3.0, 6.2.3 and 6.7).
const PCI_STATUS: u64 = 6;
const PCI_STATUS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: u64 = 0x34;
/// A capability of the vendor (the same, appendix H).
const OF_VENDOR: u8 = 9;
/// More capabilities than the configuration space has room for: a list without an end.
const MOST_CAPABILITIES: usize = 48;

/// Kinds of structures (`VIRTIO_PCI_CAP_*`).
const KIND_COMMON: u8 = 1;
const KIND_NOTIFY: u8 = 2;
const KIND_DEVICE: u8 = 4;

/// A capability of virtio, as in the configuration space (`struct virtio_pci_notify_cap`).
type Words = [u8; 20];

/// A structure's place, from its capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    bar: u8,
    offset: u32,
    bytes: u32,
    /// The distance of the notification registers of two virtqueues, of `KIND_NOTIFY` alone.
    multiplier: u32,
}

/// The places of the structures that the driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    common: Place,
    notify: Place,
    device: Place,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn word(bytes: &Words, at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Places {
    /// Goes through the list of capabilities, with a function that reads one of them.
    fn find(first: u8, read: impl Fn(u64) -> io::Result<Words>) -> io::Result<Places> {
        let mut found = BTreeMap::new();
        let mut at = first & !3;
        for _ in 0..MOST_CAPABILITIES {
            if at == 0 {
                break;
            }
            let bytes = read(at.into())?;
            let [kind_of_pci, next, len, kind, bar, ..] = bytes;
            // The driver uses the first structure of each kind: the device's preference (4.1.4.1). Structures
            // in BARs that are reserved are to be ignored.
            if kind_of_pci == OF_VENDOR && len >= 16 && bar <= 5 {
                let multiplier = if len >= 20 { word(&bytes, 16) } else { 0 };
                let (offset, bytes) = (word(&bytes, 8), word(&bytes, 12));
                found.entry(kind).or_insert(Place { bar, offset, bytes, multiplier });
            }
            at = next & !3;
        }
        let place = |kind, what| found.get(&kind).copied().ok_or_else(|| wrong(what));
        Ok(Places {
            common: place(KIND_COMMON, "no common configuration; is it a legacy card?")?,
            notify: place(KIND_NOTIFY, "no notification structure")?,
            device: place(KIND_DEVICE, "no device configuration")?,
        })
    }
}

/// The registers of a structure.
#[derive(Clone, Debug)]
pub(super) struct Structure {
    bar: Arc<Registers>,
    at: u32,
    bytes: u32,
}

impl Structure {
    fn new(bar: &Arc<Registers>, place: Place, least: u32) -> io::Result<Structure> {
        let Place { offset, bytes, .. } = place;
        let end = u64::from(offset) + u64::from(bytes);
        if bytes < least || end > bar.bytes() as u64 || !offset.is_multiple_of(4) {
            return Err(wrong("a structure outside of its BAR, or too short"));
        }
        Ok(Structure { bar: bar.clone(), at: offset, bytes })
    }

    fn place(&self, register: Register) -> Register {
        assert!(register.0 < self.bytes, "a register outside of its structure");
        Register(self.at + register.0)
    }

    pub(super) fn read(&self, register: Register) -> u32 {
        self.bar.read(self.place(register))
    }

    pub(super) fn write(&self, register: Register, value: u32) {
        self.bar.write(self.place(register), value);
    }

    pub(super) fn read16(&self, register: Register) -> u16 {
        self.bar.read16(self.place(register))
    }

    pub(super) fn write16(&self, register: Register, value: u16) {
        self.bar.write16(self.place(register), value);
    }

    pub(super) fn read8(&self, register: Register) -> u8 {
        self.bar.read8(self.place(register))
    }

    pub(super) fn write8(&self, register: Register, value: u8) {
        self.bar.write8(self.place(register), value);
    }
}

/// The structures of a card.
#[derive(Debug)]
pub(super) struct Structures {
    pub(super) common: Structure,
    pub(super) device: Structure,
    notify: Structure,
    multiplier: u32,
}

impl Structures {
    /// Finds and maps the structures of a card.
    pub(super) fn map(vfio: &Vfio) -> io::Result<Structures> {
        if vfio.configuration(PCI_STATUS)? & PCI_STATUS_CAPABILITIES == 0 {
            return Err(wrong("no list of capabilities"));
        }
        let [first] = vfio.configuration_bytes(CAPABILITIES)?;
        let places = Places::find(first, |at| vfio.configuration_bytes(at))?;
        let mut bars = BTreeMap::new();
        for place in [places.common, places.notify, places.device] {
            if let std::collections::btree_map::Entry::Vacant(vacant) = bars.entry(place.bar) {
                let bar = vfio.bar(place.bar)?;
                vacant.insert(Arc::new(Registers::map(vfio.device(), bar)?));
            }
        }
        Structures::over(&bars, places)
    }

    fn over(bars: &BTreeMap<u8, Arc<Registers>>, places: Places) -> io::Result<Structures> {
        let structure = |place: Place, least| {
            let bar = bars.get(&place.bar).ok_or_else(|| wrong("a structure in no BAR"))?;
            Structure::new(bar, place, least)
        };
        Ok(Structures {
            common: structure(places.common, COMMON_BYTES)?,
            device: structure(places.device, CONFIG_BYTES)?,
            notify: structure(places.notify, 2)?,
            multiplier: places.notify.multiplier,
        })
    }

    /// Returns the register that tells the device of new entries in a virtqueue, by the virtqueue's own offset
    /// (4.1.4.4).
    pub(super) fn notification(&self, offset: u16) -> io::Result<Notification> {
        let at = u64::from(offset) * u64::from(self.multiplier);
        let register = u32::try_from(at).ok().filter(|at| {
            at.is_multiple_of(2) && at.checked_add(2).is_some_and(|end| end <= self.notify.bytes)
        });
        let register = register.ok_or_else(|| wrong("a notification register outside"))?;
        Ok(Notification { structure: self.notify.clone(), register: Register(register) })
    }

    /// Makes structures over plain memory, in which no register changes by itself.
    #[cfg(test)]
    pub(super) fn double() -> Structures {
        let bar = Arc::new(Registers::double(0x4000));
        let place = |offset| Place { bar: 4, offset, bytes: 0x1000, multiplier: 4 };
        let places = Places { common: place(0), device: place(0x2000), notify: place(0x3000) };
        Structures::over(&BTreeMap::from([(4, bar)]), places).unwrap()
    }
}

/// The register that tells the device of new entries in a virtqueue.
#[derive(Clone, Debug)]
pub(super) struct Notification {
    structure: Structure,
    register: Register,
}

impl Notification {
    /// Tells the device. The register takes the number of the virtqueue (4.1.5.2).
    #[inline]
    pub(super) fn send(&self, queue: u16) {
        self.structure.write16(self.register, queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The capabilities of QEMU's card, as `lspci -xxx` shows them: kind, offset, multiplier.
    fn capability(next: u8, kind: u8, offset: u32, len: u8) -> Words {
        let mut bytes = [0; 20];
        bytes[..5].copy_from_slice(&[OF_VENDOR, next, len, kind, 4]);
        bytes[8..12].copy_from_slice(&offset.to_le_bytes());
        bytes[12..16].copy_from_slice(&0x1000u32.to_le_bytes());
        bytes[16..].copy_from_slice(&4u32.to_le_bytes());
        bytes
    }

    fn list() -> BTreeMap<u64, Words> {
        BTreeMap::from([
            (0x40, capability(0x54, KIND_COMMON, 0, 16)),
            (0x54, capability(0x68, 3, 0x1000, 16)),
            (0x68, capability(0x7c, KIND_DEVICE, 0x2000, 16)),
            (0x7c, capability(0x90, KIND_NOTIFY, 0x3000, 20)),
            // A second one of a kind, and one in a BAR that does not exist.
            (0x90, capability(0xa4, KIND_COMMON, 0x800, 16)),
            (0xa4, [OF_VENDOR, 0, 16, KIND_DEVICE, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ])
    }

    fn find(list: &BTreeMap<u64, Words>) -> io::Result<Places> {
        Places::find(0x40, |at| list.get(&at).copied().ok_or_else(|| wrong("outside")))
    }

    #[test]
    fn structures_are_found() {
        let places = find(&list()).unwrap();
        let at = |offset, multiplier| Place { bar: 4, offset, bytes: 0x1000, multiplier };
        assert_eq!((places.common, places.device), (at(0, 0), at(0x2000, 0)));
        assert_eq!(places.notify, at(0x3000, 4));
    }

    #[test]
    fn a_list_without_an_end_or_a_structure_is_refused() {
        let mut endless = list();
        endless.insert(0x7c, capability(0x40, 9, 0, 16));
        assert!(find(&endless).unwrap_err().to_string().contains("notification"));
        assert!(Places::find(0, |_| Ok([0; 20])).unwrap_err().to_string().contains("legacy"));
    }

    #[test]
    fn structures_outside_of_their_bar_are_refused() {
        let bar = Arc::new(Registers::double(0x4000));
        let place = |offset, bytes| Place { bar: 4, offset, bytes, multiplier: 0 };
        for (offset, bytes) in [(0x3001, 0x100), (0x4000, 0x100), (0, 0x4001), (0, 55), (8, !0)] {
            assert!(
                Structure::new(&bar, place(offset, bytes), 56).is_err(),
                "{offset:x} {bytes:x}"
            );
        }
        assert!(Structure::new(&bar, place(0x3f00, 0x100), 56).is_ok());
    }

    #[test]
    fn notifications_outside_are_refused() {
        let structures = Structures::double();
        structures.notification(1).unwrap().send(1);
        assert_eq!(structures.notify.read16(Register(4)), 1);
        assert!(structures.notification(1023).is_ok() && structures.notification(1024).is_err());
    }
}
