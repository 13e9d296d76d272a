//! Tests of the receive path of own queues, and of the queues themselves. The test plays the
//! device.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use towpath_device::{
    Access, Armed, Completion, Counters, DeviceQueue, Dma, DmaError, Kick, Meta, Outcome, Part,
    Received, Registration, SpaceId, Spaces, TagProtocol, VlanTag,
};
use towpath_device_testing::loopback;
use towpath_memory::{Mapping, Region};
use towpath_protocol::counters::Endpoint as EndpointCount;
use towpath_protocol::layout::STATE_WORDS;

use super::*;
use crate::demux::{Destination, FlowCache};
use crate::notifier::Notifier;
use crate::own::{Checked, Offsets, Own, OwnQueue};
use crate::relays::Relays;
use crate::source::SoftwareOffloads;
use crate::testing::{self, Application, PORT, inward};

/// Where the kernel puts data in a buffer.
const HEADROOM: u32 = 256;

/// What the test sees of the device.
#[derive(Default)]
struct Seen {
    filled: VecDeque<u32>,
    arrived: Vec<Received>,
    /// Packets that the ring has room for, and those in it.
    room: usize,
    ring: Vec<(u64, Vec<Part>)>,
    completed: Vec<Completion>,
    /// `true` for a device that no reset repairs.
    breaks: bool,
    /// `true` for a device that sends nothing.
    is_stuck: bool,
}

struct Fake(Arc<Mutex<Seen>>);

impl DeviceQueue for Fake {
    fn rx_fill(&mut self, _: &Spaces, _: SpaceId, buffers: &[u32]) -> usize {
        self.0.lock().unwrap().filled.extend(buffers);
        buffers.len()
    }

    fn rx_poll(
        &mut self,
        _: &mut Spaces,
        out: &mut Vec<Received>,
        _: usize,
    ) -> Result<usize, DeviceError> {
        let arrived = std::mem::take(&mut self.0.lock().unwrap().arrived);
        let packets = Received::packets(&arrived).count();
        out.extend(arrived);
        Ok(packets)
    }

    fn tx_submit(
        &mut self,
        _: &mut Spaces,
        packets: &[towpath_device::Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let mut seen = self.0.lock().unwrap();
        let taken = packets.len().min(seen.room);
        seen.room -= taken;
        let one = |packet: &towpath_device::Packet<'_>| (packet.token, packet.parts.to_vec());
        seen.ring.extend(packets[..taken].iter().map(one));
        Ok(taken)
    }

    /// Sends everything, unless it is stuck.
    fn kick(&mut self, _: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        let mut seen = self.0.lock().unwrap();
        if ring == Kick::Tx && !seen.is_stuck {
            let sent: Vec<u64> = seen.ring.drain(..).map(|(token, _)| token).collect();
            seen.completed.extend(sent.into_iter().map(Completion::sent));
        }
        Ok(())
    }

    fn tx_complete(&mut self, out: &mut Vec<Completion>, _: usize) -> Result<usize, DeviceError> {
        let completed = std::mem::take(&mut self.0.lock().unwrap().completed);
        out.extend(&completed);
        Ok(completed.len())
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _: bool) -> Result<Armed, DeviceError> {
        let is_idle = self.0.lock().unwrap().arrived.is_empty();
        Ok(if is_idle { Armed::Sleep } else { Armed::Work })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        let mut seen = self.0.lock().unwrap();
        buffers.extend(seen.filled.drain(..));
        let kept: Vec<u64> = seen.ring.drain(..).map(|(token, _)| token).collect();
        seen.completed.extend(kept.into_iter().map(Completion::returned));
        let name = "fake".to_owned();
        let cause = std::io::Error::other("it breaks");
        let broken = DeviceError::Failed { name, what: "a reset", cause };
        if seen.breaks { Err(broken) } else { Ok(()) }
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct AtZero;

impl Dma for AtZero {
    fn register(&self, _: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        Ok(0)
    }

    fn unregister(&self, _: u64) {}
}

struct World {
    port: DevicePort,
    flows: FlowTable,
    sessions: SessionTable,
    notifier: Notifier,
    counters: DeviceCounters,
    rx: OwnRx,
    application: Application,
    seen: Arc<Mutex<Seen>>,
    _far: loopback::LoopbackDevice,
}

impl World {
    fn new() -> World {
        let (mut near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let values = Values::default();
        let (mut port, _) = DevicePort::start(&mut near, 0, 4, false, &values).unwrap();
        let (mut session, mut application) = testing::session(1);
        application.receive.allow_any_order();
        session.put_in(0, Box::new(testing::endpoint(PORT)));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let memory = session.receive.memory().mapping().clone();
        let dma: Arc<dyn Dma> = Arc::new(AtZero);
        session.extras.own = Own::Queue(Box::new(OwnQueue {
            hardware: 1,
            queue: Box::new(Fake(seen.clone())),
            registration: Registration::new(&dma, &memory, Access::ReadWrite).unwrap(),
            memory,
            offsets: Offsets { transmit: 0x10_0000, bounce: 0x20_0000 },
            parts: 8,
        }));
        let mut sessions = SessionTable::default();
        let key = sessions.reserve();
        port.add_space(key, &mut session);
        assert!(session.transmit.sends_from.in_place && session.extras.own.place().is_some());
        sessions.insert(key, session);
        let mut flows = FlowTable::new(1, FlowCache::of(0));
        let destination = Destination { session: key, endpoint: 0 };
        assert!(flows.insert(&testing::rule(PORT), false, destination));
        let mut notifier = Notifier::new(&values, Relays::none().unwrap(), 8);
        notifier.reserve(sessions.keys());
        let state = Region::private(STATE_WORDS * 8).unwrap();
        let counters = DeviceCounters::new(state, 1).0;
        let rx = OwnRx::new(4, &values);
        World { port, flows, sessions, notifier, counters, rx, application, seen, _far: far }
    }

    fn session(&mut self) -> &mut Session {
        self.sessions.get_mut(0).unwrap()
    }

    /// Puts a packet into the buffer that the device got first.
    fn arrive(&mut self, frame: &[u8], meta: Meta) {
        self.arrive_without(None, frame, meta);
    }

    /// As [`World::arrive`], with a VLAN tag that the device removed.
    fn arrive_without(&mut self, tag: Option<VlanTag>, frame: &[u8], meta: Meta) {
        let buffer = self.seen.lock().unwrap().filled.pop_front().unwrap();
        let offset = buffer + HEADROOM;
        assert!(self.session().receive.buffers(0).memory.copy_in(offset as usize, frame));
        let len = frame.len() as u32;
        let one = Received { tag, ..Received::whole(SpaceId(0), buffer, offset, len, meta) };
        self.seen.lock().unwrap().arrived.push(one);
    }

    /// Polls once, and publishes.
    fn poll(&mut self) -> usize {
        let mut segment = SoftwareOffloads::new();
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let mut delivery = Delivery::new(sessions, notifier, &mut segment, 1024, 1);
        let (port, flows) = (&mut self.port, &mut self.flows);
        let polled = self.rx.poll(port, flows, &mut delivery, &mut self.counters).unwrap();
        self.notifier.publish(&mut self.sessions, &mut self.counters);
        polled
    }

    fn lent(&mut self) -> usize {
        self.session().receive.queue(0).lent() as usize
    }

    fn count(&mut self, count: EndpointCount) -> u64 {
        self.session().receive.endpoints.counted(0, count)
    }

    /// Checks that each lent buffer is with the device.
    fn check(&mut self) {
        let with_device = self.seen.lock().unwrap().filled.len();
        assert_eq!(self.lent(), with_device);
    }
}

#[test]
fn packets_stay_where_the_device_put_them() {
    let mut world = World::new();
    assert_eq!(world.poll(), 0);
    assert_eq!(world.lent(), 12, "of 16 buffers, a quarter is kept for copies");
    let frames: Vec<_> = (1..40).map(|byte| inward(PORT).udp(&[byte; 300])).collect();
    for frame in &frames {
        world.arrive(frame, Meta::FULL);
        assert_eq!(world.poll(), 1);
        assert_eq!(world.application.packets(), [(0, frame.clone())]);
        world.check();
    }
    assert_eq!(world.count(EndpointCount::RxPackets), frames.len() as u64);
    assert_eq!(world.count(EndpointCount::RxCopies), 0);
    assert_eq!(world.counters.get(Count::RxPackets), frames.len() as u64);
}

/// A copy removes a priority tag that the device left in the packet.
#[test]
fn priority_tagged_packets_arrive_untagged() {
    let mut world = World::new();
    world.poll();
    let expected = inward(PORT).udp(&[7; 300]);
    world.arrive(&inward(PORT).vlan(0xe000).udp(&[7; 300]), Meta::FULL);
    world.poll();
    assert_eq!(world.application.packets(), [(0, expected.clone())]);
    assert_eq!(world.count(EndpointCount::RxCopies), 1);
    let tag = VlanTag { protocol: TagProtocol::Customer, control: 0xe000 };
    world.arrive_without(Some(tag), &expected, Meta::FULL);
    world.poll();
    assert_eq!(world.application.packets(), [(0, expected.clone())]);
    assert_eq!(world.count(EndpointCount::RxCopies), 1);
    // A promiscuous endpoint also receives the packet without the tag.
    world.flows.add_promiscuous(Destination { session: 0, endpoint: 0 });
    world.arrive(&inward(PORT).vlan(0xe000).udp(&[7; 300]), Meta::FULL);
    world.poll();
    assert_eq!(world.application.packets(), [(0, expected.clone()), (0, expected)]);
}

#[test]
fn a_partial_checksum_is_completed_in_place() {
    let mut world = World::new();
    world.poll();
    let (partial, meta) = inward(PORT).udp_partial(b"hello");
    world.arrive(&partial, meta);
    world.poll();
    assert_eq!(world.application.packets(), [(0, inward(PORT).udp(b"hello"))]);
    // An endpoint that takes it gets it as it is.
    world.session().receive.endpoints.get_mut(0).unwrap().offload = true;
    world.arrive(&partial, meta);
    world.poll();
    assert_eq!(world.application.packets(), [(0, partial)]);
    assert_eq!(world.count(EndpointCount::RxCopies), 0);
    assert_eq!(world.counters.get(Count::RxPartial), 2);
}

/// Packets that come another way are copied into buffers that the device does not have.
#[test]
fn copies_and_packets_in_place_arrive_in_order() {
    let mut world = World::new();
    world.poll();
    let frame = |byte| inward(PORT).udp(&[byte; 64]);
    for round in 0..20 {
        world.arrive(&frame(2 * round), Meta::FULL);
        world.poll();
        let copied = frame(2 * round + 1);
        let mut segment = SoftwareOffloads::new();
        let (sessions, notifier) = (&mut world.sessions, &mut world.notifier);
        let mut delivery = Delivery::new(sessions, notifier, &mut segment, 1024, 1);
        let source =
            crate::source::Source { prefix: &copied, memory: world.port.memory(), pieces: &[] };
        let packet = Packet { source, beginning: &copied, meta: Meta::FULL };
        delivery.deliver(Destination { session: 0, endpoint: 0 }, &packet, 0);
        world.notifier.publish(&mut world.sessions, &mut world.counters);
        assert_eq!(world.application.packets(), [(0, frame(2 * round)), (0, copied)]);
    }
    assert_eq!(world.count(EndpointCount::RxCopies), 20);
    world.check();
}

/// What goes nowhere leaves its buffer to the session.
#[test]
fn packets_of_others_and_malformed_ones_take_no_buffer() {
    let mut world = World::new();
    world.poll();
    let before = world.lent();
    let other = Destination { session: 7, endpoint: 0 };
    assert!(world.flows.insert(&testing::rule(PORT + 1), false, other));
    for frame in [inward(PORT + 1).udp(b"another's"), inward(PORT + 2).udp(b"no rule")] {
        world.arrive(&frame, Meta::FULL);
    }
    world.arrive(&[0; 9], Meta::FULL);
    assert_eq!(world.poll(), 3);
    assert!(world.application.packets().is_empty());
    assert_eq!(world.counters.get(Count::RxNoMatch), 2);
    assert_eq!(world.counters.get(Count::RxMalformed), 1);
    // A promiscuous endpoint receives them, too.
    world.flows.add_promiscuous(Destination { session: 0, endpoint: 0 });
    world.arrive(&inward(PORT + 2).udp(b"no rule"), Meta::FULL);
    assert_eq!((world.poll(), world.counters.get(Count::RxNoMatch)), (1, 2));
    assert_eq!(world.application.packets().len(), 1);
    world.poll();
    assert_eq!(world.lent(), before);
    world.check();
}

/// A device that cannot choose packets by their flows also puts packets to groups there.
#[test]
fn packets_to_groups_are_copied_to_their_members() {
    let mut world = World::new();
    world.poll();
    let before = world.lent();
    let to_group = |port| {
        let mut frame = inward(port).udp(b"all");
        frame[..6].fill(0xff);
        frame
    };
    world.arrive(&to_group(PORT + 3), Meta::FULL);
    assert_eq!(world.poll(), 1);
    assert!(world.application.packets().is_empty(), "it has no member");
    assert_eq!(world.counters.get(Count::RxNoMatch), 1);
    let member = Destination { session: 0, endpoint: 0 };
    assert!(world.flows.insert(&testing::rule(PORT + 3), true, member));
    world.arrive(&to_group(PORT + 3), Meta::FULL);
    assert_eq!(world.poll(), 1);
    assert_eq!(world.application.packets(), [(0, to_group(PORT + 3))]);
    assert_eq!(world.count(EndpointCount::RxCopies), 1);
    assert_eq!(world.counters.get(Count::RxGroup), 2);
    world.poll();
    assert_eq!(world.lent(), before);
    world.check();
}

/// The engine looks for buffers by itself when the device has few: nothing else would tell it.
#[test]
fn the_engine_looks_for_buffers_of_a_slow_application() {
    let mut world = World::new();
    world.poll();
    let frame = inward(PORT).udp(b"slow");
    while !world.seen.lock().unwrap().filled.is_empty() {
        world.arrive(&frame, Meta::FULL);
        world.poll();
    }
    assert_eq!(world.lent(), 0, "the application has all but those for copies");
    let soon = world.rx.next_due().unwrap();
    assert!(soon <= clock_ns() + LONGEST_PAUSE_NS);
    assert!(!world.application.packets().is_empty());
    world.poll();
    assert!(world.lent() > 0);
    assert_eq!(world.rx.next_due(), None);
}

#[test]
fn a_session_that_ends_lends_nothing() {
    let mut world = World::new();
    let _ = world.session().close(0);
    world.poll();
    assert_eq!((world.lent(), world.rx.next_due()), (0, None));
}

/// Has the watchdogs check until one acts.
fn until_stalled(world: &mut World) -> Checked {
    loop {
        world.port.slept();
        let checked = world.port.check_own(|_| true).unwrap();
        if !checked.returned.is_empty() {
            return checked;
        }
    }
}

fn with_short_watchdog() -> World {
    let mut world = World::new();
    let mut values = Values::default();
    values.set(Setting::WatchdogMs, 1).unwrap();
    world.port.set_watchdog(&values);
    world.poll();
    world
}

/// A stall of a session's queue resets that queue alone, and gives the buffers back.
#[test]
fn a_stalled_queue_is_reset_alone() {
    let mut world = with_short_watchdog();
    let own = world.session().extras.own.place().unwrap();
    let (theirs, main) = ([own.bounce_part(0, 60)], world.port.bounce_space());
    let mains = [Part { space: main, offset: 0, len: 60 }];
    let packet =
        |parts, token| towpath_device::Packet { parts, meta: Meta::FULL, tag: None, token };
    world.seen.lock().unwrap().room = 4;
    let batch = [packet(&theirs[..], 1), packet(&mains[..], 2)];
    assert_eq!(world.port.submit(&batch).unwrap(), 2);
    let checked = until_stalled(&mut world);
    assert!(checked.broken.is_empty());
    take_back(checked.returned, &mut world.sessions);
    world.check();
    // The returned packets wait for the engine.
    assert_eq!(world.port.own().0.arm().unwrap(), Armed::Work);
    let mut completions = Vec::new();
    world.port.complete(&mut completions).unwrap();
    completions.sort_unstable_by_key(|one| one.token);
    assert_eq!(completions, [Completion::returned(1), Completion::sent(2)]);
    assert_eq!((world.port.in_flight(), world.port.driver_counters().resets), (0, 0));
    world.poll();
    assert_eq!(world.lent(), 12);
    world.check();
    // The queue works: a later stall is a new one.
    assert_eq!(world.port.submit(&[packet(&theirs[..], 1)]).unwrap(), 1);
    world.port.kick(Kick::Tx).unwrap();
    world.port.complete(&mut completions).unwrap();
    world.port.slept();
    assert!(world.port.check_own(|_| true).unwrap().returned.is_empty());
    assert_eq!(world.port.submit(&[packet(&theirs[..], 3)]).unwrap(), 1);
    assert!(until_stalled(&mut world).broken.is_empty());
}

/// A queue that a reset does not repair takes nothing any more, and the others go on.
#[test]
fn a_broken_queue_is_its_sessions_loss() {
    for breaks in [false, true] {
        let mut world = with_short_watchdog();
        let own = world.session().extras.own.place().unwrap();
        let theirs = [own.bounce_part(0, 60)];
        let packet =
            |token| towpath_device::Packet { parts: &theirs, meta: Meta::FULL, tag: None, token };
        world.seen.lock().unwrap().room = 4;
        world.seen.lock().unwrap().breaks = breaks;
        let mut completions = Vec::new();
        // The device fails at the reset, or keeps what it gets after it, too.
        for round in 1.. {
            assert_eq!(world.port.submit(&[packet(round)]).unwrap(), 1);
            let checked = until_stalled(&mut world);
            take_back(checked.returned, &mut world.sessions);
            completions.clear();
            world.port.complete(&mut completions).unwrap();
            assert_eq!(completions, [Completion::returned(round)]);
            assert_eq!(world.lent(), 0);
            if !checked.broken.is_empty() {
                assert_eq!((checked.broken, round), (vec![0], if breaks { 1 } else { 2 }));
                break;
            }
        }
        completions.clear();
        assert_eq!(world.port.submit(&[packet(9)]).unwrap(), 1);
        world.port.kick(Kick::Tx).unwrap();
        assert_eq!(world.port.complete(&mut completions).unwrap(), 1);
        assert_eq!((&completions[..], world.port.in_flight()), (&[Completion::dropped(9)][..], 0));
        assert_eq!(world.poll(), 0);
        assert_eq!((world.lent(), world.rx.next_due()), (0, None), "it takes no buffers");
        world.port.slept();
        assert!(world.port.check_own(|_| true).unwrap().returned.is_empty());
    }
}

/// A queue that sends nothing holds an eighth of the bounce buffers at most.
#[test]
fn a_stuck_queue_leaves_bounce_buffers_to_others() {
    let mut world = World::new();
    let own = world.session().extras.own.place().unwrap();
    let theirs = [own.bounce_part(0, 60)];
    let packet =
        |token| towpath_device::Packet { parts: &theirs, meta: Meta::FULL, tag: None, token };
    {
        let mut seen = world.seen.lock().unwrap();
        (seen.room, seen.is_stuck) = (1000, true);
    }
    let packets: Vec<_> = (0..200).map(packet).collect();
    assert_eq!(world.port.submit(&packets).unwrap(), 200);
    let mut completions = Vec::new();
    world.port.complete(&mut completions).unwrap();
    let dropped: Vec<_> = (128..200).map(Completion::dropped).collect();
    assert_eq!((completions, world.port.in_flight()), (dropped, 128));
    // The link was down: the packets had no chance, and none of a session that stays is reset.
    let mut values = Values::default();
    values.set(Setting::WatchdogMs, 1).unwrap();
    world.port.set_watchdog(&values);
    world.port.set_link(false);
    std::thread::sleep(std::time::Duration::from_millis(5));
    world.port.slept();
    assert!(world.port.check_own(|_| false).unwrap().returned.is_empty());
    assert_eq!(world.port.next_due(true), None);
}

/// Copies of a packet count against the limit of a poll iteration, and no packet is lost by it.
#[test]
fn what_goes_beyond_an_iteration_waits_for_the_next() {
    let mut world = World::new();
    world.poll();
    let destination = Destination { session: 0, endpoint: 0 };
    world.flows.add_capture(destination);
    world.rx.limit = 300;
    for byte in 0..3 {
        world.arrive(&inward(PORT).udp(&[byte; 300]), Meta::FULL);
    }
    assert!(!world.rx.has_left());
    for round in 0..3 {
        assert_eq!(world.poll(), 1);
        assert_eq!(world.rx.has_left(), round < 2);
        world.application.packets();
    }
    assert_eq!(world.counters.get(Count::RxPackets), 3);
}

/// Each packet goes to the queue of its first part. An own queue without room delays no other one.
#[test]
fn packets_are_sent_through_the_queues_of_their_sessions() {
    let mut world = World::new();
    let own = world.session().extras.own.place().unwrap();
    assert_eq!(own.bounce_part(512, 60), Part { space: own.space, offset: 0x20_0200, len: 60 });
    let space = world.port.bounce_space();
    let main = [Part { space, offset: 0, len: 60 }];
    let theirs = [own.bounce_part(0, 60)];
    let packet =
        |parts, token| towpath_device::Packet { parts, meta: Meta::FULL, tag: None, token };
    let batch = [
        packet(&main[..], 1),
        packet(&theirs[..], 2),
        packet(&theirs[..], 3),
        packet(&main[..], 4),
        packet(&theirs[..], 5),
        packet(&theirs[..], 6),
        packet(&theirs[..], 7),
    ];
    world.seen.lock().unwrap().room = 4;
    assert_eq!(world.port.submit(&batch).unwrap(), 7);
    assert_eq!(world.port.in_flight(), 7);
    let seen = |world: &World| {
        let ring = &world.seen.lock().unwrap().ring;
        ring.iter().map(|(token, _)| *token).collect::<Vec<_>>()
    };
    assert!(seen(&world).is_empty(), "a queue without room was kicked");
    world.port.kick(Kick::Tx).unwrap();
    let mut completions = Vec::new();
    while world.port.in_flight() > 0 {
        world.port.complete(&mut completions).unwrap();
    }
    let of = |outcome: Outcome| {
        let all = completions.iter().filter(move |one| one.outcome == outcome);
        let mut tokens: Vec<u64> = all.map(|one| one.token).collect();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!((of(Outcome::Sent), of(Outcome::Dropped)), (vec![1, 2, 3, 4, 5, 6], vec![7]));
    assert_eq!(world.port.driver_counters().tx_dropped, 1);
    assert!(world.port.remove_own(own.number).is_some());
    assert!(world.port.own().0.is_empty());
}
