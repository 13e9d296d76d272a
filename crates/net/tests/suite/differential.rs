//! Random sequences of calls, on the sockets of the kernel and on those of towpath-net: each call has the same outcome on
//! both, and afterwards all sockets are ready for the same. [known](differential/known.rs) lists the differences that are
//! meant.
//!
//! `TOWPATH_SEQUENCES=20000` runs more sequences, and `TOWPATH_SEED` begins with the sequence of a seed that a failure has
//! printed.

mod calls;
mod generate;
mod kernel;
mod known;
mod ours;
mod side;
mod step;
mod world;

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::Kernel;
use ours::Ours;
use side::Side;
use step::{At, Step};
use towpath_net::Driving;
use world::{Ready, World};

/// The sequences of a normal run.
const SEQUENCES: u64 = 300;
/// How often the sides may be compared until they agree: the kernel delivers in the background. Only a failure takes as long.
const ATTEMPTS: usize = 2000;
/// A difference has to show in as many runs of the sequence: chance may give two sockets of one side the same port.
const RUNS: u64 = 3;

/// A difference between the two sides.
struct Difference {
    /// The number of the step.
    at: usize,
    text: String,
}

/// Runs a sequence on both sides. `seed` chooses how our side is driven and, with the number of the attempt, its ports.
/// The kernel's side has other addresses in each run.
fn run(steps: &[Step], seed: u64, attempt: u64) -> Option<Difference> {
    static RUN: AtomicU64 = AtomicU64::new(0);
    let number = RUN.fetch_add(1, Ordering::Relaxed);
    let driving = if seed.is_multiple_of(2) { Driving::Application } else { Driving::Thread };
    let mut ours = Side::new(Ours::new(seed.wrapping_mul(RUNS).wrapping_add(attempt), driving));
    let mut theirs = Side::new(Kernel::new(number));
    for (at, step) in steps.iter().enumerate() {
        let (our, their) = (ours.step(at, *step), theirs.step(at, *step));
        if our != their && !known::is_meant(*step, &our, &their) {
            return Some(Difference { at, text: format!("ours: {our}\n    kernel: {their}") });
        }
        if let Some((our, their)) = unequal(&mut ours, &mut theirs) {
            return Some(Difference {
                at,
                text: format!("then ours: {our}\n    then kernel: {their}"),
            });
        }
    }
    None
}

type State = Vec<(String, (Ready, usize))>;

/// Returns the sockets whose states stay different.
fn unequal(ours: &mut Side<Ours>, theirs: &mut Side<Kernel>) -> Option<(String, String)> {
    let (mut our, mut their) = (State::new(), State::new());
    for _ in 0..ATTEMPTS {
        (our, their) = (ours.state(), theirs.state());
        if our == their {
            return None;
        }
        ours.world.pass();
        theirs.world.pass();
    }
    let differing = our.iter().zip(&their).filter(|(our, their)| our != their);
    differing.map(|(our, their)| (format!("{our:?}"), format!("{their:?}"))).next()
}

/// Returns the difference that shows in each of several runs.
fn differs(steps: &[Step], seed: u64) -> Option<Difference> {
    let mut last = None;
    for attempt in 0..RUNS {
        last = Some(run(steps, seed, attempt)?);
    }
    last
}

/// Returns the shortest part of a sequence that still shows a difference (delta debugging), with that difference.
fn shrink(mut steps: Vec<Step>, mut difference: Difference, seed: u64) -> (Vec<Step>, Difference) {
    steps.truncate(difference.at + 1);
    let mut part = steps.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + part).min(steps.len()));
            match differs(&fewer, seed) {
                Some(found) => {
                    fewer.truncate(found.at + 1);
                    (steps, difference) = (fewer, found);
                }
                None => at += part,
            }
        }
        part /= 2;
    }
    (steps, difference)
}

/// Returns a sequence as a short program, with its difference.
fn show((steps, difference): &(Vec<Step>, Difference), seed: u64) -> String {
    let mut text = format!("TOWPATH_SEED={seed}\n");
    for step in steps {
        let _ = writeln!(text, "    {step}");
    }
    let _ = write!(text, "    {}", difference.text);
    text
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn is_v6(step: &Step) -> bool {
    let (Step::Listen { bind, .. } | Step::Bind { bind, .. }) = step else { return false };
    !matches!(bind.at, At::V4 | At::AnyV4)
}

#[test]
fn the_document_has_the_differences() {
    let text = std::fs::read_to_string("../../docs/sockets.md").unwrap();
    let table = known::table();
    assert!(text.contains(&table), "docs/sockets.md has another table, instead of:\n{table}");
}

#[test]
fn sequences_of_calls_have_the_outcomes_of_the_kernels_sockets() {
    let has_v6 = Kernel::has_v6();
    let (first, count) = (number("TOWPATH_SEED", 1), number("TOWPATH_SEQUENCES", SEQUENCES));
    let most = number("TOWPATH_DIFFERENCES", 1);
    let (mut failures, mut calls) = (Vec::new(), 0);
    for seed in first..first + count {
        let mut steps = generate::steps(seed);
        steps.retain(|step| has_v6 || !is_v6(step));
        calls += steps.len();
        let Some(difference) = differs(&steps, seed) else { continue };
        failures.push(show(&shrink(steps, difference, seed), seed));
        if failures.len() as u64 >= most {
            break;
        }
    }
    println!("{count} sequences, {calls} calls");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
