//! Reports of the multicast groups that this host listens to (MLDv2, RFC 3810; MLDv1, RFC 2710).
//!
//! The groups are those of neighbour discovery: a solicited-node group for each IPv6 address. A switch that snoops on
//! reports (RFC 4541) forwards a group's frames only to stations that report the group. Without reports, no
//! solicitation would arrive behind such a switch, and the host would be unreachable by IPv6.
//!
//! Reports of other hosts do not suppress those of this host, although MLDv1 allows it (RFC 2710, 4): a switch that snoops
//! needs the report of each station.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::Instant;
use crate::random::Random;

/// The type of a query.
pub(crate) const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const REPORT_V2: u8 = 143;
/// The destination of reports of MLDv2 (RFC 3810, 5.2.14).
const ALL_ROUTERS_V2: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Record type: the host listens to all sources of a group (RFC 3810, 5.2.12).
const IS_EXCLUDE: u8 = 2;
/// Record type: the host begins to listen to all sources of a group.
const TO_EXCLUDE: u8 = 4;
/// The number of times that a change is reported: the robustness variable (RFC 3810, 9.1).
const ROBUSTNESS: u8 = 2;
/// The longest time until a change is reported again (RFC 3810, 9.11).
const UNSOLICITED_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which reports are those of MLDv1 after its last query: the robustness variable times the query
/// interval, and the query response interval (RFC 3810, 9.12).
const OLDER_QUERIER: Duration = Duration::from_secs(260);
/// The least time between answers to queries, which anyone on the link may forge.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);
/// The most records of a report: it fits into the least MTU of IPv6.
const MOST_RECORDS: usize = 60;

/// A query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// The group; `None` asks for all.
    group: Option<Ipv6Addr>,
    /// The longest time until the answer.
    delay: Duration,
    /// `true` if the query is one of MLDv1.
    is_v1: bool,
}

impl Query {
    /// Parses an MLD query. Returns `None` if it is malformed.
    pub(crate) fn parse(message: &[u8]) -> Option<Query> {
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
        let delay = Duration::from_millis(millis);
        Some(Query { group: (!group.is_unspecified()).then_some(group), delay, is_v1 })
    }
}

/// A report to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) dst: Ipv6Addr,
    /// The ICMPv6 message, without its checksum.
    pub(crate) message: Vec<u8>,
}

/// The groups of this host, and when to report them.
pub(crate) struct Groups {
    groups: Vec<Ipv6Addr>,
    /// The time of the next report of the groups as new, and the number of such reports left.
    change: Option<(Instant, u8)>,
    /// When to answer a query about each group.
    answers: Vec<Option<Instant>>,
    /// The time of the last answers.
    answered: Option<Instant>,
    /// Until when a querier of MLDv1 counts as present.
    older_until: Option<Instant>,
    /// When reports are due next: each poll asks.
    next: Option<Instant>,
}

impl Groups {
    /// Returns the state of a new host: its first report is due at `now`, the second within a second.
    pub(crate) fn new(mut groups: Vec<Ipv6Addr>, now: Instant) -> Groups {
        groups.sort_unstable();
        groups.dedup();
        let change = (!groups.is_empty()).then_some((now, ROBUSTNESS));
        let (answers, next) = (vec![None; groups.len()], change.map(|(at, _)| at));
        Groups { groups, change, answers, answered: None, older_until: None, next }
    }

    /// Takes a query, whose answer waits for a random part of the querier's delay (RFC 3810, 6.2).
    pub(crate) fn query(&mut self, now: Instant, random: &mut Random, query: &Query) {
        if query.is_v1 {
            self.older_until = Some(now + OLDER_QUERIER);
        }
        let earliest = self.answered.map_or(now, |at| now.max(at + ANSWER_PAUSE));
        let together = random_time(random, query.delay);
        for (group, answer) in self.groups.iter().zip(&mut self.answers) {
            if query.group.is_none_or(|asked| asked == *group) {
                // With MLDv1, each group has its own time (RFC 2710, 4).
                let delay = if query.is_v1 { random_time(random, query.delay) } else { together };
                let at = earliest.max(now + delay);
                *answer = Some(answer.map_or(at, |earlier| earlier.min(at)));
            }
        }
        self.schedule();
    }

    /// Returns when reports are due next.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        self.next
    }

    fn schedule(&mut self) {
        let change = self.change.map(|(at, _)| at);
        self.next = self.answers.iter().copied().chain([change]).flatten().min();
    }

    /// Returns the reports that are due.
    pub(crate) fn due(&mut self, now: Instant, random: &mut Random) -> Vec<Report> {
        if self.next.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let is_older = self.older_until.is_some_and(|until| now < until);
        let mut reports = Vec::new();
        if let Some((at, left)) = self.change
            && at <= now
        {
            let next = now + random_time(random, UNSOLICITED_INTERVAL);
            self.change = (left > 1).then_some((next, left - 1));
            report(&self.groups, TO_EXCLUDE, is_older, &mut reports);
        }
        let mut asked = Vec::new();
        for (group, answer) in self.groups.iter().zip(&mut self.answers) {
            if answer.is_some_and(|at| at <= now) {
                *answer = None;
                asked.push(*group);
            }
        }
        if !asked.is_empty() {
            self.answered = Some(now);
        }
        self.schedule();
        report(&asked, IS_EXCLUDE, is_older, &mut reports);
        reports
    }
}

/// Returns a random time up to a limit.
fn random_time(random: &mut Random, most: Duration) -> Duration {
    Duration::from_micros(random.next() % (most.as_micros() as u64 + 1))
}

/// Adds the reports about groups: with MLDv1 one for each.
fn report(groups: &[Ipv6Addr], kind: u8, is_older: bool, reports: &mut Vec<Report>) {
    if is_older {
        reports.extend(groups.iter().map(|&group| {
            let message = [&[REPORT_V1, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat();
            Report { dst: group, message }
        }));
        return;
    }
    for groups in groups.chunks(MOST_RECORDS) {
        let mut message = vec![REPORT_V2, 0, 0, 0, 0, 0, 0, groups.len() as u8];
        for group in groups {
            message.extend_from_slice(&[kind, 0, 0, 0]);
            message.extend_from_slice(&group.octets());
        }
        reports.push(Report { dst: ALL_ROUTERS_V2, message });
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

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn queries_of_both_versions_are_read() {
        let v2 = query(10_000, Ipv6Addr::UNSPECIFIED, 28).unwrap();
        let delay = Duration::from_secs(10);
        assert_eq!(v2, Query { group: None, delay, is_v1: false });
        assert_eq!(
            query(10_000, GROUP, 24),
            Some(Query { group: Some(GROUP), delay, is_v1: true })
        );
        // A mantissa of 0 and an exponent of 0: 0x1000 << 3 (RFC 3810, 5.1.3). MLDv1 has no such values.
        let long = query(0x8000, GROUP, 40).unwrap();
        assert_eq!(long.delay, Duration::from_millis(0x1000 << 3));
        assert_eq!(query(0x8000, GROUP, 24).unwrap().delay, Duration::from_millis(0x8000));
        for len in [8, 23, 25, 27] {
            assert_eq!(query(1, GROUP, len), None, "{len}");
        }
    }

    #[test]
    fn groups_are_reported_at_the_start_twice() {
        let mut random = Random::new(1);
        let mut groups = Groups::new(vec![OTHER, GROUP, GROUP], ms(5));
        let first = groups.due(ms(5), &mut random);
        let [report] = first.as_slice() else { panic!("{first:?}") };
        assert_eq!(report.dst, ALL_ROUTERS_V2);
        assert_eq!(report.message[..12], [143, 0, 0, 0, 0, 0, 0, 2, 4, 0, 0, 0]);
        assert_eq!(report.message[12..28], GROUP.octets());
        assert_eq!(report.message[32..48], OTHER.octets());
        let again = groups.poll_at().unwrap();
        assert!(again <= ms(1005));
        assert_eq!(groups.due(again, &mut random), first);
        assert_eq!(groups.poll_at(), None);
        assert_eq!(Groups::new(Vec::new(), ms(0)).poll_at(), None);
    }

    #[test]
    fn answers_come_within_the_delay_and_name_what_was_asked() {
        let mut random = Random::new(2);
        let mut groups = Groups::new(vec![GROUP, OTHER], ms(0));
        while let Some(at) = groups.poll_at() {
            groups.due(at, &mut random);
        }
        let now = ms(10_000);
        groups.query(now, &mut random, &query(500, OTHER, 28).unwrap());
        let at = groups.poll_at().unwrap();
        assert!(at >= now && at <= ms(10_500));
        let reports = groups.due(at, &mut random);
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].message[7..12], [1, 2, 0, 0, 0]);
        assert_eq!(reports[0].message[12..], OTHER.octets());
        let unknown = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 3);
        groups.query(now, &mut random, &query(500, unknown, 28).unwrap());
        assert_eq!(groups.poll_at(), None);
    }

    #[test]
    fn a_flood_of_queries_gets_few_answers() {
        let mut random = Random::new(4);
        let mut groups = Groups::new(vec![GROUP], ms(0));
        while let Some(at) = groups.poll_at() {
            groups.due(at, &mut random);
        }
        let mut answers = 0;
        for now in 5000..6000 {
            groups.query(ms(now), &mut random, &query(0, GROUP, 28).unwrap());
            answers += groups.due(ms(now), &mut random).len();
        }
        assert_eq!(answers, 10);
    }

    #[test]
    fn a_querier_of_version_1_gets_its_reports_until_it_has_gone() {
        let mut random = Random::new(3);
        let mut groups = Groups::new(vec![GROUP, OTHER], ms(0));
        while let Some(at) = groups.poll_at() {
            groups.due(at, &mut random);
        }
        groups.query(ms(2000), &mut random, &query(0, Ipv6Addr::UNSPECIFIED, 24).unwrap());
        let reports = groups.due(ms(2000), &mut random);
        assert_eq!(reports.iter().map(|report| report.dst).collect::<Vec<_>>(), [GROUP, OTHER]);
        assert!(reports.iter().all(|report| report.message[0] == 131));
        let general = query(0, Ipv6Addr::UNSPECIFIED, 28).unwrap();
        for (now, count) in [(100_000, 2), (262_000, 1)] {
            groups.query(ms(now), &mut random, &general);
            assert_eq!(groups.due(ms(now), &mut random).len(), count, "{now}");
        }
    }
}
