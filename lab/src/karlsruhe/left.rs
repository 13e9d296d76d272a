//! The idle time of both cores by the paper's own measure: a thread of the idle class counts on
//! each core. Time that neither these threads nor the participants had went to interrupts, kernel
//! threads and other processes.
//!
//! The counting threads belong to a process of their own, which is no participant. They keep a core
//! from halting. So this measurement is a run of its own, beside Linux measured in the same way.

use std::io::BufRead;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use towpath_testkit::IdleCounters;

use super::way::WINDOW_S;
use crate::Settings;
use crate::child::{Child, Role, tell};

/// Counts the idle time of each core, and reports it on request.
#[derive(Serialize, Deserialize)]
pub(crate) struct CountIdle {
    /// The cores.
    pub(crate) cpus: Vec<usize>,
    /// The time to calibrate, in milliseconds.
    pub(crate) calibration_ms: u64,
}

impl Role for CountIdle {
    const NAME: &'static str = "CountIdle";

    fn act(self) -> anyhow::Result<()> {
        count_idle(&self.cpus, Duration::from_millis(self.calibration_ms))
    }
}

/// Runs the counting process: begins at each first line, and at each second line reports the idle
/// part of each core.
fn count_idle(cpus: &[usize], calibration: Duration) -> anyhow::Result<()> {
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
        let role = CountIdle { cpus: vec![cores.0, cores.1], calibration_ms };
        Ok(Left { child: Child::start(&role)? })
    }

    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        self.child.say("begin")?;
        self.child.read_line()?;
        Ok(())
    }

    /// Returns the idle part of all cores, 0 to 1.
    pub(super) fn end(&mut self) -> anyhow::Result<f64> {
        self.child.say("end")?;
        let line = self.child.read_line()?;
        // A core that was never idle during the calibration has no value.
        let parts: Vec<Option<f64>> = serde_json::from_str(&line)
            .with_context(|| format!("the process that counts said {line:?}"))?;
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
