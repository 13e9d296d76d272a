//! Tests of the backlog in front of a device that has room for two packets.

use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_protocol::settings::Values;

use super::*;
use crate::source::Source;

const ROOM: usize = 2;
const SLOTS: u32 = 64;
const SLOT_BYTES: usize = 64;

struct World {
    handoff: Handoff,
    bounce: BounceBuffers,
    port: DevicePort,
    far: DeviceFarEnd,
}

impl World {
    fn new(mode: HandoffMode, expedited_share: usize) -> World {
        let config = loopback::Config { ring_packets: ROOM, ..loopback::Config::default() };
        World::on(&config, mode, expedited_share)
    }

    fn on(config: &loopback::Config, mode: HandoffMode, expedited_share: usize) -> World {
        let (mut near, far) = loopback::pair(config).unwrap();
        let (port, memory) =
            DevicePort::start(&mut near, 0, SLOTS as usize, false, &Values::default()).unwrap();
        let mut bounce = BounceBuffers::new(memory);
        let nothing = Source { prefix: &[], memory: port.memory(), pieces: &[] };
        for slot in 0..SLOTS {
            assert!(bounce.build(slot, &[slot as u8; SLOT_BYTES], nothing, 0, 0, None));
            let part = bounce.part(slot, None);
            bounce.slots[slot as usize].parts.push(part);
        }
        let handoff = Handoff::new(mode, LinkDown::Drop, expedited_share);
        World { handoff, bounce, port, far: DeviceFarEnd::new(Box::new(far)) }
    }

    fn hand_off(&mut self, slot: u32, expedited: bool) {
        self.handoff.hand_off(slot, expedited, &self.bounce, &mut self.port).unwrap();
    }

    fn flush(&mut self) {
        self.handoff.flush(&self.bounce, &mut self.port).unwrap();
    }

    /// Returns the slots of the packets that came out. The far end may hold more than the ring.
    fn receive(&mut self) -> Vec<u8> {
        self.port.complete(&mut Vec::new()).unwrap();
        std::iter::from_fn(|| self.far.receive()).map(|(frame, _)| frame[0]).collect()
    }
}

#[test]
fn waiting_expedited_packets_leave_when_their_share_is_zero() {
    let mut world = World::new(HandoffMode::Queued, 1);
    (0..8).for_each(|slot| world.hand_off(slot, false));
    (8..14).for_each(|slot| world.hand_off(slot, true));
    world.flush();
    assert!(world.handoff.is_blocked());
    world.handoff.set_expedited_share(0);
    // Other packets wait all the time.
    let (mut came, mut next) = (Vec::new(), 14);
    while next < 40 {
        came.extend(world.receive());
        (0..ROOM).for_each(|more| world.hand_off(next + more as u32, false));
        next += ROOM as u32;
        world.flush();
        assert!(world.handoff.is_waiting());
    }
    let expedited: Vec<u8> = came.iter().copied().filter(|slot| (8..14).contains(slot)).collect();
    assert_eq!(expedited, [8, 9, 10, 11, 12, 13], "all of them, in order: {came:?}");
    let others = came.iter().filter(|slot| !(8..14).contains(*slot));
    assert!(others.is_sorted(), "{came:?}");
}

/// Packets that the device returns unsent precede all waiting ones, expedited packets too: those
/// that waited meanwhile, and those that come later.
#[test]
fn packets_sent_again_precede_all_others() {
    let mut world = World::new(HandoffMode::Queued, 8);
    (6..12).for_each(|slot| world.hand_off(slot, false));
    (12..18).for_each(|slot| world.hand_off(slot, true));
    // The test simulates a device that is reset twice, the second time before it took all packets.
    world.handoff.again(&[2, 3, 4, 5]);
    world.handoff.again(&[0, 1]);
    let (mut came, mut later) = (Vec::new(), 18..24);
    while world.handoff.is_waiting() {
        world.flush();
        came.extend(world.receive());
        later.next().into_iter().for_each(|slot| world.hand_off(slot, true));
    }
    assert_eq!((came.len(), &came[..6]), (24, &[0, 1, 2, 3, 4, 5][..]), "{came:?}");
    let expedited: Vec<u8> = came.iter().copied().filter(|slot| *slot >= 12).collect();
    assert!(expedited.is_sorted(), "expedited ones stay in order: {came:?}");
    let others = came.iter().filter(|slot| **slot < 12);
    assert!(others.is_sorted(), "{came:?}");
    assert!(came.iter().position(|slot| *slot == 12) < came.iter().position(|slot| *slot == 6));
    assert_eq!(world.handoff.counts.expedited, 12);
}

/// Expedited packets that lost their precedence are not overtaken by later ones that have it again.
#[test]
fn expedited_packets_stay_in_order_when_their_share_toggles() {
    let mut world = World::new(HandoffMode::Queued, 8);
    (0..40).for_each(|slot| world.hand_off(slot, false));
    let mut came = Vec::new();
    // The device takes almost as many other packets as give the expedited ones their share anew.
    while world.port.counts().taken < BATCH as u64 - 2 {
        came.extend(world.receive());
        world.flush();
    }
    (40..50).for_each(|slot| world.hand_off(slot, true));
    world.handoff.set_expedited_share(0);
    world.handoff.set_expedited_share(8);
    (50..60).for_each(|slot| world.hand_off(slot, true));
    while came.len() < 60 {
        world.flush();
        came.extend(world.receive());
    }
    let expedited: Vec<u8> = came.into_iter().filter(|slot| *slot >= 40).collect();
    assert_eq!(expedited, (40..60).collect::<Vec<u8>>());
}

#[test]
fn a_packet_that_waits_is_counted_once() {
    for mode in [HandoffMode::Direct, HandoffMode::Queued] {
        let mut world = World::new(mode, 8);
        let (mut came, mut given) = (Vec::new(), 0);
        for _ in 0..100 {
            if given < 40 {
                (0..4).for_each(|_| {
                    world.hand_off(given, given % 5 == 0);
                    given += 1;
                });
            }
            // The attempts fail, as they do in a server that has nothing else to do.
            (0..5).for_each(|_| world.flush());
            came.extend(world.receive());
        }
        let Counts { direct, queued, drained, full, backlogged, .. } = world.handoff.counts;
        let taken = world.port.counts().taken;
        assert_eq!((taken, direct + queued, drained), (40, 40, queued), "{mode:?}");
        assert!(full > backlogged, "{mode:?}: tried more often than packets waited: {full}");
        assert!((20..=40).contains(&backlogged), "{mode:?}: {backlogged} of 40 waited");
    }
}

#[test]
fn a_forgotten_backlog_blocks_no_later_packet() {
    let mut world = World::new(HandoffMode::Direct, 8);
    let mut given = 0;
    while !world.handoff.is_blocked() && given < 20 {
        world.hand_off(given, false);
        world.flush();
        given += 1;
    }
    (0..3).for_each(|more| world.hand_off(given + more, more == 0));
    // One of the waiting packets stays: the device is full as before.
    world.handoff.forget(|slot| slot != given + 1);
    assert!(world.handoff.is_blocked() && world.handoff.is_waiting());
    world.handoff.forget(|_| true);
    assert!(!world.handoff.is_blocked() && !world.handoff.is_waiting());
    assert_eq!(world.receive().len() as u32, given - 1);
    let direct = world.handoff.counts.direct;
    world.hand_off(given + 3, false);
    world.flush();
    assert_eq!(world.handoff.counts.direct, direct + 1, "the device has room");
    assert_eq!(u32::from(world.receive()[0]), given + 3);
}

/// While the link is down, the backlog fills. Then packets are dropped, or find no room.
#[test]
fn the_backlog_fills_while_the_link_is_down() {
    for mode in [HandoffMode::Direct, HandoffMode::Queued] {
        for policy in [LinkDown::Drop, LinkDown::Wait] {
            let mut world = World::new(mode, 8);
            world.handoff.set_link_down(policy);
            world.handoff.set_link(false);
            let mut given = 0;
            while world.handoff.has_room(1) && given < 50 {
                world.hand_off(given, false);
                world.flush();
                given += 1;
            }
            assert_eq!(world.port.counts().taken, 0, "the device gets none");
            let dropped: Vec<u32> = std::iter::from_fn(|| world.handoff.take_dropped()).collect();
            let drops = policy == LinkDown::Drop;
            let expected = if drops { (BATCH as u32..50).rev().collect() } else { Vec::new() };
            assert_eq!((given, dropped), (if drops { 50 } else { BATCH as u32 }, expected));
            assert_eq!(world.handoff.waiting(), BATCH);
            assert_eq!(world.handoff.counts.backlogged, BATCH as u64, "each counts once");
            world.handoff.set_link(true);
            let mut came = Vec::new();
            while world.handoff.is_waiting() {
                world.flush();
                came.extend(world.receive());
            }
            assert_eq!(came, (0..BATCH as u8).collect::<Vec<u8>>(), "in order");
        }
    }
}

/// With direct hand-off, the device has the first group of packets in its ring before the engine
/// has checked all, and one kick is for all of them. A queue kicks after each batch.
#[test]
fn direct_packets_are_in_the_ring_before_the_one_kick() {
    let packets = BATCH as u32 + 10;
    for (mode, announced) in [(HandoffMode::Direct, 0), (HandoffMode::Queued, BATCH)] {
        let config = loopback::Config { tx_asynchronous: true, ..Default::default() };
        let mut world = World::on(&config, mode, 8);
        for slot in 0..packets {
            let before = world.port.counts().taken;
            world.hand_off(slot, false);
            let taken = (world.port.counts().taken - before) as usize;
            assert_eq!(taken, if slot + 1 == BATCH as u32 { BATCH } else { 0 }, "{mode:?} {slot}");
        }
        assert_eq!(world.receive().len(), announced, "{mode:?}: the device sends what it knows of");
        world.flush();
        assert_eq!(world.port.counts().taken, u64::from(packets));
        if mode == HandoffMode::Direct {
            assert!(world.receive().is_empty(), "no kick yet");
        }
        world.port.kick(Kick::Tx).unwrap();
        let all = announced + world.receive().len();
        assert_eq!(all, packets as usize, "{mode:?}");
        let Counts { direct, queued, backlogged, .. } = world.handoff.counts;
        let mine = if mode == HandoffMode::Direct { direct } else { queued };
        assert_eq!((mine, backlogged), (u64::from(packets), 0), "{mode:?}");
    }
}
