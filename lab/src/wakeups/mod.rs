//! Very many attempts to lose a wake-up.
//!
//! Sessions of a server in this process send each other one packet at a time. A side that is not
//! woken waits for ever, because nothing later wakes it. Each wait has a limit that it reaches only
//! if a wake-up is lost. The first such wait ends the run, and the error names the wait strategy,
//! the seed and the number of packets before. This covers parts outside the models: pipes,
//! eventfds, epoll, real processors, several notifiers of one sleeper. See docs/signalling.md.
//!
//! Three parts. *Bursts*: all sides poll, and an event that is not marked again would be the loss.
//! *Sleeps*: each way in which an engine sleeps with each way of the applications. *Changes*: the
//! engine goes from every strategy to every other while packets are in flight.

mod changes;
mod pause;
mod plan;
mod progress;
mod traffic;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fastrand::Rng;
use towpath_client::{Setting, WaitStrategy};
use towpath_server::Server;

use crate::Settings;
use crate::report::{Outcome, Row};
use changes::changes;
use plan::{Plan, goal, serve};
use progress::Progress;
use traffic::{BURST, Side, Traffic, WAYS};

/// The variable that gives the seed instead of a new one.
const SEED_VARIABLE: &str = "TOWPATH_SEED";
/// A side that has polled in vain for this long yields the processor, which the engine may need.
const GIVES_WAY: Duration = Duration::from_micros(100);
/// A side that must sleep fails if it sleeps less than once in this many round trips.
const ROUNDS_A_SLEEP: u64 = 50;
/// The strategy in which the engine never sleeps.
const NEVER_SLEEPS: &str = "poll";

fn engine_sleeps(server: &Server) -> anyhow::Result<u64> {
    let report = towpath_client::report_over(server.connect()?)?;
    report["device"]["counters"]["sleeps"].as_u64().context("a report without its sleeps")
}

/// Makes all sides poll: bursts of one to eight packets, and a wait for each burst.
fn bursts(plan: &Plan, seed: u64, outcome: &mut Outcome) -> anyhow::Result<()> {
    let (server, _far) = serve(Setting::Wait.parse(NEVER_SLEEPS)?)?;
    let [mut from, mut to] = Side::pair(&server, [WaitStrategy::Poll; 2], plan.limit)?;
    let mut progress = Progress::new("poll: bursts", plan.bursts);
    let (start, mut random, mut next) = (Instant::now(), Rng::with_seed(seed), 0u64);
    for burst in 0..plan.bursts {
        let count = 1 + random.u64(..BURST);
        for number in next..next + count {
            from.put(number)?;
        }
        from.session.sender().flush()?;
        let (mut wrong, end) = (None, next + count);
        while next < end {
            let waiting = Instant::now();
            while !to.session.wait(Some(GIVES_WAY))? && waiting.elapsed() < plan.limit {
                std::thread::yield_now();
            }
            if waiting.elapsed() >= plan.limit {
                let left = end - next;
                bail!("lost in wait=poll, seed {seed}, after {burst} bursts: {left} of {count}");
            }
            to.take(|number| {
                if number != next {
                    wrong = Some(number);
                }
                next += 1;
            })?;
        }
        if let Some(number) = wrong {
            bail!("packet {number} out of order in wait=poll, seed {seed}, burst {burst}");
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

/// The sleeps of each side, and the round trips meanwhile.
struct Slept {
    engine: u64,
    applications: u64,
    rounds: u64,
}

/// Carries packets until each side that must sleep has slept this often, or has stopped sleeping,
/// which the count then shows.
fn sleep_often(
    server: &Server,
    sides: [Side; 2],
    (engine, applications): (u64, u64),
    seed: u64,
    progress: &mut Progress,
) -> anyhow::Result<Slept> {
    let traffic = Traffic::default();
    let most = engine.max(applications).saturating_mul(ROUNDS_A_SLEEP);
    traffic.run(sides, seed, false, |ended| {
        loop {
            let slept = Slept {
                engine: engine_sleeps(server)?,
                applications: traffic.application_sleeps(),
                rounds: traffic.rounds.load(Ordering::Relaxed),
            };
            let done = slept.engine.min(engine) + slept.applications.min(applications);
            if done == engine + applications || slept.rounds >= most || ended() {
                return Ok(slept);
            }
            progress.at(done);
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

/// Measures an engine in a strategy in which it must sleep this often, or never, and applications
/// with a wait strategy.
fn sleeps(
    plan: &Plan,
    (strategy, of_engine): (&str, u64),
    (way, waiting): (&str, WaitStrategy),
    seed: u64,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let name = format!("engine {strategy}, application {way}");
    let (server, _far) = serve(Setting::Wait.parse(strategy)?)?;
    let sides = Side::pair(&server, [waiting; 2], plan.limit)?;
    let mut progress = Progress::new(&format!("sleeps, {name}"), of_engine + plan.sleeps);
    let start = Instant::now();
    let slept = sleep_often(&server, sides, (of_engine, plan.sleeps), seed, &mut progress)
        .with_context(|| format!("lost: {name}, seed {seed}"))?;
    progress.done(slept.engine + slept.applications, start.elapsed());
    server.stop()?;
    let title = format!("sleeps of the engine, {name}");
    outcome.rows.push(match of_engine {
        0 => Row::new(&title, &[], "sleeps", &[slept.engine as f64]).at_most(0.0),
        of_engine => goal(&title, slept.engine, of_engine, "sleeps"),
    });
    let title = format!("sleeps of the applications, {name}");
    outcome.rows.push(goal(&title, slept.applications, plan.sleeps, "sleeps"));
    let title = format!("packets there and back, {name}");
    outcome.context.push(Row::new(&title, &[], "rounds", &[slept.rounds as f64]));
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
    for strategy in ["block", "spin-then-block", "timer-driven", "auto", NEVER_SLEEPS] {
        let of_engine = if strategy == NEVER_SLEEPS { 0 } else { plan.sleeps };
        for way in ["block", "spin", "timer-driven"].into_iter().zip(WAYS) {
            sleeps(&plan, (strategy, of_engine), way, seed, &mut outcome)?;
        }
    }
    changes(&plan, seed, &mut outcome)?;
    bursts(&plan, seed, &mut outcome)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::plan::{LIMIT, set};
    use super::*;

    const FEW: Plan = Plan { bursts: 500, sleeps: 300, passes: 2, limit: LIMIT };

    #[test]
    fn each_attempt_is_counted() {
        let (seed, mut outcome) = (7, Outcome::default());
        bursts(&FEW, seed, &mut outcome).unwrap();
        for way in ["block", "spin", "timer-driven"].into_iter().zip(WAYS) {
            sleeps(&FEW, ("block", FEW.sleeps), way, seed, &mut outcome).unwrap();
            sleeps(&FEW, (NEVER_SLEEPS, 0), way, seed, &mut outcome).unwrap();
        }
        changes(&FEW, seed, &mut outcome).unwrap();
        assert_eq!(outcome.rows.len(), 1 + 3 * 2 * 2 + 1);
        assert!(outcome.rows.iter().all(Row::holds), "{:?}", outcome.rows);
    }

    /// The applications' sleeps do not count as the engine's, nor the reverse.
    #[test]
    fn a_side_that_does_not_sleep_misses_its_goal() {
        let (plan, mut outcome) = (Plan { sleeps: 5, ..FEW }, Outcome::default());
        let block = ("block", WaitStrategy::Block);
        sleeps(&plan, (NEVER_SLEEPS, plan.sleeps), block, 7, &mut outcome).unwrap();
        sleeps(&plan, ("timer-driven", plan.sleeps), ("poll", WaitStrategy::Poll), 7, &mut outcome)
            .unwrap();
        sleeps(&plan, ("timer-driven", 0), block, 7, &mut outcome).unwrap();
        let held = |row: &Row| (row.name.clone(), row.holds());
        let rows: Vec<_> = outcome.rows.iter().map(held).collect();
        let expected = [
            ("sleeps of the engine, engine poll, application block", false),
            ("sleeps of the applications, engine poll, application block", true),
            ("sleeps of the engine, engine timer-driven, application poll", true),
            ("sleeps of the applications, engine timer-driven, application poll", false),
            ("sleeps of the engine, engine timer-driven, application block", false),
            ("sleeps of the applications, engine timer-driven, application block", true),
        ];
        assert_eq!(rows, expected.map(|(name, held)| (name.to_owned(), held)));
    }

    /// A side that polls once a second, and gets no notification, acts like one that was not woken.
    #[test]
    fn a_lost_wake_up_is_named() {
        let (server, _far) = serve(Setting::Wait.parse("timer-driven").unwrap()).unwrap();
        set(&server, Setting::TickHz, 1).unwrap();
        let limit = Duration::from_millis(20);
        // A tick may fall into the limit, so a few attempts are made.
        let attempt = |_| {
            let sides = Side::pair(&server, [WaitStrategy::Block; 2], limit).unwrap();
            let wait = |ended: &dyn Fn() -> bool| {
                while !ended() {
                    std::thread::yield_now();
                }
                Ok(())
            };
            Traffic::default().run(sides, 7, false, wait).err()
        };
        let error = (0..10).find_map(attempt).unwrap();
        let text = format!("{error:#}");
        assert!(text.contains("after 0 rounds: the engine delivered nothing for 20ms"), "{text}");
        // Also an application that has packets, and was not notified. On a busy machine it may find
        // a packet before it sleeps.
        set(&server, Setting::Wait, 0).unwrap();
        let attempt = |_| {
            let [mut from, mut to] = Side::pair(&server, [WaitStrategy::Block; 2], limit).unwrap();
            to.session.set(to.endpoint, Setting::RxFrames, 100).unwrap();
            to.session.set(to.endpoint, Setting::RxUsecs, 1_000_000).unwrap();
            let waiter = std::thread::spawn(move || (to.wait(), to));
            std::thread::sleep(Duration::from_millis(5));
            from.send(1).unwrap();
            let (outcome, _to) = waiter.join().unwrap();
            outcome.err()
        };
        let text = (0..20).find_map(attempt).unwrap().to_string();
        assert_eq!(text, "the application was not woken for 20ms");
        server.stop().unwrap();
    }
}
