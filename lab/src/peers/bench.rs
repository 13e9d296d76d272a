//! The parts that all comparisons share.

use std::time::Duration;

use super::program::{Files, Place, Program, Project};
use crate::Settings;
use crate::kernel_wire::KernelWire;
use crate::latency::Latency;
use crate::report::Outcome;

/// The parts that all comparisons share.
pub(super) struct Bench {
    pub(super) settings: Settings,
    pub(super) cores: (usize, usize),
    pub(super) window: Duration,
    pub(super) place: Place,
    pub(super) files: Files,
    pub(super) wire: KernelWire,
    pub(super) outcome: Outcome,
}

impl Bench {
    pub(super) fn new(
        settings: Settings,
        cores: (usize, usize),
        outcome: Outcome,
    ) -> anyhow::Result<Bench> {
        Ok(Bench {
            settings,
            cores,
            window: Duration::from_millis(if settings.quick { 20 } else { 400 }),
            place: Place::usual()?,
            files: Files::new()?,
            wire: KernelWire::new("tpkern", 1500)?,
            outcome,
        })
    }

    /// Records that something was not measured, in the report and on standard error.
    pub(super) fn missing(&mut self, line: String) {
        if !self.outcome.missing.contains(&line) {
            eprintln!("towpath-lab: not measured: {line}");
            self.outcome.missing.push(line);
        }
    }

    /// Finds a project's program; records it if it is missing.
    pub(super) fn find(&mut self, project: Project) -> Option<Vec<String>> {
        project.find(&self.place).map_err(|missing| self.missing(missing)).ok()
    }

    /// Starts a program of `lab/peers` with its arguments; records it if that fails.
    pub(super) fn start(&mut self, project: Project, arguments: &[String]) -> Option<Program> {
        let words = [self.find(project)?, arguments.to_vec()].concat();
        let started = Program::start(&self.files, project.name(), &words, None);
        started.map_err(|error| self.missing(format!("{}: {error:#}", project.name()))).ok()
    }

    /// Returns the running program of Aeron.
    pub(super) fn aeron(&mut self) -> Option<Program> {
        let class = "AeronPeer".to_owned();
        let arguments = [&[class][..], &self.arguments("aeron")].concat();
        self.start(Project::Aeron, &arguments)
    }

    /// Returns the arguments of the programs in `lab/peers`: a directory and two cores.
    pub(super) fn arguments(&self, directory: &str) -> [String; 3] {
        let directory = self.files.path().join(directory).display().to_string();
        [directory, self.cores.0.to_string(), self.cores.1.to_string()]
    }
}

/// Returns the median and the 99th percentile, in microseconds.
pub(super) fn two(times: &Latency) -> anyhow::Result<[f64; 2]> {
    Ok([times.quantile_us(0.5), times.quantile_us(0.99)])
}
