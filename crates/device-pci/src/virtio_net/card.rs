//! The device as a whole: reset, features, virtqueues, filters, link.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::control::Control;
use super::filters::Filters;
use super::names::*;
use super::ring::{MOST_ENTRIES, Ring, areas_at};
use super::structures::{Notification, Structures};
use crate::address::PciAddress;
use crate::error::PciError;
use crate::registers::Register;
use crate::signals::{has_in_time, signal};

/// The longest wait for a reset. The specification has no limit (4.1.4.3.2); QEMU's card is reset at once.
const RESET_LIMIT: Duration = Duration::from_millis(500);
/// The attempts to read a configuration that does not change meanwhile.
const READS: u32 = 16;

/// The features without which the driver does not use a card. With the second one, the card uses the addresses
/// that the IOMMU translates (6.1).
const NEEDED: u64 = FEATURE_VERSION_1 | FEATURE_ACCESS_PLATFORM;
/// The features with which the card filters.
const FILTERS: u64 = FEATURE_CONTROL | FEATURE_CONTROL_RX | FEATURE_CONTROL_RX_EXTRA;
/// All that the driver knows.
const KNOWN: u64 = NEEDED | FILTERS | FEATURE_MAC | FEATURE_STATUS | FEATURE_ORDER_PLATFORM;

/// The vectors of interrupts: for received packets, sent ones, and changes of the configuration.
const RX_VECTOR: u16 = 0;
const TX_VECTOR: u16 = 1;
const CONFIG_CHANGE_VECTOR: u16 = 2;

/// The fewest entries of a virtqueue with which the driver works: those of a packet of the most parts.
const LEAST_ENTRIES: u16 = 64;

/// A virtio card. The control thread and the engine share it.
#[derive(Debug)]
pub(super) struct Card {
    address: PciAddress,
    structures: Structures,
    /// The registers of the common configuration are used under this lock: some select what others show.
    state: Mutex<State>,
    /// The kernel signals it at each change of the configuration, and the engine after a reset.
    link_interrupt: OwnedFd,
    /// `true` once the device has said that it works no more, until its next reset.
    fails: AtomicBool,
}

/// What decides whether filters are in force.
#[derive(Debug, Default)]
struct State {
    /// The features that both sides use.
    features: u64,
    filters: Filters,
    /// The control virtqueue, while the queue is open.
    control: Option<Control>,
    /// `true` while the device works.
    is_running: bool,
}

impl Card {
    /// Makes a card from its registers. The kernel signals `link_interrupt` at the interrupts of the last vector.
    pub(super) fn new(
        structures: Structures,
        address: PciAddress,
        link_interrupt: OwnedFd,
    ) -> Card {
        let fails = AtomicBool::new(false);
        Card { address, structures, state: Mutex::default(), link_interrupt, fails }
    }

    pub(super) fn link_interrupt(&self) -> &OwnedFd {
        &self.link_interrupt
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> u8 {
        self.structures.common.read8(STATUS)
    }

    fn add_status(&self, bit: u8) {
        self.structures.common.write8(STATUS, self.status() | bit);
    }

    /// Returns `true` if the device does not answer any more.
    pub(super) fn is_gone(&self) -> bool {
        self.status() == STATUS_GONE
    }

    /// Returns `true` if the device says that it works no more until a reset.
    pub(super) fn needs_reset(&self) -> bool {
        self.status() & STATUS_NEEDS_RESET != 0
    }

    /// Notes for the engine if the device says that it works no more. It interrupts then (2.1.2).
    pub(super) fn notes_to_fail(&self) -> bool {
        let fails = self.needs_reset();
        self.fails.store(fails, Ordering::Relaxed);
        fails
    }

    /// Returns `true` if the control thread has noted that the device works no more.
    #[inline]
    pub(super) fn is_noted_to_fail(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }

    fn lacks(&self, what: &'static str) -> PciError {
        PciError::Lacks { address: self.address, what }
    }

    /// Resets the card, which then accesses no memory, and agrees on features.
    pub(super) fn reset(&self) -> Result<(), PciError> {
        let mut state = self.state();
        self.stop_device(&mut state)?;
        state.features = self.agree()?;
        self.fails.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Resets the card, and waits until that is done (4.1.4.3.2).
    fn stop_device(&self, state: &mut State) -> Result<(), PciError> {
        state.is_running = false;
        if self.is_gone() {
            return Err(PciError::NoAnswer { address: self.address });
        }
        self.structures.common.write8(STATUS, 0);
        if has_in_time(RESET_LIMIT, || self.status() == 0) {
            return Ok(());
        }
        if self.is_gone() {
            return Err(PciError::NoAnswer { address: self.address });
        }
        let limit_ms = RESET_LIMIT.as_millis() as u64;
        Err(PciError::TooLong { address: self.address, what: "a reset", limit_ms })
    }

    /// Agrees on features with the card (3.1.1). Returns them.
    fn agree(&self) -> Result<u64, PciError> {
        let common = &self.structures.common;
        self.add_status(STATUS_ACKNOWLEDGE);
        self.add_status(STATUS_DRIVER);
        let half = |select: u32| {
            common.write(DEVICE_FEATURE_SELECT, select);
            u64::from(common.read(DEVICE_FEATURE))
        };
        let offered = half(0) | half(1) << 32;
        if offered & FEATURE_VERSION_1 == 0 {
            return Err(self.lacks("VIRTIO_F_VERSION_1"));
        }
        if offered & FEATURE_ACCESS_PLATFORM == 0 {
            return Err(self.lacks("VIRTIO_F_ACCESS_PLATFORM, so it is not behind the IOMMU"));
        }
        if offered & FEATURE_MAC == 0 {
            return Err(self.lacks("an address of its own (VIRTIO_NET_F_MAC)"));
        }
        let mut features = offered & KNOWN;
        if offered & FILTERS != FILTERS {
            features &= !FILTERS;
        }
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            common.write(DRIVER_FEATURE_SELECT, select);
            common.write(DRIVER_FEATURE, half);
        }
        self.add_status(STATUS_FEATURES_OK);
        if self.status() & STATUS_FEATURES_OK == 0 {
            return Err(self.lacks("the features that the driver chose"));
        }
        Ok(features)
    }

    /// Returns the card's own address. It is read again if the configuration changed meanwhile (2.5).
    pub(super) fn own_address(&self) -> Result<[u8; 6], PciError> {
        let Structures { common, device, .. } = &self.structures;
        let octet = |at: u32| device.read8(Register(MAC.0 + at));
        for _ in 0..READS {
            let before = common.read8(CONFIG_GENERATION);
            let address = [octet(0), octet(1), octet(2), octet(3), octet(4), octet(5)];
            if common.read8(CONFIG_GENERATION) == before {
                return Ok(address);
            }
        }
        Err(self.lacks("a configuration that stays the same while it is read"))
    }

    /// Returns `true` if the link is up. A card that does not report its link has one.
    pub(super) fn is_link_up(&self) -> bool {
        let reports = self.state().features & FEATURE_STATUS != 0;
        !reports || !self.is_gone() && self.structures.device.read16(LINK) & LINK_UP != 0
    }

    /// Has the control thread look at the link.
    pub(super) fn signal_link(&self) {
        signal(&self.link_interrupt);
    }

    /// Takes the control virtqueue, for filters.
    pub(super) fn use_control(&self, control: Control) {
        self.state().control = Some(control);
    }

    /// Starts the device with empty rings, of which `rings` are those of packets, each with its device address.
    /// The card has been reset. Returns what tells the device of new entries.
    pub(super) fn start(
        &self,
        rings: [(&mut Ring, u64); 2],
    ) -> Result<[Notification; 2], PciError> {
        let state = &mut *self.state();
        let common = &self.structures.common;
        common.write16(CONFIG_VECTOR, CONFIG_CHANGE_VECTOR);
        if common.read16(CONFIG_VECTOR) != CONFIG_CHANGE_VECTOR {
            return Err(self.lacks("an interrupt for changes"));
        }
        let [(rx, rx_at), (tx, tx_at)] = rings;
        let notifications =
            [self.set_queue(RX, rx, rx_at, RX_VECTOR)?, self.set_queue(TX, tx, tx_at, TX_VECTOR)?];
        if let Some(control) = state.control.as_mut().filter(|_| state.features & FILTERS != 0) {
            let (ring, at) = control.ring();
            let notification = self.set_queue(CONTROL, ring, at, NO_VECTOR)?;
            control.start(notification);
        }
        self.add_status(STATUS_DRIVER_OK);
        state.is_running = true;
        // Receive buffers come later, so no packet is received by other filters.
        state.set_filters().map_err(|cause| {
            let what = "setting its filters";
            PciError::Refused { address: self.address, what, cause }
        })?;
        self.signal_link();
        Ok(notifications)
    }

    /// Sets the registers of a virtqueue (4.1.5.1.3).
    fn set_queue(
        &self,
        number: u16,
        ring: &mut Ring,
        at: u64,
        vector: u16,
    ) -> Result<Notification, PciError> {
        let common = &self.structures.common;
        common.write16(QUEUE_SELECT, number);
        let most = common.read16(QUEUE_SIZE);
        if !most.is_power_of_two() || most < LEAST_ENTRIES && number != CONTROL {
            return Err(self.lacks("virtqueues of 64 entries"));
        }
        let entries = most.min(MOST_ENTRIES);
        ring.clear(entries);
        common.write16(QUEUE_SIZE, entries);
        for (register, address) in
            [QUEUE_DESCRIPTORS, QUEUE_AVAILABLE, QUEUE_USED].into_iter().zip(areas_at(at))
        {
            common.write(register, address as u32);
            common.write(register.at(1, 4), (address >> 32) as u32);
        }
        common.write16(QUEUE_VECTOR, vector);
        if common.read16(QUEUE_VECTOR) != vector {
            return Err(self.lacks("an interrupt for each virtqueue"));
        }
        let offset = common.read16(QUEUE_NOTIFY_OFFSET);
        let notification = self.structures.notification(offset);
        let notification = notification.map_err(|cause| {
            let what = "finding a notification register";
            PciError::Refused { address: self.address, what, cause }
        })?;
        common.write16(QUEUE_ENABLE, 1);
        Ok(notification)
    }

    /// Returns `true` if the card has room for `wanted` more addresses after the removal of `removed` addresses.
    pub(super) fn would_have_room(&self, wanted: usize, removed: usize) -> bool {
        self.state().filters.would_have_room(wanted, removed)
    }

    /// Changes the filters, and has them in force before this returns. `None`: the device does not filter.
    pub(super) fn change_filters(
        &self,
        change: impl FnOnce(&mut Filters) -> bool,
    ) -> Option<io::Result<bool>> {
        let state = &mut *self.state();
        if state.features & FILTERS == 0 {
            return None;
        }
        let before = state.filters.clone();
        if !change(&mut state.filters) {
            return Some(Ok(false));
        }
        Some(match state.set_filters() {
            Ok(()) => Ok(true),
            Err(error) => {
                state.filters = before;
                Err(error)
            }
        })
    }

    /// Stops the device, which then accesses no memory, and gives the control virtqueue up.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        // A card that does not stop is kept from memory when it is closed.
        let _ = self.stop_device(&mut state);
        state.control = None;
    }
}

impl State {
    fn set_filters(&mut self) -> io::Result<()> {
        match &mut self.control {
            Some(control) if self.is_running && self.features & FILTERS != 0 => {
                control.set_filters(&self.filters)
            }
            _ => Ok(()),
        }
    }
}

/// Makes a card over plain memory, in which no register changes by itself.
#[cfg(test)]
pub(super) fn double() -> Card {
    let link = crate::signals::new_eventfd().unwrap();
    Card::new(Structures::double(), "0000:00:03.0".parse().unwrap(), link)
}

#[cfg(test)]
impl Card {
    /// The device says that it works no more.
    pub(super) fn ask_for_reset(&self) {
        self.add_status(STATUS_NEEDS_RESET);
    }
}

/// Makes a card as above that offers what the driver needs, with virtqueues of so many entries, and resets it.
#[cfg(test)]
pub(super) fn working_double(entries: u16) -> Card {
    let card = double();
    // Both halves of the features.
    card.structures.common.write(DEVICE_FEATURE, (NEEDED >> 32) as u32 | FEATURE_MAC as u32);
    card.structures.common.write16(QUEUE_SIZE, entries);
    card.reset().unwrap();
    card
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_does_not_answer_is_reported() {
        let card = double();
        card.structures.common.write8(STATUS, STATUS_GONE);
        assert!(card.is_gone());
        let error = card.reset().unwrap_err();
        assert!(matches!(error, PciError::NoAnswer { .. }), "{error}");
    }

    #[test]
    fn a_card_without_a_feature_is_refused() {
        let card = double();
        // The double shows the same bits in both halves.
        for (half, lacks) in [(0, "VERSION_1"), (1, "IOMMU"), (3, "VIRTIO_NET_F_MAC")] {
            card.structures.common.write(DEVICE_FEATURE, half);
            let error = card.reset().unwrap_err().to_string();
            assert!(error.contains(lacks), "{error}");
        }
        card.structures.common.write(DEVICE_FEATURE, 3 | 1 << 5);
        card.reset().unwrap();
        assert_eq!(card.state().features, NEEDED | FEATURE_MAC);
        assert!(card.change_filters(|_| true).is_none(), "it does not filter");
        assert!(card.is_link_up(), "it does not report its link");
    }

    #[test]
    fn virtqueues_that_are_too_small_are_refused() {
        let card = double();
        card.structures.common.write(DEVICE_FEATURE, 3 | 1 << 5);
        card.reset().unwrap();
        let mut rings = [64; 2].map(super::super::ring::ring);
        for entries in [0, 32, 96] {
            card.structures.common.write16(QUEUE_SIZE, entries);
            let [rx, tx] = &mut rings;
            let error = card.start([(rx, 0x1000), (tx, 0x2000)]).unwrap_err().to_string();
            assert!(error.contains("64 entries"), "{error}");
        }
        card.structures.common.write16(QUEUE_SIZE, 1024);
        let [rx, tx] = &mut rings;
        card.start([(rx, 0x1_0000_1000), (tx, 0x1_0000_8000)]).unwrap();
        assert_eq!(rings[0].entries(), MOST_ENTRIES);
        let common = &card.structures.common;
        assert_eq!((common.read(QUEUE_USED), common.read(Register(52))), (0xa000, 1));
        assert_eq!((common.read16(QUEUE_ENABLE), common.read16(QUEUE_SIZE)), (1, 256));
        assert_ne!(card.status() & STATUS_DRIVER_OK, 0);
    }

    #[test]
    fn the_address_is_that_of_the_configuration() {
        let card = double();
        for (at, octet) in (0..).zip([0x52, 0x54, 0, 0, 0, 9]) {
            card.structures.device.write8(Register(at), octet);
        }
        assert_eq!(card.own_address().unwrap(), [0x52, 0x54, 0, 0, 0, 9]);
    }
}
