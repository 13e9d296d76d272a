//! The link addresses that sessions asked for, by the host's own routes and neighbours.
//!
//! A session that shares the host's addresses asks for the link address of each destination. The
//! answer is that of the next hop on the kernel's route there. The table remembers the answers, so
//! that the server can tell the sessions when a route or a link address changes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use towpath_engine::account::{Account, Party};
use towpath_engine::neighbours::NeighbourRequest;
use towpath_engine::shares::{ShareLimits, Shares};

use crate::turns::Turns;

/// The destinations of one endpoint that the table remembers. The session asks again for one that
/// the table forgot, at the latest 30 s after the last answer.
const REMEMBERED: usize = 1024;

/// The time after which a request without an answer from the kernel fails. The kernel stops asking
/// for a neighbour after three seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The next hops whose link addresses the kernel may look for at a time. The kernel's table of neighbours has about a
/// thousand entries (`gc_thresh3`).
const UNKNOWN: ShareLimits =
    ShareLimits { user: 64, group: 128, granted: 256, all: 320, binds_administrators: false };

/// An endpoint that asks: the numbers of its session and of the endpoint.
pub(super) type Asker = (u32, u32);

/// The last answer about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    next_hop: IpAddr,
    mac: [u8; 6],
}

/// Requests that wait for the link address of one next hop.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// The account of the session that was the first to need it.
    account: Account,
    /// Each destination with the number of answers that the session waits for. Empty once the
    /// endpoints that asked are closed: the kernel still looks for the link address.
    requests: HashMap<NeighbourRequest, u32>,
}

/// A message for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) to: NeighbourRequest,
    /// The link address; `None` if there is none.
    pub(super) mac: Option<[u8; 6]>,
    /// The number of the session's requests that this answers; 0 if the server reports a change.
    pub(super) answered: u32,
}

/// The table.
#[derive(Debug)]
pub(super) struct Neighbours {
    known: HashMap<Asker, HashMap<IpAddr, Known>>,
    /// The last link address of each next hop.
    next_hops: HashMap<IpAddr, [u8; 6]>,
    waiting: HashMap<IpAddr, Waiting>,
    /// The accounts because of which next hops are in `waiting`.
    shares: Shares,
    /// Answers to check again, because the host's routes or neighbours changed.
    to_check: VecDeque<NeighbourRequest>,
    /// Next hops whose link addresses changed. After `to_check`, the answers that lead to them are
    /// to be checked: so a link address that changes all the time costs no more than one that
    /// changed.
    moved: BTreeSet<IpAddr>,
    /// `true` if all answers are to be checked once more after those.
    checks_again: bool,
    /// Requests that the control thread has not looked up yet.
    queued: Turns<Party, NeighbourRequest>,
}

impl Default for Neighbours {
    fn default() -> Neighbours {
        Neighbours {
            known: HashMap::new(),
            next_hops: HashMap::new(),
            waiting: HashMap::new(),
            shares: Shares::new(UNKNOWN),
            to_check: VecDeque::new(),
            moved: BTreeSet::new(),
            checks_again: false,
            queued: Turns::default(),
        }
    }
}

impl Neighbours {
    /// Adds a request of an account's session, to be looked up in the turn of the account's party.
    pub(super) fn queue(&mut self, account: Account, request: NeighbourRequest) {
        self.queued.push(account.party(), request);
    }

    /// Returns the next request or the next answer to check, whichever is `preferred` if there are
    /// both: `true` for a request. Also returns the number of answers that the session waits for.
    pub(super) fn next_lookup(&mut self, preferred: bool) -> Option<(NeighbourRequest, u32)> {
        if preferred && let Some((_, request)) = self.queued.take_next() {
            return Some((request, 1));
        }
        if let Some(request) = self.next_to_check() {
            return Some((request, 0));
        }
        self.queued.take_next().map(|(_, request)| (request, 1))
    }

    /// Remembers an answer. Returns `true` if it differs from the last one about this destination.
    pub(super) fn learn(
        &mut self,
        request: NeighbourRequest,
        next_hop: IpAddr,
        mac: [u8; 6],
    ) -> bool {
        let known = self.known.entry((request.session, request.endpoint)).or_default();
        if known.len() >= REMEMBERED
            && !known.contains_key(&request.target)
            && let Some(any) = known.keys().next().copied()
        {
            known.remove(&any);
        }
        let new = Known { next_hop, mac };
        let is_news = known.insert(request.target, new).is_none_or(|old| old.mac != mac);
        self.note(next_hop, mac);
        self.prune();
        is_news
    }

    /// Notes the link address of a next hop. If it changed, has the answers that differ checked.
    fn note(&mut self, next_hop: IpAddr, mac: [u8; 6]) {
        if self.next_hops.insert(next_hop, mac).is_some_and(|last| last != mac) {
            self.moved.insert(next_hop);
        }
    }

    /// Enters the answers that lead to a next hop, and have another link address than it has now.
    fn check_answers_of(&mut self, next_hop: IpAddr) {
        let Some(mac) = self.next_hops.get(&next_hop) else { return };
        for ((session, endpoint), known) in &self.known {
            for (target, one) in known {
                if one.next_hop == next_hop && one.mac != *mac {
                    let (session, endpoint, target) = (*session, *endpoint, *target);
                    self.to_check.push_back(NeighbourRequest { session, endpoint, target });
                }
            }
        }
    }

    /// Forgets next hops to which no remembered answer leads, once there are many.
    fn prune(&mut self) {
        let answers: usize = self.known.values().map(HashMap::len).sum();
        if self.next_hops.len() > 2 * answers + REMEMBERED {
            let used = self.known.values().flat_map(HashMap::values);
            self.next_hops = used.map(|one| (one.next_hop, one.mac)).collect();
        }
    }

    /// Returns `true` if requests wait for the link address of a next hop already.
    pub(super) fn waits_for(&self, next_hop: IpAddr) -> bool {
        self.waiting.contains_key(&next_hop)
    }

    /// Returns `true` if the kernel may look for one more next hop because of an account.
    pub(super) fn may_wait(&self, account: Account) -> bool {
        self.shares.check(account).is_ok()
    }

    /// Has a request of an account's session wait for the link address of a next hop. `answers`: 1
    /// if the session made the request, 0 if the server checks an earlier answer.
    pub(super) fn wait(
        &mut self,
        account: Account,
        request: NeighbourRequest,
        next_hop: IpAddr,
        answers: u32,
        now: Instant,
    ) {
        let waiting = self.waiting.entry(next_hop).or_insert_with(|| {
            self.shares.add(account);
            Waiting { since: now, account, requests: HashMap::new() }
        });
        *waiting.requests.entry(request).or_default() += answers;
    }

    fn stop_waiting(&mut self, next_hop: IpAddr) -> Option<Waiting> {
        let waiting = self.waiting.remove(&next_hop)?;
        self.shares.give_back(waiting.account);
        Some(waiting)
    }

    /// Ends the wait for a next hop, whose link address the kernel reports. Returns the answers for
    /// which requests waited. Has earlier answers that differ checked.
    pub(super) fn found(&mut self, next_hop: IpAddr, mac: [u8; 6]) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        if let Some(waiting) = self.stop_waiting(next_hop) {
            for (request, answered) in waiting.requests {
                self.learn(request, next_hop, mac);
                deliveries.push(Delivery { to: request, mac: Some(mac), answered });
            }
        }
        if self.next_hops.contains_key(&next_hop) {
            self.note(next_hop, mac);
        }
        deliveries
    }

    /// Ends the wait for a next hop that does not answer. Returns the requests that end without a
    /// link address.
    pub(super) fn failed(&mut self, next_hop: IpAddr) -> Vec<Delivery> {
        let requests = self.stop_waiting(next_hop).map(|waiting| waiting.requests);
        let unanswered = |(to, answered)| Delivery { to, mac: None, answered };
        requests.into_iter().flatten().map(unanswered).collect()
    }

    /// Ends the requests that have waited for too long. Returns them.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Delivery> {
        let is_late =
            |waiting: &Waiting| now.saturating_duration_since(waiting.since) >= REQUEST_TIMEOUT;
        let late: Vec<IpAddr> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| is_late(waiting))
            .map(|(next_hop, _)| *next_hop)
            .collect();
        late.into_iter().flat_map(|next_hop| self.failed(next_hop)).collect()
    }

    /// Returns the time until the next request has waited for too long.
    pub(super) fn next_deadline(&self, now: Instant) -> Option<Duration> {
        let first = self.waiting.values().map(|waiting| waiting.since).min()?;
        Some((first + REQUEST_TIMEOUT).saturating_duration_since(now))
    }

    /// Has all answers checked, because routes changed: after those that are to be checked already.
    pub(super) fn check_all(&mut self) {
        self.checks_again = true;
    }

    /// Returns the next answer to check. There may be more although there is none now: see
    /// [`Neighbours::has_work`].
    fn next_to_check(&mut self) -> Option<NeighbourRequest> {
        if self.to_check.is_empty() && std::mem::take(&mut self.checks_again) {
            self.moved.clear();
            for ((session, endpoint), known) in &self.known {
                let request = |target: &IpAddr| NeighbourRequest {
                    session: *session,
                    endpoint: *endpoint,
                    target: *target,
                };
                self.to_check.extend(known.keys().map(request));
            }
        }
        if self.to_check.is_empty()
            && let Some(next_hop) = self.moved.pop_first()
        {
            self.check_answers_of(next_hop);
        }
        self.to_check.pop_front()
    }

    /// Returns `true` if there are requests to look up, or answers to check.
    pub(super) fn has_work(&self) -> bool {
        !self.queued.is_empty()
            || !self.to_check.is_empty()
            || !self.moved.is_empty()
            || self.checks_again
    }

    /// Forgets a destination, to which no route leads any more. Returns `true` if the session was
    /// told one.
    pub(super) fn forget(&mut self, request: NeighbourRequest) -> bool {
        let known = self.known.get_mut(&(request.session, request.endpoint));
        known.is_some_and(|known| known.remove(&request.target).is_some())
    }

    /// Forgets an endpoint.
    pub(super) fn forget_endpoint(&mut self, asker: Asker) {
        self.known.remove(&asker);
        let theirs = |request: &NeighbourRequest| (request.session, request.endpoint) == asker;
        self.to_check.retain(|request| !theirs(request));
        self.queued.retain(|request| !theirs(request));
        // The kernel goes on looking for the link addresses, so they count against the account's
        // limits until it ends.
        for waiting in self.waiting.values_mut() {
            waiting.requests.retain(|request, _| !theirs(request));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn request(session: u32, target: &str) -> NeighbourRequest {
        NeighbourRequest { session, endpoint: 0, target: ip(target) }
    }

    fn user(uid: u32) -> Account {
        Account { uid, group: None, is_limited: true }
    }

    fn answer(to: NeighbourRequest, mac: Option<[u8; 6]>, answered: u32) -> Delivery {
        Delivery { to, mac, answered }
    }

    #[test]
    fn each_request_that_waits_is_answered() {
        let (mut table, now) = (Neighbours::default(), Instant::now());
        let (one, two) = (request(1, "198.51.100.7"), request(2, "198.51.100.7"));
        let gateway = ip("192.0.2.1");
        for asked in [one, two, one] {
            table.wait(user(7), asked, gateway, 1, now);
        }
        let mut answers = table.found(gateway, MAC);
        answers.sort_by_key(|one| one.to.session);
        assert_eq!(answers, [answer(one, Some(MAC), 2), answer(two, Some(MAC), 1)]);
        assert_eq!(table.found(gateway, MAC), [], "no request waits");
        assert!(!table.learn(one, gateway, MAC) && table.learn(one, gateway, OTHER));
    }

    #[test]
    fn a_gateway_that_moved_is_news_for_all_its_destinations() {
        let mut table = Neighbours::default();
        let gateway = ip("192.0.2.1");
        let far = [request(1, "198.51.100.7"), request(1, "198.51.100.8")];
        let near = request(1, "192.0.2.9");
        for one in far {
            table.learn(one, gateway, MAC);
        }
        table.learn(near, near.target, MAC);
        let checked = |table: &mut Neighbours| {
            let mut checked: Vec<_> = std::iter::from_fn(|| table.next_to_check()).collect();
            checked.sort_by_key(|one| one.target);
            checked
        };
        assert_eq!(table.found(gateway, OTHER), []);
        assert_eq!(checked(&mut table), far);
        table.check_all();
        assert_eq!(checked(&mut table), [near, far[0], far[1]]);
        table.forget(near);
        table.forget_endpoint((1, 0));
        table.check_all();
        assert_eq!(table.next_to_check(), None);
        assert!(!table.has_work());
    }

    #[test]
    fn users_have_their_requests_looked_at_in_turn() {
        let mut table = Neighbours::default();
        let flood: Vec<_> = (0..3).map(|number| request(1, &format!("192.0.2.{number}"))).collect();
        for one in &flood {
            table.queue(user(7), *one);
        }
        let other = request(2, "192.0.2.9");
        table.queue(user(8), other);
        let looked: Vec<_> = std::iter::from_fn(|| Some(table.queued.take_next()?.1)).collect();
        assert_eq!(looked, [flood[0], other, flood[1], flood[2]]);
        assert!(!table.has_work());
        table.queue(user(7), flood[0]);
        table.forget_endpoint((1, 0));
        assert!(!table.has_work());
    }

    #[test]
    fn a_next_hop_that_does_not_answer_frees_its_requests() {
        let (mut table, now) = (Neighbours::default(), Instant::now());
        let (one, own) = (request(1, "192.0.2.9"), request(1, "198.51.100.1"));
        table.wait(user(7), one, one.target, 1, now);
        table.wait(user(7), own, one.target, 0, now);
        assert_eq!(table.failed(ip("192.0.2.1")), []);
        let mut failed = table.failed(one.target);
        failed.sort_by_key(|one| one.to.target);
        assert_eq!(failed, [answer(one, None, 1), answer(own, None, 0)]);
        table.wait(user(7), one, one.target, 1, now);
        assert_eq!(table.next_deadline(now), Some(REQUEST_TIMEOUT));
        assert_eq!(table.expire(now + REQUEST_TIMEOUT / 2), []);
        assert_eq!(table.expire(now + REQUEST_TIMEOUT), [answer(one, None, 1)]);
        assert_eq!(table.next_deadline(now), None);
        table.wait(user(7), one, one.target, 1, now);
        table.forget_endpoint((1, 0));
        assert_eq!(table.expire(now + REQUEST_TIMEOUT), []);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Neighbours::default();
        for number in 0..2 * REMEMBERED as u32 {
            let target = IpAddr::from((0xc633_0000 + number).to_be_bytes());
            let request = NeighbourRequest { session: 1, endpoint: 0, target };
            table.learn(request, target, MAC);
        }
        assert_eq!(table.known[&(1, 0)].len(), REMEMBERED);
        assert!(table.next_hops.len() <= 3 * REMEMBERED + 1);
        let now = Instant::now();
        let wait = |table: &mut Neighbours, account: Account, number: u32| {
            let target = IpAddr::from((0xc633_0000 + number).to_be_bytes());
            let may = table.may_wait(account);
            if may {
                table.wait(account, request(account.uid, "192.0.2.1"), target, 1, now);
            }
            may
        };
        let waits: Vec<_> =
            (0..=UNKNOWN.user as u32).map(|at| wait(&mut table, user(7), at)).collect();
        assert!(waits[..UNKNOWN.user].iter().all(|may| *may) && !waits[UNKNOWN.user]);
        // A user who closes the endpoint and opens another gains nothing.
        table.forget_endpoint((7, 0));
        assert!(!table.may_wait(user(7)));
        let member = |uid| Account { group: Some(5), ..user(uid) };
        let members =
            (0..UNKNOWN.granted as u32).filter(|at| wait(&mut table, member(8 + at), 1000 + at));
        assert_eq!(members.count(), UNKNOWN.group);
        let others = (0..UNKNOWN.granted as u32)
            .filter(|at| wait(&mut table, user(1000 + at), 2000 + at))
            .count();
        assert_eq!(others, UNKNOWN.granted - UNKNOWN.group - UNKNOWN.user);
        let administrator = Account { is_limited: false, ..user(0) };
        let theirs =
            (0..UNKNOWN.granted as u32).filter(|at| wait(&mut table, administrator, 3000 + at));
        assert_eq!(theirs.count(), UNKNOWN.all - UNKNOWN.granted);
        assert_eq!(table.expire(now + REQUEST_TIMEOUT).len(), UNKNOWN.all - UNKNOWN.user);
        assert!(table.may_wait(user(7)));
    }

    #[test]
    fn a_link_address_that_changes_all_the_time_costs_one_check_per_answer() {
        let mut table = Neighbours::default();
        let gateway = ip("192.0.2.1");
        let far = ["198.51.100.7", "198.51.100.8"].map(|target| request(1, target));
        for one in far {
            table.learn(one, gateway, MAC);
        }
        for _ in 0..1000 {
            table.found(gateway, OTHER);
            table.found(gateway, MAC);
        }
        table.found(gateway, OTHER);
        let checked = std::iter::from_fn(|| table.next_to_check()).count();
        assert_eq!(checked, far.len());
    }

    #[test]
    fn requests_without_end_hold_up_no_check() {
        let mut table = Neighbours::default();
        let (flood, other) = (request(1, "192.0.2.7"), request(2, "198.51.100.9"));
        table.learn(other, other.target, MAC);
        table.queue(user(7), flood);
        table.queue(user(7), flood);
        table.check_all();
        assert_eq!(table.next_lookup(true), Some((flood, 1)));
        assert_eq!(table.next_lookup(false), Some((other, 0)));
        assert_eq!(table.next_lookup(false), Some((flood, 1)));
        assert_eq!(table.next_lookup(true), None);
    }

    #[test]
    fn users_of_one_group_share_a_turn() {
        let mut table = Neighbours::default();
        let member = |uid| Account { group: Some(5), ..user(uid) };
        let flood: Vec<_> = (1..4).map(|session| request(session, "192.0.2.7")).collect();
        for (one, uid) in flood.iter().zip(10..) {
            table.queue(member(uid), *one);
        }
        let other = request(9, "192.0.2.9");
        table.queue(user(8), other);
        let looked: Vec<_> = std::iter::from_fn(|| Some(table.queued.take_next()?.1)).collect();
        assert_eq!(looked, [flood[0], other, flood[1], flood[2]]);
    }
}
