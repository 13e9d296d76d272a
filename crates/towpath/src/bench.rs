//! `towpath bench`: measurements of this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use towpath_bench::{Experiment, Report, Settings};

/// Options of `towpath bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("towpath bench: {error:#}");
            let unavailable = error
                .downcast_ref::<towpath_rig::Error>()
                .is_some_and(|error| error.unavailable().is_some());
            ExitCode::from(if unavailable { towpath_rig::EXIT_UNAVAILABLE } else { 1 })
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(role) = &args.role {
        // The keyboard asks the whole group to end; who plays a part ends when its parent has, in
        // order, and leaves nothing behind.
        let _kept = crate::signals::Signals::block()?;
        towpath_bench::act(role)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.name.as_deref().unwrap_or_default();
    if name == "report" {
        write_page(&args.docs)?;
        return Ok(ExitCode::SUCCESS);
    }
    let experiment = Experiment::from_name(name).context("no such experiment")?;
    let settings = Settings { quick: args.quick, full: args.full };
    let report = towpath_bench::run(experiment, settings)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    if let Some(directory) = &args.out {
        for path in towpath_bench::output::write(&report, directory)? {
            eprintln!("wrote {}", path.display());
        }
    }
    let mut code = ExitCode::SUCCESS;
    if args.check {
        for row in report.missed() {
            eprintln!(
                "towpath bench: {} is {:.3} {}, outside of its limit: {}",
                row.name,
                row.value,
                row.unit,
                row.limits()
            );
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
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
    std::fs::write(&page, towpath_bench::page::page(&reports))
        .with_context(|| page.display().to_string())
}

fn read_if_there(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
