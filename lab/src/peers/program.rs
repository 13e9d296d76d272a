//! Programs of other projects: where they are, how to get them, and how they end.
//!
//! Each runs as a child that reads commands and writes lines, and ends with this process: by itself
//! at the end of its input, or by the kernel (`setpriv --pdeathsig`), also while it is stopped.
//! Every answer has a time limit, so a program that hangs costs its own rows only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use rustix::process::Signal;
use towpath_testkit::Namespace;

use crate::child::{Child, Keep, OwnSocket};

/// The script that installs all peers.
const INSTALL: &str = "lab/peers/install";
/// The variable that names the directory where the script has put programs.
const PLACE: &str = "TOWPATH_PEERS";

/// The program in `lab/peers/iceoryx2`, below the script's directory.
const ICEORYX2: &str = "iceoryx2/release/towpath-peer-iceoryx2";

/// A program of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Project {
    /// DPDK's testpmd.
    Dpdk,
    Aeron,
    Iceoryx2,
}

impl Project {
    /// Returns the name for readers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Project::Dpdk => "DPDK testpmd",
            Project::Aeron => "Aeron",
            Project::Iceoryx2 => "iceoryx2",
        }
    }

    /// Returns the option of the script that installs this program alone.
    fn option(self) -> &'static str {
        match self {
            Project::Dpdk => "dpdk",
            Project::Aeron => "aeron",
            Project::Iceoryx2 => "iceoryx2",
        }
    }

    /// Returns the line of a report for a machine without this program.
    pub(super) fn missing(self, why: &str) -> String {
        format!("{}: {why}; install it with: {INSTALL} {}", self.name(), self.option())
    }

    /// Returns the program with its fixed arguments, or the line of the report if it is missing.
    pub(super) fn find(self, place: &Place) -> Result<Vec<String>, String> {
        let program = |name: &str| {
            place.on_path(name).ok_or_else(|| self.missing(&format!("there is no {name}")))
        };
        let file = |name: &str| {
            let path = place.directory.join(name);
            if path.exists() {
                Ok(path.display().to_string())
            } else {
                Err(self.missing(&format!("there is no {}", path.display())))
            }
        };
        let ended_with_us = [program("setpriv")?, "--pdeathsig".into(), "KILL".into()];
        let words = match self {
            // Its output would otherwise come in pieces of 4 KiB.
            Project::Dpdk => vec![program("stdbuf")?, "-oL".into(), program("dpdk-testpmd")?],
            Project::Aeron => {
                let path = format!("{}:{}", file("aeron/aeron-all.jar")?, file("aeron/classes")?);
                let opens = "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED".to_owned();
                vec![program("java")?, "-cp".into(), path, opens]
            }
            // It removes its own memory files, and ends by itself when its input does.
            Project::Iceoryx2 => return Ok(vec![file(ICEORYX2)?]),
        };
        Ok([&ended_with_us[..], &words].concat())
    }
}

/// Where programs are looked for.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The directories of `PATH`.
    path: Vec<PathBuf>,
    /// The directory of the script `lab/peers/install`: `target/peers`.
    directory: PathBuf,
}

impl Place {
    /// Returns the usual places. This program is `target/release/towpath-lab` or a neighbour.
    pub(super) fn usual() -> anyhow::Result<Place> {
        let own = std::env::current_exe().context("the path of this program")?;
        let target = own.parent().and_then(Path::parent).context("a program in no directory")?;
        let directory = std::env::var_os(PLACE).map_or_else(|| target.join("peers"), PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        Ok(Place { path: std::env::split_paths(&path).collect(), directory })
    }

    fn on_path(&self, name: &str) -> Option<String> {
        let found = self.path.iter().map(|directory| directory.join(name)).find(|it| it.is_file());
        found.map(|path| path.display().to_string())
    }
}

/// A directory in memory for the programs' files. A child of its own removes the directory.
pub(super) struct Files {
    _keeper: Child,
    directory: OwnSocket,
}

impl Files {
    pub(super) fn new() -> anyhow::Result<Files> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let directory = OwnSocket::below(&base)?;
        let keeper = Child::start(&Keep { directory: directory.directory().to_owned() })?;
        Ok(Files { _keeper: keeper, directory })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.directory()
    }
}

/// A running program of another project. Dropping it ends it.
pub(super) struct Program {
    child: Child,
    errors: PathBuf,
}

impl Program {
    /// Starts a program, and waits for its first line. `name` tells two of a project apart.
    pub(super) fn start(
        files: &Files,
        name: &str,
        words: &[String],
        inside: Option<&Namespace>,
    ) -> anyhow::Result<Program> {
        let (first, rest) = words.split_first().context("a program without a name")?;
        let errors = files.path().join(format!("{name}.err"));
        let mut command = Command::new(first);
        command.args(rest).env("RUNTIME_DIRECTORY", files.path());
        command.stderr(Stdio::from(std::fs::File::create(&errors)?));
        if let Some(namespace) = inside {
            namespace.contain(&mut command);
        }
        let child = Child::start_command(command).map_err(|error| explain(&errors, &error))?;
        Ok(Program { child, errors })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub(super) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.child.say(line).map_err(|error| explain(&self.errors, &error))
    }

    pub(super) fn read_line(&mut self) -> anyhow::Result<String> {
        self.child.read_line().map_err(|error| explain(&self.errors, &error))
    }

    /// Takes the program off its core until [`Program::resume`].
    pub(super) fn pause(&self) -> anyhow::Result<()> {
        self.child.signal(Signal::STOP)
    }

    pub(super) fn resume(&self) -> anyhow::Result<()> {
        self.child.signal(Signal::CONT)
    }

    /// Ends the program at once. Only for programs whose files are all in [`Files`].
    pub(super) fn kill(&self) {
        let _ = self.child.signal(Signal::KILL);
    }
}

/// Adds the last line that a program wrote to its standard error.
fn explain(errors: &Path, error: &anyhow::Error) -> anyhow::Error {
    let said = std::fs::read_to_string(errors).unwrap_or_default();
    match said.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => anyhow!("{error:#}; its last message: {}", line.trim()),
        None => anyhow!("{error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let nowhere = Place { path: vec!["/nowhere".into()], directory: "/nowhere/peers".into() };
        let missing = [Project::Dpdk, Project::Aeron, Project::Iceoryx2]
            .map(|project| project.find(&nowhere).unwrap_err());
        assert_eq!(
            missing[0],
            "DPDK testpmd: there is no setpriv; install it with: lab/peers/install dpdk"
        );
        // With the system's own programs, each project misses a file of its own.
        let system = Place { path: vec!["/usr/bin".into(), "/bin".into()], ..nowhere };
        if system.on_path("setpriv").is_none() {
            println!("SKIP the rest: util-linux has no setpriv here");
            return;
        }
        assert_eq!(
            Project::Iceoryx2.find(&system).unwrap_err(),
            "iceoryx2: there is no /nowhere/peers/iceoryx2/release/towpath-peer-iceoryx2; \
             install it with: lab/peers/install iceoryx2"
        );
        assert_eq!(
            Project::Aeron.find(&system).unwrap_err(),
            "Aeron: there is no /nowhere/peers/aeron/aeron-all.jar; install it with: \
             lab/peers/install aeron"
        );
    }

    #[test]
    fn a_program_that_ends_at_once_explains_itself() {
        let directory = std::env::temp_dir();
        let errors = directory.join(format!("towpath-lab-explain-{}", std::process::id()));
        std::fs::write(&errors, "first\nEAL: no memory\n\n").unwrap();
        let text = explain(&errors, &anyhow!("the other process ended")).to_string();
        std::fs::remove_file(&errors).unwrap();
        assert_eq!(text, "the other process ended; its last message: EAL: no memory");
        assert_eq!(explain(&errors, &anyhow!("ended")).to_string(), "ended");
    }
}
