//! Rounds of trials: each round has one trial of each variant, so all variants meet the same
//! moments of the machine.
//!
//! Variants that are compared with each other form a group, whose trials follow each other
//! directly, in an order that the seed decides anew for each round.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::state::State;
use super::variant::{Trial, Variant};
use crate::Settings;

/// Decides the order of trials, and the resamples of the intervals.
pub(super) const SEED: u64 = 0x7061_6972;
/// Trials of the paper.
const PAPER: usize = 5 << 10;
/// The fewest rounds.
const FEWEST: usize = 8;
/// Rounds that do not count: they bring code and data of all variants into memory.
const WARM: usize = 4;

/// The number of rounds, and the pause between two trials of a variant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    pub(super) apart: Duration,
    /// The time limit: there are then fewer rounds, but some, if others use the processor.
    pub(super) at_most: Duration,
}

impl Plan {
    pub(super) fn of(settings: Settings) -> Plan {
        let (rounds, apart_ms, at_most_s) = match settings {
            Settings { quick: true, .. } => (40, 0, 12),
            Settings { full: true, .. } => (PAPER, 500, 2 * 3600),
            _ => (2 << 10, 0, 270),
        };
        let (apart, at_most) = (Duration::from_millis(apart_ms), Duration::from_secs(at_most_s));
        Plan { rounds, apart, at_most }
    }
}

/// A comparison of two variants of a group, with their places in it.
pub(super) struct Compared {
    pub(super) ratio: String,
    pub(super) difference: String,
    pub(super) on: usize,
    pub(super) off: usize,
}

impl Compared {
    pub(super) fn of(subject: &str, base: &str, on: usize, off: usize) -> Compared {
        let (ratio, difference) =
            (format!("{subject} to {base}"), format!("{subject} minus {base}"));
        Compared { ratio, difference, on, off }
    }
}

/// The picture of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Sides that sleep, beside sides that poll.
    Waits,
    /// Techniques between sides that poll.
    Techniques,
    /// The paper's versions of a driver.
    Versions,
    /// Buffers that change their owner.
    Moves,
}

/// Variants whose trials follow each other.
pub(super) struct Group {
    pub(super) part: Part,
    pub(super) variants: Vec<Variant>,
    pub(super) compared: Vec<Compared>,
}

/// The trials of each variant, in the order of groups and of variants in a group. All variants have
/// as many, and the same place is the same round.
pub(super) type Trials = Vec<Vec<Trial>>;

/// Measures round by round. With a state, continues after its rounds, and adds each round to it.
pub(super) fn run(
    groups: &mut [Group],
    plan: Plan,
    mut state: Option<&mut State>,
) -> anyhow::Result<Trials> {
    let mut rounds: Vec<Vec<Trial>> = state.as_deref_mut().map(State::take).unwrap_or_default();
    for number in 0..WARM {
        once(groups, number, Duration::ZERO, &mut vec![None; groups.len()])?;
    }
    let (begun, mut ended) = (Instant::now(), vec![None; groups.len()]);
    while rounds.len() < plan.rounds && (rounds.len() < FEWEST || begun.elapsed() < plan.at_most) {
        let round = once(groups, rounds.len(), plan.apart, &mut ended)?;
        if let Some(state) = state.as_deref_mut() {
            state.add(&round)?;
        }
        rounds.push(round);
    }
    let variants = groups.iter().map(|group| group.variants.len()).sum();
    Ok((0..variants).map(|place| rounds.iter().map(|round| round[place]).collect()).collect())
}

/// Measures one round. Each group begins no sooner than `apart` after the end of its last round, so
/// each of its variants rests for at least that long.
fn once(
    groups: &mut [Group],
    number: usize,
    apart: Duration,
    ended: &mut [Option<Instant>],
) -> anyhow::Result<Vec<Trial>> {
    let mut round = Vec::new();
    for (place, (group, ended)) in groups.iter_mut().zip(ended).enumerate() {
        if let Some(ended) = ended {
            std::thread::sleep((*ended + apart).saturating_duration_since(Instant::now()));
        }
        let begin = round.len();
        round.resize(begin + group.variants.len(), Trial::default());
        for variant in order(number, place, group.variants.len()) {
            round[begin + variant] = group.variants[variant].trial()?;
        }
        *ended = Some(Instant::now());
    }
    Ok(round)
}

/// Returns the order of a group's trials in a round, which depends on nothing else: a run that
/// continues takes the same orders as one without interruption.
fn order(round: usize, group: usize, variants: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..variants).collect();
    // The first numbers of generators whose seeds are close resemble each other.
    let mut random = Rng::with_seed(SEED ^ (round as u64) << 16);
    for _ in 0..=group {
        random = random.fork();
    }
    random.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_pair_comes_first_about_as_often() {
        let first = (0..1000).filter(|round| order(*round, 3, 2) == [0, 1]).count();
        assert!((440..=560).contains(&first), "{first} of 1000");
        let same = (0..1000).filter(|round| order(*round, 3, 2) == order(*round, 4, 2)).count();
        assert!((440..=560).contains(&same), "groups have orders of their own: {same} of 1000");
    }

    #[test]
    fn the_full_length_is_the_papers() {
        let full = Plan::of(Settings { full: true, ..Settings::default() });
        assert_eq!((full.rounds, full.apart), (5120, Duration::from_millis(500)));
    }
}
