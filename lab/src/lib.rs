//! Measurements, each a ratio between two things in one run.
//!
//! Machines differ, and virtual ones differ from minute to minute. So an experiment measures both
//! sides of each claim in turn (A B A B …), at least five times, and reports the median with its
//! spread. The same run also measures the hardware's own limits ([`limits`]).
//!
//! | module | holds |
//! |---|---|
//! | [`limits`] | cache line round trip, memory copy, a bare queue |
//! | `queue` | one queue against a bare queue |
//! | `demux` | flow lookups, the last-flow cache on, off and automatic |
//! | `optimistic` | one driver for several threads: an optimistic section against a mutex |
//! | `notify` | the cost of one notification by a doorbell, by a call of a worker, and by a pipe |
//! | `switch` | endpoint to endpoint through the engine of another process |
//! | `peers` | Towpath beside other projects and the kernel: throughput, round trips awake and asleep |
//! | `scale` | the cost of idle sessions, endpoints and connections to a busy one |
//! | `isolation` | a neighbour's throughput while another application dies |
//! | `attacks` | a neighbour's round trips and attachments while a hostile program attacks the server |
//! | `hostile` | a neighbour's throughput beside an application that overwrites random words |
//! | `tap` | reads and writes of a TAP by io_uring, beside one call each |
//! | `sharing` | a host that shares its address: TCP, a web server, and the kernel beside them |
//! | `xdp` | round trips over AF_XDP on veth: bare, embedded, server, and kernel sockets |
//! | `card` | a network card: Towpath's driver beside the kernel's, DPDK's and older styles, in a virtual machine |
//! | `card_log` | QEMU's log of the cards of a guest |
//! | `tcp` | kernel to host over TAP, beside kernel to kernel over veth |
//! | `web` | HTTP over TAP: the example `web` beside the same source over the kernel's sockets |
//! | `flood` | a web server on Towpath under a SYN flood |
//! | `kills` | connections of an application whose server is killed again and again |
//! | `soak` | kills, upgrades, applications that end, and faults, all at once |
//! | `upgrades` | datagrams of an application whose server is upgraded again and again |
//! | `rdma` | RDMA between two hosts over veth, beside TCP of the kernel on the same kind of wire |
//! | `wire` | TCP of the kernel and of Towpath over one wire with delay, a bottleneck and faults |
//! | `notre_dame` … `freebsd` | the papers' own experiments, repeated |
//! | `watchdog` | the cost of a device's watchdog |
//! | `wakeups` | very many attempts to lose a wake-up |
//! | `towpath_report` | reports, results and the documents that show them: its own crate, which builds quickly |
//! | [`recording`] | the README\'s recorded terminal |
//! | `towpath_guest` | virtual machines that run scripts of checks: its own crate, which builds quickly |
//! | `techniques` | techniques that can be switched on and off |
//! | `child`, `roles`, `process`, `programs` | the other processes of an experiment |
//! | `count` | packets through an engine, for a tool that counts instructions |
//! | `trip` | the packet and the applications of round trips |

#![forbid(unsafe_code)]

mod attacks;
mod bare;
mod cambridge;
mod card;
mod card_log;
mod cells;
mod channels;
mod child;
mod coexistence;
mod count;
mod demux;
mod echo;
pub mod fit;
mod flood;
mod flow;
mod freebsd;
mod handoff;
mod hostile;
mod inline;
mod interval;
mod isolation;
mod karlsruhe;
mod kernel_wire;
mod kills;
mod lanes;
mod latency;
pub mod limits;
mod messages;
mod notify;
mod notre_dame;
mod optimistic;
mod peers;
mod penn;
mod process;
mod programs;
mod queue;
mod race;
mod rdma;
pub mod recording;
mod roles;
mod scale;
mod sharing;
mod soak;
mod streams;
mod switch;
mod tap;
mod tcp;
mod techniques;
mod trip;
mod upgrades;
mod waiting;
mod wakeups;
mod watchdog;
mod web;
mod wire;
mod xdp;

pub use child::ROLE_FLAG;
pub use roles::act;
pub use towpath_report::{Experiment, Length, Report, Row};
pub use towpath_report::{figure, machine, output, report, statistics};

/// The length of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Runs an experiment in under 40 seconds, or `card` in two minutes: shorter windows, and only five pairs.
    pub quick: bool,
    /// Runs as long as the papers do, where that is much longer.
    pub full: bool,
}

impl Settings {
    /// Returns the length's name in a report.
    #[must_use]
    pub fn length(&self) -> Length {
        match self {
            Settings { quick: true, .. } => Length::Quick,
            Settings { full: true, .. } => Length::Full,
            Settings { .. } => Length::Normal,
        }
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn pairs(&self) -> usize {
        if self.quick { 5 } else { 11 }
    }
}

/// Runs an experiment. The caller calls it before the process has a second thread: some experiments
/// enter their own network namespace.
///
/// # Errors
/// With a missing requirement or a failure, in words; [`towpath_testkit::Unavailable`] among them.
pub fn run(experiment: Experiment, settings: Settings) -> anyhow::Result<Report> {
    if experiment.has_a_network() {
        tcp::enter()?;
    }
    let mut report = Report::new(experiment.name(), settings.length())?;
    // The machine's speed does not matter to lost wake-ups.
    if experiment != Experiment::Wakeups {
        report.limits = limits::measure(settings)?;
    }
    let outcome = match experiment {
        Experiment::Queue => queue::measure(settings)?,
        Experiment::Demux => demux::measure(settings)?,
        Experiment::Optimistic => optimistic::measure(settings)?,
        Experiment::Notify => notify::measure(settings)?,
        Experiment::Switch => switch::measure(settings)?,
        Experiment::Peers => peers::measure(settings)?,
        Experiment::Isolation => isolation::measure(settings)?,
        Experiment::Attacks => attacks::measure(settings)?,
        Experiment::Hostile => hostile::measure(settings)?,
        Experiment::Scale => scale::measure(settings)?,
        Experiment::Tap => tap::measure(settings)?,
        Experiment::Tcp => tcp::measure(settings)?,
        Experiment::Rdma => rdma::measure(settings)?,
        Experiment::Wire => wire::measure(settings)?,
        Experiment::Web => web::measure(settings)?,
        Experiment::Flood => flood::measure(settings)?,
        Experiment::Kills => kills::measure(settings)?,
        Experiment::Upgrades => upgrades::measure(settings)?,
        Experiment::Soak => soak::measure(settings)?,
        Experiment::Coexistence => coexistence::measure(settings)?,
        Experiment::Sharing => sharing::measure(settings)?,
        Experiment::Xdp => xdp::measure(settings)?,
        Experiment::Lanes => lanes::measure(settings)?,
        Experiment::Card => card::measure(settings)?,
        Experiment::NotreDame => notre_dame::measure(settings)?,
        Experiment::Cambridge => cambridge::measure(settings)?,
        Experiment::Channels => channels::measure(settings)?,
        Experiment::Karlsruhe => karlsruhe::measure(settings)?,
        Experiment::Penn => penn::measure(settings)?,
        Experiment::FreeBsd => freebsd::measure(settings)?,
        Experiment::Waiting => waiting::measure(settings)?,
        Experiment::Watchdog => watchdog::measure(settings)?,
        Experiment::Wakeups => wakeups::measure(settings)?,
    };
    report.how = outcome.how;
    report.rows = outcome.rows;
    report.context = outcome.context;
    report.figures = outcome.figures;
    report.missing = outcome.missing;
    Ok(report)
}
