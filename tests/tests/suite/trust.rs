//! Trust: hostile applications as processes of their own, beside a neighbour whose every byte is
//! checked, on a server whose every descriptor is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use towpath_client::{AttachError, OpenError, Options, QueuePair, Refusal, Rule, Session, Setting};
use towpath_packet::build::{Flow, Tcp};
use towpath_testkit::{Census, Unavailable, User, Users, skip};
use towpath_tests::eventually;
use towpath_tests::process::{Process, Program};
use towpath_tests::random::seed;
use towpath_tests::served::Served;

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

fn neighbour(server: &Served) -> Process {
    let mut neighbour = PEER.start(&["pair", server.path(), "5"]);
    neighbour.expect("running");
    neighbour
}

/// Asserts that the neighbour has gone on, and lost nothing to the end.
fn went_on(mut neighbour: Process, before: u64) {
    let now: u64 = neighbour.ask("count").parse().unwrap();
    assert!(now > before, "the neighbour stood still at {before}");
    let last = neighbour.finish();
    assert!(last.iter().any(|line| line.starts_with("exchanged ")), "{last:?}");
}

fn every_violation(mode: &str, lanes: &str) {
    let mut server = Served::start(&PEER, &[mode, "late=yes", lanes]);
    let mut neighbour = neighbour(&server);
    let before = server.settled();
    let count: u64 = neighbour.ask("count").parse().unwrap();
    let said = PEER.start(&["violations", server.path()]).finish();
    let (last, acts) = said.split_last().unwrap();
    assert_eq!(*last, format!("violations {} of 8 kinds", acts.len()), "{said:?}");
    assert_eq!(server.device_counter("violations"), acts.len() as u64);
    server.holds_again(&before);
    went_on(neighbour, count);
    server.stop();
}

#[test]
fn every_violation_ends_its_session_alone_asleep() {
    every_violation("wait=block", "lanes=1");
}

#[test]
fn every_violation_ends_its_session_alone_polling() {
    every_violation("wait=poll", "lanes=1");
}

#[test]
fn every_violation_in_the_second_lane_ends_its_session_alone_asleep() {
    every_violation("wait=block", "lanes=2");
}

#[test]
fn every_violation_in_the_second_lane_ends_its_session_alone_polling() {
    every_violation("wait=poll", "lanes=2");
}

#[test]
fn arbitrary_writes_harm_no_other_session() {
    arbitrary_writes("lanes=1");
}

#[test]
fn arbitrary_writes_in_both_lanes_harm_no_other_session() {
    arbitrary_writes("lanes=2");
}

fn arbitrary_writes(lanes: &str) {
    let seed = seed(0x7e57);
    let mut server = Served::start(&PEER, &["late=yes", lanes]);
    let mut neighbour = neighbour(&server);
    let before = server.settled();
    let count: u64 = neighbour.ask("count").parse().unwrap();
    let said = PEER.start(&["random", server.path(), &seed.to_string(), "100"]).finish();
    println!("{said:#?}");
    let violated: u64 =
        said.last().unwrap().strip_prefix("rounds 100 violated ").unwrap().parse().unwrap();
    // The server must notice three of the five ways.
    assert!(violated >= 40, "{violated} of 100 sessions were closed");
    // A peer that ends by itself may miss the server's report of its violation.
    let counted = server.device_counter("violations");
    assert!((violated..=100).contains(&counted), "{violated} told, {counted} counted");
    server.holds_again(&before);
    went_on(neighbour, count);
    server.stop();
}

/// Returns a server's and an application's user, both different from the caller's.
fn two_users(test: &str) -> Option<Users> {
    let users = Users::find();
    if users.distinct {
        return Some(users);
    }
    let cause = "server and application cannot be made different users".to_owned();
    skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
    None
}

/// By record locks on its file, a user prolongs each close of it: no other user's application closes the same file.
#[test]
fn each_user_has_a_state_page() {
    let Some(users) = two_users("each_user_has_a_state_page") else { return };
    let [one, other] = users.applications;
    let option = format!("users={},{}", one.uid, other.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    let attach = |user: User| {
        let mut peer =
            PEER.start_as(&["state-page", server.path()], |command| user.confine(command));
        let page: u64 = peer.line().parse().unwrap();
        (peer, page)
    };
    let (first, page) = attach(one);
    let (second, same) = attach(one);
    let (third, others) = attach(other);
    assert_eq!(page, same, "of one user");
    assert_ne!(page, others, "of two users");
    for mut peer in [first, second, third] {
        assert!(peer.leave().success());
    }
    server.stop();
}

/// The page on trust names each kind of object that a server with applications of two users has, and what bounds the
/// operations on it.
#[test]
fn each_object_of_a_server_is_in_the_table() {
    let Some(users) = two_users("each_object_of_a_server_is_in_the_table") else { return };
    let [one, other] = users.applications;
    let option = format!("users={},{}", one.uid, other.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    let mut peers: Vec<Process> = Vec::new();
    for user in [one, other] {
        for (role, said) in [("memory", "created"), ("pair", "running")] {
            let mut arguments = vec![role, server.path()];
            arguments.extend((role == "pair").then_some("1"));
            let mut peer = PEER.start_as(&arguments, |command| user.confine(command));
            peer.expect(said);
            peers.push(peer);
        }
    }
    let census = Census::of(server.pid()).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    let mapped = maps.lines().filter_map(|line| line.split_once("/memfd:")?.1.split(' ').next());
    let files = census.memory_files.keys().map(String::as_str).chain(mapped);
    let mut found: BTreeSet<&str> =
        files.chain(census.descriptors.keys().map(String::as_str)).collect();
    // The log, and the programs and libraries.
    found.retain(|name| !["/dev/null", "file", "memfd"].contains(name));
    let page = include_str!("../../../docs/trust.md");
    let table = page.split_once("### Shared objects").unwrap().1.split("\n## ").next().unwrap();
    let named: BTreeSet<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let missing: Vec<_> = found.difference(&named).collect();
    assert!(missing.is_empty(), "not in the table of docs/trust.md: {missing:?}; it has {named:?}");
    assert!(found.contains("towpath-copies") && found.contains("towpath-memory"), "{found:?}");
    drop(peers);
    server.stop();
}

#[test]
fn another_user_writes_only_what_is_its_own() {
    let Some(users) = two_users("another_user_writes_only_what_is_its_own") else { return };
    let [granted, stranger] = users.applications;
    let options = [format!("users={}", granted.uid)];
    let mut server = Served::start_as(&PEER, &[&options[0]], Some(users.server));
    let before = server.settled();
    let pid = server.pid().to_string();
    let mut confined =
        PEER.start_as(&["confined", server.path(), &pid], |command| granted.confine(command));
    let mut said = BTreeMap::new();
    loop {
        let line = confined.line();
        if line == "tried" {
            break;
        }
        let (what, came_to) = line.rsplit_once(": ").unwrap();
        said.insert(what.to_owned(), came_to.to_owned());
    }
    let report = server.report();
    assert_eq!(report["sessions"][0]["trusted"], false);
    assert_eq!(report["sessions"][0]["uid"], granted.uid);

    let mut expected = BTreeMap::new();
    let mut expect = |memory: &str, outcomes: &[(&str, &str)]| {
        for (what, came_to) in outcomes {
            expected.insert(format!("{memory}: {what}"), (*came_to).to_owned());
        }
    };
    // Not even open for writing.
    for memory in ["server pages", "receive pool", "state page"] {
        expect(
            memory,
            &[
                ("map for writing", "EACCES"),
                ("map for reading", "done"),
                ("make a mapping writable", "EACCES"),
                ("remove a page", "EACCES"),
                ("open again", "EACCES"),
                ("write", "EBADF"),
                ("truncate", "EINVAL"),
                ("grow", "EINVAL"),
                ("punch a hole", "EBADF"),
                ("seal against writing", "EPERM"),
                ("seal against sealing", "EPERM"),
                ("change the mode", "EPERM"),
            ],
        );
    }
    // Open for writing, and sealed against every writer but the existing ones.
    for memory in ["application pages", "transmit pool"] {
        expect(
            memory,
            &[
                ("map for writing", "EPERM"),
                ("map for reading", "done"),
                ("make a mapping writable", "EACCES"),
                ("remove a page", "EACCES"),
                ("open again", "EACCES"),
                ("write", "EPERM"),
                ("truncate", "EPERM"),
                ("grow", "EPERM"),
                ("punch a hole", "EPERM"),
                ("seal against writing", "EPERM"),
                ("seal against sealing", "EPERM"),
                ("change the mode", "EPERM"),
            ],
        );
    }
    expect("own mapping", &[("remove a page", "EPERM"), ("write", "done")]);
    for what in ["the server's mem", "the server's fd", "the server's maps"] {
        expected.insert(what.to_owned(), "refused".to_owned());
    }
    expected.insert("trusted".to_owned(), "false".to_owned());
    for (what, came_to) in &expected {
        assert_eq!(said.get(what), Some(came_to), "{what}");
    }
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    confined.finish();

    // A user that is not listed may not attach at all, and the refusal names the permitted users.
    let refused = PEER
        .start_as(&["step", server.path(), "2"], |command| {
            stranger.confine(command);
            command.stderr(std::process::Stdio::null());
        })
        .wait();
    assert!(!refused.success());
    server.holds_again(&before);
    server.stop();
}

/// An application of 0.1.0 leaves its memory unallocated. It can end its session and keep the memory.
/// The server can free none of it, so it stays the user's.
#[test]
fn memory_that_the_server_allocates_and_cannot_free_stays_the_users() {
    for leaves in ["politely", "hastily"] {
        let test = "memory_that_the_server_allocates_and_cannot_free_stays_the_users";
        let Some((sessions, bytes, refusal)) = hoard(test, "older", leaves) else { return };
        // The memory that the application keeps and the next session exceed the user's limit.
        assert!((4..8).contains(&sessions) && bytes <= HOARD_LIMIT, "{sessions}, {bytes}");
        let expected = format!("{bytes} of these bytes are of ended sessions");
        assert!(
            refusal.as_ref().is_some_and(|text| text.contains(&expected)),
            "{leaves}: {bytes}: {refusal:?}"
        );
    }
}

/// The application's control group pays for pages that the application has allocated, also if it keeps them.
#[test]
fn memory_that_an_application_allocates_is_free_after_its_session() {
    for leaves in ["politely", "hastily"] {
        let test = "memory_that_an_application_allocates_is_free_after_its_session";
        let Some((sessions, bytes, refusal)) = hoard(test, "allocates", leaves) else { return };
        assert_eq!((sessions, refusal), (32, None), "{leaves}");
        assert!(bytes > 2 * HOARD_LIMIT, "{bytes}");
    }
}

/// The server refuses a session whose application has left a page unallocated, and allocates no page for
/// it. So no charge stays.
#[test]
fn memory_with_holes_is_refused_and_not_charged() {
    for leaves in ["politely", "hastily"] {
        let test = "memory_with_holes_is_refused_and_not_charged";
        let Some((sessions, bytes, refusal)) = hoard(test, "holes", leaves) else { return };
        assert_eq!((sessions, refusal), (32, None), "{leaves}");
        // The worker frees the files that are not sealed.
        assert!(bytes < HOARD_LIMIT, "{bytes}");
    }
}

const HOARD_LIMIT: u64 = 16 << 20;

/// Lets an application of another user attach and leave until it is refused, but 32 times at most.
/// Returns the number of sessions, the bytes that it keeps, and the refusal.
fn hoard(test: &str, how: &str, leaves: &str) -> Option<(u64, u64, Option<String>)> {
    let users = two_users(test)?;
    let granted = users.applications[0];
    let options = [format!("users={}", granted.uid), format!("bytes_per_user={HOARD_LIMIT}")];
    let server = Served::start_as(&PEER, &[&options[0], &options[1]], Some(users.server));
    let arguments = ["hoarder", server.path(), how, leaves];
    let said = PEER.start_as(&arguments, |command| granted.confine(command)).finish();
    server.stop();
    let (last, before) = said.split_last().unwrap();
    let (sessions, bytes) = last.strip_suffix(" bytes").unwrap().split_once(" sessions, ").unwrap();
    let refusal = before.iter().find_map(|line| line.strip_prefix("refused "));
    let number = |text: &str| text.parse().unwrap();
    Some((number(sessions), number(bytes), refusal.map(str::to_owned)))
}

/// Attaches as another user. A caller that may become any user attaches from a thread of which only
/// the user changes.
fn attach_as(user: User, socket: &Path, options: &Options) -> Result<Session, AttachError> {
    let (socket, options) = (socket.to_owned(), options.clone());
    std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(user.uid);
        let gid = rustix::process::Gid::from_raw(user.gid);
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        Session::attach(socket, &options)
    })
    .join()
    .unwrap()
}

/// Returns every rule that combines these fields, each absent, the session's own, or the
/// neighbour's; and whether the rule asks for the neighbour's packets.
fn rules(neighbour: &Session, flow: &Flow) -> Vec<(Rule, bool)> {
    let mut rules = vec![(Rule::new(), false)];
    let mut each = |choices: &[&dyn Fn(Rule) -> (Rule, bool)]| {
        rules = rules
            .iter()
            .flat_map(|(rule, theirs)| {
                let more = choices.iter().map(|choice| choice(*rule));
                more.map(|(rule, more)| (rule, *theirs || more)).collect::<Vec<_>>()
            })
            .collect();
    };
    let mac = neighbour.info().mac;
    each(&[&|rule| (rule, false), &|rule| (rule.any_mac(), true), &|rule| (rule.mac(mac), true)]);
    each(&[&|rule| (rule, false), &|rule| (rule.any_vlan(), false)]);
    each(&[&|rule| (rule, false), &|rule| (rule.ip(flow.destination), true)]);
    each(&[&|rule| (rule, false), &|rule| (rule.ethertype(0x800), false)]);
    each(&[&|rule| (rule, false), &|rule| (rule.protocol(17), false)]);
    each(&[&|rule| (rule, false), &|rule| (rule.port(flow.destination_port), false)]);
    each(&[&|rule| (rule, false), &|rule| (rule.remote_ip(flow.source), false)]);
    each(&[&|rule| (rule, false), &|rule| (rule.remote_port(flow.source_port), false)]);
    rules
}

#[test]
fn no_wildcard_takes_a_neighbours_packets() {
    let Some(users) = two_users("no_wildcard_takes_a_neighbours_packets") else { return };
    let [victim, hostile] = users.applications;
    let option = format!("users={},{}", victim.uid, hostile.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    let options = |name: &str| Options { name: name.into(), endpoints: 512, ..Options::default() };
    let mut victim = attach_as(victim, server.socket(), &options("victim")).unwrap();
    let mut hostile = attach_as(hostile, server.socket(), &options("hostile")).unwrap();
    let mut sender = Session::attach(server.socket(), &options("sender")).unwrap();
    assert!(!victim.info().trusted && !hostile.info().trusted);
    // The least specific rule that it may open: all others take precedence.
    let theirs = victim.open(&Rule::new().any_vlan()).unwrap();
    let address = |session: &Session| IpAddr::from(session.info().ipv4.unwrap().0);
    let flow = Flow::v4()
        .macs(sender.info().mac, victim.info().mac)
        .addresses(address(&sender), address(&victim));
    let mut opened = Vec::new();
    let (mut denied, mut too_many) = (0, 0);
    for (rule, neighbours) in rules(&victim, &flow) {
        match hostile.open(&rule) {
            Ok(endpoint) => {
                assert!(!neighbours, "{rule:?}");
                opened.push(endpoint);
            }
            Err(OpenError::Refused { refusal: Refusal::Permission, .. }) => {
                assert!(neighbours, "{rule:?}");
                denied += 1;
            }
            // An address has a limited number of sets of fields.
            Err(OpenError::Refused { refusal: Refusal::Limit, text }) => {
                assert!(!neighbours && text.contains("sets of fields"), "{rule:?}: {text}");
                too_many += 1;
            }
            Err(error) => panic!("{rule:?}: {error}"),
        }
    }
    assert_eq!((opened.len(), denied, too_many), (16, 320, 48));
    let from = sender.open(&Rule::new().any_vlan()).unwrap();
    let mut packets = vec![flow.udp(b"udp"), flow.tcp(&Tcp::default(), b"tcp"), flow.who_has()];
    packets.extend([flow.vlan(7).udp(b"tagged"), flow.echo(true, 1, 1, b"ping")]);
    // Also packets that are the neighbour's only by its MAC address.
    packets.push(Flow { destination: address(&hostile), ..flow }.udp(b"udp"));
    packets.retain(|packet| packet[0] & 1 == 0);
    let count = 20 * packets.len() as u64;
    for packet in packets.iter().cycle().take(count as usize) {
        sender.sender().send_bytes(from, packet).unwrap();
        sender.sender().flush().unwrap();
    }
    eventually("the victim has all of them", || {
        victim.receiver().receive(QueuePair::FIRST, 64, |_| {}).unwrap();
        let counters: BTreeMap<_, _> = victim.counters(theirs).into_iter().collect();
        counters["rx_packets"] == count
    });
    for endpoint in opened {
        let counters: BTreeMap<_, _> = hostile.counters(endpoint).into_iter().collect();
        assert_eq!(counters["rx_packets"], 0);
    }
    drop((victim, hostile, sender));
    server.stop();
}

/// An application can prolong its notification as long as it likes. So the engine leaves
/// notifications to workers where another user would have to wait; and no notification is lost.
#[test]
fn applications_of_several_users_are_notified_by_their_workers() {
    let Some(users) = two_users("applications_of_several_users_are_notified_by_their_workers")
    else {
        return;
    };
    let [first, second] = users.applications;
    let option = format!("users={},{}", first.uid, second.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    let pair = |user: User, seed: &str| {
        let arguments = ["pair", server.path(), seed];
        let mut pair = PEER.start_as(&arguments, |command| user.confine(command));
        pair.expect("running");
        pair
    };
    let count = |pair: &mut Process| pair.ask("count").parse::<u64>().unwrap();
    let relayed = || server.device_counter("notifications_relayed");
    let mut alone = pair(first, "1");
    let begun = count(&mut alone);
    eventually("packets of one user alone", || count(&mut alone) > begun + 500);
    assert_eq!(relayed(), 0);
    let mut other = pair(second, "2");
    let (begun, before) = (count(&mut alone), relayed());
    eventually("packets of both", || {
        count(&mut alone) > begun + 500 && count(&mut other) > 500 && relayed() > before
    });
    // The workers stay when one of the users goes: later arrivals and departures change nothing.
    went_on(other, 0);
    let before = relayed();
    let begun = count(&mut alone);
    eventually("packets go on", || count(&mut alone) > begun + 500 && relayed() > before);
    went_on(alone, 0);
    server.stop();
}

/// Workers also notify the applications of a single user if the setting demands it.
#[test]
fn workers_notify_if_the_setting_demands_it() {
    let server = Served::start(&PEER, &[]);
    let value = Setting::Notify.parse("worker").unwrap();
    towpath_client::set(server.socket(), None, Setting::Notify, value).unwrap();
    let mut pair = neighbour(&server);
    let count = |pair: &mut Process| pair.ask("count").parse::<u64>().unwrap();
    let begun = count(&mut pair);
    eventually("packets", || count(&mut pair) > begun + 1000);
    // Read in this order, because both counters keep growing.
    let relayed = server.device_counter("notifications_relayed");
    let notifications = server.device_counter("notifications");
    assert!(relayed > 0 && notifications >= relayed, "{relayed} of {notifications}");
    went_on(pair, begun);
    server.stop();
}

/// Returns packets with which a session would act as part of the network, from its own addresses;
/// and the counter that each raises.
fn parts_in_the_network(session: &Session) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let own = |flow: Flow, ip: IpAddr| Flow {
        source_mac: session.info().mac.octets(),
        source: ip,
        ..flow
    };
    let own6 = session.info().ipv6.unwrap().0;
    let v4 = own(Flow::v4(), session.info().ipv4.unwrap().0.into());
    let v6 = own(Flow::v6(), own6.into());
    let icmpv6 = |kind: u8| v6.icmp([&[kind][..], &[0; 39]].concat());
    let anothers = |kind, option| {
        // The address in the option, at the frame's end.
        let mut frame = v6.neighbour(kind, 0, own6, option);
        *frame.last_mut().unwrap() ^= 1;
        frame
    };
    let behind_options = |mut frame: Vec<u8>| {
        // Hop-by-hop options, of 8 bytes, take the place of the next header behind IPv6's 40 bytes.
        let next = std::mem::replace(&mut frame[20], 0);
        frame[19] += 8;
        frame.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
        frame
    };
    let to_group = |frame: Vec<u8>| [&[1, 0, 0x5e, 0, 0, 2][..], &frame[6..]].concat();
    let hsrp = Flow { destination: IpAddr::from([224, 0, 0, 2]), ..v4 }.ports(1985, 1985);
    let (rule, mac) = ("tx_dropped_outside_rule", "tx_dropped_source_mac");
    let bridges = Flow { destination_mac: [1, 0x80, 0xc2, 0, 0, 0], ..v4 };
    vec![
        ("DHCP", v4.ports(67, 68).udp(&[2; 240]), rule),
        ("DHCPv6", v6.ports(547, 546).udp(&[7; 60]), rule),
        ("an IGMP query", v4.ip(2, &[0x11, 0, 0, 0, 0, 0, 0, 0]), rule),
        ("an MLD query", icmpv6(130), rule),
        ("a router advertisement", icmpv6(134), rule),
        ("a redirect", icmpv6(137), rule),
        ("VRRP", v4.ip(112, &[0x21; 20]), rule),
        ("VRRP over IPv6", v6.ip(112, &[0x31; 20]), rule),
        ("a router advertisement behind options", behind_options(icmpv6(134)), rule),
        ("OSPF", v4.ip(89, &[2; 24]), rule),
        ("PIM over IPv6", v6.ip(103, &[0x20; 20]), rule),
        ("HSRP", to_group(hsrp.udp(&[0; 20])), rule),
        ("PTP over UDP", v4.ports(319, 319).udp(&[0; 44]), rule),
        ("PTP", v4.ethernet(0x88f7, &[0; 46]), rule),
        ("an offer of PPPoE", v4.ethernet(0x8863, &[0x11, 7, 0, 0, 0, 0]), rule),
        ("EAPOL", v4.ethernet(0x888e, &[2, 1, 0, 0]), rule),
        ("a frame of LLDP", v4.ethernet(0x88cc, &[0; 46]), rule),
        ("IPv4 within IPv4", v4.ip(4, &[0x45; 40]), rule),
        ("a PAUSE frame", v4.ethernet(0x8808, &[0; 46]), rule),
        ("a frame for bridges", bridges.ethernet(0x88b5, &[0; 46]), rule),
        ("a neighbour solicitation with another's address", anothers(135, 1), mac),
        ("a neighbour advertisement with another's address", anothers(136, 2), mac),
    ]
}

#[test]
fn only_administrators_play_a_part_in_the_network() {
    let Some(users) = two_users("only_administrators_play_a_part_in_the_network") else { return };
    let [granted, _] = users.applications;
    let option = format!("users={}", granted.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    let options = Options::default();
    let ordinary = attach_as(granted, server.socket(), &options).unwrap();
    let administrator = Session::attach(server.socket(), &options).unwrap();
    for (mut session, may) in [(ordinary, false), (administrator, true)] {
        let endpoint = session.open(&Rule::new().any_vlan()).unwrap();
        let mut expected = BTreeMap::new();
        let parts = parts_in_the_network(&session);
        let count = parts.len() as u64;
        let reached = server.device_counter("tx_packets");
        for (what, frame, counter) in parts {
            let counter = if may { "tx_packets" } else { counter };
            *expected.entry(counter).or_insert(0) += 1;
            session.sender().send_bytes(endpoint, &frame).unwrap();
            session.sender().flush().unwrap();
            eventually(what, || {
                let counters: BTreeMap<_, _> = session.counters(endpoint).into_iter().collect();
                counters[counter] == expected[counter]
            });
        }
        let counters: BTreeMap<_, _> = session.counters(endpoint).into_iter().collect();
        let all = counters.iter().filter(|(name, _)| name.starts_with("tx_dropped"));
        let refused: u64 = all.map(|(_, count)| count).sum();
        let sent = if may { count } else { 0 };
        assert_eq!((refused, counters["tx_packets"]), (count - sent, sent));
        assert_eq!(server.device_counter("tx_packets") - reached, sent, "at the network");
        // What an ordinary station sends passes.
        let flow = Flow { source_mac: session.info().mac.octets(), ..Flow::v4() };
        let flow = Flow { source: session.info().ipv4.unwrap().0.into(), ..flow };
        session.sender().send_bytes(endpoint, &flow.udp(b"ordinary")).unwrap();
        session.sender().flush().unwrap();
        eventually("an ordinary packet", || {
            server.device_counter("tx_packets") - reached == sent + 1
        });
    }
    server.stop();
}

#[test]
fn an_unlisted_user_is_refused_with_the_remedy() {
    let Some(users) = two_users("an_unlisted_user_is_refused_with_the_remedy") else { return };
    let [granted, stranger] = users.applications;
    let option = format!("users={}", granted.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    let refused = attach_as(stranger, server.socket(), &Options::default()).unwrap_err();
    let AttachError::Refused { refusal: Refusal::Permission, text } = refused else {
        panic!("{refused}")
    };
    assert!(text.contains(&format!("add {} to allow-user", stranger.uid)), "{text}");
    assert!(!text.contains("--"), "a refusal names settings, not options: {text}");
    server.stop();
}

#[test]
fn an_application_lowers_its_own_priority_and_takes_no_larger_share() {
    let Some(users) = two_users("an_application_lowers_its_own_priority_and_takes_no_larger_share")
    else {
        return;
    };
    let [granted, _] = users.applications;
    let option = format!("users={}", granted.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    {
        let mut session = attach_as(granted, server.socket(), &Options::default()).unwrap();
        let endpoint = session.open(&Rule::new().udp(1000)).unwrap();
        let mut set = |setting, value| {
            session.set(endpoint, setting, value).map_err(|error| error.to_string())
        };
        assert_eq!(set(Setting::Priority, 1), Ok(()));
        assert_eq!(set(Setting::Priority, 3), Ok(()));
        let refused = set(Setting::Priority, 4).unwrap_err();
        assert!(refused.contains("priority=4: above 3"), "{refused}");
        assert_eq!(set(Setting::Pacing, 1), Ok(()));
        assert_eq!(set(Setting::MaxDelayUs, 1000), Ok(()));
        for (setting, value) in [
            (Setting::Weight, 200),
            (Setting::RateBps, 0),
            (Setting::RatePps, 0),
            (Setting::BurstBytes, 1 << 20),
            (Setting::BurstPackets, 1000),
            (Setting::MaxMessageBytes, 1 << 20),
            (Setting::Quota, 0),
            (Setting::TickMultiple, 1),
            (Setting::Scheduler, 0),
            (Setting::Handoff, 0),
            (Setting::Expedited, 32),
        ] {
            let refused = set(setting, value).unwrap_err();
            let name = setting.spec().name;
            assert!(refused.contains(name) && refused.contains("only root"), "{refused}");
        }
    }
    server.stop();
}

#[test]
fn the_servers_own_user_is_shown_as_trusted() {
    let server = Served::start(&PEER, &[]);
    let session = Session::attach(server.socket(), &Options::default()).unwrap();
    assert!(session.info().trusted);
    assert_eq!(server.report()["sessions"][0]["trusted"], true);
    drop(session);
    server.stop();
}
