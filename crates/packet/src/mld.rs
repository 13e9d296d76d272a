//! Queries and reports of multicast groups over IPv6: MLDv2 (RFC 3810) and MLDv1 (RFC 2710).
//!
//! A host listens to the groups of neighbour discovery: a solicited-node group for each of its addresses. Without
//! reports, no solicitation would arrive behind a switch that snoops on them, and the host would be unreachable by IPv6.

use std::net::Ipv6Addr;

use crate::checksum::Sum;
use crate::groups::{self, Group, Record, Version, latest_reports};
use crate::numbers::{ETHERTYPE_IPV6, PROTOCOL_ICMPV6};

/// The ICMPv6 type of a query.
pub const QUERY: u8 = 130;
/// The ICMPv6 type of a report of MLDv1, which names one group.
const REPORT_V1: u8 = 131;
/// The ICMPv6 type with which a host leaves a group in MLDv1, and its destination: all routers (RFC 2710, 5).
const DONE_V1: u8 = 132;
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// The ICMPv6 type of a report of MLDv2.
const REPORT_V2: u8 = 143;
/// The destination of reports of MLDv2 (RFC 3810, 5.2.14).
const ALL_ROUTERS_V2: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// The bytes of the Ethernet and IPv6 headers of a report, and its hop-by-hop header, which alerts routers (RFC 2711).
const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const ROUTER_ALERT: [u8; 8] = [PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// The next header number of hop-by-hop options (RFC 8200, 4.3).
const HOP_BY_HOP: u8 = 0;

/// A querier's question for the groups of hosts.
pub type Query = groups::Query<Ipv6Addr>;
/// A report to send.
pub type Report = groups::Report<Ipv6Addr>;
/// The groups of a host, and when to report them.
pub type Groups = groups::Groups<Ipv6Addr>;

impl Query {
    /// Parses an MLD query: an ICMPv6 message. Returns `None` if it is malformed. The caller has checked that the query
    /// is from a link-local address, and has a hop limit of 1 and a router alert (RFC 3810, 6.2).
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Query> {
        // RFC 3810, 8.1: a length of 24 bytes means MLDv1, and 28 or more MLDv2.
        let is_v1 = message.len() == 24;
        if message.first() != Some(&QUERY) || !is_v1 && message.len() < 28 {
            return None;
        }
        let code = u64::from(u16::from_be_bytes([message[4], message[5]]));
        let millis = match code {
            // RFC 3810, 5.1.3: a floating-point value.
            0x8000.. if !is_v1 => (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
            code => code,
        };
        let mut group = [0; 16];
        group.copy_from_slice(&message[8..24]);
        let group = Ipv6Addr::from(group);
        let group = (!group.is_unspecified()).then_some(group);
        let version = if is_v1 { Version::Second } else { Version::Third };
        Some(Query { group, delay_us: millis * 1000, version })
    }

    /// Reads an untagged frame. Returns `None` if the frame is no query, or a query that a host must ignore (RFC 3810,
    /// 6.2).
    #[must_use]
    pub fn of_frame(frame: &[u8]) -> Option<Query> {
        let (ethernet, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
        let (header, payload) = packet.split_first_chunk::<IPV6_BYTES>()?;
        if ethernet[12..] != ETHERTYPE_IPV6.to_be_bytes() || header[0] >> 4 != 6 {
            return None;
        }
        let payload = payload.get(..usize::from(u16::from_be_bytes([header[4], header[5]])))?;
        let [source, destination] = [8, 24].map(|at| {
            let mut address = [0; 16];
            address.copy_from_slice(&header[at..at + 16]);
            Ipv6Addr::from(address)
        });
        if !source.is_unicast_link_local() || (header[6], header[7]) != (HOP_BY_HOP, 1) {
            return None;
        }
        let options_bytes = 8 + usize::from(*payload.get(1)?) * 8;
        let (options, message) = payload.split_at_checked(options_bytes)?;
        if options[0] != PROTOCOL_ICMPV6 || !has_router_alert(&options[2..]) {
            return None;
        }
        let (from, to) = (source.to_bits(), destination.to_bits());
        let mut sum = Sum::pseudo6(from, to, PROTOCOL_ICMPV6, message.len() as u32);
        sum.add(message);
        if sum.is_right() { Query::parse(message) } else { None }
    }
}

/// Returns `true` for the ICMPv6 types by which a host reports its groups and their end.
#[must_use]
pub fn is_report(kind: u8) -> bool {
    matches!(kind, REPORT_V1 | DONE_V1 | REPORT_V2)
}

/// Returns `true` if the options of a hop-by-hop header have a router alert (RFC 2711).
#[must_use]
pub fn has_router_alert(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            options = rest;
            continue;
        }
        let Some((&len, rest)) = rest.split_first() else { return false };
        if (*kind, len) == (ROUTER_ALERT[2], ROUTER_ALERT[3]) {
            return true;
        }
        options = rest.get(usize::from(len)..).unwrap_or_default();
    }
    false
}

impl Report {
    /// Returns the report's frame, with the router alert option (RFC 3810, 5). `source`: a link-local address, or `::`
    /// for a host that has none (RFC 3810, 5.2.13; RFC 3590).
    #[must_use]
    pub fn frame(&self, mac: [u8; 6], source: Ipv6Addr) -> Vec<u8> {
        let Report { dst, message } = self;
        let (from, to, len) = (source.to_bits(), dst.to_bits(), message.len());
        let mut sum = Sum::pseudo6(from, to, PROTOCOL_ICMPV6, len as u32);
        sum.add(message);
        let payload_bytes = (ROUTER_ALERT.len() + len) as u16;
        let [.., a, b, c, d] = dst.octets();
        let mut frame =
            Vec::with_capacity(ETHERNET_BYTES + IPV6_BYTES + usize::from(payload_bytes));
        frame.extend_from_slice(&[0x33, 0x33, a, b, c, d]);
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
        frame.extend_from_slice(&[0x60, 0, 0, 0]);
        frame.extend_from_slice(&payload_bytes.to_be_bytes());
        frame.extend_from_slice(&[HOP_BY_HOP, 1]);
        frame.extend_from_slice(&source.octets());
        frame.extend_from_slice(&dst.octets());
        frame.extend_from_slice(&ROUTER_ALERT);
        let at = frame.len();
        frame.extend_from_slice(message);
        frame[at + 2..at + 4].copy_from_slice(&sum.checksum().to_be_bytes());
        frame
    }
}

impl Group for Ipv6Addr {
    fn add_reports(groups: &[Self], record: Record, version: Version, reports: &mut Vec<Report>) {
        if version == Version::Third {
            let (dst, octets) = (ALL_ROUTERS_V2, Ipv6Addr::octets);
            reports.extend(latest_reports(REPORT_V2, dst, groups, record, octets));
            return;
        }
        let (kind, dst) = match record {
            Record::IsExclude | Record::ToExclude => (REPORT_V1, None),
            Record::ToInclude => (DONE_V1, Some(ALL_ROUTERS)),
        };
        reports.extend(groups.iter().map(|&group| {
            let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat();
            Report { dst: dst.unwrap_or(group), message }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
    const OTHER: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 2);

    fn query(code: u16, group: Ipv6Addr, len: usize) -> Option<Query> {
        let mut message = vec![QUERY, 0, 0, 0];
        message.extend_from_slice(&code.to_be_bytes());
        message.extend_from_slice(&[0, 0]);
        message.extend_from_slice(&group.octets());
        message.resize(len, 0);
        Query::parse(&message)
    }

    fn ms(millis: u64) -> u64 {
        millis * 1000
    }

    /// Returns numbers from a seed.
    fn numbers(seed: u64) -> impl FnMut() -> u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        move || random.u64(..)
    }

    fn groups(all: &[Ipv6Addr], now_us: u64) -> Groups {
        let mut groups = Groups::default();
        all.iter().for_each(|group| groups.join(now_us, *group));
        groups
    }

    #[test]
    fn queries_of_both_versions_are_read() {
        let v2 = query(10_000, Ipv6Addr::UNSPECIFIED, 28).unwrap();
        let delay_us = 10_000_000;
        assert_eq!(v2, Query { group: None, delay_us, version: Version::Third });
        assert_eq!(
            query(10_000, GROUP, 24),
            Some(Query { group: Some(GROUP), delay_us, version: Version::Second })
        );
        // A mantissa of 0 and an exponent of 0: 0x1000 << 3 (RFC 3810, 5.1.3). MLDv1 has no such values.
        let long = query(0x8000, GROUP, 40).unwrap();
        assert_eq!(long.delay_us, (0x1000 << 3) * 1000);
        assert_eq!(query(0x8000, GROUP, 24).unwrap().delay_us, 0x8000 * 1000);
        for len in [8, 23, 25, 27] {
            assert_eq!(query(1, GROUP, len), None, "{len}");
        }
    }

    #[test]
    fn groups_are_reported_at_the_start_twice() {
        let mut random = numbers(1);
        let mut groups = groups(&[OTHER, GROUP, GROUP], ms(5));
        let first = groups.due(ms(5), &mut random);
        let [report] = first.as_slice() else { panic!("{first:?}") };
        assert_eq!(report.dst, ALL_ROUTERS_V2);
        assert_eq!(report.message[..12], [143, 0, 0, 0, 0, 0, 0, 2, 4, 0, 0, 0]);
        assert_eq!(report.message[12..28], GROUP.octets());
        assert_eq!(report.message[32..48], OTHER.octets());
        let again = groups.poll_at_us().unwrap();
        assert!(again <= ms(1005));
        assert_eq!(groups.due(again, &mut random), first);
        assert_eq!(groups.poll_at_us(), None);
        assert_eq!(Groups::default().poll_at_us(), None);
    }

    /// A report of a later group does not name the earlier groups, also while their report waits. No report names a
    /// group that the host has left without a report.
    #[test]
    fn only_what_has_changed_is_reported() {
        let mut random = numbers(5);
        let mut groups = groups(&[GROUP], ms(0));
        assert_eq!(groups.due(ms(0), &mut random)[0].message[7], 1);
        groups.join(ms(1), OTHER);
        let mut named = Vec::new();
        while let Some(at) = groups.poll_at_us() {
            for report in groups.due(at, &mut random) {
                named.push((at == ms(1), report.message[12..].to_vec()));
            }
        }
        named.sort();
        let [group, other] = [GROUP, OTHER].map(|one| one.octets().to_vec());
        assert_eq!(named, [(false, group), (false, other.clone()), (true, other)]);
        groups.leave_unreported(GROUP);
        groups.join(ms(9_000), GROUP);
        groups.leave_unreported(GROUP);
        assert_eq!(groups.poll_at_us(), None);
    }

    /// A querier's frame is read, and each of its defects makes a host ignore it.
    #[test]
    fn frames_with_defects_are_no_queries() {
        let mut message = vec![QUERY, 0, 0, 0, 0, 100, 0, 0];
        message.resize(28, 0);
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let query = Report { dst: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), message };
        let frame = query.frame([2; 6], router);
        let expected = Query { group: None, delay_us: 100_000, version: Version::Third };
        assert_eq!(Query::of_frame(&frame), Some(expected));
        let padded = [&frame[..], &[7; 9]].concat();
        assert_eq!(Query::of_frame(&padded), Some(expected));
        let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        assert_eq!(Query::of_frame(&query.frame([2; 6], global)), None);
        // The ethertype, the version, the hop limit, the next headers, the option, and the checksum.
        for at in [13, 14, 20, 21, 54, 56, 63, 64, 70] {
            let mut frame = frame.clone();
            frame[at] ^= 0x12;
            assert_eq!(Query::of_frame(&frame), None, "{at}");
        }
        for len in 0..frame.len() {
            assert_eq!(Query::of_frame(&frame[..len]), None, "{len}");
        }
    }

    #[test]
    fn answers_come_within_the_delay_and_name_what_was_asked() {
        let mut random = numbers(2);
        let mut groups = groups(&[GROUP, OTHER], ms(0));
        while let Some(at) = groups.poll_at_us() {
            groups.due(at, &mut random);
        }
        let now = ms(10_000);
        groups.handle_query(now, &mut random, &query(500, OTHER, 28).unwrap());
        let at = groups.poll_at_us().unwrap();
        assert!(at >= now && at <= ms(10_500));
        let reports = groups.due(at, &mut random);
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].message[7..12], [1, 2, 0, 0, 0]);
        assert_eq!(reports[0].message[12..], OTHER.octets());
        let unknown = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 3);
        groups.handle_query(now, &mut random, &query(500, unknown, 28).unwrap());
        assert_eq!(groups.poll_at_us(), None);
    }

    #[test]
    fn a_flood_of_queries_gets_few_answers() {
        let mut random = numbers(4);
        let mut groups = groups(&[GROUP], ms(0));
        while let Some(at) = groups.poll_at_us() {
            groups.due(at, &mut random);
        }
        let mut answers = 0;
        for now in 5000..6000 {
            groups.handle_query(ms(now), &mut random, &query(0, GROUP, 28).unwrap());
            answers += groups.due(ms(now), &mut random).len();
        }
        assert_eq!(answers, 10);
    }

    #[test]
    fn a_querier_of_version_1_gets_its_reports_until_it_has_gone() {
        let mut random = numbers(3);
        let mut groups = groups(&[GROUP, OTHER], ms(0));
        while let Some(at) = groups.poll_at_us() {
            groups.due(at, &mut random);
        }
        groups.handle_query(ms(2000), &mut random, &query(0, Ipv6Addr::UNSPECIFIED, 24).unwrap());
        let reports = groups.due(ms(2000), &mut random);
        assert_eq!(reports.iter().map(|report| report.dst).collect::<Vec<_>>(), [GROUP, OTHER]);
        assert!(reports.iter().all(|report| report.message[0] == 131));
        let general = query(0, Ipv6Addr::UNSPECIFIED, 28).unwrap();
        for (now, count) in [(100_000, 2), (262_000, 1)] {
            groups.handle_query(ms(now), &mut random, &general);
            assert_eq!(groups.due(ms(now), &mut random).len(), count, "{now}");
        }
    }
}
