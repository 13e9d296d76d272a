//! The order of sending, seen from both ends: applications, and the far end of a device that takes
//! as much as a test lets it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use fastrand::Rng;
use towpath_client::{EXPEDITED_BYTES, Options, QueuePair, Rule, Session, Setting};
use towpath_device::{Completion, DeviceError, DeviceQueue, Packet, Spaces};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_device_testing::wrapped::Wrapped;
use towpath_packet::build::{Flow, Tcp};
use towpath_protocol::store::MemoryStore;
use towpath_queue::descriptor::MAX_CHAIN;
use towpath_server::{Config, Server, Subnet, Subnets, Values, WaitStrategy as EngineStrategy};
use towpath_tests::random::seed;
use towpath_tests::{PATIENCE, eventually, frames};

use crate::senders::{RING, Sender, World, world};

/// Rounds after which packets must have taken both ways to the device.
const MOST_ROUNDS: u64 = 2000;
/// Packets that the server may have taken and not handed to the device: docs/scheduling.md.
const BACKLOG: usize = 32;
/// Expedited packets that may wait for the device.
const EXPEDITED_SLOTS: usize = 32;
/// The server's bounce buffers for packets in flight, and how many of them are for packets being
/// checked.
const STAGE: usize = 1024;
const CHECKED: usize = 32;

#[test]
fn weights_share_a_device_in_bytes() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = world(mode);
        let mut senders = [world.sender("light"), world.sender("heavy")];
        senders[1].set(Setting::Weight, 300);
        let lens = [64, 1500];
        let mut bytes: BTreeMap<[u8; 6], u64> = BTreeMap::new();
        let mut all = 0;
        // Packets taken before both senders had some do not count.
        let mut counts = false;
        eventually("three megabytes", || {
            for (sender, len) in senders.iter_mut().zip(lens) {
                sender.fill(len);
            }
            for _ in 0..200 {
                let Some((mac, number, len)) = world.receive() else {
                    std::thread::yield_now();
                    continue;
                };
                counts |= mac == senders[1].mac && number > 200;
                if counts {
                    *bytes.entry(mac).or_default() += len as u64;
                    all += len;
                }
            }
            all >= 3_000_000
        });
        let share = bytes[&senders[0].mac] as f64 / all as f64;
        assert!((share * 4.0 - 1.0).abs() < 0.03, "{mode:?}: {share} of {all}");
    }
}

#[test]
fn a_flood_delays_a_higher_priority_by_a_batch_at_most() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = world(mode);
        let (mut flood, mut urgent) = (world.sender("flood"), world.sender("urgent"));
        urgent.set(Setting::Priority, 7);
        let (mut near, mut to) = (world.sender("near"), world.sender("to"));
        for _ in 0..20 {
            flood.fill(1500);
            eventually("the device is full", || {
                world.counter("tx_full") > 0
                    && flood.session.sender().unsent(QueuePair::FIRST).unwrap() > 0
            });
            assert!(urgent.send(60));
            urgent.session.sender().flush().unwrap();
            // A packet for this host is delivered meanwhile, which shows that the server has
            // polled.
            let frame = near.frame(to.mac, 60);
            near.session.sender().send_bytes(near.endpoint, &frame).unwrap();
            near.session.sender().flush().unwrap();
            assert!(to.session.wait(Some(PATIENCE)).unwrap());
            assert_eq!(
                to.session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
                frame
            );
            let mut before = 0;
            eventually("it comes", || {
                flood.fill(1500);
                match world.receive() {
                    Some((mac, ..)) if mac == urgent.mac => return true,
                    Some(_) => before += 1,
                    None => {}
                }
                false
            });
            // The far end holds as many packets again as its ring.
            assert!(before <= 2 * RING + BACKLOG + 1, "{mode:?}: {before} packets before it");
        }
    }
}

#[test]
fn local_packets_do_not_wait_for_a_full_device() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let world = world(mode);
        let mut floods = [world.sender("flood"), world.sender("another")];
        let (mut near, mut to) = (world.sender("near"), world.sender("to"));
        for flood in &mut floods {
            flood.fill(1500);
        }
        eventually("the device is full", || world.counter("tx_full") > 0);
        for number in 0..300 {
            let frame = near.frame(to.mac, 700);
            near.session.sender().send_bytes(near.endpoint, &frame).unwrap();
            near.session.sender().flush().unwrap();
            assert!(to.session.wait(Some(PATIENCE)).unwrap(), "{mode:?}: number {number}");
            assert_eq!(
                to.session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
                frame
            );
        }
    }
}

#[test]
fn local_expedited_packets_do_not_wait_for_a_full_device() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = world(mode);
        let mut floods = [world.sender("flood"), world.sender("another")];
        let (mut near, mut to) = (world.sender("near"), world.sender("to"));
        // More packets than the device and the expedited slots hold.
        for flood in &mut floods {
            (0..RING + EXPEDITED_SLOTS).for_each(|_| assert!(flood.small(100)));
            flood.session.sender().flush().unwrap();
        }
        eventually("the device and the slots are full", || {
            let taken: u64 = floods.iter().map(|flood| flood.counter("tx_packets")).sum();
            taken == (RING + EXPEDITED_SLOTS) as u64
        });
        for number in 0..300 {
            let frame = near.frame(to.mac, 100);
            near.session.sender().send_expedited(near.endpoint, &frame).unwrap();
            near.session.sender().flush().unwrap();
            assert!(to.session.wait(Some(PATIENCE)).unwrap(), "{mode:?}: number {number}");
            assert_eq!(
                to.session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
                frame
            );
        }
        let mut next = BTreeMap::new();
        eventually("all of the floods come in order, once there is room", || {
            while let Some((mac, number, _)) = world.receive() {
                let next: &mut u64 = next.entry(mac).or_default();
                assert_eq!(number, *next, "{mode:?}");
                *next += 1;
            }
            floods.iter().all(|flood| next.get(&flood.mac) == Some(&flood.next))
        });
    }
}

/// A queue with room for every packet, which completes none of them.
struct Keeps(Box<dyn DeviceQueue>);

impl DeviceQueue for Keeps {
    towpath_device_testing::forward!(0: rx_fill, rx_poll, kick, sleep_fd, arm, reset, counters);

    fn tx_submit(&mut self, _: &mut Spaces, packets: &[Packet<'_>]) -> Result<usize, DeviceError> {
        Ok(packets.len())
    }

    fn tx_complete(&mut self, _: &mut Vec<Completion>, _: usize) -> Result<usize, DeviceError> {
        Ok(0)
    }
}

/// A device that keeps every packet gets a limited number, so that the server still has buffers to
/// check packets for this host, however small the packets are. A client that waits for the device
/// lets the server sleep.
#[test]
fn a_device_that_keeps_all_packets_does_not_block_local_ones() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let (inner, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let mut settings: Values = mode.into();
        settings.set(Setting::Watchdog, 0).unwrap();
        let config = Config { settings, ..Config::default() };
        let keeps = |queue| -> Box<dyn DeviceQueue> { Box::new(Keeps(queue)) };
        let device = Box::new(Wrapped::around(Box::new(inner), keeps));
        let store = Box::<MemoryStore>::default();
        let server = Server::start(&config, device, store).unwrap();
        let world = World { server, far: DeviceFarEnd::new(Box::new(far)) };
        // Several applications, as their buffers are not completed either.
        let mut floods = ["a", "b", "c", "d", "e"].map(|name| world.sender(name));
        let (mut near, mut to) = (world.sender("near"), world.sender("to"));
        let sent = |floods: &[Sender]| -> usize {
            floods.iter().map(|flood| flood.counter("tx_packets") as usize).sum()
        };
        let most = STAGE - CHECKED - EXPEDITED_SLOTS;
        for flood in &mut floods {
            (0..most / 5).for_each(|_| assert!(flood.send(60)));
            flood.session.sender().flush().unwrap();
        }
        eventually("as much is sent as ordinary packets may take", || sent(&floods) == most);
        for flood in &mut floods {
            (0..EXPEDITED_SLOTS / 2).for_each(|_| assert!(flood.small(60)));
            flood.session.sender().flush().unwrap();
        }
        let taken = most + EXPEDITED_SLOTS;
        eventually("expedited ones fill their slots", || sent(&floods) == taken);
        let sleeps = world.counter("sleeps");
        // One batch at a time, as each packet of it needs a bounce buffer.
        for round in 0..5 {
            let frame = near.frame(to.mac, 700);
            for _ in 0..CHECKED {
                near.session.sender().send_bytes(near.endpoint, &frame).unwrap();
            }
            near.session.sender().flush().unwrap();
            for number in 0..CHECKED {
                let came = to.session.wait(Some(PATIENCE)).unwrap();
                assert!(came, "{mode:?}, round {round}: number {number}");
                assert_eq!(
                    to.session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
                    frame
                );
            }
        }
        assert_eq!(sent(&floods), taken, "and no more");
        // The engine received notifications for these, and sleeps again although expedited ones
        // wait.
        if mode == EngineStrategy::Block {
            eventually("the server sleeps", || world.counter("sleeps") > sleeps);
        }
    }
}

/// In its endpoint's own queue pair, an expedited message overtakes others as soon as it is at the
/// head, even its endpoint's own packets that wait for the device. The packets behind it keep their
/// order.
#[test]
fn expedited_packets_at_the_queue_head_overtake_waiting_ones() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = world(mode);
        let mut sender = world.sender_with("sender", None);
        // The packets in the device, and some that wait for it.
        (0..RING + 20).for_each(|_| assert!(sender.send(1500)));
        (0..5).for_each(|_| assert!(sender.small(100)));
        (0..200).for_each(|_| assert!(sender.send(1000)));
        sender.session.sender().flush().unwrap();
        let taken = (RING + BACKLOG + 5) as u64;
        eventually("they are taken", || sender.counter("tx_packets") >= taken);
        let mut came = Vec::new();
        eventually("all come", || {
            came.extend(world.receive());
            came.len() == sender.next as usize
        });
        let at = |len| came.iter().position(|one| one.2 == len).unwrap();
        let (small, behind) = (at(100), at(1000));
        assert!(small <= 2 * RING + 1 && behind > small, "{mode:?}: {small} came before it");
        for small in [true, false] {
            let numbers = came.iter().filter(|one| (one.2 == 100) == small).map(|one| one.1);
            assert!(numbers.is_sorted(), "{mode:?}: {came:?}");
        }
        eventually("they are counted", || world.counter("tx_expedited") == 5);
        // No other packet comes within a message.
        for _ in 0..3 {
            assert!(sender.send_more(1000));
        }
        assert!(sender.small(100) && sender.small(100) && sender.send(1000));
        sender.session.sender().flush().unwrap();
        let mut numbers = Vec::new();
        eventually("all come", || {
            numbers.extend(world.receive().map(|one| one.1));
            numbers.len() == 6
        });
        assert!(numbers[..4].is_sorted(), "{numbers:?}");
        eventually("it is counted", || world.counter("tx_expedited") == 6);
    }
}

/// A client that sends expedited messages between others on one queue pair keeps its priority.
#[test]
fn packets_behind_an_expedited_one_keep_their_priority() {
    let mut world = world(EngineStrategy::TimerDriven);
    // The clock is so slow that one poll nearly always finds all packets that are sent together.
    world.set(Setting::TickHz, 50);
    let (mut flood, mut urgent) = (world.sender("flood"), world.sender_with("urgent", None));
    let mut to = world.sender("to");
    flood.set(Setting::Priority, 5);
    urgent.set(Setting::Priority, 7);
    let mut first = 0;
    for _ in 0..20 {
        // Less than the urgent limit alone, and less than a poll iteration.
        let frame = flood.frame(to.mac, 60);
        (0..60).for_each(|_| flood.session.sender().send_bytes(flood.endpoint, &frame).unwrap());
        flood.session.sender().flush().unwrap();
        assert!(urgent.small(60));
        let frame = urgent.frame(to.mac, 60);
        urgent.session.sender().send_bytes(urgent.endpoint, &frame).unwrap();
        urgent.session.sender().flush().unwrap();
        let mut came = Vec::new();
        eventually("all come", || {
            while world.receive().is_some() {}
            let _ = to.session.wait(Some(Duration::ZERO)).unwrap();
            while let Some(frame) = to.session.receiver().receive_one(QueuePair::FIRST).unwrap() {
                came.push(frames::source(&frame).unwrap());
            }
            came.len() == 61
        });
        first += u32::from(came[0] == urgent.mac);
    }
    assert!(first >= 10, "{first} of 20 times before packets of lower priority");
}

#[test]
fn a_message_is_kept_together_and_gets_no_more_than_its_share() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = world(mode);
        let (mut whole, mut other) = (world.sender("whole"), world.sender("other"));
        let (mut order, mut bytes) = (Vec::new(), [0usize; 2]);
        // Every packet belongs to the same message as the next: only the length limit ends a
        // message.
        whole.set(Setting::MaxMessageBytes, 30_000);
        eventually("two megabytes", || {
            while whole.send_more(1500) {}
            whole.session.sender().flush().unwrap();
            other.fill(1500);
            while let Some((mac, _, len)) = world.receive() {
                order.push(mac == whole.mac);
                bytes[usize::from(mac == whole.mac)] += len;
            }
            bytes[0] + bytes[1] >= 2_000_000
        });
        let share = bytes[1] as f64 / (bytes[0] + bytes[1]) as f64;
        assert!((share - 0.5).abs() < 0.05, "{mode:?}: {share}");
        // Messages of 12 packets stay whole if all packets of each are there.
        whole.set(Setting::MaxMessageBytes, 65_536);
        eventually("all is sent", || {
            while world.receive().is_some() {}
            whole.session.sender().unsent(QueuePair::FIRST).unwrap()
                + other.session.sender().unsent(QueuePair::FIRST).unwrap()
                == 0
        });
        let (first, mut came) = (whole.next, Vec::new());
        eventually("a hundred messages", || {
            while whole.session.sender().has_room(whole.endpoint, 12 * 2048).unwrap() {
                (0..11).for_each(|_| assert!(whole.send_more(1000)));
                assert!(whole.send(1000));
            }
            whole.session.sender().flush().unwrap();
            other.fill(300);
            while let Some((mac, number, _)) = world.receive() {
                came.push((mac == whole.mac).then_some(number));
            }
            whole.next - first > 1200
        });
        let mut cut = 0;
        for pair in came.windows(2) {
            if let Some(number) = pair[0]
                && number >= first
                && !(number - first + 1).is_multiple_of(12)
            {
                cut += usize::from(pair[1] != Some(number + 1));
            }
        }
        assert_eq!(cut, 0, "{mode:?}: something came between packets of one message");
        assert!(came.iter().any(Option::is_none), "the other sent too");
    }
}

#[test]
fn expedited_packets_overtake_in_order_and_starve_no_sender() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = world(mode);
        let (mut flood, mut small) = (world.sender("flood"), world.sender("small"));
        flood.set(Setting::Priority, 7);
        flood.fill(1500);
        eventually("the device is full", || world.counter("tx_full") > 0);
        // Its own packets, too: 100 wait, and then five expedited ones come.
        (0..100).for_each(|_| assert!(small.send(1500)));
        small.session.sender().flush().unwrap();
        (0..5).for_each(|_| assert!(small.small(EXPEDITED_BYTES as usize)));
        small.session.sender().flush().unwrap();
        eventually("they are taken", || small.counter("tx_packets") >= 5);
        let mut came = Vec::new();
        eventually("they come", || {
            flood.fill(1500);
            came.extend(world.receive());
            came.iter().filter(|one| one.2 == 128).count() == 5
        });
        assert!(came.len() <= RING + 5 + 1, "{mode:?}: {} came before the last", came.len());
        let numbers: Vec<u64> = came.iter().filter(|one| one.2 == 128).map(|one| one.1).collect();
        assert_eq!(numbers, [100, 101, 102, 103, 104]);
        eventually("they are counted", || world.counter("tx_expedited") >= 5);

        // A flood of expedited packets leaves most of the device to the others.
        let (mut of_small, mut others, mut last) = (0u64, 0u64, 104);
        eventually("4000 packets", || {
            flood.fill(1500);
            while small.small(100) {}
            small.session.sender().flush().unwrap();
            while let Some((mac, number, len)) = world.receive() {
                if len == 100 {
                    assert!(mac == small.mac && number > last, "{number} after {last}");
                    last = number;
                    of_small += 1;
                } else {
                    others += 1;
                }
            }
            of_small + others >= 4000
        });
        // 8 of each 40, and as many again that get through while no others wait.
        assert!(of_small >= 400 && others * 2 >= of_small, "{mode:?}: {of_small} and {others}");
    }
}

#[test]
fn a_burst_of_packets_goes_at_once() {
    let mut world = world(EngineStrategy::Block);
    let mut sender = world.sender("bursts");
    sender.set(Setting::RatePps, 1);
    sender.set(Setting::BurstPackets, 30);
    let start = Instant::now();
    (0..60).for_each(|_| assert!(sender.send(100)));
    sender.session.sender().flush().unwrap();
    let mut came = 0;
    eventually("the burst goes", || {
        came += std::iter::from_fn(|| world.receive()).count();
        came >= 30
    });
    let most = 30.0 + start.elapsed().as_secs_f64();
    assert!(came as f64 <= most, "{came} of {most}");
}

#[test]
fn late_packets_are_dropped_and_counted() {
    let mut world = world(EngineStrategy::Block);
    let mut sender = world.sender("live");
    sender.set(Setting::RatePps, 100);
    sender.set(Setting::Pacing, 1);
    sender.set(Setting::MaxDelayUs, 55_000);
    (0..200).for_each(|_| assert!(sender.send(100)));
    sender.session.sender().flush().unwrap();
    let mut numbers = Vec::new();
    eventually("all packets are sent or dropped", || {
        numbers.extend(std::iter::from_fn(|| world.receive()).map(|one| one.1));
        sender.session.sender().unsent(QueuePair::FIRST).unwrap() == 0
    });
    numbers.extend(std::iter::from_fn(|| world.receive()).map(|one| one.1));
    // The first at once, and one each 10 ms; a busy machine loses some of them.
    assert!((1..=8).contains(&numbers.len()), "{numbers:?}");
    assert_eq!(sender.counter("tx_dropped_late") + numbers.len() as u64, 200);
    assert_eq!(sender.counter("tx_packets"), numbers.len() as u64);
}

#[test]
fn a_quota_counts_ticks_and_loses_nothing() {
    for mode in [
        EngineStrategy::Block,
        EngineStrategy::SpinThenBlock,
        EngineStrategy::TimerDriven,
        EngineStrategy::Auto,
    ] {
        let mut world = world(mode);
        let mut sender = world.sender("quota");
        sender.set(Setting::Quota, 2);
        sender.set(Setting::TickMultiple, 3);
        let mut came = 0;
        eventually("500 packets", || {
            sender.fill(200);
            while let Some((_, number, _)) = world.receive() {
                assert_eq!(number, came, "{mode:?}");
                came += 1;
            }
            came >= 500
        });
        // The last ones, too: no later packet would wake the receiver for them.
        eventually("all of them", || {
            while let Some((_, number, _)) = world.receive() {
                assert_eq!(number, came, "{mode:?}");
                came += 1;
            }
            came == sender.next
        });
    }
}

/// A queue pair for expedited packets may wait for the rate of an endpoint that uses another queue
/// pair. The wait ends when that rate is removed, or the endpoint closed.
#[test]
fn expedited_packets_do_not_wait_for_a_removed_rate() {
    const OTHER: u16 = frames::ETHERTYPE + 1;
    for close in [true, false] {
        let mut world = world(EngineStrategy::Block);
        let mut sender = world.sender("limited");
        let other = sender.session.open(&Rule::new().ethertype(OTHER)).unwrap();
        sender.set(Setting::RateBps, 8);
        sender.set(Setting::Pacing, 1);
        // The engine takes both in one poll iteration: one leaves, and the other has to wait a
        // minute.
        assert!(sender.small(60) && sender.small(60));
        sender.session.sender().flush().unwrap();
        eventually("the first comes", || world.receive().is_some_and(|one| one.1 == 0));
        eventually("and no other", || {
            sender.session.sender().unsent(QueuePair::new(1)).unwrap() == 1
        });
        if close {
            sender.session.close(sender.endpoint).unwrap();
        } else {
            sender.set(Setting::RateBps, 0);
        }
        for number in 2..4 {
            let sleeps = world.counter("sleeps");
            let mut frame = sender.frame(frames::ELSEWHERE, 60);
            frame[12..14].copy_from_slice(&OTHER.to_be_bytes());
            sender.session.sender().send_expedited(other, &frame).unwrap();
            sender.session.sender().flush().unwrap();
            sender.next += 1;
            let mut before = 0;
            eventually("another endpoint's packet comes", || {
                let came = world.receive();
                before += u32::from(came.is_some_and(|one| one.1 == 1));
                came.is_some_and(|one| one.1 == number)
            });
            assert_eq!(before, u32::from(!close && number == 2), "the closed one's is dropped");
            eventually("the server sleeps", || world.counter("sleeps") > sleeps);
        }
    }
}

/// All settings change back and forth under load, now and then to invalid values: each sender's
/// packets come in order, once.
#[test]
fn switching_while_packets_move_loses_and_reorders_nothing() {
    let seed = seed(0x5c4ed);
    let mut random = Rng::with_seed(seed);
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = world(mode);
        let mut senders = [world.sender("one"), world.sender("two"), world.sender("three")];
        let mut expected: BTreeMap<[u8; 6], u64> = senders.iter().map(|one| (one.mac, 0)).collect();
        let device = [Setting::Handoff, Setting::Scheduler, Setting::Wait];
        let own = [
            (Setting::Weight, 1, 10_000),
            (Setting::Priority, 0, 7),
            (Setting::Pacing, 0, 1),
            (Setting::RateBps, 0, 0),
            (Setting::RateBps, 500_000_000, 1_000_000_000),
            (Setting::RatePps, 0, 0),
            (Setting::RatePps, 200_000, 300_000),
            (Setting::BurstBytes, 0, 100_000),
            (Setting::BurstPackets, 0, 100),
            (Setting::MaxMessageBytes, 0, 100_000),
            (Setting::Quota, 0, 3),
            (Setting::TickMultiple, 1, 4),
        ];
        for round in 0u64.. {
            // On a busy machine, packets take one of the two ways only now and then.
            let moved = |counter| world.counter(counter) > 100;
            if round >= MOST_ROUNDS || round >= 80 && moved("tx_direct") && moved("tx_queued") {
                break;
            }
            if random.u64(..2) == 0 {
                let setting = device[random.usize(..device.len())];
                world.set(setting, random.u64(..2));
            } else {
                let (setting, least, most) = own[random.usize(..own.len())];
                let value = least + random.u64(..most - least + 1);
                senders[random.usize(..3)].set(setting, value);
            }
            if random.u64(..2) == 0 {
                world.set_wrong(0, 0, device[random.usize(..device.len())]);
            } else {
                let sender = &senders[random.usize(..3)];
                let session = sender.session.info().session;
                let setting = own[random.usize(..own.len())].0;
                world.set_wrong(session, 0, setting);
            }
            for _ in 0..10 {
                for sender in &mut senders {
                    for _ in 0..random.u64(..20) {
                        let len = 60 + random.usize(..1400);
                        if random.u64(..3) == 0 {
                            sender.send_more(len)
                        } else {
                            sender.send(len)
                        };
                    }
                    sender.session.sender().flush().unwrap();
                }
                std::thread::sleep(Duration::from_micros(100));
                // Now and then all waiting packets leave.
                let all = random.u64(..4) == 0;
                for step in 0.. {
                    if all && step % RING == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    } else if !all && step >= 30 {
                        break;
                    }
                    let Some((mac, number, _)) = world.receive() else { break };
                    let next = expected.get_mut(&mac).unwrap();
                    assert_eq!(number, *next, "{mode:?}, round {round}");
                    *next += 1;
                }
            }
        }
        eventually("all comes", || {
            while let Some((mac, number, _)) = world.receive() {
                let next = expected.get_mut(&mac).unwrap();
                assert_eq!(number, *next, "{mode:?}, at the end");
                *next += 1;
            }
            senders.iter().all(|one| expected[&one.mac] == one.next)
        });
        let sent: u64 = senders.iter().map(|one| one.next).sum();
        eventually("all is counted", || {
            let (direct, queued) = (world.counter("tx_direct"), world.counter("tx_queued"));
            direct + queued == sent && world.counter("tx_drained") == queued
        });
        let (direct, queued) = (world.counter("tx_direct"), world.counter("tx_queued"));
        assert!(direct > 100 && queued > 100, "{direct} direct, {queued} queued");
    }
}

/// A full device is back pressure, with both handoff settings: the queue fills, and the engine
/// wakes a client that waits for room when there is some.
#[test]
fn a_full_device_is_back_pressure_in_both_handoff_modes() {
    for way in [0, 1] {
        let mut world = world(EngineStrategy::Block);
        world.set(Setting::Handoff, way);
        let mut sender = world.sender("sender");
        eventually("the server takes no further packet", || {
            let before = sender.next;
            sender.fill(1000);
            std::thread::sleep(Duration::from_millis(20));
            sender.next == before
        });
        let most = (RING + BACKLOG + 256) as u64;
        assert!(sender.next <= most, "{} packets are in flight", sender.next);
        sender.session.sender().want_room(QueuePair::FIRST).unwrap();
        let mut came = 0;
        eventually("all packets come, and the client got news of room", || {
            came += u64::from(world.receive().is_some());
            came == sender.next
        });
        assert!(sender.session.wait(Some(PATIENCE)).unwrap());
        assert!(sender.send(1000));
        assert!(world.counter("tx_full") > 0);
    }
}

#[test]
fn an_endpoints_settings_are_shown_and_wrong_ones_change_nothing() {
    let world = world(EngineStrategy::Block);
    let mut sender = world.sender("shown");
    sender.set(Setting::Weight, 250);
    sender.set(Setting::RateBps, 1_000_000);
    let error = sender.session.set(sender.endpoint, Setting::Weight, 0).unwrap_err().to_string();
    assert!(error.contains("weight=0") && error.contains("1 to 10000"), "{error}");
    let report = towpath_client::report_over(world.server.connect().unwrap()).unwrap();
    let shown = &report["sessions"][0]["endpoints"][0]["settings"];
    assert_eq!(shown["weight"], "250", "{shown}");
    assert_eq!(shown["rate_bps"], "1000000");
    assert_eq!(shown.as_object().unwrap().len(), 2);
    let endpoint = sender.endpoint;
    sender.session.close(endpoint).unwrap();
    let error = sender.session.set(endpoint, Setting::Weight, 5).unwrap_err().to_string();
    assert!(error.contains("there is no endpoint"), "{error}");
}

/// A packet in as many buffers as a packet may have reaches the device, in place and with a copy of
/// its beginning in front.
#[test]
fn the_longest_chain_of_buffers_leaves() {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let ipv4 = Some(Subnet::new(Ipv4Addr::new(10, 77, 0, 1), 24));
    let subnets = Subnets { ipv4, ..Subnets::default() };
    let config = Config { settings: EngineStrategy::Block.into(), subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let mut world = World { server, far: DeviceFarEnd::new(Box::new(far)) };
    let options = Options { transmit_buffer_bytes: 1280, ..Options::default() };
    let socket = world.server.connect().unwrap();
    let mut session = Session::attach_over(socket, &options).unwrap();
    let endpoint = session.open(&Rule::new()).unwrap();
    let info = session.info();
    let own = info.ipv4.unwrap().0;
    let flow = Flow::v4().macs(info.mac, [2, 0, 0, 0, 0, 9]);
    let flow = flow.addresses(own, Ipv4Addr::new(10, 77, 0, 1));
    let payload: Vec<u8> = (0..61_000).map(|place| (place % 251) as u8).collect();
    let (large, meta) = flow.tcp_large(&Tcp::default(), &payload, 1400);
    let mut buffers = 0;
    let write = |parts: &mut [&mut [u8]]| {
        buffers = parts.len();
        let mut rest = &large[..];
        for part in parts {
            let (now, later) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = later;
        }
    };
    session.sender().send(endpoint, large.len(), meta, write).unwrap();
    session.sender().flush().unwrap();
    assert_eq!(buffers, MAX_CHAIN);
    let mut came = None;
    eventually("it comes", || {
        came = came.take().or_else(|| world.far.receive());
        came.is_some()
    });
    let (frame, _) = came.unwrap();
    assert!(frame == large, "another packet came");
    assert_eq!(world.counter("tx_dropped_driver"), 0);
}
