//! A queue with a device that the test plays.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use towpath_device::{
    Access, Armed, Capabilities, Checksum, DeviceQueue, Dma, DmaError, EarlierObjects, Kick,
    Limits, Meta, Packet, PacketMemory, Part, Received, Space, Spaces, TagProtocol, VlanTag,
};
use towpath_device_testing::random::Random;
use towpath_memory::{Mapping, Region};

use super::*;
use crate::e1000e::card::{Card, OWN_QUEUE, double_of, double_with_own};
use crate::e1000e::going_on::{Files, GoingOn};
use crate::e1000e::ledger::{Header, Opened};

/// The device addresses of the packets' memory and of the rings.
const PACKETS_AT: u64 = 1 << 32;
const RINGS_AT: u64 = 1 << 33;
const DISCARD_AT: u64 = 3 << 32;
const BUFFERS: u32 = 700;
const MTU: usize = 1500;
const OPENED: Opened = Opened { mtu: MTU, has_one_interrupt: false };
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Has each memory at a known address.
struct At(u64);

impl Dma for At {
    fn register(&self, _: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        Ok(self.0)
    }

    fn unregister(&self, _: u64) {}
}

fn registration(at: u64, memory: &Arc<Mapping>) -> Registration {
    let dma: Arc<dyn Dma> = Arc::new(At(at));
    Registration::new(&dma, memory, Access::ReadWrite).unwrap()
}

fn info() -> Info {
    let limits = Limits { rx_packet_buffers: 1, ..Limits::new(RX_BUFFER_BYTES) };
    Info {
        name: "card".to_owned(),
        mac: MAC,
        mtu: MTU,
        can: Capabilities { tx_in_place: true, tx_asynchronous: true, ..Capabilities::default() },
        queues: 1,
        limits,
        rx_queue_packets: 511,
    }
}

fn parts(card: Arc<Card>, shared: SharedRings, ledger: RingLedger) -> QueueParts {
    let rings = registration(RINGS_AT, &shared.mapping);
    let interrupt = Interrupt::new(Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
    QueueParts {
        index: 0,
        owner: Owner::Engine,
        info: info(),
        card,
        shared,
        rings,
        ledger,
        interrupt,
    }
}

/// A queue, with the engine's part and the device's.
struct World {
    queue: E1000eQueue,
    spaces: Spaces,
    pool: SpaceId,
    files: Files,
    memory: OwnedFd,
    /// The buffers that the engine can give.
    free: VecDeque<u32>,
    /// The received packets of the last poll, which the engine handles before the next call.
    in_hand: Vec<Received>,
    /// The next receive descriptor that the device writes.
    head: u32,
}

impl World {
    fn new() -> World {
        World::of(double_of(1))
    }

    fn of(card: Card) -> World {
        World::over(Arc::new(card))
    }

    fn over(card: Arc<Card>) -> World {
        let bytes = BUFFERS as usize * RX_BUFFER_BYTES;
        let (region, memory) = Region::in_kept_file("packets", bytes).unwrap();
        let registered = registration(PACKETS_AT, region.mapping());
        let mut spaces = Spaces::default();
        let pool = spaces.add(Space::writable(region).registered(Some(registered)));
        let (shared, rings) = SharedRings::new().unwrap();
        let memories =
            [(PACKETS_AT, bytes as u64), (RINGS_AT, shared.mapping.mapped_bytes() as u64)];
        let packets = PacketMemory { bytes, pool_bytes: bytes };
        let header = Header { mac: MAC, opened: OPENED, packets, memories };
        let (ledger, ledger_file) = RingLedger::new(&header).unwrap();
        let queue = E1000eQueue::start(parts(card, shared, ledger));
        let files = Files { rings, ledger: ledger_file };
        let free = (0..BUFFERS).map(|one| one * RX_BUFFER_BYTES as u32).collect();
        World { queue, spaces, pool, files, memory, free, in_hand: Vec::new(), head: 0 }
    }

    fn register(&self, register: Register) -> u32 {
        self.queue.parts.card.registers.read(register)
    }

    /// The engine handles what it received, and gives buffers.
    fn fill(&mut self, count: usize) {
        let offsets: Vec<_> = self.free.iter().copied().take(count).collect();
        let taken = self.queue.rx_fill(&self.spaces, self.pool, &offsets);
        self.free.drain(..taken);
        self.handle();
    }

    fn kick(&mut self) {
        self.queue.kick(&mut self.spaces, Kick::Rx).unwrap();
    }

    fn poll(&mut self, budget: usize) {
        let mut out = Vec::new();
        self.queue.rx_poll(&mut self.spaces, &mut out, budget).unwrap();
        self.handle();
        self.in_hand = out;
    }

    fn handle(&mut self) {
        self.free.extend(self.in_hand.drain(..).map(|one| one.buffer));
    }

    /// The device receives a packet of this many bytes, damaged or whole.
    fn receive(&mut self, len: u64, is_damaged: bool) -> bool {
        if self.head == self.register(RDT) {
            return false;
        }
        let error = if is_damaged { 1 << 24 } else { 0 };
        self.queue.parts.shared.rx.write_back(self.head, [0, 3 | error | len << 32]);
        self.head = (self.head + 1) % RING_ENTRIES;
        true
    }

    /// Returns what a next server finds: the queue's objects as a keeper holds them, with a card of the same
    /// registers.
    fn kill(&self, after_crash: bool) -> (Option<GoingOn>, Arc<Card>) {
        self.kill_and_open(after_crash, OPENED)
    }

    fn kill_and_open(&self, after_crash: bool, opened: Opened) -> (Option<GoingOn>, Arc<Card>) {
        let card = double_of(1);
        for at in (0..0x20000).step_by(4).map(Register) {
            card.registers.write(at, self.register(at));
        }
        let mut earlier = EarlierObjects::new(after_crash);
        for (name, file) in [
            ("device-card-rings-0", &self.files.rings),
            ("device-card-ledger-0", &self.files.ledger),
            ("device-memory-0", &self.memory),
        ] {
            earlier.add(name, 1, file.as_fd().try_clone_to_owned().unwrap());
        }
        let found = GoingOn::find(&earlier, &card, opened, 1).unwrap().pop();
        (found, Arc::new(card))
    }
}

/// A server can be killed at any time. The next one then knows of each buffer whether the device has it, and
/// receives each packet that the engine had not handled.
#[test]
fn the_next_server_finds_the_rings_at_any_time() {
    let mut random = Random::new(7);
    let mut world = World::new();
    for _ in 0..4_000 {
        match random.below(6) {
            0 | 1 => world.fill(random.below(90) as usize),
            2 => world.kick(),
            3 => world.poll(random.below(64) as usize),
            _ => {
                let packets = random.below(40);
                let whole = |random: &mut Random| (60 + random.below(1400), random.chance(0.2));
                (0..packets).all(|_| {
                    let (len, is_damaged) = whole(&mut random);
                    world.receive(len, is_damaged)
                });
            }
        }
        let (found, _) = world.kill(false);
        let found = found.expect("the rings are whole at any time");
        let theirs: BTreeSet<u32> = found.buffers.iter().copied().collect();
        assert_eq!(theirs.len(), found.buffers.len());
        // The engine's are free for the next server, too.
        let in_both = world.free.iter().find(|one| theirs.contains(one));
        assert_eq!(in_both, None, "a buffer that the device may write");
        let has = |one: &Received| theirs.contains(&one.buffer);
        assert!(world.in_hand.iter().all(has), "a packet that the engine had not handled");
        let (oldest, _) = found.ledger.oldest();
        let waiting = (world.head + RING_ENTRIES - oldest) % RING_ENTRIES;
        assert!(waiting as usize >= world.in_hand.len());
    }
    assert!(world.queue.counters.rx_packets > 1_000 && world.queue.counters.rx_dropped > 100);
}

/// Takes over, and returns the queue with a world of its own.
fn next(world: &World, after_crash: bool) -> (E1000eQueue, Spaces, SpaceId) {
    let (found, card) = world.kill(after_crash);
    let GoingOn { shared, ledger, memory, rx_tail, tx_tail, buffers, drops, .. } = found.unwrap();
    let bytes = BUFFERS as usize * RX_BUFFER_BYTES;
    let (region, _) = Region::of_earlier_file(memory, bytes).unwrap();
    let registered = registration(PACKETS_AT, region.mapping());
    let mut spaces = Spaces::default();
    let pool = spaces.add(Space::writable(region).registered(Some(registered)));
    let mut queue = E1000eQueue::go_on(
        parts(card, shared, ledger),
        Position { rx_tail, tx_tail, buffers, drops },
    );
    queue.rx_fill(&spaces, pool, &[]);
    (queue, spaces, pool)
}

/// A packet is as long as the wire allows with the tag that the device removed.
#[test]
fn tags_that_the_device_removed_are_reported() {
    let mut world = World::new();
    world.fill(100);
    world.kick();
    let longest =
        (MTU + towpath_device::ETHERNET_HEADER_BYTES + towpath_device::VLAN_TAG_BYTES) as u64;
    // A tag, a priority alone, no tag, and a packet that is too long with its tag.
    let packets = [(0xb, 100, 7), (0xb, longest, 0xe000), (3, 100, 7), (0xb, longest + 1, 7)];
    for (index, (status, len, tag)) in (0..).zip(packets) {
        let words = [0, status | len << 32 | tag << 48];
        world.queue.parts.shared.rx.write_back(index, words);
    }
    world.poll(64);
    let tags =
        world.in_hand.iter().map(|one| (u64::from(one.len), one.tag.map(|tag| tag.to_bytes())));
    let tags: Vec<_> = tags.collect();
    let (urgent, seven) = (Some([0x81, 0, 0xe0, 0]), Some([0x81, 0, 0, 7]));
    assert_eq!(tags, [(100, seven), (longest, urgent), (100, None)]);
    let counters = world.queue.counters();
    assert_eq!((counters.rx_bytes, counters.rx_dropped), (104 + longest + 4 + 100, 1));
}

/// All descriptors of a packet name its tag, but not a context, and not the next packet's.
#[test]
fn tags_to_insert_stand_in_the_descriptors() {
    let mut world = World::new();
    let parts = [0, 100].map(|offset| Part { space: world.pool, offset, len: 50 });
    let tag = Some(VlanTag { protocol: TagProtocol::Customer, control: 0xe007 });
    let partial = Checksum::Partial { start: 34, offset: 6 };
    let packets = [
        Packet { parts: &parts, meta: Meta::FULL, tag, token: 1 },
        Packet { parts: &parts, meta: Meta { checksum: partial, ..Meta::FULL }, tag, token: 2 },
        Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 3 },
    ];
    let can = &mut world.queue.parts.info.can;
    (can.tx_checksum, can.tx_tag) = (true, true);
    assert_eq!(world.queue.tx_submit(&mut world.spaces, &packets).unwrap(), 3);
    let shared = &world.queue.parts.shared;
    let inserts = |index| {
        let [_, second] = shared.tx.fetch(index);
        (second >> 30 & 1, second >> 48)
    };
    let tags: Vec<_> = (0..7).map(inserts).collect();
    let (with, without) = ((1, 0xe007), (0, 0));
    assert_eq!(tags, [with, with, without, with, with, without, without]);
    let lens: Vec<_> = world.queue.in_flight.iter().map(|one| one.len).collect();
    assert_eq!(lens, [104, 104, 100]);
}

#[test]
fn packets_in_hand_are_received_again_and_others_follow() {
    let mut world = World::new();
    world.fill(100);
    world.kick();
    for len in 100..110 {
        assert!(world.receive(len, false));
    }
    world.poll(4);
    assert_eq!(world.in_hand.len(), 4);
    let (mut queue, mut spaces, pool) = next(&world, false);
    assert!(queue.holds(0) && queue.holds(99 * 2048) && !queue.holds(100 * 2048));
    let mut out = Vec::new();
    queue.rx_poll(&mut spaces, &mut out, 64).unwrap();
    let lens: Vec<_> = out.iter().map(|one| one.len).collect();
    assert_eq!(lens, (100..110).collect::<Vec<_>>());
    assert_eq!(out[9].buffer, 9 * 2048);
    // The ring goes on at the device's tail.
    assert_eq!(queue.rx_fill(&spaces, pool, &[100 * 2048]), 1);
    queue.kick(&mut spaces, Kick::Rx).unwrap();
    assert_eq!(queue.parts.card.registers.read(RDT), 101);
}

#[test]
fn after_a_crash_waiting_packets_are_dropped_and_counted() {
    let mut world = World::new();
    world.fill(100);
    world.kick();
    for _ in 0..10 {
        assert!(world.receive(100, false));
    }
    world.poll(4);
    let (mut queue, mut spaces, _) = next(&world, true);
    assert_eq!(queue.counters().rx_dropped, 10);
    let mut out = Vec::new();
    assert_eq!(queue.rx_poll(&mut spaces, &mut out, 64).unwrap(), 0);
    // Their buffers are in the ring again.
    assert_eq!(queue.parts.card.registers.read(RDT), 110);
    assert!((0..100).all(|one| queue.holds(one * 2048)));
}

/// The driver writes the register for many buffers at once, and for each while the device has few.
#[test]
fn the_device_learns_of_many_buffers_at_once() {
    let mut world = World::new();
    let mut tails = Vec::new();
    for count in [100, 1, 100, 15, 1, 400] {
        world.fill(count);
        world.kick();
        tails.push(world.register(RDT));
    }
    assert_eq!(tails, [100, 101, 201, 201, 217, 511]);
}

/// A card that does not send what it was told to is reset, and so is one whose registers or ledger are
/// others.
#[test]
fn a_card_that_cannot_be_gone_on_with_is_not() {
    let mut world = World::new();
    world.fill(10);
    world.kick();
    assert!(world.kill(false).0.is_some());
    let write = |register, value| world.queue.parts.card.registers.write(register, value);
    let others = [(TDT, 5), (TDT, 512), (RDT, 512), (RDT, 11), (RCTL, 0), (TCTL, 0), (CTRL, 0)];
    for (register, wrong) in others {
        let before = world.register(register);
        write(register, wrong);
        if register == TDT && wrong == 5 {
            // Sent, but not completed.
            write(TDH, 5);
            let shared = &mut world.queue.parts.shared;
            shared.tx.write_back(4, [PACKETS_AT, 60]);
        }
        assert!(world.kill(false).0.is_none(), "{register:?} {wrong}");
        let write = |register, value| world.queue.parts.card.registers.write(register, value);
        write(register, before);
        write(TDH, 0);
    }
    assert!(world.kill(false).0.is_some());
}

/// The options of the next server decide, too, and the sizes of the memory that its engine wants: the same file could
/// have another pool.
#[test]
fn other_options_are_not_gone_on_with() {
    let world = World::new();
    let with = |opened| world.kill_and_open(false, opened).0;
    assert!(with(Opened { mtu: MTU + 1, ..OPENED }).is_none());
    assert!(with(Opened { has_one_interrupt: true, ..OPENED }).is_none());
    let found = with(OPENED).unwrap();
    let bytes = BUFFERS as usize * RX_BUFFER_BYTES;
    let has = |bytes, pool_bytes| found.has_memory(PacketMemory { bytes, pool_bytes }).unwrap();
    assert!(has(bytes, bytes));
    assert!(
        !has(bytes, bytes - RX_BUFFER_BYTES) && !has(bytes - 1, bytes) && !has(bytes + 4096, bytes)
    );
}

/// The device writes behind the headroom of a session's buffers. The end of the session's queue leaves the engine's
/// running.
#[test]
fn a_session_has_a_queue_with_headroom_in_its_buffers() {
    let card = Arc::new(double_with_own());
    let engine = World::over(card.clone());
    let (shared, _) = SharedRings::new().unwrap();
    let header = Header {
        mac: MAC,
        opened: OPENED,
        packets: PacketMemory::default(),
        memories: [(0, 0); 2],
    };
    let (ledger, _) = RingLedger::new(&header).unwrap();
    let owner = Owner::Session { discard: registration(DISCARD_AT, &shared.mapping) };
    let parts = parts(card.clone(), shared, ledger);
    let own = QueueParts { index: OWN_QUEUE, owner, ..parts };
    let mut queue = E1000eQueue::start(own);
    let (mut spaces, stride) = (Spaces::default(), 2176);
    let region = Region::private(4 * stride as usize).unwrap();
    let registered = registration(PACKETS_AT, region.mapping());
    let pool = spaces.add(Space::new(region.mapping().clone()).registered(Some(registered)));
    // The last one lacks a byte in the last page.
    let buffers = [0, stride, 2 * stride, 3 * 4096 - 2048 - 127];
    assert_eq!(queue.rx_fill(&spaces, pool, &buffers), 3);
    queue.kick(&mut spaces, Kick::Rx).unwrap();
    // Behind them are descriptors for packets that are dropped.
    let tail = || card.registers.read(RDT.at(OWN_QUEUE, QUEUE_STRIDE));
    assert_eq!((tail(), queue.parts.shared.rx.fetch(3)[0]), (16, DISCARD_AT));
    assert_eq!(queue.parts.shared.rx.fetch(1)[0], PACKETS_AT + u64::from(stride) + 128);
    for index in 0..2 {
        queue.parts.shared.rx.write_back(index, [0, 3 | 100 << 32]);
    }
    let mut out = Vec::new();
    queue.rx_poll(&mut spaces, &mut out, 64).unwrap();
    let places: Vec<_> = out.iter().map(|one| (one.buffer, one.offset)).collect();
    assert_eq!(places, [(0, 128), (stride, stride + 128)]);
    // A session that gives no more buffers.
    for index in 2..18 {
        queue.parts.shared.rx.write_back(index, [0, 3 | 100 << 32]);
    }
    out.clear();
    queue.rx_poll(&mut spaces, &mut out, 64).unwrap();
    assert_eq!(out.iter().map(|one| one.buffer).collect::<Vec<_>>(), [2 * stride]);
    assert_eq!((queue.counters().rx_dropped, tail()), (15, 34));
    queue.parts.ledger.set_buffer(33, stride);
    assert_eq!(queue.take_all(), [stride], "not the buffer for packets that are dropped");
    assert!(queue.cede(OWN_QUEUE).is_none());
    drop(queue);
    assert_eq!(card.registers.read(RDT.at(OWN_QUEUE, QUEUE_STRIDE)), 0);
    assert_ne!(engine.register(RCTL) & RCTL_ENABLE, 0);
    let World { queue: mut engine, .. } = engine;
    assert_eq!(engine.cede(OWN_QUEUE).map(|ceded| ceded.number), Some(OWN_QUEUE));
    assert!(engine.cede(0).is_none());
}

/// Damaged packets may take all buffers of the ring. The device gets them again, and the engine does not sleep
/// before.
#[test]
fn an_engine_does_not_sleep_over_a_ring_of_dropped_packets() {
    let mut world = World::new();
    world.fill(40);
    world.kick();
    assert!((0..40).all(|_| world.receive(100, true)));
    world.poll(64);
    assert_eq!(world.queue.counters().rx_dropped, 40);
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Work);
    world.poll(64);
    assert_eq!(world.register(RDT), 80);
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Sleep);
}

/// An orderly server leaves nothing to receive again: the engine gives its last buffers, or none, once it has handled
/// all. A panic leaves the card running, too.
#[test]
fn a_server_that_leaves_does_not_stop_the_card() {
    let mut world = World::new();
    world.fill(100);
    world.kick();
    assert!(world.receive(100, false));
    world.poll(4);
    world.fill(0);
    let card = world.queue.parts.card.clone();
    card.leave();
    assert!(!card.leaves(), "no keeper holds it");
    card.set_kept();
    let World { queue, files, .. } = world;
    std::thread::scope(|scope| {
        let panics = scope.spawn(move || {
            let _queue = queue;
            std::panic::resume_unwind(Box::new("an engine that panics"));
        });
        assert!(panics.join().is_err());
    });
    let (ledger, ..) = RingLedger::of_earlier(files.ledger).unwrap().unwrap();
    assert_eq!(ledger.oldest(), (1, false));
    assert!(card.leaves());
    assert_ne!(card.registers.read(RCTL) & RCTL_ENABLE, 0, "the card goes on");
}

/// The engine of the other queue has reset the card. This queue returns its packets, keeps its buffers, and sets its
/// registers; the card runs once both have.
#[test]
fn a_queue_follows_the_reset_of_the_other_one() {
    let mut world = World::of(double_of(2));
    let card = world.queue.parts.card.clone();
    card.start(1, card.resets(), || ());
    card.registers.write(EECD, EECD_AUTO_READ_DONE);
    world.fill(100);
    world.kick();
    assert!(world.receive(100, false) && world.receive(100, false));
    let parts = [Part { space: world.pool, offset: 600 * 2048, len: 100 }];
    let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 7 };
    assert_eq!(world.queue.tx_submit(&mut world.spaces, &[packet]).unwrap(), 1);
    world.queue.kick(&mut world.spaces, Kick::Tx).unwrap();
    card.reset_once(0).unwrap();
    assert_eq!((world.register(RDT), world.register(TDT)), (0, 0));
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Work, "it does not sleep over a reset");
    world.poll(64);
    assert!(world.in_hand.is_empty());
    assert_eq!(world.queue.counters().rx_dropped, 2, "what waited is counted");
    assert_eq!((world.register(RDT), world.register(TDT)), (100, 0));
    assert_eq!(world.queue.tx_submit(&mut world.spaces, &[packet]).unwrap(), 0, "after the first");
    let mut done = Vec::new();
    assert_eq!(world.queue.tx_complete(&mut done, 8).unwrap(), 1);
    assert_eq!(done, [Completion::returned(7)]);
    assert_eq!(world.register(RCTL) & RCTL_ENABLE, 0);
    card.start(1, card.resets(), || ());
    assert_ne!(world.register(RCTL) & RCTL_ENABLE, 0);
    // Its own reset, at the same time, does not stop the card once more.
    let mut buffers = Vec::new();
    world.queue.resets = 0;
    world.queue.reset(&mut buffers).unwrap();
    assert_eq!((card.resets(), buffers.len()), (1, 100));
}
