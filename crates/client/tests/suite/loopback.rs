//! A server in this process over an in-memory device, with sessions attached: packets that one
//! session sends reach the other session, and the device's far end.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{
    AttachError, EndpointId, Lost, MacAddr, Meta, Options, QueuePair, QueuePairError, Rule,
    SendError, Session, Setting, WaitStrategy,
};
use towpath_device_testing::conformance::DeviceFarEnd;
use towpath_device_testing::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

fn serve(mode: EngineStrategy) -> (Server, loopback::LoopbackDevice) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let subnets = Subnets {
        ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)),
        ipv6: Some(Subnet::new("fd77::1".parse().unwrap(), 64)),
    };
    let config = Config { settings: mode.into(), subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (server, far)
}

fn attach(server: &Server, name: &str) -> Session {
    attach_waiting(server, name, WaitStrategy::Block)
}

fn attach_waiting(server: &Server, name: &str, waiting: WaitStrategy) -> Session {
    let options = Options { name: name.into(), wait_strategy: waiting, ..Options::default() };
    Session::attach_over(server.connect().unwrap(), &options).unwrap()
}

fn frame(to: impl Into<MacAddr>, from: impl Into<MacAddr>, number: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&to.into().octets());
    frame.extend_from_slice(&from.into().octets());
    frame.extend_from_slice(&[0x88, 0xb5]);
    frame.extend_from_slice(&number.to_le_bytes());
    frame.resize(60 + (number as usize * 7) % 1400, number as u8);
    frame
}

/// Ends a test that hangs. On a loaded machine, a thread may wait seconds for a processor.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits, and returns whether a notification woke the session. A session whose timeout expires also
/// finds news without a notification.
fn is_woken(session: &mut Session) -> bool {
    let start = std::time::Instant::now();
    session.wait(Some(PATIENCE)).unwrap() && start.elapsed() < PATIENCE
}

/// `true` if a session that announced its sleep is notified within a time.
fn is_notified(session: &Session, within: Duration) -> bool {
    let mut polled = [PollFd::new(session, PollFlags::IN)];
    let (tv_sec, tv_nsec) = (within.as_secs() as i64, i64::from(within.subsec_nanos()));
    poll(&mut polled, Some(&Timespec { tv_sec, tv_nsec })).unwrap() == 1
}

fn exchange(mode: EngineStrategy, waiting: WaitStrategy, rounds: u32) {
    let (server, _far) = serve(mode);
    let mut a = attach_waiting(&server, "a", waiting);
    let mut b = attach_waiting(&server, "b", waiting);
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, from_b) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let (mac_a, mac_b) = (a.info().mac, b.info().mac);
    assert_eq!(a.info().ipv4, Some(("10.77.0.2".parse().unwrap(), 24)));
    for number in 0..rounds {
        let packet = frame(mac_b, mac_a, number);
        a.sender().send_bytes(from_a, &packet).unwrap();
        a.sender().flush().unwrap();
        assert!(is_woken(&mut b));
        let got = b.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap();
        assert_eq!(got, packet);
        b.sender().send_bytes(from_b, &frame(mac_a, mac_b, number)).unwrap();
        b.sender().flush().unwrap();
        assert!(is_woken(&mut a));
        assert_eq!(
            a.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
            frame(mac_a, mac_b, number)
        );
    }
    let counters: std::collections::BTreeMap<_, _> = a.counters(from_a).into_iter().collect();
    let rounds = u64::from(rounds);
    assert_eq!(counters["tx_packets"], rounds);
    assert_eq!(counters["rx_packets"], rounds);
    assert_eq!(counters["rx_copies"], rounds, "one copy per packet received");
    assert_eq!(counters["tx_copies"], rounds, "one copy per packet sent");
    server.stop().unwrap();
}

#[test]
fn endpoint_to_endpoint_asleep() {
    exchange(EngineStrategy::Block, WaitStrategy::Block, 5000);
}

#[test]
fn endpoint_to_endpoint_polling() {
    exchange(EngineStrategy::Poll, WaitStrategy::Block, 5000);
}

/// Sends as the crate's first example does, and counts how often the queue is full.
fn send_all(a: &mut Session, from: towpath_client::Endpoint, frames: u32, to: MacAddr) -> u32 {
    let (mac, mut full) = (a.info().mac, 0);
    for number in 0..frames {
        while let Err(error) = a.sender().send_bytes(from, &frame(to, mac, number)) {
            assert_eq!(error, SendError::Full);
            full += 1;
            a.sender().flush().unwrap();
            a.sender().want_room(from.queue_pair()).unwrap();
            assert!(a.wait(Some(PATIENCE)).unwrap(), "packet {number}: no room");
        }
    }
    a.sender().flush().unwrap();
    full
}

#[test]
fn a_full_queue_is_flushed_waited_for_and_tried_again() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let (server, _far) = serve(mode);
        let options = Options { transmit_slots: 8, ..Options::default() };
        let mut a = Session::attach_over(server.connect().unwrap(), &options).unwrap();
        let mut b = attach(&server, "b");
        let rule = Rule::new().ethertype(0x88b5);
        let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
        let full = send_all(&mut a, from_a, 1000, b.info().mac);
        assert!(full > 0, "1000 packets fit into 8 slots");
        assert_eq!(a.statistics().sent, 1000);
        while a.sender().unsent(QueuePair::FIRST).unwrap() > 0 {
            a.sender().want_room(QueuePair::FIRST).unwrap();
            assert!(a.wait(Some(PATIENCE)).unwrap(), "the server sends no more");
        }
        let counters: std::collections::BTreeMap<_, _> = a.counters(from_a).into_iter().collect();
        assert_eq!(counters["tx_packets"], 1000, "{mode:?}");
        server.stop().unwrap();
    }
}

/// No side misses a packet, with any pair of wait strategies.
#[test]
fn endpoint_to_endpoint_with_every_wait_strategy() {
    for mode in EngineStrategy::ALL {
        for waiting in [
            WaitStrategy::Block,
            WaitStrategy::Poll,
            WaitStrategy::SpinThenBlock,
            WaitStrategy::SpinFor(Duration::from_micros(15)),
            WaitStrategy::TimerDriven(5000),
        ] {
            exchange(mode, waiting, 100);
        }
    }
}

fn set(server: &Server, setting: Setting, value: u64) {
    towpath_client::set_over(server.connect().unwrap(), None, setting, value).unwrap();
}

fn device_counter(server: &Server, name: &str) -> u64 {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    report["device"]["counters"][name].as_u64().unwrap()
}

/// The test changes the wait strategy and its settings all the time, and sends packets one at a
/// time.
#[test]
fn every_change_of_mode_loses_no_wake_up() {
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let (mac_a, mac_b) = (a.info().mac, b.info().mac);
    let modes = 5;
    for change in 0..modes * modes * 2 {
        set(&server, Setting::Wait, change / modes % modes);
        set(&server, Setting::Wait, change % modes);
        set(&server, Setting::TickHz, [1000, 20_000, 60_000][change as usize % 3]);
        set(&server, Setting::LatencyUs, [1, 100, 5000][change as usize % 3]);
        for number in 0..8 {
            let packet = frame(mac_b, mac_a, number);
            a.sender().send_bytes(from_a, &packet).unwrap();
            a.sender().flush().unwrap();
            assert!(is_woken(&mut b), "change {change}");
            assert_eq!(b.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(), packet);
        }
    }
    server.stop().unwrap();
}

/// A timer-driven engine polls at its ticks, and urgent work does not wait for a tick.
#[test]
fn by_the_clock() {
    let (server, _far) = serve(EngineStrategy::TimerDriven);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let packet = frame(b.info().mac, a.info().mac, 1);
    let before = std::time::Instant::now();
    set(&server, Setting::TickHz, 1);
    // The engine replies before its poll iteration ends, and polls once more before it sleeps.
    std::thread::sleep(Duration::from_millis(100));
    let notifications = a.statistics().notifications;
    a.sender().send_bytes(from_a, &packet).unwrap();
    a.sender().flush().unwrap();
    let polled = b.wait(Some(Duration::from_millis(50))).unwrap();
    assert!(!polled || before.elapsed() > Duration::from_millis(900), "before the tick");
    assert_eq!(
        a.statistics().notifications,
        notifications,
        "a notification to a timer-driven engine"
    );
    // The sender of a burst can mark its last packet as urgent.
    a.sender().send_bytes(from_a, &packet).unwrap();
    a.sender().flush_now().unwrap();
    assert_eq!(a.statistics().notifications, notifications + 1);
    assert!(b.wait(Some(PATIENCE)).unwrap());
    assert_eq!(b.receiver().receive(QueuePair::FIRST, 9, |_| ()).unwrap(), 2);
    // A half-full queue causes a notification.
    for _ in 0..128 {
        a.sender().send_bytes(from_a, &packet).unwrap();
    }
    a.sender().flush().unwrap();
    assert!(b.wait(Some(PATIENCE)).unwrap());
    assert_eq!(a.statistics().notifications_early, 1);
    // Half of a queue counts only packets that the server has yet to send. A client that sends few
    // packets at a time sends no notification, although it reclaims only when it must.
    set(&server, Setting::TickHz, 2000);
    let notifications = a.statistics().notifications;
    for _ in 0..40 {
        for _ in 0..16 {
            a.sender().send_bytes(from_a, &packet).unwrap();
        }
        a.sender().flush().unwrap();
        while device_counter(&server, "local_packets") < a.statistics().sent {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(a.statistics().notifications, notifications, "the server is timer-driven");
    server.stop().unwrap();
}

/// The engine notifies a timer-driven client when half of its buffers are used, even if the first
/// of them was used long before and the client has not polled since.
#[test]
fn timer_driven_client_is_notified_at_half_used_buffers() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    let mut b = attach_waiting(&server, "b", WaitStrategy::TimerDriven(1));
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let packet = frame(b.info().mac, a.info().mac, 1);
    // The client's first tick is a second after it attached, the next one a second later.
    assert!(!b.wait(Some(Duration::from_millis(1100))).unwrap());
    let start = std::time::Instant::now();
    let sender = std::thread::spawn(move || {
        for packets in [1, 60, 139] {
            std::thread::sleep(Duration::from_millis(50));
            for _ in 0..packets {
                a.sender().send_bytes(from_a, &packet).unwrap();
            }
            a.sender().flush().unwrap();
        }
        a
    });
    assert!(b.wait(Some(PATIENCE)).unwrap());
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(140), "notified of too few packets: {took:?}");
    // The notification wakes the client, not the tick.
    let until = std::time::Instant::now() + PATIENCE;
    while device_counter(&server, "notifications_early") == 0 {
        assert!(std::time::Instant::now() < until, "no notification for half-used buffers");
        std::thread::sleep(Duration::from_millis(1));
    }
    sender.join().unwrap();
    server.stop().unwrap();
}

/// Attaching and `set_wait_strategy` refuse a clock out of its range, and the earlier strategy
/// stays in force.
#[test]
fn a_clock_out_of_its_range_is_refused() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    for hz in [0, 100_001, 1_000_000, u32::MAX] {
        let options =
            Options { wait_strategy: WaitStrategy::TimerDriven(hz), ..Options::default() };
        let refused = Session::attach_over(server.connect().unwrap(), &options).unwrap_err();
        assert!(matches!(refused, AttachError::Refused { .. }), "{refused}");
        let said = refused.to_string();
        let part = format!("a clock of {hz} Hz; 1 to 100000");
        assert!(said.starts_with("attach: ") && said.contains(&part), "{said}");
        let said = a.set_wait_strategy(options.wait_strategy).unwrap_err().to_string();
        assert!(said.starts_with("set_wait_strategy: ") && said.contains(&part), "{said}");
    }
    assert!(!a.wait(Some(Duration::from_millis(20))).unwrap());
    let statistics = a.statistics();
    assert_eq!((statistics.sleeps, statistics.ticks), (1, 0), "not blocking: {statistics:?}");
    for hz in [1, 100_000] {
        let _ = attach_waiting(&server, "b", WaitStrategy::TimerDriven(hz));
        a.set_wait_strategy(WaitStrategy::TimerDriven(hz)).unwrap();
    }
    server.stop().unwrap();
}

/// Where sleep takes longer than a tick, a timer-driven client stays awake; else it sleeps once per
/// tick. The client counts its ticks, also across a change of the wait strategy.
#[test]
fn a_client_stays_awake_if_sleep_exceeds_its_tick() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach_waiting(&server, "a", WaitStrategy::TimerDriven(100_000));
    // The first wait measures the shortest sleep, and so takes longer.
    assert!(!a.wait(Some(Duration::from_millis(1))).unwrap());
    assert!(!a.wait(Some(Duration::from_millis(50))).unwrap());
    let fast = a.statistics();
    // The client stays awake if timers are late by ten microseconds; the kernel's default slack is
    // 50.
    assert_eq!(fast.sleeps, 0, "{fast:?}");
    assert!(fast.ticks > 0 && fast.ticks_late_ns >= fast.tick_latest_ns, "{fast:?}");
    a.set_wait_strategy(WaitStrategy::TimerDriven(1000)).unwrap();
    assert_eq!(a.statistics(), fast, "the counts stay");
    let start = std::time::Instant::now();
    while a.statistics().ticks < fast.ticks + 10 {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", a.statistics());
        assert!(!a.wait(Some(Duration::from_millis(50))).unwrap());
    }
    let all = a.statistics();
    let possible = start.elapsed().as_millis() as u64 + 1;
    let (ticks, missed) = (all.ticks - fast.ticks, all.ticks_missed - fast.ticks_missed);
    assert!(ticks + missed <= possible, "{ticks} and {missed} of {possible}");
    assert!((1..=2 * possible).contains(&all.sleeps), "{all:?}");
    // Ticks that pass while the client works are missed.
    std::thread::sleep(Duration::from_millis(30));
    assert!(!a.wait(Some(Duration::from_millis(1))).unwrap());
    assert!(a.statistics().ticks_missed >= all.ticks_missed + 25, "{:?}", a.statistics());
    server.stop().unwrap();
}

/// A client that stays awake between ticks notices the server's end, and arriving packets.
#[test]
fn a_client_awake_between_ticks_notices_packets_and_the_end() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    let mut b = attach_waiting(&server, "b", WaitStrategy::TimerDriven(100_000));
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let packet = frame(b.info().mac, a.info().mac, 1);
    for _ in 0..100 {
        a.sender().send_bytes(from_a, &packet).unwrap();
        a.sender().flush().unwrap();
        assert!(is_woken(&mut b));
        assert_eq!(b.receiver().receive(QueuePair::FIRST, 9, |_| ()).unwrap(), 1);
    }
    let waiter = std::thread::spawn(move || b.wait(Some(Duration::from_secs(20))));
    std::thread::sleep(Duration::from_millis(50));
    server.stop().unwrap();
    assert_eq!(waiter.join().unwrap(), Err(Lost::ServerGone));
}

/// Two sessions, of which one sends packets to the other.
struct Coalesced {
    server: Server,
    far: loopback::LoopbackDevice,
    a: Session,
    b: Session,
    from_a: towpath_client::Endpoint,
    to_b: towpath_client::Endpoint,
    packet: Vec<u8>,
}

impl Coalesced {
    fn new() -> Coalesced {
        let (server, far) = serve(EngineStrategy::Block);
        let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
        let rule = Rule::new().ethertype(0x88b5);
        let (from_a, to_b) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
        let packet = frame(b.info().mac, a.info().mac, 1);
        Coalesced { server, far, a, b, from_a, to_b, packet }
    }

    /// Sends a packet, and waits until the engine has handled it, in a poll iteration of its own.
    fn send(&mut self) {
        self.a.sender().send_bytes(self.from_a, &self.packet).unwrap();
        self.a.sender().flush().unwrap();
        let until = std::time::Instant::now() + PATIENCE;
        while self.a.sender().unsent(QueuePair::FIRST).unwrap() > 0 {
            assert!(std::time::Instant::now() < until, "the packet is not sent");
            std::thread::yield_now();
        }
        // The engine executes this after the notifications of that poll iteration.
        set(&self.server, Setting::TickHz, 1000);
    }

    /// Takes the notification and the packets, and returns their number.
    fn take(&mut self) -> usize {
        assert!(is_notified(&self.b, PATIENCE));
        self.b.take_notifications();
        self.b.disarm();
        self.b.receiver().receive(QueuePair::FIRST, 99, |_| ()).unwrap()
    }
}

/// Sends 10 packets to a client whose notifications are deferred for 10 packets or a second.
/// Returns `false` if that took longer than a second.
fn is_notified_of_ten() -> bool {
    const LONGEST: Duration = Duration::from_secs(1);
    let mut both = Coalesced::new();
    both.b.set(both.to_b, Setting::RxFrames, 10).unwrap();
    both.b.set(both.to_b, Setting::RxUsecs, LONGEST.as_micros() as u64).unwrap();
    let start = std::time::Instant::now();
    // A client that polls finds waiting packets; the engine defers only the notification.
    both.send();
    assert_eq!(both.b.receiver().receive(QueuePair::FIRST, 9, |_| ()).unwrap(), 1);
    assert!(!both.b.arm().unwrap(), "the client took the packet");
    // The packet that the client took without a notification counts.
    for number in 2..10 {
        both.send();
        if is_notified(&both.b, Duration::ZERO) {
            assert!(start.elapsed() >= LONGEST, "notified of {number} packets");
            return false;
        }
    }
    both.send();
    assert_eq!(both.take(), 9);
    let in_time = start.elapsed() < LONGEST;
    assert!(!in_time || device_counter(&both.server, "notifications_merged") == 9);
    both.server.stop().unwrap();
    in_time
}

/// The engine defers notifications to a client until enough packets have come, and at most for the
/// set time.
#[test]
fn notifications_to_the_client_are_deferred() {
    // On a loaded machine, the packets may take longer than the engine defers a notification.
    let until = std::time::Instant::now() + PATIENCE;
    while !is_notified_of_ten() {
        assert!(std::time::Instant::now() < until, "ten packets always take a second");
    }
    // With fewer packets, the engine notifies after the set time.
    let mut both = Coalesced::new();
    both.b.set(both.to_b, Setting::RxFrames, 10).unwrap();
    both.b.set(both.to_b, Setting::RxUsecs, 30_000).unwrap();
    assert!(!both.b.arm().unwrap(), "no packet came");
    let start = std::time::Instant::now();
    both.send();
    assert_eq!(both.take(), 1);
    assert!(start.elapsed() >= Duration::from_millis(25), "{:?}", start.elapsed());
    let Coalesced { server, far: _far, mut b, to_b, .. } = both;
    // An application sets only its own endpoints, not another's.
    let other = b.set(to_b, Setting::Wait, 0).unwrap_err().to_string();
    assert!(other.contains("it is the device's"), "{other}");
    let wrong = b.set(to_b, Setting::RxFrames, 65_536).unwrap_err().to_string();
    assert!(wrong.contains("0 to 65535"), "{wrong}");
    server.stop().unwrap();
}

/// The client wakes the server once for several flushes, and in any case before the application
/// sleeps.
#[test]
fn notifications_to_the_server_are_deferred() {
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let packet = frame(b.info().mac, a.info().mac, 1);
    a.sender().defer_notifications(10, Duration::from_secs(10));
    std::thread::sleep(Duration::from_millis(50));
    for number in 1..=20 {
        a.sender().send_bytes(from_a, &packet).unwrap();
        a.sender().flush().unwrap();
        if number == 9 {
            assert_eq!(a.statistics().notifications, 0);
            assert!(!b.wait(Some(Duration::from_millis(50))).unwrap(), "the server was woken");
        }
        if number == 10 {
            assert_eq!(a.statistics().notifications, 1);
        }
    }
    assert!(b.wait(Some(PATIENCE)).unwrap());
    a.sender().send_bytes(from_a, &packet).unwrap();
    a.sender().flush().unwrap();
    let mut got = 0;
    // The client sends the notification before it sleeps.
    assert!(!a.wait(Some(Duration::from_millis(1))).unwrap());
    while got < 21 {
        assert!(b.wait(Some(PATIENCE)).unwrap(), "{got}");
        got += b.receiver().receive(QueuePair::FIRST, 99, |_| ()).unwrap();
    }
    let statistics = a.statistics();
    assert!(statistics.notifications + statistics.notifications_suppressed <= 4, "{statistics:?}");
    assert!(statistics.notifications_deferred >= 9, "{statistics:?}");
    // After the delay, the next wait sends the notification.
    a.sender().defer_notifications(10, Duration::from_millis(5));
    a.sender().send_bytes(from_a, &packet).unwrap();
    a.sender().flush().unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert!(!a.wait(Some(Duration::ZERO)).unwrap());
    assert!(b.wait(Some(PATIENCE)).unwrap());
    server.stop().unwrap();
}

/// Each suppression of notifications to the server can be switched off, to measure its effect.
#[test]
fn suppression_of_notifications_to_the_server_is_optional() {
    let (server, _far) = serve(EngineStrategy::Poll);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let packet = frame(b.info().mac, a.info().mac, 1);
    let mut send = |saving: bool| {
        a.sender().set_notification_suppression(saving);
        let before = a.statistics().notifications;
        for _ in 0..50 {
            a.sender().send_bytes(from_a, &packet).unwrap();
            a.sender().flush().unwrap();
        }
        a.statistics().notifications - before
    };
    // At most one, if the engine had parked the session.
    assert!(send(true) <= 1, "notifications to a server that never sleeps");
    assert_eq!(send(false), 50);
    // Without early notifications, a nearly full queue waits even for a long delay.
    set(&server, Setting::Wait, EngineStrategy::Block as u64);
    a.sender().set_notification_suppression(true);
    a.sender().defer_notifications(1000, Duration::from_secs(100));
    eventually_sent(&mut a);
    let fill = |a: &mut Session| {
        for _ in 0..200 {
            a.sender().send_bytes(from_a, &packet).unwrap();
        }
        a.sender().flush().unwrap();
    };
    a.sender().set_early_notification(false);
    let before = a.statistics();
    fill(&mut a);
    let now = a.statistics();
    assert_eq!((now.notifications, now.notifications_early), (before.notifications, 0));
    assert_eq!(now.notifications_deferred, before.notifications_deferred + 1);
    a.sender().flush_now().unwrap();
    eventually_sent(&mut a);
    a.sender().set_early_notification(true);
    fill(&mut a);
    assert_eq!(a.statistics().notifications_early, 1);
    server.stop().unwrap();
}

fn eventually_sent(session: &mut Session) {
    let until = std::time::Instant::now() + PATIENCE;
    while session.sender().unsent(QueuePair::FIRST).unwrap() > 0 {
        assert!(std::time::Instant::now() < until, "packets are unsent");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Then the engine falls asleep.
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn to_the_far_end_and_back() {
    use towpath_device_testing::conformance::FarEnd;
    let (server, far) = serve(EngineStrategy::Block);
    let mut far = DeviceFarEnd::new(Box::new(far));
    let mut a = attach(&server, "a");
    let endpoint = a.open(&Rule::new().ethertype(0x88b5).with_group()).unwrap();
    let mac = a.info().mac;
    let other = [2, 9, 9, 9, 9, 9];
    for number in 0..300 {
        a.sender().send_bytes(endpoint, &frame(other, mac, number)).unwrap();
        a.sender().flush().unwrap();
        let until = std::time::Instant::now() + PATIENCE;
        let (seen, _) = loop {
            assert!(std::time::Instant::now() < until, "nothing arrived");
            if let Some(seen) = far.receive() {
                break seen;
            }
        };
        assert_eq!(seen, frame(other, mac, number));
        for to in [mac, [0xff; 6].into()] {
            assert!(far.send(&frame(to, other, number), Meta::FULL));
            assert!(a.wait(Some(PATIENCE)).unwrap());
            assert_eq!(
                a.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
                frame(to, other, number)
            );
        }
    }
    server.stop().unwrap();
}

#[test]
fn wildcard_rules_receive_packets_without_a_closer_rule() {
    use towpath_device_testing::conformance::FarEnd;
    use towpath_packet::build::Flow;
    let (server, far) = serve(EngineStrategy::Block);
    let mut far = DeviceFarEnd::new(Box::new(far));
    let mut a = attach(&server, "a");
    let mac = a.info().mac;
    let elsewhere = [2, 9, 9, 9, 9, 9];
    let flow = Flow::v4().macs(elsewhere, mac).ports(7, 53);
    let own = a.open(&Rule::new()).unwrap();
    let anything = a.open(&Rule::new().any_mac().any_vlan()).unwrap();
    let port = a.open(&Rule::new().any_mac().any_vlan().port(53)).unwrap();
    let client = a.open(&Rule::new().remote_ip(flow.source).remote_port(7).any_vlan()).unwrap();
    let strange = Flow { destination_mac: elsewhere, ..flow };
    for (packet, endpoint) in [
        (flow.ports(8, 54).udp(b"x"), own),
        (flow.ports(8, 54).vlan(7).udp(b"x"), anything),
        (strange.ports(8, 54).udp(b"x"), anything),
        (strange.vlan(9).udp(b"x"), port),
        // The other rule has more fields, MAC address and VLAN, but the VLAN does not match.
        (flow.ports(8, 53).vlan(9).udp(b"x"), port),
        (flow.udp(b"x"), client),
        (flow.vlan(9).udp(b"x"), client),
        (flow.who_has(), own),
    ] {
        // An ARP request is a broadcast: here it goes to one endpoint.
        let mut packet = packet;
        if packet[0] & 1 != 0 {
            packet[..6].copy_from_slice(&mac.octets());
        }
        assert!(far.send(&packet, Meta::FULL));
        assert!(a.wait(Some(PATIENCE)).unwrap());
        let mut got = None;
        a.receiver().receive(QueuePair::FIRST, 1, |packet| got = Some(packet.endpoint())).unwrap();
        assert_eq!(got, Some(endpoint.id()), "{packet:02x?}");
    }
    // The endpoint may receive for any MAC address, but not send from any.
    a.sender().send_bytes(anything, &frame(mac, elsewhere, 1)).unwrap();
    a.sender().send_bytes(anything, &frame(elsewhere, mac, 2)).unwrap();
    a.sender().flush().unwrap();
    let until = std::time::Instant::now() + PATIENCE;
    while a.sender().unsent(QueuePair::FIRST).unwrap() > 0 {
        assert!(std::time::Instant::now() < until, "nothing was sent");
    }
    let counters = a.counters(anything).into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(counters["tx_dropped_source_mac"], 1);
    server.stop().unwrap();
}

#[test]
fn a_full_queue_is_back_pressure_and_room_wakes() {
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let endpoint = a.open(&rule).unwrap();
    let theirs = b.open(&rule).unwrap();
    let packet = frame(b.info().mac, a.info().mac, 1);
    let mut sent = 0u64;
    for _ in 0..20_000 {
        loop {
            match a.sender().send_bytes(endpoint, &packet) {
                Ok(()) => break,
                Err(SendError::Full) => {
                    a.sender().want_room(QueuePair::FIRST).unwrap();
                    assert!(a.wait(Some(PATIENCE)).unwrap(), "no room came");
                    a.receiver().receive(QueuePair::FIRST, 1, |_| ()).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        sent += 1;
    }
    a.sender().flush().unwrap();
    while a.sender().unsent(QueuePair::FIRST).unwrap() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The receiver read no packet: its buffers are full, and the engine dropped and counted the
    // rest.
    let received = b.counters(theirs).into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(received["rx_packets"] + received["rx_dropped_no_buffers"], sent);
    assert_eq!(received["rx_packets"], 256);
    server.stop().unwrap();
}

/// A report of room that the application did not ask for does not suppress the next one.
#[test]
fn each_request_for_room_is_answered() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    for _ in 0..3 {
        a.sender().want_room(QueuePair::FIRST).unwrap();
        assert!(is_woken(&mut a), "there is room");
    }
    server.stop().unwrap();
}

/// A wait flushes the packets that the application queued before it, whatever its wait strategy.
#[test]
fn queued_packets_are_flushed_before_a_wait() {
    for waiting in [
        WaitStrategy::Block,
        WaitStrategy::Poll,
        WaitStrategy::SpinThenBlock,
        WaitStrategy::SpinFor(Duration::from_millis(1)),
        WaitStrategy::TimerDriven(1000),
    ] {
        let (server, _far) = serve(EngineStrategy::Block);
        let (mut a, mut b) = (attach_waiting(&server, "a", waiting), attach(&server, "b"));
        let rule = Rule::new().ethertype(0x88b5);
        let (from_a, _) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
        let packet = frame(b.info().mac, a.info().mac, 1);
        a.sender().send_bytes(from_a, &packet).unwrap();
        assert!(!a.wait(Some(Duration::from_millis(20))).unwrap(), "no packet was sent to a");
        assert!(is_woken(&mut b), "{waiting:?}");
        server.stop().unwrap();
    }
}

/// A deadline beyond the clock's range never expires.
#[test]
fn deadlines_beyond_the_clocks_range_never_expire() {
    let (server, _far) = serve(EngineStrategy::Block);
    for waiting in [
        WaitStrategy::Block,
        WaitStrategy::Poll,
        WaitStrategy::SpinThenBlock,
        WaitStrategy::SpinFor(Duration::from_millis(1)),
        WaitStrategy::TimerDriven(50_000),
    ] {
        let mut b = attach_waiting(&server, "b", waiting);
        for longest in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 62)]
        {
            b.sender().want_room(QueuePair::FIRST).unwrap();
            assert!(b.wait(Some(longest)).unwrap(), "{waiting:?}, {longest:?}");
        }
    }
    let mut a = attach(&server, "a");
    let waiter = std::thread::spawn(move || a.wait(Some(Duration::from_secs(1 << 62))));
    std::thread::sleep(Duration::from_millis(50));
    server.stop().unwrap();
    assert_eq!(waiter.join().unwrap(), Err(Lost::ServerGone), "the wait did not sleep");
}

#[test]
fn the_servers_end_is_noticed_at_once() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    a.open(&Rule::new()).unwrap();
    // Only the server's end can end this wait.
    let waiter = std::thread::spawn(move || a.wait(None));
    std::thread::sleep(Duration::from_millis(100));
    server.stop().unwrap();
    assert_eq!(waiter.join().unwrap(), Err(Lost::ServerGone));
}

#[test]
fn forged_packets_are_counted_and_not_sent() {
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let endpoint = a.open(&rule).unwrap();
    b.open(&rule).unwrap();
    // Another endpoint's address.
    a.sender().send_bytes(endpoint, &frame(b.info().mac, [2, 1, 1, 1, 1, 1], 1)).unwrap();
    // Another ethertype than the rule's.
    let mut other = frame(b.info().mac, a.info().mac, 2);
    other[13] = 0xb6;
    a.sender().send_bytes(endpoint, &other).unwrap();
    let good = frame(b.info().mac, a.info().mac, 3);
    a.sender().send_bytes(endpoint, &good).unwrap();
    a.sender().flush().unwrap();
    assert!(b.wait(Some(PATIENCE)).unwrap());
    assert_eq!(
        b.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
        frame(b.info().mac, a.info().mac, 3)
    );
    let counters: std::collections::BTreeMap<_, _> = a.counters(endpoint).into_iter().collect();
    assert_eq!(counters["tx_dropped_source_mac"], 1);
    assert_eq!(counters["tx_dropped_outside_rule"], 1);
    server.stop().unwrap();
}

#[test]
fn a_flow_rule_belongs_to_one_endpoint() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    let rule = Rule::new().udp(53);
    let endpoint = a.open(&rule).unwrap();
    let twice = a.open(&rule).unwrap_err().to_string();
    assert!(twice.contains("same flow rule"), "{twice}");
    a.close(endpoint).unwrap();
    a.open(&rule).unwrap();
    let stolen = a.open(&Rule::new().ip("10.77.0.9".parse().unwrap())).unwrap_err().to_string();
    assert!(stolen.contains("10.77.0.9"), "{stolen}");
    drop(a);
    let too_large = Options { transmit_slots: 1 << 18, ..Options::default() };
    let refused = Session::attach_over(server.connect().unwrap(), &too_large).unwrap_err();
    assert!(matches!(refused, AttachError::Refused { .. }), "{refused}");
    server.stop().unwrap();
}

/// A session refuses another session's endpoint whose queue pair it does not have.
#[test]
fn another_sessions_endpoint_is_refused() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    let options = Options { queue_pairs: 4, endpoints: 64, ..Options::default() };
    let mut b = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    // The last endpoint's number is also higher than any of session a's.
    let opened = (0..40)
        .map(|port| b.open(&Rule::new().udp(port + 1).queue_pair(QueuePair::new(3))).unwrap());
    let theirs = opened.last().unwrap();
    assert!(
        theirs.queue_pair() == QueuePair::new(3) && theirs.id() >= EndpointId::new(16),
        "{theirs:?}"
    );
    let refused = Err(SendError::NoQueuePair { queue_pair: QueuePair::new(3), queue_pairs: 1 });
    let packet = frame([2, 9, 9, 9, 9, 9], a.info().mac, 1);
    assert_eq!(a.sender().send_bytes(theirs, &packet), refused);
    assert_eq!(a.sender().send_more(theirs, 60, Meta::FULL, |_| ()), refused);
    assert_eq!(a.sender().send_expedited(theirs, &packet[..60]), refused);
    let buffer = a.sender().reserve().unwrap();
    let unsent = buffer.send(&mut a.sender(), theirs, 60).unwrap_err();
    assert_eq!(Err(unsent.error), refused);
    assert_eq!(a.sender().free_buffers(), Ok(255), "the buffer stays reserved");
    drop(unsent.buffer);
    // Each call that takes a queue pair refuses this one.
    let pair = theirs.queue_pair();
    let refused = QueuePairError::NoQueuePair { queue_pair: pair, queue_pairs: 1 };
    assert_eq!(a.sender().has_room(theirs, 60), Err(refused));
    assert_eq!(a.sender().has_room_in(pair, 60), Err(refused));
    assert_eq!(a.sender().slots(pair), Err(refused));
    assert_eq!(a.sender().unsent(pair), Err(refused));
    assert_eq!(a.sender().want_room(pair), Err(refused));
    assert_eq!(a.receiver().receive(pair, 64, |_| ()), Err(refused));
    assert_eq!(a.receiver().receive_one(pair), Err(refused));
    let chosen = a.sender().send_chosen(pair, 60, Meta::FULL, |_| Some(theirs));
    assert_eq!(chosen, Err(refused.into()));
    assert!(a.counters(theirs).iter().all(|(_, count)| count == 0));
    assert!(a.set(theirs, Setting::RxFrames, 2).is_err() && a.close(theirs).is_err());
    // Nothing was queued, and the session continues.
    assert_eq!((a.statistics().sent, a.sender().unsent(QueuePair::FIRST).unwrap()), (0, 0));
    assert_eq!(a.sender().free_buffers().unwrap(), 256);
    a.wait(Some(Duration::ZERO)).unwrap();
    server.stop().unwrap();
}

/// An application writes its answer in place while it reads the packet in place.
#[test]
fn answers_are_sent_from_inside_of_a_receive() {
    const PACKETS: u32 = 1000;
    /// Fewer than a receive queue has buffers: the engine drops none.
    const MOST_ON_THE_WAY: u32 = 128;
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let (server, _far) = serve(mode);
        let (mut a, mut b) = (attach(&server, "asks"), attach(&server, "answers"));
        let rule = Rule::new().ethertype(0x88b5);
        let (from_a, from_b) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
        let (pair, (mac_a, mac_b)) = (from_b.queue_pair(), (a.info().mac, b.info().mac));
        let (mut asked, mut answered) = (0, 0);
        while answered < PACKETS {
            while asked < PACKETS.min(answered + MOST_ON_THE_WAY) {
                let packet = frame(mac_b, mac_a, asked);
                a.sender().send_bytes(from_a, &packet).unwrap();
                asked += 1;
            }
            a.sender().flush().unwrap();
            b.wait(Some(Duration::from_millis(1))).unwrap();
            let (mut sender, mut receiver) = b.split();
            let room = sender.slots(pair).unwrap() - sender.unsent(pair).unwrap();
            receiver
                .receive(pair, room as usize, |packet| {
                    let packet = packet.contiguous().unwrap();
                    let sent = sender.send(from_b, packet.len(), Meta::FULL, |parts| {
                        let [answer] = parts else { panic!("it fits into one buffer") };
                        answer[..6].copy_from_slice(&packet[6..12]);
                        answer[6..12].copy_from_slice(&packet[..6]);
                        answer[12..].copy_from_slice(&packet[12..]);
                    });
                    sent.unwrap();
                })
                .unwrap();
            sender.want_room(pair).unwrap();
            sender.flush().unwrap();
            while answered < asked && a.wait(Some(Duration::from_millis(1))).unwrap() {
                a.receiver()
                    .receive(pair, 64, |packet| {
                        let expected = frame(mac_a, mac_b, answered);
                        assert!(packet.contiguous() == Some(&expected[..]), "answer {answered}");
                        answered += 1;
                    })
                    .unwrap();
            }
        }
        server.stop().unwrap();
    }
}

#[test]
fn reserved_buffers_are_sent_in_any_order_and_freed_once() {
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let endpoint = a.open(&rule).unwrap();
    b.open(&rule).unwrap();
    let slots = a.sender().slots(endpoint.queue_pair()).unwrap() as usize;
    let bytes = a.transmit_buffer_bytes();
    assert_eq!((a.sender().free_buffers().unwrap(), slots, bytes >= 1514), (slots, 256, true));
    let mut buffers: Vec<_> = std::iter::from_fn(|| a.sender().reserve()).collect();
    assert_eq!((buffers.len(), a.sender().free_buffers().unwrap()), (slots, 0));
    let packets: Vec<Vec<u8>> =
        (0..slots).map(|number| frame(b.info().mac, a.info().mac, number as u32)).collect();
    for (buffer, packet) in buffers.iter_mut().zip(&packets) {
        let data = buffer.bytes_mut().unwrap();
        assert_eq!(data.len(), bytes);
        data[..packet.len()].copy_from_slice(packet);
    }
    // All buffers are reserved: the session can send nothing else, and has sent nothing.
    assert_eq!(a.sender().send_bytes(endpoint, &packets[0]), Err(SendError::Full));
    for len in [0, bytes + 1] {
        let length = SendError::Length { len, max: bytes };
        let unsent = buffers.remove(0).send(&mut a.sender(), endpoint, len).unwrap_err();
        assert_eq!(unsent.error, length);
        buffers.insert(0, unsent.buffer);
    }
    assert!(!b.wait(Some(Duration::from_millis(20))).unwrap());
    // The test sends the last buffer first, and the first one not at all.
    for (buffer, packet) in buffers.drain(1..).zip(&packets[1..]).rev() {
        buffer.send(&mut a.sender(), endpoint, packet.len()).unwrap();
    }
    a.sender().flush().unwrap();
    for packet in packets.iter().skip(1).rev() {
        assert!(b.wait(Some(PATIENCE)).unwrap());
        assert_eq!(b.receiver().receive_one(QueuePair::FIRST).unwrap().as_ref(), Some(packet));
    }
    // Another thread may drop a buffer.
    std::thread::spawn(move || drop(buffers)).join().unwrap();
    let until = std::time::Instant::now() + PATIENCE;
    while a.sender().unsent(QueuePair::FIRST).unwrap() > 0 {
        assert!(std::time::Instant::now() < until);
    }
    assert_eq!(a.sender().free_buffers().unwrap(), slots);
    // Another session's buffer is refused here, and returns to that session.
    let theirs = b.sender().reserve().unwrap();
    let unsent = theirs.send(&mut a.sender(), endpoint, 60).unwrap_err();
    assert_eq!(SendError::from(unsent), SendError::OtherSession);
    assert_eq!((a.sender().free_buffers(), b.sender().free_buffers()), (Ok(slots), Ok(slots)));
    // A buffer may live longer than its session.
    let mut last = b.sender().reserve().unwrap();
    drop(b);
    last.bytes_mut().unwrap().fill(1);
    drop(last);
    server.stop().unwrap();
}

/// The engine continues a packet of several buffers without a gap, and the client provides buffers
/// in the order in which it received them. So only a packet across the end of the pool is in two
/// pieces.
#[test]
fn a_packet_of_several_buffers_is_in_one_piece() {
    let (server, _far) = serve(EngineStrategy::Block);
    let mut a = attach(&server, "a");
    let options = Options {
        receive_slots: 64,
        receive_buffer_bytes: 256,
        ..Options { name: "b".into(), ..Options::default() }
    };
    let mut b = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let rule = Rule::new().ethertype(0x88b5);
    let from_a = a.open(&rule).unwrap();
    b.open(&rule).unwrap();
    let (mac_a, mac_b) = (a.info().mac, b.info().mac);
    let (mut number, mut seen, mut chains, mut cut) = (0, 0, 0, 0);
    while seen < 2000 {
        // Several at once, short and long.
        for _ in 0..6 {
            a.sender().send_bytes(from_a, &frame(mac_b, mac_a, number)).unwrap();
            number += 1;
        }
        a.sender().flush().unwrap();
        while seen < number {
            assert!(is_woken(&mut b));
            b.receiver()
                .receive(QueuePair::FIRST, 64, |packet| {
                    let expected = frame(mac_b, mac_a, seen);
                    let pieces: Vec<_> = packet.parts().collect();
                    assert_eq!(pieces.concat(), expected);
                    assert!(pieces.len() <= 2, "packet {seen}: {} pieces", pieces.len());
                    assert_eq!(packet.contiguous().is_some(), pieces.len() == 1);
                    chains += u32::from(expected.len() > 256);
                    cut += u32::from(pieces.len() > 1);
                    seen += 1;
                })
                .unwrap();
        }
    }
    assert!(chains > 1500 && cut > 50 && cut < chains / 8, "{cut} of {chains} cut");
    server.stop().unwrap();
}
