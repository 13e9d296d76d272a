//! A device that reaches only registered memory, and that may refuse to register some.

use crate::senders;

use towpath_client::Setting;
use towpath_device_testing::conformance::DeviceFarEnd;
use towpath_device_testing::loopback::{self, Cable};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, WaitStrategy as EngineStrategy};
use towpath_tests::eventually;

use crate::senders::World;

fn wired(dma_bytes: usize) -> (World, Cable) {
    let config = loopback::Config {
        tx_asynchronous: true,
        dma_bytes: Some(dma_bytes),
        ..Default::default()
    };
    let (near, far) = loopback::pair(&config).unwrap();
    let cable = near.cable();
    let config = Config { settings: EngineStrategy::Block.into(), ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (World { server, far: DeviceFarEnd::new(Box::new(far)) }, cable)
}

/// Sends packets of several lengths, and returns those lengths as they came.
fn lengths(world: &mut World, sender: &mut senders::Sender) -> Vec<usize> {
    let sent = [60, 300, 1514];
    sent.iter().for_each(|len| assert!(sender.send(*len)));
    sender.session.sender().flush().unwrap();
    let mut came = Vec::new();
    eventually("the packets come", || {
        came.extend(world.receive().map(|(_, _, len)| len));
        came.len() == sent.len()
    });
    came
}

/// The session's memory is registered while the session lives. If the device refuses, the server
/// copies, and the packets are the same.
#[test]
fn memory_that_the_device_refuses_is_copied() {
    let (mut world, cable) = wired(1 << 30);
    let pool = cable.registered_bytes().unwrap();
    assert!(pool > 0, "the server's own memory");
    let mut sender = world.sender("registered");
    let with = cable.registered_bytes().unwrap();
    assert!(with > pool);
    assert_eq!(lengths(&mut world, &mut sender), [60, 300, 1514]);
    drop(sender);
    eventually("the memory is unregistered", || cable.registered_bytes() == Some(pool));

    let (mut world, cable) = wired(pool);
    let mut sender = world.sender("refused");
    assert_eq!(cable.registered_bytes(), Some(pool), "no room for more");
    assert_eq!(lengths(&mut world, &mut sender), [60, 300, 1514]);
    assert_eq!(world.counter("tx_dropped_driver"), 0);
}

/// A session's memory stays registered until the device has completed its packets.
#[test]
fn unregistration_waits_for_packets_in_flight() {
    let (world, cable) = wired(1 << 30);
    world.set(Setting::Watchdog, 0);
    let pool = cable.registered_bytes().unwrap();
    let mut sender = world.sender("sender");
    let with = cable.registered_bytes().unwrap();
    cable.stall();
    assert!(sender.send(1000));
    sender.session.sender().flush().unwrap();
    eventually("the device has it", || world.counter("tx_packets") == 1);
    drop(sender);
    // The server handles the end of the session before it answers these.
    for _ in 0..20 {
        world.counter("tx_packets");
        assert_eq!(cable.registered_bytes(), Some(with));
    }
    world.set(Setting::WatchdogMs, 1);
    world.set(Setting::Watchdog, 1);
    eventually("a reset returns the packet", || cable.registered_bytes() == Some(pool));
    assert_eq!(world.counter("tx_dropped_session_ended"), 1);
}
