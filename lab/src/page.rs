//! The documentation's page of figures, made from reports.

use std::fmt::Write;

use crate::Experiment;
use crate::report::{Length, Report};

/// Longer tables are folded.
const LONG_TABLE_ROWS: usize = 40;

/// What each experiment asks, for people who did not write it.
fn question(experiment: &str) -> &'static str {
    match Experiment::from_name(experiment) {
        Some(Experiment::Queue) => {
            "What does it cost that neither side of a queue trusts the other? One queue, checked and \
             accounted for, against a bare ring that carries the same descriptors and frames."
        }
        Some(Experiment::Demux) => {
            "Does it pay to remember the last packet's flow? Lookups in trains and interleaved, with \
             the cache automatic or on, against the same table with the cache off. Above 1 is faster."
        }
        Some(Experiment::Optimistic) => {
            "What does it cost to let several threads into one driver? Who finds another inside leaves \
             its packet for it and goes on, against who waits for a mutex. Above 1 is faster."
        }
        Some(Experiment::Notify) => {
            "What does one notification cost the engine? By the socket that is a session's doorbell, and by \
             the eventfd that calls a worker, less what a pipe costs."
        }
        Some(Experiment::Switch) => {
            "How fast does a packet pass from one application's endpoint to another's, through the \
             server's process, with every check, the flow table and one copy?"
        }
        Some(Experiment::Isolation) => {
            "What does a neighbour notice when another application is killed, or stopped and \
             resumed, in the middle of its traffic?"
        }
        Some(Experiment::Attacks) => {
            "How long do a neighbour's round trips and attachments take while an unprivileged program \
             attacks the objects and limits that it shares with the server? At 1, the attack costs \
             nothing."
        }
        Some(Experiment::Scale) => {
            "Does what nobody uses cost those who work? One busy session, alone and beside idle ones, \
             alone and among its own idle endpoints; one busy connection, alone and among idle ones. \
             At 1, it costs nothing."
        }
        Some(Experiment::Tcp) => {
            "How much of the kernel's own TCP throughput is left when one of the two hosts is an \
             application with a stack of its own, behind a server and a TAP device?"
        }
        Some(Experiment::NotreDame) => {
            "Tracey and Banerji, \"Device Driver Issues in High-Performance Networking\": how long \
             does a small frame take there and back, and what does each technique of a driver change?"
        }
        Some(Experiment::Cambridge) => {
            "Riddoch and Pope, \"A Low Overhead Application/Device-driver Interface for User-level \
             Networking\": how much goes through by the size of messages, what do ten thousand idle \
             endpoints cost, and what is left under more load than can be served?"
        }
        Some(Experiment::Karlsruhe) => {
            "Hennrich, \"User Level Device Driver am Beispiel von TCP\": what do a frame, a wake-up \
             and a poll cost, what does saving them save, and how much of the processor is left \
             beside the kernel's own driver and stack?"
        }
        Some(Experiment::Penn) => {
            "Smith and Traw, \"Giving Applications Access to Gb/s Networking\": how much goes \
             through by the size of PDUs, how much processor and memory is left for others, and how \
             far does their model of a clock hold?"
        }
        Some(Experiment::FreeBsd) => {
            "Watson, \"Changes in the network interface queueing handoff model\": what is gained \
             where a packet goes to the device directly, not through a queue?"
        }
        Some(Experiment::Waiting) => {
            "What does a frame cost in processor time where the engine chooses itself how to wait, \
             beside the kernel's sockets, and how near is that to the best fixed choice?"
        }
        Some(Experiment::Watchdog) => {
            "What does it cost a frame that somebody looks whether the device still gives back what \
             it sends, by a deadline for what was sent, or by a check now and then?"
        }
        Some(Experiment::Wakeups) => {
            "Is any wake-up lost, however the engine and its applications wait, and while that \
             changes?"
        }
        None => "",
    }
}

/// The page, in Markdown. Each report comes with what people who looked into it had to say; that
/// may be nothing.
#[must_use]
pub fn page(reports: &[(Report, String)]) -> String {
    let mut page = String::from(
        "# Benchmarks\n\n\
         Machines differ, and virtual ones differ from minute to minute. So what is compared was \
         measured in one run, in turn (A B A B …); the figure is the median, the spread reaches from \
         the lowest to the highest single value, and what the hardware itself can do was measured in \
         the same run. Absolute figures are context; ratios are what to look at.\n\n\
         Measure your own machine with `towpath-lab NAME` (`--quick` for a first look, `--out` \
         for files and pictures, `--check` to fail where a limit is missed). This page is made by \
         `towpath-lab report` from the files in `benchmarks/`: figures and remarks.\n",
    );
    for (report, remarks) in reports {
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "\n## {}\n\n{}\n\n{}.\n\nMeasured {} at commit {}, {}, on {}.\n",
            report.experiment,
            question(&report.experiment),
            capital(&report.how),
            report.date,
            report.commit,
            Length::described(report.settings),
            report.machine
        );
        for (title, rows) in report.tables() {
            if rows.is_empty() {
                continue;
            }
            // What would hide the rest is there for who wants it.
            let folded = rows.len() > LONG_TABLE_ROWS;
            if folded {
                let _ = write!(
                    page,
                    "\n<details><summary>{}: {} rows</summary>\n",
                    capital(title),
                    rows.len()
                );
            }
            let _ = write!(
                page,
                "\n| {} | with | median | | lowest … highest | limit |\n|---|---|--:|---|---|---|\n",
                capital(title)
            );
            for cells in Report::cells(rows) {
                let _ = writeln!(page, "| {} |", cells.join(" | "));
            }
            if folded {
                page += "\n</details>\n";
            }
        }
        for figure in &report.figures {
            let file = crate::output::picture(report, &figure.name);
            let _ = write!(page, "\n![{}](benchmarks/{file}.svg)\n", figure.title);
        }
        if !remarks.is_empty() {
            let _ = write!(page, "\n{}\n", remarks.trim());
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
    use crate::report::Row;

    #[test]
    fn a_page_has_each_report() {
        let mut report = Report::new("switch", Length::Quick).unwrap();
        report.how = "pinned".into();
        report.rows =
            vec![Row::new("rate", &[("frame_bytes", 64.0)], "Mpps", &[20.5]).at_least(20.0)];
        report.figures = vec![crate::figure::Figure::new(
            "size",
            "By size",
            crate::figure::Axis::log("size", "B"),
            crate::figure::Axis::linear("rate", "Mpps"),
        )];
        let page = page(&[(report.clone(), "What holds it: the cache.\n".into())]);
        for part in [
            "## switch",
            &report.date,
            &report.commit,
            ", a short run (--quick), on ",
            "| 20.5 | Mpps |",
            "≥ 20.0 holds",
            "![By size](benchmarks/switch-size.svg)",
            "\nWhat holds it: the cache.\n",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
    }
}
