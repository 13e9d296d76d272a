//! How old the results are, in commits of the code that they concern.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::Experiment;
use crate::results::Results;

/// A result is old if more commits than this changed the code that it concerns.
pub const MOST_COMMITS: u32 = 50;

/// The code of each packet's way through a server.
const SERVER: [&str; 7] = [
    "crates/queue",
    "crates/device",
    "crates/device-pci",
    "crates/device-testing",
    "crates/engine",
    "crates/server",
    "crates/client",
];

/// Returns the directories whose changes make an experiment's results older.
fn code(experiment: &str) -> Vec<&'static str> {
    let with = |others: &[&'static str]| [&SERVER, others].concat();
    match Experiment::from_name(experiment) {
        Some(Experiment::Queue) => vec!["crates/queue", "crates/memory"],
        Some(Experiment::Demux) => vec!["crates/packet", "crates/engine", "crates/server"],
        Some(Experiment::Optimistic) => vec!["crates/queue", "crates/embedded"],
        Some(Experiment::Watchdog) => {
            vec![
                "crates/device",
                "crates/device-pci",
                "crates/device-testing",
                "crates/engine",
                "crates/server",
            ]
        }
        Some(Experiment::Waiting | Experiment::Wakeups) => with(&["crates/waiting"]),
        Some(Experiment::Wire) => vec!["crates/packet", "crates/stack", "crates/net"],
        Some(
            Experiment::Tcp
            | Experiment::Web
            | Experiment::Flood
            | Experiment::Coexistence
            | Experiment::Sharing
            | Experiment::Karlsruhe
            | Experiment::FreeBsd
            | Experiment::Scale,
        ) => with(&["crates/packet", "crates/stack", "crates/net"]),
        Some(Experiment::Xdp | Experiment::NotreDame) => {
            with(&["crates/packet", "crates/embedded"])
        }
        Some(Experiment::Penn) => with(&["crates/packet", "crates/pdu"]),
        Some(Experiment::Kills | Experiment::Upgrades | Experiment::Soak | Experiment::Hostile) => {
            with(&["crates/packet", "crates/keeper"])
        }
        _ => with(&["crates/packet"]),
    }
}

/// For each experiment, how many commits changed its code since it was measured.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    commits: BTreeMap<String, u32>,
    /// Why the age of a result is unknown, one line each.
    pub unknown: Vec<String>,
}

impl Ages {
    /// Asks git in a repository.
    #[must_use]
    pub fn of(results: &Results, repository: &Path) -> Ages {
        let mut ages = Ages::default();
        for report in &results.0 {
            let commit = report.commit.trim_end_matches("-dirty");
            match since(repository, commit, &code(&report.experiment)) {
                Ok(count) => {
                    ages.commits.insert(report.experiment.clone(), count);
                }
                Err(why) => {
                    ages.unknown
                        .push(format!("the age of {} is unknown: {why}", report.experiment));
                }
            }
        }
        ages
    }

    /// Returns whether an experiment's result is old; `None` if its age is unknown.
    #[must_use]
    pub fn old(&self, experiment: &str) -> Option<bool> {
        Some(*self.commits.get(experiment)? > MOST_COMMITS)
    }

    /// Returns ages as given.
    #[cfg(test)]
    pub(crate) fn given(commits: &[(&str, u32)]) -> Ages {
        let commits = commits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Ages { commits, unknown: Vec::new() }
    }
}

/// Counts the commits after one that changed some directories.
fn since(repository: &Path, commit: &str, code: &[&str]) -> Result<u32, String> {
    let output = Command::new("git")
        .arg("--no-optional-locks")
        .arg("-C")
        .arg(repository)
        .args(["rev-list", "--count", &format!("{commit}..HEAD"), "--"])
        .args(code)
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.lines().next().unwrap_or("git failed").to_owned());
    }
    let count = String::from_utf8_lossy(&output.stdout);
    count.trim().parse().map_err(|_| format!("git counted `{}`", count.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_is_more_than_50_commits() {
        let ages = Ages::given(&[("queue", 50), ("switch", 51)]);
        assert_eq!(ages.old("queue"), Some(false));
        assert_eq!(ages.old("switch"), Some(true));
        assert_eq!(ages.old("tcp"), None);
    }

    #[test]
    fn without_a_repository_the_age_is_unknown() {
        let results = crate::results::tests::results(Vec::new());
        let ages = Ages::of(&results, Path::new("/proc"));
        assert_eq!(ages.old("queue"), None);
        assert_eq!(ages.unknown.len(), 1);
        assert!(ages.unknown[0].starts_with("the age of queue is unknown: "), "{:?}", ages.unknown);
    }

    #[test]
    fn the_code_of_each_experiment_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for experiment in Experiment::ALL {
            for directory in code(experiment.name()) {
                assert!(root.join(directory).is_dir(), "{directory} of {}", experiment.name());
            }
        }
    }
}
