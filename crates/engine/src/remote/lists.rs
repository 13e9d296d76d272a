//! The connections by what frames and applications ask for. Each frame of the network and each request
//! of an application looks up a few of them here, never all connections.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use super::ledger::MOST_CONNECTIONS;
use crate::account::Account;
use crate::oob::connection::EndpointName;
use crate::shares::{ShareLimits, Shares};

/// The connections of applications, without those that are half-open.
const CONNECTIONS: ShareLimits = ShareLimits::of(MOST_CONNECTIONS, MOST_CONNECTIONS / 4);
/// The requests of other hosts that wait for an answer of an application here.
const HALF_OPEN: ShareLimits = ShareLimits::of(64, 32);

/// What a connection is listed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// The endpoint here.
    pub(super) owner: Option<EndpointName>,
    /// The host whose link address it waits for.
    pub(super) waits_for: Option<IpAddr>,
    /// `true` if another host asked for it, and the application has yet to answer.
    pub(super) is_half_open: bool,
    /// The account of the endpoint here; of a half-open connection, that of the listening endpoint.
    pub(super) account: Option<Account>,
    /// The addresses here.
    pub(super) own: Option<(IpAddr, [u8; 6])>,
}

/// The lists.
#[derive(Debug)]
pub(super) struct Lists {
    owners: BTreeSet<(EndpointName, u32)>,
    waiting: BTreeSet<(IpAddr, u32)>,
    half_open: BTreeSet<u32>,
    /// Half-open connections, and all others.
    half_open_shares: Shares,
    shares: Shares,
    own: HashMap<(IpAddr, [u8; 6]), usize>,
}

impl Default for Lists {
    fn default() -> Lists {
        Lists {
            owners: BTreeSet::new(),
            waiting: BTreeSet::new(),
            half_open: BTreeSet::new(),
            half_open_shares: Shares::new(HALF_OPEN),
            shares: Shares::new(CONNECTIONS),
            own: HashMap::new(),
        }
    }
}

impl Lists {
    /// Lists a connection, by its QPN here, for other things than before.
    pub(super) fn change(&mut self, qpn: u32, before: &Listed, after: &Listed) {
        list(&mut self.owners, qpn, before.owner, after.owner);
        list(&mut self.waiting, qpn, before.waits_for, after.waits_for);
        match (before.is_half_open, after.is_half_open) {
            (true, false) => _ = self.half_open.remove(&qpn),
            (false, true) => _ = self.half_open.insert(qpn),
            _ => {}
        }
        if let Some(account) = before.account {
            self.shares_of(before).give_back(account);
        }
        if let Some(account) = after.account {
            self.shares_of(after).add(account);
        }
        count(&mut self.own, before.own, after.own);
    }

    /// Returns the connections of an endpoint here.
    pub(super) fn of_owner(&self, owner: EndpointName) -> impl Iterator<Item = u32> {
        self.owners.range((owner, 0)..=(owner, u32::MAX)).map(|(_, qpn)| *qpn)
    }

    /// Returns the connections that wait for the link address of a host.
    pub(super) fn waiting_for(&self, ip: IpAddr) -> impl Iterator<Item = u32> {
        self.waiting.range((ip, 0)..=(ip, u32::MAX)).map(|(_, qpn)| *qpn)
    }

    /// Returns those that another host asked for, and that wait for an application.
    pub(super) fn half_open(&self) -> impl Iterator<Item = u32> {
        self.half_open.iter().copied()
    }

    fn shares_of(&mut self, listed: &Listed) -> &mut Shares {
        if listed.is_half_open { &mut self.half_open_shares } else { &mut self.shares }
    }

    /// Returns `true` if an account may have one more connection that is not half-open.
    pub(super) fn has_room(&self, account: Account) -> bool {
        self.shares.check(account).is_ok()
    }

    /// Returns the number of connections of an account's user that are not half-open.
    #[cfg(test)]
    pub(super) fn of(&self, account: Account) -> usize {
        self.shares.of(account.user())
    }

    /// Returns `true` if one more request of another host may wait for an application of an account.
    pub(super) fn has_half_open_room(&self, account: Account) -> bool {
        self.half_open_shares.check(account).is_ok()
    }

    /// `true` if a connection has these addresses here.
    pub(super) fn has_own(&self, ip: IpAddr, mac: [u8; 6]) -> bool {
        self.own.contains_key(&(ip, mac))
    }
}

/// Lists a connection under another key than before.
fn list<K: Ord + Copy>(
    all: &mut BTreeSet<(K, u32)>,
    qpn: u32,
    before: Option<K>,
    after: Option<K>,
) {
    if before == after {
        return;
    }
    if let Some(key) = before {
        all.remove(&(key, qpn));
    }
    all.extend(after.map(|key| (key, qpn)));
}

/// Counts a connection for another key than before.
fn count<K: Eq + Hash + Copy>(all: &mut HashMap<K, usize>, before: Option<K>, after: Option<K>) {
    if before == after {
        return;
    }
    if let Some(key) = before
        && let Some(uses) = all.get_mut(&key)
    {
        *uses -= 1;
        if *uses == 0 {
            all.remove(&key);
        }
    }
    if let Some(key) = after {
        *all.entry(key).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::account::Party;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn owner(endpoint: u32) -> EndpointName {
        EndpointName { session: 4, endpoint }
    }

    fn account(uid: u32) -> Account {
        Account { uid, group: Some(70), is_limited: true }
    }

    fn listed() -> impl Strategy<Value = Listed> {
        let parts = (
            prop::option::of(0u32..3),
            prop::option::of(0u8..3),
            any::<bool>(),
            prop::option::of(0u32..3),
            prop::option::of((0u8..3, 0u8..2)),
        );
        parts.prop_map(|(endpoint, waits_for, is_half_open, uid, own)| Listed {
            owner: endpoint.map(owner),
            waits_for: waits_for.map(ip),
            is_half_open,
            account: uid.map(account),
            own: own.map(|(last, mac)| (ip(last), [mac; 6])),
        })
    }

    proptest! {
        /// The lists say what a look at all connections would.
        #[test]
        fn lists_are_those_of_the_connections(changes in prop::collection::vec((0u32..8, listed()), 1..60)) {
            let (mut lists, mut all) = (Lists::default(), BTreeMap::new());
            for (qpn, after) in changes {
                let before = all.insert(qpn, after).unwrap_or_default();
                lists.change(qpn, &before, &after);
                let having = |which: &dyn Fn(&Listed) -> bool| -> Vec<u32> {
                    all.iter().filter(|(_, one)| which(one)).map(|(qpn, _)| *qpn).collect()
                };
                prop_assert_eq!(lists.half_open().collect::<Vec<_>>(), having(&|one| one.is_half_open));
                for last in 0..3 {
                    let waiting: Vec<u32> = lists.waiting_for(ip(last)).collect();
                    prop_assert_eq!(waiting, having(&|one| one.waits_for == Some(ip(last))));
                    let uid = u32::from(last);
                    let owned: Vec<u32> = lists.of_owner(owner(uid)).collect();
                    prop_assert_eq!(owned, having(&|one| one.owner == Some(owner(uid))));
                    for (is_half_open, shares) in [(true, &lists.half_open_shares), (false, &lists.shares)] {
                        let theirs = having(&|one| {
                            one.account == Some(account(uid)) && one.is_half_open == is_half_open
                        });
                        prop_assert_eq!(shares.of(Party::User(uid)), theirs.len());
                    }
                    for mac in [[0; 6], [1; 6]] {
                        let own = having(&|one| one.own == Some((ip(last), mac)));
                        prop_assert_eq!(lists.has_own(ip(last), mac), !own.is_empty());
                    }
                }
            }
            for (qpn, one) in &all {
                lists.change(*qpn, one, &Listed::default());
            }
            for shares in [&lists.half_open_shares, &lists.shares] {
                prop_assert_eq!(shares.of(Party::Group(70)), 0);
            }
            prop_assert!(lists.waiting.is_empty() && lists.half_open.is_empty());
            prop_assert!(lists.owners.is_empty() && lists.own.is_empty());
        }
    }
}
