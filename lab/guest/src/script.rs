//! A script of checks, and what its header says about the machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::fetch::Kernel;

/// The first word of the line that describes the machine.
const HEADER: &str = "# guest:";

/// Files without a header: the functions that scripts share, the first process of a small guest, and the
/// commands of tests/card, of tests/virtio-card, of tests/rdma and of `towpath-lab card`.
const OTHERS: [&str; 9] =
    ["library", "init", "cards", "card", "virtio", "rxe", "rdma", "compare", "handoff"];

/// A script of checks.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The kernels that it runs on, each in a machine of its own.
    pub(crate) kernels: Vec<Kernel>,
    /// The longest time that a machine may run.
    pub(crate) limit: Duration,
}

impl Script {
    /// Returns the scripts in a folder, by name.
    pub(crate) fn all(folder: &Path) -> anyhow::Result<Vec<Script>> {
        let read = std::fs::read_dir(folder);
        let read = read.with_context(|| format!("{}; use --repository", folder.display()))?;
        let mut paths = read.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        paths.sort();
        let is_script = |path: &&PathBuf| {
            path.extension().is_some_and(|extension| extension == "sh")
                && path.file_stem().is_some_and(|name| !OTHERS.iter().any(|other| name == *other))
        };
        paths.iter().filter(is_script).map(|path| Script::read(path)).collect()
    }

    fn read(path: &Path) -> anyhow::Result<Script> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let mut script =
            Script { name, path: path.to_owned(), kernels: Vec::new(), limit: Duration::ZERO };
        script.describe(&text).with_context(|| shown.to_string())?;
        Ok(script)
    }

    /// Takes the machine from the header: `# guest: kernel=stable,backports limit=120`.
    fn describe(&mut self, text: &str) -> anyhow::Result<()> {
        let header = text.lines().find_map(|line| line.strip_prefix(HEADER));
        for word in header.context("no line `# guest:`")?.split_whitespace() {
            match word.split_once('=') {
                Some(("kernel", names)) => {
                    self.kernels =
                        names.split(',').map(Kernel::from_name).collect::<anyhow::Result<_>>()?;
                }
                Some(("limit", seconds)) => self.limit = Duration::from_secs(seconds.parse()?),
                _ => bail!(
                    "unknown word `{word}` in the line `# guest:`; use kernel=NAMES or limit=SECONDS"
                ),
            }
        }
        ensure!(
            !self.kernels.is_empty() && !self.limit.is_zero(),
            "the line `# guest:` needs kernel=NAMES and limit=SECONDS"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_describes_the_machine() {
        let parse = |text: &str| {
            let mut script = Script {
                name: String::new(),
                path: PathBuf::new(),
                kernels: Vec::new(),
                limit: Duration::ZERO,
            };
            script.describe(text).map(|()| script)
        };
        let script = parse("#!/bin/bash\n# guest: kernel=stable,backports limit=90\n").unwrap();
        assert_eq!(script.kernels, [Kernel::Stable, Kernel::Backports]);
        assert_eq!(script.limit, Duration::from_secs(90));
        for wrong in ["", "# guest: kernel=stable", "# guest: limit=9", "# guest: kernel=x limit=1"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_script_of_the_repository_has_a_header() {
        let scripts = Script::all(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(scripts.iter().any(|script| script.name == "package"), "{scripts:?}");
    }
}
