//! The filters for received packets: addresses and kinds of packets.

use super::names::*;
use crate::registers::Registers;

/// The addresses that the device compares with a packet's destination.
const ADDRESSES: u32 = 16;
/// The bits of `RCTL` for kinds of packets.
const KINDS: u32 = RCTL_ALL_UNICAST | RCTL_ALL_MULTICAST | RCTL_BROADCAST;

/// The filters, and the state that decides whether they are in force.
#[derive(Debug, Default)]
pub(super) struct Filters {
    /// `true` while both directions run.
    pub(super) is_running: bool,
    /// `true` once the card has stopped, until its next reset.
    pub(super) needs_reset: bool,
    /// A bit for each open queue, and for each whose registers are set. Both directions run once all are.
    pub(super) open: u8,
    pub(super) set: u8,
    /// `true` while queue 1, a session's own, receives all packets of IP.
    pub(super) directs: bool,
    addresses: [Option<Address>; ADDRESSES as usize],
    /// `true` while the device receives packets to all groups.
    groups: bool,
    /// `true` while the device receives every packet.
    everything: bool,
    /// The [`KINDS`] that an earlier server has left.
    left: u32,
}

/// An address that the device compares with a packet's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) octets: [u8; 6],
    /// `true` for an address of an earlier server that is no filter of this one yet.
    is_left: bool,
}

/// Returns the address in a pair of registers, and whether it is valid.
pub(super) fn address(registers: &Registers, index: u32) -> ([u8; 6], bool) {
    let [low, high] = [RAL, RAH].map(|register| registers.read(register.at(index, 8)));
    let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
    ([a, b, c, d, e, f], high & RAH_VALID != 0)
}

fn set_address(registers: &Registers, index: u32, address: Option<[u8; 6]>) {
    let (low, high) = (RAL.at(index, 8), RAH.at(index, 8));
    // The address is invalid until both halves are written.
    registers.write(high, 0);
    let Some([a, b, c, d, e, f]) = address else { return registers.write(low, 0) };
    registers.write(low, u32::from_le_bytes([a, b, c, d]));
    registers.write(high, u32::from_le_bytes([e, f, 0, 0]) | RAH_VALID);
}

impl Filters {
    /// Returns the value of `RCTL`.
    pub(super) fn reception(&self) -> u32 {
        let groups = RCTL_ALL_MULTICAST | RCTL_BROADCAST;
        let filters = match self {
            Filters { everything: true, .. } => groups | RCTL_ALL_UNICAST,
            Filters { groups: true, .. } => groups,
            Filters { .. } => 0,
        };
        let on = RCTL_LONG | RCTL_STRIP_CRC | RCTL_ENABLE | filters | self.left;
        if self.is_running { on } else { 0 }
    }

    /// Sets the registers of all addresses.
    pub(super) fn set_addresses(&self, registers: &Registers) {
        for (index, address) in (0..).zip(&self.addresses) {
            set_address(registers, index, address.map(|one| one.octets));
        }
    }

    /// Adds an address. Returns `true` if there is room.
    pub(super) fn add(&mut self, registers: &Registers, octets: [u8; 6]) -> bool {
        let place = |is_it: fn(&Option<Address>, [u8; 6]) -> bool| {
            self.addresses.iter().position(|one| is_it(one, octets))
        };
        let theirs = place(|one, octets| one.is_some_and(|one| one.octets == octets));
        let free = || place(|one, _| one.is_none());
        let left = || place(|one, _| one.is_some_and(|one| one.is_left));
        let Some(index) = theirs.or_else(free).or_else(left) else { return false };
        self.addresses[index] = Some(Address { octets, is_left: false });
        // The card goes on receiving packets to an address that it has.
        if theirs.is_none() {
            set_address(registers, index as u32, Some(octets));
        }
        true
    }

    /// Returns `true` if there is room for `wanted` more addresses after the removal of `removed` addresses. The places
    /// of an earlier server's addresses count as free.
    pub(super) fn would_have_room(&self, wanted: usize, removed: usize) -> bool {
        let own = self.addresses.iter().flatten().filter(|one| !one.is_left).count();
        own.saturating_sub(removed) + wanted <= self.addresses.len()
    }

    /// Removes the addresses that `which` selects.
    pub(super) fn remove(&mut self, registers: &Registers, which: impl Fn(Address) -> bool) {
        for (index, address) in (0..).zip(&mut self.addresses) {
            if address.is_some_and(&which) {
                *address = None;
                set_address(registers, index, None);
            }
        }
    }

    /// Lets the card receive packets to all groups if `is_on`, or ends that.
    pub(super) fn set_groups(&mut self, registers: &Registers, is_on: bool) {
        self.groups = is_on;
        registers.write(RCTL, self.reception());
    }

    /// Lets the card receive every packet if `is_on`, or ends that.
    pub(super) fn set_everything(&mut self, registers: &Registers, is_on: bool) {
        self.everything = is_on;
        registers.write(RCTL, self.reception());
    }

    /// Goes on with the filters of an earlier server, until [`Filters::remove_left`].
    pub(super) fn go_on(&mut self, registers: &Registers) {
        self.is_running = true;
        self.left = registers.read(RCTL) & KINDS;
        for (index, place) in (0..).zip(&mut self.addresses) {
            let (octets, is_valid) = address(registers, index);
            *place = is_valid.then_some(Address { octets, is_left: true });
        }
    }

    /// Removes the filters of an earlier server that are none of this one.
    pub(super) fn remove_left(&mut self, registers: &Registers) {
        self.remove(registers, |one| one.is_left);
        if std::mem::take(&mut self.left) != 0 {
            registers.write(RCTL, self.reception());
        }
    }

    /// Forgets the filters of an earlier server, which a reset has removed.
    pub(super) fn forget_left(&mut self) {
        self.left = 0;
        self.addresses.iter_mut().for_each(|one| *one = one.filter(|one| !one.is_left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_fill_up_and_come_back() {
        let registers = Registers::double(0x20000);
        let mut filters = Filters { is_running: true, ..Filters::default() };
        let address = |number: u8| [2, 0, 0, 0, 0, number];
        assert!((0..16).all(|number| filters.add(&registers, address(number))));
        assert!(!filters.add(&registers, address(16)));
        filters.remove(&registers, |one| one.octets == address(16));
        filters.remove(&registers, |one| one.octets == address(3));
        assert_eq!(registers.read(RAH.at(3, 8)), 0);
        assert!(filters.add(&registers, address(17)));
        assert_eq!(registers.read(RAH.at(3, 8)), RAH_VALID | 17 << 8);
        assert_eq!(filters.reception() & KINDS, 0);
        filters.set_groups(&registers, true);
        filters.set_everything(&registers, true);
        assert_ne!(registers.read(RCTL) & RCTL_ALL_UNICAST, 0);
        filters.set_everything(&registers, false);
        assert_eq!(registers.read(RCTL) & KINDS, RCTL_BROADCAST | RCTL_ALL_MULTICAST);
        assert_ne!(registers.read(RCTL) & RCTL_ENABLE, 0);
    }
}
