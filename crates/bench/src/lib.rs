//! Measurements, each a ratio between two things in one run.
//!
//! Machines differ, and virtual ones differ from minute to minute. So what is claimed is measured
//! beside what it is compared with, in turn (A B A B …), at least five times, and the median is
//! given with its spread. What the hardware itself can do is measured in the same run
//! ([`limits`]).
//!
//! | module | holds |
//! |---|---|
//! | [`report`] | what an experiment answers: rows, machine, JSON and table |
//! | [`limits`] | cache line round trip, memory copy, a bare queue |
//! | `queue` | one queue against a bare ring |
//! | `demux` | flow lookups, the last-flow cache on, off and automatic |
//! | `optimistic` | one driver for several threads: an optimistic section against a mutex |
//! | `switch` | endpoint to endpoint through the engine of another process |
//! | `isolation` | a neighbour's throughput while another application dies |
//! | `tcp` | kernel to host over TAP, beside kernel to kernel over veth |
//! | [`page`] | the documentation's page of figures |
//! | `solo` | an engine without threads, whose instructions can be counted |
//! | `child` | the other processes of an experiment |

#![forbid(unsafe_code)]

mod bare;
mod child;
mod demux;
mod isolation;
pub mod limits;
pub mod machine;
mod optimistic;
pub mod page;
mod queue;
pub mod report;
mod solo;
pub mod statistics;
mod switch;
mod tcp;

pub use child::{ROLE_FLAG, act};
pub use report::{Report, Row};

/// How long and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// All of an experiment in under 20 seconds: shorter windows, and only five pairs.
    pub quick: bool,
}

impl Settings {
    /// How many pairs are measured.
    #[must_use]
    pub fn pairs(&self) -> usize {
        if self.quick { 5 } else { 11 }
    }
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// One queue against a bare ring.
    Queue,
    /// Flow lookups with and without the last-flow cache.
    Demux,
    /// One driver for several threads: an optimistic section against a mutex.
    Optimistic,
    /// Endpoint to endpoint through the engine of another process.
    Switch,
    /// A neighbour's throughput while another application is killed or stopped.
    Isolation,
    /// TCP between the kernel and a host over TAP, beside the kernel's own over veth.
    Tcp,
}

impl Experiment {
    /// All, in the order of the page.
    pub const ALL: [Experiment; 6] = [
        Experiment::Queue,
        Experiment::Demux,
        Experiment::Optimistic,
        Experiment::Switch,
        Experiment::Isolation,
        Experiment::Tcp,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Queue => "queue",
            Experiment::Demux => "demux",
            Experiment::Optimistic => "optimistic",
            Experiment::Switch => "switch",
            Experiment::Isolation => "isolation",
            Experiment::Tcp => "tcp",
        }
    }

    /// The experiment of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Experiment> {
        Experiment::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Measures. To be called before the process has a second thread: some experiments go into a
/// network namespace of their own.
///
/// # Errors
/// What is missing, or went wrong, in words; [`towpath_rig::Unavailable`] among them.
pub fn run(experiment: Experiment, settings: Settings) -> anyhow::Result<Report> {
    if experiment == Experiment::Tcp {
        tcp::enter()?;
    }
    let mut report = Report::new(experiment.name())?;
    report.limits = limits::measure(settings)?;
    let outcome = match experiment {
        Experiment::Queue => queue::measure(settings)?,
        Experiment::Demux => demux::measure(settings)?,
        Experiment::Optimistic => optimistic::measure(settings)?,
        Experiment::Switch => switch::measure(settings)?,
        Experiment::Isolation => isolation::measure(settings)?,
        Experiment::Tcp => tcp::measure(settings)?,
    };
    report.how = outcome.how;
    report.rows = outcome.rows;
    report.context = outcome.context;
    Ok(report)
}
