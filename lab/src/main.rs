//! `towpath-lab`: measurements of this machine, each beside its comparison.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use nix::sys::signal::{SigSet, Signal};
use towpath_lab::{Experiment, Report, Row, Settings};
use towpath_report::documents;

/// Measure this machine, each figure beside its comparison.
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
  towpath-lab isolation --check
  towpath-lab report --check
  towpath-lab recording"
)]
struct Args {
    /// The experiment, `report` or `recording`
    #[arg(required_unless_present = "role", value_parser = names(), value_name = "EXPERIMENT")]
    name: Option<String>,
    /// Print JSON and nothing else.
    #[arg(long)]
    json: bool,
    /// Take under 40 seconds, or two minutes for attacks and card
    #[arg(long)]
    quick: bool,
    /// Take as long as the papers did, where that is much longer; `notre-dame` keeps its state
    /// beside this program, and the same command continues an interrupted run
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Write NAME.json and the pictures, as SVG, into a directory
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Write the pictures into another directory
    #[arg(long, value_name = "DIRECTORY", requires = "out")]
    pictures: Option<PathBuf>,
    /// Fail with exit status 1 when a limit is missed, and for `report` when a document differs
    /// from the results, which then stays as it is.
    #[arg(long)]
    check: bool,
    /// For `report` and `recording`: the directory of the repository.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    repository: PathBuf,
    /// Run as a child process of another measurement.
    #[arg(long, hide = true)]
    role: Option<String>,
}

fn names() -> Vec<PossibleValue> {
    let report =
        PossibleValue::new("report").help("write the figures of lab/results into the documents");
    let recording = PossibleValue::new("recording")
        .help("record the README's terminal: a server that is killed and upgraded");
    let experiment = |one: Experiment| PossibleValue::new(one.name()).help(one.about());
    Experiment::ALL.into_iter().map(experiment).chain([report, recording]).collect()
}

/// Prints help and version as clap formats them, and an error in one line, as `towpath` does.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        let line = line.strip_prefix("error: ").unwrap_or(line);
        eprintln!("towpath-lab: {line}; see: towpath-lab --help");
    } else {
        // Without an output there is nothing to say it on.
        let _ = error.print();
    }
    ExitCode::from(error.exit_code() as u8)
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
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
        // The keyboard's signals reach the whole process group. A child ignores them: it ends in
        // order when its parent has ended, and leaves nothing behind.
        let mut kept = SigSet::empty();
        kept.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        kept.thread_block()?;
        towpath_lab::act(role)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.name.as_deref().unwrap_or_default();
    let more = args.quick || args.full || args.json || args.out.is_some();
    if name == "report" {
        ensure!(!more, "report takes only --check and --repository");
        return documents::report(&args.repository, args.check);
    }
    if name == "recording" {
        ensure!(!more && !args.check, "recording takes only --repository");
        for file in towpath_lab::recording::record(&args.repository)? {
            eprintln!("wrote {}", file.display());
        }
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
        let pictures = args.pictures.as_ref().unwrap_or(directory);
        for path in towpath_lab::output::write(&report, directory, pictures)? {
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(if args.check { check(&report, &mut std::io::stderr()) } else { ExitCode::SUCCESS })
}

/// Prints the missed limits; fails if there are any.
fn check(report: &Report, said: &mut dyn std::io::Write) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for row in report.missed() {
        let Row { name, value, unit, .. } = row;
        let limits = row.limits();
        // A reader that has gone still gets the exit status.
        let _ = writeln!(
            said,
            "towpath-lab: {name} is {value:.3} {unit}, outside of its limit: {limits}"
        );
        code = ExitCode::FAILURE;
    }
    code
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use towpath_lab::Length;

    use super::*;

    #[test]
    fn the_help_has_a_line_for_each_experiment() {
        let help = Args::command().render_long_help().to_string();
        for one in Experiment::ALL {
            let line = format!("- {}:", one.name());
            let found = help.lines().find(|text| text.trim_start().starts_with(&line));
            assert!(found.is_some_and(|text| text.ends_with(one.about())), "{line} {help}");
            assert!(one.about().len() <= 80, "{}", one.about());
        }
        for other in ["report", "recording"] {
            assert!(help.contains(&format!("- {other}:")), "{help}");
        }
    }

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
