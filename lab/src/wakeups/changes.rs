//! The engine goes from every strategy to every other while packets are in flight.

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, bail};
use fastrand::Rng;
use towpath_client::{Kind, Setting, WaitStrategy};

use super::plan::{Plan, goal, serve, set};
use super::progress::Progress;
use super::traffic::{Side, Traffic};
use crate::report::{Outcome, Row};

/// Returns the number of strategies.
fn strategies() -> anyhow::Result<u64> {
    match Setting::Wait.spec().kind {
        Kind::Word(words) if words.len() > 1 => Ok(words.len() as u64),
        _ => bail!("strategies without a choice of words"),
    }
}

/// Returns a walk from each strategy to each other, once, which ends where it begins. It goes there
/// and back between the first and each later one; at the first visit of the next one, it inserts
/// the same walk from there.
fn every_change(count: u64) -> Vec<u64> {
    let mut walk = Vec::new();
    for at in (0..count).rev() {
        // The walk from `at + 1` is inserted when the walk from `at` reaches that.
        let later = std::mem::take(&mut walk);
        walk.push(at);
        if at + 1 < count {
            walk.extend(later);
            walk.push(at);
        }
        for other in at + 2..count {
            walk.extend([other, at]);
        }
    }
    walk
}

/// Changes from every strategy to every other, with at least one packet between two changes.
pub(super) fn changes(plan: &Plan, seed: u64, outcome: &mut Outcome) -> anyhow::Result<()> {
    let order = every_change(strategies()?);
    let (server, _far) = serve(order[0])?;
    let sides = Side::pair(&server, [WaitStrategy::Block; 2], plan.limit)?;
    let mut progress = Progress::new("changes: passes", plan.passes);
    let (start, traffic) = (Instant::now(), Traffic::default());
    let mut random = Rng::with_seed(seed.rotate_left(32));
    let (mut strategy, mut changes) = (order[0], 0);
    let changed = traffic.run(sides, seed, true, |ended| {
        for pass in 0..plan.passes {
            let pick = |values: [u64; 3], random: &mut Rng| values[random.usize(..3)];
            set(&server, Setting::TickHz, pick([2000, 20_000, 60_000], &mut random))?;
            set(&server, Setting::LatencyUs, pick([1, 100, 2000], &mut random))?;
            for &next in &order[1..] {
                let before = traffic.rounds.load(Ordering::Relaxed);
                strategy = next;
                set(&server, Setting::Wait, strategy)?;
                changes += 1;
                while traffic.rounds.load(Ordering::Relaxed) == before {
                    if ended() {
                        return Ok(());
                    }
                    std::thread::yield_now();
                }
            }
            progress.at(pass);
        }
        Ok(())
    });
    let now = Setting::Wait.show(strategy);
    changed
        .with_context(|| format!("lost: strategy {now}, after {changes} changes, seed {seed}"))?;
    progress.done(plan.passes, start.elapsed());
    server.stop()?;
    let all = plan.passes * (order.len() as u64 - 1);
    outcome.rows.push(goal("changes of strategy under traffic", changes, all, "changes"));
    let rounds = traffic.rounds.load(Ordering::Relaxed) as f64;
    outcome.context.push(Row::new(
        "packets there and back, changes of strategy",
        &[],
        "rounds",
        &[rounds],
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_mode_change_occurs_once() {
        assert_eq!(every_change(3), [0, 1, 2, 1, 0, 2, 0]);
        for count in [2, 3, 4, 5, 6, 9] {
            let walk = every_change(count);
            assert_eq!(walk.first(), walk.last(), "passes follow each other");
            let changes: BTreeSet<_> = walk.windows(2).map(|pair| (pair[0], pair[1])).collect();
            assert_eq!(changes.len(), walk.len() - 1, "none twice of {count}");
            assert_eq!(changes.len() as u64, count * (count - 1), "all of {count}");
            assert!(changes.iter().all(|(from, to)| from != to && *to < count));
        }
    }

    #[test]
    fn all_modes_are_known() {
        let strategies = strategies().unwrap();
        for strategy in 0..strategies {
            let word = Setting::Wait.show(strategy);
            assert_eq!(Setting::Wait.parse(&word).unwrap(), strategy);
        }
        assert!(serve(strategies).is_err(), "one more than there are");
    }
}
