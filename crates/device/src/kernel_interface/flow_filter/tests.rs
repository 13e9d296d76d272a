//! The program against a reference: the engine's own parser and rules.

mod inputs;

use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;

use towpath_bpf::interpreter::{self, Input, Kernel, Run};
use towpath_bpf::{Instruction, Verdict};
use towpath_device_testing::random::Random;
use towpath_packet::headers::Fragment;
use towpath_packet::transport::Transport;
use towpath_packet::{Headers, Network};

use super::flows::{MACS, mac_key};
use super::key::Key;
use super::program::{MASKS, MapFds};
use super::tables::{FLOWS, Tables};
use super::*;

const FDS: MapFds = MapFds { macs: 4, masks: 5, flows: 6 };
const SOCKETS: RawFd = 3;
const COUNTERS: RawFd = 7;
const SCRATCH: RawFd = 8;
const OWNERS: RawFd = 9;
/// The programs of both attach points. Behind the driver, the tests' program returns an XDP verdict
/// too.
const XDP: AttachPoint =
    AttachPoint::Xdp { sockets: SOCKETS, owners: OWNERS, counters: COUNTERS, spans: true };
const PACKET: AttachPoint =
    AttachPoint::Packet { scratch: SCRATCH, owned_verdict: 4, other_verdict: 2 };
/// Inputs in an ordinary run of the tests. `make test-filter` sets more.
const INPUTS: usize = if cfg!(towpath_sanitize) { 3_000 } else { 30_000 };
/// Inputs with one set of rules.
const INPUTS_PER_SET: usize = 50;
/// Of so many instructions, one is changed in an ordinary run of the tests.
const STRIDE: usize = if cfg!(towpath_sanitize) { 197 } else { 29 };
/// An Ethernet and an IPv6 header, in bytes.
const SHORTEST_BEHIND: usize = 54;
/// Hardware queues with a socket.
const QUEUES: u32 = 2;
/// The most instructions for a packet that no rule can match, for one of the host's own, and for
/// any.
const IDLE_INSTRUCTIONS: usize = 20;
const FOREIGN_INSTRUCTIONS: usize = 60;
const MOST_INSTRUCTIONS: usize = 1500;

/// The kernel's side of the maps.
struct Maps {
    tables: Tables,
    rules: Vec<FlowRule>,
    macs: HashSet<[u8; MAC_KEY_BYTES]>,
    masks: Vec<u8>,
    counters: [[u8; 8]; 2],
    scratch: [u8; SCRATCH_BYTES],
    /// The owner of each flow that has one, and of the hardware queue.
    flow_owners: HashMap<Key, u32>,
    queue_owner: u32,
    /// The value that the last lookup found.
    owner: [u8; 4],
}

impl Default for Maps {
    fn default() -> Maps {
        Maps {
            tables: Tables::default(),
            rules: Vec::new(),
            macs: HashSet::new(),
            masks: Vec::new(),
            counters: [[0; 8]; 2],
            flow_owners: HashMap::new(),
            queue_owner: 0,
            owner: [0; 4],
            // What an earlier packet left there.
            scratch: [0x86; SCRATCH_BYTES],
        }
    }
}

impl Maps {
    fn own(macs: &[[u8; 6]]) -> Maps {
        Maps { macs: macs.iter().map(mac_key).collect(), ..Maps::default() }
    }

    /// Adds a rule, if there is a mask for it.
    fn add(&mut self, rule: FlowRule) {
        let (fields, mask) = key::of_rule(&rule);
        if let Some(number) = self.tables.number_of(&mask) {
            self.tables.add(key::key(&fields, number as u32), number, mask);
            self.rules.push(rule);
        }
        self.masks = self.tables.masks(None);
    }

    fn verdict(&mut self, program: &[Instruction], bytes: &[u8]) -> Run {
        self.verdict_in(interpreter::AttachPoint::Xdp, program, bytes)
    }

    fn verdict_in(
        &mut self,
        attach_point: interpreter::AttachPoint,
        program: &[Instruction],
        bytes: &[u8],
    ) -> Run {
        let input = Input { bytes, packet_len: bytes.len(), queue: 1, attach_point };
        interpreter::run(program, self, input).unwrap_or_else(|fault| panic!("{fault}: {bytes:x?}"))
    }
}

impl Kernel for Maps {
    fn key_bytes(&self, map: RawFd) -> usize {
        match map {
            fd if fd == FDS.macs => MAC_KEY_BYTES,
            fd if fd == FDS.flows => KEY_BYTES,
            _ => 4,
        }
    }

    fn lookup(&mut self, map: RawFd, key: &[u8]) -> Option<u32> {
        match map {
            fd if fd == FDS.macs => self.macs.contains(key).then_some(0),
            fd if fd == FDS.flows => {
                let key: &Key = key.try_into().ok()?;
                self.tables.flows.get(key)?;
                let owner = self.flow_owners.get(key).copied().unwrap_or(0);
                self.owner = owner.to_ne_bytes();
                Some(4)
            }
            fd if fd == FDS.masks => Some(1),
            COUNTERS => Some(5 + u32::from_ne_bytes(key.try_into().ok()?)),
            SCRATCH => Some(3),
            OWNERS => {
                self.owner = self.queue_owner.to_ne_bytes();
                Some(4)
            }
            _ => None,
        }
    }

    fn value(&mut self, number: u32) -> &mut [u8] {
        match number {
            1 => &mut self.masks,
            3 => &mut self.scratch,
            4 => &mut self.owner,
            5 | 6 => &mut self.counters[number as usize - 5],
            _ => &mut [],
        }
    }

    fn redirect(&mut self, map: RawFd, index: u32) -> bool {
        assert_eq!(map, SOCKETS);
        index < QUEUES
    }
}

/// Returns the headers of the packet that an ICMP error quotes, as if the receiver had got that
/// packet from its destination.
fn quoted(headers: &Headers, frame: &[u8]) -> Option<Headers> {
    let quoted = headers.as_quoted_flow(frame)?;
    if matches!(quoted.network, Network::Ipv6(_)) {
        let next = frame[headers.l4_offset()? + 8 + 6];
        if matches!(next, 0 | 43 | 44 | 51 | 60) {
            return None;
        }
    }
    Some(quoted)
}

/// Returns `true` if the program must take a packet.
fn wanted(maps: &Maps, frame: &[u8]) -> bool {
    wanted_by(maps, frame, frame.len())
}

/// Returns `true` if a program must take a packet of which it reads only the beginning.
fn wanted_by(maps: &Maps, frame: &[u8], packet_len: usize) -> bool {
    wanted_within(maps, frame, packet_len, true)
}

fn wanted_within(maps: &Maps, frame: &[u8], packet_len: usize, quotes: bool) -> bool {
    let Ok(mut headers) = Headers::parse(frame, packet_len) else { return false };
    if headers.destination[0] & 1 != 0 || !maps.macs.contains(&mac_key(&headers.destination)) {
        return false;
    }
    let whole = |fragment| matches!(fragment, Fragment::Whole);
    let is_whole = match &mut headers.network {
        Network::Ipv4(ip) if !whole(ip.fragment) => {
            ip.transport = Transport::None;
            false
        }
        Network::Ipv6(ip) if !whole(ip.fragment) => {
            ip.transport = Transport::None;
            false
        }
        _ => true,
    };
    let matches = |headers: &Headers| maps.rules.iter().any(|rule| rule.matches(headers));
    matches(&headers)
        || quotes && is_whole && quoted(&headers, frame).is_some_and(|quoted| matches(&quoted))
}

/// Returns `true` if a rule matches the packet itself, and not only what it quotes.
fn wanted_by_itself(maps: &Maps, frame: &[u8]) -> bool {
    wanted_within(maps, frame, frame.len(), false)
}

/// Returns some rules, most of them for packets like those that the generator makes.
fn rules(random: &mut Random) -> Maps {
    let mut maps = Maps::own(&inputs::OWN);
    for _ in 0..1 + random.below(25) {
        let frame = inputs::frame(random);
        let rule = inputs::rule(random, &frame);
        // A rule that names nothing takes everything, and hides all others.
        if rule != FlowRule::default() {
            maps.add(rule);
        }
    }
    maps.masks = maps.tables.masks(None);
    maps
}

/// Returns the number of inputs that the caller of the tests wishes.
fn wished() -> Option<usize> {
    let text = std::env::var("TOWPATH_FILTER_INPUTS").ok()?;
    Some(text.parse().expect("TOWPATH_FILTER_INPUTS is a number"))
}

fn verdict(taken: bool) -> Verdict {
    if taken { Verdict::Redirect } else { Verdict::Pass }
}

#[test]
fn the_program_takes_what_the_reference_takes() {
    let inputs = wished().unwrap_or(INPUTS);
    let program = program::assemble(FDS, XDP).unwrap();
    let mut random = Random::new(11);
    let (mut taken, mut most) = (0, 0);
    for _ in 0..inputs / INPUTS_PER_SET {
        let mut maps = rules(&mut random);
        for _ in 0..INPUTS_PER_SET {
            let frame = inputs::frame(&mut random);
            let expected = wanted(&maps, &frame);
            let run = maps.verdict(&program, &frame);
            let rules = &maps.rules;
            assert_eq!(run.verdict, verdict(expected), "{frame:02x?} with {rules:#x?}");
            taken += usize::from(expected);
            most = most.max(run.instructions);
        }
    }
    println!("{inputs} packets, {taken} taken; at most {most} instructions");
    assert!(taken > inputs / 5 && taken < inputs * 4 / 5, "{taken} of {inputs}");
    assert!(most < MOST_INSTRUCTIONS, "{most}");
}

/// Splits a packet as an interface does that takes VLAN tags off.
fn without_tag(frame: &[u8]) -> (Option<(u16, u16)>, Vec<u8>) {
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if frame.len() < 18 || !matches!(number(12), 0x8100 | 0x88a8) {
        return (None, frame.to_vec());
    }
    (Some((number(12), number(14))), [&frame[..12], &frame[16..]].concat())
}

/// Behind the driver, a packet's tag may be beside it, and the program reads the packet's
/// beginning.
#[test]
fn a_packet_socket_copies_what_the_reference_takes() {
    let inputs = wished().unwrap_or(INPUTS);
    let program = program::assemble(FDS, PACKET).unwrap();
    let mut random = Random::new(16);
    let (mut taken, mut tagged, mut long) = (0, 0, 0);
    for _ in 0..inputs / INPUTS_PER_SET {
        let mut maps = rules(&mut random);
        for _ in 0..INPUTS_PER_SET {
            let mut frame = inputs::frame(&mut random);
            if random.below(4) == 0 {
                frame.extend((0..400).map(|_| random.below(64) as u8));
            }
            let beginning = &frame[..frame.len().min(towpath_packet::headers::PREFIX_BYTES)];
            let expected = wanted_by(&maps, beginning, frame.len());
            let (tag, bytes) = without_tag(&frame);
            for (tag, bytes) in [(tag, &bytes), (None, &frame)] {
                let attach_point = interpreter::AttachPoint::Packet { tag };
                let run = maps.verdict_in(attach_point, &program, bytes);
                let rules = &maps.rules;
                assert_eq!(run.verdict, verdict(expected), "{tag:?} {bytes:02x?} with {rules:#x?}");
            }
            taken += usize::from(expected);
            tagged += usize::from(tag.is_some());
            long += usize::from(frame.len() > towpath_packet::headers::PREFIX_BYTES);
        }
    }
    println!("{inputs} packets, {taken} taken, {tagged} tagged, {long} long");
    assert!(taken > inputs / 8 && taken < inputs * 4 / 5, "{taken} of {inputs}");
    assert!(tagged > inputs / 50 && long > inputs / 100, "{tagged} tagged, {long} long");
}

/// The inputs that the fuzzer of the headers' parser found to be different.
#[test]
fn the_corpus_of_the_parser() {
    let program = program::assemble(FDS, XDP).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/headers");
    let (mut random, mut files) = (Random::new(12), 0);
    for file in std::fs::read_dir(folder).unwrap() {
        let frame = std::fs::read(file.unwrap().path()).unwrap();
        files += 1;
        let Some(mac) = frame.first_chunk::<6>() else { continue };
        for _ in 0..200 {
            let mut maps = Maps::own(&[*mac]);
            maps.add(inputs::rule(&mut random, &frame));
            let expected = wanted(&maps, &frame);
            let run = maps.verdict(&program, &frame);
            assert_eq!(run.verdict, verdict(expected), "{frame:02x?}, {:?}", maps.rules);
        }
    }
    assert!(files > 10, "{files} files");
}

/// Bytes beyond the first buffer do not exist for the program, and change no verdict for the worse:
/// it passes what it cannot read.
#[test]
fn a_packet_in_several_buffers() {
    let program = program::assemble(FDS, XDP).unwrap();
    let mut random = Random::new(13);
    for _ in 0..2_000 {
        let mut maps = rules(&mut random);
        let frame = inputs::frame(&mut random);
        let expected = wanted(&maps, &frame);
        for first in [14, 33, 34, 42, 54, 94, frame.len()] {
            let bytes = &frame[..first.min(frame.len())];
            let input = Input {
                bytes,
                packet_len: frame.len(),
                queue: 0,
                attach_point: interpreter::AttachPoint::Xdp,
            };
            let run = interpreter::run(&program, &mut maps, input).unwrap();
            let is_all = bytes.len() == frame.len();
            assert!(expected || run.verdict == Verdict::Pass || !is_all, "{frame:02x?}");
            assert!(!is_all || run.verdict == verdict(expected), "{frame:02x?}");
        }
    }
}

#[test]
fn a_queue_without_a_socket_drops_and_counts() {
    let program = program::assemble(FDS, XDP).unwrap();
    let frame = towpath_packet::build::Flow::v4().macs([9; 6], inputs::OWN[0]).udp(b"hello");
    let mut maps = Maps::own(&inputs::OWN);
    maps.add(FlowRule { protocol: Some(17), ..FlowRule::default() });
    for (queue, count) in [(QUEUES, 1), (QUEUES + 7, 2)] {
        let input = Input {
            bytes: &frame,
            packet_len: frame.len(),
            queue,
            attach_point: interpreter::AttachPoint::Xdp,
        };
        let run = interpreter::run(&program, &mut maps, input).unwrap();
        assert_eq!(run.verdict, Verdict::Drop);
        assert_eq!(maps.counters.map(u64::from_le_bytes), [count, 0]);
    }
}

/// A hardware queue of a session's own takes what only its own rules match, and drops the packets
/// of others. It passes the kernel's.
#[test]
fn the_queue_of_an_owner_takes_its_flows_alone() {
    let program = program::assemble(FDS, XDP).unwrap();
    let mut random = Random::new(17);
    let mut seen = [0u64; 3];
    for _ in 0..wished().unwrap_or(INPUTS) / INPUTS_PER_SET {
        let mut owned = Owned::new(&mut random);
        for _ in 0..INPUTS_PER_SET {
            let frame = inputs::frame(&mut random);
            let expected = owned.verdict(&frame);
            let counted = owned.maps.counters[1];
            let run = owned.maps.verdict(&program, &frame);
            assert_eq!(run.verdict, expected, "{frame:02x?}");
            let counted = u64::from_le_bytes(owned.maps.counters[1]) - u64::from_le_bytes(counted);
            assert_eq!(counted, u64::from(expected == Verdict::Drop));
            let kinds = [Verdict::Pass, Verdict::Redirect, Verdict::Drop];
            seen[kinds.iter().position(|kind| *kind == expected).unwrap()] += 1;
        }
    }
    println!("{seen:?} packets of the kernel, the owner, and others");
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

/// Rules, some of which are the owner's of the hardware queue.
struct Owned {
    maps: Maps,
    own: Vec<FlowRule>,
    others: Vec<FlowRule>,
}

impl Owned {
    fn new(random: &mut Random) -> Owned {
        let mut maps = rules(random);
        let mut all = std::mem::take(&mut maps.rules);
        // No two sessions have one rule.
        let mut known = HashSet::new();
        all.retain(|rule| known.insert(key::of_rule(rule)));
        let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|_| random.below(3) > 0);
        for rule in &own {
            let (fields, mask) = key::of_rule(rule);
            let number = maps.tables.number_of(&mask).unwrap();
            maps.flow_owners.insert(key::key(&fields, number as u32), 2);
        }
        maps.queue_owner = 2;
        Owned { maps, own, others }
    }

    /// Returns the verdict of the reference.
    fn verdict(&mut self, frame: &[u8]) -> Verdict {
        let mut is_for = |rules: &[FlowRule]| {
            self.maps.rules = rules.to_vec();
            (wanted_by_itself(&self.maps, frame), wanted(&self.maps, frame))
        };
        let (own_itself, own) = is_for(&self.own);
        let (other_itself, other) = is_for(&self.others);
        // What a packet quotes counts only where no rule matches the packet.
        let foreign = if own_itself || other_itself { other_itself } else { other };
        match (own, foreign) {
            (_, true) => Verdict::Drop,
            (true, false) => Verdict::Redirect,
            (false, false) => Verdict::Pass,
        }
    }
}

/// What the filter costs the kernel's own packets.
#[test]
fn packets_of_the_kernel_take_few_instructions() {
    let program = program::assemble(FDS, XDP).unwrap();
    let frame = towpath_packet::build::Flow::v4().macs([9; 6], inputs::OWN[0]).udp(b"hello");
    let mut idle = Maps::own(&inputs::OWN);
    idle.masks = idle.tables.masks(None);
    let run = idle.verdict(&program, &frame);
    assert_eq!(run.verdict, Verdict::Pass);
    assert!(run.instructions <= IDLE_INSTRUCTIONS, "{}", run.instructions);
    let mut other = Maps::own(&[[2, 2, 2, 2, 2, 2]]);
    other.add(FlowRule { protocol: Some(17), ..FlowRule::default() });
    let run = other.verdict(&program, &frame);
    assert_eq!(run.verdict, Verdict::Pass);
    assert!(run.instructions <= FOREIGN_INSTRUCTIONS, "{}", run.instructions);
}

/// Returns a filter in the kernel; `None` where this user may load none.
fn in_the_kernel() -> Option<FlowFilter> {
    match FlowFilter::new(1) {
        Ok(filter) => Some(filter),
        Err(error @ Error::NotPermitted { .. }) => {
            println!("SKIP flow_filter_in_the_kernel: {error}");
            let required =
                std::env::var_os("TOWPATH_REQUIRE_ALL").is_some_and(|value| value == "1");
            assert!(!required, "{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The kernel's verdict for a packet, which finds no socket.
fn kernel_takes(filter: &FlowFilter, frame: &[u8]) -> bool {
    match filter.program().test_run(frame, 1).unwrap().verdict {
        Verdict::Drop => true,
        Verdict::Pass => false,
        other => panic!("{other:?} {frame:02x?}"),
    }
}

/// A filter of the next server has the rules of the one before, until it removes what it did not add
/// again.
#[test]
fn the_next_server_goes_on_with_program_and_maps() {
    let Some(mut filter) = in_the_kernel() else { return };
    let flow = towpath_packet::build::Flow::v4();
    let mac = flow.destination_mac;
    let rule = |port| FlowRule {
        mac: Some(mac),
        protocol: Some(17),
        port: Some(port),
        ..FlowRule::default()
    };
    let narrow = FlowRule { remote_port: Some(9), ..rule(3) };
    let all = [rule(1), rule(2), narrow];
    filter.add(&Filter::Address(mac)).unwrap();
    all.iter().for_each(|rule| filter.add(&Filter::Flow(*rule)).unwrap());
    let taken = || {
        let takes = |port: u16| kernel_takes(&filter, &flow.ports(9, port).udp(b"datagram"));
        [1, 2, 3].map(takes)
    };
    let mut earlier = EarlierObjects::new(false);
    for (name, object) in filter.objects() {
        earlier.add(name, 1, object.try_clone_to_owned().unwrap());
    }
    // A server that was killed before it attached its program.
    let unattached = FlowFilter::new(1).unwrap();
    for (name, object) in unattached.objects() {
        earlier.add(name, 2, object.try_clone_to_owned().unwrap());
    }
    let attached = filter.program().info().unwrap().id;
    let of_earlier = |queues, program| FlowFilter::of_earlier_server(queues, program, &earlier);
    assert!(of_earlier(2, attached).is_none(), "of another interface");
    assert!(of_earlier(1, 0).is_none(), "of another program");
    let mut next = of_earlier(1, attached).unwrap();
    assert_eq!(next.spans(), filter.spans());
    assert_eq!(taken(), [true; 3]);
    next.add(&Filter::Address(mac)).unwrap();
    next.add(&Filter::Flow(rule(1))).unwrap();
    assert_eq!(taken(), [true; 3], "until the others are removed");
    next.remove_earlier();
    assert_eq!(taken(), [true, false, false]);
    next.add(&Filter::Flow(narrow)).unwrap();
    next.remove(&Filter::Flow(rule(1)));
    assert_eq!(taken(), [false, false, true]);
    next.remove(&Filter::Flow(narrow));
    next.remove(&Filter::Address(mac));
    assert_eq!(taken(), [false; 3]);
}

#[test]
fn the_kernel_agrees_while_the_rules_change() {
    let Some(mut filter) = in_the_kernel() else { return };
    let mut behind = PacketFilter::new().unwrap();
    for mac in inputs::OWN {
        behind.add(&Filter::Address(mac)).unwrap();
        filter.add(&Filter::Address(mac)).unwrap();
    }
    let mut random = Random::new(15);
    let (mut taken, mut runs, mut runs_behind) = (0, 0, 0);
    for _ in 0..100 {
        let maps = rules(&mut random);
        for rule in &maps.rules {
            filter.add(&Filter::Flow(*rule)).unwrap();
            filter.add(&Filter::Flow(*rule)).unwrap();
            behind.add(&Filter::Flow(*rule)).unwrap();
        }
        for _ in 0..100 {
            let frame = inputs::frame(&mut random);
            if frame.len() < 14 {
                continue;
            }
            let expected = wanted(&maps, &frame);
            assert_eq!(kernel_takes(&filter, &frame), expected, "{frame:02x?} {:?}", maps.rules);
            // The kernel runs no such program on a packet without room for an IP header.
            if frame.len() >= SHORTEST_BEHIND {
                let verdict = behind.drops().test_run(&frame, 1).unwrap().verdict;
                assert_eq!(verdict == Verdict::of(DROP.0 as u32), expected, "{frame:02x?}");
                runs_behind += 1;
            }
            taken += u64::from(expected);
            runs += 1;
        }
        assert_eq!(filter.without_socket(), taken);
        for rule in &maps.rules {
            behind.remove(&Filter::Flow(*rule));
            filter.remove(&Filter::Flow(*rule));
            filter.remove(&Filter::Flow(*rule));
        }
        assert!(!kernel_takes(&filter, &inputs::frame(&mut Random::new(1))));
    }
    println!("{runs} packets, {taken} taken; {runs_behind} behind the driver");
    assert!(runs_behind > runs / 2, "{runs_behind} of {runs}");
    assert!(taken > runs / 10 && taken < runs * 9 / 10, "{taken} of {runs}");
    filter.remove(&Filter::Address(inputs::OWN[0]));
    filter.add(&Filter::Flow(FlowRule { ethertype: Some(0x0800), ..FlowRule::default() })).unwrap();
    let to = |mac| towpath_packet::build::Flow::v4().macs([9; 6], mac).udp(b"hello");
    assert!(!kernel_takes(&filter, &to(inputs::OWN[0])), "an address that was removed");
    assert!(kernel_takes(&filter, &to(inputs::OWN[1])));
}

#[test]
fn the_kernel_drops_what_is_not_the_owners() {
    let Some(mut filter) = in_the_kernel() else { return };
    let rule = |port| FlowRule { protocol: Some(17), port: Some(port), ..FlowRule::default() };
    filter.add(&Filter::Address(inputs::OWN[0])).unwrap();
    for port in [1, 2] {
        filter.add(&Filter::Flow(rule(port))).unwrap();
    }
    let to = |port| {
        let flow = towpath_packet::build::Flow::v4().macs([9; 6], inputs::OWN[0]);
        flow.ports(9, port).udp(b"hello")
    };
    let counts = |filter: &FlowFilter| [0, 1].map(|at| filter.counters.sum(at).unwrap());
    assert!(kernel_takes(&filter, &to(1)) && kernel_takes(&filter, &to(2)));
    assert_eq!(counts(&filter), [2, 0]);
    filter.set_owner(0, true).unwrap();
    assert!(kernel_takes(&filter, &to(1)) && kernel_takes(&filter, &to(2)));
    assert_eq!(counts(&filter), [2, 2], "neither is the owner's");
    filter.own_flow(&rule(1), 0).unwrap();
    assert!(kernel_takes(&filter, &to(1)) && kernel_takes(&filter, &to(2)));
    assert_eq!(counts(&filter), [3, 3]);
    assert!(!kernel_takes(&filter, &to(3)), "the kernel's");
    // A rule that another session has, too, hides the owner's.
    filter.add(&Filter::Flow(FlowRule { protocol: Some(17), ..FlowRule::default() })).unwrap();
    assert!(kernel_takes(&filter, &to(1)));
    assert_eq!((counts(&filter), filter.without_socket()), ([3, 4], 7));
    filter.set_owner(0, false).unwrap();
    assert!(kernel_takes(&filter, &to(1)));
    assert_eq!(counts(&filter), [4, 4]);
}

/// The program that takes every packet also drops and counts packets without a socket.
#[test]
fn the_kernel_counts_packets_without_a_socket() {
    if in_the_kernel().is_none() {
        return;
    }
    let filter = FlowFilter::of_all(1).unwrap();
    for count in 1..=3 {
        assert!(kernel_takes(&filter, &towpath_packet::build::Flow::v4().udp(b"hello")));
        assert_eq!((filter.unserved(), filter.without_socket()), (count, count));
    }
}

/// What has no room is refused, and leaves what was there.
#[test]
fn full_maps_refuse() {
    let Some(mut filter) = in_the_kernel() else { return };
    let rule = |number: u32| {
        let (port, remote_port) = (Some(number as u16), Some((number >> 16) as u16));
        Filter::Flow(FlowRule { port, remote_port, ..FlowRule::default() })
    };
    for number in 0..FLOWS {
        filter.add(&rule(number)).unwrap();
    }
    assert!(matches!(filter.add(&rule(FLOWS)), Err(FilterError::Full)));
    assert!(!filter.would_have_room(&[rule(FLOWS)], &[]));
    assert!(filter.would_have_room(&[rule(FLOWS)], &[rule(7)]));
    filter.remove(&rule(7));
    filter.add(&rule(FLOWS)).unwrap();
    let mac = |number: u32| {
        let [a, b, c, d] = number.to_be_bytes();
        Filter::Address([2, 0, a, b, c, d])
    };
    for number in 0..MACS {
        filter.add(&mac(number)).unwrap();
    }
    assert!(matches!(filter.add(&mac(MACS)), Err(FilterError::Full)));
    assert!(!filter.would_have_room(&[mac(MACS)], &[]));
    assert!(filter.would_have_room(&[mac(MACS)], &[mac(7)]));
    let masks = (1..MASKS as u16).map(|bits| FlowRule {
        mac: (bits & 1 != 0).then_some([2; 6]),
        ethertype: (bits & 2 != 0).then_some(0x0800),
        protocol: (bits & 4 != 0).then_some(17),
        remote_ip: (bits & 8 != 0).then_some([1, 1, 1, 1].into()),
        ..FlowRule::default()
    });
    (0..MASKS as u32).for_each(|number| filter.remove(&rule(number)));
    for rule in masks {
        filter.add(&Filter::Flow(rule)).unwrap();
    }
    let another = FlowRule { vlan: crate::FlowVlan::Number(1), ..FlowRule::default() };
    assert!(matches!(filter.add(&Filter::Flow(another)), Err(FilterError::Full)));
}

/// A mask without rules is free for others, and a seventeenth one has no room.
#[test]
fn masks_are_shared_and_freed() {
    let rule = |bits: u8| {
        let given = |bit: u8| bits & bit != 0;
        FlowRule {
            mac: given(1).then_some([2; 6]),
            ethertype: given(2).then_some(0x0800),
            protocol: given(4).then_some(17),
            port: given(8).then_some(1),
            remote_port: given(16).then_some(2),
            ..FlowRule::default()
        }
    };
    let mut tables = Tables::default();
    let mut keys = Vec::new();
    for bits in 0..MASKS as u8 {
        let (fields, mask) = key::of_rule(&rule(bits));
        let number = tables.number_of(&mask).unwrap();
        keys.push(key::key(&fields, number as u32));
        tables.add(keys[usize::from(bits)], number, mask);
    }
    let (_, another) = key::of_rule(&rule(16));
    assert_eq!(tables.number_of(&another), None);
    let (other_port, mask) = key::of_rule(&FlowRule { port: Some(9), ..rule(8) });
    let number = tables.number_of(&mask).unwrap();
    let key = key::key(&other_port, number as u32);
    tables.add(key, number, mask);
    assert!(!tables.remove(&keys[8]), "another rule has the mask");
    assert!(tables.remove(&key) && !tables.remove(&key));
    assert_eq!(tables.number_of(&another), Some(number));
}

/// A mask is free once the driver has removed all of its rules.
#[test]
fn a_question_for_room_counts_the_rules_of_each_mask() {
    let rule = |port: u16, remote: u16| {
        let remote_port = (remote > 0).then_some(remote);
        let mac = (remote > 1).then_some([2, 0, 0, 0, 0, remote as u8]);
        FlowRule { port: (port > 0).then_some(port), remote_port, mac, ..FlowRule::default() }
    };
    let mut tables = Tables::default();
    let mut add = |rule: &FlowRule| {
        let (fields, mask) = key::of_rule(rule);
        let number = tables.number_of(&mask).unwrap();
        tables.add(key::key(&fields, number as u32), number, mask);
    };
    let ports: Vec<_> = (1..=20).map(|port| rule(port, 0)).collect();
    ports.iter().for_each(&mut add);
    (1..MASKS as u8).for_each(|bits| {
        let given = |bit: u8| bits & bit != 0;
        add(&FlowRule {
            ethertype: given(1).then_some(0x0800),
            protocol: given(2).then_some(17),
            remote_ip: given(4).then_some([1, 1, 1, 1].into()),
            vlan: if given(8) { crate::FlowVlan::Number(1) } else { crate::FlowVlan::Any },
            ..FlowRule::default()
        });
    });
    let flows = |rules: &[FlowRule]| rules.iter().copied().map(Filter::Flow).collect::<Vec<_>>();
    let (ports, others) = (flows(&ports), flows(&[rule(1, 1), rule(1, 2)]));
    assert!(tables.would_have_room(&flows(&[rule(99, 0)]), &[]), "the mask is in use");
    assert!(!tables.would_have_room(&others[..1], &[]));
    assert!(!tables.would_have_room(&others[..1], &ports[1..]), "one rule has the mask");
    assert!(tables.would_have_room(&others[..1], &ports));
    assert!(!tables.would_have_room(&others, &ports), "two masks do not fit into the room of one");
    assert!(tables.would_have_room(&others[..1], &[&ports[..], &others[1..]].concat()));
    assert_eq!(tables.flows.len(), 20 + MASKS - 1, "a question changes nothing");
}

/// A packet, and what the program has to decide.
type Case = (Vec<u8>, Verdict);

/// Changes one instruction at a time. The comparison must find nearly all of these errors; those
/// that it cannot find change nothing that a program's result shows.
#[test]
fn errors_in_the_program_are_found() {
    // All errors with many inputs, or a sample with few.
    let (sets, stride, percent) = if wished().is_some() { (400, 1, 20) } else { (30, STRIDE, 50) };
    let program = program::assemble(FDS, XDP).unwrap();
    let mut random = Random::new(14);
    let mut cases: Vec<(Maps, Vec<Case>)> = Vec::new();
    for set in 0..sets {
        let frames = |random: &mut Random| -> Vec<_> {
            (0..INPUTS_PER_SET).map(|_| inputs::frame(random)).collect()
        };
        // A third of the sets is for a hardware queue that has an owner.
        if set % 3 == 0 {
            let mut owned = Owned::new(&mut random);
            let frames = frames(&mut random);
            let frames = frames.into_iter().map(|frame| {
                let verdict = owned.verdict(&frame);
                (frame, verdict)
            });
            let frames = frames.collect();
            cases.push((owned.maps, frames));
        } else {
            let maps = rules(&mut random);
            let frames = frames(&mut random).into_iter().map(|frame| {
                let verdict = verdict(wanted(&maps, &frame));
                (frame, verdict)
            });
            let frames = frames.collect();
            cases.push((maps, frames));
        }
    }
    let mut found = |mutant: &[Instruction]| {
        cases.iter_mut().any(|(maps, frames)| {
            frames.iter().any(|(bytes, expected)| {
                let input = Input {
                    bytes,
                    packet_len: bytes.len(),
                    queue: 1,
                    attach_point: interpreter::AttachPoint::Xdp,
                };
                let run = interpreter::run(mutant, maps, input);
                !run.is_ok_and(|run| run.verdict == *expected)
            })
        })
    };
    assert!(!found(&program));
    let (mut mutants, mut survivors) = (0, Vec::new());
    for at in (0..program.len()).step_by(stride) {
        for mutate in MUTATIONS {
            let mut mutant = program.clone();
            if mutate(&mut mutant[at]) {
                mutants += 1;
                if !found(&mutant) {
                    let (was, is) = (program[at], mutant[at]);
                    survivors.push(format!("{at}: {was:x?} -> {is:x?}"));
                }
            }
        }
    }
    println!("{} of {mutants} errors are not found:\n{}", survivors.len(), survivors.join("\n"));
    assert!(survivors.len() * 100 < mutants * percent, "{} of {mutants}", survivors.len());
}

/// Each makes an error of an instruction, or returns `false` if it does not apply.
const MUTATIONS: [fn(&mut Instruction) -> bool; 3] = [
    // The opposite condition.
    |one| {
        let opposite = match one.code & 0xf7 {
            0x15 => 0x55,
            0x55 => 0x15,
            0x25 => 0xb5,
            0xb5 => 0x25,
            0x35 => 0xa5,
            0xa5 => 0x35,
            _ => return false,
        };
        one.code = opposite | one.code & 8;
        true
    },
    // Another number.
    |one| {
        one.immediate = one.immediate.wrapping_add(1);
        matches!(
            one.code,
            0x07 | 0x17 | 0x57 | 0x67 | 0x77 | 0xb7 | 0x15 | 0x25 | 0x55 | 0xa5 | 0x45
        )
    },
    // Another place.
    |one| {
        one.offset = one.offset.wrapping_add(1);
        matches!(one.code & 7, 1..=3)
    },
];
