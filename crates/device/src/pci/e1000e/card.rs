//! The device as a whole: reset, link, addresses. The queues' own registers belong to [`super::queue`].

use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::names::*;
use crate::pci::address::PciAddress;
use crate::pci::error::PciError;
use crate::pci::registers::{GONE, Register, Registers};

/// The addresses that the device compares with a packet's destination.
const ADDRESSES: u32 = 16;
/// The registers of each of the tables of groups and of VLANs.
const TABLE: u32 = 128;
/// The ethertype of a tag (IEEE 802.1Q).
const VLAN_ETHERTYPE: u32 = 0x8100;

/// The longest waits for the card, as in Linux's driver.
const MASTER_LIMIT: Duration = Duration::from_millis(80);
const AUTO_READ_LIMIT: Duration = Duration::from_millis(20);
/// The time in which accesses of memory end.
const QUIET: Duration = Duration::from_millis(10);
/// The time in which the card reads the settings of its PHY.
const PHY_TIME: Duration = Duration::from_millis(25);

/// The filters for received packets. Registers that the control thread and the engine write are written under
/// the lock of this value.
#[derive(Debug, Default)]
struct Filters {
    /// `true` while both directions run.
    is_running: bool,
    /// `true` once the card has stopped, until its next reset.
    needs_reset: bool,
    addresses: [Option<[u8; 6]>; ADDRESSES as usize],
    /// `true` while the device receives packets to all groups.
    groups: bool,
    /// `true` while the device receives every packet.
    everything: bool,
}

/// An 82574L. The control thread and the engine share it.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) registers: Registers,
    address: PciAddress,
    /// The values of `EITR`, by vector.
    throttle: [u32; 5],
    filters: Mutex<Filters>,
    /// The card's own address, once a reset has read it.
    own_address: OnceLock<[u8; 6]>,
    /// The kernel signals it at each change of the link, and the engine after a reset.
    link_interrupt: OwnedFd,
}

impl Filters {
    /// Returns the value of `RCTL`.
    fn reception(&self) -> u32 {
        let groups = RCTL_ALL_MULTICAST | RCTL_BROADCAST;
        let filters = match self {
            Filters { everything: true, .. } => groups | RCTL_ALL_UNICAST,
            Filters { groups: true, .. } => groups,
            Filters { .. } => 0,
        };
        let on = RCTL_LONG | RCTL_STRIP_CRC | RCTL_ENABLE | filters;
        if self.is_running { on } else { 0 }
    }
}

/// Waits until `is_done` returns `true`, at most for `limit`. Returns `true` if it did in time.
fn has_in_time(limit: Duration, is_done: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_done() {
        if begun.elapsed() > limit {
            return false;
        }
        sleep(Duration::from_micros(100));
    }
    true
}

impl Card {
    /// Makes a card from its registers. `throttle`: the values of `EITR`, by vector.
    /// The kernel signals `link_interrupt` at the interrupts of the last vector.
    pub(super) fn new(
        registers: Registers,
        address: PciAddress,
        throttle: [u32; 5],
        link_interrupt: OwnedFd,
    ) -> Card {
        Card {
            registers,
            address,
            throttle,
            filters: Mutex::default(),
            own_address: OnceLock::new(),
            link_interrupt,
        }
    }

    pub(super) fn link_interrupt(&self) -> &OwnedFd {
        &self.link_interrupt
    }

    /// Has the control thread look at the link.
    pub(super) fn signal_link(&self) {
        // A counter that is full has been signalled.
        let _ = rustix::io::write(&self.link_interrupt, &1u64.to_ne_bytes());
    }

    fn read(&self, register: Register) -> u32 {
        self.registers.read(register)
    }

    fn write(&self, register: Register, value: u32) {
        self.registers.write(register, value);
    }

    /// Returns `true` if the device does not answer any more.
    pub(super) fn is_gone(&self) -> bool {
        self.read(STATUS) == GONE
    }

    /// Returns `true` if the link is up.
    pub(super) fn is_link_up(&self) -> bool {
        let status = self.read(STATUS);
        status != GONE && status & STATUS_LINK_UP != 0
    }

    /// Stops interrupts, packets and accesses of memory, and resets the card. Then sets all registers but those of the
    /// queues and the vectors, because some models do not reset them. The order is that of Linux's driver
    /// (`e1000_reset_hw_82571` and `e1000_init_hw_82571`).
    pub(super) fn reset(&self) -> Result<(), PciError> {
        let mut filters = self.filters();
        filters.is_running = false;
        if self.is_gone() {
            return Err(PciError::NoAnswer { address: self.address });
        }
        self.mask_interrupts();
        self.stop_queues();
        self.registers.change(CTRL, 0, CTRL_MASTER_DISABLE);
        // Linux's driver goes on, too, if the device has not ended all accesses in time.
        let _ = has_in_time(MASTER_LIMIT, || self.read(STATUS) & STATUS_MASTER == 0);
        self.registers.change(CTRL, CTRL_MASTER_DISABLE, CTRL_RESET);
        sleep(QUIET);
        let is_read = || self.read(EECD) & EECD_AUTO_READ_DONE != 0;
        if !has_in_time(AUTO_READ_LIMIT, is_read) {
            let (what, limit_ms) =
                ("reading its settings after a reset", AUTO_READ_LIMIT.as_millis());
            return Err(PciError::TooLong {
                address: self.address,
                what,
                limit_ms: limit_ms as u64,
            });
        }
        sleep(PHY_TIME);
        if self.is_gone() {
            return Err(PciError::NoAnswer { address: self.address });
        }
        self.mask_interrupts();
        // The reset has filled the first pair of registers from the NVM.
        let _ = self.own_address.set(self.first_address());
        self.set_registers(&filters);
        filters.needs_reset = false;
        drop(filters);
        // The reset has ended the link for a while, and cleared the cause.
        self.signal_link();
        Ok(())
    }

    /// Resets the card if it has stopped.
    pub(super) fn reset_if_stopped(&self) -> Result<(), PciError> {
        let needs_reset = self.filters().needs_reset;
        if needs_reset { self.reset() } else { Ok(()) }
    }

    fn mask_interrupts(&self) {
        self.write(IMC, u32::MAX);
        self.write(EIAC, 0);
        self.write(IAM, 0);
        // Reading clears the causes. On some models, only a write clears them.
        let _ = self.read(ICR);
        self.write(ICR, u32::MAX);
    }

    /// Stops both directions, and waits for accesses of memory to end, and for interrupts that are deferred: QEMU 7
    /// aborts if its vectors are taken away before.
    fn stop_queues(&self) {
        self.write(RCTL, 0);
        self.registers.change(TCTL, TCTL_ENABLE, 0);
        let _ = self.read(STATUS);
        let deferred = self.throttle.into_iter().max().unwrap_or(0);
        sleep(QUIET.max(Duration::from_nanos(u64::from(deferred) * 2 * 256)));
        for queue in 0..2 {
            for register in [RDLEN, RDH, RDT, TDLEN, TDH, TDT] {
                self.write(register.at(queue, QUEUE_STRIDE), 0);
            }
        }
    }

    fn set_registers(&self, filters: &Filters) {
        self.write(CTRL, CTRL_FULL_DUPLEX | CTRL_AUTO_SPEED | CTRL_LINK_UP);
        self.write(CTRL_EXT, CTRL_EXT_DRIVER_LOADED | CTRL_EXT_82574 | CTRL_EXT_CLEAR_PENDING);
        self.registers.change(GCR, 0, GCR_82574);
        self.write(VET, VLAN_ETHERTYPE);
        self.write(WUC, 0);
        self.write(PBA, PBA_DEFAULT);
        for off in [FCRTL, FCRTH, RDTR, RADV, TIDV, TADV, RSRPD, RAID, ITR, MRQC] {
            self.write(off, 0);
        }
        for index in 0..TABLE {
            self.write(MTA.at(index, 4), 0);
            self.write(VFTA.at(index, 4), 0);
        }
        self.write(RXCSUM, RXCSUM_DEFAULT);
        self.write(RFCTL, RFCTL_DEFAULT);
        self.write(TIPG, TIPG_DEFAULT);
        for queue in 0..2 {
            self.write(TXDCTL.at(queue, QUEUE_STRIDE), TXDCTL_DEFAULT);
            self.write(TARC.at(queue, QUEUE_STRIDE), TARC_DEFAULT);
        }
        self.write(RXDCTL, RXDCTL_DEFAULT);
        self.registers.change(GCR2, 0, GCR2_82574);
        self.registers.change(TARC, 0, TARC_82574);
        for (index, address) in (0..).zip(&filters.addresses) {
            self.set_address(index, *address);
        }
    }

    /// Returns the card's own address, which the first reset has read.
    pub(super) fn own_address(&self) -> [u8; 6] {
        self.own_address.get().copied().unwrap_or_default()
    }

    fn first_address(&self) -> [u8; 6] {
        let [low, high] = [RAL, RAH].map(|register| self.read(register).to_le_bytes());
        [low[0], low[1], low[2], low[3], high[0], high[1]]
    }

    fn set_address(&self, index: u32, address: Option<[u8; 6]>) {
        let (low, high) = (RAL.at(index, 8), RAH.at(index, 8));
        // The address is invalid until both halves are written.
        self.write(high, 0);
        let Some([a, b, c, d, e, f]) = address else { return self.write(low, 0) };
        self.write(low, u32::from_le_bytes([a, b, c, d]));
        self.write(high, u32::from_le_bytes([e, f, 0, 0]) | RAH_VALID);
    }

    fn filters(&self) -> std::sync::MutexGuard<'_, Filters> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the card receive packets to an address. Returns `true` if it has room.
    pub(super) fn add_address(&self, address: [u8; 6]) -> bool {
        let mut filters = self.filters();
        let Some(index) = filters.addresses.iter().position(Option::is_none) else { return false };
        filters.addresses[index] = Some(address);
        self.set_address(index as u32, Some(address));
        true
    }

    /// Ends the reception of packets to an address.
    pub(super) fn remove_address(&self, address: [u8; 6]) {
        let mut filters = self.filters();
        let index = filters.addresses.iter().position(|one| *one == Some(address));
        let Some(index) = index else { return };
        filters.addresses[index] = None;
        self.set_address(index as u32, None);
    }

    /// Lets the card receive packets to all groups if `is_on`, or ends that.
    pub(super) fn receive_groups(&self, is_on: bool) {
        let mut filters = self.filters();
        filters.groups = is_on;
        self.write(RCTL, filters.reception());
    }

    /// Lets the card receive every packet if `is_on`, or ends that.
    pub(super) fn receive_everything(&self, is_on: bool) {
        let mut filters = self.filters();
        filters.everything = is_on;
        self.write(RCTL, filters.reception());
    }

    /// Assigns a vector to each cause; the vector's interrupt clears and masks the cause. Then enables the
    /// interrupt for the link.
    pub(super) fn start_interrupts(&self) {
        for (vector, value) in (0..).zip(self.throttle) {
            self.write(EITR.at(vector, 4), value);
        }
        self.write(IVAR, IVAR_ONE_EACH);
        self.write(EIAC, QUEUE_CAUSES);
        self.arm_link();
    }

    /// Enables the interrupt for the next change of the link.
    pub(super) fn arm_link(&self) {
        // All causes of the vector: one that stays, such as the lack of receive buffers, would interrupt again.
        self.write(ICR, !QUEUE_CAUSES);
        self.write(IMS, CAUSE_LINK | CAUSE_OTHER);
    }

    /// Starts both directions, once the queues are set.
    pub(super) fn start(&self) {
        let mut filters = self.filters();
        filters.is_running = true;
        self.write(TCTL, TCTL_DEFAULT | TCTL_ENABLE);
        self.write(RCTL, filters.reception());
    }

    /// Stops both directions, and all interrupts.
    pub(super) fn stop(&self) {
        let mut filters = self.filters();
        (filters.is_running, filters.needs_reset) = (false, true);
        self.mask_interrupts();
        self.stop_queues();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a card over plain memory, in which no register changes by itself.
    fn double() -> Card {
        let link = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        Card::new(Registers::double(0x20000), "0000:00:03.0".parse().unwrap(), [7; 5], link)
    }

    #[test]
    fn a_card_that_does_not_answer_is_reported() {
        let card = double();
        card.write(STATUS, GONE);
        assert!(card.is_gone() && !card.is_link_up());
        let error = card.reset().unwrap_err();
        assert!(matches!(error, PciError::NoAnswer { .. }), "{error}");
    }

    #[test]
    fn a_reset_without_an_end_is_reported() {
        let error = double().reset().unwrap_err().to_string();
        assert!(error.contains("reading its settings") && error.contains("20 ms"), "{error}");
    }

    #[test]
    fn a_reset_sets_every_register_that_matters() {
        let card = double();
        card.write(EECD, EECD_AUTO_READ_DONE);
        for stale in [RCTL, RDT, TDT, TDLEN.at(1, QUEUE_STRIDE), MRQC, MTA.at(127, 4), EIAC] {
            card.write(stale, 7);
        }
        assert!(card.add_address([2, 3, 4, 5, 6, 7]));
        card.write(RAL, 0x1234_5452);
        card.write(RAH, RAH_VALID | 0x9a78);
        card.reset().unwrap();
        assert_eq!(card.own_address(), [0x52, 0x54, 0x34, 0x12, 0x78, 0x9a]);
        for stale in [RCTL, RDT, TDT, TDLEN.at(1, QUEUE_STRIDE), MRQC, MTA.at(127, 4), EIAC] {
            assert_eq!(card.read(stale), 0, "{stale:?}");
        }
        assert_eq!((card.read(VET), card.read(IMC)), (0x8100, u32::MAX));
        assert_eq!((card.read(RAL), card.read(RAH)), (0x0504_0302, 0x8000_0706));
        assert_eq!(card.read(RAH.at(1, 8)), 0);
        assert_eq!(card.read(TARC.at(1, QUEUE_STRIDE)) & 1 << 10, 1 << 10);
    }

    #[test]
    fn filters_fill_up_and_come_back() {
        let card = double();
        let address = |number: u8| [2, 0, 0, 0, 0, number];
        for number in 0..16 {
            assert!(card.add_address(address(number)));
        }
        assert!(!card.add_address(address(16)));
        card.remove_address(address(16));
        card.remove_address(address(3));
        assert_eq!(card.read(RAH.at(3, 8)), 0);
        assert!(card.add_address(address(17)));
        assert_eq!(card.read(RAH.at(3, 8)), RAH_VALID | 17 << 8);
        card.start();
        assert_eq!(card.read(RCTL) & (RCTL_BROADCAST | RCTL_ALL_UNICAST | RCTL_ALL_MULTICAST), 0);
        card.receive_groups(true);
        card.receive_everything(true);
        assert_ne!(card.read(RCTL) & RCTL_ALL_UNICAST, 0);
        card.receive_everything(false);
        let group = RCTL_BROADCAST | RCTL_ALL_MULTICAST;
        assert_eq!(card.read(RCTL) & (group | RCTL_ALL_UNICAST), group);
        assert_ne!(card.read(RCTL) & RCTL_ENABLE, 0);
    }
}
