//! A simulation of the whole system in one thread: an engine, a device with its wire, the client
//! library's sessions, and a clock of the simulation's own. A seed decides which party acts at each
//! point, where servers are killed, and when the device stalls. So a seed that fails does the same
//! again.
//!
//! The engine's own `run` is the main line. At each of its stores into shared memory, at each reading
//! of the clock, at most calls of the device and while it sleeps, the others may act
//! ([`towpath_queue::simulation`]). There the server may also be killed; the next one goes on with the
//! sessions' memories. The control thread's part is played by `control`, which prepares, restores and
//! claims sessions by the same functions; its own processes and sockets are tested with real kills.
//!
//! `tests/simulate [SEEDS [FIRST]]` runs many seeds, and `tests/simulate 1 SEED` one.

mod application;
mod control;
mod random;
mod wire;

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
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::simulation::{self, Point, Schedule};

use application::{Application, Arrivals, FAR};
use control::{EngineEnds, Keeper, Server};
use random::Random;
use wire::{Manner, SimulatedDevice, Wire};

use crate::engine::commands::Command;
use crate::engine::relays::Relays;
use crate::engine::testing::MAC;
use crate::engine::wiring::{BUDGETS, event};
use crate::engine::{Budgets, Engine, Link};
use crate::position::Position;

/// Turns without an act after which everything is over, unless something happens at a later time.
const QUIET_TURNS: u32 = 300;

/// The watchdog's window: shorter than many stalls of the device.
const WATCHDOG_MS: u64 = 500;

/// The simulation's time after which a seed counts as one that hangs: 100 s.
const LONGEST_NS: u64 = 100_000_000_000;

/// What a seed does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    applications: usize,
    /// One of them may overwrite random words of the memory that it writes.
    hostile: Option<usize>,
    /// The packets of each flow.
    packets: u32,
    /// Servers that are killed, and servers that leave in order.
    kills: u32,
    upgrades: u32,
    manner: Manner,
    wait: u64,
    batch: usize,
    slots: u32,
    /// The others act at one of so many points.
    points: u64,
}

impl Plan {
    fn new(random: &mut Random) -> Plan {
        let is_on = |random: &mut Random| random.once_in(2);
        let manner = Manner {
            asynchronous: is_on(random),
            in_place: is_on(random),
            keeps: is_on(random),
            stalls: random.once_in(4),
        };
        let wait = random.one_of(&["block", "block", "poll", "timer-driven"]);
        let applications = 1 + random.below(3) as usize;
        let is_attacked = applications > 1 && random.once_in(3);
        Plan {
            applications,
            hostile: is_attacked.then(|| random.below(applications as u64) as usize),
            packets: 20 + random.below(80) as u32,
            kills: random.below(6) as u32,
            upgrades: random.below(3) as u32,
            manner: Manner { stalls: manner.stalls && manner.asynchronous, ..manner },
            wait: Setting::Wait.parse(wait).unwrap(),
            batch: random.one_of(&[1, 4, 64]),
            slots: random.one_of(&[8, 16, 64]),
            points: random.one_of(&[3, 20, 100]),
        }
    }
}

/// What a seed did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// A digest of everything in its order.
    trace: u64,
    kills: u32,
    upgrades: u32,
    /// Kills with packets in the server.
    busy_kills: u32,
    packets: u32,
    repeated: u32,
    lost: u32,
    violations: u32,
    resets: u64,
    time_ns: u64,
}

/// Everything but the server.
struct World {
    random: Random,
    plan: Plan,
    wire: Arc<Mutex<Wire>>,
    keeper: Keeper,
    server: Server,
    applications: Vec<Application>,
    /// What the far end has sent to each application, and got from it.
    sent: Vec<u32>,
    arrived: Vec<Arrivals>,
    /// Points until this server is killed or asked to leave; `None` if it stays.
    end_at: Option<(u64, bool)>,
    leaves: bool,
    /// Turns in a row in which none could act.
    quiet: u32,
    outcome: Outcome,
}

impl World {
    fn note(&mut self, who: u64, what: u64) {
        let value = who << 56 ^ what ^ simulation::now().rotate_left(20);
        self.outcome.trace = (self.outcome.trace ^ value).wrapping_mul(0x0100_0000_01b3);
    }

    /// Lets one of the others act. Returns `false` if there is nothing to do now.
    fn turn(&mut self) -> bool {
        let now = simulation::now();
        assert!(now < LONGEST_NS, "hangs: {:?}", self.state());
        let others = self.applications.len();
        let first = self.random.below(others as u64 + 3) as usize;
        self.quiet += 1;
        for who in (0..others + 3).map(|step| (first + step) % (others + 3)) {
            if self.acts(who, now) {
                self.quiet = 0;
                return true;
            }
        }
        if self.next_time().is_some() {
            self.quiet = 0;
        }
        if self.quiet > QUIET_TURNS {
            match &mut self.end_at {
                Some((left, _)) => *left = 0,
                None => self.leave(),
            }
        }
        false
    }

    fn acts(&mut self, who: usize, now: u64) -> bool {
        let others = self.applications.len();
        if who < others {
            let is_served = self.server.served.contains(&(who as u32 + 1));
            if !self.applications[who].can_act(now, is_served) {
                return false;
            }
            let what = self.applications[who].act(now, &mut self.random);
            self.note(who as u64, what);
            return true;
        }
        match who - others {
            0 => self.far_end_acts(),
            1 => {
                let mut wire = self.wire.lock().unwrap();
                let can = wire.can_go_on(now);
                if can {
                    wire.go_on(now);
                }
                can
            }
            _ => {
                self.keeper.hear(&mut self.server);
                let can = self.server.ends.is_some() && self.keeper.can_act(&self.server);
                if can {
                    self.keeper.act(&mut self.server);
                    self.note(0xc0, 0);
                }
                can
            }
        }
    }

    fn far_end_acts(&mut self) -> bool {
        let mut wire = self.wire.lock().unwrap();
        let got = std::mem::take(&mut wire.to_far);
        let to = self.random.below(self.applications.len() as u64) as usize;
        let sends = self.sent[to] < self.plan.packets && wire.has_room();
        if sends {
            wire.send(application::from_far(to, self.sent[to]));
            self.sent[to] += 1;
        }
        drop(wire);
        let acts = sends || !got.is_empty();
        for packet in got {
            let from = application::source(&packet);
            // A packet for an application whose session has ended goes out.
            if Some(from) == self.plan.hostile || packet[..6] == MAC {
                continue;
            }
            let (_, number) = application::read(&packet);
            self.arrived[from].arrived(number);
            self.note(u64::from(FAR), u64::from(number));
        }
        acts || self.sent.iter().any(|sent| *sent < self.plan.packets) && self.far_end_has_room()
    }

    fn far_end_has_room(&self) -> bool {
        self.wire.lock().unwrap().has_room()
    }

    /// Returns the next time at which something happens by itself.
    fn next_time(&self) -> Option<u64> {
        let now = simulation::now();
        let busy = self.applications.iter().filter_map(|one| one.goes_on_at(now));
        busy.chain(self.wire.lock().unwrap().goes_on_at()).min()
    }

    fn state(&self) -> impl std::fmt::Debug {
        let apps = |one: &Application| {
            (one.to_far.clone(), one.to_neighbour.clone(), one.from_far.clone())
        };
        let all: Vec<_> = self.applications.iter().map(apps).collect();
        (self.plan, all, self.sent.clone(), self.arrived.clone(), self.server.served.clone())
    }

    /// Returns `true` if every packet has been sent.
    fn has_sent_everything(&self) -> bool {
        self.sent.iter().all(|sent| *sent == self.plan.packets)
            && self.applications.iter().filter(|one| !one.is_hostile()).all(|one| {
                one.to_far.sent == one.to_far.all && one.to_neighbour.sent == one.to_neighbour.all
            })
    }

    /// Checks what is left once nothing happens any more.
    fn check(&mut self) {
        assert!(self.has_sent_everything(), "stands still: {:?}", self.state());
        let killed = self.outcome.kills > 0;
        let lost_in_hand = self.wire.lock().unwrap().lost;
        let (mut from_wire, mut dropped, lives) = (0, 0, self.lives());
        let applications = self.plan.applications;
        let hostile = self.plan.hostile;
        self.outcome.violations += self.keeper.over().len() as u32;
        let good = self.applications.iter_mut().enumerate().filter(|(_, one)| !one.is_hostile());
        for (number, one) in good {
            one.check();
            let drops =
                one.counter("rx_dropped_no_buffers") + one.counter("rx_dropped_over_budget");
            let missing = |arrivals: &Arrivals, all: u32| all - (arrivals.next - arrivals.lost);
            let far = missing(&one.from_far, self.plan.packets);
            let before = (number + applications - 1) % applications;
            let has_neighbour = applications > 1 && Some(before) != hostile;
            let neighbour_sends = if has_neighbour { self.plan.packets } else { 0 };
            let near = missing(&one.from_neighbour, neighbour_sends);
            assert!(
                u64::from(near) <= drops,
                "{near} of a neighbour's packets are lost, and {drops} dropped at {number}"
            );
            from_wire += far + near;
            dropped += drops;
            // What a killed server had not completed comes again: at most a batch, or a queue.
            let repeated = one.from_far.repeated + one.from_neighbour.repeated;
            let most = self.outcome.kills * (self.plan.batch as u32 + self.plan.slots);
            assert!(repeated <= most, "{repeated} packets came twice at {number}, {most} may");
            self.outcome.repeated += repeated;
            self.outcome.lost += far + near;
            self.outcome.packets += one.from_far.next + one.from_neighbour.next;
            let sent = &self.arrived[number];
            assert_eq!((sent.next, sent.lost), (self.plan.packets, 0), "at the far end");
            // A stalled device may still have packets when a server leaves.
            let ends = self.outcome.kills
                + if self.plan.manner.stalls { self.outcome.upgrades } else { 0 };
            let most = ends * self.plan.slots;
            assert!(sent.repeated <= most, "{} packets went out twice, {most} may", sent.repeated);
            self.outcome.repeated += sent.repeated;
            self.outcome.packets += sent.next;
            let resumptions = one.session.statistics().resumptions;
            assert!((1..=u64::from(lives)).contains(&resumptions), "{resumptions} of {lives}");
        }
        assert!(
            u64::from(from_wire) <= dropped + lost_in_hand,
            "{from_wire} packets are lost, {dropped} dropped, {lost_in_hand} in hand"
        );
        assert!(
            killed || hostile.is_some() || u64::from(from_wire) == dropped,
            "{from_wire} lost, {dropped} dropped"
        );
    }

    /// The servers so far.
    fn lives(&self) -> u32 {
        1 + self.outcome.kills + self.outcome.upgrades
    }

    /// Decides when the next server ends.
    fn plan_end(&mut self) {
        let Plan { kills, upgrades, .. } = self.plan;
        let left = (kills - self.outcome.kills, upgrades - self.outcome.upgrades);
        let all = u64::from(left.0 + left.1);
        self.end_at = (all > 0).then(|| {
            let is_kill = self.random.below(all) < u64::from(left.0);
            let scale = self.random.one_of(&[100, 2_000, 20_000]);
            (self.random.below(scale), is_kill)
        });
        self.leaves = false;
    }

    fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaves, true) {
            self.server.command(Command::Leave);
        }
    }
}

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
            simulation::set_now(next.map_or(now, |next| next.max(now + 1)));
        }
    }
}

/// Makes an engine, and the control thread's ends.
fn engine(world: &World) -> (Engine, EngineEnds) {
    let (commands, engine_commands) = channel();
    let (engine_reports, reports) = channel();
    let wake = Arc::new(event().unwrap());
    let link = Link {
        lane: 0,
        commands: engine_commands,
        events: engine_reports,
        wake: wake.clone(),
        control_wake: Arc::new(event().unwrap()),
        relays: Relays::none().unwrap(),
        has_successor: true,
        position: Position::default(),
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
        assert!(keeper.hear(server), "the engine ended without a report");
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
        endpoints: 1,
        transmit_slots: plan.slots,
        receive_slots: plan.slots,
        wait_strategy: WaitStrategy::Block,
        resume_timeout: Duration::from_secs(1000),
        ..Options::default()
    };
    let mut keeper = Keeper::new(&path, &options);
    let application = |one| {
        let (attached, words) = keeper.attach(&path, &options);
        let words = (Some(one) == plan.hostile).then_some(words);
        let hostile = (plan.hostile, words);
        Application::new(attached, (one, plan.applications), plan.packets, hostile)
    };
    let applications: Vec<Application> = (0..plan.applications).map(application).collect();
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
        // While no server runs, the others go on.
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

/// Runs the seeds of the environment, a thousand by default, and says what they did.
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
