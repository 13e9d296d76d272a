//! The device as a whole: reset, link, addresses. The queues' own registers belong to [`super::queue`].

use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::names::*;
use crate::pci::registers::{GONE, Register, Registers};
use crate::pci::{PciAddress, PciError};

/// The addresses that the device compares with a packet's destination.
const ADDRESSES: u32 = 16;
/// The registers of each of the tables of groups and of VLANs.
const TABLE: u32 = 128;
/// The ethertype of a tag (IEEE 802.1Q).
const VLAN_ETHERTYPE: u32 = 0x8100;

/// Limits of waiting for the device. Linux's driver has the same ones.
const MASTER_LIMIT: Duration = Duration::from_millis(80);
const AUTO_READ_LIMIT: Duration = Duration::from_millis(20);
/// The time that accesses of memory take to end, and the settings of the PHY to be read.
const QUIET: Duration = Duration::from_millis(10);
const PHY_TIME: Duration = Duration::from_millis(25);

/// What the device receives.
#[derive(Clone, Debug, Default)]
struct Filters {
    addresses: [Option<[u8; 6]>; ADDRESSES as usize],
    /// `true` while the device receives packets to all groups.
    groups: bool,
    /// `true` while the device receives every packet.
    everything: bool,
}

/// A 82574L. The control thread and the engine share it.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) registers: Registers,
    address: PciAddress,
    filters: Mutex<Filters>,
}

/// Waits until a register has these bits, at most for `limit`. Returns `false` if it does not.
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
    pub(super) fn new(registers: Registers, address: PciAddress) -> Card {
        Card { registers, address, filters: Mutex::default() }
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

    /// Stops the device: no interrupt, no packet, no access of memory. Then resets it, and sets everything
    /// but the queues and the vectors. The order is that of Linux's driver (`e1000_reset_hw_82571` and
    /// `e1000_init_hw_82571`), with the registers that a reset leaves on some models.
    pub(super) fn reset(&self) -> Result<(), PciError> {
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
        self.set_everything();
        Ok(())
    }

    fn mask_interrupts(&self) {
        self.write(IMC, u32::MAX);
        self.write(EIAC, 0);
        self.write(IAM, 0);
        // Reading clears the causes; some models want them written.
        let _ = self.read(ICR);
        self.write(ICR, u32::MAX);
    }

    /// Stops both directions, and waits for accesses of memory to end.
    fn stop_queues(&self) {
        self.write(RCTL, 0);
        self.registers.change(TCTL, TCTL_ENABLE, 0);
        let _ = self.read(STATUS);
        sleep(QUIET);
    }

    fn set_everything(&self) {
        self.write(CTRL, CTRL_FULL_DUPLEX | CTRL_AUTO_SPEED | CTRL_LINK_UP);
        self.write(CTRL_EXT, CTRL_EXT_DRIVER_LOADED | CTRL_EXT_82574 | CTRL_EXT_CLEAR_PENDING);
        self.registers.change(GCR, 0, GCR_82574);
        self.write(VET, VLAN_ETHERTYPE);
        self.write(WUC, 0);
        self.write(PBA, PBA_USUAL);
        for off in [FCRTL, FCRTH, RDTR, RADV, TIDV, TADV, RSRPD, RAID, ITR, MRQC] {
            self.write(off, 0);
        }
        for index in 0..TABLE {
            self.write(MTA.at(index, 4), 0);
            self.write(VFTA.at(index, 4), 0);
        }
        self.write(RXCSUM, RXCSUM_USUAL);
        self.write(RFCTL, RFCTL_USUAL);
        self.write(TIPG, TIPG_USUAL);
        for queue in 0..2 {
            for register in [RDLEN, RDH, RDT, TDLEN, TDH, TDT] {
                self.write(register.at(queue, QUEUE_STRIDE), 0);
            }
            self.write(TXDCTL.at(queue, QUEUE_STRIDE), TXDCTL_USUAL);
            self.write(TARC.at(queue, QUEUE_STRIDE), TARC_USUAL);
        }
        self.write(RXDCTL, 1 << 24 | 4 << 16 | 4 << 8 | 0x20);
        let filters = self.filters().clone();
        for (index, address) in (0..).zip(&filters.addresses) {
            self.set_address(index, *address);
        }
    }

    /// Returns the device's own address, from the first pair of registers after a reset.
    pub(super) fn own_address(&self) -> [u8; 6] {
        let [low, high] = [RAL, RAH].map(|register| self.read(register).to_le_bytes());
        [low[0], low[1], low[2], low[3], high[0], high[1]]
    }

    fn set_address(&self, index: u32, address: Option<[u8; 6]>) {
        let (low, high) = (RAL.at(index, 8), RAH.at(index, 8));
        // Not valid while the halves differ in age.
        self.write(high, 0);
        let Some([a, b, c, d, e, f]) = address else { return self.write(low, 0) };
        self.write(low, u32::from_le_bytes([a, b, c, d]));
        self.write(high, u32::from_le_bytes([e, f, 0, 0]) | RAH_VALID);
    }

    fn filters(&self) -> std::sync::MutexGuard<'_, Filters> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives packets to an address. Returns `false` if the device has no room.
    pub(super) fn add_address(&self, address: [u8; 6]) -> bool {
        let mut filters = self.filters();
        let Some(index) = filters.addresses.iter().position(Option::is_none) else { return false };
        filters.addresses[index] = Some(address);
        self.set_address(index as u32, Some(address));
        true
    }

    pub(super) fn remove_address(&self, address: [u8; 6]) {
        let mut filters = self.filters();
        let index = filters.addresses.iter().position(|one| *one == Some(address));
        let Some(index) = index else { return };
        filters.addresses[index] = None;
        self.set_address(index as u32, None);
    }

    /// Receives packets to all groups, or no longer.
    pub(super) fn receive_groups(&self, is_on: bool) {
        let mut filters = self.filters();
        filters.groups = is_on;
        self.set_reception(&filters);
    }

    /// Receives every packet, or no longer.
    pub(super) fn receive_everything(&self, is_on: bool) {
        let mut filters = self.filters();
        filters.everything = is_on;
        self.set_reception(&filters);
    }

    fn set_reception(&self, filters: &Filters) {
        let groups = RCTL_ALL_MULTICAST | RCTL_BROADCAST;
        let set = match filters {
            Filters { everything: true, .. } => groups | RCTL_ALL_UNICAST,
            Filters { groups: true, .. } => groups,
            Filters { .. } => 0,
        };
        self.registers.change(RCTL, groups | RCTL_ALL_UNICAST, set);
    }

    /// Gives each cause its vector, which clears and masks it; and reports changes of the link from now on.
    pub(super) fn start_interrupts(&self) {
        self.write(IVAR, IVAR_ONE_EACH);
        self.write(EIAC, 3 * (CAUSE_RX | CAUSE_TX));
        self.report_link();
    }

    /// Reports the next change of the link.
    pub(super) fn report_link(&self) {
        self.write(ICR, CAUSE_LINK | CAUSE_OTHER);
        self.write(IMS, CAUSE_LINK | CAUSE_OTHER);
    }

    /// Starts both directions, once the queues are set.
    pub(super) fn start(&self) {
        self.write(TCTL, TCTL_USUAL | TCTL_ENABLE);
        self.write(RCTL, RCTL_LONG | RCTL_STRIP_CRC | RCTL_ENABLE);
        self.set_reception(&self.filters());
    }

    /// Stops both directions, and all interrupts.
    pub(super) fn stop(&self) {
        self.mask_interrupts();
        self.stop_queues();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory in place of the registers: it does nothing by itself.
    fn double() -> Card {
        Card::new(Registers::double(0x20000), "0000:00:03.0".parse().unwrap())
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
        card.reset().unwrap();
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
