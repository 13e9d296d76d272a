//! Tests of one pair.

use std::time::{Duration, Instant};

use towpath_device::{Armed, Completion, Kick, Meta, Packet, Part, Space, SpaceId};
use towpath_memory::Region;

use super::*;
use crate::conformance::{DeviceFarEnd, FarEnd};

fn spaces(len: usize) -> (Spaces, SpaceId) {
    let mut spaces = Spaces::default();
    let id = spaces.add(Space::writable(Region::private(len).unwrap()));
    (spaces, id)
}

/// Returns the queues of a pair, and the size of their receive buffers.
fn queues(config: &Config) -> (LoopbackQueue, LoopbackQueue, u32) {
    let (mut a, mut b) = pair(config).unwrap();
    let bytes = a.info().limits.rx_stride() as u32;
    (a.queues[0].take().unwrap(), b.queues[0].take().unwrap(), bytes)
}

#[test]
fn a_packet_crosses() {
    let (mut a, mut b, buffer) = queues(&Config::default());
    let (mut sender, from) = spaces(4096);
    let (mut receiver, pool) = spaces(2 * buffer as usize);
    sender.copy_in(from, 100, b"hello").unwrap();
    assert_eq!(b.rx_fill(&receiver, pool, &[0, buffer]), 2);
    assert_eq!(b.arm(false).unwrap(), Armed::Sleep);
    let parts = [2u32, 3].map(|len| Part { space: from, offset: 98 + len, len });
    let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 7 };
    assert_eq!(a.tx_submit(&mut sender, &[packet]).unwrap(), 1);
    assert_eq!(b.arm(false).unwrap(), Armed::Work);
    let (mut tokens, mut got) = (Vec::new(), Vec::new());
    assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 1);
    assert_eq!(b.rx_poll(&mut receiver, &mut got, 9).unwrap(), 1);
    assert_eq!(tokens, [Completion::sent(7)]);
    let mut text = [0; 5];
    receiver.copy_out(pool, got[0].offset, &mut text).unwrap();
    assert_eq!((got[0].buffer, got[0].len, &text), (0, 5, b"heell"));
}

#[test]
fn a_dropped_end_is_reported_after_its_last_packets() {
    let (mut a, mut b, buffer) = queues(&Config::default());
    let (mut receiver, pool) = spaces(buffer as usize);
    b.rx_fill(&receiver, pool, &[0]);
    let parts = [Part { space: pool, offset: 0, len: 60 }];
    let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 7 };
    a.tx_submit(&mut receiver, &[packet]).unwrap();
    drop(a);
    let mut got = Vec::new();
    assert_eq!(b.rx_poll(&mut receiver, &mut got, 9).unwrap(), 1);
    assert!(matches!(b.rx_poll(&mut receiver, &mut got, 9), Err(DeviceError::Gone { .. })));
    assert!(matches!(b.tx_submit(&mut receiver, &[packet]), Err(DeviceError::Gone { .. })));
}

#[test]
fn asynchronous_packets_are_fetched_later() {
    let config = Config { tx_asynchronous: true, ..Config::default() };
    let (mut a, mut b, buffer) = queues(&config);
    let (mut memory, pool) = spaces(2 * buffer as usize);
    b.rx_fill(&memory, pool, &[0]);
    memory.copy_in(pool, buffer, b"early").unwrap();
    let parts = [Part { space: pool, offset: buffer, len: 5 }];
    let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 7 };
    assert_eq!(a.tx_submit(&mut memory, &[packet]).unwrap(), 1);
    let mut tokens = Vec::new();
    assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 0);
    memory.copy_in(pool, buffer, b"later").unwrap();
    a.rx_poll(&mut memory, &mut Vec::new(), 9).unwrap();
    assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 0, "the device does not know of it");
    a.kick(&mut memory, Kick::Tx).unwrap();
    assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 1);
    let mut got = Vec::new();
    b.rx_poll(&mut memory, &mut got, 9).unwrap();
    let mut text = [0; 5];
    memory.copy_out(pool, got[0].offset, &mut text).unwrap();
    assert_eq!(&text, b"later");
}

#[test]
fn a_packet_takes_a_descriptor_per_part_until_its_completion_is_fetched() {
    for tx_asynchronous in [false, true] {
        let config = Config { tx_descriptors: 50, tx_asynchronous, ..Config::default() };
        let (mut a, mut b, buffer) = queues(&config);
        let (mut memory, pool) = spaces(2 * buffer as usize);
        b.rx_fill(&memory, pool, &[0]);
        let part = Part { space: pool, offset: buffer, len: 2 };
        let (chain, one) = ([part; 45], [part]);
        let packet = |parts, token| Packet { parts, meta: Meta::FULL, tag: None, token };
        let packets = [packet(&chain, 1), packet(&chain, 2), packet(&one, 3)];
        assert_eq!(a.tx_submit(&mut memory, &packets).unwrap(), 1, "the second finds no room");
        let ones = [packet(&one, 4); 6];
        assert_eq!(a.tx_submit(&mut memory, &ones).unwrap(), 5, "50 descriptors are taken");
        a.kick(&mut memory, Kick::Tx).unwrap();
        assert_eq!(a.tx_submit(&mut memory, &ones).unwrap(), 0, "not fetched");
        let mut completions = Vec::new();
        assert_eq!(a.tx_complete(&mut completions, 1).unwrap(), 1);
        assert_eq!(completions, [Completion::sent(1)]);
        assert_eq!(a.tx_submit(&mut memory, &packets[1..]).unwrap(), 1);
    }
}

#[test]
fn a_reset_tells_sent_packets_from_those_it_returns() {
    let config = Config { tx_asynchronous: true, ..Config::default() };
    let (mut a, mut b, buffer) = queues(&config);
    let (mut memory, pool) = spaces(2 * buffer as usize);
    b.rx_fill(&memory, pool, &[0]);
    let good = [Part { space: pool, offset: buffer, len: 60 }];
    let packet = |parts, token| Packet { parts, meta: Meta::FULL, tag: None, token };
    a.tx_submit(&mut memory, &[packet(&good, 1), packet(&[], 2)]).unwrap();
    a.kick(&mut memory, Kick::Tx).unwrap();
    a.tx_submit(&mut memory, &[packet(&good, 3), packet(&good, 4)]).unwrap();
    a.reset(&mut Vec::new()).unwrap();
    let mut completions = Vec::new();
    a.tx_complete(&mut completions, 9).unwrap();
    let expected = [
        Completion::sent(1),
        Completion::dropped(2),
        Completion::returned(3),
        Completion::returned(4),
    ];
    assert_eq!(completions, expected);
}

#[test]
fn a_queue_opens_once() {
    let (mut a, _b) = pair(&Config::default()).unwrap();
    let mut spaces = Spaces::default();
    assert!(a.open_queue(1, &mut spaces).is_err(), "there is one queue");
    let queue = a.open_queue(0, &mut spaces).unwrap();
    assert!(a.open_queue(0, &mut spaces).is_err(), "it is open");
    drop(queue);
}

#[test]
fn the_bytes_wrap() {
    let config = Config { mtu: 1000, ring_packets: 3, offloads: false, ..Config::default() };
    let (mut a, mut b, buffer) = queues(&config);
    let (mut memory, pool) = spaces(3 * buffer as usize);
    let mut tokens = Vec::new();
    for round in 0..500u32 {
        let len = 1 + round * 37 % 1000;
        let sent: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        memory.copy_in(pool, 2 * buffer, &sent).unwrap();
        b.rx_fill(&memory, pool, &[0]);
        let parts = [Part { space: pool, offset: 2 * buffer, len }];
        let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 7 };
        assert_eq!(a.tx_submit(&mut memory, &[packet]).unwrap(), 1);
        a.tx_complete(&mut tokens, 9).unwrap();
        let mut got = Vec::new();
        assert_eq!(b.rx_poll(&mut memory, &mut got, 9).unwrap(), 1);
        let mut seen = vec![0; len as usize];
        memory.copy_out(pool, got[0].offset, &mut seen).unwrap();
        assert_eq!((got[0].len, seen), (len, sent));
    }
}

/// A sender with memory for packets, and its receiver.
struct World {
    a: LoopbackQueue,
    b: LoopbackQueue,
    cable: Cable,
    device: LoopbackDevice,
    memory: Spaces,
    pool: SpaceId,
}

impl World {
    fn new(config: &Config) -> World {
        let (mut device, mut other) = pair(config).unwrap();
        let mut a = device.queues[0].take().unwrap();
        let mut b = other.queues[0].take().unwrap();
        a.open().unwrap();
        b.open().unwrap();
        let buffer = device.info().limits.rx_stride() as u32;
        let (memory, pool) = spaces(64 * buffer as usize);
        for queue in [&mut a, &mut b] {
            let buffers: Vec<u32> = (0..32).map(|index| index * buffer).collect();
            queue.rx_fill(&memory, pool, &buffers);
        }
        World { a, b, cable: device.cable(), device, memory, pool }
    }

    /// Places packets with these tokens. Returns how many the device took.
    fn place(&mut self, tokens: std::ops::Range<u64>) -> usize {
        let parts = [Part { space: self.pool, offset: 0, len: 60 }];
        let packets: Vec<Packet<'_>> = tokens
            .map(|token| Packet { parts: &parts, meta: Meta::FULL, tag: None, token })
            .collect();
        self.a.tx_submit(&mut self.memory, &packets).unwrap()
    }

    fn send(&mut self, tokens: std::ops::Range<u64>) -> usize {
        let taken = self.place(tokens);
        self.a.kick(&mut self.memory, Kick::Tx).unwrap();
        taken
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.a.tx_complete(&mut completions, usize::MAX).unwrap();
        completions
    }

    fn received(&mut self) -> usize {
        let mut received = Vec::new();
        self.a.rx_poll(&mut self.memory, &mut Vec::new(), 0).unwrap();
        self.b.rx_poll(&mut self.memory, &mut received, 64).unwrap()
    }
}

/// Waits for a wake-up. Returns whether one came before the timeout.
fn wakes(queue: &LoopbackQueue, timeout_ms: i64) -> bool {
    let fd = queue.sleep_fd().unwrap();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let tv_nsec = timeout_ms % 1000 * 1_000_000;
    let timeout = rustix::event::Timespec { tv_sec: timeout_ms / 1000, tv_nsec };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
}

#[test]
fn an_unplugged_cable_keeps_packets_and_wakes_when_it_is_plugged_in() {
    for tx_asynchronous in [false, true] {
        let mut world = World::new(&Config { tx_asynchronous, ..Config::default() });
        assert_eq!(world.device.take_event(), None);
        world.cable.set_link(false);
        assert_eq!(world.device.take_event(), Some(Event::Link { up: false }));
        // A ring takes packets; a device without a ring takes none.
        let taken = world.send(0..3);
        assert_eq!(taken, if tx_asynchronous { 3 } else { 0 });
        assert_eq!((world.received(), world.completions().len()), (0, 0));
        assert_eq!(world.a.arm(!tx_asynchronous).unwrap(), Armed::Sleep);
        assert!(!wakes(&world.a, 0));
        world.cable.set_link(true);
        assert_eq!(world.device.take_event(), Some(Event::Link { up: true }));
        assert!(wakes(&world.a, 5000), "not woken by the link");
        world.send(taken as u64..3);
        assert_eq!((world.received(), world.completions().len()), (3, 3));
    }
}

#[test]
fn events_come_in_order_and_make_their_descriptor_readable() {
    let (mut a, _b) = pair(&Config::default()).unwrap();
    let readable = |a: &LoopbackDevice| {
        let fd = a.event_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))
            .unwrap()
            > 0
    };
    assert!(!readable(&a));
    let cable = a.cable();
    let events = [Event::Mtu(9000), Event::Address([2; 6])];
    events.iter().cloned().for_each(|event| cable.report(event));
    for event in events {
        assert!(readable(&a));
        assert_eq!(a.take_event(), Some(event));
    }
    assert!(!readable(&a) && a.take_event().is_none());
    let mut queue = a.queues[0].take().unwrap();
    cable.remove();
    assert_eq!(a.take_event(), Some(Event::Removed));
    let gone = queue.rx_poll(&mut Spaces::default(), &mut Vec::new(), 1);
    assert!(matches!(gone, Err(DeviceError::Gone { .. })));
}

#[test]
fn a_stalled_device_keeps_packets_until_a_reset() {
    let mut world = World::new(&Config { tx_asynchronous: true, ..Config::default() });
    world.send(0..2);
    world.cable.stall();
    world.send(2..4);
    assert_eq!(world.received(), 2);
    assert_eq!(world.completions(), [0, 1].map(Completion::sent));
    world.a.reset(&mut Vec::new()).unwrap();
    assert_eq!(world.completions(), [2, 3].map(Completion::returned));
    assert_eq!((world.send(4..5), world.received()), (1, 1), "the reset ends the stall");
}

#[test]
fn completions_come_in_batches_or_late() {
    let delay = Duration::from_millis(20);
    let timing = Timing { completion_batch: 4, completion_delay: delay, ..Timing::default() };
    let mut world = World::new(&Config { timing, ..Config::default() });
    assert!(world.device.info().can.tx_asynchronous, "later than the call that sends");
    let start = Instant::now();
    world.send(0..3);
    if start.elapsed() < delay {
        let none = world.completions();
        assert!(none.is_empty() || start.elapsed() >= delay, "{none:?}");
    }
    world.send(3..4);
    assert_eq!(world.completions().len(), 4, "a batch");
    let start = Instant::now();
    world.send(4..6);
    assert_eq!(world.a.arm(false).unwrap(), Armed::Sleep);
    assert!(wakes(&world.a, 5000), "not woken by late completions");
    assert!(start.elapsed() >= delay, "early");
    assert_eq!(world.completions(), [4, 5].map(Completion::sent));
    // A reset reports them at once.
    world.send(6..7);
    world.a.reset(&mut Vec::new()).unwrap();
    assert_eq!(world.completions(), [Completion::sent(6)]);
}

#[test]
fn interrupts_are_moderated() {
    let delay = Duration::from_millis(50);
    let timing = Timing { interrupt_delay: delay, ..Timing::default() };
    let mut world = World::new(&Config { timing, ..Config::default() });
    assert_eq!(world.b.arm(false).unwrap(), Armed::Sleep);
    let start = Instant::now();
    world.send(0..1);
    assert!(wakes(&world.b, 5000), "the first interrupt comes at once");
    assert_eq!(world.received(), 1);
    assert_eq!(world.b.arm(false).unwrap(), Armed::Sleep);
    world.send(1..3);
    assert!(wakes(&world.b, 5000), "no interrupt is lost");
    assert!(start.elapsed() >= delay, "the second one comes after {:?}", start.elapsed());
    assert_eq!(world.received(), 2);
}

#[test]
fn a_kick_takes_its_time_if_there_is_something_new() {
    let kick_time = Duration::from_millis(5);
    for tx_asynchronous in [false, true] {
        let timing = Timing { kick_time, ..Timing::default() };
        let mut world = World::new(&Config { timing, tx_asynchronous, ..Config::default() });
        world.place(0..2);
        world.place(2..4);
        let start = Instant::now();
        world.a.kick(&mut world.memory, Kick::Tx).unwrap();
        assert!(start.elapsed() >= kick_time);
        assert_eq!(world.received(), 4, "one kick for all");
    }
}

#[test]
fn each_queue_is_a_pair_of_its_own() {
    let (a, b) = pair(&Config { queues: 2, ..Config::default() }).unwrap();
    assert_eq!((a.info().queues, b.info().queues), (2, 2));
    let (cable, mut near) = (a.cable(), DeviceFarEnd::of_all(Box::new(a)));
    let mut far = DeviceFarEnd::of_all(Box::new(b));
    assert!(far[1].send(&[7; 60], Meta::FULL));
    assert_eq!(near[0].receive(), None);
    assert_eq!(near[1].receive().unwrap().0, [7; 60]);
    cable.set_link(false);
    far.iter_mut().for_each(|one| _ = one.send(&[7; 60], Meta::FULL));
    assert_eq!(near.iter_mut().find_map(FarEnd::receive), None, "unplugged");
    let (mut a, _b) = pair(&Config { queues: 2, ..Config::default() }).unwrap();
    let mut open = |queue| a.open_queue(queue, &mut Spaces::default()).map(|_| ());
    assert!(open(1).is_ok());
    assert!(open(1).is_err() && open(2).is_err(), "once each, and no third one");
    let one = Config { queues: 2, dma_bytes: Some(4096), ..Config::default() };
    assert!(pair(&one).is_err(), "memory is registered with one queue");
}
