//! The freed leases for which the control thread has the engines answer.

use towpath_device::{Filter, FlowRule, FlowVlan};

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
    /// Has the engines answer for the addresses of a freed lease. Does nothing for the host's own addresses, for
    /// which the kernel answers. Does nothing if the device has no room for the filters, or gives all packets to one
    /// session.
    pub(crate) fn answer_for(&mut self, lease: &Lease) {
        if lease.shared
            || lease.ipv4.is_none() && lease.ipv6.is_none()
            || self.own_queues.takes_all()
        {
            return;
        }
        self.stop_answering_for(lease.mac);
        if self.freed.is_full() {
            self.forget_oldest();
        }
        if !self.filters.claim_if_room(&mut *self.parts.device, &filters(lease.mac)) {
            return;
        }
        self.freed.push(lease.mac);
        let ipv4 = lease.ipv4.map(|(ip, bits)| (ip.to_bits(), bits));
        let freed = FreedLease { mac: lease.mac, ipv4, ipv6: lease.addresses().ipv6 };
        self.command(Command::AnswerFor(freed), Reply::Nothing);
    }

    /// Ends the answers for the freed lease with a MAC address, in all lanes: because another session gets the lease, or
    /// another host claims an address.
    pub(crate) fn stop_answering_for(&mut self, mac: [u8; 6]) {
        if !self.freed.remove(mac) {
            return;
        }
        self.command(Command::StopAnsweringFor { mac }, Reply::Nothing);
        self.release(&filters(mac));
    }

    /// Ends the answers for the oldest freed lease. Returns `false` if there is none.
    pub(crate) fn forget_oldest(&mut self) -> bool {
        let Some(mac) = self.freed.oldest() else { return false };
        self.stop_answering_for(mac);
        true
    }

    /// Ends the answers for the freed leases whose time is over.
    pub(crate) fn expire_freed(&mut self) {
        while self.freed.has_expired() {
            self.forget_oldest();
        }
    }
}
