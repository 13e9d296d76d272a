//! A simulation of the whole system in one thread: an engine, a device with its wire, the client
//! library's sessions, and a clock of the simulation's own. A seed decides which party acts at each
//! point, where servers are killed, and when the device stalls. So a seed that fails does the same
//! again.
//!
//! The engine's own `run` is the main line. At each of its stores into shared memory, at each
//! reading of the clock, at most calls of the device and while it sleeps, the others may act
//! ([`towpath_queue::simulation`]). There the server may also be killed; the next one continues with
//! the sessions' memories. The control thread's part is played by `control`, which prepares,
//! restores and claims sessions by the same functions; its own processes and sockets are tested
//! with real kills.
//!
//! `tests/simulate [SEEDS [FIRST]]` runs many seeds, and `tests/simulate 1 SEED` one.

mod application;
mod control;
mod messages;
mod plan;
mod random;
mod transfers;
mod wire;
mod world;

use std::cell::RefCell;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use towpath_client::{Options, WaitStrategy};
use towpath_engine::relays::Relays;
use towpath_engine::testing::{BUDGETS, event};
use towpath_engine::{Budgets, ControlLink, Engine};
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::simulation::{self, Point, Schedule};

use application::{Application, Arrivals};
use control::{EngineEnds, Keeper, Server};
use plan::{Outcome, Plan};
use random::Random;
use wire::{SimulatedDevice, Wire};
use world::World;

use towpath_protocol::position::Position;

/// The watchdog's window: shorter than many stalls of the device.
const WATCHDOG_MS: u64 = 500;

/// What a turn takes in which none acts and nothing is due, in nanoseconds.
const QUIET_STEP_NS: u64 = 100_000;

/// The schedule of a seed.
struct Seed(RefCell<World>);

impl Seed {
    /// Returns `true` if the server is to be killed here.
    fn passes(&self, point: Point) -> bool {
        let mut world = self.0.borrow_mut();
        if point != Point::Store {
            let step = world.random.below(2_000);
            simulation::set_now(simulation::now() + step);
        }
        if let Some((left, is_kill)) = &mut world.end_at {
            if *left == 0 {
                if *is_kill {
                    return true;
                }
                world.end_at = None;
                world.leave();
            } else {
                *left -= 1;
            }
        }
        let points = world.plan.points;
        if world.random.once_in(points) {
            world.turn();
        }
        false
    }
}

impl Schedule for Seed {
    fn at(&self, point: Point) {
        if self.passes(point) {
            simulation::kill();
        }
    }

    fn sleep(&self, timeout: Option<u64>, is_ready: &dyn Fn() -> bool) {
        let until = timeout.map(|timeout| simulation::now() + timeout);
        loop {
            if self.passes(Point::Device) {
                simulation::kill();
            }
            let now = simulation::now();
            if is_ready() || until.is_some_and(|until| until <= now) {
                return;
            }
            let mut world = self.0.borrow_mut();
            if world.turn() {
                simulation::set_now(now + world.random.below(3_000));
                continue;
            }
            // A server that waits for nothing has done everything: then the turns leave it quiet.
            let next = world.next_time().into_iter().chain(until).min();
            simulation::set_now(next.map_or(now + QUIET_STEP_NS, |next| next.max(now + 1)));
        }
    }
}

/// Makes an engine, and the control thread's ends.
fn engine(world: &World) -> (Engine, EngineEnds) {
    let (commands, engine_commands) = channel();
    let (engine_reports, reports) = channel();
    let wake = Arc::new(event());
    let link = ControlLink {
        lane: 0,
        commands: engine_commands,
        reports: engine_reports,
        wake: wake.clone(),
        control_wake: Arc::new(event()),
        relays: Relays::none().unwrap(),
        has_successor: true,
        position: Position::default(),
        rdma: None,
    };
    let mut values = Values::default();
    values.set(Setting::Wait, world.plan.wait).unwrap();
    values.set(Setting::WatchdogMs, WATCHDOG_MS).unwrap();
    let state = world.keeper.state().map_writable().unwrap();
    let budgets = Budgets { batch: world.plan.batch, ..BUDGETS };
    let mut device = SimulatedDevice::new(&world.wire);
    let engine = Engine::new(&mut device, state, 1, 1, &values, budgets, link).unwrap();
    let epoll = engine.epoll().try_clone().unwrap();
    (engine, EngineEnds { commands, reports, wake, epoll })
}

/// Runs a server until it ends. Returns `true` if it was killed.
fn live(seed: &Rc<Seed>) -> bool {
    let (engine, _mapped) = {
        let mut world = seed.0.borrow_mut();
        world.plan_end();
        let (engine, ends) = engine(&world);
        let World { keeper, server, .. } = &mut *world;
        *server = Server::new(ends);
        (engine, keeper.restore(server))
    };
    let killed = simulation::run(seed.clone(), || engine.run()).is_none();
    let mut world = seed.0.borrow_mut();
    let mut wire = world.wire.lock().unwrap();
    if killed {
        wire.killed()
    } else {
        wire.left()
    }
    drop(wire);
    if killed {
        let (mut sent, mut got) = (world.sent.iter().sum::<u32>(), 0);
        for (one, at_far) in world.applications.iter().zip(&world.arrived) {
            sent += one.to_far.sent + one.to_neighbour.sent;
            got += one.from_far.next + one.from_neighbour.next + at_far.next;
        }
        world.outcome.busy_kills += u32::from(sent > got);
    } else {
        let World { keeper, server, .. } = &mut *world;
        assert!(keeper.handle_reports(server), "the engine ended without a report");
    }
    world.outcome.resets += world.server.resets;
    // What the server had of connections and descriptors ends with it.
    world.server = Server::default();
    killed
}

/// Runs a seed.
fn simulate(number: u64) -> Outcome {
    let mut random = Random::new(number);
    let plan = Plan::new(&mut random);
    simulation::set_now(1_000_000_000);
    let name =
        format!("towpath-simulation-{}-{:?}", std::process::id(), std::thread::current().id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let options = Options {
        name: "simulated".to_owned(),
        endpoints: 2,
        oob_slots: 8,
        apertures: 1,
        tripwires: 1,
        transmit_slots: plan.slots,
        receive_slots: plan.slots,
        wait_strategy: WaitStrategy::Block,
        resume_timeout: Duration::from_secs(1000),
        ..Options::default()
    };
    let mut keeper = Keeper::new(&path, &options);
    let application = |one| {
        let attached = keeper.attach(&path, &options);
        Application::new(attached, one, &plan)
    };
    let applications: Vec<Application> = (0..plan.applications).map(application).collect();
    keeper.connect();
    let wire = Arc::new(Mutex::new(Wire::new(plan.manner, Random::new(random.next()))));
    let seed = Rc::new(Seed(RefCell::new(World {
        random,
        plan,
        wire,
        keeper,
        server: Server::default(),
        sent: vec![0; applications.len()],
        arrived: vec![Arrivals::default(); applications.len()],
        applications,
        end_at: None,
        leaves: false,
        quiet: 0,
        acted_at: simulation::now(),
        outcome: Outcome::default(),
    })));
    loop {
        let killed = live(&seed);
        let mut world = seed.0.borrow_mut();
        let lives_left =
            world.plan.kills + world.plan.upgrades - (world.outcome.kills + world.outcome.upgrades);
        if lives_left == 0 {
            break;
        }
        match killed {
            true => world.outcome.kills += 1,
            false => world.outcome.upgrades += 1,
        }
        // While no server runs, the other parties act.
        for _ in 0..world.random.below(40) {
            world.turn();
        }
        let pause = world.random.below(50_000_000);
        simulation::set_now(simulation::now() + pause);
    }
    let mut world = seed.0.borrow_mut();
    world.check();
    world.outcome.time_ns = simulation::now() - 1_000_000_000;
    let _ = std::fs::remove_file(&path);
    world.outcome.clone()
}

/// Runs seeds in as many threads as there are processors.
fn run(seeds: Range<u64>) -> Vec<(u64, std::thread::Result<Outcome>)> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let taken = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end);
        let one = |seed| (seed, std::panic::catch_unwind(|| simulate(seed)));
        std::iter::from_fn(taken).map(one).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs the seeds of the environment, a thousand by default, and prints the outcomes.
#[test]
fn every_seed_keeps_its_packets() {
    let number = |name, default| {
        let text = std::env::var(name);
        text.map_or(default, |text| text.parse::<u64>().expect(name))
    };
    let (first, count) = (number("TOWPATH_FIRST_SEED", 1), number("TOWPATH_SEEDS", 1000));
    let mut all = Outcome::default();
    let mut failed = Vec::new();
    for (seed, outcome) in run(first..first + count) {
        let Ok(one) = outcome else {
            println!("seed {seed} failed: {:?}", Plan::new(&mut Random::new(seed)));
            failed.push(seed);
            continue;
        };
        all.kills += one.kills;
        all.upgrades += one.upgrades;
        all.busy_kills += one.busy_kills;
        all.packets += one.packets;
        all.repeated += one.repeated;
        all.lost += one.lost;
        all.violations += one.violations;
        all.resets += one.resets;
        all.messages += one.messages;
        all.connections += one.connections;
        all.requests += one.requests;
        all.time_ns += one.time_ns;
    }
    println!("{count} seeds: {all:?}");
    assert!(failed.is_empty(), "seeds {failed:?} of {first} to {}", first + count - 1);
}

/// A seed does the same again, to the last act.
#[test]
fn a_seed_replays_exactly() {
    for seed in 1..20 {
        assert_eq!(simulate(seed), simulate(seed), "seed {seed}");
    }
}
