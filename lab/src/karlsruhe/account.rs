//! Idle time by the count of a process, beside the scheduler's account of the participants.

use std::time::Duration;

use super::frames::{Bench, Direction, Load, Sample};
use super::left::missing;
use super::way::RATE;
use crate::Settings;
use crate::report::{Outcome, Row};

/// Frames of a burst.
const BURSTS: [u32; 2] = [1, 16];

/// Measures frames both ways: idle time by the count, and by the scheduler's account of
/// participants.
pub(super) fn measure(
    settings: Settings,
    bench: &mut Bench<'_>,
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for direction in Direction::ALL {
        for burst in BURSTS {
            let load = Load::bursts(direction, RATE, burst);
            let samples = (0..settings.pairs())
                .map(|_| bench.run(load, window))
                .collect::<anyhow::Result<Vec<Sample>>>()?;
            let parameters =
                [("packets_per_s", f64::from(RATE)), ("packets_at_once", f64::from(burst))];
            let mut row = |what: &str, value: &dyn Fn(&Sample) -> f64| {
                let values: Vec<f64> = samples.iter().map(|one| 100.0 * value(one)).collect();
                let name = format!("{}, counted, {what}", direction.name());
                outcome.context.push(Row::new(&name, &parameters, "% of both cores", &values));
            };
            let left = |sample: &Sample| sample.left.unwrap_or(f64::NAN);
            row("idle", &left);
            row("participants", &|sample| 1.0 - sample.idle(2));
            row("interrupts, the kernel's threads and others", &|sample| {
                missing(left(sample), sample.busy_s)
            });
        }
    }
    Ok(())
}
