//! The multicast groups that a host listens to, and when it reports them (RFC 3376, RFC 3810, and their older versions).
//!
//! A switch that snoops on reports (RFC 4541) forwards a group's frames only to hosts that report the group. So reports
//! of other hosts do not suppress those of this host, although older versions allow it (RFC 2236, 3; RFC 2710, 4): a switch
//! needs the report of each host.
//!
//! The state is the same for IPv4 and IPv6. `igmp.rs` and `mld.rs` read queries and write reports.
//!
//! Times are microseconds since an origin of the caller's choice.

use crate::AnswerRate;

/// The number of times that a host reports a change: the robustness variable (RFC 3376, 8.1; RFC 3810, 9.1).
const ROBUSTNESS: u8 = 2;
/// The longest time until a host reports a change again (RFC 3376, 8.11; RFC 3810, 9.11), in microseconds.
const UNSOLICITED_INTERVAL_US: u64 = 1_000_000;
/// The time for which a host answers in an older version after the last query of that version, in microseconds. The time is
/// the robustness variable times the query interval, plus the query response interval (RFC 3376, 8.12; RFC 3810, 9.12).
const OLDER_QUERIER_US: u64 = 260_000_000;
/// The least time between answers to queries, in microseconds. Any host on the link may forge queries.
const ANSWER_PAUSE_US: u64 = 100_000;
/// The least time between two queries for all groups that a host handles, in microseconds; in older versions, whose answer
/// is a report per group, this time for each group.
const GENERAL_PAUSE_US: u64 = 10_000;
/// The queries for one group that a host handles per second.
const QUERIES_PER_SECOND: u32 = 100;

/// A version of the protocol, in which a host answers a querier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IGMPv1.
    First,
    /// IGMPv2 and MLDv1.
    Second,
    /// IGMPv3 and MLDv2.
    Third,
}

/// A querier's question for the groups of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<A> {
    /// The group; `None` asks for all.
    pub(crate) group: Option<A>,
    /// The longest time until the answer, in microseconds.
    pub(crate) delay_us: u64,
    pub(crate) version: Version,
}

impl<A: Copy> Query<A> {
    /// Returns the group that the query asks for; `None` if it asks for all.
    #[must_use]
    pub fn group(&self) -> Option<A> {
        self.group
    }
}

/// The type of a group record, without its sources (RFC 3376, 4.2.12; RFC 3810, 5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The host listens to all sources of the group.
    IsExclude = 2,
    /// The host listens to no source any more.
    ToInclude = 3,
    /// The host has begun to listen to all sources.
    ToExclude = 4,
}

/// The most records of a report: with IPv4 it fits into 576 bytes, which each host accepts (RFC 791, 3.1), and with IPv6 into
/// the least MTU.
const MOST_RECORDS: usize = 60;

/// A report to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report<A> {
    pub(crate) dst: A,
    /// The message, without its checksum.
    pub(crate) message: Vec<u8>,
}

/// Returns the reports of the latest version about groups (RFC 3376, 4.2; RFC 3810, 5.2). `kind`: the message type; `dst`: all
/// routers of that version; `octets`: an address as bytes.
pub(crate) fn latest_reports<A: Group, const N: usize>(
    kind: u8,
    dst: A,
    groups: &[A],
    record: Record,
    octets: impl Fn(&A) -> [u8; N],
) -> impl Iterator<Item = Report<A>> {
    groups.chunks(MOST_RECORDS).map(move |groups| {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, groups.len() as u8];
        for group in groups {
            message.extend_from_slice(&[record as u8, 0, 0, 0]);
            message.extend_from_slice(&octets(group));
        }
        Report { dst, message }
    })
}

/// A group address of IPv4 or IPv6.
pub trait Group: Copy + Ord {
    /// Adds the reports about groups, of a version.
    fn add_reports(
        groups: &[Self],
        record: Record,
        version: Version,
        reports: &mut Vec<Report<Self>>,
    );
}

/// The reports of a joined or left group that the host still has to send.
#[derive(Clone, Copy, Debug)]
struct Change {
    reports: u8,
    /// The time of the next of them.
    at: u64,
}

impl Change {
    fn new(now_us: u64) -> Change {
        Change { reports: ROBUSTNESS, at: now_us }
    }

    /// Returns the time of the next report.
    fn due(&self) -> Option<u64> {
        (self.reports > 0).then_some(self.at)
    }

    /// Returns `true` if a report is due, and sets the time of the next one.
    fn take(&mut self, now_us: u64, next: u64) -> bool {
        let is_due = self.due().is_some_and(|at| at <= now_us);
        if is_due {
            *self = Change { reports: self.reports - 1, at: next };
        }
        is_due
    }
}

/// A group that the host listens to.
#[derive(Debug)]
struct ListenedGroup<A> {
    group: A,
    change: Change,
    /// The time of the answer to a query about the group.
    answer: Option<u64>,
}

/// The groups of a host, and when to report them.
#[derive(Debug)]
pub struct Groups<A> {
    /// In the order of their addresses.
    listened: Vec<ListenedGroup<A>>,
    /// The groups that the host has left and still reports.
    left: Vec<(A, Change)>,
    /// The time of the last answers.
    answered: Option<u64>,
    /// The time of the last query for all groups that the host handled.
    queried: Option<u64>,
    rate: AnswerRate,
    /// The times until which queriers of the first and of the second version count as present.
    older_until: [Option<u64>; 2],
    /// The time of the next reports, kept because each poll asks for it.
    next: Option<u64>,
}

impl<A> Default for Groups<A> {
    fn default() -> Groups<A> {
        Groups {
            listened: Vec::new(),
            left: Vec::new(),
            answered: None,
            queried: None,
            rate: AnswerRate::new(QUERIES_PER_SECOND, 0),
            older_until: [None; 2],
            next: None,
        }
    }
}

impl<A: Group> Groups<A> {
    /// Starts listening to a group. The first report is due at `now_us`, the second within a second. Does nothing if
    /// the host listens to the group already.
    pub fn join(&mut self, now_us: u64, group: A) {
        if let Err(at) = self.listened.binary_search_by_key(&group, |one| one.group) {
            self.left.retain(|(one, _)| *one != group);
            let change = Change::new(now_us);
            self.listened.insert(at, ListenedGroup { group, change, answer: None });
            self.schedule();
        }
    }

    /// Returns `true` if the host listens to a group.
    #[must_use]
    pub fn has(&self, group: A) -> bool {
        self.listened.binary_search_by_key(&group, |one| one.group).is_ok()
    }

    /// Stops listening to a group. The first report of it is due at `now_us`, the second within a second; a querier of an
    /// older version gets one report, and of IGMPv1 none. Does nothing if the host does not listen to the group.
    pub fn leave(&mut self, now_us: u64, group: A) {
        if self.has(group) {
            self.leave_unreported(group);
            self.left.push((group, Change::new(now_us)));
            self.schedule();
        }
    }

    /// Stops listening to a group, without a report.
    pub fn leave_unreported(&mut self, group: A) {
        self.listened.retain(|one| one.group != group);
        self.schedule();
    }

    /// Handles a query. The answer waits for a random part of the querier's delay (RFC 3376, 5.2; RFC 3810, 6.2). Ignores
    /// queries beyond a rate, and returns `false`: an attacker may forge them, and each costs time and reports.
    pub fn handle_query(
        &mut self,
        now_us: u64,
        mut random: impl FnMut() -> u64,
        query: &Query<A>,
    ) -> bool {
        // Only queries for all groups tell of the querier's version (RFC 3376, 7.2.1; RFC 3810, 8.2.1).
        match (query.group, query.version) {
            (None, Version::First) => self.older_until[0] = Some(now_us + OLDER_QUERIER_US),
            (None, Version::Second) => self.older_until[1] = Some(now_us + OLDER_QUERIER_US),
            _ => {}
        }
        let is_older = self.version(now_us) != Version::Third;
        if query.group.is_some_and(|group| !self.has(group)) {
            return true;
        }
        let is_in_time = match query.group {
            Some(_) => self.rate.take(now_us * 1000, random()),
            None => {
                let reports = if is_older { self.listened.len() as u64 } else { 1 };
                self.queried.is_none_or(|at| now_us >= at + GENERAL_PAUSE_US * reports)
            }
        };
        if !is_in_time {
            return false;
        }
        if query.group.is_none() {
            self.queried = Some(now_us);
        }
        let earliest = self.answered.map_or(now_us, |at| now_us.max(at + ANSWER_PAUSE_US));
        let together = random_time(&mut random, query.delay_us);
        for one in &mut self.listened {
            if query.group.is_none_or(|asked| asked == one.group) {
                // In older versions, each group has its own time (RFC 2236, 3; RFC 2710, 4).
                let delay =
                    if is_older { random_time(&mut random, query.delay_us) } else { together };
                let at = earliest.max(now_us + delay);
                one.answer = Some(one.answer.map_or(at, |earlier| earlier.min(at)));
            }
        }
        self.schedule();
        true
    }

    /// Returns the time of the next reports, in microseconds; `None` if no report is to come.
    #[must_use]
    pub fn poll_at_us(&self) -> Option<u64> {
        self.next
    }

    fn schedule(&mut self) {
        let listened = self.listened.iter().flat_map(|one| [one.answer, one.change.due()]);
        let left = self.left.iter().map(|(_, change)| change.due());
        self.next = listened.chain(left).flatten().min();
    }

    /// Returns the version of the oldest querier that counts as present.
    fn version(&self, now_us: u64) -> Version {
        match self.older_until.map(|until| until.is_some_and(|until| now_us < until)) {
            [true, _] => Version::First,
            [false, true] => Version::Second,
            [false, false] => Version::Third,
        }
    }

    /// Returns the reports that are due.
    pub fn due(&mut self, now_us: u64, mut random: impl FnMut() -> u64) -> Vec<Report<A>> {
        if self.next.is_none_or(|at| at > now_us) {
            return Vec::new();
        }
        let version = self.version(now_us);
        let mut reports = Vec::new();
        let next = now_us + random_time(&mut random, UNSOLICITED_INTERVAL_US);
        self.report_changes(now_us, next, version, &mut reports);
        let mut asked = Vec::new();
        for one in &mut self.listened {
            if one.answer.is_some_and(|at| at <= now_us) {
                one.answer = None;
                asked.push(one.group);
            }
        }
        if !asked.is_empty() {
            self.answered = Some(now_us);
        }
        self.schedule();
        A::add_reports(&asked, Record::IsExclude, version, &mut reports);
        reports
    }

    /// Adds the reports of joined and left groups that are due. `next`: the time of the next reports of these groups.
    fn report_changes(
        &mut self,
        now_us: u64,
        next: u64,
        version: Version,
        reports: &mut Vec<Report<A>>,
    ) {
        let begun = self.listened.iter_mut().filter_map(|one| {
            let is_due = one.change.take(now_us, next);
            is_due.then_some(one.group)
        });
        let begun: Vec<A> = begun.collect();
        let ended = self.left.iter_mut().filter_map(|(group, change)| {
            let is_due = change.take(now_us, next);
            is_due.then_some(*group)
        });
        let ended: Vec<A> = ended.collect();
        // In older versions one message says it (RFC 2236, 3; RFC 2710, 4), and IGMPv1 has none.
        let reports_again = version == Version::Third;
        let is_done = |group: &A| !reports_again && ended.contains(group);
        self.left.retain(|(group, change)| change.reports > 0 && !is_done(group));
        A::add_reports(&begun, Record::ToExclude, version, reports);
        A::add_reports(&ended, Record::ToInclude, version, reports);
    }
}

/// Returns a random time up to a limit.
fn random_time(random: &mut impl FnMut() -> u64, most_us: u64) -> u64 {
    random() % (most_us + 1)
}
