//! The amount sent in a time, in seconds of wall-clock time, on a machine that is not busy.
//! `make test-slow` runs this. The server's tests cover the scheduler's use of any given time,
//! since time is an argument there.

#[path = "suite/senders/mod.rs"]
mod senders;

use std::time::{Duration, Instant};

use towpath_client::{QueuePair, Setting};
use towpath_server::WaitStrategy as EngineStrategy;
use towpath_tests::eventually;

use crate::senders::world;

#[test]
fn a_rate_holds_for_every_queue_and_flag() {
    let mut world = world(EngineStrategy::Block);
    let mut sender = world.sender("limited");
    sender.set(Setting::RatePps, 200);
    sender.set(Setting::Pacing, 1);
    let start = Instant::now();
    let mut came = 0u32;
    while start.elapsed() < Duration::from_millis(1000) {
        // Through both queue pairs, as messages without end and as expedited ones.
        (0..4).for_each(|_| {
            sender.send_more(60);
            sender.small(60);
        });
        sender.session.sender().flush().unwrap();
        while world.receive().is_some() {
            came += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = start.elapsed().as_secs_f64() * 200.0;
    // A message of the greatest length may run ahead of its rate once.
    let ahead = 65_536 / 60 + 2;
    assert!(f64::from(came) <= most + f64::from(ahead), "{came} in {most}");
    // Without messages no packet may run ahead.
    sender.set(Setting::MaxMessageBytes, 0);
    eventually("all is sent, and the rate has caught up", || {
        while world.receive().is_some() {}
        sender.session.sender().unsent(QueuePair::FIRST).unwrap()
            + sender.session.sender().unsent(QueuePair::new(1)).unwrap()
            == 0
    });
    let (start, mut came) = (Instant::now(), 0u32);
    while start.elapsed() < Duration::from_millis(1000) {
        sender.send_more(60);
        sender.small(60);
        sender.session.sender().flush().unwrap();
        while world.receive().is_some() {
            came += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = start.elapsed().as_secs_f64() * 200.0 + 2.0;
    assert!(f64::from(came) <= most, "{came} in {most}");
    // Generous to a busy machine.
    assert!(f64::from(came) >= most * 0.5, "{came} of {most}");
}

#[test]
fn ten_megabits_are_ten_megabits() {
    let mut world = world(EngineStrategy::Block);
    let mut sender = world.sender("limited");
    sender.set(Setting::RateBps, 10_000_000);
    // The machine may be busy in some of the seconds.
    let holds = (0..10).any(|_| {
        let start = Instant::now();
        while world.receive().is_some() {}
        let mut bytes = 0;
        while start.elapsed() < Duration::from_secs(1) {
            sender.fill(1500);
            while let Some((_, _, len)) = world.receive() {
                bytes += len;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let (given, bytes) = (start.elapsed().as_secs_f64() * 1_250_000.0, bytes as f64);
        assert!(bytes <= given + 16_384.0 + 1500.0, "{bytes} of {given}");
        (0.98..=1.02).contains(&(bytes / given))
    });
    assert!(holds, "in no second within 2 %");
}
