//! The wake-up times of applications with deferred notifications (`rx_frames`, `rx_usecs`): the
//! nearest deadline wakes an application, whatever the earlier deadlines were.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{Endpoint, Options, QueuePair, Rule, Session, Setting};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, WaitStrategy as EngineStrategy};
use towpath_tests::{PATIENCE, eventually, frames};

/// Long compared with the other times, and with the delays of a busy machine.
const LONG_US: u64 = 1_000_000;
const SHORT_US: u64 = 20_000;
const BUSY: Duration = Duration::from_millis(700);
/// Slots of a receive queue.
const SLOTS: u32 = 256;

struct World {
    server: Server,
    far: DeviceFarEnd,
    session: Session,
    /// Endpoints with their own queue pairs.
    one: Endpoint,
    other: Endpoint,
}

/// Defers the first endpoint's notifications for long, the second's for `other_us`.
fn world(other_us: u64) -> World {
    world_of(other_us, None)
}

fn world_of(other_us: u64, provided: Option<u32>) -> World {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let config = Config { settings: EngineStrategy::Block.into(), ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let options = Options { queue_pairs: 2, receive_slots: SLOTS, provided, ..Options::default() };
    let mut session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let [one, other] = [(0, LONG_US), (1, other_us)].map(|(queue_pair, us)| {
        let rule = Rule::new()
            .ethertype(frames::ETHERTYPE + queue_pair)
            .queue_pair(QueuePair::new(queue_pair.into()));
        let endpoint = session.open(&rule).unwrap();
        session.set(endpoint, Setting::RxFrames, 100).unwrap();
        session.set(endpoint, Setting::RxUsecs, us).unwrap();
        endpoint
    });
    World { server, far: DeviceFarEnd::new(Box::new(far)), session, one, other }
}

impl World {
    fn received(&self, endpoint: Endpoint) -> u64 {
        self.session.counters(endpoint).rx_packets()
    }

    fn frame(&self, from: [u8; 6], endpoint: Endpoint) -> Vec<u8> {
        let mut frame = frames::frame(self.session.info().mac, from, 1, 0);
        let ethertype = frames::ETHERTYPE + u16::from(endpoint == self.other);
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame
    }

    /// Delivers a packet for an endpoint, in a poll iteration of its own.
    fn comes(&mut self, endpoint: Endpoint) {
        let before = self.received(endpoint);
        assert!(self.far.send(&self.frame(frames::ELSEWHERE, endpoint), Meta::FULL));
        eventually("it is received", || self.received(endpoint) > before);
    }

    /// Makes the application announce its sleep, so that the server assumes that it sleeps.
    fn sleeps(&mut self) {
        assert!(!self.session.arm().unwrap(), "there is nothing yet");
    }

    /// Asserts that the server notified it, and takes the notifications.
    fn was_notified(&mut self) {
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut polled = [PollFd::new(&self.session, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&timeout)).unwrap(), 1, "no notification came");
        self.session.disarm();
        self.session.take_notifications();
        self.takes_all();
    }

    fn takes_all(&mut self) {
        assert!(self.session.poll().unwrap());
        for queue_pair in 0..2 {
            while self.session.receiver().receive(QueuePair::new(queue_pair), 64, |_| {}).unwrap()
                > 0
            {}
        }
        while self.session.poll().unwrap() {}
    }

    fn set(&self, setting: Setting, value: u64) {
        let socket = self.server.connect().unwrap();
        towpath_client::set_over(socket, None, setting, value).unwrap();
    }

    fn counter(&self, name: &str) -> u64 {
        let report = towpath_client::report_over(self.server.connect().unwrap()).unwrap();
        report["device"]["counters"][name].as_u64().unwrap()
    }
}

#[test]
fn the_nearest_deadline_of_a_sessions_queue_pairs_counts() {
    let mut world = world(SHORT_US);
    world.sleeps();
    let start = Instant::now();
    world.comes(world.one);
    let second = Instant::now();
    world.comes(world.other);
    world.was_notified();
    assert!(start.elapsed() < BUSY, "woken at the first deadline: {:?}", start.elapsed());
    assert!(second.elapsed() >= Duration::from_millis(15), "not deferred: {:?}", second.elapsed());
    eventually("one notification for both", || world.counter("notifications") == 1);
    assert_eq!(world.counter("notifications_merged"), 2);
}

#[test]
fn a_deferred_notification_of_several_queue_pairs_counts_once() {
    let mut world = world(SHORT_US);
    let socket = world.server.connect().unwrap();
    let mut near = Session::attach_over(socket, &Options::default()).unwrap();
    let from = near.open(&Rule::new()).unwrap();
    world.sleeps();
    // Sent together, and taken in one poll iteration.
    for endpoint in [world.one, world.other] {
        let frame = world.frame(near.info().mac.octets(), endpoint);
        near.sender().send_bytes(from, &frame).unwrap();
    }
    near.sender().flush().unwrap();
    world.was_notified();
    eventually("it is counted", || world.counter("notifications_merged") > 0);
    assert_eq!(world.counter("notifications_merged"), 1);
}

#[test]
fn rx_usecs_alone_defers_a_notification() {
    let mut world = world(0);
    world.session.set(world.one, Setting::RxFrames, 0).unwrap();
    world.session.set(world.one, Setting::RxUsecs, SHORT_US).unwrap();
    // Other deadlines, which the timer slack may delay together, bring no notification forward.
    world.set(Setting::TimerSlackUs, 100_000);
    world.sleeps();
    let start = Instant::now();
    for _ in 0..3 {
        world.comes(world.one);
    }
    world.was_notified();
    assert!(start.elapsed() >= Duration::from_millis(15), "not deferred: {:?}", start.elapsed());
    eventually("one notification for all", || world.counter("notifications") == 1);
    assert_eq!(world.counter("notifications_merged"), 3);
}

/// The application uses up buffers one after another. A notification depends on whether it has
/// provided them again since, not on how many it used.
#[test]
fn half_used_notification_ignores_refilled_buffers() {
    for provided in [SLOTS, SLOTS / 4] {
        let mut world = world_of(LONG_US, Some(provided));
        world.session.set(world.one, Setting::RxFrames, 0).unwrap();
        for _ in 0..3 * SLOTS / 8 {
            world.sleeps();
            for _ in 0..4 {
                world.comes(world.one);
            }
            // The application polls.
            world.session.disarm();
            world.takes_all();
        }
        assert_eq!(
            (world.counter("notifications"), world.counter("notifications_suppressed")),
            (0, 0),
            "{provided}"
        );
        // The server notifies it once half of its buffers are used.
        world.sleeps();
        for _ in 0..=provided / 2 {
            world.comes(world.one);
        }
        world.was_notified();
        eventually("it is counted", || world.counter("notifications_early") == 1);
        // The server does not if that is switched off.
        world.set(Setting::EarlyNotification, 0);
        world.session.set(world.one, Setting::RxUsecs, SHORT_US).unwrap();
        world.sleeps();
        for _ in 0..=provided / 2 {
            world.comes(world.one);
        }
        world.was_notified();
        eventually("it is counted", || world.counter("notifications") == 2);
        assert_eq!(world.counter("notifications_early"), 1);
    }
}

#[test]
fn an_immediate_notification_leaves_no_deadline_behind() {
    let mut world = world(0);
    world.sleeps();
    let start = Instant::now();
    world.comes(world.one);
    world.comes(world.other);
    world.was_notified();
    world.session.set(world.one, Setting::RxUsecs, SHORT_US).unwrap();
    world.sleeps();
    let second = Instant::now();
    world.comes(world.one);
    world.was_notified();
    assert!(start.elapsed() < BUSY, "woken at an old deadline: {:?}", start.elapsed());
    assert!(second.elapsed() >= Duration::from_millis(15), "not deferred: {:?}", second.elapsed());
    eventually("both notifications are counted", || world.counter("notifications") == 2);
}

#[test]
fn a_shorter_deadline_applies_to_waiting_packets() {
    for us in [0, SHORT_US] {
        let mut world = world(SHORT_US);
        world.sleeps();
        let start = Instant::now();
        world.comes(world.one);
        world.session.set(world.one, Setting::RxUsecs, us).unwrap();
        world.was_notified();
        assert!(start.elapsed() < BUSY, "{us}: woken at the old deadline: {:?}", start.elapsed());
        eventually("it is counted", || world.counter("notifications") == 1);
    }
}
