//! The idle time of both cores by the paper's own measure: a thread of the idle class counts on
//! each core. Time that neither these threads nor the participants had went to interrupts, kernel
//! threads and other processes.
//!
//! The counting threads belong to a process of their own, which is no participant. They keep a core
//! from halting. So this measurement is a run of its own, beside Linux measured in the same way.

use std::io::BufRead;
use std::time::Duration;

use anyhow::{Context, bail};
use towpath_testkit::IdleCounters;

use super::frames::{Bench, Direction, Load};
use super::{RATE, Sample, WINDOW_S};
use crate::Settings;
use crate::child::{Child, Role, tell};
use crate::report::{Outcome, Row};

/// Frames of a burst.
const BURSTS: [u32; 2] = [1, 16];

/// Runs the counting process: begins at each first line, and at each second line reports the idle
/// part of each core.
pub(crate) fn count_idle(cpus: &[usize], calibration: Duration) -> anyhow::Result<()> {
    let mut idle = IdleCounters::start(cpus)?;
    idle.calibrate(calibration)?;
    tell("ready")?;
    let mut begun = None;
    for line in std::io::stdin().lock().lines() {
        line?;
        match begun.take() {
            None => {
                begun = Some(idle.moment());
                tell("begun")?;
            }
            Some(moment) => tell(&serde_json::to_string(&idle.idle_since(&moment))?)?,
        }
    }
    Ok(())
}

/// A process that counts idle time.
pub(super) struct Left {
    child: Child,
}

impl Left {
    /// Starts and calibrates it. Nothing else may compute meanwhile.
    pub(super) fn start(cores: (usize, usize), settings: Settings) -> anyhow::Result<Left> {
        let calibration_ms = if settings.quick { 200 } else { 1000 };
        let role = Role::CountIdle { cpus: vec![cores.0, cores.1], calibration_ms };
        Ok(Left { child: Child::start(&role)? })
    }

    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        self.child.say("begin")?;
        self.child.hear()?;
        Ok(())
    }

    /// Returns the idle part of all cores, 0 to 1.
    pub(super) fn end(&mut self) -> anyhow::Result<f64> {
        self.child.say("end")?;
        let heard = self.child.hear()?;
        // A core that was never idle during the calibration has no value.
        let parts: Vec<Option<f64>> = serde_json::from_str(&heard)
            .with_context(|| format!("the process that counts said {heard:?}"))?;
        match parts.iter().copied().collect::<Option<Vec<f64>>>() {
            Some(parts) if !parts.is_empty() => Ok(parts.iter().sum::<f64>() / parts.len() as f64),
            _ => bail!("the machine was not idle for a moment: idle time cannot be counted"),
        }
    }
}

/// Returns the part of both cores that neither the idle class nor the participants had. `left` and
/// `busy_s` are those of samples.
pub(super) fn missing(left: f64, busy_s: f64) -> f64 {
    1.0 - left - busy_s / (2.0 * WINDOW_S)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaccounted_processor_time_is_missing() {
        // In ten seconds of two cores, six were idle and three the participants': one is missing.
        assert!((missing(0.6, 3.0) - 0.1).abs() < 1e-9);
        assert!(missing(1.0, 0.0).abs() < 1e-9);
    }
}
