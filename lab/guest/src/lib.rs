//! Boots small virtual machines, and runs scripts of checks in them: the program `towpath-guest`.
//!
//! QEMU emulates the machine in software (TCG), so no right and no device of the host is needed.
//! The kernel comes from a Debian package, and the root file system with systemd is unpacked from
//! memory (initramfs). A script in `lab/guest` names the kernels that it runs on, and reports each
//! check on a serial line of its own.
//!
//! With a command, it boots a small guest instead: a kernel and some programs of the host, without systemd. The
//! laboratory's experiment `card` counts instructions in such a guest ([`Counted`]).

#![forbid(unsafe_code)]

mod fetch;
mod machine;
mod outcome;
mod place;
mod script;
mod small;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use fetch::{Cache, Kernel};
use machine::Machine;
pub use machine::Processors;
use script::Script;
use small::{FirstCard, GuestCommand};

/// Programs of the examples that the checks start, beside this program.
const PROGRAMS: [&str; 2] = ["web", "udp_echo"];

/// Programs of the project that a command in a small guest finds, if they are built.
const PROJECT_PROGRAMS: [&str; 5] = ["towpath", "towpath-lab", "web", "udp_echo", "own_queue"];

/// The first process of a small guest.
const INIT: &str = include_str!("../init.sh");

/// The longest time of a machine that counts instructions.
const LONGEST: Duration = Duration::from_secs(3600);

/// The options of `towpath-guest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// Run only the scripts of these names, such as package; may be given several
    /// times
    #[arg(long, value_name = "NAME")]
    script: Vec<String>,
    /// Run the scripts only on this kernel, stable or backports
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// With a command: e1000e cards on one hub, 2 or 3
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    cards: u8,
    /// With a command: the model of the first card; the others are e1000e
    #[arg(long, value_name = "MODEL", value_enum, default_value_t = FirstCard::E1000e)]
    first_card: FirstCard,
    /// With a command: a file that the guest gets below /guest; may be given several
    /// times
    #[arg(long, value_name = "FILE")]
    copy: Vec<PathBuf>,
    /// With a command: a directory for the files that the command leaves below /out
    #[arg(long, value_name = "DIRECTORY")]
    back: Option<PathBuf>,
    /// With a command: seconds that the machine may run
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// A command that a small machine runs in place of the scripts, with its arguments. Its
    /// exit status is the result
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Options {
    /// Returns `true` if a command is given.
    #[must_use]
    pub fn has_command(&self) -> bool {
        !self.command.is_empty()
    }
}

/// A command for a small machine that counts instructions: it has one processor, each instruction takes a
/// nanosecond of its clock, and a sleep takes no time.
#[derive(Clone, Debug)]
pub struct Counted<'a> {
    /// The command, with its arguments.
    pub command: &'a [String],
    /// The number of e1000e cards, all on one hub.
    pub cards: u8,
    /// Files that the guest gets below `/guest`, beside the project's programs.
    pub files: Vec<PathBuf>,
    /// The events that QEMU writes into `log`.
    pub events: &'a [&'a str],
    /// The file for the events.
    pub log: &'a Path,
    /// The directory for the files that the command leaves below `/out`.
    pub back: &'a Path,
    /// The file for the command's output.
    pub output: &'a Path,
}

impl Counted<'_> {
    /// Runs the command. Returns its exit status.
    ///
    /// # Errors
    /// As [`run_command`].
    pub fn run(&self) -> anyhow::Result<u8> {
        let events = self.events.iter().map(|event| (*event).to_owned()).collect();
        self.run_on(Processors::Counted { events, log: self.log.to_owned() })
    }

    /// Runs the command on other processors, whose machine counts and logs nothing. Returns its exit
    /// status.
    ///
    /// # Errors
    /// As [`run_command`].
    pub fn run_on(&self, processors: Processors) -> anyhow::Result<u8> {
        let (programs, cache) = places()?;
        let server = programs.join("towpath");
        ensure!(
            server.is_file(),
            "{}: no such file; cargo build --release -p towpath",
            server.display()
        );
        let own = PROJECT_PROGRAMS.iter().map(|name| programs.join(name));
        let order = GuestCommand {
            command: self.command,
            kernel: Kernel::Backports,
            processors,
            cards: self.cards,
            first_card: FirstCard::E1000e,
            files: own.filter(|path| path.is_file()).chain(self.files.iter().cloned()).collect(),
            back: Some(self.back),
            limit: LONGEST,
            output: Some(self.output),
        };
        small::run_command(&cache, INIT, &order)
    }
}

/// Returns the Ethernet address of a card in a small machine.
pub fn card_mac(number: usize) -> [u8; 6] {
    machine::card_mac(number)
}

/// Returns the directory of this program, and the cache of kernels beside it.
fn places() -> anyhow::Result<(PathBuf, Cache)> {
    let own = std::env::current_exe()?;
    let programs = own.parent().context("this program is in no directory")?;
    let target = programs.parent().context("this program is in no target directory")?;
    Ok((programs.to_owned(), Cache::new(&target.join("guest"))?))
}

/// Runs a command in a small machine, with the files of [`Options`]. Returns its exit status.
///
/// # Errors
/// Fails if a program or a package is missing, or if the machine does not run to its end.
pub fn run_command(options: &Options) -> anyhow::Result<u8> {
    ensure!(options.script.is_empty(), "give either --script or a command");
    let (programs, cache) = places()?;
    let kernel = options.kernel.as_deref().map_or(Ok(Kernel::Stable), Kernel::from_name)?;
    let own = PROJECT_PROGRAMS.iter().map(|name| programs.join(name)).filter(|path| path.is_file());
    let order = GuestCommand {
        command: &options.command,
        kernel,
        processors: Processors::Two,
        cards: options.cards,
        first_card: options.first_card,
        files: own.chain(options.copy.iter().cloned()).collect(),
        back: options.back.as_deref(),
        limit: Duration::from_secs(options.limit),
        output: None,
    };
    small::run_command(&cache, INIT, &order)
}

/// Runs the scripts of a repository, each in a machine of its own per kernel. Prints each check.
/// Returns `true` if all checks passed.
///
/// # Errors
/// Fails if a program or a package is missing, or if no script is selected.
pub fn run(repository: &Path, options: &Options) -> anyhow::Result<bool> {
    let programs = std::env::current_exe()?;
    let programs = programs.parent().context("this program is in no directory")?;
    let target = programs.parent().context("this program is in no target directory")?;
    let files = files(programs, target)?;
    let folder = repository.join("lab/guest");
    let scripts = Script::all(&folder)?;
    if let Some(name) = options.script.iter().find(|name| !scripts.iter().any(|s| s.name == **name))
    {
        bail!("{}: no script {name}.sh", folder.display());
    }
    let cache = Cache::new(&target.join("guest"))?;
    let (mut runs, mut failed) = (0, 0);
    for script in scripts {
        if !options.script.is_empty() && !options.script.contains(&script.name) {
            continue;
        }
        for kernel in &script.kernels {
            if options.kernel.as_ref().is_some_and(|only| only != kernel.name()) {
                continue;
            }
            let machine = Machine::prepare(&cache, *kernel, &folder, &script, &files)?;
            let outcome = machine.run(script.limit)?;
            println!("{outcome}");
            runs += 1;
            failed += usize::from(!outcome.passed());
        }
    }
    ensure!(
        runs > 0,
        "none of the selected scripts names this kernel in its line `# guest:`; leave --kernel out"
    );
    println!("{runs} guests ran, {failed} failed");
    Ok(failed == 0)
}

/// Returns the files that a guest gets: programs, and the only package.
fn files(programs: &Path, target: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = PROGRAMS.iter().map(|name| programs.join(name)).collect();
    let packages = target.join("debian");
    let found = std::fs::read_dir(&packages).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let [package] = found.as_slice() else {
        let count = found.len();
        bail!(
            "{} has {count} packages, not one; remove them and run packaging/build",
            packages.display()
        );
    };
    files.push(package.clone());
    if let Some(missing) = files.iter().find(|path| !path.exists()) {
        bail!("{}: no such file; cargo build --release -p towpath-examples", missing.display());
    }
    Ok(files)
}
