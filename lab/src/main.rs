//! `towpath-lab`: measurements of this machine, each beside what it is compared with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use towpath_lab::{Experiment, Report, Row, Settings};

/// Measure this machine, each figure beside what it is compared with.
#[derive(Debug, Parser)]
#[command(
    name = "towpath-lab",
    version,
    arg_required_else_help = true,
    after_help = "\
Exit status: 0 done, 1 failed or a limit missed, 2 wrong usage, 77 not available on this machine.

Examples:
  towpath-lab switch
  towpath-lab queue --quick --json
  towpath-lab cambridge --out measured
  towpath-lab isolation --check"
)]
struct Args {
    /// What to measure; `report` writes the documentation's page from the reports in a directory.
    #[arg(required_unless_present = "role", value_parser = names())]
    name: Option<String>,
    /// Print JSON and nothing else.
    #[arg(long)]
    json: bool,
    /// Take under 40 seconds
    #[arg(long)]
    quick: bool,
    /// Take as long as the papers did, where that is much longer
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Write NAME.json, NAME.csv and the pictures, as SVG and CSV, into a directory
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Fail with exit status 1 when a limit is missed.
    #[arg(long)]
    check: bool,
    /// For `report`: the directory of the page and, in it, of `benchmarks/*.json`.
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
    /// Play a part in somebody else's measurement.
    #[arg(long, hide = true)]
    role: Option<String>,
}

fn names() -> Vec<&'static str> {
    Experiment::ALL.iter().map(|one| one.name()).chain(["report"]).collect()
}

fn main() -> ExitCode {
    let args = Args::parse();
    match measure(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("towpath-lab: {error:#}");
            let unavailable = error
                .downcast_ref::<towpath_testkit::Error>()
                .is_some_and(|error| error.unavailable().is_some());
            ExitCode::from(if unavailable { towpath_testkit::EXIT_UNAVAILABLE } else { 1 })
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(role) = &args.role {
        // The keyboard asks the whole group to end; who plays a part ends when its parent has, in
        // order, and leaves nothing behind.
        let mut kept = SigSet::empty();
        kept.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        kept.thread_block()?;
        towpath_lab::act(role)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.name.as_deref().unwrap_or_default();
    if name == "report" {
        write_page(&args.docs)?;
        return Ok(ExitCode::SUCCESS);
    }
    let experiment = Experiment::from_name(name).context("no such experiment")?;
    let settings = Settings { quick: args.quick, full: args.full };
    let report = towpath_lab::run(experiment, settings)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    if let Some(directory) = &args.out {
        for path in towpath_lab::output::write(&report, directory)? {
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(if args.check { check(&report, &mut std::io::stderr()) } else { ExitCode::SUCCESS })
}

/// Says which limits are missed; a failure where any is.
fn check(report: &Report, said: &mut dyn std::io::Write) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for row in report.missed() {
        let Row { name, value, unit, .. } = row;
        let limits = row.limits();
        // Whoever does not listen is answered by the status.
        let _ = writeln!(
            said,
            "towpath-lab: {name} is {value:.3} {unit}, outside of its limit: {limits}"
        );
        code = ExitCode::FAILURE;
    }
    code
}

/// Makes `benchmarks.md` of `benchmarks/NAME.json`, and of `benchmarks/NAME.md` where that is.
fn write_page(docs: &Path) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for experiment in Experiment::ALL {
        let path = docs.join("benchmarks").join(experiment.name()).with_extension("json");
        let Some(text) = read_if_there(&path)? else { continue };
        let report: Report =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let remarks = read_if_there(&path.with_extension("md"))?.unwrap_or_default();
        reports.push((report, remarks));
    }
    anyhow::ensure!(!reports.is_empty(), "no reports in {}", docs.join("benchmarks").display());
    let page = docs.join("benchmarks.md");
    std::fs::write(&page, towpath_lab::page::page(&reports))
        .with_context(|| page.display().to_string())
}

fn read_if_there(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use towpath_lab::Length;

    use super::*;

    #[test]
    fn a_missed_limit_is_a_failure_that_names_its_row() {
        let row = |name: &str, value: f64| Row::new(name, &[], "ratio", &[value]);
        let checked = |rows: Vec<Row>, context: Vec<Row>| {
            let mut report = Report::new("queue", Length::Quick).unwrap();
            (report.rows, report.context) = (rows, context);
            let mut said = Vec::new();
            let code = check(&report, &mut said);
            (code, String::from_utf8(said).unwrap())
        };
        let fine = || row("fine", 0.9).at_least(0.9).at_most(0.9);
        let (code, said) = checked(vec![fine(), row("free", f64::NAN)], vec![fine()]);
        assert_eq!((code, said.as_str()), (ExitCode::SUCCESS, ""));
        for (missed, said) in [
            (row("low", 0.89).at_least(0.9), "low is 0.890 ratio, outside of its limit: ≥ 0.900"),
            (row("high", 1.21).at_most(1.2), "high is 1.210 ratio, outside of its limit: ≤ 1.20"),
            (
                row("none", f64::NAN).at_least(0.9),
                "none is NaN ratio, outside of its limit: ≥ 0.900",
            ),
            (row("none", f64::NAN).at_most(1.2), "none is NaN ratio, outside of its limit: ≤ 1.20"),
            (
                row("all", f64::INFINITY).at_least(1.0),
                "all is inf ratio, outside of its limit: ≥ 1.00",
            ),
        ] {
            let expected = (ExitCode::FAILURE, format!("towpath-lab: {said}\n"));
            assert_eq!(checked(vec![fine(), missed.clone()], vec![fine()]), expected);
            assert_eq!(checked(vec![fine()], vec![missed, fine()]), expected, "beside it");
        }
    }
}
