//! The watchdog notices a stalled device and resets it. The engine submits the packets that the
//! device kept again, and the sessions continue.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session, Setting};
use towpath_device::{Completion, Device, DeviceError, DeviceQueue, Packet, Spaces};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::fault::{FaultCounters, FaultDevice};
use towpath_device_testing::loopback;
use towpath_device_testing::wrapped::Wrapped;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Values, WaitStrategy as EngineStrategy};

const WINDOW: Duration = Duration::from_millis(60);
/// Longer than any wait of these tests should take, and shorter than a stall without a reset.
const PATIENCE: Duration = Duration::from_secs(8);
const OTHER: [u8; 6] = [2, 9, 9, 9, 9, 9];
const ARMINGS: [(&str, u64); 3] = [("lazy", 1), ("eager", 2), ("timestamp", 3)];

fn serve(mode: EngineStrategy, arming: u64, device: Box<dyn Device>) -> Server {
    let mut settings: Values = mode.into();
    settings.set(Setting::Watchdog, arming).unwrap();
    settings.set(Setting::WatchdogMs, WINDOW.as_millis() as u64).unwrap();
    let config = Config { settings, ..Config::default() };
    Server::start(&config, device, Box::<MemoryStore>::default()).unwrap()
}

/// Returns a device that stalls for ten seconds now and then.
fn stalling(rate: f64, seed: u64) -> (FaultDevice, FaultCounters, DeviceFarEnd) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let spec = format!("tx.stall={rate},tx.stall_us=10000000,seed={seed}").parse().unwrap();
    let device = FaultDevice::new(Box::new(near), &spec);
    let counters = device.fault_counters();
    (device, counters, DeviceFarEnd::new(Box::new(far)))
}

fn attach(server: &Server) -> (Session, Endpoint) {
    let options = Options { name: "a".into(), ..Options::default() };
    let mut session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let endpoint = session.open(&Rule::new().ethertype(0x88b5)).unwrap();
    (session, endpoint)
}

fn frame(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = [&to[..], &from[..], &[0x88, 0xb5], &number.to_le_bytes()].concat();
    frame.resize(60 + number as usize * 7 % 1400, number as u8);
    frame
}

fn next(far: &mut DeviceFarEnd, what: &str) -> Vec<u8> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some((frame, _)) = far.receive() {
            return frame;
        }
        assert!(Instant::now() < until, "{what}: nothing arrived");
        std::thread::yield_now();
    }
}

fn counters(server: &Server) -> BTreeMap<String, u64> {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    let counters = report["device"]["counters"].as_object().unwrap();
    counters.iter().map(|(name, value)| (name.clone(), value.as_u64().unwrap())).collect()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Only the watchdog wakes the engine. The test sends packets one at a time, then a burst. All
/// arrive once and in order, whichever of them the device kept.
#[test]
fn stalls_end_in_every_mode() {
    for mode in EngineStrategy::ALL {
        for (name, arming) in ARMINGS {
            let what = format!("{mode:?}, {name}, seed 11");
            let (device, injected, mut far) = stalling(0.1, 11);
            let server = serve(mode, arming, Box::new(device));
            let (mut a, endpoint) = attach(&server);
            let mac = a.info().mac;
            let start = Instant::now();
            for number in 0..30 {
                a.sender().send_bytes(endpoint, &frame(OTHER, mac.octets(), number)).unwrap();
                a.sender().flush_now().unwrap();
                assert_eq!(next(&mut far, &what), frame(OTHER, mac.octets(), number), "{what}");
                // The receive buffers are also usable again after each reset.
                assert!(far.send(&frame(mac.octets(), OTHER, number), Meta::FULL));
                assert!(a.wait(Some(PATIENCE)).unwrap(), "{what}");
                assert_eq!(
                    a.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
                    frame(mac.octets(), OTHER, number)
                );
            }
            for number in 30..40 {
                a.sender().send_bytes(endpoint, &frame(OTHER, mac.octets(), number)).unwrap();
            }
            a.sender().flush_now().unwrap();
            for number in 30..40 {
                assert_eq!(next(&mut far, &what), frame(OTHER, mac.octets(), number), "{what}");
            }
            let (took, stalls) = (start.elapsed(), injected.tx().stalls);
            wait_for("the client to reclaim its buffers", || {
                a.sender().unsent(QueuePair::FIRST).unwrap() == 0
            });
            assert!(far.receive().is_none(), "{what}: duplicated");
            assert!(stalls >= 3, "{what}: {stalls}");
            assert!(took >= WINDOW * stalls as u32, "{what}: too early: {took:?}");
            // The watchdog checks once per window, so it needs at most two windows; the rest is for
            // a busy machine.
            let most = WINDOW * 25 * stalls as u32 + Duration::from_secs(2);
            assert!(took <= most, "{what}: {stalls} stalls noticed too late: {took:?}");
            // A server that polls publishes its driver's counters only now and then.
            wait_for(&what, || {
                let counted = counters(&server);
                counted["device_resets"] == stalls
                    && counted["tx_packets"] == 40 + counted["tx_resubmitted"]
            });
            let counted = counters(&server);
            assert!((1..=stalls).contains(&counted["device_stalls"]), "{what}: {counted:?}");
            assert!(counted["tx_resubmitted"] >= stalls, "{what}: {counted:?}");
            assert!(counted["watchdog_arms"] > 0 && counted["watchdog_checks"] >= stalls);
            // All packets are completed: an engine that may sleep does.
            if mode == EngineStrategy::Block {
                let sleeps = || counters(&server)["sleeps"];
                wait_for("sleep", || {
                    let before = sleeps();
                    std::thread::sleep(5 * WINDOW);
                    sleeps() == before
                });
            }
            server.stop().unwrap();
        }
    }
}

/// A far end that takes nothing counts as one stall, however many resets follow. No packet is lost,
/// duplicated or reordered when the far end takes them.
#[test]
fn stalled_packets_are_sent_once_and_in_order() {
    for (name, arming) in ARMINGS {
        let config = loopback::Config {
            ring_packets: 32,
            tx_asynchronous: true,
            ..loopback::Config::default()
        };
        let (near, far) = loopback::pair(&config).unwrap();
        let server = serve(EngineStrategy::Block, arming, Box::new(near));
        let (mut a, endpoint) = attach(&server);
        let mac = a.info().mac;
        for number in 0..200 {
            a.sender().send_bytes(endpoint, &frame(OTHER, mac.octets(), number)).unwrap();
        }
        a.sender().flush().unwrap();
        wait_for("three resets", || counters(&server)["device_resets"] >= 3);
        let mut far = DeviceFarEnd::new(Box::new(far));
        for number in 0..200 {
            assert_eq!(next(&mut far, name), frame(OTHER, mac.octets(), number), "{name}");
        }
        wait_for("the client to reclaim its buffers", || {
            a.sender().unsent(QueuePair::FIRST).unwrap() == 0
        });
        assert!(far.receive().is_none(), "{name}: duplicated");
        let counted = counters(&server);
        assert_eq!((counted["device_stalls"], counted["tx_dropped_driver"]), (1, 0), "{name}");
        server.stop().unwrap();
    }
}

/// The engine submits the expedited packets that a device kept again before those that waited
/// meanwhile, and those before later ones.
#[test]
fn stalled_expedited_packets_stay_in_order() {
    for (name, arming) in ARMINGS {
        let config = loopback::Config {
            ring_packets: 32,
            tx_asynchronous: true,
            ..loopback::Config::default()
        };
        let (near, far) = loopback::pair(&config).unwrap();
        let server = serve(EngineStrategy::Block, arming, Box::new(near));
        let (mut a, endpoint) = attach(&server);
        let mac = a.info().mac;
        let small = |number: u32| {
            let mut frame =
                [&OTHER[..], &mac.octets(), &[0x88, 0xb5], &number.to_le_bytes()].concat();
            frame.resize(60, 0);
            frame
        };
        // The ring holds 32, the device keeps 32, and the others wait for it.
        for number in 0..72 {
            a.sender().send_expedited(endpoint, &small(number)).unwrap();
        }
        a.sender().flush().unwrap();
        wait_for("a reset", || counters(&server)["device_resets"] >= 1);
        for number in 72..100 {
            a.sender().send_expedited(endpoint, &small(number)).unwrap();
        }
        a.sender().flush().unwrap();
        wait_for("three resets", || counters(&server)["device_resets"] >= 3);
        let mut far = DeviceFarEnd::new(Box::new(far));
        for number in 0..100 {
            assert_eq!(next(&mut far, name), small(number), "{name}: number {number}");
        }
        wait_for("the client to reclaim its buffers", || {
            a.sender().unsent(QueuePair::FIRST).unwrap() == 0
        });
        assert!(far.receive().is_none(), "{name}: duplicated");
        server.stop().unwrap();
    }
}

/// The engine does not reset while the watchdog is off; an administrator may switch it on later.
#[test]
fn the_watchdog_can_be_switched_on_later() {
    let (device, injected, mut far) = stalling(1.0, 3);
    let server = serve(EngineStrategy::Block, 0, Box::new(device));
    let (mut a, endpoint) = attach(&server);
    let mac = a.info().mac;
    a.sender().send_bytes(endpoint, &frame(OTHER, mac.octets(), 1)).unwrap();
    a.sender().flush().unwrap();
    wait_for("a stall", || injected.tx().stalls == 1);
    std::thread::sleep(5 * WINDOW);
    assert!(far.receive().is_none());
    assert_eq!((counters(&server)["device_resets"], counters(&server)["watchdog_checks"]), (0, 0));
    let set = |setting, value| {
        towpath_client::set_over(server.connect().unwrap(), None, setting, value).unwrap();
    };
    set(Setting::Watchdog, 1);
    // Every packet makes this device stall again, so the engine counts one stall.
    wait_for("resets", || counters(&server)["device_resets"] >= 3);
    assert_eq!(counters(&server)["device_stalls"], 1);
    set(Setting::WatchdogMs, 0);
    let resets = counters(&server)["device_resets"];
    std::thread::sleep(5 * WINDOW);
    assert_eq!(counters(&server)["device_resets"], resets);
    server.stop().unwrap();
}

/// A session's packets in flight at a stalled device do not delay its end for ever: the engine
/// drops and counts them.
#[test]
fn a_session_ends_on_a_stalled_device() {
    for (name, arming) in ARMINGS {
        let (device, injected, _far) = stalling(1.0, 5);
        let server = serve(EngineStrategy::Block, arming, Box::new(device));
        let (mut a, endpoint) = attach(&server);
        let mac = a.info().mac;
        for number in 0..7 {
            a.sender().send_bytes(endpoint, &frame(OTHER, mac.octets(), number)).unwrap();
        }
        a.sender().flush().unwrap();
        wait_for("a stall", || injected.tx().stalls > 0);
        drop(a);
        let sessions = || {
            let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
            report["sessions"].as_array().unwrap().len()
        };
        wait_for("the session's end", || sessions() == 0);
        wait_for("seven drops", || counters(&server)["tx_dropped_session_ended"] == 7);
        let (mut b, endpoint) = attach(&server);
        assert!(
            matches!(b.sender().send_bytes(endpoint, &[0; 60]), Ok(()) | Err(SendError::Full)),
            "{name}"
        );
        server.stop().unwrap();
    }
}

/// How a device that keeps every packet behaves when the engine resets it.
#[derive(Clone, Copy, PartialEq)]
enum Reset {
    Fails,
    KeepsTokens,
}

struct Stuck {
    inner: Box<dyn DeviceQueue>,
    reset: Reset,
}

impl DeviceQueue for Stuck {
    towpath_device_testing::forward!(inner: rx_fill, rx_poll, kick, sleep_fd, arm, counters);

    fn tx_submit(&mut self, _: &mut Spaces, packets: &[Packet<'_>]) -> Result<usize, DeviceError> {
        Ok(packets.len())
    }

    fn tx_complete(&mut self, _: &mut Vec<Completion>, _: usize) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        if self.reset == Reset::KeepsTokens {
            return self.inner.reset(buffers);
        }
        let cause = std::io::Error::from_raw_os_error(5);
        Err(DeviceError::Failed { name: "stuck".into(), what: "TUNSETOFFLOAD", cause })
    }
}

/// A device whose reset fails ends its server, with both reasons.
#[test]
fn a_reset_that_fails_ends_the_device() {
    for (reset, reason) in [
        (
            Reset::Fails,
            "device loopback-a stalled, and its reset failed: device stuck: TUNSETOFFLOAD",
        ),
        (
            Reset::KeepsTokens,
            "its reset failed: device loopback-a: a reset that keeps packets: 0 of 3",
        ),
    ] {
        let (inner, _far) = loopback::pair(&loopback::Config::default()).unwrap();
        let stuck = move |inner| -> Box<dyn DeviceQueue> { Box::new(Stuck { inner, reset }) };
        let device = Wrapped::around(Box::new(inner), stuck);
        let server = serve(EngineStrategy::Block, 1, Box::new(device));
        let (mut a, endpoint) = attach(&server);
        let mac = a.info().mac;
        for number in 0..3 {
            a.sender().send_bytes(endpoint, &frame(OTHER, mac.octets(), number)).unwrap();
        }
        a.sender().flush().unwrap();
        wait_for("the server's end", || a.wait(Some(Duration::from_millis(100))).is_err());
        let error = server.stop().unwrap_err();
        assert!(matches!(error, DeviceError::Stalled { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}
