//! Tests of an engine without a control thread: the number of commands per poll iteration, and that
//! the engine sleeps over none of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use towpath_device_testing::loopback;
use towpath_protocol::counters::Device as Count;
use towpath_protocol::layout::SessionShape;
use towpath_protocol::settings::Values;
use towpath_queue::descriptor::EXPEDITED;

use super::*;
use crate::WaitStrategy;
use crate::clock::clock_ns;
use crate::closing::CLOSED_PER_ITERATION;
use crate::rights::{Addresses, Rights};
use crate::schedule::Stop;
use crate::schedule::shape::Class;
use crate::testing::{MAC, PORT, endpoint, outward, rule, session};
use crate::wait::COMMAND_ROUNDS_THROTTLED;
use crate::wiring::{self, BUDGETS, Wired};

mod closing;
mod draining;
mod taking_over;

struct World {
    engine: Engine,
    commands: Sender<(u64, Command)>,
    reports: Receiver<EngineReport>,
    wake: Arc<OwnedFd>,
    /// `None` once a test has taken it.
    far: Option<loopback::LoopbackDevice>,
}

impl World {
    fn new(strategy: WaitStrategy) -> World {
        World::over(strategy, &loopback::Config::default())
    }

    fn over(strategy: WaitStrategy, device: &loopback::Config) -> World {
        let (mut near, far) = loopback::pair(device).unwrap();
        let mut values = Values::from(strategy);
        values.set(Setting::TickHz, 1).unwrap();
        let Wired { engine, commands, reports, wake } =
            Wired::new(&mut near, &values, BUDGETS).unwrap();
        World { engine, commands, reports, wake, far: Some(far) }
    }

    /// Returns the other end of the device's wire.
    fn take_far(&mut self) -> loopback::LoopbackDevice {
        self.far.take().unwrap()
    }

    /// Sends a command without a notification.
    fn give(&self, command: Command) {
        self.commands.send((0, command)).unwrap();
    }

    fn set(&self, setting: Setting, session: u32, value: u64) {
        self.give(Command::Set { setting, session, endpoint: 0, value });
    }

    /// Attaches a session, and endpoints for ports.
    fn attach(&self, queue_pairs: u32, endpoints: u32) {
        self.attach_as(1, queue_pairs, endpoints);
    }

    fn attach_as(&self, session: u32, queue_pairs: u32, endpoints: u32) {
        let shape = SessionShape::new(queue_pairs, endpoints, 8, 8, 128, 128).unwrap();
        let (attached, _) = wiring::bare_session(session, shape).unwrap();
        self.give(Command::AddSession(attached));
        for number in 0..endpoints {
            let rule = rule(number as u16);
            let addresses = Addresses { ipv4: None, ipv6: [None; 2] };
            let rights = Rights::new(rule, MAC, addresses);
            let endpoint = Box::new(wiring::endpoint(rule, rights));
            self.give(Command::AddEndpoint {
                session,
                number,
                endpoint,
                listening: None,
                group: false,
            });
        }
    }

    /// Runs one poll iteration, and returns the number of commands executed.
    fn poll_once(&mut self) -> usize {
        assert!(self.engine.poll_once().unwrap() > 0 || !self.engine.has_commands_left());
        self.reports.try_iter().filter(|event| matches!(event, EngineReport::Done { .. })).count()
    }

    fn sleeps(&self) -> u64 {
        self.engine.counters.get(Count::Sleeps)
    }

    /// Runs poll iterations, each with the strategy's pause, until no command is left.
    fn poll_until_done(&mut self) -> usize {
        let mut iterations = 0;
        loop {
            let work = self.engine.poll_once().unwrap();
            iterations += 1;
            if !self.engine.has_commands_left() {
                return iterations;
            }
            assert!(work > 0 && !self.engine.is_idle());
            self.engine.pause(work).unwrap();
        }
    }
}

#[test]
fn an_iteration_executes_a_bounded_number_of_commands() {
    let mut world = World::new(WaitStrategy::Block);
    for _ in 0..40 {
        world.set(Setting::NotificationSuppression, 0, 1);
    }
    let mut left = Vec::new();
    for followed in [16, 16, 8, 0] {
        assert_eq!(world.poll_once(), followed);
        left.push(world.engine.has_commands_left());
    }
    assert_eq!(left, [true, true, false, false]);
    assert!(world.engine.is_idle());
    // The test sends as many commands as the engine executes per poll iteration, so the engine must
    // check for more.
    for _ in 0..16 {
        world.set(Setting::NotificationSuppression, 0, 1);
    }
    assert_eq!((world.poll_once(), world.engine.has_commands_left()), (16, true));
    assert_eq!((world.poll_once(), world.engine.has_commands_left()), (0, false));
}

#[test]
fn no_wait_strategy_sleeps_while_commands_are_left() {
    for strategy in WaitStrategy::ALL {
        let mut world = World::new(strategy);
        for _ in 0..100 {
            world.set(Setting::NotificationSuppression, 0, 1);
        }
        assert_eq!(world.poll_until_done(), 7, "{strategy:?}");
        assert_eq!(world.reports.try_iter().count(), 100, "{strategy:?}");
        // A session ends, a few of its endpoints per poll iteration.
        world.attach(1, 1000);
        world.poll_until_done();
        world.give(Command::RemoveSession { number: 1, reason: 0, at_once: false });
        assert!(world.poll_until_done() >= 1000 / CLOSED_PER_ITERATION, "{strategy:?}");
        let removed =
            world.reports.try_iter().filter(|one| matches!(one, EngineReport::Removed(_)));
        assert_eq!((removed.count(), world.sleeps()), (1, 0), "{strategy:?}");
    }
}

/// Sessions that take turns run out of endpoints at the same time.
#[test]
fn an_iteration_removes_a_bounded_number_of_emptied_sessions() {
    let mut world = World::new(WaitStrategy::Poll);
    for number in 1..=150 {
        world.attach_as(number, 1, 1);
    }
    world.poll_until_done();
    (0..150).for_each(|key| world.engine.begin_closing(key, 0));
    world.reports.try_iter().for_each(drop);
    let removed = |world: &mut World| {
        world.engine.continue_closing();
        let all = world.reports.try_iter();
        all.filter(|one| matches!(one, EngineReport::Removed(_))).count()
    };
    let removed: Vec<usize> = (0..8).map(|_| removed(&mut world)).collect();
    assert_eq!(removed, [0, 0, 0, 0, 20, 64, 64, 2]);
}

/// The control thread gives a closed endpoint's port away as soon as the engine has executed the
/// command. So the flow rule must be gone then, even if the session ends meanwhile.
#[test]
fn an_endpoint_of_an_ending_session_is_closed_before_its_turn() {
    let mut world = World::new(WaitStrategy::Poll);
    world.attach(1, 300);
    world.poll_until_done();
    world.give(Command::RemoveSession { number: 1, reason: 0, at_once: false });
    world.give(Command::RemoveEndpoint { session: 1, number: 299 });
    world.engine.poll_once().unwrap();
    let left = world.engine.flows.len();
    assert!(left > 0 && left < 300, "{left} rules are left");
    let destination = Destination { session: 99, endpoint: 0 };
    assert!(world.engine.flows.insert(&rule(299), false, destination), "the rule is another's");
    assert!(!world.engine.flows.insert(&rule(298), false, destination));
    world.poll_until_done();
    assert_eq!(world.engine.flows.len(), 1);
}

/// An awake engine asks for notifications between its check for commands and its sleep. It consumes
/// the notification of a command that came after the check, and that notification does not end the
/// sleep.
#[test]
fn a_command_whose_notification_was_taken_prevents_sleep() {
    for strategy in [
        WaitStrategy::Block,
        WaitStrategy::SpinThenBlock,
        WaitStrategy::TimerDriven,
        WaitStrategy::Auto,
    ] {
        let mut world = World::new(strategy);
        assert_eq!(world.poll_once(), 0);
        world.set(Setting::NotificationSuppression, 0, 1);
        rustix::io::write(&*world.wake, &1u64.to_ne_bytes()).unwrap();
        world.engine.ask().unwrap();
        assert!(world.engine.has_commands_left() && !world.engine.is_idle(), "{strategy:?}");
        world.engine.pause(1).unwrap();
        assert_eq!((world.sleeps(), world.poll_once()), (0, 1), "{strategy:?}");
    }
}

/// Returns an engine that sleeps some hundred milliseconds at its next pause, whatever work there
/// is.
fn throttled() -> World {
    let mut world = World::new(WaitStrategy::Auto);
    world.set(Setting::CpuPercent, 0, 1);
    world.poll_until_done();
    // The cost of a wake-up on this machine decides whether this sleeps; it ends at once.
    rustix::io::write(&*world.wake, &1u64.to_ne_bytes()).unwrap();
    world.engine.pause(0).unwrap();
    // The engine has to sleep some hundred milliseconds for it.
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_nsec;
    let before = used();
    while used() - before < 6_000_000 && used() >= before {}
    world.reports.try_iter().for_each(drop);
    world
}

/// A stream of commands does not delay the poll iteration that follows a throttled sleep.
#[test]
fn a_throttled_engine_takes_commands_a_few_times() {
    let mut world = throttled();
    let (commands, wake) = (world.commands.clone(), world.wake.clone());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let giver = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let (setting, session, endpoint) = (Setting::NotificationSuppression, 0, 0);
                commands.send((0, Command::Set { setting, session, endpoint, value: 1 })).unwrap();
                rustix::io::write(&*wake, &1u64.to_ne_bytes()).unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let paused = world.engine.pause(1);
        over.store(true, Ordering::Relaxed);
        giver.join().unwrap();
        paused.unwrap();
    });
    let followed = world.reports.try_iter().count();
    let most = COMMAND_ROUNDS_THROTTLED * COMMANDS_PER_ITERATION;
    assert!((1..=most).contains(&followed), "{followed} commands in one sleep");
}

/// A throttled engine stops at once, even by the last command before it takes no more commands: it does
/// not sleep until its processor time is paid for.
#[test]
fn a_stop_ends_a_throttled_sleep() {
    // If this thread gets no processor for long, the sleep is over before the last command.
    for _ in 0..20 {
        let mut world = throttled();
        let before = (COMMAND_ROUNDS_THROTTLED - 1) * COMMANDS_PER_ITERATION;
        for _ in 0..before {
            world.set(Setting::NotificationSuppression, 0, 1);
        }
        world.give(Command::Stop);
        rustix::io::write(&*world.wake, &1u64.to_ne_bytes()).unwrap();
        world.engine.pause(1).unwrap();
        if world.reports.try_iter().count() == before + 1 {
            assert!(world.engine.wait.is_throttled(), "the engine sleeps to the end");
            return;
        }
    }
    panic!("the command to stop was never executed in a sleep");
}

/// Settings of an endpoint concern its expedited packets, which wait in any queue pair. The engine
/// checks all queue pairs again, a few per poll iteration, however often a setting changes.
#[test]
fn queue_pairs_are_rechecked_a_few_per_iteration() {
    const SETS: usize = 200;
    let mut world = World::new(WaitStrategy::Block);
    world.attach(SETS as u32, 1);
    world.poll_until_done();
    let units: Vec<u32> = {
        let session = world.engine.sessions.get_mut(0).unwrap();
        session.transmit.queues().map(|queue| queue.unit).collect()
    };
    let waiting = |world: &World| {
        units.iter().filter(|unit| world.engine.tx.schedule().is_active(**unit)).count()
    };
    // No unit waits, so the engine checks none.
    world.set(Setting::Pacing, 1, 1);
    world.poll_once();
    assert!(!world.engine.has_commands_left());
    for unit in &units {
        let schedule = world.engine.tx.schedule_mut();
        schedule.enter(*unit, Class::default(), false, 0);
        assert_eq!(schedule.next(true).unwrap().unit, *unit);
        schedule.more(*unit, Stop::Until(u64::MAX), 0);
    }
    assert_eq!(waiting(&world), SETS);
    for left in [136, 72, 8] {
        world.set(Setting::Pacing, 1, 0);
        world.set(Setting::Pacing, 1, 1);
        world.poll_once();
        assert_eq!(waiting(&world), left);
        assert!(world.engine.has_commands_left());
    }
    world.poll_once();
    assert_eq!(waiting(&world), 0);
    // The last setting came after the engine had checked some queue pairs, which it checks once
    // more.
    world.poll_until_done();
    assert_eq!(world.sleeps(), 0);
    // The engine does not check a session that ends meanwhile.
    for unit in &units {
        let schedule = world.engine.tx.schedule_mut();
        schedule.enter(*unit, Class::default(), false, 0);
        schedule.next(true).unwrap();
        schedule.more(*unit, Stop::Until(u64::MAX), 0);
    }
    world.set(Setting::Pacing, 1, 0);
    world.give(Command::RemoveSession { number: 1, reason: 0, at_once: false });
    world.poll_until_done();
    assert!(world.engine.sessions.get(0).is_none() && !world.engine.tx.has_to_recheck());
}

/// A session violates the protocol while its packets wait for the device, and none is in flight.
/// It ends in the same poll iteration, and nothing of it meets the next session with its key.
#[test]
fn a_session_that_ends_with_a_backlog_leaves_nothing_behind() {
    let device = loopback::Config { ring_packets: 1, ..loopback::Config::default() };
    let mut world = World::over(WaitStrategy::Block, &device);
    let mut applications = Vec::new();
    for (number, port) in [(1, PORT), (2, PORT + 1)] {
        let (session, application) = session(number);
        world.give(Command::AddSession(session));
        let (endpoint, listening, group) = (Box::new(endpoint(port)), None, false);
        let command =
            Command::AddEndpoint { session: number, number: 0, endpoint, listening, group };
        world.give(command);
        applications.push(application);
    }
    world.poll_until_done();
    applications[0].send(0, 0, &outward(PORT));
    world.poll_once();
    (0..3).for_each(|buffer| applications[1].send(buffer, 0, &outward(PORT + 1)));
    world.poll_once();
    assert!(world.engine.tx.waits_for_room(), "the device holds the other session's packet");
    let key = world.engine.sessions.key(2).unwrap();
    applications[1].send_with(3, 9, &outward(PORT + 1), EXPEDITED);
    world.engine.poll_once().unwrap();
    assert_eq!(world.engine.sessions.key(2), None, "it has ended");
    assert!(!world.engine.notifier.knows(key));
    assert_eq!(world.engine.counters.get(Count::TxEnded), 3);
    world.give(Command::AddSession(session(3).0));
    world.poll_until_done();
    assert_eq!(world.engine.sessions.key(3), Some(key));
}

/// A device that sends from copies may keep the packets of an ended session for as long as its link
/// is down. The session ends at once, and nothing of it meets the next session with its key.
#[test]
fn a_session_does_not_wait_for_a_device_that_has_copies() {
    for tx_in_place in [false, true] {
        let timing = loopback::Timing {
            completion_batch: 2,
            completion_delay: Duration::from_secs(3600),
            ..loopback::Timing::default()
        };
        let device = loopback::Config { tx_in_place, timing, ..loopback::Config::default() };
        let mut world = World::over(WaitStrategy::Block, &device);
        let (one, mut application) = session(1);
        world.give(Command::AddSession(one));
        let (endpoint, listening, group) = (Box::new(endpoint(PORT)), None, false);
        let command = Command::AddEndpoint { session: 1, number: 0, endpoint, listening, group };
        world.give(command);
        world.poll_until_done();
        application.send(0, 0, &outward(PORT));
        world.poll_once();
        let key = world.engine.sessions.key(1).unwrap();
        assert_eq!(
            world.engine.sessions.get(key).unwrap().transmit.in_flight(),
            1,
            "the device holds it"
        );
        world.give(Command::RemoveSession { number: 1, reason: 0, at_once: false });
        for _ in 0..4 {
            world.engine.poll_once().unwrap();
        }
        let is_gone = world.engine.sessions.key(1).is_none();
        assert_eq!(is_gone, !tx_in_place, "it sends in place: {tx_in_place}");
        if tx_in_place {
            continue;
        }
        world.give(Command::AddSession(session(2).0));
        world.poll_until_done();
        assert_eq!(world.engine.sessions.key(2), Some(key));
        world.engine.reset_device().unwrap();
        world.poll_until_done();
        assert_eq!(world.engine.sessions.get(key).unwrap().transmit.in_flight(), 0);
    }
}

/// A violation that the engine finds before it sleeps is counted and reported, even if the
/// application has detached when the engine wakes.
#[test]
fn a_violation_is_reported_before_a_removal() {
    let mut world = World::new(WaitStrategy::Block);
    world.give(Command::AddSession(session(1).0));
    world.poll_until_done();
    world.engine.sessions.condemn(0, towpath_queue::Violation::Index);
    world.give(Command::RemoveSession { number: 1, reason: 0, at_once: false });
    world.engine.poll_once().unwrap();
    assert_eq!(world.engine.counters.get(Count::Violations), 1);
    let violated = |report| matches!(report, EngineReport::Violated { session: 1, .. });
    assert!(world.reports.try_iter().any(violated));
}
