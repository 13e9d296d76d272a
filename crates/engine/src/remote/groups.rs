//! MLD reports of the solicited-node groups of the IPv6 addresses for which the engine answers. Because of the reports,
//! solicitations for the addresses arrive behind a switch that snoops on reports.
//!
//! The engine does not report that it leaves a group: the stack of the address's session may still listen to the
//! group. The switch ends the membership when no host answers the querier's next queries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use towpath_packet::AnswerRate;
use towpath_packet::ipv6::solicited_node;
use towpath_packet::mld::{Groups, Query, Report};

/// The most stations whose reports the engine makes per poll iteration.
const MOST_STATIONS: usize = 16;
/// The least time between two queries for all groups that the engine handles, in nanoseconds. Such a query costs time for
/// each station, and any host of the link may forge queries. The reports that one leads to answer the next one.
const GENERAL_PAUSE_NS: u64 = 10_000_000;
/// The queries for one group that the engine handles per second.
const QUERIES_PER_SECOND: u32 = 100;

/// The addresses with one link address, and their groups.
#[derive(Debug, Default)]
struct Station {
    groups: Groups,
    addresses: BTreeSet<Ipv6Addr>,
    /// When reports are due, in nanoseconds, as in [`ReportedGroups::timers`].
    due: Option<u64>,
}

/// The groups of all stations for which the engine answers.
#[derive(Debug)]
pub(super) struct ReportedGroups {
    stations: BTreeMap<[u8; 6], Station>,
    timers: BTreeSet<(u64, [u8; 6])>,
    /// The time of the last query for all groups that the engine handled, in nanoseconds.
    queried: Option<u64>,
    rate: AnswerRate,
}

impl Default for ReportedGroups {
    fn default() -> ReportedGroups {
        let rate = AnswerRate::new(QUERIES_PER_SECOND, 0);
        ReportedGroups { stations: BTreeMap::new(), timers: BTreeSet::new(), queried: None, rate }
    }
}

impl ReportedGroups {
    /// Starts listening for solicitations of an IPv6 address; ignores an IPv4 address. `now`: the time in nanoseconds.
    pub(super) fn join(&mut self, now: u64, mac: [u8; 6], address: IpAddr) {
        let IpAddr::V6(address) = address else { return };
        let station = self.stations.entry(mac).or_default();
        station.addresses.insert(address);
        station.groups.join(now / 1000, solicited_node(address));
        station.schedule(mac, &mut self.timers);
    }

    /// Stops listening for solicitations of an address.
    pub(super) fn leave(&mut self, mac: [u8; 6], address: IpAddr) {
        let IpAddr::V6(address) = address else { return };
        let Some(station) = self.stations.get_mut(&mac) else { return };
        station.addresses.remove(&address);
        let group = solicited_node(address);
        if station.addresses.iter().all(|one| solicited_node(*one) != group) {
            station.groups.leave_unreported(group);
        }
        station.schedule(mac, &mut self.timers);
        if station.addresses.is_empty() {
            self.stations.remove(&mac);
        }
    }

    /// Handles a query. `random` returns random numbers.
    pub(super) fn handle_query(
        &mut self,
        now: u64,
        query: &Query,
        mut random: impl FnMut() -> u64,
    ) {
        let group = query.group();
        let is_in_time = match group {
            Some(_) => self.rate.take(now, random()),
            None => self.queried.is_none_or(|at| now >= at + GENERAL_PAUSE_NS),
        };
        if !is_in_time {
            return;
        }
        if group.is_none() {
            self.queried = Some(now);
        }
        let listens = |station: &Station| group.is_none_or(|group| station.groups.has(group));
        for (mac, station) in self.stations.iter_mut().filter(|(_, station)| listens(station)) {
            station.groups.handle_query(now / 1000, &mut random, query);
            station.schedule(*mac, &mut self.timers);
        }
    }

    /// Returns the link addresses and reports of at most [`MOST_STATIONS`] stations whose reports are due.
    pub(super) fn due(
        &mut self,
        now: u64,
        mut random: impl FnMut() -> u64,
    ) -> Vec<([u8; 6], Report)> {
        let mut reports = Vec::new();
        for _ in 0..MOST_STATIONS {
            let Some(&(_, mac)) = self.timers.first().filter(|(at, _)| *at <= now) else { break };
            let Some(station) = self.stations.get_mut(&mac) else { break };
            let due = station.groups.due(now / 1000, &mut random);
            reports.extend(due.into_iter().map(|report| (mac, report)));
            station.schedule(mac, &mut self.timers);
        }
        reports
    }

    /// Returns the time of the next reports, in nanoseconds.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }
}

impl Station {
    /// Records the time of the station's next reports in `timers`.
    fn schedule(&mut self, mac: [u8; 6], timers: &mut BTreeSet<(u64, [u8; 6])>) {
        if let Some(old) = self.due.take() {
            timers.remove(&(old, mac));
        }
        self.due = self.groups.poll_at_us().map(|us| us.saturating_mul(1000));
        timers.extend(self.due.map(|due| (due, mac)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

    fn address(bits: u128) -> IpAddr {
        Ipv6Addr::from_bits(0x2001_0db8 << 96 | bits).into()
    }

    /// Returns the link addresses of the reports until none is due.
    fn all_due(groups: &mut ReportedGroups) -> Vec<[u8; 6]> {
        let mut macs = Vec::new();
        while let Some(at) = groups.next_due() {
            macs.extend(groups.due(at, || 5).into_iter().map(|(mac, _)| mac));
        }
        macs
    }

    fn general_query() -> Query {
        query(Ipv6Addr::UNSPECIFIED)
    }

    /// Returns a query for the solicited-node group of an address.
    fn query_for(address: IpAddr) -> Query {
        let IpAddr::V6(address) = address else { panic!("IPv6") };
        query(solicited_node(address))
    }

    fn query(group: Ipv6Addr) -> Query {
        let head = [130, 0, 0, 0, 0, 0, 0, 0];
        Query::parse(&[&head[..], &group.octets(), &[0; 4]].concat()).unwrap()
    }

    #[test]
    fn each_station_reports_its_groups() {
        let mut groups = ReportedGroups::default();
        groups.join(0, MACS[0], std::net::Ipv4Addr::LOCALHOST.into());
        assert_eq!(groups.next_due(), None);
        // Two addresses of one group.
        for bits in [7, 1 << 64 | 7] {
            groups.join(0, MACS[0], address(bits));
        }
        groups.join(0, MACS[1], address(8));
        assert_eq!(all_due(&mut groups), [MACS[0], MACS[1], MACS[0], MACS[1]]);
        groups.leave(MACS[0], address(7));
        groups.leave(MACS[1], address(8));
        groups.handle_query(1_000_000_000, &general_query(), || 0);
        assert_eq!(all_due(&mut groups), [MACS[0]]);
        groups.leave(MACS[0], address(1 << 64 | 7));
        assert!(groups.stations.is_empty() && groups.timers.is_empty());
    }

    /// A poll iteration's work for reports and queries has limits.
    #[test]
    fn many_stations_and_queries_take_many_poll_iterations() {
        let mut groups = ReportedGroups::default();
        for last in 0..100 {
            groups.join(0, [2, 0, 0, 0, 0, last], address(last.into()));
        }
        assert_eq!(groups.due(0, || 0).len(), MOST_STATIONS);
        assert_eq!(groups.next_due(), Some(0));
        assert_eq!(all_due(&mut groups).len(), 200 - MOST_STATIONS);
        let mut drawn = 0;
        let mut draw = || {
            drawn += 1;
            1
        };
        for ms in 0..100 {
            groups.handle_query(2_000_000_000 + ms * 1_000_000, &general_query(), &mut draw);
        }
        // One random number per station and query.
        assert_eq!(drawn, 100 * 10);
    }

    #[test]
    fn queries_for_two_groups_at_once_are_both_answered() {
        let mut groups = ReportedGroups::default();
        for (mac, last) in [(MACS[0], 7), (MACS[1], 8)] {
            groups.join(0, mac, address(last));
        }
        all_due(&mut groups);
        for last in [7, 8] {
            groups.handle_query(1_000_000_000, &query_for(address(last)), || 0);
        }
        assert_eq!(all_due(&mut groups), MACS);
        // Queries for another group cost no work for any station.
        let mut drawn = 0;
        for _ in 0..200 {
            groups.handle_query(2_000_000_000, &query_for(address(9)), || {
                drawn += 1;
                1
            });
        }
        assert_eq!((drawn, groups.next_due()), (200, None));
    }
}
