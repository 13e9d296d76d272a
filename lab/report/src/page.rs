//! The page `docs/benchmarks.md`: headlines, pictures, and links to all figures.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::Experiment;
use crate::output::picture;
use crate::report::Length;
use crate::results::Results;

// The questions that the experiments answer.
const QUEUE: &str = "\
    What do the checks of the descriptor queue cost? One queue, checked and accounted for, \
    against a bare queue that carries the same descriptors and packets.";
const DEMUX: &str = "\
    Does the last-flow cache pay? Lookups in trains and interleaved, with the cache automatic or \
    on, against the same table with the cache off. Above 1 is faster.";
const OPTIMISTIC: &str = "\
    What does it cost to let several threads into one driver? A thread that finds another one \
    inside leaves its packet and goes on, against a thread that waits for a mutex. Above 1 is \
    faster.";
const NOTIFY: &str = "\
    What does one notification cost the engine? By the socket that is a session's doorbell, and \
    by the eventfd that calls a worker, less the cost of a pipe.";
const SWITCH: &str = "\
    How fast does a packet pass from one application's endpoint to another's, through the \
    server's process, with every check, the flow table and one copy?";
const PEERS: &str = "\
    Towpath beside DPDK's memif and AF_XDP, Aeron, iceoryx2, the kernel's sockets, and a loop that \
    only validates, hashes and copies: how many packets pass from one application to another, and \
    how long does a round trip take, awake and asleep?";
const ISOLATION: &str = "\
    Does a neighbour lose throughput when another application is killed, or stopped and resumed, \
    in the middle of its traffic?";
const ATTACKS: &str = "\
    How long do a neighbour's round trips and attachments take while an unprivileged program \
    attacks the objects and limits that it shares with the server? At 1, the attack costs \
    nothing.";
const HOSTILE: &str = "\
    What does a neighbour lose to an application that overwrites random words of all memory that it may \
    write, and attaches anew when the server closes its session? At 1, nothing.";
const SCALE: &str = "\
    Do idle sessions, endpoints and connections cost a busy one? One busy session, alone and \
    beside idle ones, and alone and among its own idle endpoints; one busy connection, alone and \
    among idle ones. At 1, they cost nothing.";
const TAP: &str = "\
    Does io_uring make the reads and writes of a TAP cheaper than one system call per packet?";
const TCP: &str = "\
    How much of the kernel's own TCP throughput is left when one of the two hosts is an \
    application with a stack of its own, behind a server and a TAP device?";
const RDMA: &str = "\
    How much of the kernel's TCP throughput do two Towpath hosts reach by RDMA over the same kind of wire, \
    without TSO, GSO and GRO, and how long does a small write take until it is complete?";
const WIRE: &str = "\
    How do Towpath's TCP and the kernel's compare over the same wire, with delay, a bottleneck and its \
    queue, loss and late packets, and how do they share a bottleneck? Each sends and receives, to \
    itself and to the other.";
const WEB: &str = "\
    How many requests does a web server on Towpath over TAP answer, and how much processor time and \
    how many wake-ups does one cost, beside the same source over the kernel's sockets and veth?";
const FLOOD: &str = "\
    Do other hosts still connect to a web server on Towpath while a flood of SYNs from random addresses \
    reaches it, and does the web server's memory grow?";
const KILLS: &str = "\
    Does an application notice that its server is killed and another one follows: are connections lost \
    or bytes wrong, and for how long does each connection stand still?";
const UPGRADES: &str = "\
    Does an upgrade of a server lose, repeat or reorder any packet, and for how long does none pass?";
const SOAK: &str = "\
    Are connections lost or bytes wrong, and does anything stay behind, when servers are killed and \
    upgraded, applications are killed, and the wire has faults?";
const COEXISTENCE: &str = "\
What does the filter of an interface that the kernel and a server share cost the kernel's own TCP? What \
is left for the kernel while an application receives, and how does the application's TCP compare with \
the kernel's on the same interface?";
const SHARING: &str = "\
    How do TCP and a web server of an application at a host's own address compare with the kernel's, and \
    what do the kernel's own connections, pings and an ssh session notice of it?";
const XDP: &str = "\
    How long does a round trip over AF_XDP on a veth pair take with the engine inside of the \
    application, and with a server between, beside a bare socket, awake, and beside the kernel's \
    sockets, asleep?";
const NOTRE_DAME: &str = "\
    Tracey and Banerji, \"Device Driver Issues in High-Performance Networking\": how long does a \
    small packet take there and back, and how does each technique of a driver change that?";
const CAMBRIDGE: &str = "\
    Riddoch and Pope, \"A Low Overhead Application/Device-driver Interface for User-level \
    Networking\": the bandwidth by the size of messages, the cost of ten thousand idle endpoints, \
    and the throughput left under overload. No device is crossed.";
const CHANNELS: &str = "\
    Applications on one host that share memory: channels and requests beside DPDK's memif and Aeron, \
    the cost of ten thousand idle channels, and the overhead of a message (Riddoch and Pope, \
    section 4).";
const KARLSRUHE: &str = "\
    Hennrich, \"User Level Device Driver am Beispiel von TCP\": the costs of a packet, a wake-up \
    and a poll, the savings of each technique, and the idle time left beside the kernel's own \
    driver and stack.";
const PENN: &str = "\
    Smith and Traw, \"Giving Applications Access to Gb/s Networking\": the throughput by the size \
    of PDUs, the processor time and memory bandwidth left for others, and the limits of their \
    model of a clock. Some rows cross a TAP or a simulated link of ATM cells, as their names say.";
const FREEBSD: &str = "\
    Watson, \"Changes in the network interface queueing handoff model\": does it pay to give a \
    packet to the device directly, not through a queue?";
const WAITING: &str = "\
    How much processor time does a packet cost where the engine chooses its own wait strategy, \
    beside the kernel's sockets, and how near is that to the best fixed choice?";
const LANES: &str = "\
    How much processor time does a packet take with two engine threads on an interface with four \
    hardware queues, beside one engine thread, and does any flow lose its order?";
const CARD: &str = "\
    What do receiving and forwarding a packet of a network card cost with Towpath's driver, in the \
    program and behind a server, beside the kernel's driver with AF_PACKET and beside DPDK?";
const WATCHDOG: &str = "\
    How much does the watchdog cost a packet: by a timer that is started and stopped for each, by a \
    timestamp compared for each, or by a check now and then?";
const WAKEUPS: &str = "\
    Is any wake-up lost, with any wait strategies of the engine and its applications, and while \
    they change?";

/// Returns the question that an experiment answers.
fn question(experiment: &str) -> &'static str {
    let Some(experiment) = Experiment::from_name(experiment) else { return "" };
    match experiment {
        Experiment::Queue => QUEUE,
        Experiment::Demux => DEMUX,
        Experiment::Optimistic => OPTIMISTIC,
        Experiment::Notify => NOTIFY,
        Experiment::Switch => SWITCH,
        Experiment::Peers => PEERS,
        Experiment::Isolation => ISOLATION,
        Experiment::Attacks => ATTACKS,
        Experiment::Hostile => HOSTILE,
        Experiment::Scale => SCALE,
        Experiment::Tap => TAP,
        Experiment::Tcp => TCP,
        Experiment::Rdma => RDMA,
        Experiment::Wire => WIRE,
        Experiment::Web => WEB,
        Experiment::Flood => FLOOD,
        Experiment::Kills => KILLS,
        Experiment::Upgrades => UPGRADES,
        Experiment::Soak => SOAK,
        Experiment::Coexistence => COEXISTENCE,
        Experiment::Sharing => SHARING,
        Experiment::Xdp => XDP,
        Experiment::Lanes => LANES,
        Experiment::Card => CARD,
        Experiment::NotreDame => NOTRE_DAME,
        Experiment::Cambridge => CAMBRIDGE,
        Experiment::Channels => CHANNELS,
        Experiment::Karlsruhe => KARLSRUHE,
        Experiment::Penn => PENN,
        Experiment::FreeBsd => FREEBSD,
        Experiment::Waiting => WAITING,
        Experiment::Watchdog => WATCHDOG,
        Experiment::Wakeups => WAKEUPS,
    }
}

const ABOUT: &str = "\
# Benchmarks

`towpath-lab report` writes this page from the files in [lab/results](../lab/results), and
`towpath-lab report --check` fails where the two differ.

## The ratios that matter most

Each is a ratio of two things measured in one run, in turn (A B A B ...): the median of at least five pairs,
with the lowest and the highest. A **gain** or a **loss** needs a spread without 1; otherwise the table says
**no difference**. A result is *(old)* if more than 50 commits have changed the code that it concerns
since. Absolute figures are context. Virtual machines differ from minute to minute; `towpath-lab NAME`
measures yours.

";

const REST: &str = "
## The experiments and their pictures

`NAME.json` has every row of the last full run, with its spread; `NAME.md` explains how to read the rows.
";

/// Returns the page, in Markdown, with a table of headlines and links to the remarks of these
/// experiments.
#[must_use]
pub fn page(results: &Results, headlines: &str, remarks: &BTreeSet<String>) -> String {
    let mut page = format!("{ABOUT}{headlines}{REST}");
    for report in &results.0 {
        let name = &report.experiment;
        let rows = report.rows.len() + report.context.len() + report.limits.len();
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "\n### {name}\n\n{}\n\n{}.\n[{rows} rows](../lab/results/{name}.json){}. Measured {} at commit {}, \
             {}, on {}.\n",
            question(name),
            capital(&report.how),
            if remarks.contains(name) {
                format!(", [how to read them](../lab/results/{name}.md)")
            } else {
                String::new()
            },
            report.date,
            report.commit,
            Length::described(report.settings),
            report.machine
        );
        for missing in &report.missing {
            let _ = write!(page, "\nNot measured: {missing}.\n");
        }
        for (place, figure) in report.figures.iter().enumerate() {
            let before = if place == 0 { "\n" } else { "" };
            let file = picture(report, figure);
            let _ = writeln!(page, "{before}![{}](pictures/{file})", figure.title);
        }
    }
    page
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| {
        first.to_uppercase().collect::<String>() + characters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, Figure};
    use crate::report::Row;

    #[test]
    fn a_page_has_the_headlines_and_each_report() {
        let mut results =
            crate::results::tests::results(vec![Row::new("rate", &[], "Mpps", &[20.5])]);
        let report = &mut results.0[0];
        report.how = "pinned".into();
        report.figures = vec![Figure::new(
            "size",
            "By size",
            Axis::log("size", "B"),
            Axis::linear("rate", "Mpps"),
        )];
        report.missing = vec!["Aeron: there is no java".into()];
        let without = page(&results, "| headlines |\n", &BTreeSet::new());
        for part in [
            "| headlines |",
            "### queue",
            "\nPinned.\n",
            "[1 rows](../lab/results/queue.json). Measured 2026-01-02T03:04:05Z at commit abc, a run of normal",
            "\nNot measured: Aeron: there is no java.\n",
            "![By size](pictures/queue-size.svg)",
        ] {
            assert!(without.contains(part), "{part} in\n{without}");
        }
        let with = page(&results, "", &BTreeSet::from(["queue".to_owned()]));
        assert!(
            with.contains(".json), [how to read them](../lab/results/queue.md). Measured"),
            "{with}"
        );
    }
}
