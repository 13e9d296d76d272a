//! Tests of the scheduler, with numbers as packets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::deficit::Deficit;
use super::round_robin::RoundRobin;
use super::*;

/// A sender: its packets' lengths, and whether the next belongs to the same message.
struct Sender {
    unit: u32,
    class: Class,
    queue: VecDeque<(u64, bool)>,
    /// `true` if the packets are for the device, not for this host.
    device: bool,
    sent: u64,
    packets: u64,
}

struct World {
    schedule: Schedule,
    senders: Vec<Sender>,
    /// Packets that the device has room for.
    room: usize,
    /// The index of each packet's sender, in order; only packets to the device.
    wire: Vec<usize>,
    max_message_bytes: u64,
}

impl World {
    fn new(policy: Box<dyn Policy>, classes: &[(u8, u16)]) -> World {
        let mut schedule = Schedule::new(policy);
        let senders = classes
            .iter()
            .enumerate()
            .map(|(key, (level, weight))| Sender {
                unit: schedule.add(key as u32, 0),
                class: Class { level: *level, weight: *weight },
                queue: VecDeque::new(),
                device: true,
                sent: 0,
                packets: 0,
            })
            .collect();
        World { schedule, senders, room: usize::MAX, wire: Vec::new(), max_message_bytes: 65_536 }
    }

    fn push(&mut self, key: usize, len: u64, together: bool) {
        let sender = &mut self.senders[key];
        sender.queue.push_back((len, together));
        if !self.schedule.is_active(sender.unit) {
            self.schedule.enter(sender.unit, sender.class, false, 0);
        }
    }

    /// Runs one poll iteration of at most `left` packets, and returns how many were sent.
    fn poll_once(&mut self, mut left: usize) -> usize {
        self.schedule.begin();
        let mut sent = 0;
        while left > 0 {
            let Some(turn) = self.schedule.next(self.room > 0) else { break };
            let key = turn.key as usize;
            let (mut bytes, mut message_bytes, mut done) = (turn.bytes, turn.message_bytes, 0);
            let budget = turn.packets.min(left);
            let sender = &mut self.senders[key];
            let stop = loop {
                let Some((len, together)) = sender.queue.front().copied() else { break None };
                let may =
                    !sender.device || self.room > 0 && self.schedule.may_use_device(turn.unit);
                if !may {
                    break Some(Stop::Blocked { at_once: done == 0, large: false });
                }
                sender.queue.pop_front();
                (sender.sent, sender.packets) = (sender.sent + len, sender.packets + 1);
                if sender.device {
                    self.room -= 1;
                    self.wire.push(key);
                }
                self.schedule.charge(turn.unit, len);
                (done, bytes) = (done + 1, bytes.saturating_sub(len as i64));
                message_bytes = if together { message_bytes + len } else { 0 };
                if message_bytes >= self.max_message_bytes {
                    message_bytes = 0;
                }
                if sender.queue.is_empty() {
                    break None;
                }
                if done == budget || bytes <= 0 && message_bytes == 0 {
                    break Some(Stop::Over);
                }
            };
            match stop {
                None => self.schedule.idle(turn.unit),
                Some(stop) => self.schedule.more(turn.unit, stop, message_bytes),
            }
            (sent, left) = (sent + done, left - done);
        }
        sent
    }

    /// Runs `turns` poll iterations with every queue full.
    fn flood(&mut self, lens: &[u64], iterations: usize, room: Option<usize>) {
        for _ in 0..iterations {
            for (key, len) in lens.iter().enumerate() {
                while *len > 0 && self.senders[key].queue.len() < 600 {
                    self.push(key, *len, false);
                }
            }
            if let Some(room) = room {
                self.room = room;
            }
            self.poll_once(512);
        }
    }

    fn shares(&self) -> Vec<f64> {
        let all: u64 = self.senders.iter().map(|one| one.sent).sum();
        self.senders.iter().map(|one| one.sent as f64 / all as f64).collect()
    }
}

#[test]
fn weights_share_bytes_for_any_packet_lengths() {
    for (lens, room) in
        [([64, 1500], None), ([1500, 64], Some(7)), ([64, 64], Some(1)), ([1500, 64_000], None)]
    {
        let mut world = World::new(Box::new(Deficit), &[(3, 100), (3, 300)]);
        world.flood(&lens, if room.is_some() { 60_000 } else { 1000 }, room);
        let shares = world.shares();
        assert!((shares[0] * 4.0 - 1.0).abs() < 0.03, "{lens:?}, {room:?}: {shares:?}");
    }
    // The least weights must work, too.
    let mut world = World::new(Box::new(Deficit), &[(3, 1), (3, 3), (3, 10_000)]);
    world.flood(&[64, 1500, 300], 3000, None);
    let shares = world.shares();
    assert!((shares[1] / shares[0] - 3.0).abs() < 0.09, "{shares:?}");
}

#[test]
fn weights_hold_while_a_lower_level_waits_for_large_room() {
    for (lens, room) in [([64_000; 2], 1), ([64_000; 2], 3), ([1500, 64_000], 1), ([64; 2], 1)] {
        let classes = [(3, 100), (3, 100), (5, 100), (5, 900)];
        let mut world = World::new(Box::new(Deficit), &classes);
        (0..2).for_each(|key| world.push(key, 64_000, false));
        let turn = world.schedule.next(true).unwrap();
        world.schedule.more(turn.unit, Stop::Blocked { at_once: true, large: true }, 0);
        assert!(!world.schedule.may_use_device(world.senders[1].unit), "kept for the first");
        world.flood(&[0, 0, lens[0], lens[1]], 20_000, Some(room));
        assert_eq!(world.senders[0].packets + world.senders[1].packets, 0);
        let ratio = world.senders[3].sent as f64 / world.senders[2].sent as f64;
        assert!((ratio - 9.0).abs() < 0.3, "{lens:?}, {room}: {ratio}");
    }
}

/// A [`Deficit`] that counts its calls.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Policy for Counted {
    fn packets(&self) -> usize {
        Deficit.packets()
    }
    fn begin(&self, account: &mut Account, weight: u16) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        Deficit.begin(account, weight)
    }
    fn charge(&self, account: &mut Account, bytes: u64) {
        Deficit.charge(account, bytes);
    }
    fn stays_first(&self, account: &Account, blocked_at_once: bool) -> bool {
        Deficit.stays_first(account, blocked_at_once)
    }
    fn rounds(&self, account: &Account, weight: u16) -> i64 {
        Deficit.rounds(account, weight)
    }
    fn skip(&self, account: &mut Account, weight: u16, rounds: i64) {
        Deficit.skip(account, weight, rounds);
    }
}

#[test]
fn empty_rounds_are_skipped_even_with_a_blocked_unit() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut schedule = Schedule::new(Box::new(Counted(asked.clone())));
    let units = [0, 1, 2].map(|number| {
        let unit = schedule.add(0, number);
        schedule.enter(unit, Class { level: 3, weight: 1 }, false, 0);
        unit
    });
    // Two units that send to this host owe 512 rounds. The third has found no room in the device
    // and stands behind them.
    for unit in &units[..2] {
        assert_eq!(schedule.next(false).unwrap().unit, *unit);
        schedule.charge(*unit, 65_536);
        schedule.more(*unit, Stop::Over, 0);
    }
    assert_eq!(schedule.next(false).unwrap().unit, units[2]);
    schedule.charge(units[2], 65_536);
    schedule.more(units[2], Stop::Blocked { at_once: false, large: false }, 0);
    asked.store(0, Ordering::Relaxed);
    assert!(units[..2].contains(&schedule.next(false).unwrap().unit));
    assert_eq!(schedule.blocked(), 1);
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked < 10, "the scheduler went through {asked} rounds");
}

#[test]
fn little_room_moves_few_units() {
    const MANY: usize = 500;
    let mut world = World::new(Box::new(Deficit), &[(3, 100); MANY]);
    for key in 0..MANY {
        (0..20).for_each(|_| world.push(key, 1500, false));
    }
    world.room = 0;
    world.poll_once(512);
    assert_eq!((world.schedule.blocked(), world.schedule.ready(false)), (MANY, 0));
    let before = world.schedule.units.moves;
    for iteration in 0..5000 {
        world.room = 2;
        assert_eq!(world.poll_once(512), 2, "iteration {iteration}");
        assert_eq!(world.schedule.ready(false), 0);
    }
    let moves = world.schedule.units.moves - before;
    // Each unit has two turns, of nine packets and of eleven, and has left both lists in the end.
    assert!(moves < 10 * MANY, "{moves} moves");
    assert!(world.senders.iter().all(|one| one.packets == 20), "each got its share");
    assert_eq!((world.schedule.blocked(), world.schedule.ready(true)), (0, 0));
}

#[test]
fn a_blocked_unit_keeps_its_position_and_share() {
    let mut world = World::new(Box::new(Deficit), &[(3, 100); 4]);
    world.senders[1].device = false;
    (0..3).for_each(|key| world.push(key, 20_000, false));
    // Packets for this host go ahead meanwhile, and a late unit is last.
    for _ in 0..3 {
        world.room = 0;
        world.poll_once(512);
        world.push(1, 20_000, false);
        world.push(3, 20_000, false);
    }
    assert_eq!((world.senders[1].packets, world.wire.len()), (3, 0));
    for key in [2, 0, 0] {
        world.push(key, 20_000, false);
    }
    for _ in 0..3 {
        world.room = 1;
        world.poll_once(512);
    }
    assert_eq!(world.wire, [0, 2, 3], "as they came");
    world.room = 3;
    world.poll_once(512);
    assert_eq!(world.wire[3..], [0, 2, 3]);
}

#[test]
fn round_robin_shares_packets() {
    let mut world = World::new(Box::new(RoundRobin { packets: 64 }), &[(3, 100), (3, 300)]);
    world.flood(&[64, 1500], 1000, None);
    assert!(world.senders[0].packets.abs_diff(world.senders[1].packets) <= 64);
}

#[test]
fn a_lower_priority_gets_what_a_higher_one_leaves() {
    let policies: [Box<dyn Policy>; 2] = [Box::new(Deficit), Box::new(RoundRobin { packets: 64 })];
    for policy in policies {
        let mut world = World::new(policy, &[(2, 100), (7, 1), (3, 100)]);
        for _ in 0..100 {
            for key in [0, 2] {
                (0..600).for_each(|_| world.push(key, 1500, false));
            }
            (0..10).for_each(|_| world.push(1, 64, false));
            world.room = 50;
            world.poll_once(512);
            assert!(world.senders[1].queue.is_empty(), "all of the highest are sent first");
        }
        assert_eq!(world.senders[0].sent, 0);
        assert!(world.wire.chunks(50).all(|iteration| iteration[..10] == [1; 10]));
    }
}

#[test]
fn local_packets_do_not_wait_for_the_device() {
    let mut world = World::new(Box::new(Deficit), &[(3, 100), (3, 100), (0, 1)]);
    world.senders[1].device = false;
    world.senders[2].device = false;
    world.room = 0;
    for key in 0..3 {
        (0..200).for_each(|_| world.push(key, 1500, false));
    }
    for _ in 0..3 {
        world.poll_once(512);
    }
    assert_eq!(world.senders[0].packets, 0);
    assert_eq!((world.senders[1].packets, world.senders[2].packets), (200, 200));
    assert_eq!((world.schedule.blocked(), world.schedule.ready(false)), (1, 0));
    world.room = 1000;
    world.poll_once(512);
    assert_eq!(world.senders[0].packets, 200);
    assert_eq!(world.schedule.blocked(), 0);
}

#[test]
fn a_message_is_kept_together_up_to_its_longest_run() {
    // The room or the poll iteration ends in the middle of messages.
    for (room, left) in [(5, 8), (100, 7)] {
        let mut world = World::new(Box::new(Deficit), &[(3, 100), (3, 100), (7, 100)]);
        for _ in 0..40 {
            (0..20).for_each(|packet| world.push(0, 1500, packet < 19));
            (0..20).for_each(|_| world.push(1, 1500, false));
        }
        for step in 0.. {
            world.room = room;
            if step % 3 == 0 {
                world.push(2, 60, false);
            }
            if world.poll_once(left) == 0
                && world.senders[..2].iter().all(|one| one.queue.is_empty())
            {
                break;
            }
        }
        let runs = world.wire.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()));
        let (whole, others): (Vec<_>, Vec<_>) = runs.partition(|(key, _)| *key == 0);
        assert!(whole.iter().all(|(_, len)| len.is_multiple_of(20)), "{whole:?}");
        assert!(whole.len() > 10 && others.len() > 10, "the others got between");
    }
    // A message beyond the longest run is not kept together, and its sender gets no more than its
    // share.
    let mut world = World::new(Box::new(Deficit), &[(3, 100), (3, 100)]);
    world.max_message_bytes = 15_000;
    for _ in 0..2000 {
        world.push(0, 1500, true);
        world.push(1, 1500, false);
    }
    while world.senders.iter().all(|one| !one.queue.is_empty()) {
        world.poll_once(512);
    }
    let most = world.wire.chunk_by(|a, b| a == b).filter(|run| run[0] == 0).map(<[_]>::len).max();
    assert!(most <= Some(20), "{most:?}");
    assert!((world.shares()[0] - 0.5).abs() < 0.02, "{:?}", world.shares());
}

#[test]
fn a_unit_waiting_for_a_time_or_tick_is_due_once() {
    let mut schedule = Schedule::new(Box::new(Deficit));
    let units: Vec<u32> = (0..5).map(|number| schedule.add(0, number)).collect();
    let park = |schedule: &mut Schedule, unit: u32, stop| {
        schedule.enter(unit, Class::default(), false, 0);
        assert_eq!(schedule.next(true).unwrap().unit, unit);
        schedule.more(unit, stop, 0);
    };
    for (unit, due) in units.iter().zip([30, 10, 20]) {
        park(&mut schedule, *unit, Stop::Until(due));
    }
    park(&mut schedule, units[3], Stop::Tick(7));
    park(&mut schedule, units[4], Stop::Until(15));
    assert_eq!((schedule.next_due(), schedule.next_tick()), (Some(10), Some(7)));
    assert!(schedule.next(true).is_none() && schedule.due(9, 6).is_none());
    // A removed unit, and a unit whose settings change, are no longer due.
    schedule.remove([units[4]]);
    assert!(schedule.withdraw(units[0]));
    let due = |schedule: &mut Schedule, now, tick| {
        let one = schedule.due(now, tick)?;
        schedule.idle(one.unit);
        Some(one.queue_pair)
    };
    // A unit that is made due is due at once, whatever its deadline.
    let session = schedule.add(1, 5);
    park(&mut schedule, session, Stop::Until(1000));
    let another = schedule.add(1, 6);
    park(&mut schedule, another, Stop::Tick(1000));
    [session, another, units[0]].into_iter().for_each(|unit| schedule.make_due(unit));
    let both = [due(&mut schedule, 0, 0), due(&mut schedule, 0, 0)];
    assert_eq!((both, due(&mut schedule, 0, 0)), ([Some(5), Some(6)], None));
    let mut due = |now, tick| due(&mut schedule, now, tick);
    assert_eq!((due(10, 6), due(10, 6)), (Some(1), None));
    assert_eq!((due(100, 7), due(100, 7), due(100, 7)), (Some(2), Some(3), None));
    assert_eq!((schedule.next_due(), schedule.next_tick()), (None, None));
}

#[derive(Clone, Debug)]
enum Act {
    Push { key: usize, len: u64, together: bool },
    Turn { left: usize, room: usize },
    Remove(usize),
    Policy(bool),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0usize..6, 60u64..65_000, any::<bool>())
            .prop_map(|(key, len, together)| Act::Push { key, len, together }),
        6 => (1usize..40, 0usize..20).prop_map(|(left, room)| Act::Turn { left, room }),
        1 => (0usize..6).prop_map(Act::Remove),
        1 => any::<bool>().prop_map(Act::Policy),
    ];
    prop::collection::vec(act, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In every sequence of acts, the scheduler forgets no unit, no unit starves within a level,
    /// and a higher level precedes a lower one.
    #[test]
    fn no_unit_is_forgotten_or_starved(acts in acts(), levels in prop::collection::vec(0u8..3, 6), local in 0usize..7) {
        let classes: Vec<(u8, u16)> =
            levels.iter().enumerate().map(|(key, level)| (*level, 1 + 37 * key as u16)).collect();
        let mut world = World::new(Box::new(Deficit), &classes);
        if local < 6 {
            world.senders[local].device = false;
        }
        let mut pushed = [0u64; 6];
        for act in acts {
            match act {
                Act::Push { key, len, together } => {
                    pushed[key] += 1;
                    world.push(key, len, together);
                }
                Act::Turn { left, room } => {
                    world.room = room;
                    world.poll_once(left);
                }
                Act::Remove(key) => {
                    // A session ends, and another one attaches.
                    let sender = &mut world.senders[key];
                    pushed[key] -= sender.queue.len() as u64;
                    sender.queue.clear();
                    world.schedule.remove([sender.unit]);
                    sender.unit = world.schedule.add(key as u32, 0);
                }
                Act::Policy(deficit) => {
                    let policy: Box<dyn Policy> =
                        if deficit { Box::new(Deficit) } else { Box::new(RoundRobin { packets: 4 }) };
                    world.schedule.set_policy(policy);
                }
            }
        }
        let waiting: usize = world.senders.iter().map(|one| one.queue.len()).sum();
        for step in 0..=waiting {
            if world.senders.iter().all(|one| one.queue.is_empty()) {
                break;
            }
            prop_assert!(step < waiting, "packets wait, and no unit sends them");
            world.room = 3;
            prop_assert!(world.poll_once(3) > 0, "there is room, and no unit sends");
        }
        for (sender, pushed) in world.senders.iter().zip(pushed) {
            prop_assert_eq!(sender.packets, pushed);
            prop_assert!(!world.schedule.is_active(sender.unit));
        }
        prop_assert_eq!(world.schedule.ready(true) + world.schedule.expedited(true), 0);
        prop_assert_eq!(world.schedule.ready(false) + world.schedule.blocked(), 0);
    }

    /// With random mixes of lengths and weights, each unit gets its share of the bytes.
    #[test]
    fn shares_of_random_mixes(
        mix in prop::collection::vec((5u16..500, 60u64..9000), 2..6),
        room in prop::option::of(20usize..200),
    ) {
        let classes: Vec<(u8, u16)> = mix.iter().map(|(weight, _)| (3, *weight)).collect();
        let lens: Vec<u64> = mix.iter().map(|(_, len)| *len).collect();
        let mut world = World::new(Box::new(Deficit), &classes);
        let all: u64 = mix.iter().map(|(weight, _)| u64::from(*weight)).sum();
        // The test runs until the slowest had 60 rounds, and a packet is small beside its share.
        let due = |weight: u16, len: u64| 60 * (128 * u64::from(weight)).max(len);
        let shortest = lens.iter().min().unwrap();
        let most = mix.iter().map(|(weight, len)| due(*weight, *len) * all / u64::from(*weight));
        // The last of the poll iterations, each of 512 packets, sends more than is due.
        let most_packets = 2 * most.max().unwrap() / shortest + 512;
        while world.senders.iter().zip(&mix).any(|(one, (weight, len))| one.sent < due(*weight, *len)) {
            world.flood(&lens, 1, room);
            let packets = world.wire.len() as u64;
            prop_assert!(packets <= most_packets, "a unit starves: {:?}", world.shares());
        }
        for (share, (weight, _)) in world.shares().iter().zip(&mix) {
            let due = f64::from(*weight) / all as f64;
            prop_assert!((share / due - 1.0).abs() < 0.2, "{share} of {due}");
        }
    }
}
