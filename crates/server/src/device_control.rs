//! The control part of the device, and its filters for received packets: filters that applications claimed, and
//! filters of the freed leases for which the engines answer.

use std::time::Duration;

use towpath_device::{
    Access, Device, DmaError, Filter, FilterError, FlowRule, FlowVlan, HardwareQueues, Info,
    Registration,
};
use towpath_engine::account::Account;
use towpath_engine::commands::Command;
use towpath_engine::freed::FreedLease;
use towpath_engine::session::Session;
use towpath_protocol::message::Refusal;

use crate::addresses::Lease;
use crate::control_endpoint::ControlEndpoint;
use crate::device_settings::DeviceSettings;
use crate::engines::{Engines, Reply};
use crate::filters::{self, Filters};
use crate::freed::FreedLeases;
use crate::own_queues::OwnQueues;
use crate::refusal::Refused;

/// What an application reads if the device has no room for one of its filters.
const NO_ROOM: &str = "the device has no room for another filter, and cannot receive everything \
                       instead; close an endpoint or a session";

/// The control part of the device.
pub(crate) struct DeviceControl {
    /// It lives as long as the device's queue.
    device: Box<dyn Device>,
    /// The device's name in the log.
    log_name: String,
    /// The device's properties, with the interface's present name.
    info: Info,
    settings: DeviceSettings,
    own_queues: OwnQueues,
    /// `true` if the device cannot choose packets by their flows: a session's own queue takes all of them.
    takes_all: bool,
    filters: Filters,
    freed: FreedLeases,
    /// The hardware queues at the last change of their number; `None` before a change.
    hardware_queues: Option<HardwareQueues>,
}

/// Returns the filters of a freed lease: packets to its MAC address, and requests for its addresses.
fn filters_of_freed(mac: [u8; 6]) -> [Filter; 3] {
    let flow = FlowRule { mac: Some(mac), vlan: FlowVlan::Untagged, ..FlowRule::default() };
    [Filter::Flow(flow), Filter::Address(mac), Filter::AllGroups]
}

/// Returns the number of hardware queues that receive packets and that the device does not serve.
pub(crate) fn unserved(queues: HardwareQueues) -> u32 {
    queues.present.saturating_sub(queues.served)
}

impl DeviceControl {
    /// Controls a device with these properties, which has no filters yet. `log_name`: its name in the log.
    pub(crate) fn new(
        device: Box<dyn Device>,
        log_name: String,
        info: Info,
        settings: DeviceSettings,
        own_queues: OwnQueues,
    ) -> DeviceControl {
        let takes_all = device.own_queue_limits().is_ok_and(|limits| limits.takes_all);
        DeviceControl {
            device,
            log_name,
            info,
            settings,
            own_queues,
            takes_all,
            filters: Filters::default(),
            freed: FreedLeases::default(),
            hardware_queues: None,
        }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Returns the device, for changes that are not to its filters.
    pub(crate) fn device_mut(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    /// Returns the device's name in the log.
    pub(crate) fn log_name(&self) -> &str {
        &self.log_name
    }

    /// Returns the device's properties, with the interface's present name.
    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the interface's present name.
    pub(crate) fn name(&self) -> &str {
        &self.info.name
    }

    /// Returns the device's settings.
    pub(crate) fn settings(&self) -> &DeviceSettings {
        &self.settings
    }

    /// Returns the device's settings for changes.
    pub(crate) fn settings_mut(&mut self) -> &mut DeviceSettings {
        &mut self.settings
    }

    /// Returns `true` if the device cannot choose packets by their flows: a session's own queue takes all of them.
    pub(crate) fn takes_all(&self) -> bool {
        self.takes_all
    }

    /// Returns the hardware queues that sessions have to themselves.
    pub(crate) fn own_queues(&self) -> &OwnQueues {
        &self.own_queues
    }

    /// Returns the hardware queues that sessions have to themselves, for changes.
    pub(crate) fn own_queues_mut(&mut self) -> &mut OwnQueues {
        &mut self.own_queues
    }

    /// Records another MTU. Returns the MTU that holds: the memory of the engine has room for that of its start.
    pub(crate) fn set_mtu(&mut self, bytes: usize) -> usize {
        self.info.mtu = bytes.min(self.device.info().mtu);
        self.info.mtu
    }

    /// Records another MAC address.
    pub(crate) fn set_mac(&mut self, mac: [u8; 6]) {
        self.info.mac = mac;
    }

    /// Records another name of the interface.
    pub(crate) fn rename(&mut self, name: String) {
        self.info.name = name;
    }

    /// Records a change of the hardware queues. Returns the hardware queues after the last change, if there was one.
    pub(crate) fn set_hardware_queues(&mut self, queues: HardwareQueues) -> Option<HardwareQueues> {
        self.hardware_queues.replace(queues)
    }

    /// Returns the hardware queues if some of them receive packets that the device does not serve.
    pub(crate) fn unserved_queues(&self) -> Option<HardwareQueues> {
        self.hardware_queues.filter(|queues| unserved(*queues) > 0)
    }

    /// Registers the memory from which a session sends, for all of its parts. If the device
    /// refuses, the engines copy.
    ///
    /// # Errors
    /// Fails with the device's error.
    pub(crate) fn register(&self, sessions: &mut [Session]) -> Result<(), DmaError> {
        // A device that does not send in place never reads this memory.
        if !self.info.can.tx_in_place {
            return Ok(());
        }
        let Some(dma) = self.device.dma() else { return Ok(()) };
        let Some(first) = sessions.first() else { return Ok(()) };
        let registration = Registration::new(&dma, first.transmit_memory(), Access::Read)?;
        sessions.iter_mut().for_each(|one| one.set_registration(Some(registration.clone())));
        Ok(())
    }

    /// Adds the filters of a request to the device. If the device has no room, filters of freed leases give way.
    /// `what`: the name of the request in the refusal.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn claim(
        &mut self,
        engines: &mut Engines,
        what: &str,
        filters: &[Filter],
    ) -> Result<(), Refused> {
        // Filters of freed leases are not worth a device that receives everything.
        if !self.freed.is_empty() && self.claim_before_freed(engines, filters) {
            return Ok(());
        }
        let claimed = self.filters.claim_all(&mut *self.device, filters);
        claimed.map_err(|error| match error {
            FilterError::Full | FilterError::NoRoom => {
                (Refusal::Limit, format!("{what}: {NO_ROOM}"))
            }
            other => (Refusal::Limit, format!("{what}: {other}")),
        })
    }

    /// Tells the device which packets an endpoint receives. The flow of a session with a hardware queue of
    /// its own is that queue's; packets that arrive elsewhere come as always.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn claim_endpoint(
        &mut self,
        engines: &mut Engines,
        opened: &ControlEndpoint,
        own_queue: Option<u32>,
    ) -> Result<(), Refused> {
        let filters = filters::of_endpoint(opened);
        self.claim(engines, "open", &filters)?;
        let Some(hardware) = own_queue.filter(|_| opened.has_rule()) else { return Ok(()) };
        let outcome = self.device.own_flow(&opened.rule, hardware);
        outcome.map_err(|error| {
            self.release(&filters);
            (Refusal::Limit, format!("open: {error}"))
        })
    }

    /// Has the own queue of a session receive all packets, or none of them.
    pub(crate) fn direct(&mut self, hardware: Option<u32>) {
        if self.own_queues.direct(hardware) {
            self.device.direct(hardware);
        }
    }

    /// Removes filters of an application from the device.
    pub(crate) fn release(&mut self, filters: &[Filter]) {
        self.filters.release_all(&mut *self.device, filters);
    }

    /// Has the engines answer for the addresses of an account's freed lease. Does nothing for the host's own addresses,
    /// for which the kernel answers. Does nothing if the device has no room for the filters, or gives all packets to
    /// one session.
    pub(crate) fn answer_for(&mut self, engines: &mut Engines, lease: &Lease, account: Account) {
        if lease.shared || lease.ipv4.is_none() && lease.ipv6.is_none() || self.takes_all {
            return;
        }
        self.stop_answering_for(engines, lease.mac);
        if !self.claim_filters_of(lease.mac) {
            return;
        }
        if let Some(yielded) = self.freed.push(lease.mac, account) {
            engines.command(Command::StopAnsweringFor { mac: yielded.mac }, Reply::Nothing);
            self.release(&filters_of_freed(yielded.mac));
        }
        let ipv4 = lease.ipv4.map(|(ip, bits)| (ip.to_bits(), bits));
        let freed = FreedLease { mac: lease.mac, ipv4, ipv6: lease.addresses().ipv6 };
        engines.command(Command::AnswerFor(freed), Reply::Nothing);
    }

    /// Ends the answers for the freed lease with a MAC address, in all lanes, because another session gets the lease or
    /// another host claims an address.
    pub(crate) fn stop_answering_for(&mut self, engines: &mut Engines, mac: [u8; 6]) {
        if !self.freed.remove(mac) {
            return;
        }
        engines.command(Command::StopAnsweringFor { mac }, Reply::Nothing);
        self.release(&filters_of_freed(mac));
    }

    /// Ends the answers for the freed leases whose time is over.
    pub(crate) fn expire_freed(&mut self, engines: &mut Engines) {
        while let Some(mac) = self.freed.expired() {
            self.stop_answering_for(engines, mac);
        }
    }

    /// Returns the time until the answers for a freed lease end.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.freed.next_deadline()
    }

    /// Claims filters within the device's room, if need be in place of the filters of freed leases. Returns `false` if
    /// the device does not take the filters even then. The freed leases then keep their filters.
    fn claim_before_freed(&mut self, engines: &mut Engines, wanted: &[Filter]) -> bool {
        match self.claim_within_room(wanted) {
            Err(FilterError::Full | FilterError::NoRoom) => {}
            outcome => return outcome.is_ok(),
        }
        // A request that cannot succeed must not occupy the control thread, and takes no filters from the freed leases.
        if !self.has_room_without(wanted, self.freed.macs().flat_map(filters_of_freed)) {
            return false;
        }
        let (mut yielding, mut counts) = (Vec::new(), self.freed.counts());
        let has_claimed = loop {
            let Some(lease) = self.freed.take_yielding(&mut counts) else { break false };
            self.release(&filters_of_freed(lease.mac));
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
                engines.command(Command::StopAnsweringFor { mac: lease.mac }, Reply::Nothing);
            }
        }
        has_claimed
    }

    fn claim_within_room(&mut self, wanted: &[Filter]) -> Result<(), FilterError> {
        self.filters.claim_within_room(&mut *self.device, wanted)
    }

    /// Returns `true` if the device would have room for filters after the release of the claims `released`.
    fn has_room_without(&self, wanted: &[Filter], released: impl Iterator<Item = Filter>) -> bool {
        self.filters.would_have_room(&*self.device, wanted, released)
    }

    /// Claims the filters of a freed lease. Returns `false` if the device has no room, or has to receive everything
    /// instead.
    fn claim_filters_of(&mut self, mac: [u8; 6]) -> bool {
        let wanted = filters_of_freed(mac);
        !self.filters.are_everything(&wanted) && self.claim_within_room(&wanted).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use towpath_device_testing::loopback::{self, Cable, Reception};
    use towpath_protocol::settings::Values;
    use towpath_protocol::store::MemoryStore;

    use super::*;
    use crate::addresses::{Holder, Pool, Subnet, Subnets};
    use crate::engines::EngineSide;
    use crate::policy::Terms;
    use crate::resume::settings::ChangedSettings;

    const USER: Account = Account { uid: 7, group: None, is_limited: true };
    const OTHER: [Filter; 1] = [Filter::Address([2, 0, 0, 0, 0, 9])];

    /// Returns a device with room for so many filters of addresses.
    fn device(most_filters: usize) -> (DeviceControl, Cable) {
        let most_filters = Some(most_filters);
        let reception = Reception { filters_addresses: true, most_filters, ..Reception::default() };
        let config = loopback::Config { reception, ..Default::default() };
        let (device, _) = loopback::pair(&config).unwrap();
        let (cable, info) = (device.cable(), device.info().clone());
        let mut values = Values::default();
        let changed =
            ChangedSettings::adopt_or_create(None, &mut MemoryStore::default(), &mut values);
        let settings = DeviceSettings::new(values, changed.unwrap(), 64);
        let own_queues = OwnQueues::new(None, None);
        let name = "test".to_owned();
        (DeviceControl::new(Box::new(device), name, info, settings, own_queues), cable)
    }

    fn lease() -> Lease {
        let gateway = Ipv4Addr::new(10, 0, 0, 1);
        let subnets = Subnets { ipv4: Some(Subnet::new(gateway, 24)), ..Subnets::default() };
        let mut pool = Pool::new(subnets, [2, 0, 0, 0, 0, 1]).unwrap();
        pool.lease(&Holder { uid: 7, name: String::new() }, None, &Terms::default()).unwrap()
    }

    fn next_command(sides: &[EngineSide]) -> Option<Command> {
        sides[0].0.try_recv().ok().map(|(_, command)| command)
    }

    #[test]
    fn a_freed_lease_gives_way_to_a_session() {
        let ((mut device, cable), (mut engines, sides)) = (device(1), Engines::of_test(1));
        let lease = lease();
        device.answer_for(&mut engines, &lease, USER);
        let mac = lease.mac;
        assert!(
            matches!(next_command(&sides), Some(Command::AnswerFor(freed)) if freed.mac == mac)
        );
        assert_eq!(cable.filters(), [Filter::Address(mac), Filter::AllGroups]);
        assert!(device.next_deadline().is_some());
        device.claim(&mut engines, "attach", &OTHER).unwrap();
        assert!(
            matches!(next_command(&sides), Some(Command::StopAnsweringFor { mac: one }) if one == mac)
        );
        assert_eq!(cable.filters(), OTHER);
        assert!(device.next_deadline().is_none());
        device.release(&OTHER);
        assert_eq!(cable.filters(), []);
    }

    #[test]
    fn answers_for_a_freed_lease_end_with_its_next_session() {
        let ((mut device, cable), (mut engines, sides)) = (device(8), Engines::of_test(1));
        let lease = lease();
        device.answer_for(&mut engines, &lease, USER);
        assert!(matches!(next_command(&sides), Some(Command::AnswerFor(_))));
        device.stop_answering_for(&mut engines, lease.mac);
        assert!(matches!(next_command(&sides), Some(Command::StopAnsweringFor { .. })));
        assert_eq!(cable.filters(), []);
        device.stop_answering_for(&mut engines, lease.mac);
        device.expire_freed(&mut engines);
        assert!(next_command(&sides).is_none());
    }

    #[test]
    fn the_kernel_answers_for_shared_addresses() {
        let ((mut device, cable), (mut engines, sides)) = (device(8), Engines::of_test(1));
        let shared = Lease::shared([2, 0, 0, 0, 0, 1], Some((Ipv4Addr::LOCALHOST, 8)), None);
        device.answer_for(&mut engines, &shared, USER);
        assert!(next_command(&sides).is_none() && cable.filters().is_empty());
    }

    #[test]
    fn the_present_properties_follow_the_interface() {
        let (mut device, _cable) = device(1);
        let most = device.info().mtu;
        assert_eq!((device.set_mtu(most + 1), device.set_mtu(576)), (most, 576));
        device.rename("tap8".to_owned());
        device.set_mac([2; 6]);
        assert_eq!((device.name(), device.info().mac, device.info().mtu), ("tap8", [2; 6], 576));
        assert_eq!(device.log_name(), "test");
        let queues = HardwareQueues { present: 2, served: 2, can_serve_all: true };
        assert!(device.set_hardware_queues(queues).is_none());
        assert!(device.unserved_queues().is_none());
        let added = HardwareQueues { present: 3, ..queues };
        assert!(device.set_hardware_queues(added).is_some());
        assert_eq!(device.unserved_queues().map(unserved), Some(1));
    }
}
