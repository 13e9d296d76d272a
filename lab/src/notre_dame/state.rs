//! The state of a long run: a file beside the program, to which each round adds a line. The same
//! command continues an interrupted run.
//!
//! The first line names what the trials depend on: the machine, the program and the variants. A
//! file of anything else is an error, which leaves the file as it is.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::variant::Trial;
use crate::machine::Machine;

/// What the trials of a run depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// The commit that the program was built from.
    commit: String,
    /// A hash of the program's file.
    build: u64,
    machine: Machine,
    /// The name of the host: two virtual machines of one kind differ in nothing else.
    host: String,
    seed: u64,
    variants: Vec<String>,
}

impl Origin {
    /// Describes a run of this program on a machine.
    pub(super) fn of(machine: Machine, seed: u64, variants: Vec<String>) -> anyhow::Result<Origin> {
        let program = std::env::current_exe().context("the path of this program")?;
        let mut hasher = DefaultHasher::new();
        hasher.write(&std::fs::read(&program).with_context(|| program.display().to_string())?);
        Ok(Origin {
            commit: towpath_report::COMMIT.to_owned(),
            build: hasher.finish(),
            machine,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            seed,
            variants,
        })
    }

    /// Names the first difference; `None` if there is none.
    fn difference(&self, other: &Origin) -> Option<&'static str> {
        [
            (self.machine != other.machine || self.host != other.host, "machine"),
            (self.commit != other.commit, "commit"),
            (self.build != other.build, "build of the program"),
            (self.seed != other.seed || self.variants != other.variants, "set of variants"),
        ]
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
    }
}

/// Returns the file of this program's run.
pub(super) fn path() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("the path of this program")?;
    Ok(program.with_extension("notre-dame-full"))
}

/// A run's file, and the rounds that it had.
pub(super) struct State {
    path: PathBuf,
    file: File,
    rounds: Vec<Vec<Trial>>,
}

impl State {
    /// Opens the file, or creates it. A last line that the interruption cut off is dropped.
    ///
    /// # Errors
    /// If the file is of another run, or not readable.
    pub(super) fn open(path: PathBuf, origin: &Origin) -> anyhow::Result<State> {
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.with_context(|| path.display().to_string())?;
        let mut lines = Lines { from: BufReader::new(&file), whole_bytes: 0 };
        let mut rounds = Vec::new();
        let remedy = || format!("remove {} to begin anew", path.display());
        if let Some(line) = lines.next()? {
            let of: Origin = serde_json::from_str(&line)
                .with_context(|| format!("not the state of a run; {}", remedy()))?;
            if let Some(what) = origin.difference(&of) {
                anyhow::bail!(
                    "an interrupted run was of another {what}; continue it there, or {}",
                    remedy()
                );
            }
            while let Some(line) = lines.next()? {
                let round: Vec<Trial> = serde_json::from_str(&line)
                    .with_context(|| format!("round {}; {}", rounds.len(), remedy()))?;
                ensure!(
                    round.len() == origin.variants.len(),
                    "round {}; {}",
                    rounds.len(),
                    remedy()
                );
                rounds.push(round);
            }
        }
        let whole = lines.whole_bytes;
        file.set_len(whole)?;
        file.seek(SeekFrom::Start(whole))?;
        if whole == 0 {
            writeln!(file, "{}", serde_json::to_string(origin)?)?;
        }
        Ok(State { path, file, rounds })
    }

    /// Takes the rounds that the file had.
    pub(super) fn take(&mut self) -> Vec<Vec<Trial>> {
        if !self.rounds.is_empty() {
            eprintln!(
                "towpath-lab: continuing after round {} of an interrupted run ({})",
                self.rounds.len(),
                self.path.display()
            );
        }
        std::mem::take(&mut self.rounds)
    }

    /// Adds a round.
    pub(super) fn add(&mut self, round: &[Trial]) -> anyhow::Result<()> {
        let line = serde_json::to_string(round)? + "\n";
        self.file.write_all(line.as_bytes()).with_context(|| self.path.display().to_string())
    }

    /// Removes the file at the end of a run.
    pub(super) fn remove(self) -> anyhow::Result<()> {
        std::fs::remove_file(&self.path).with_context(|| self.path.display().to_string())
    }
}

/// The whole lines of a file.
struct Lines<'a> {
    from: BufReader<&'a File>,
    whole_bytes: u64,
}

impl Lines<'_> {
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        let mut line = String::new();
        let bytes = self.from.read_line(&mut line)?;
        if line.pop() != Some('\n') {
            return Ok(None);
        }
        self.whole_bytes += bytes as u64;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::OwnSocket;

    fn origin() -> Origin {
        let machine = Machine::this().unwrap();
        Origin::of(machine, 1, vec!["on".to_owned(), "off".to_owned()]).unwrap()
    }

    #[test]
    fn an_interrupted_run_continues_after_its_last_whole_round() {
        let directory = OwnSocket::new().unwrap();
        let path = directory.directory().join("state");
        std::fs::create_dir_all(directory.directory()).unwrap();
        let rounds = [vec![[1, 2], [3, 4]], vec![[5, 6], [7, 8]], vec![[9, 10], [11, 12]]];
        let mut state = State::open(path.clone(), &origin()).unwrap();
        assert!(state.take().is_empty());
        state.add(&rounds[0]).unwrap();
        state.add(&rounds[1]).unwrap();
        // The interruption cuts the third round off.
        state.file.write_all(b"[[9,10],[11").unwrap();
        drop(state);
        let mut state = State::open(path.clone(), &origin()).unwrap();
        assert_eq!(state.take(), rounds[..2]);
        state.add(&rounds[2]).unwrap();
        drop(state);
        let mut state = State::open(path.clone(), &origin()).unwrap();
        assert_eq!(state.take(), rounds);
        state.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn the_state_of_another_run_is_an_error_and_stays() {
        let directory = OwnSocket::new().unwrap();
        let path = directory.directory().join("state");
        std::fs::create_dir_all(directory.directory()).unwrap();
        let mut state = State::open(path.clone(), &origin()).unwrap();
        state.add(&[[1, 2], [3, 4]]).unwrap();
        drop(state);
        let before = std::fs::read(&path).unwrap();
        let this = origin();
        let mut machine = this.clone();
        machine.machine.memory_bytes += 1;
        for (other, what) in [
            (machine, "machine"),
            (Origin { host: "another".into(), ..this.clone() }, "machine"),
            (Origin { commit: "another".into(), ..this.clone() }, "commit"),
            (Origin { build: this.build ^ 1, ..this.clone() }, "build of the program"),
            (Origin { variants: vec!["on".into()], ..this.clone() }, "set of variants"),
        ] {
            let Err(error) = State::open(path.clone(), &other) else { panic!("another {what}") };
            let text = format!("{error:#}");
            assert!(text.contains(&format!("of another {what}; ")), "{text}");
            assert!(text.contains(&format!("remove {}", path.display())), "{text}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
        std::fs::write(&path, "{}\n").unwrap();
        let Err(error) = State::open(path.clone(), &this) else { panic!("not a state") };
        assert!(format!("{error:#}").contains("not the state of a run"), "{error:#}");
    }
}
