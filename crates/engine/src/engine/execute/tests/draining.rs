//! Tests of sessions that drain when the device takes few packets.

use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};

use super::*;
use crate::draining::DRAIN_NS;
use crate::testing::Application;

/// The number of packets of each session.
const PACKETS: u32 = 2;

/// An engine whose device takes one packet until the far end receives it, and whose sessions have packets.
struct Blocked {
    world: World,
    far: DeviceFarEnd,
    sessions: u32,
    _applications: Vec<Application>,
}

impl Blocked {
    fn new(sessions: u32) -> Blocked {
        let device = loopback::Config { ring_packets: 1, ..loopback::Config::default() };
        let mut world = World::over(WaitStrategy::Block, &device);
        let mut applications = Vec::new();
        for number in 1..=sessions {
            let (session, application) = session(number);
            world.give(Command::AddSession(session));
            let port = PORT + number as u16;
            let (endpoint, listening, group) = (Box::new(endpoint(port)), None, false);
            let session = number;
            let command = Command::AddEndpoint { session, number: 0, endpoint, listening, group };
            world.give(command);
            applications.push(application);
        }
        world.poll_until_done();
        for (number, application) in (1..).zip(&mut applications) {
            (0..PACKETS).for_each(|buffer| application.send(buffer, 0, &outward(PORT + number)));
        }
        let far = DeviceFarEnd::new(Box::new(world.take_far()));
        Blocked { world, far, sessions, _applications: applications }
    }

    fn end(&mut self, number: u32, at_once: bool) {
        self.world.give(Command::RemoveSession { number, reason: 0, at_once });
    }

    fn lives(&self, number: u32) -> bool {
        self.world.engine.sessions.key(number).is_some()
    }

    fn ended_packets(&self) -> u64 {
        self.world.engine.counters.get(Count::TxEnded)
    }

    /// Runs poll iterations until all sessions have ended. Returns the number of packets that the far end received.
    fn finish(&mut self, receives: bool) -> u64 {
        let mut received = 0;
        while (1..=self.sessions).any(|number| self.lives(number)) {
            self.world.engine.poll_once().unwrap();
            while receives && self.far.receive().is_some() {
                received += 1;
            }
        }
        while self.far.receive().is_some() {
            received += 1;
        }
        received
    }
}

/// Repeats a test that has to end before the time limit of its draining sessions: the machine may be busy. `test`:
/// returns the time at which the first session ended, and the test's result.
fn in_time<T>(test: impl Fn() -> (u64, T)) -> T {
    for _ in 0..50 {
        let (began, learned) = test();
        if clock_ns() - began < DRAIN_NS {
            return learned;
        }
    }
    panic!("this machine never got through the test in time");
}

#[test]
fn a_device_that_takes_nothing_holds_a_session_for_a_limited_time() {
    let mut blocked = Blocked::new(1);
    blocked.world.poll_once();
    let began = clock_ns();
    blocked.end(1, false);
    let received = blocked.finish(false);
    assert!(clock_ns() - began >= DRAIN_NS);
    assert_eq!(received + blocked.ended_packets(), u64::from(PACKETS), "each left or is counted");
    assert!(blocked.ended_packets() > 0);
}

#[test]
fn a_command_to_end_at_once_ends_a_draining_session() {
    let lived = in_time(|| {
        let mut blocked = Blocked::new(1);
        let began = clock_ns();
        let lives = [false, true].map(|at_once| {
            blocked.end(1, at_once);
            for _ in 0..4 {
                blocked.world.engine.poll_once().unwrap();
            }
            blocked.lives(1)
        });
        (began, (lives, blocked.ended_packets() > 0))
    });
    assert_eq!(lived, ([true, false], true));
}

/// The draining sessions of one user take no room from those of another.
#[test]
fn any_number_of_sessions_drains() {
    const SESSIONS: u32 = 70;
    let learned = in_time(|| {
        let mut blocked = Blocked::new(SESSIONS);
        let began = clock_ns();
        (1..=SESSIONS).for_each(|number| blocked.end(number, false));
        let mut commands = 0;
        while commands < SESSIONS as usize {
            commands += blocked.world.poll_once();
        }
        let lived = (1..=SESSIONS).filter(|number| blocked.lives(*number)).count();
        let received = blocked.finish(true);
        (began, (lived, received, blocked.ended_packets()))
    });
    assert_eq!(learned, (SESSIONS as usize, u64::from(SESSIONS * PACKETS), 0));
}

/// The queue pairs lie in memory that the application shares, and that the engine has not touched for long.
#[test]
fn the_end_of_a_session_touches_a_few_queue_pairs_per_iteration() {
    const QUEUE_PAIRS: u32 = 1000;
    for at_once in [false, true] {
        let mut world = World::new(WaitStrategy::Poll);
        world.attach(QUEUE_PAIRS, 1);
        world.poll_until_done();
        world.give(Command::RemoveSession { number: 1, reason: 0, at_once });
        let walks = if at_once { 1 } else { 2 };
        let iterations = world.poll_until_done();
        assert!(iterations >= walks * QUEUE_PAIRS as usize / CLOSED_PER_ITERATION, "{iterations}");
        assert_eq!(world.engine.sessions.key(1), None);
    }
}
