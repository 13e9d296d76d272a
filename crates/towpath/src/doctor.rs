//! `towpath doctor`: the features of this machine, their meaning for Towpath, and remedies.
//!
//! The doctor tries each feature instead of comparing version numbers: distributions add features
//! to older versions, and containers remove them.
#![forbid(unsafe_code)]

mod finding;
mod kernel;
mod machine;
mod measure;
mod network;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use finding::{Finding, Standing};

/// Options of `towpath doctor`.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Args {
    /// Print only JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Leave out the measurements, which take about half a second
    #[arg(long)]
    pub(crate) quick: bool,
}

/// The whole report.
#[derive(Debug, Serialize)]
struct Report {
    /// `true` if Towpath can run here in at least one way.
    can_run: bool,
    /// The ways to run.
    ways: Vec<String>,
    findings: Vec<Finding>,
}

impl Report {
    fn make(args: Args) -> Report {
        let kernel = kernel::look();
        let network = network::look();
        let mut findings = kernel.findings;
        findings.extend(network.findings);
        findings.extend(machine::look());
        if !args.quick {
            findings.extend(measure::look());
        }
        let ways = if kernel.suffices { network.ways } else { Vec::new() };
        Report { can_run: !ways.is_empty(), ways, findings }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
        for finding in &self.findings {
            let standing = match finding.standing {
                Standing::Ok => "ok",
                Standing::Limited => "limited",
                Standing::Missing => "missing",
            };
            writeln!(out, "{standing:<8} {:<width$}  {}", finding.name, finding.found)?;
            let indent = 8 + 1 + width + 2;
            writeln!(out, "{:indent$}{}", "", finding.means)?;
            if let Some(remedy) = &finding.remedy {
                writeln!(out, "{:indent$}to do: {remedy}", "")?;
            }
        }
        writeln!(out)?;
        if self.can_run {
            writeln!(out, "Towpath can run here: {}.", self.ways.join("; "))
        } else {
            writeln!(out, "Towpath cannot run here: see the missing features above.")
        }
    }
}

/// Examines this machine and prints the findings. Returns success if Towpath can run here in at
/// least one way.
#[must_use]
pub(crate) fn run(args: Args) -> ExitCode {
    let report = Report::make(args);
    let mut out = io::stdout().lock();
    let printed = if args.json {
        serde_json::to_writer_pretty(&mut out, &report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        report.print(&mut out)
    };
    // A reader that closed the pipe early is no error.
    if printed.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        return ExitCode::FAILURE;
    }
    if report.can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_complete_and_its_verdict_consistent() {
        let report = Report::make(Args { json: true, quick: false });
        let text = serde_json::to_string(&report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["can_run"].as_bool(), Some(!report.ways.is_empty()));
        let names: Vec<_> = report.findings.iter().map(|finding| finding.name).collect();
        for name in ["kernel", "memory files", "TAP", "AF_XDP", "capabilities", "cores"] {
            assert!(names.contains(&name), "{names:?}");
        }
        let named = report.ways.iter().any(|way| way.starts_with("AF_XDP"));
        let xdp = report.findings.iter().find(|finding| finding.name == "AF_XDP").unwrap();
        assert!(!named || xdp.standing == Standing::Ok, "{:?}: {xdp:?}", report.ways);
        for finding in &report.findings {
            assert!(!finding.found.is_empty() && !finding.means.is_empty(), "{finding:?}");
            // A missing feature comes with a remedy.
            assert!(finding.standing != Standing::Missing || finding.remedy.is_some());
            assert!(finding.standing != Standing::Ok || finding.remedy.is_none());
        }
    }

    #[test]
    fn a_report_prints_the_remedy() {
        let finding = Finding::new("TAP", Standing::Missing, "no file", "no devices");
        let report = Report {
            can_run: false,
            ways: Vec::new(),
            findings: vec![finding.remedy("modprobe tun")],
        };
        let mut out = Vec::new();
        report.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("missing  TAP  no file\n"), "{text}");
        assert!(text.contains("to do: modprobe tun\n"));
        assert!(text.contains("cannot run here"));
    }
}
