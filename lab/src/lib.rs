//! Measurements, each a ratio between two things in one run.
//!
//! Machines differ, and virtual ones differ from minute to minute. So an experiment measures both
//! sides of each claim in turn (A B A B …), at least five times, and reports the median with its
//! spread. The same run also measures the hardware's own limits ([`limits`]).
//!
//! | module | holds |
//! |---|---|
//! | [`report`] | the result of an experiment: rows, machine, JSON and table |
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
//! | [`output`], [`figure`], [`svg`] | a report as files, with pictures |
//! | [`results`], [`age`] | the last full run of each experiment, in `lab/results` |
//! | [`page`], `headlines` | the page `docs/benchmarks.md` |
//! | [`prose`] | figures in other pages |
//! | `how_fast` | the README's chart |
//! | [`recording`] | the README's recorded terminal |
//! | [`guest`] | virtual machines that run scripts of checks |
//! | [`documents`] | writes all of these, or compares them with the results |
//! | `techniques` | techniques that can be switched on and off |
//! | `child`, `process`, `programs` | the other processes of an experiment |
//! | `trip` | the packet and the applications of round trips |

#![forbid(unsafe_code)]

pub mod age;
mod attacks;
mod bare;
mod cambridge;
mod card;
mod cells;
mod channels;
mod child;
mod coexistence;
mod demux;
pub mod documents;
mod echo;
pub mod figure;
pub mod fit;
mod flood;
mod flow;
mod freebsd;
pub mod guest;
mod handoff;
mod headlines;
mod hostile;
mod how_fast;
mod inline;
mod interval;
mod isolation;
mod karlsruhe;
mod kernel_wire;
mod kills;
mod lanes;
mod latency;
pub mod limits;
pub mod machine;
mod messages;
mod notify;
mod notre_dame;
mod optimistic;
pub mod output;
pub mod page;
#[cfg(test)]
mod path_files;
mod peers;
mod penn;
mod process;
mod programs;
pub mod prose;
mod queue;
mod race;
mod rdma;
pub mod recording;
pub mod report;
pub mod results;
mod scale;
mod sharing;
mod soak;
pub mod statistics;
mod streams;
#[cfg(test)]
mod structure;
pub mod svg;
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

pub use child::{ROLE_FLAG, act};
pub use report::{Length, Report, Row};

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

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// One queue against a bare queue.
    Queue,
    /// Flow lookups with and without the last-flow cache.
    Demux,
    /// One driver for several threads: an optimistic section against a mutex.
    Optimistic,
    /// The cost of one notification to its sender.
    Notify,
    /// Endpoint to endpoint through the engine of another process.
    Switch,
    /// Towpath beside DPDK, Aeron, iceoryx2 and the kernel's sockets.
    Peers,
    /// A neighbour's throughput while another application is killed or stopped.
    Isolation,
    /// A neighbour's times while an unprivileged program attacks the server.
    Attacks,
    /// A neighbour's throughput beside an application that overwrites its memory.
    Hostile,
    /// The cost of idle sessions, endpoints and connections to a busy one.
    Scale,
    /// Reads and writes of a TAP: one call per packet, against io_uring.
    Tap,
    /// TCP between the kernel and a host over TAP, beside the kernel's own over veth.
    Tcp,
    /// RDMA between two hosts over veth, beside the kernel's TCP.
    Rdma,
    /// TCP of the kernel and of Towpath over one wire with delay and faults.
    Wire,
    /// HTTP over TAP, beside the kernel's own over veth.
    Web,
    /// A web server on Towpath under a SYN flood.
    Flood,
    /// Connections whose server is killed again and again.
    Kills,
    /// Datagrams whose server is upgraded again and again.
    Upgrades,
    /// Kills, upgrades, applications that end, and faults, all at once.
    Soak,
    /// An interface that the kernel and a server share.
    Coexistence,
    /// A host that shares its address with applications.
    Sharing,
    /// Round trips over AF_XDP on veth.
    Xdp,
    /// Several engine threads for one interface.
    Lanes,
    /// A network card: Towpath's driver beside the kernel's and DPDK's.
    Card,
    /// Tracey and Banerji: the double round trip of a small frame, with each technique on and off.
    NotreDame,
    /// Riddoch and Pope: message sizes, idle endpoints, load.
    Cambridge,
    /// Channels between two applications, beside DPDK and Aeron.
    Channels,
    /// Hennrich: the cost of frames, wake-ups and polls, and the gain of saving them.
    Karlsruhe,
    /// Smith and Traw: PDU sizes, the processor time left for others, the clock.
    Penn,
    /// The engine's wait strategies: the controller beside sockets and beside fixed settings.
    Waiting,
    /// Watson: handing packets to the device directly, or through a queue.
    FreeBsd,
    /// The cost of the watchdog per frame.
    Watchdog,
    /// Attempts to lose a wake-up.
    Wakeups,
}

impl Experiment {
    /// All experiments, in the order of the page.
    pub const ALL: [Experiment; 33] = [
        Experiment::Queue,
        Experiment::Demux,
        Experiment::Optimistic,
        Experiment::Notify,
        Experiment::Switch,
        Experiment::Peers,
        Experiment::Isolation,
        Experiment::Attacks,
        Experiment::Hostile,
        Experiment::Scale,
        Experiment::Tap,
        Experiment::Tcp,
        Experiment::Rdma,
        Experiment::Wire,
        Experiment::Web,
        Experiment::Flood,
        Experiment::Kills,
        Experiment::Upgrades,
        Experiment::Soak,
        Experiment::Coexistence,
        Experiment::Sharing,
        Experiment::Xdp,
        Experiment::Lanes,
        Experiment::Card,
        Experiment::NotreDame,
        Experiment::Cambridge,
        Experiment::Channels,
        Experiment::Karlsruhe,
        Experiment::Penn,
        Experiment::FreeBsd,
        Experiment::Waiting,
        Experiment::Watchdog,
        Experiment::Wakeups,
    ];

    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Queue => "queue",
            Experiment::Demux => "demux",
            Experiment::Optimistic => "optimistic",
            Experiment::Notify => "notify",
            Experiment::Switch => "switch",
            Experiment::Peers => "peers",
            Experiment::Isolation => "isolation",
            Experiment::Attacks => "attacks",
            Experiment::Hostile => "hostile",
            Experiment::Scale => "scale",
            Experiment::Tap => "tap",
            Experiment::Tcp => "tcp",
            Experiment::Rdma => "rdma",
            Experiment::Wire => "wire",
            Experiment::Web => "web",
            Experiment::Flood => "flood",
            Experiment::Kills => "kills",
            Experiment::Upgrades => "upgrades",
            Experiment::Soak => "soak",
            Experiment::Coexistence => "coexistence",
            Experiment::Sharing => "sharing",
            Experiment::Xdp => "xdp",
            Experiment::Lanes => "lanes",
            Experiment::Card => "card",
            Experiment::NotreDame => "notre-dame",
            Experiment::Cambridge => "cambridge",
            Experiment::Channels => "channels",
            Experiment::Karlsruhe => "karlsruhe",
            Experiment::Penn => "penn",
            Experiment::FreeBsd => "freebsd",
            Experiment::Waiting => "waiting",
            Experiment::Watchdog => "watchdog",
            Experiment::Wakeups => "wakeups",
        }
    }

    /// Returns the subject in one line, for the help.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Experiment::Queue => "one queue, against a bare queue",
            Experiment::Demux => "flow lookups, with the last-flow cache off, on and automatic",
            Experiment::Optimistic => {
                "one driver for several threads: an optimistic section against a mutex"
            }
            Experiment::Notify => "the cost of one notification to its sender",
            Experiment::Switch => "endpoint to endpoint through the engine of another process",
            Experiment::Peers => {
                "Towpath beside DPDK, Aeron and iceoryx2 (lab/peers/install), and the kernel"
            }
            Experiment::Isolation => {
                "a neighbour's throughput while another application is killed or stopped"
            }
            Experiment::Attacks => {
                "a neighbour's times while an unprivileged program attacks the server"
            }
            Experiment::Hostile => "a neighbour beside an application that overwrites random words",
            Experiment::Scale => {
                "the cost of idle sessions, endpoints and connections to a busy one"
            }
            Experiment::Tap => "reads and writes of a TAP: a call per packet, against io_uring",
            Experiment::Tcp => "TCP between the kernel and a host over TAP, and over veth",
            Experiment::Rdma => "RDMA between two hosts over veth, beside TCP of the kernel",
            Experiment::Wire => {
                "TCP of the kernel and of Towpath over a wire with delay, queue and loss"
            }
            Experiment::Web => "HTTP of a web server over TAP, and over veth and std::net",
            Experiment::Flood => "a web server's connections and memory under a SYN flood",
            Experiment::Kills => "connections while their server is killed again and again",
            Experiment::Upgrades => "datagrams while their server is upgraded again and again",
            Experiment::Soak => "kills, upgrades, applications that end, and faults, all at once",
            Experiment::Coexistence => "TCP on an interface that the kernel and a server share",
            Experiment::Sharing => {
                "a host's address, shared: TCP, a web server, and the kernel's own"
            }
            Experiment::Xdp => "round trips over AF_XDP on veth: bare, embedded, server, and UDP",
            Experiment::Lanes => "processor time per packet with two engine threads, and with one",
            Experiment::Card => "a network card in a guest: Towpath, the kernel's driver and DPDK",
            Experiment::NotreDame => "Tracey and Banerji: round trips, each technique on and off",
            Experiment::Cambridge => "Riddoch and Pope: message sizes, idle endpoints, load",
            Experiment::Channels => {
                "channels and requests between two applications, beside DPDK and Aeron"
            }
            Experiment::Karlsruhe => "Hennrich: the cost of frames, wake-ups and polls",
            Experiment::Penn => "Smith and Traw: PDU sizes, processor time left, the clock",
            Experiment::FreeBsd => "Watson: hand-off to the device directly, or through a queue",
            Experiment::Waiting => "wait strategies: auto beside fixed ones and beside sockets",
            Experiment::Watchdog => "the cost per frame of the device's watchdog",
            Experiment::Wakeups => "attempts to lose a wake-up",
        }
    }

    /// Returns whether it needs its own network namespace.
    fn has_a_network(self) -> bool {
        matches!(
            self,
            Experiment::Peers
                | Experiment::Attacks
                | Experiment::Hostile
                | Experiment::Tap
                | Experiment::Tcp
                | Experiment::Rdma
                | Experiment::Wire
                | Experiment::Web
                | Experiment::Flood
                | Experiment::Kills
                | Experiment::Upgrades
                | Experiment::Soak
                | Experiment::Coexistence
                | Experiment::Sharing
                | Experiment::Xdp
                | Experiment::Lanes
                | Experiment::NotreDame
                | Experiment::Cambridge
                | Experiment::Channels
                | Experiment::Karlsruhe
                | Experiment::Penn
                | Experiment::FreeBsd
                | Experiment::Waiting
        )
    }

    /// Returns the experiment of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Experiment> {
        Experiment::ALL.into_iter().find(|one| one.name() == name)
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
