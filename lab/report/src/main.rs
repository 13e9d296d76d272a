//! `towpath-report`: the documents' figures from `lab/results`, as `towpath-lab report` writes them,
//! by a program that builds quickly.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Write the figures of lab/results into the documents.
#[derive(Debug, Parser)]
#[command(name = "towpath-report", version)]
struct Args {
    /// Fail with exit status 1 when a document differs from the results, which then stays as it is
    #[arg(long)]
    check: bool,
    /// The directory of the repository
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    repository: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    towpath_report::documents::report(&args.repository, args.check).unwrap_or_else(|error| {
        eprintln!("towpath-report: {error:#}");
        ExitCode::FAILURE
    })
}
