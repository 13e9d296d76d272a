//! A device whose link goes down, whose MTU changes, or that goes away.

use std::time::Duration;

use towpath_client::{Lost, QueuePair, Setting};
use towpath_device::{DeviceError, Event, HardwareQueues};
use towpath_device_testing::conformance::DeviceFarEnd;
use towpath_device_testing::loopback::{self, Cable};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, WaitStrategy as EngineStrategy};
use towpath_tests::{PATIENCE, eventually};

use crate::senders::World;

/// Packets that the server may have taken and not handed to the device: docs/scheduling.md.
const BACKLOG: u64 = 32;

/// Starts a server on a device whose cable a test holds.
fn wired(mode: EngineStrategy, tx_asynchronous: bool) -> (World, Cable) {
    let config = loopback::Config { tx_asynchronous, ..Default::default() };
    let (near, far) = loopback::pair(&config).unwrap();
    let cable = near.cable();
    let config = Config { settings: mode.into(), ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (World { server, far: DeviceFarEnd::new(Box::new(far)) }, cable)
}

/// While the link is down, the backlog fills, further packets to the device are dropped and
/// counted, and local delivery goes on. The packets of the backlog leave once the link is up.
#[test]
fn packets_are_dropped_while_the_link_is_down_and_local_delivery_goes_on() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        for tx_asynchronous in [false, true] {
            let (mut world, cable) = wired(mode, tx_asynchronous);
            let mut sender = world.sender("sender");
            let (mut near, mut to) = (world.sender("near"), world.sender("to"));
            cable.set_link(false);
            eventually("packets are dropped", || {
                assert!(sender.send(100), "no back pressure");
                sender.session.sender().flush().unwrap();
                world.counter("tx_dropped_link_down") >= 50
            });
            // A device that completes nothing while its link is down has not stalled. The engine knows by now
            // that the link is down.
            world.set(Setting::WatchdogMs, 1);
            std::thread::sleep(Duration::from_millis(20));
            let frame = near.frame(to.mac, 700);
            near.session.sender().send_bytes(near.endpoint, &frame).unwrap();
            near.session.sender().flush().unwrap();
            assert!(to.session.wait(Some(PATIENCE)).unwrap(), "{mode:?}");
            assert_eq!(
                to.session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
                frame
            );
            eventually("all are taken", || sender.counter("tx_packets") == sender.next);
            let dropped = world.counter("tx_dropped_link_down");
            assert!(sender.next - dropped >= BACKLOG);
            assert!(world.receive().is_none(), "{mode:?}: a packet left");
            assert_eq!(world.counter("device_resets"), 0);
            // From here on, a slow machine may take longer than a millisecond.
            world.set(Setting::WatchdogMs, 60_000);
            cable.set_link(true);
            let mut came = Vec::new();
            eventually("the others leave", || {
                came.extend(world.receive().map(|(_, number, _)| number));
                came.len() as u64 == sender.next - dropped
            });
            assert!(came.is_sorted(), "{mode:?}: {came:?}");
            assert!(sender.send(100));
            sender.session.sender().flush().unwrap();
            eventually("later ones, too", || world.receive().is_some());
            assert_eq!(world.counter("tx_dropped_link_down"), dropped);
            assert_eq!(world.counter("device_resets"), 0);
        }
    }
}

#[test]
fn packets_wait_while_the_link_is_down_if_they_shall() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let (mut world, cable) = wired(mode, false);
        world.set(Setting::LinkDown, 1);
        let mut sender = world.sender("sender");
        cable.set_link(false);
        eventually("the application sees back pressure", || {
            let before = sender.next;
            sender.fill(100);
            std::thread::sleep(Duration::from_millis(20));
            sender.next == before
        });
        if mode == EngineStrategy::Block {
            // The engine does not spin until the link is up.
            let sleeps = world.counter("busy_iterations");
            std::thread::sleep(Duration::from_millis(50));
            let busy = world.counter("busy_iterations") - sleeps;
            assert!(busy < 100, "{busy} iterations with work");
        }
        cable.set_link(true);
        let mut next = 0;
        eventually("all packets leave in order", || {
            while let Some((_, number, _)) = world.receive() {
                assert_eq!(number, next);
                next += 1;
            }
            next == sender.next
        });
        assert_eq!(world.counter("tx_dropped_link_down"), 0);
    }
}

/// An application that ends while the link is down does not keep its address until the link is up.
/// The packets of the others leave later, in order.
#[test]
fn a_session_ends_while_the_device_keeps_its_packets() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let (mut world, cable) = wired(mode, true);
        world.set(Setting::Watchdog, 0);
        let mut lives = world.sender("lives");
        let mut ends = world.sender("ends");
        cable.stall();
        assert!(lives.send(100) && ends.send(100) && lives.send(100));
        lives.session.sender().flush().unwrap();
        ends.session.sender().flush().unwrap();
        eventually("the device has them", || world.counter("tx_packets") == 3);
        cable.set_link(false);
        world.set(Setting::WatchdogMs, 10);
        world.set(Setting::Watchdog, 1);
        let in_use = world.addresses_in_use();
        drop(ends);
        eventually("its address is free", || world.addresses_in_use() == in_use - 1);
        cable.set_link(true);
        let mut numbers = Vec::new();
        eventually("the others leave", || {
            numbers.extend(world.receive().map(|(_, number, _)| number));
            numbers.len() == 2
        });
        assert!(numbers.is_sorted(), "{mode:?}: {numbers:?}");
    }
}

#[test]
fn a_smaller_mtu_holds_at_once() {
    let (mut world, cable) = wired(EngineStrategy::Block, false);
    let mut sender = world.sender("sender");
    assert!(sender.send(1000));
    sender.session.sender().flush().unwrap();
    eventually("it comes", || world.receive().is_some());
    cable.report(Event::Mtu(500));
    eventually("longer packets are dropped", || {
        assert!(sender.send(1000));
        sender.session.sender().flush().unwrap();
        sender.counter("tx_dropped_too_long") > 0
    });
    while world.receive().is_some() {}
    assert!(sender.send(514));
    sender.session.sender().flush().unwrap();
    eventually("shorter ones are sent", || world.receive().is_some_and(|(_, _, len)| len == 514));
    let later = world.sender("later");
    assert_eq!(later.session.info().mtu, 500);
}

/// The report shows the interface's new name. If no server follows, the report shows the number of hardware queues
/// that the server does not serve, until these are gone.
#[test]
fn a_name_and_unserved_queues_are_shown() {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let cable = near.cable();
    let config = Config { leaves_after_changes: true, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let shown = |what: &str| {
        let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
        report["device"][what].clone()
    };
    assert_eq!(shown("unserved_queues"), serde_json::Value::Null);
    cable.report(Event::Name("lan0".into()));
    eventually("the name is shown", || shown("name") == "lan0");
    for (present, served, unserved) in [(4, 1, 3), (2, 1, 1)] {
        let queues = HardwareQueues { present, served, can_serve_all: true };
        cable.report(Event::HardwareQueues(queues));
        eventually("they are shown", || shown("unserved_queues") == unserved);
    }
    let queues = HardwareQueues { present: 1, served: 2, can_serve_all: true };
    cable.report(Event::HardwareQueues(queues));
    eventually("none is shown", || shown("unserved_queues").is_null());
    assert_eq!(shown("name"), "lan0");
    server.stop().unwrap();
}

#[test]
fn a_server_whose_device_is_removed_ends() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let (world, cable) = wired(mode, false);
        let mut sender = world.sender("sender");
        cable.remove();
        assert_eq!(sender.session.wait(Some(PATIENCE)), Err(Lost::ServerGone), "{mode:?}");
        let error = world.server.stop().unwrap_err();
        assert!(matches!(error, DeviceError::Gone { .. }), "{error}");
    }
}
