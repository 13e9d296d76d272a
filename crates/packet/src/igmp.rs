//! Queries and reports of multicast groups over IPv4: IGMPv3 (RFC 3376), IGMPv2 (RFC 2236), IGMPv1 (RFC 1112).

use std::net::Ipv4Addr;

use crate::checksum::Sum;
use crate::groups::{self, Group, Record, Version, latest_reports};
use crate::numbers::ETHERTYPE_IPV4;

/// The protocol number of IGMP.
pub const PROTOCOL_IGMP: u8 = 2;
/// The group of all hosts of the link, which no host reports (RFC 3376, 5).
pub const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// The message type of a query.
pub const QUERY: u8 = 0x11;
/// The message types of reports, by version.
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const REPORT_V3: u8 = 0x22;
/// The message type with which a host leaves a group in version 2, and its destination: all routers (RFC 2236, 3).
const LEAVE_V2: u8 = 0x17;
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// The destination of reports of version 3 (RFC 3376, 4.2.14).
const ALL_ROUTERS_V3: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// The delay of a query of version 1, which names none: ten seconds (RFC 2236, 4).
const DELAY_V1_US: u64 = 10_000_000;

/// The bytes of the Ethernet header of a report.
const ETHERNET_BYTES: usize = 14;
/// The bytes of the IPv4 header, which has the router alert option (RFC 2113).
const IPV4_BYTES: usize = 24;
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];

/// A querier's question for the groups of hosts.
pub type Query = groups::Query<Ipv4Addr>;
/// A report to send.
pub type Report = groups::Report<Ipv4Addr>;
/// The groups of a host, and when to report them.
pub type Groups = groups::Groups<Ipv4Addr>;

impl Query {
    /// Returns `true` for a query of version 1.
    #[must_use]
    pub fn is_v1(&self) -> bool {
        self.version == Version::First
    }

    /// Parses a query: an IGMP message, whose checksum the caller has checked. Returns `None` for another message, and for
    /// a malformed one.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Query> {
        let (&[kind, code, _, _, a, b, c, d], rest) = message.split_first_chunk()?;
        // RFC 3376, 7.1: a length of 8 bytes means version 1 or 2, and 12 or more version 3.
        if kind != QUERY || !(rest.is_empty() || rest.len() >= 4) {
            return None;
        }
        let is_v3 = !rest.is_empty();
        let code_us = u64::from(code) * 100_000;
        let (version, delay_us) = match code {
            0 if !is_v3 => (Version::First, DELAY_V1_US),
            _ if !is_v3 => (Version::Second, code_us),
            0..0x80 => (Version::Third, code_us),
            // RFC 3376, 4.1.1: a floating-point value.
            _ => {
                (Version::Third, (u64::from(code & 0xf | 0x10) * 100_000) << ((code >> 4 & 7) + 3))
            }
        };
        let group = Ipv4Addr::new(a, b, c, d);
        let group = (!group.is_unspecified()).then_some(group);
        Some(Query { group, delay_us, version })
    }
}

/// Returns `true` if the options of an IPv4 header have a router alert (RFC 2113).
#[must_use]
pub fn has_router_alert(mut options: &[u8]) -> bool {
    const NO_OPERATION: u8 = 1;
    while let [kind, rest @ ..] = options {
        if *kind == NO_OPERATION {
            options = rest;
            continue;
        }
        if options.starts_with(&ROUTER_ALERT[..2]) {
            return true;
        }
        // The length includes the kind and itself. The end of the options has none.
        let Some(after) = rest.first().and_then(|&len| options.get(usize::from(len).max(2)..))
        else {
            return false;
        };
        options = after;
    }
    false
}

impl Report {
    /// Returns the report's frame, with the router alert option and the precedence of network control (RFC 3376, 4).
    /// `source`: an address of the host.
    #[must_use]
    pub fn frame(&self, mac: [u8; 6], source: Ipv4Addr) -> Vec<u8> {
        let Report { dst, message } = self;
        let [_, b, c, d] = dst.octets();
        let packet_bytes = (IPV4_BYTES + message.len()) as u16;
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + usize::from(packet_bytes));
        frame.extend_from_slice(&[0x01, 0, 0x5e, b & 0x7f, c, d]);
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        frame.extend_from_slice(&[0x46, 0xc0]);
        frame.extend_from_slice(&packet_bytes.to_be_bytes());
        // No fragments, so no identification (RFC 6864, 4.1); a time to live of 1.
        frame.extend_from_slice(&[0, 0, 0x40, 0, 1, PROTOCOL_IGMP, 0, 0]);
        frame.extend_from_slice(&source.octets());
        frame.extend_from_slice(&dst.octets());
        frame.extend_from_slice(&ROUTER_ALERT);
        frame.extend_from_slice(message);
        let (header, message) = (ETHERNET_BYTES, ETHERNET_BYTES + IPV4_BYTES);
        let header_sum = sum(&frame[header..message]);
        frame[header + 10..header + 12].copy_from_slice(&header_sum);
        let message_sum = sum(&frame[message..]);
        frame[message + 2..message + 4].copy_from_slice(&message_sum);
        frame
    }
}

fn sum(bytes: &[u8]) -> [u8; 2] {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.checksum().to_be_bytes()
}

impl Group for Ipv4Addr {
    fn add_reports(groups: &[Self], record: Record, version: Version, reports: &mut Vec<Report>) {
        let about = |kind: u8, dst: Option<Ipv4Addr>| {
            groups.iter().map(move |&group| {
                let message = [&[kind, 0, 0, 0][..], &group.octets()].concat();
                Report { dst: dst.unwrap_or(group), message }
            })
        };
        match (version, record) {
            (Version::First, Record::ToInclude) => {}
            (Version::First, _) => reports.extend(about(REPORT_V1, None)),
            (Version::Second, Record::ToInclude) => {
                reports.extend(about(LEAVE_V2, Some(ALL_ROUTERS)));
            }
            (Version::Second, _) => reports.extend(about(REPORT_V2, None)),
            (Version::Third, _) => {
                let octets = Ipv4Addr::octets;
                let dst = ALL_ROUTERS_V3;
                reports.extend(latest_reports(REPORT_V3, dst, groups, record, octets));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
    const OTHER: Ipv4Addr = Ipv4Addr::new(239, 129, 2, 4);
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn query(code: u8, group: Ipv4Addr, len: usize) -> Option<Query> {
        let mut message = vec![QUERY, code, 0, 0];
        message.extend_from_slice(&group.octets());
        message.resize(len, 0);
        Query::parse(&message)
    }

    /// Returns all reports until none is to come, without those of the first poll.
    fn rest(groups: &mut Groups) -> Vec<Report> {
        let mut reports = Vec::new();
        while let Some(at) = groups.poll_at_us() {
            reports.extend(groups.due(at, || 7));
        }
        reports
    }

    #[test]
    fn queries_of_all_versions_are_read() {
        let all = Ipv4Addr::UNSPECIFIED;
        for (code, group, len, expected) in [
            (0, all, 8, (None, DELAY_V1_US, Version::First)),
            (100, GROUP, 8, (Some(GROUP), 10_000_000, Version::Second)),
            (0xff, all, 8, (None, 25_500_000, Version::Second)),
            (0x7f, all, 12, (None, 12_700_000, Version::Third)),
            (0, GROUP, 12, (Some(GROUP), 0, Version::Third)),
            // A mantissa of 0 and an exponent of 0, and the largest of both (RFC 3376, 4.1.1).
            (0x80, all, 12, (None, 12_800_000, Version::Third)),
            (0xff, all, 40, (None, (31 << 10) * 100_000, Version::Third)),
        ] {
            let (group_read, delay_us, version) = expected;
            let expected = Query { group: group_read, delay_us, version };
            assert_eq!(query(code, group, len), Some(expected), "{code} {len}");
        }
        for len in [0, 4, 7, 9, 11] {
            assert_eq!(query(1, GROUP, len), None, "{len}");
        }
        assert_eq!(Query::parse(&[REPORT_V2, 0, 0, 0, 239, 1, 2, 3]), None);
    }

    #[test]
    fn a_report_names_new_groups_and_ended_ones() {
        let mut groups = Groups::default();
        groups.join(0, OTHER);
        groups.join(0, GROUP);
        let first = groups.due(0, || 7);
        let [report] = &first[..] else { panic!("{first:?}") };
        let frame = report.frame([2, 0, 0, 0, 0, 1], OWN);
        assert_eq!(frame[..6], [1, 0, 0x5e, 0, 0, 22]);
        assert_eq!(frame[14..22], [0x46, 0xc0, 0, 48, 0, 0, 0x40, 0]);
        assert_eq!(frame[22..24], [1, 2]);
        assert_eq!(frame[26..38], [10, 0, 0, 2, 224, 0, 0, 22, 0x94, 4, 0, 0]);
        // Both checksums are right.
        for part in [&frame[14..38], &frame[38..]] {
            assert_eq!(sum(part), [0, 0]);
        }
        // Each record begins to listen to all sources (RFC 3376, 4.2.12).
        assert_eq!(frame[42..50], [0, 0, 0, 2, 4, 0, 0, 0]);
        assert_eq!(frame[50..], [239, 1, 2, 3, 4, 0, 0, 0, 239, 129, 2, 4]);
        assert_eq!(rest(&mut groups), first);
        groups.leave(50, GROUP);
        let ends = groups.due(50, || 7);
        assert_eq!(ends[0].message[7..], [1, 3, 0, 0, 0, 239, 1, 2, 3]);
        assert_eq!(rest(&mut groups), ends);
        assert!(!groups.has(GROUP) && groups.has(OTHER));
        groups.leave(60, GROUP);
        assert_eq!(groups.poll_at_us(), None);
    }

    /// A group that the host joins again is not reported as ended.
    #[test]
    fn a_group_that_is_joined_again_has_not_ended() {
        let mut groups = Groups::default();
        groups.join(0, GROUP);
        rest(&mut groups);
        groups.leave(50, GROUP);
        groups.join(60, GROUP);
        let kinds: Vec<u8> = rest(&mut groups).iter().map(|report| report.message[8]).collect();
        assert_eq!(kinds, [4, 4]);
    }

    #[test]
    fn queriers_of_older_versions_get_their_reports() {
        for (code, kind, leave) in [(0, REPORT_V1, None), (10, REPORT_V2, Some(LEAVE_V2))] {
            let mut groups = Groups::default();
            groups.join(0, GROUP);
            rest(&mut groups);
            let general = query(code, Ipv4Addr::UNSPECIFIED, 8).unwrap();
            groups.handle_query(1000, || 7, &general);
            let reports = rest(&mut groups);
            let [report] = &reports[..] else { panic!("{reports:?}") };
            assert_eq!(
                (report.dst, &report.message[..]),
                (GROUP, &[kind, 0, 0, 0, 239, 1, 2, 3][..])
            );
            assert_eq!(report.frame([2; 6], OWN)[..6], [1, 0, 0x5e, 1, 2, 3]);
            groups.leave(2000, GROUP);
            let ends = rest(&mut groups);
            assert_eq!(ends.first().map(|report| report.message[0]), leave);
            assert!(ends.len() <= 1 && ends.iter().all(|report| report.dst == ALL_ROUTERS));
        }
    }
}
