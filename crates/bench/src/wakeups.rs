//! That no wake-up is lost, by trying very often.
//!
//! Sessions of a server in this process send each other one packet at a time, so that whoever is not
//! woken waits for ever: nothing that comes later wakes it. Each wait has a limit that no wait
//! reaches otherwise, and the first that does ends the run, with the mode, the seed and how many went
//! well before. What the models leave out is here: pipes, eventfds, epoll, real processors, several
//! ringers of one sleeper. See docs/signalling.md.
//!
//! Three parts. *Bursts*: everybody polls, and an event that is not marked anew is what could be
//! lost. *Sleeps*: each way that an engine sleeps with each that applications do. *Changes*: the
//! engine goes from every mode to every other while packets are under way.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use towpath_client::{Endpoint, Options, Rule, Session, Setting, Waiting};
use towpath_device::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnets};

use crate::Settings;
use crate::report::{Outcome, Row};

/// A wait of this length is a lost wake-up; a loaded machine's longest ones are a hundredth of it.
const LIMIT: Duration = Duration::from_secs(10);
/// The seed, where it is not to be a new one.
const SEED_VARIABLE: &str = "TOWPATH_SEED";
/// Ticks a second of whoever waits by the clock here: seldom enough to be slept for.
const CLOCK_HZ: u32 = 5000;
const ETHERTYPE: u16 = 0x88b5;
/// The number of the packet that ends the traffic.
const END: u64 = u64::MAX;
/// Packets of the largest burst.
const BURST: u64 = 8;

/// How often each part is tried.
#[derive(Clone, Copy, Debug)]
struct Plan {
    bursts: u64,
    /// Sleeps of the engine and of both applications together, for each pair of their ways.
    sleeps: u64,
    /// Times that every mode is gone over to from every other.
    passes: u64,
    limit: Duration,
}

impl Plan {
    fn of(settings: Settings) -> Plan {
        let part = if settings.quick { 100 } else { 1 };
        Plan {
            bursts: 100_000_000 / part,
            sleeps: 1_000_000 / part,
            passes: 10_000 / part,
            limit: LIMIT,
        }
    }
}

/// The same numbers for the same seed (splitmix64: Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A pause before a packet: often none; awake, for about as long as sides spin; or asleep, for
    /// long enough that they sleep as well.
    fn pause(&mut self) {
        match self.below(4) {
            0 => {
                let until = Instant::now() + Duration::from_nanos(self.below(60_000));
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            1 => std::thread::sleep(Duration::from_micros(self.below(150))),
            _ => {}
        }
    }
}

/// Says on standard error how far it is.
struct Progress {
    what: String,
    goal: u64,
    shown: Instant,
    live: bool,
}

impl Progress {
    fn new(what: &str, goal: u64) -> Progress {
        let live = std::io::stderr().is_terminal();
        Progress { what: what.to_owned(), goal, shown: Instant::now(), live }
    }

    fn at(&mut self, count: u64) {
        if self.live && self.shown.elapsed() >= Duration::from_secs(1) {
            self.shown = Instant::now();
            let percent = count.min(self.goal) * 100 / self.goal.max(1);
            eprint!("\r{}: {percent} % of {}", self.what, self.goal);
            let _ = std::io::stderr().flush();
        }
    }

    fn done(&self, count: u64, took: Duration) {
        let clear = if self.live { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{}: {count} in {:.1} s, none lost", self.what, took.as_secs_f64());
    }
}

fn serve(mode: u64) -> anyhow::Result<(Server, loopback::LoopbackDevice)> {
    let (near, far) = loopback::pair(&loopback::Config::default())?;
    let mut config = Config {
        subnets: Subnets { ipv4: Some(("10.77.0.1".parse()?, 24)), ipv6: None },
        ..Config::default()
    };
    config.settings.set(Setting::Mode, mode)?;
    config.settings.set(Setting::ClockHz, u64::from(CLOCK_HZ))?;
    Ok((Server::start(&config, Box::new(near), Box::<MemoryStore>::default())?, far))
}

fn set(server: &Server, setting: Setting, value: u64) -> anyhow::Result<()> {
    Ok(towpath_client::set_over(server.connect()?, None, setting, value)?)
}

fn engine_sleeps(server: &Server) -> anyhow::Result<u64> {
    let report = towpath_client::report_over(server.connect()?)?;
    report["device"]["counters"]["sleeps"].as_u64().context("a report without its sleeps")
}

/// One of two applications that send each other packets.
struct Side {
    session: Session,
    endpoint: Endpoint,
    frame: Vec<u8>,
    limit: Duration,
}

impl Side {
    fn pair(server: &Server, waits: [Waiting; 2], limit: Duration) -> anyhow::Result<[Side; 2]> {
        let side = |name: &str, waiting| -> anyhow::Result<Side> {
            let options = Options { name: name.into(), waiting, ..Options::default() };
            let mut session = Session::attach_over(server.connect()?, &options)?;
            let endpoint = session.open(&Rule::new().ethertype(ETHERTYPE))?;
            Ok(Side { session, endpoint, frame: vec![0; 60], limit })
        };
        let mut sides = [side("near", waits[0])?, side("far", waits[1])?];
        let macs = [sides[0].session.info().mac, sides[1].session.info().mac];
        for (own, side) in sides.iter_mut().enumerate() {
            side.frame[..6].copy_from_slice(&macs[1 - own]);
            side.frame[6..12].copy_from_slice(&macs[own]);
            side.frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        }
        Ok(sides)
    }

    fn put(&mut self, number: u64) -> anyhow::Result<()> {
        self.frame[14..22].copy_from_slice(&number.to_le_bytes());
        Ok(self.session.send_bytes(self.endpoint, &self.frame)?)
    }

    fn send(&mut self, number: u64) -> anyhow::Result<()> {
        self.put(number)?;
        Ok(self.session.flush()?)
    }

    /// Takes what is there; the number of each is given to `seen`. Answers how many.
    fn take(&mut self, mut seen: impl FnMut(u64)) -> anyhow::Result<usize> {
        let got = self.session.receive(0, BURST as usize, |packet| {
            for part in packet.parts() {
                if let Some(bytes) = part.get(14..22).and_then(|bytes| bytes.first_chunk()) {
                    seen(u64::from_le_bytes(*bytes));
                }
            }
        })?;
        Ok(got)
    }

    /// Waits for one packet, and answers its number.
    fn wait(&mut self) -> anyhow::Result<u64> {
        let (start, mut number) = (Instant::now(), None);
        self.session.wait(Some(self.limit))?;
        // Who wakes up because its time is over finds what it was not told of.
        let woken = start.elapsed() < self.limit;
        let got = self.take(|one| number = Some(one))?;
        match number {
            Some(number) if woken => {
                ensure!(got == 1, "{got} packets where one was sent");
                Ok(number)
            }
            // It is there, and this side was not told.
            Some(_) => bail!("the application was not woken for {:?}", self.limit),
            None => bail!("the engine brought nothing for {:?}", self.limit),
        }
    }
}

/// What two applications that send each other one packet at a time have done, for whoever watches.
#[derive(Default)]
struct Traffic {
    stop: AtomicBool,
    rounds: AtomicU64,
    sleeps: [AtomicU64; 2],
}

/// Ways to wait that are taken in turn, when they are to change.
const WAYS: [Waiting; 3] = [Waiting::Block, Waiting::Spin, Waiting::Clocked(CLOCK_HZ)];

impl Traffic {
    /// Runs two sides, and `watch` beside them until it is done; then ends them. `changing`: how the
    /// sides wait changes, too.
    fn run<T>(
        &self,
        sides: [Side; 2],
        seed: u64,
        changing: bool,
        watch: impl FnOnce(&dyn Fn() -> bool) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let [near, far] = sides;
        std::thread::scope(|scope| {
            let far = scope.spawn(move || self.answer(far, seed, changing));
            let near = scope.spawn(move || self.ask(near, seed, changing));
            let watched = watch(&|| near.is_finished() || far.is_finished());
            self.stop.store(true, Ordering::Relaxed);
            let failed = |_| anyhow::anyhow!("a thread of the traffic failed");
            let (near, far) = (near.join().map_err(failed)?, far.join().map_err(failed)?);
            // Who got a packet and was not woken knows best; the other one only waits for it.
            match (near, far) {
                (Err(near), Err(far)) => bail!("{near:#}; the other side: {far:#}"),
                (Err(one), _) | (_, Err(one)) => Err(one),
                (Ok(_sent), Ok(())) => watched,
            }
        })
    }

    /// Answers its side, to be kept until the other one has what was sent last.
    fn ask(&self, mut side: Side, seed: u64, changing: bool) -> anyhow::Result<Side> {
        let mut random = Random(seed);
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                side.send(END)?;
                return Ok(side);
            }
            random.pause();
            side.send(round)?;
            let back = side.wait().with_context(|| format!("after {round} rounds"))?;
            ensure!(back == round, "packet {back} instead of {round}");
            self.rounds.store(round + 1, Ordering::Relaxed);
            self.after(&mut side, 0, round, changing.then_some(&mut random));
        }
        Ok(side)
    }

    fn answer(&self, mut side: Side, seed: u64, changing: bool) -> anyhow::Result<()> {
        let mut random = Random(!seed);
        for round in 0.. {
            let number = side.wait().with_context(|| format!("after {round} rounds"))?;
            if number == END {
                return Ok(());
            }
            random.pause();
            side.send(number)?;
            self.after(&mut side, 1, round, changing.then_some(&mut random));
        }
        Ok(())
    }

    fn after(&self, side: &mut Side, place: usize, round: u64, changing: Option<&mut Random>) {
        self.sleeps[place].store(side.session.statistics().sleeps, Ordering::Relaxed);
        if let Some(random) = changing
            && round.is_multiple_of(16)
        {
            side.session.set_waiting(WAYS[random.below(3) as usize]);
        }
    }

    fn application_sleeps(&self) -> u64 {
        self.sleeps.iter().map(|one| one.load(Ordering::Relaxed)).sum()
    }
}

/// Everybody polls: bursts of one to eight packets, each waited for.
fn bursts(plan: &Plan, seed: u64, outcome: &mut Outcome) -> anyhow::Result<()> {
    let (server, _far) = serve(Setting::Mode.parse("poll")?)?;
    let [mut from, mut to] = Side::pair(&server, [Waiting::Poll; 2], plan.limit)?;
    let mut progress = Progress::new("poll: bursts", plan.bursts);
    let (start, mut random, mut next) = (Instant::now(), Random(seed), 0u64);
    for burst in 0..plan.bursts {
        let count = 1 + random.below(BURST);
        for number in next..next + count {
            from.put(number)?;
        }
        from.session.flush()?;
        let (mut wrong, end) = (None, next + count);
        while next < end {
            let waiting = Instant::now();
            if !to.session.wait(Some(plan.limit))? || waiting.elapsed() >= plan.limit {
                let left = end - next;
                bail!("lost in mode poll, seed {seed}, after {burst} bursts: {left} of {count}");
            }
            to.take(|number| {
                if number != next {
                    wrong = Some(number);
                }
                next += 1;
            })?;
        }
        if let Some(number) = wrong {
            bail!("packet {number} out of order in mode poll, seed {seed}, burst {burst}");
        }
        if burst % 65_536 == 0 {
            progress.at(burst);
        }
    }
    progress.done(plan.bursts, start.elapsed());
    server.stop()?;
    let name = "bursts, engine and application poll";
    outcome.rows.push(goal(name, plan.bursts, plan.bursts, "bursts"));
    outcome.context.push(Row::new(name, &[], "s", &[start.elapsed().as_secs_f64()]));
    Ok(())
}

/// A row that says how often something was done, and how often it had to be.
fn goal(name: &str, done: u64, goal: u64, unit: &str) -> Row {
    Row::new(name, &[], unit, &[done as f64]).at_least(goal as f64)
}

/// An engine that sleeps in one way, and applications that do in another.
fn sleeps(
    plan: &Plan,
    mode: &str,
    (way, waiting): (&str, Waiting),
    seed: u64,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let name = format!("sleeps, engine {mode}, application {way}");
    let (server, _far) = serve(Setting::Mode.parse(mode)?)?;
    let sides = Side::pair(&server, [waiting; 2], plan.limit)?;
    let mut progress = Progress::new(&name, plan.sleeps);
    let (start, traffic) = (Instant::now(), Traffic::default());
    let (engine, applications) = traffic
        .run(sides, seed, false, |ended| {
            loop {
                let counted = (engine_sleeps(&server)?, traffic.application_sleeps());
                if counted.0 + counted.1 >= plan.sleeps || ended() {
                    return Ok(counted);
                }
                progress.at(counted.0 + counted.1);
                std::thread::sleep(Duration::from_millis(20));
            }
        })
        .with_context(|| format!("lost: engine {mode}, application {way}, seed {seed}"))?;
    progress.done(engine + applications, start.elapsed());
    server.stop()?;
    outcome.rows.push(goal(&name, engine + applications, plan.sleeps, "sleeps"));
    for (whose, count) in [("of the engine", engine), ("of the applications", applications)] {
        outcome.context.push(Row::new(&format!("{name}: {whose}"), &[], "sleeps", &[count as f64]));
    }
    Ok(())
}

/// From every mode to every other, a packet at least between two changes.
fn changes(plan: &Plan, seed: u64, outcome: &mut Outcome) -> anyhow::Result<()> {
    const MODES: u64 = 5;
    let (server, _far) = serve(0)?;
    let sides = Side::pair(&server, [Waiting::Block; 2], plan.limit)?;
    let mut progress = Progress::new("changes: passes", plan.passes);
    let (start, traffic) = (Instant::now(), Traffic::default());
    let mut random = Random(seed.rotate_left(32));
    let (mut mode, mut changes) = (0, 0);
    let changed = traffic.run(sides, seed, true, |ended| {
        for pass in 0..plan.passes {
            let pick = |values: [u64; 3], random: &mut Random| values[random.below(3) as usize];
            set(&server, Setting::ClockHz, pick([2000, 20_000, 60_000], &mut random))?;
            set(&server, Setting::LatencyUs, pick([1, 100, 2000], &mut random))?;
            // The number of modes is prime: with each step they come round through all of them.
            for step in 1..MODES {
                for _ in 0..MODES {
                    let before = traffic.rounds.load(Ordering::Relaxed);
                    mode = (mode + step) % MODES;
                    set(&server, Setting::Mode, mode)?;
                    changes += 1;
                    while traffic.rounds.load(Ordering::Relaxed) == before {
                        if ended() {
                            return Ok(());
                        }
                        std::thread::yield_now();
                    }
                }
            }
            progress.at(pass);
        }
        Ok(())
    });
    let now = Setting::Mode.show(mode);
    changed.with_context(|| format!("lost: mode {now}, after {changes} changes, seed {seed}"))?;
    progress.done(plan.passes, start.elapsed());
    server.stop()?;
    let all = plan.passes * MODES * (MODES - 1);
    outcome.rows.push(goal("changes of mode under traffic", changes, all, "changes"));
    let rounds = traffic.rounds.load(Ordering::Relaxed) as f64;
    outcome.context.push(Row::new("packets there and back meanwhile", &[], "rounds", &[rounds]));
    Ok(())
}

fn seed() -> anyhow::Result<u64> {
    match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().with_context(|| format!("{SEED_VARIABLE}={text} is no number")),
        Err(_) => Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64),
    }
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (plan, seed) = (Plan::of(settings), seed()?);
    eprintln!("seed {seed}; a wait of {} s is a lost wake-up", plan.limit.as_secs());
    let mut outcome = Outcome {
        how: format!(
            "sessions of a server in this process, one packet at a time, waits of at most {} s, \
             seed {seed} ({SEED_VARIABLE}); no wake-up was lost",
            plan.limit.as_secs()
        ),
        ..Outcome::default()
    };
    for mode in ["interrupt", "adaptive", "clocked", "auto"] {
        for way in ["block", "spin", "clocked"].into_iter().zip(WAYS) {
            sleeps(&plan, mode, way, seed, &mut outcome)?;
        }
    }
    changes(&plan, seed, &mut outcome)?;
    bursts(&plan, seed, &mut outcome)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Plan = Plan { bursts: 500, sleeps: 300, passes: 2, limit: LIMIT };

    #[test]
    fn what_is_tried_is_counted() {
        let (seed, mut outcome) = (7, Outcome::default());
        bursts(&FEW, seed, &mut outcome).unwrap();
        for way in ["block", "spin", "clocked"].into_iter().zip(WAYS) {
            sleeps(&FEW, "interrupt", way, seed, &mut outcome).unwrap();
        }
        changes(&FEW, seed, &mut outcome).unwrap();
        assert_eq!(outcome.rows.len(), 5);
        assert!(outcome.rows.iter().all(Row::holds), "{:?}", outcome.rows);
    }

    /// Whoever looks once a second, and is not rung, is as good as one that was not woken.
    #[test]
    fn what_is_lost_is_named() {
        let (server, _far) = serve(Setting::Mode.parse("clocked").unwrap()).unwrap();
        set(&server, Setting::ClockHz, 1).unwrap();
        let limit = Duration::from_millis(20);
        let sides = Side::pair(&server, [Waiting::Block; 2], limit).unwrap();
        let traffic = Traffic::default();
        let error = traffic
            .run(sides, 7, false, |ended| {
                while !ended() {
                    std::thread::yield_now();
                }
                Ok(())
            })
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("after 0 rounds: the engine brought nothing for 20ms"), "{text}");
        // And one whose packets are there, and who was not told.
        let [mut from, mut to] = Side::pair(&server, [Waiting::Block; 2], limit).unwrap();
        set(&server, Setting::Mode, 0).unwrap();
        to.session.set(to.endpoint, Setting::RxFrames, 100).unwrap();
        to.session.set(to.endpoint, Setting::RxUsecs, 1_000_000).unwrap();
        let waiter = std::thread::spawn(move || (to.wait(), to));
        std::thread::sleep(Duration::from_millis(5));
        from.send(1).unwrap();
        let (outcome, _to) = waiter.join().unwrap();
        let text = outcome.unwrap_err().to_string();
        assert_eq!(text, "the application was not woken for 20ms");
        server.stop().unwrap();
    }
}
