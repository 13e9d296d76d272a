//! The filters of the device: addresses, groups and flows that applications claimed. Several claims
//! may want one filter; the device has it from the first claim to the last release.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use towpath_device::{Device, Filter, FilterError};
use towpath_engine::commands::Listening;
use towpath_packet::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_UDP,
};
use towpath_packet::roce::UDP_PORT;
use towpath_packet::{FlowRule, FlowVlan};

use crate::control_endpoint::ControlEndpoint;

/// Which part applies a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppliedBy {
    /// The device has it.
    Device,
    /// The device does not filter by this kind; the engine does.
    Engine,
    /// The device had no room for it, and receives everything in its place.
    Everything,
}

/// The claimed filters, each with its claims.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    claims: HashMap<Filter, (AppliedBy, u32)>,
}

impl Filters {
    /// Claims filters, all or none. A device without room for one of them receives everything instead.
    ///
    /// # Errors
    /// Fails if the device does not take one of them, and does not receive everything instead.
    pub(crate) fn claim_all(
        &mut self,
        device: &mut dyn Device,
        filters: &[Filter],
    ) -> Result<(), FilterError> {
        self.claim_each(device, filters, |claimed, device, filter| {
            claimed.claim(device, filter).or_else(|error| match error {
                FilterError::Full if filter != Filter::Everything => {
                    claimed.claim(device, Filter::Everything)?;
                    claimed.claims.insert(filter, (AppliedBy::Everything, 1));
                    Ok(())
                }
                error => Err(error),
            })
        })
    }

    /// Claims filters, all or none. The device does not receive everything instead.
    ///
    /// # Errors
    /// Fails with the device's error if the device does not take one of the filters: with [`FilterError::Full`] or
    /// [`FilterError::NoRoom`] if the device has no room.
    pub(crate) fn claim_within_room(
        &mut self,
        device: &mut dyn Device,
        filters: &[Filter],
    ) -> Result<(), FilterError> {
        self.claim_each(device, filters, Filters::claim)
    }

    /// Returns `true` if the device would have room for filters after the release of the claims `released`. Changes
    /// nothing.
    pub(crate) fn would_have_room(
        &self,
        device: &dyn Device,
        wanted: &[Filter],
        released: impl Iterator<Item = Filter>,
    ) -> bool {
        let mut counts = HashMap::<Filter, u32>::new();
        released.for_each(|filter| *counts.entry(filter).or_default() += 1);
        let goes = |(filter, count)| {
            (self.claims.get(&filter) == Some(&(AppliedBy::Device, count))).then_some(filter)
        };
        let removed: Vec<_> = counts.into_iter().filter_map(goes).collect();
        let is_new =
            |filter: &Filter| removed.contains(filter) || !self.claims.contains_key(filter);
        let wanted: Vec<_> = wanted.iter().copied().filter(is_new).collect();
        device.would_have_room(&wanted, &removed)
    }

    /// Returns `true` if the device receives everything in place of one of these filters.
    pub(crate) fn are_everything(&self, filters: &[Filter]) -> bool {
        let mut claims = filters.iter().filter_map(|filter| self.claims.get(filter));
        claims.any(|(applied_by, _)| *applied_by == AppliedBy::Everything)
    }

    fn claim_each(
        &mut self,
        device: &mut dyn Device,
        filters: &[Filter],
        claim: impl Fn(&mut Filters, &mut dyn Device, Filter) -> Result<(), FilterError>,
    ) -> Result<(), FilterError> {
        for (index, filter) in filters.iter().enumerate() {
            if let Err(error) = claim(self, device, *filter) {
                self.release_all(device, &filters[..index]);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Releases claims.
    pub(crate) fn release_all(&mut self, device: &mut dyn Device, filters: &[Filter]) {
        for filter in filters {
            self.release(device, *filter);
        }
    }

    fn claim(&mut self, device: &mut dyn Device, filter: Filter) -> Result<(), FilterError> {
        if let Some((_, claims)) = self.claims.get_mut(&filter) {
            *claims += 1;
            return Ok(());
        }
        let applied_by = match device.add_filter(&filter) {
            Ok(()) => AppliedBy::Device,
            Err(FilterError::Unsupported) => AppliedBy::Engine,
            Err(error) => return Err(error),
        };
        self.claims.insert(filter, (applied_by, 1));
        Ok(())
    }

    fn release(&mut self, device: &mut dyn Device, filter: Filter) {
        let Entry::Occupied(mut entry) = self.claims.entry(filter) else { return };
        let (applied_by, claims) = entry.get_mut();
        *claims -= 1;
        if *claims > 0 {
            return;
        }
        let applied_by = *applied_by;
        entry.remove();
        match applied_by {
            AppliedBy::Device => device.remove_filter(&filter),
            AppliedBy::Engine => {}
            AppliedBy::Everything => self.release(device, Filter::Everything),
        }
    }
}

/// Returns the filters for the packets that an endpoint receives.
pub(crate) fn of_endpoint(opened: &ControlEndpoint) -> Vec<Filter> {
    match opened.listening {
        Some(Listening::Promiscuous | Listening::Capture) => return vec![Filter::Everything],
        Some(Listening::LinkControl) => return of_link_control(&opened.rule),
        None => {}
    }
    if opened.is_for_neighbours {
        return Vec::new();
    }
    let mut filters = vec![
        Filter::Flow(opened.rule),
        opened.rule.mac.map_or(Filter::Everything, Filter::Address),
    ];
    if opened.group || !opened.reachable.is_empty() {
        filters.push(Filter::AllGroups);
    }
    for (ip, own) in &opened.reachable {
        filters.extend(of_reachable(*ip, own.mac));
    }
    filters
}

/// Returns the filters for the packets that keep a link working, to the MAC address and in the VLAN of a rule.
fn of_link_control(rule: &FlowRule) -> Vec<Filter> {
    let of = |ethertype, protocol| {
        Filter::Flow(FlowRule { ethertype: Some(ethertype), protocol, ..*rule })
    };
    let mut filters = vec![
        of(ETHERTYPE_ARP, None),
        of(ETHERTYPE_IPV4, Some(PROTOCOL_ICMP)),
        of(ETHERTYPE_IPV6, Some(PROTOCOL_ICMPV6)),
    ];
    filters.extend(rule.mac.map(Filter::Address));
    filters
}

/// Returns the filters for connections of other hosts with an address: their packets, and what tells
/// the link addresses of the hosts.
fn of_reachable(ip: IpAddr, mac: [u8; 6]) -> [Filter; 2] {
    let own = FlowRule { mac: Some(mac), vlan: FlowVlan::Untagged, ..FlowRule::default() };
    let (protocol, port) = (Some(PROTOCOL_UDP), Some(UDP_PORT));
    let packets = FlowRule { ip: Some(ip), protocol, port, ..own };
    let addresses = match ip {
        IpAddr::V4(_) => FlowRule { ethertype: Some(ETHERTYPE_ARP), ..own },
        IpAddr::V6(_) => FlowRule { protocol: Some(PROTOCOL_ICMPV6), ..own },
    };
    [Filter::Flow(packets), Filter::Flow(addresses)]
}

#[cfg(test)]
mod tests {
    use towpath_device_testing::loopback::{self, Cable, LoopbackDevice, Reception};

    use super::*;

    const ONE: Filter = Filter::Address([2, 0, 0, 0, 0, 1]);
    const TWO: Filter = Filter::Address([2, 0, 0, 0, 0, 2]);

    fn device(reception: Reception) -> (LoopbackDevice, Cable, Filters) {
        let config = loopback::Config { reception, ..Default::default() };
        let (device, _) = loopback::pair(&config).unwrap();
        let cable = device.cable();
        (device, cable, Filters::default())
    }

    fn by_address(most_filters: Option<usize>) -> Reception {
        Reception { filters_addresses: true, most_filters, ..Reception::default() }
    }

    #[test]
    fn a_filter_lasts_from_the_first_claim_to_the_last_release() {
        let (mut device, cable, mut filters) = device(by_address(None));
        filters.claim_all(&mut device, &[ONE, Filter::AllGroups]).unwrap();
        filters.claim_all(&mut device, &[ONE, TWO]).unwrap();
        assert_eq!(cable.filters(), [ONE, TWO, Filter::AllGroups]);
        filters.release_all(&mut device, &[ONE, Filter::AllGroups]);
        assert_eq!(cable.filters(), [ONE, TWO]);
        filters.release_all(&mut device, &[ONE, TWO]);
        assert_eq!(cable.filters(), []);
        assert!(filters.claims.is_empty());
    }

    #[test]
    fn a_device_without_room_receives_everything_while_it_must() {
        let (mut device, cable, mut filters) = device(by_address(Some(1)));
        filters.claim_all(&mut device, &[ONE, TWO]).unwrap();
        assert_eq!(cable.filters(), [ONE, Filter::Everything]);
        // An endpoint that captures.
        filters.claim_all(&mut device, &[Filter::Everything]).unwrap();
        filters.release_all(&mut device, &[TWO]);
        assert_eq!(cable.filters(), [ONE, Filter::Everything]);
        filters.release_all(&mut device, &[Filter::Everything]);
        assert_eq!(cable.filters(), [ONE]);
    }

    #[test]
    fn a_claim_within_room_never_makes_the_device_receive_everything() {
        let (mut device, cable, mut filters) = device(by_address(Some(1)));
        let refused = filters.claim_within_room(&mut device, &[ONE, TWO]);
        assert!(matches!(refused, Err(FilterError::Full)), "{refused:?}");
        assert!(cable.filters().is_empty() && filters.claims.is_empty());
        filters.claim_within_room(&mut device, &[ONE]).unwrap();
        filters.claim_all(&mut device, &[TWO]).unwrap();
        assert!(filters.are_everything(&[ONE, TWO]) && !filters.are_everything(&[ONE]));
        // A claim of a filter that the device has already takes no room.
        filters.claim_within_room(&mut device, &[TWO]).unwrap();
        filters.release_all(&mut device, &[TWO]);
        assert_eq!(cable.filters(), [ONE, Filter::Everything]);
    }

    #[test]
    fn what_the_device_does_not_filter_the_engine_does() {
        let (mut device, cable, mut filters) = device(Reception::default());
        let all = [ONE, Filter::AllGroups, Filter::Everything, Filter::Flow(FlowRule::default())];
        filters.claim_all(&mut device, &all).unwrap();
        assert_eq!(cable.filters(), []);
        filters.release_all(&mut device, &all);
        assert!(filters.claims.is_empty());
    }

    /// A device that fails to add anything but one address.
    struct Failing(LoopbackDevice);

    impl Device for Failing {
        fn info(&self) -> &towpath_device::Info {
            self.0.info()
        }

        fn open_queue(
            &mut self,
            index: usize,
            spaces: &mut towpath_device::Spaces,
        ) -> Result<Box<dyn towpath_device::DeviceQueue>, towpath_device::DeviceError> {
            self.0.open_queue(index, spaces)
        }

        fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
            if *filter == ONE { self.0.add_filter(filter) } else { Err(FilterError::Full) }
        }

        fn remove_filter(&mut self, filter: &Filter) {
            self.0.remove_filter(filter);
        }
    }

    #[test]
    fn a_claim_that_fails_leaves_nothing() {
        let (device, cable, mut filters) = device(by_address(None));
        let mut device = Failing(device);
        let failed = filters.claim_all(&mut device, &[ONE, TWO]);
        assert!(matches!(failed, Err(FilterError::Full)), "{failed:?}");
        assert_eq!(cable.filters(), []);
        assert!(filters.claims.is_empty());
    }

    #[test]
    fn an_endpoint_wants_its_flow_its_address_and_groups() {
        let rule = FlowRule {
            mac: Some([2, 0, 0, 0, 0, 1]),
            vlan: FlowVlan::Number(7),
            port: Some(2000),
            ..FlowRule::default()
        };
        let opened = |rule, group| ControlEndpoint { group, ..ControlEndpoint::of_rule(rule) };
        let with_groups = [Filter::Flow(rule), ONE, Filter::AllGroups];
        assert_eq!(of_endpoint(&opened(rule, true)), with_groups);
        let any = FlowRule { mac: None, ..rule };
        assert_eq!(of_endpoint(&opened(any, false)), [Filter::Flow(any), Filter::Everything]);
    }
}
