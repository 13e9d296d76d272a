//! The freed leases for which the control thread has the engines answer.

use towpath_device::{Filter, FilterError, FlowRule, FlowVlan};

use crate::account::Account;
use crate::addresses::Lease;
use crate::control::Control;
use crate::engine::commands::Command;
use crate::engine::freed::FreedLease;
use crate::engines::Reply;

/// Returns the filters of a freed lease: packets to its MAC address, and requests for its addresses.
fn filters(mac: [u8; 6]) -> [Filter; 3] {
    let flow = FlowRule { mac: Some(mac), vlan: FlowVlan::Untagged, ..FlowRule::default() };
    [Filter::Flow(flow), Filter::Address(mac), Filter::AllGroups]
}

impl Control {
    /// Has the engines answer for the addresses of an account's freed lease. Does nothing for the host's own addresses,
    /// for which the kernel answers. Does nothing if the device has no room for the filters, or gives all packets to
    /// one session.
    pub(crate) fn answer_for(&mut self, lease: &Lease, account: Account) {
        if lease.shared
            || lease.ipv4.is_none() && lease.ipv6.is_none()
            || self.own_queues.takes_all()
        {
            return;
        }
        self.stop_answering_for(lease.mac);
        if !self.claim_filters_of(lease.mac) {
            return;
        }
        if let Some(yielded) = self.freed.push(lease.mac, account) {
            self.command(Command::StopAnsweringFor { mac: yielded.mac }, Reply::Nothing);
            self.release(&filters(yielded.mac));
        }
        let ipv4 = lease.ipv4.map(|(ip, bits)| (ip.to_bits(), bits));
        let freed = FreedLease { mac: lease.mac, ipv4, ipv6: lease.addresses().ipv6 };
        self.command(Command::AnswerFor(freed), Reply::Nothing);
    }

    /// Ends the answers for the freed lease with a MAC address, in all lanes, because another session gets the lease or
    /// another host claims an address.
    pub(crate) fn stop_answering_for(&mut self, mac: [u8; 6]) {
        if !self.freed.remove(mac) {
            return;
        }
        self.command(Command::StopAnsweringFor { mac }, Reply::Nothing);
        self.release(&filters(mac));
    }

    /// Ends the answers for the freed leases whose time is over.
    pub(crate) fn expire_freed(&mut self) {
        while let Some(mac) = self.freed.expired() {
            self.stop_answering_for(mac);
        }
    }

    /// Claims filters within the device's room, if need be in place of the filters of freed leases. Returns `false` if
    /// the device does not take the filters even then. The freed leases then keep their filters.
    pub(crate) fn claim_before_freed(&mut self, wanted: &[Filter]) -> bool {
        match self.claim_within_room(wanted) {
            Err(FilterError::Full | FilterError::NoRoom) => {}
            outcome => return outcome.is_ok(),
        }
        // A request that cannot succeed must not occupy the control thread, and takes no filters from the freed leases.
        if !self.has_room_without(wanted, self.freed.macs().flat_map(filters)) {
            return false;
        }
        let (mut yielding, mut counts) = (Vec::new(), self.freed.counts());
        let has_claimed = loop {
            let Some(lease) = self.freed.take_yielding(&mut counts) else { break false };
            self.release(&filters(lease.mac));
            yielding.push(lease);
            if !self.has_room_without(wanted, std::iter::empty()) {
                continue;
            }
            match self.claim_within_room(wanted) {
                Err(FilterError::Full | FilterError::NoRoom) => {}
                outcome => break outcome.is_ok(),
            }
        };
        for lease in yielding {
            if !has_claimed && self.claim_filters_of(lease.mac) {
                self.freed.put_back(lease);
            } else {
                self.command(Command::StopAnsweringFor { mac: lease.mac }, Reply::Nothing);
            }
        }
        has_claimed
    }

    fn claim_within_room(&mut self, wanted: &[Filter]) -> Result<(), FilterError> {
        self.filters.claim_within_room(&mut *self.parts.device, wanted)
    }

    /// Returns `true` if the device would have room for filters after the release of the claims `released`.
    fn has_room_without(&self, wanted: &[Filter], released: impl Iterator<Item = Filter>) -> bool {
        self.filters.would_have_room(&*self.parts.device, wanted, released)
    }

    /// Claims the filters of a freed lease. Returns `false` if the device has no room, or has to receive everything
    /// instead.
    fn claim_filters_of(&mut self, mac: [u8; 6]) -> bool {
        let wanted = filters(mac);
        !self.filters.are_everything(&wanted) && self.claim_within_room(&wanted).is_ok()
    }
}
