//! The reset of the card: stops it, and sets all registers but those of the queues and the vectors.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use super::super::filters::{self, Filters};
use super::super::names::*;
use super::{Card, QUIET};
use crate::error::PciError;
use crate::signals::{has_in_time, signal};

/// The registers of each of the tables of groups and of VLANs.
const TABLE: u32 = 128;
/// The ethertype of a tag (IEEE 802.1Q).
const VLAN_ETHERTYPE: u32 = 0x8100;

/// The longest waits for the card, as in Linux's driver.
const MASTER_LIMIT: Duration = Duration::from_millis(80);
const AUTO_READ_LIMIT: Duration = Duration::from_millis(20);
/// The time in which the card reads the settings of its PHY.
const PHY_TIME: Duration = Duration::from_millis(25);

impl Card {
    /// Stops interrupts, packets and accesses of memory, and resets the card. Then sets all registers but those of the
    /// queues and the vectors, because some models do not reset them. The order is that of Linux's driver
    /// (`e1000_reset_hw_82571` and `e1000_init_hw_82571`).
    pub(crate) fn reset(&self) -> Result<(), PciError> {
        self.reset_locked(&mut self.filters())
    }

    /// Resets the card, unless it was reset more often than so many times: both queues may ask for a reset
    /// at once. The engines of all queues then set their registers anew.
    pub(crate) fn reset_once(&self, resets: u32) -> Result<(), PciError> {
        let mut filters = self.filters();
        if self.resets() != resets {
            return Ok(());
        }
        self.reset_locked(&mut filters)?;
        self.wiring.queues.iter().for_each(|queue| signal(queue));
        Ok(())
    }

    fn reset_locked(&self, filters: &mut Filters) -> Result<(), PciError> {
        (filters.is_running, filters.set) = (false, 0);
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
        filters.forget_left();
        // The reset has filled the first pair of registers from the NVM.
        let _ = self.own_address.set(filters::address(&self.registers, 0).0);
        self.set_registers(filters);
        filters.needs_reset = false;
        // SYNC: once the card has stopped. Partner: `Card::resets`.
        self.resets.fetch_add(1, Ordering::Release);
        // The reset has ended the link for a while, and cleared the cause.
        self.signal_link();
        Ok(())
    }

    /// Resets the card if it has stopped.
    pub(crate) fn reset_if_stopped(&self) -> Result<(), PciError> {
        let mut filters = self.filters();
        if filters.needs_reset { self.reset_locked(&mut filters) } else { Ok(()) }
    }

    fn set_registers(&self, filters: &Filters) {
        self.write(CTRL, CTRL_FULL_DUPLEX | CTRL_AUTO_SPEED | CTRL_LINK_UP | CTRL_VLAN_MODE);
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
        filters.set_addresses(&self.registers);
        self.wiring.steering.set(&self.registers);
    }
}
