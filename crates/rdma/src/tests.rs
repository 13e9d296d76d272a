//! Both sides of a connection over a wire that loses, repeats and reorders packets.

use std::collections::VecDeque;
use std::net::IpAddr;

use fastrand::Rng;
use proptest::prelude::*;
use towpath_packet::roce::{
    Aeth, Bth, Extension, Opcode, Path, Reth, Segment, Syndrome, read_frame,
};

use crate::requester::{MOST_READS, Requester, Work, WorkKind};
use crate::responder::{Progress, Responder, Served};
use crate::{
    Access, Connection, Delivery, Ended, Host, NotCopied, NotReady, PROBE, Psn, Range, Refused,
    Timing,
};

pub(crate) const KEY: u32 = 7;
const MEMORY: usize = 300_000;
const MTU: u32 = 256;
pub(crate) const TIMING: Timing =
    Timing { quiet: 2_500_000_000, dead: 10_000_000_000, not_ready: 1_000_000_000 };

/// One application: its exported memory, the local memory of its requests, and its queue.
pub(crate) struct Application {
    exported: Vec<u8>,
    local: Vec<u8>,
    works: Vec<Work>,
    pub(crate) complete: Vec<u64>,
    received: Vec<(u32, Vec<u8>)>,
    room: usize,
    places: usize,
    next: Psn,
    /// `true` if each copy takes two calls.
    is_slow: bool,
    /// The copy that the next call finds made.
    under_way: Option<(u64, u64, usize, bool)>,
    /// Copies that took a second call.
    repeated: usize,
}

impl Application {
    pub(crate) fn new() -> Application {
        Application {
            exported: vec![0; MEMORY],
            local: (0..MEMORY).map(|at| (at * 7 + at / 256) as u8).collect(),
            works: Vec::new(),
            complete: Vec::new(),
            received: Vec::new(),
            room: usize::MAX,
            places: 0,
            next: Psn::new(0),
            is_slow: false,
            under_way: None,
            repeated: 0,
        }
    }

    /// Begins a copy, or finds it made.
    fn step(&mut self, what: (u64, u64, usize, bool)) -> Result<(), NotCopied> {
        if !self.is_slow {
            return Ok(());
        }
        if self.under_way.take() == Some(what) {
            self.repeated += 1;
            return Ok(());
        }
        self.under_way = Some(what);
        Err(NotCopied::Later)
    }

    fn range(&self, range: Range) -> Result<std::ops::Range<usize>, Refused> {
        let end = range.address.checked_add(range.len).ok_or(Refused)?;
        if range.key != KEY || end > MEMORY as u64 {
            return Err(Refused);
        }
        Ok(range.address as usize..end as usize)
    }
}

impl Host for Application {
    fn check(&mut self, range: Range, _: Access) -> Result<(), Refused> {
        self.range(range).map(|_| ())
    }

    fn place(&mut self, range: Range, bytes: &[u8]) -> Result<(), NotCopied> {
        self.step((u64::MAX, range.address, bytes.len(), true))?;
        let range = self.range(range)?;
        self.places += 1;
        self.exported[range].copy_from_slice(bytes);
        Ok(())
    }

    fn fetch(&mut self, range: Range, to: &mut [u8]) -> Result<(), NotCopied> {
        self.step((u64::MAX, range.address, to.len(), false))?;
        let range = self.range(range)?;
        to.copy_from_slice(&self.exported[range]);
        Ok(())
    }

    fn deliver(&mut self, psn: Psn, message: Delivery<'_>) -> Result<(), NotReady> {
        self.room = self.room.checked_sub(1).ok_or(NotReady)?;
        let bytes = match message {
            Delivery::Message(bytes) => bytes.to_vec(),
            Delivery::Value(value, len) => [value.to_le_bytes(), len.to_le_bytes()].concat(),
        };
        self.received.push((psn.number(), bytes));
        Ok(())
    }

    fn load(&mut self, id: u64, offset: u64, to: &mut [u8]) -> Result<(), NotCopied> {
        self.step((id, offset, to.len(), false))?;
        let at = (id * 11 + offset) as usize % (MEMORY / 2);
        let from = self.local.get(at..at + to.len()).ok_or(NotCopied::Refused)?;
        to.copy_from_slice(from);
        Ok(())
    }

    fn store(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), NotCopied> {
        self.step((id, offset, bytes.len(), true))?;
        let at = (id * 11 + offset) as usize % (MEMORY / 2);
        self.local[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn complete(&mut self, id: u64, next: Psn) {
        self.next = next;
        if id != PROBE {
            self.complete.push(id);
        }
    }
}

struct Side {
    connection: Connection,
    application: Application,
}

/// Two sides, and the frames on their way to each.
struct World {
    sides: [Side; 2],
    wires: [VecDeque<Vec<u8>>; 2],
    now: u64,
    random: Rng,
    /// Of 1 000 packets, how many are lost, come twice, and are overtaken.
    faults: [u64; 3],
    opcodes: Vec<Opcode>,
}

pub(crate) fn path(reversed: bool) -> Path {
    let (one, other) =
        ((IpAddr::from([10, 0, 0, 1]), [2; 6]), (IpAddr::from([10, 0, 0, 2]), [4; 6]));
    let (from, to) = if reversed { (other, one) } else { (one, other) };
    Path {
        source_mac: from.1,
        destination_mac: to.1,
        source: from.0,
        destination: to.0,
        source_port: 50_000,
        ecn: true,
    }
}

impl World {
    fn new(seed: u64, faults: [u64; 3]) -> World {
        let psns = [Psn::new(0xff_fff0), Psn::new(5)];
        let side = |index: usize| {
            let expected = psns[1 - index];
            let progress = Progress { expected, messages: 0, writing: None };
            let to = (path(index == 1), 17);
            let mut connection = Connection::new(to, MTU, (psns[index], 16), progress, TIMING, 0);
            connection.set_ready();
            Side { connection, application: Application::new() }
        };
        let (sides, wires) = ([side(0), side(1)], [VecDeque::new(), VecDeque::new()]);
        World { sides, wires, now: 0, random: Rng::with_seed(seed), faults, opcodes: Vec::new() }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random.u64(..below)
    }

    fn push(&mut self, side: usize, kind: WorkKind, address: u64, bytes: u64) -> u64 {
        let id = self.sides[side].application.works.len() as u64;
        let work = Work { id, kind, bytes, key: KEY, address };
        self.sides[side].application.works.push(work);
        self.sides[side].connection.push(work, bytes, self.now);
        id
    }

    /// Sends and delivers until nothing is left to do before `until`.
    fn run(&mut self, until: u64) {
        let mut frame = vec![0; 8192];
        loop {
            let mut moved = false;
            for side in 0..2 {
                let Side { connection, application } = &mut self.sides[side];
                loop {
                    let sent = connection.transmit(application, self.now, &mut frame);
                    // A slow copy is made at the second call.
                    let sent =
                        sent.or_else(|| connection.transmit(application, self.now, &mut frame));
                    let Some(len) = sent else { break };
                    moved = true;
                    self.wires[1 - side].push_back(frame[..len].to_vec());
                }
                moved |= self.receive(side);
            }
            if moved {
                self.now += 1_000;
                continue;
            }
            let due = self.sides.iter().filter_map(|one| one.connection.next_due()).min();
            match due.filter(|due| *due < until) {
                // What is due now was looked after.
                Some(due) => self.now = due.max(self.now + 1),
                None => return,
            }
            let idle = |one: &Side| one.connection.requester().is_empty();
            if self.sides.iter().all(idle)
                || self.sides.iter().any(|one| one.connection.ended().is_some())
            {
                return;
            }
        }
    }

    /// Delivers what is on the way to a side.
    fn receive(&mut self, side: usize) -> bool {
        let mut moved = false;
        while let Some(frame) = self.wires[side].pop_front() {
            moved = true;
            let [lost, twice, overtaken] = self.faults;
            if self.random(1_000) < lost {
                continue;
            }
            if self.random(1_000) < overtaken
                && let Some(next) = self.wires[side].pop_front()
            {
                self.wires[side].push_front(frame);
                self.wires[side].push_front(next);
                continue;
            }
            let times = 1 + u64::from(self.random(1_000) < twice);
            for _ in 0..times {
                let received = read_frame(&frame).unwrap();
                self.opcodes.push(received.segment.bth.opcode);
                let Side { connection, application } = &mut self.sides[side];
                let marked = received.congestion;
                while !connection.receive(&received.segment, marked, application, self.now) {}
            }
        }
        moved
    }

    fn all_complete(&self, side: usize) -> bool {
        let Application { works, complete, .. } = &self.sides[side].application;
        complete.iter().copied().eq(0..works.len() as u64)
    }
}

#[test]
fn every_kind_of_request_on_a_good_wire() {
    let mut world = World::new(1, [0; 3]);
    for (address, bytes) in [(0, 1), (8, 256), (300, 257), (1_000, 0), (2_000, 100_000)] {
        world.push(0, WorkKind::Write, address, bytes);
    }
    world.push(0, WorkKind::WriteWithValue(0x1122_3344), 150_000, 600);
    world.push(0, WorkKind::Send, 0, 64);
    world.push(1, WorkKind::Read, 1_000, 0);
    world.run(1_000_000_000);
    let expected: Vec<u8> = world.sides[0].application.local[44..44 + 100_000].to_vec();
    assert!(world.all_complete(0) && world.all_complete(1));
    assert_eq!(world.sides[1].application.exported[2_000..102_000], expected);
    let received: Vec<&[u8]> =
        world.sides[1].application.received.iter().map(|one| &one.1[..]).collect();
    let message = &world.sides[0].application.local[66..66 + 64];
    assert_eq!(received, [&[0x44, 0x33, 0x22, 0x11, 0x58, 2, 0, 0][..], message]);
    let id = world.push(0, WorkKind::Read, 2_000, 100_000);
    world.run(2_000_000_000);
    let at = id as usize * 11;
    assert!(world.all_complete(0));
    assert_eq!(world.sides[0].application.local[at..at + 100_000], expected);
    assert_eq!(
        world.sides.each_ref().map(|one| one.connection.requester().retransmitted()),
        [0; 2]
    );
}

/// Copies that take two calls, on wires that lose, repeat and overtake packets: each byte is placed once, in order.
#[test]
fn slow_copies_change_nothing_but_the_time() {
    for (seed, faults) in [(1, [0; 3]), (7, [20, 20, 20]), (8, [100, 0, 50])] {
        let mut world = World::new(seed, faults);
        world.sides.iter_mut().for_each(|side| side.application.is_slow = true);
        let from: Vec<u8> = world.sides[0].application.local.clone();
        for (address, bytes) in [(0, 1), (8, 256), (300, 257), (2_000, 50_000)] {
            world.push(0, WorkKind::Write, address, bytes);
        }
        world.push(0, WorkKind::WriteWithValue(9), 150_000, 600);
        let id = world.push(0, WorkKind::Read, 2_000, 50_000);
        world.push(1, WorkKind::Write, 70_000, 3_000);
        world.run(50_000_000_000);
        assert!(world.all_complete(0) && world.all_complete(1), "{faults:?}");
        let [one, other] = world.sides.each_ref().map(|side| &side.application);
        assert_eq!(other.exported[2_000..52_000], from[33..33 + 50_000]);
        assert_eq!(one.local[id as usize * 11..][..50_000], from[33..33 + 50_000]);
        assert_eq!(other.received.len(), 1, "the value comes once");
        assert!(one.repeated > 100 && other.repeated > 100, "copies took two calls");
    }
}

#[test]
fn a_wrong_key_a_range_outside_or_a_request_without_sense_ends_the_connection() {
    for (key, address, bytes) in [(KEY + 1, 0, 10), (KEY, MEMORY as u64 - 5, 6), (KEY, u64::MAX, 2)]
    {
        for kind in [WorkKind::Write, WorkKind::Read] {
            let mut world = World::new(1, [0; 3]);
            let work = Work { id: 0, kind, bytes, key, address };
            world.sides[0].connection.push(work, bytes, 0);
            world.run(1_000_000_000);
            let ended = world.sides.each_ref().map(|one| one.connection.ended());
            let fault = crate::requester::Fault::Access;
            assert_eq!(ended, [Some(Ended::Failed(fault)), Some(Ended::Refused)], "{kind:?}");
            assert!(world.sides[1].application.exported.iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_silent_peer_is_dead_and_an_idle_one_is_asked() {
    let mut world = World::new(1, [0; 3]);
    let mut frame = [0; 512];
    let Side { connection, application } = &mut world.sides[0];
    let first = connection.next_due().unwrap();
    assert_eq!(first, TIMING.quiet);
    assert!(connection.transmit(application, first - 1, &mut frame).is_none());
    assert!(connection.transmit(application, first, &mut frame).is_some(), "it asks");
    // There is no answer.
    let mut sent = 0;
    while connection.ended().is_none() {
        let now = connection.next_due().unwrap();
        sent += u32::from(connection.transmit(application, now, &mut frame).is_some());
        assert!(now <= first + TIMING.dead);
    }
    assert_eq!(connection.ended(), Some(Ended::Dead));
    assert!((10..30).contains(&sent), "{sent}");
    assert!(application.complete.is_empty());
}

#[test]
fn a_full_queue_delays_a_message_and_then_fails_it() {
    let mut world = World::new(1, [0; 3]);
    world.sides[1].application.room = 2;
    (0..4).for_each(|_| {
        world.push(0, WorkKind::Send, 0, 10);
    });
    world.run(500_000_000);
    assert_eq!(world.sides[0].application.complete, [0, 1]);
    world.sides[1].application.room = 1;
    world.run(world.now + 10_000_000);
    assert_eq!(world.sides[0].application.complete, [0, 1, 2]);
    world.run(10_000_000_000);
    let fault = crate::requester::Fault::NotReady;
    assert_eq!(world.sides[0].connection.ended(), Some(Ended::Failed(fault)));
    assert_eq!(world.sides[1].application.received.len(), 3);
}

#[test]
fn marked_packets_slow_the_peer_down() {
    let mut world = World::new(1, [0; 3]);
    world.push(0, WorkKind::Write, 0, 100_000);
    let mut frame = vec![0; 8192];
    let mut notifications = 0;
    for step in 0..200 {
        let now = 1_000_000 + step * 10_000;
        let [one, other] = &mut world.sides;
        while let Some(len) = one.connection.transmit(&mut one.application, now, &mut frame) {
            let received = read_frame(&frame[..len]).unwrap();
            assert!(other.connection.receive(&received.segment, true, &mut other.application, now));
        }
        while let Some(len) = other.connection.transmit(&mut other.application, now, &mut frame) {
            let received = read_frame(&frame[..len]).unwrap();
            let opcode = received.segment.bth.opcode;
            notifications += u32::from(opcode == Opcode::CongestionNotification);
            assert!(one.connection.receive(&received.segment, false, &mut one.application, now));
        }
    }
    assert!((1..=40).contains(&notifications), "{notifications}: one in 50 us");
    assert!(world.sides[0].connection.rate().limit().is_some());
}

/// The answers to reads are not paced, so who reads asks for fewer bytes at once.
#[test]
fn marked_answers_to_reads_limit_the_reader() {
    let mut world = World::new(1, [0; 3]);
    world.push(0, WorkKind::Read, 0, 100_000);
    let mut frame = vec![0; 8192];
    let [one, other] = &mut world.sides;
    let len = one.connection.transmit(&mut one.application, 1, &mut frame).unwrap();
    let request = read_frame(&frame[..len]).unwrap();
    assert!(other.connection.receive(&request.segment, false, &mut other.application, 1));
    let len = other.connection.transmit(&mut other.application, 1, &mut frame).unwrap();
    for (marked, limited) in [(false, false), (true, true)] {
        let answer = read_frame(&frame[..len]).unwrap();
        assert!(one.connection.receive(&answer.segment, marked, &mut one.application, 2));
        assert_eq!(one.connection.rate().limit().is_some(), limited);
    }
}

/// All behind a lost packet is sent again, so fewer are under way where some are lost.
#[test]
fn a_mebibyte_is_under_way_and_a_quarter_of_it_while_the_rate_is_limited() {
    for (is_limited, packets) in [(false, 256), (true, 64)] {
        let mut requester = Requester::new(Psn::new(0), 4096, MOST_READS);
        requester.set_ready();
        let bytes = 2 << 20;
        requester.push(
            Work { id: 0, kind: WorkKind::Write, bytes, key: KEY, address: 0 },
            bytes,
            0,
        );
        let sent: Vec<_> = std::iter::from_fn(|| {
            let (packet, covers) = requester.next_packet(is_limited, 0)?;
            requester.sent(&packet, covers, 0);
            Some(packet)
        })
        .collect();
        assert_eq!(sent.len(), packets);
        assert!(sent[packets - 1].asks, "else no answer lets more go");
        // The window may shrink at any time: answers to the packets that ask still let more go.
        let asked = sent.iter().rfind(|one| one.asks && one.psn != sent[packets - 1].psn);
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0 };
        let _ = requester.acknowledged(asked.unwrap().psn, aeth, 1, |_, _| {});
        assert!(requester.next_packet(true, 1).is_some());
    }
}

/// Returns a read request of two packets.
fn read_request(psn: u32) -> Segment<'static> {
    let reth = Reth { address: 0, key: KEY, len: 2 * MTU };
    let extension = Extension { reth: Some(reth), ..Extension::default() };
    Segment { bth: Bth::new(Opcode::ReadRequest, 17, psn), extension, payload: &[] }
}

/// The requests that a peer sends again come while the earlier answers still wait.
#[test]
fn a_peer_that_goes_back_in_its_reads_may_have_as_many_as_before() {
    let mut application = Application::new();
    let progress = Progress { expected: Psn::new(0), messages: 0, writing: None };
    let mut responder = Responder::new(progress, MTU);
    let reads: Vec<u32> = (0..MOST_READS).map(|read| 2 * read).collect();
    for psn in &reads[..15] {
        assert_eq!(responder.receive(&read_request(*psn), &mut application), Served::Good);
    }
    // The second packet, and the last request, are lost.
    let sent: Vec<u32> = (0..3).map(|_| responder.next_reply().unwrap().psn.number()).collect();
    assert_eq!(sent, [0, 1, 2]);
    let mut again = read_request(1);
    again.extension.reth = Some(Reth { address: u64::from(MTU), key: KEY, len: MTU });
    assert_eq!(responder.receive(&again, &mut application), Served::Good);
    for psn in &reads[1..] {
        assert_eq!(responder.receive(&read_request(*psn), &mut application), Served::Good);
    }
    let sent = std::iter::from_fn(|| responder.next_reply()).map(|reply| reply.psn.number());
    assert!(sent.eq(1..2 * MOST_READS), "each once, in order");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// All requests of both sides are carried out once, in order, whatever the wire does.
    #[test]
    fn a_bad_wire_changes_nothing(
        seed in 1..u64::MAX,
        faults in [0..60_u64, 0..100, 0..100],
        works in proptest::collection::vec((0..2_usize, 0..4_u8, 0..140_000_u64, 0..5_000_u64), 1..40),
    ) {
        let mut world = World::new(seed, faults);
        let mut shadow = [vec![0; MEMORY], vec![0; MEMORY]];
        let mut messages = [Vec::new(), Vec::new()];
        for (side, kind, address, bytes) in works {
            // The bytes of a write do not depend on a read before it.
            let id = world.sides[side].application.works.len() as u64;
            let at = id as usize * 11;
            let source: Vec<u8> = (at..at + bytes as usize).map(|at| (at * 7 + at / 256) as u8).collect();
            let place = address as usize..(address + bytes) as usize;
            match kind {
                0 => {
                    world.push(side, WorkKind::Write, address, bytes);
                    shadow[1 - side][place].copy_from_slice(&source);
                }
                1 => {
                    world.push(side, WorkKind::WriteWithValue(id as u32), address, bytes);
                    shadow[1 - side][place].copy_from_slice(&source);
                    messages[1 - side].push(id as u32);
                }
                2 => {
                    world.push(side, WorkKind::Send, 0, id % 65);
                    messages[1 - side].push(u32::MAX);
                }
                _ => {
                    // Writes of what is there already.
                    world.push(side, WorkKind::Write, address, 0);
                }
            }
        }
        world.run(3_600_000_000_000);
        for side in 0..2 {
            prop_assert!(world.all_complete(side), "{:?}", world.sides[side].application.complete);
            let Application { exported, received, .. } = &world.sides[side].application;
            prop_assert!(*exported == shadow[side]);
            let value = |one: &(u32, Vec<u8>)| u32::from_le_bytes(one.1[..4].try_into().unwrap());
            prop_assert_eq!(received.len(), messages[side].len());
            for (one, expected) in received.iter().zip(&messages[side]) {
                prop_assert!(*expected == u32::MAX || value(one) == *expected);
            }
        }
    }

    /// Reads have the right bytes, whatever the wire does.
    #[test]
    fn reads_on_a_bad_wire(
        seed in 1..u64::MAX,
        faults in [0..60_u64, 0..100, 0..100],
        reads in proptest::collection::vec((0..100_000_u64, 0..100_000_u64), 1..10),
    ) {
        let mut world = World::new(seed, faults);
        for (at, byte) in world.sides[1].application.exported.iter_mut().enumerate() {
            *byte = (at * 13 + at / 251) as u8;
        }
        for (address, bytes) in reads {
            let id = world.push(0, WorkKind::Read, address, bytes);
            world.run(3_600_000_000_000);
            prop_assert!(world.all_complete(0));
            let at = id as usize * 11;
            let expected = &world.sides[1].application.exported[address as usize..][..bytes as usize];
            prop_assert!(world.sides[0].application.local[at..at + bytes as usize] == *expected);
        }
    }
}

/// A side that starts anew with what it recorded goes on where it was: its requests that were not
/// acknowledged come again with the same numbers, and the peer's are not carried out twice.
#[test]
fn either_side_starts_anew() {
    for seed in 1..40 {
        let mut world = World::new(seed, [20, 20, 20]);
        let mut first = [Psn::new(0xff_fff0), Psn::new(5)];
        for round in 0..40 {
            let (side, kind) = (world.random(2) as usize, world.random(3));
            let (address, bytes) = (world.random(100_000), world.random(120_000));
            let kind = match kind {
                0 => WorkKind::Write,
                1 => WorkKind::WriteWithValue(round),
                _ => WorkKind::Send,
            };
            let bytes = if kind == WorkKind::Send { 8 } else { bytes };
            world.push(side, kind, address, bytes);
            // A few packets go over the wire.
            let mut frame = vec![0; 8192];
            for _ in 0..world.random(400) {
                for from in 0..2 {
                    let Side { connection, application } = &mut world.sides[from];
                    if let Some(len) = connection.transmit(application, world.now, &mut frame) {
                        world.wires[1 - from].push_back(frame[..len].to_vec());
                    }
                    world.receive(1 - from);
                }
                world.now += 1_000;
            }
            if world.random(3) == 0 {
                let side = world.random(2) as usize;
                world.start_anew(side, &mut first);
            }
        }
        world.run(3_600_000_000_000);
        for side in 0..2 {
            assert!(world.all_complete(side), "seed {seed}");
            let expected = world.sides[1 - side].application.works.iter();
            let expected = expected.filter(|one| one.kind != WorkKind::Write).count();
            assert_eq!(world.sides[side].application.received.len(), expected, "seed {seed}");
        }
    }
}

impl World {
    /// Replaces a side by one that knows only what a ledger holds.
    fn start_anew(&mut self, side: usize, first: &mut [Psn; 2]) {
        let now = self.now;
        let Side { connection, application } = &mut self.sides[side];
        if !application.complete.is_empty() {
            first[side] = application.next;
        }
        let (to, progress) = ((path(side == 1), 17), connection.progress());
        let mut anew = Connection::new(to, MTU, (first[side], 16), progress, TIMING, now);
        anew.set_resumed();
        let complete = application.complete.len();
        for work in &application.works[complete..] {
            anew.push(*work, work.bytes, now);
        }
        *connection = anew;
    }
}
