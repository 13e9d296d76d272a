//! Other load of a machine during a transfer, each a process of its own: computing, and reading
//! memory.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use towpath_testkit::{pin, this_thread_cpu_time};

use crate::child::{Child, Role, is_over, tell};

/// The paper's number (section 3.1.1), which the paper calls prime.
const NUMBER: u64 = 11_111_111_111_123;
/// The number of processes that factor it.
const PROCESSES: usize = 5;
/// A size that no cache holds.
const STRIDE_BYTES: usize = 256 << 20;
/// A cache line: the step.
const LINE_BYTES: usize = 64;

/// Returns the least factor of a number above 1.
fn least_factor(number: u64) -> u64 {
    if number.is_multiple_of(2) {
        return 2;
    }
    let mut factor = 3;
    while factor * factor <= number {
        if number.is_multiple_of(factor) {
            return factor;
        }
        factor += 2;
    }
    number
}

/// Computes, and nothing else.
#[derive(Serialize, Deserialize)]
pub(crate) struct Factor {
    /// The core; any core if `None`.
    pub(crate) cpu: Option<usize>,
}

impl Role for Factor {
    const NAME: &'static str = "Factor";

    fn act(self) -> anyhow::Result<()> {
        factor(self.cpu)
    }
}

/// Runs the computing process: factors the number, again and again, until its parent is gone.
fn factor(cpu: Option<usize>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        pin(cpu)?;
    }
    let found = least_factor(NUMBER);
    ensure!(found == NUMBER, "{found} divides {NUMBER}");
    tell("ready")?;
    while !is_over() {
        std::hint::black_box(least_factor(std::hint::black_box(NUMBER)));
    }
    Ok(())
}

/// The result of a process that reads memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Gigabytes per second of wall-clock time.
    pub(super) gb_per_s: f64,
    /// Gigabytes per second of its own processor time.
    pub(super) gb_per_cpu_s: f64,
}

/// Reads memory beyond the caches, and reports how fast.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stride {
    /// The core.
    pub(crate) cpu: usize,
}

impl Role for Stride {
    const NAME: &'static str = "Stride";

    fn act(self) -> anyhow::Result<()> {
        stride(self.cpu)
    }
}

/// Runs the process that reads memory: on each request, strides for this many milliseconds and
/// reports its result.
fn stride(cpu: usize) -> anyhow::Result<()> {
    pin(cpu)?;
    let memory = vec![1_u8; STRIDE_BYTES];
    tell("ready")?;
    let mut line = String::new();
    let mut at = 0;
    let mut stdin = std::io::stdin().lock();
    loop {
        line.clear();
        if stdin.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let window = Duration::from_millis(line.trim().parse().context("how long to stride")?);
        let (start, cpu) = (Instant::now(), this_thread_cpu_time()?);
        let (mut lines, mut sum) = (0_u64, 0_u64);
        let took = loop {
            for _ in 0..4096 {
                sum = sum.wrapping_add(u64::from(memory[at]));
                at = (at + LINE_BYTES) % STRIDE_BYTES;
            }
            lines += 4096;
            let took = start.elapsed();
            if took >= window {
                break took;
            }
        };
        let cpu = this_thread_cpu_time()? - cpu;
        std::hint::black_box(sum);
        let bytes = (lines * LINE_BYTES as u64) as f64;
        let seen = Seen {
            gb_per_s: bytes / took.as_nanos() as f64,
            gb_per_cpu_s: bytes / cpu.as_nanos().max(1) as f64,
        };
        tell(&serde_json::to_string(&seen)?)?;
    }
}

/// Five computing processes, stopped until they may run.
pub(super) struct Load {
    processes: Vec<Child>,
}

impl Load {
    /// Starts them on one core, or on all that the caller may use now.
    pub(super) fn start(cpu: Option<usize>) -> anyhow::Result<Load> {
        let role = Factor { cpu };
        let processes = (0..PROCESSES)
            .map(|_| {
                let child = Child::start(&role)?;
                child.signal(Signal::STOP)?;
                Ok(child)
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Load { processes })
    }

    pub(super) fn go(&self, on: bool) -> anyhow::Result<()> {
        let signal = if on { Signal::CONT } else { Signal::STOP };
        self.processes.iter().try_for_each(|child| child.signal(signal))
    }

    /// Returns their processor time so far.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for child in &self.processes {
            sum += towpath_testkit::process_cpu_time(child.pid())?;
        }
        Ok(sum)
    }
}

/// A process that reads memory.
pub(super) struct Striding {
    child: Child,
}

impl Striding {
    pub(super) fn start(cpu: usize) -> anyhow::Result<Striding> {
        Ok(Striding { child: Child::start(&Stride { cpu })? })
    }

    /// Returns its result while other work runs for as long.
    pub(super) fn beside(
        &mut self,
        window: Duration,
        other: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Seen> {
        self.child.say(&window.as_millis().max(1).to_string())?;
        let done = other();
        let line = self.child.read_line()?;
        done?;
        serde_json::from_str(&line)
            .with_context(|| format!("the process that reads memory said {line:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_number_is_prime() {
        assert_eq!(least_factor(NUMBER), NUMBER);
        assert_eq!([15, 77, 2, 9, 13].map(least_factor), [3, 7, 2, 3, 13]);
    }
}
