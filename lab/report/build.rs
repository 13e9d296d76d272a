//! Records the commit that the program was built from, and whether its sources differ from that.

use std::path::Path;
use std::process::Command;

/// The program's sources, from this package's directory. The results are no part of it: a run that
/// writes them leaves the program as it is.
const SOURCES: [&str; 12] = [
    "../../Cargo.toml",
    "../../Cargo.lock",
    "../../crates",
    "../Cargo.toml",
    "../Cargo.lock",
    "../src",
    "../web",
    "../testkit",
    "../attacks",
    "Cargo.toml",
    "build.rs",
    "src",
];

fn main() {
    println!("cargo::rustc-env=TOWPATH_COMMIT={}", commit().unwrap_or_else(|| "unknown".into()));
    println!("cargo::rerun-if-changed=build.rs");
    // A change of a source makes it differ from the commit, or no longer differ.
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    // Git writes these files with each commit and each checkout. Their paths differ between a
    // repository's first working tree and additional ones. A missing file is not named, because
    // Cargo would count it as changed each time.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// Returns the commit, with `-dirty` where a source differs from it. `None` without git or a
/// repository, and where the sources were unpacked from an archive into another repository.
fn commit() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|text| !text.is_empty())?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let changed = git(&[&status[..], &SOURCES[..]].concat())?;
    Some(if changed.is_empty() { commit } else { commit + "-dirty" })
}

fn git(arguments: &[&str]) -> Option<String> {
    // Git must not write the index when it only reads.
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
