//! Tests of the flow table against a list of rules, and of the cache by its counts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::prelude::*;
use towpath_packet::FlowVlan;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::headers::{Fragment, Network};
use towpath_packet::plain;

use super::cache::{FEW_SETS, MORE_SETS, Thresholds, class_of};
use super::groups::GROUP_TABLES;
use super::*;

const fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// Returns a rule for every untagged packet of one address.
fn rule(number: u8) -> FlowRule {
    FlowRule { mac: Some(mac(number)), vlan: FlowVlan::Untagged, ..FlowRule::default() }
}

fn to(endpoint: u32) -> Destination {
    Destination { session: 0, endpoint }
}

fn parse(frame: &[u8]) -> Headers {
    Headers::parse(frame, frame.len()).unwrap()
}

fn udp(number: u8, port: u16) -> Headers {
    let flow = Flow { destination_mac: mac(number), destination_port: port, ..Flow::v4() };
    parse(&flow.udp(b"x"))
}

fn lookup(table: &mut FlowTable, headers: &Headers) -> Option<Destination> {
    table.lookup(Direction::Received, headers)
}

#[test]
fn the_more_specific_rule_wins() {
    let mut table = FlowTable::new(1, FlowCache::Auto);
    assert!(table.insert(&rule(1), false, to(0)));
    let port = FlowRule { protocol: Some(17), port: Some(53), ..rule(1) };
    assert!(table.insert(&port, false, to(1)));
    assert!(!table.insert(&port, false, to(2)), "the same rule twice");
    assert_eq!(lookup(&mut table, &udp(1, 53)), Some(to(1)));
    assert_eq!(lookup(&mut table, &udp(1, 54)), Some(to(0)));
    assert_eq!(lookup(&mut table, &udp(2, 53)), None);
    table.remove(&port, to(2));
    assert_eq!(lookup(&mut table, &udp(1, 53)), Some(to(1)), "another endpoint's remove");
    table.remove(&port, to(1));
    assert_eq!(lookup(&mut table, &udp(1, 53)), Some(to(0)));
    table.remove(&rule(1), to(0));
    assert!(table.is_empty());
    assert_eq!(lookup(&mut table, &udp(1, 53)), None, "also not from the cache");
}

#[test]
fn vlans_are_apart_unless_any_is_asked_for() {
    let mut table = FlowTable::new(1, FlowCache::Off);
    assert!(table.insert(&FlowRule { vlan: FlowVlan::Number(7), ..rule(1) }, true, to(0)));
    assert!(table.insert(&rule(1), true, to(1)));
    assert!(table.insert(&FlowRule { vlan: FlowVlan::Any, ..rule(1) }, true, to(2)));
    let untagged = udp(1, 53);
    let tagged = |vlan| Headers { vlan: Some(vlan), ..untagged };
    assert_eq!(lookup(&mut table, &untagged), Some(to(1)));
    assert_eq!(lookup(&mut table, &tagged(7)), Some(to(0)));
    assert_eq!(lookup(&mut table, &tagged(8)), Some(to(2)));
    let mut found = Vec::new();
    table.members(&tagged(7), &mut found);
    assert_eq!(found, [to(0), to(2)]);
    found.clear();
    table.members(&untagged, &mut found);
    assert_eq!(found, [to(1), to(2)]);
}

#[test]
fn group_membership_ignores_local_addresses_of_rules() {
    let mut table = FlowTable::new(1, FlowCache::Off);
    let flow = Flow { destination_mac: [0xff; 6], ..Flow::v4() };
    let headers = parse(&flow.udp(b"x"));
    let all = FlowRule { ip: Some("192.0.2.200".parse().unwrap()), ..rule(1) };
    let port = FlowRule { port: Some(flow.destination_port), ..all };
    let remote =
        FlowRule { remote_ip: Some(flow.source), remote_port: Some(flow.source_port), ..port };
    let other = FlowRule { remote_port: Some(flow.source_port ^ 1), ..remote };
    for (number, rule) in [all, port, remote, other].iter().enumerate() {
        assert!(table.insert(rule, true, to(number as u32)));
    }
    let mut found = Vec::new();
    table.members(&headers, &mut found);
    assert_eq!(found, [to(0), to(1), to(2)]);
}

/// Returns a broadcast packet to a port, and one without a port.
fn broadcast(port: u16) -> [Headers; 2] {
    let flow = Flow { destination_mac: [0xff; 6], destination_port: port, ..Flow::v4() };
    [parse(&flow.udp(b"x")), parse(&flow.ethernet(0x88b5, &[0; 46]))]
}

#[test]
fn a_group_lookup_skips_rules_of_other_ports() {
    let mut table = FlowTable::new(1, FlowCache::Off);
    let member = |port: u16| FlowRule { protocol: Some(17), port: Some(port), ..rule(1) };
    for port in 0..10_000 {
        assert!(table.insert(&member(port), true, to(port.into())));
    }
    let all = FlowRule { mac: Some(mac(2)), ..FlowRule::default() };
    assert!(table.insert(&all, true, to(10_000)));
    let [udp, other] = broadcast(77);
    let mut found = Vec::new();
    table.members(&udp, &mut found);
    assert_eq!(found, [to(77), to(10_000)]);
    found.clear();
    table.members(&other, &mut found);
    table.members(&broadcast(20_000)[0], &mut found);
    assert_eq!(found, [to(10_000); 2]);
    // The lookup compares keys until it reaches the four that match, and to the end where none
    // does.
    let compared = table.groups.compared();
    assert!((4..20).contains(&compared), "{compared}");
    assert_eq!(table.groups.tables(), 2);
}

#[test]
fn group_members_share_a_table_per_field_set() {
    let mut table = FlowTable::new(1, FlowCache::Off);
    let ip = |number: u8| Some(IpAddr::from([192, 0, 2, number]));
    for bits in 0..256_u32 {
        let given = |bit: u32| bits & 1 << bit != 0;
        // Each rule has its own address, so that each set has room.
        let one = FlowRule {
            mac: Some([2, 1, 0, 0, 0, bits as u8]),
            vlan: if given(0) { FlowVlan::Untagged } else { FlowVlan::Any },
            ethertype: given(1).then_some(0x800),
            protocol: given(2).then_some(17),
            ip: if given(3) { ip(200) } else { None },
            port: given(4).then_some(Flow::v4().destination_port),
            remote_ip: if given(5) { Some(Flow::v4().source) } else { None },
            remote_port: given(6).then_some(Flow::v4().source_port),
        };
        assert!(table.insert(&one, true, to(bits)));
    }
    assert_eq!(table.groups.tables(), GROUP_TABLES);
    let mut found = Vec::new();
    table.members(&broadcast(Flow::v4().destination_port)[0], &mut found);
    assert_eq!(found, (0..256).map(to).collect::<Vec<_>>(), "in order");
    assert_eq!(table.groups.compared(), GROUP_TABLES);
}

#[test]
fn the_sets_of_one_address_are_bounded_and_cost_the_others_nothing() {
    let mut table = FlowTable::new(1, FlowCache::Off);
    // The test enters as many kinds of rules as there are, all for one address.
    let mut sets = 0;
    for bits in 0..128u32 {
        let given = |bit: u32| bits & 1 << bit != 0;
        let ip = |given: bool| given.then(|| IpAddr::from([192, 0, 2, 9]));
        let one = FlowRule {
            mac: Some(mac(1)),
            vlan: if given(0) { FlowVlan::Number(9) } else { FlowVlan::Any },
            ethertype: given(1).then_some(0x800),
            protocol: given(2).then_some(17),
            ip: ip(given(3)),
            port: given(4).then_some(9),
            remote_ip: ip(given(5)),
            remote_port: given(6).then_some(9),
        };
        sets += usize::from(table.insert(&one, false, to(bits)));
    }
    assert_eq!(sets, SETS_PER_MAC);
    assert!(table.insert(&rule(2), false, to(200)), "another address has sets of its own");
    let key = [rule_key(&rule(2))[0] & MAC_BITS];
    let theirs = table.macs.lookup(table.seed, &key).unwrap();
    assert_eq!(theirs.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    assert_eq!(lookup(&mut table, &udp(2, 1)), Some(to(200)));
    assert_eq!(table.len(), SETS_PER_MAC + 1);
}

/// An oracle: a list of rules, checked one after the other.
#[derive(Default)]
struct Oracle {
    rules: Vec<(FlowRule, Destination)>,
    /// The endpoints of these that receive broadcast and multicast.
    members: BTreeSet<Destination>,
}

impl Oracle {
    fn matches(rule: &FlowRule, headers: &Headers) -> bool {
        let (addresses, protocol, later) = match headers.network {
            Network::Ipv4(ip) => (
                Some((IpAddr::V4(ip.source.into()), IpAddr::V4(ip.destination.into()))),
                Some(ip.protocol),
                matches!(ip.fragment, Fragment::Later { .. }),
            ),
            Network::Ipv6(ip) => (
                Some((IpAddr::V6(ip.source.into()), IpAddr::V6(ip.destination.into()))),
                Some(ip.protocol),
                matches!(ip.fragment, Fragment::Later { .. }),
            ),
            Network::Arp(_) | Network::Other => (None, None, false),
        };
        let ports = headers.ports().filter(|_| !later);
        rule.mac.is_none_or(|mac| mac == headers.destination)
            && match rule.vlan {
                FlowVlan::Any => true,
                FlowVlan::Untagged => headers.vlan.is_none(),
                FlowVlan::Number(number) => headers.vlan == Some(number),
            }
            && rule.ethertype.is_none_or(|ethertype| ethertype == headers.ethertype)
            && (rule.protocol.is_none() || rule.protocol == protocol)
            && (rule.ip.is_none() || rule.ip == addresses.map(|(_, local)| local))
            && (rule.remote_ip.is_none() || rule.remote_ip == addresses.map(|(remote, _)| remote))
            && (rule.port.is_none() || rule.port == ports.map(|(_, local)| local))
            && (rule.remote_port.is_none() || rule.remote_port == ports.map(|(remote, _)| remote))
    }

    /// Returns the number of fields, and then which they are, the strongest first.
    fn strength(rule: &FlowRule) -> (usize, [bool; 8]) {
        let given = [
            rule.remote_port.is_some(),
            rule.remote_ip.is_some(),
            rule.port.is_some(),
            rule.ip.is_some(),
            rule.protocol.is_some(),
            rule.ethertype.is_some(),
            rule.vlan != FlowVlan::Any,
            rule.mac.is_some(),
        ];
        (given.iter().filter(|given| **given).count(), given)
    }

    fn lookup(&self, headers: &Headers) -> Option<Destination> {
        let matching = self.rules.iter().filter(|(rule, _)| Oracle::matches(rule, headers));
        matching.max_by_key(|(rule, _)| Oracle::strength(rule)).map(|(_, found)| *found)
    }

    /// Returns the receivers in the order of delivery.
    fn members(&self, headers: &Headers) -> Vec<Destination> {
        let members = self.rules.iter().filter(|(rule, one)| {
            let rule = FlowRule { mac: None, ip: None, ..*rule };
            self.members.contains(one) && Oracle::matches(&rule, headers)
        });
        members.map(|(_, one)| *one).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Returns an address out of few enough that rules and packets meet.
fn ip(six: bool, number: u8) -> IpAddr {
    if six {
        IpAddr::from([0x2001, 0xdb8, 0, 0, u16::from(number), 0, 0, 1])
    } else {
        IpAddr::from([192, 0, 2, number])
    }
}

prop_compose! {
    fn any_rule()(
        mac_number in proptest::option::of(1..3u8),
        vlan in prop_oneof![Just(FlowVlan::Any), Just(FlowVlan::Untagged), (1..3u16).prop_map(FlowVlan::Number)],
        ethertype in proptest::option::of(prop_oneof![Just(0x800), Just(0x86dd), Just(0x806)]),
        six in any::<bool>(),
        local in proptest::option::of(1..3u8),
        remote in proptest::option::of(1..3u8),
        protocol in proptest::option::of(prop_oneof![Just(6), Just(17)]),
        port in proptest::option::of(0..3u16),
        remote_port in proptest::option::of(0..3u16),
    ) -> FlowRule {
        FlowRule {
            mac: mac_number.map(mac),
            vlan,
            ethertype,
            ip: local.map(|number| ip(six, number)),
            protocol,
            port,
            remote_ip: remote.map(|number| ip(six, number)),
            remote_port,
        }
    }
}

prop_compose! {
    fn any_frame()(
        number in 1..4u8,
        vlan in proptest::option::of(1..4u16),
        six in any::<bool>(),
        local in 1..4u8,
        remote in 1..4u8,
        port in 0..4u16,
        remote_port in 0..4u16,
        what in 0..6,
    ) -> Vec<u8> {
        let flow = if six { Flow::v6() } else { Flow::v4() }
            .macs(mac(9), mac(number))
            .addresses(ip(six, remote), ip(six, local))
            .ports(remote_port, port);
        let flow = match vlan {
            Some(vlan) => flow.vlan(vlan),
            None => flow,
        };
        match what {
            0 | 1 => flow.udp(b"x"),
            2 | 3 => flow.tcp(&Tcp::default(), b"x"),
            4 => flow.echo(true, 1, 1, b"ping"),
            _ => flow.ethernet(0x88b5, &[0; 46]),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A rule, and whether it also receives broadcast and multicast.
    Insert(FlowRule, bool),
    /// The index of an existing rule, modulo their number.
    Remove(usize),
    /// Packets to look up one after the other, and how many times each.
    Look(Vec<(Vec<u8>, usize)>),
    Set(FlowCache),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any_rule(), any::<bool>()).prop_map(|(rule, group)| Step::Insert(rule, group)),
        2 => any::<usize>().prop_map(Step::Remove),
        6 => proptest::collection::vec((any_frame(), 1..4usize), 1..12).prop_map(Step::Look),
        1 => prop_oneof![Just(FlowCache::Off), Just(FlowCache::On), Just(FlowCache::Auto)]
            .prop_map(Step::Set),
    ]
}

proptest! {
    #[test]
    fn a_table_against_a_list_of_rules(
        seed in any::<u64>(),
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let mut table = FlowTable::new(seed, FlowCache::On);
        let mut oracle = Oracle::default();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Insert(rule, group) => {
                    let sets = |mac| {
                        let theirs = oracle.rules.iter().filter(|(one, _)| one.mac == mac);
                        let sets: std::collections::HashSet<_> =
                            theirs.map(|(one, _)| given_fields(one)).collect();
                        sets
                    };
                    let theirs = sets(rule.mac);
                    let room = theirs.len() < SETS_PER_MAC || theirs.contains(&given_fields(&rule));
                    let new = room && !oracle.rules.iter().any(|(one, _)| *one == rule);
                    prop_assert_eq!(table.insert(&rule, group, to(next)), new);
                    if new {
                        oracle.rules.push((rule, to(next)));
                        if group {
                            oracle.members.insert(to(next));
                        }
                    }
                    next += 1;
                }
                Step::Remove(which) => {
                    if !oracle.rules.is_empty() {
                        let (rule, theirs) =
                            oracle.rules.swap_remove(which % oracle.rules.len());
                        table.remove(&rule, to(u32::MAX));
                        table.remove(&rule, theirs);
                        oracle.members.remove(&theirs);
                    }
                }
                Step::Look(frames) => {
                    for (frame, times) in frames {
                        let headers = parse(&frame);
                        let mut members = vec![to(u32::MAX)];
                        table.members(&headers, &mut members);
                        prop_assert_eq!(members.remove(0), to(u32::MAX));
                        prop_assert_eq!(members, oracle.members(&headers));
                        let expected = oracle.lookup(&headers);
                        for _ in 0..times {
                            // Both kinds of lookups share the last flow.
                            for direction in [Direction::Received, Direction::Sent] {
                                prop_assert_eq!(table.lookup(direction, &headers), expected);
                                if let Some(plain) = plain::read(&frame, frame.len()) {
                                    prop_assert_eq!(table.lookup_plain(direction, &plain), expected);
                                }
                            }
                        }
                    }
                }
                Step::Set(setting) => table.set_cache(setting),
            }
            prop_assert_eq!(table.len(), oracle.rules.len());
            prop_assert_eq!(table.groups.tables() > 0, !oracle.members.is_empty());
        }
    }
}

/// Each change of the rules or of the setting makes every endpoint forget its last packet:
/// `flow_cache=off` holds at once.
#[test]
fn each_change_is_counted() {
    let (mut table, _) = ports(FlowCache::On, 2);
    let mut before = table.changes();
    let mut changed = |table: &FlowTable| {
        assert_ne!(std::mem::replace(&mut before, table.changes()), table.changes());
    };
    table.set_cache(FlowCache::Off);
    changed(&table);
    let rule = FlowRule { protocol: Some(17), port: Some(7), ..rule(1) };
    assert!(table.insert(&rule, false, to(7)));
    changed(&table);
    table.remove(&rule, to(7));
    changed(&table);
}

/// Returns a table of some ports, and a packet for each.
fn ports(cache: FlowCache, count: u16) -> (FlowTable, Vec<Headers>) {
    let mut table = FlowTable::new(1, cache);
    for port in 0..count {
        let rule = FlowRule { protocol: Some(17), port: Some(port), ..rule(1) };
        assert!(table.insert(&rule, false, to(port.into())));
    }
    (table, (0..count).map(|port| udp(1, port)).collect())
}

/// Looks `count` packets up, in trains of `length`.
fn trains(table: &mut FlowTable, packets: &[Headers], length: u64, count: u64) -> FlowCounts {
    let before = table.counts(Direction::Received);
    for number in 0..count {
        let port = (number / length) as usize % packets.len();
        assert_eq!(lookup(table, &packets[port]), Some(to(port as u32)));
    }
    let after = table.counts(Direction::Received);
    FlowCounts {
        lookups: after.lookups - before.lookups,
        compared: after.compared - before.compared,
        hits: after.hits - before.hits,
        switches: after.switches - before.switches,
    }
}

#[test]
fn a_cache_that_is_on_hits_all_but_the_first_of_a_train() {
    let (mut table, packets) = ports(FlowCache::On, 8);
    let counts = trains(&mut table, &packets, 10, 10_000);
    assert_eq!(counts, FlowCounts { lookups: 10_000, compared: 10_000, hits: 9_000, switches: 0 });
    assert_eq!(counts.mean_train(), Some(10.0));
    let counts = trains(&mut table, &packets, 1, 10_000);
    assert_eq!(counts, FlowCounts { lookups: 10_000, compared: 10_000, hits: 0, switches: 0 });
    assert_eq!(counts.mean_train(), Some(1.0));
}

#[test]
fn a_cache_that_is_off_compares_nothing() {
    let (mut table, packets) = ports(FlowCache::Off, 8);
    let counts = trains(&mut table, &packets, 10, 10_000);
    assert_eq!(counts, FlowCounts { lookups: 10_000, ..FlowCounts::default() });
    assert_eq!(counts.mean_train(), None);
}

#[test]
fn fields_that_no_rule_matches_do_not_end_a_train() {
    let (mut table, _) = ports(FlowCache::On, 8);
    let from = |source_port| {
        let flow = Flow { destination_mac: mac(1), destination_port: 3, source_port, ..Flow::v4() };
        parse(&flow.udp(b"x"))
    };
    for client in 0..100 {
        assert_eq!(lookup(&mut table, &from(client)), Some(to(3)));
    }
    assert_eq!(table.counts(Direction::Received).hits, 99);
    // With a rule that asks for the field, the packets differ.
    let remote = FlowRule { remote_port: Some(1), ..rule(1) };
    assert!(table.insert(&remote, false, to(9)));
    for client in 100..200 {
        assert_eq!(lookup(&mut table, &from(client)), Some(to(3)));
    }
    assert_eq!(table.counts(Direction::Received).hits, 99);
}

#[test]
fn automatic_follows_the_length_of_trains() {
    let (mut table, packets) = ports(FlowCache::Auto, 8);
    // Interleaved packets: the cache measures one window in each period and uses no entry.
    let period = WINDOW + REST;
    let counts = trains(&mut table, &packets, 1, 10 * period);
    assert_eq!(counts.switches, 0);
    assert_eq!((counts.compared, counts.hits), (10 * WINDOW, 0));
    // Trains: the cache is on from the end of the next measured window.
    let counts = trains(&mut table, &packets, 16, period);
    assert_eq!(counts.switches, 1);
    let counts = trains(&mut table, &packets, 16, 16_000);
    assert_eq!((counts.compared, counts.hits, counts.switches), (16_000, 15_000, 0));
    // Interleaved again: off after at most two windows, the first of which began before.
    let counts = trains(&mut table, &packets, 1, 2 * WINDOW);
    assert_eq!((counts.hits, counts.switches), (0, 1));
    let counts = trains(&mut table, &packets, 1, 2 * REST);
    assert!(counts.compared <= 3 * WINDOW, "{counts:?}");
}

/// Returns packets of trains whose mean length is between the thresholds.
fn between(thresholds: Thresholds) -> Vec<usize> {
    let pattern = match thresholds {
        FEW_SETS => vec![0, 0, 0, 1, 1, 2, 2, 2],
        _ => vec![0, 0, 1, 2, 2],
    };
    let tenths = pattern.len() as u64 * 10 / 3;
    assert!((thresholds.off_tenths..thresholds.on_tenths).contains(&tenths));
    pattern
}

#[test]
fn the_automatic_cache_is_stable_between_thresholds() {
    for thresholds in [FEW_SETS, MORE_SETS] {
        let (mut table, packets) = ports(FlowCache::Auto, 8);
        if thresholds == MORE_SETS {
            for rule in [rule(2), FlowRule { vlan: FlowVlan::Any, ..rule(2) }] {
                assert!(table.insert(&rule, false, to(99)));
            }
        }
        let pattern = between(thresholds);
        let mixed = |table: &mut FlowTable, count: usize| {
            let before = table.counts(Direction::Received);
            for number in 0..count {
                let port = pattern[number % pattern.len()];
                assert_eq!(lookup(table, &packets[port]), Some(to(port as u32)));
            }
            let after = table.counts(Direction::Received);
            assert_eq!(after.switches, before.switches, "{thresholds:?}");
            after.hits - before.hits
        };
        assert!(mixed(&mut table, 100_000) < 5_000, "it stays off");
        trains(&mut table, &packets, 64, 2 * (WINDOW + REST));
        assert!(table.last[class_of(LookupKey::of_packet(&packets[0]).key[1])].compares);
        assert!(mixed(&mut table, 100_000) >= 39_000, "it stays on");
    }
}

/// Frequent kinds of packets have a class of their own.
#[test]
fn classes_are_apart() {
    let kinds = [
        (0x0800, 6, 4),
        (0x0800, 17, 4),
        (0x0800, 1, 4),
        (0x0800, 132, 4),
        (0x86dd, 6, 6),
        (0x86dd, 17, 6),
        (0x86dd, 58, 6),
        (0x0806, 0, 0),
        (0x88b5, 0, 0),
        (0x88cc, 0, 0),
    ];
    let class = |(ethertype, protocol, version), port| {
        class_of(plain::kind(ethertype, protocol, version, port))
    };
    let classes: std::collections::BTreeSet<usize> =
        kinds.iter().map(|kind| class(*kind, 0)).collect();
    assert_eq!(classes.len(), kinds.len());
    assert!(classes.iter().all(|class| *class < CLASSES));
    assert_eq!(class(kinds[0], 80), class(kinds[0], 443), "ports do not count");
}

/// UDP packets of ever another flow come between the packets of long TCP trains. One mean of both
/// would be below two packets, and would turn the cache off for all. So it would where each UDP
/// packet displaced the last flow.
#[test]
fn interleaved_traffic_of_one_class_leaves_the_cache_of_another_on() {
    let mut table = FlowTable::new(1, FlowCache::Auto);
    for port in 0..8 {
        for (protocol, first) in [(6, 0), (17, 100)] {
            let rule = FlowRule { protocol: Some(protocol), port: Some(port), ..rule(1) };
            assert!(table.insert(&rule, false, to(first + u32::from(port))));
        }
    }
    let packet = |port: u16, tcp: bool| {
        let flow = Flow { destination_mac: mac(1), destination_port: port, ..Flow::v4() };
        let frame = if tcp { flow.tcp(&Tcp::default(), b"x") } else { flow.udp(b"x") };
        (parse(&frame), plain::read(&frame, frame.len()).unwrap())
    };
    let packets: Vec<_> = (0..8).map(|port| [packet(port, true), packet(port, false)]).collect();
    const PAIRS: u64 = 20_000;
    for number in 0..PAIRS {
        let (train, single) = (number / 16 % 8, number % 8);
        let [(tcp, _), _] = &packets[train as usize];
        let [_, (udp, _)] = &packets[single as usize];
        assert_eq!(lookup(&mut table, tcp), Some(to(train as u32)));
        assert_eq!(lookup(&mut table, udp), Some(to(100 + single as u32)));
    }
    let [tcp, udp] =
        [0, 1].map(|kind| table.class_counts(Direction::Received, &packets[0][kind].1));
    assert_eq!((tcp.lookups, tcp.compared), (PAIRS, PAIRS));
    assert_eq!((tcp.hits, tcp.switches), (PAIRS / 16 * 15, 1));
    assert_eq!((udp.lookups, udp.hits, udp.switches), (PAIRS, 0, 0));
    assert!(udp.compared <= PAIRS / REST * WINDOW + 2 * WINDOW, "{udp:?}");
    let (_, seen, used) = table.summary();
    assert_eq!((seen, used), (2, 1));
    assert_eq!(table.counts(Direction::Received), tcp + udp);
    // Trains of the other class turn its cache on, too.
    for number in 0..2 * REST {
        let [_, (udp, _)] = &packets[(number / 16 % 8) as usize];
        assert!(lookup(&mut table, udp).is_some());
    }
    let (_, seen, used) = table.summary();
    assert_eq!((seen, used), (2, 2));
}

#[test]
fn a_rule_that_comes_or_goes_is_seen_by_the_next_packet() {
    let (mut table, packets) = ports(FlowCache::On, 2);
    for _ in 0..3 {
        assert_eq!(lookup(&mut table, &packets[1]), Some(to(1)));
    }
    let class = class_of(LookupKey::of_packet(&packets[1]).key[1]);
    assert_eq!(table.last[class].remembers(), Some(table.fields));
    let closer =
        FlowRule { ip: Some(Flow::v4().destination), port: Some(1), protocol: Some(17), ..rule(1) };
    assert!(table.insert(&closer, false, to(7)));
    assert_eq!(table.last[class].remembers(), None);
    assert_eq!(lookup(&mut table, &packets[1]), Some(to(7)));
    table.remove(&closer, to(7));
    assert_eq!(lookup(&mut table, &packets[1]), Some(to(1)));
    // The cache also remembers, and forgets, that no endpoint matches.
    let unmatched = udp(1, 99);
    assert_eq!((lookup(&mut table, &unmatched), lookup(&mut table, &unmatched)), (None, None));
    assert!(table.insert(&rule(1), false, to(8)));
    assert_eq!(lookup(&mut table, &unmatched), Some(to(8)));
}
