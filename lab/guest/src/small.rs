//! A small guest, which runs one command: a kernel, its modules, and programs of this host.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::fetch::{Cache, Kernel, missing, pack, run};
use crate::machine::{NO_PROGRAM, NO_SETPRIV, Processors, QEMU, Running, add_card, base_command};
use crate::place::Place;

/// Programs of the host that the guest's commands may use.
const TOOLS: [&str; 34] = [
    "basename", "bash", "cat", "chmod", "chown", "cmp", "cp", "cut", "dmesg", "env", "ethtool",
    "grep", "head", "ip", "kill", "ls", "mkdir", "modprobe", "mount", "od", "ping", "pgrep",
    "pkill", "sed", "readlink", "setpriv", "sh", "sleep", "stty", "sync", "tail", "tar", "timeout",
    "uname",
];
/// Where the host has its programs.
const PATHS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
/// The modules that `init.sh` loads before it runs the command.
const LOADED: &str = "virtio_pci virtio_blk e1000e tun veth 8021q vfio-pci vfio_iommu_type1";
/// The users of the guest beside root.
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\ntowpath:x:990:990::/tmp:/bin/sh\n\
    alice:x:1001:1001::/tmp:/bin/sh\nbob:x:1002:1002::/tmp:/bin/sh\n";
const GROUP: &str = "root:x:0:\ntowpath:x:990:\nalice:x:1001:\nbob:x:1002:\n";
/// The disk for the command's files, and its size.
const OUT: &str = "out";
const OUT_BYTES: u64 = 256 << 20;
/// What `init.sh` writes to the console before it starts the command.
const STARTS: &str = "the command starts";
/// The boots of a guest before its command starts. Under software emulation, a kernel crashes once in a while when
/// it changes code that another processor executes.
const BOOTS: u32 = 3;
/// The exit status of a command that did not end in time, as that of timeout(1).
const TOO_LONG: u8 = 124;

/// The model of a guest's first card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FirstCard {
    /// The Intel 82574L
    #[default]
    E1000e,
    /// A virtio card of the modern interface alone, behind the IOMMU
    VirtioNet,
}

impl FirstCard {
    /// Returns QEMU's name of the model, with its properties.
    fn model(self) -> &'static str {
        match self {
            FirstCard::E1000e => "e1000e",
            FirstCard::VirtioNet => "virtio-net-pci,disable-legacy=on,iommu_platform=on",
        }
    }
}

/// A command for a small guest.
#[derive(Clone, Debug)]
pub(crate) struct GuestCommand<'a> {
    pub(crate) command: &'a [String],
    pub(crate) kernel: Kernel,
    pub(crate) processors: Processors,
    /// The number of cards, all on one hub. All but the first are e1000e.
    pub(crate) cards: u8,
    pub(crate) first_card: FirstCard,
    /// Files that the guest gets below `/guest`.
    pub(crate) files: Vec<PathBuf>,
    /// The directory for the files that the command leaves in `/out`.
    pub(crate) back: Option<&'a Path>,
    pub(crate) limit: Duration,
    /// The file for the command's output; by default, standard output.
    pub(crate) output: Option<&'a Path>,
}

/// Runs a command in a guest. Prints its output. Returns its exit status.
pub(crate) fn run_command(
    cache: &Cache,
    init: &str,
    order: &GuestCommand<'_>,
) -> anyhow::Result<u8> {
    // The path of a socket has at most 107 bytes, so the machine's files lie in the system's directory for
    // temporary files.
    let place = Place::new(&std::env::temp_dir())?;
    let console = cache.directory().join(format!("small-{}.console", place.name()));
    let outcome = run_in(cache, (place.path(), &console), init, order);
    match &outcome {
        Ok(0) => drop(fs::remove_file(&console)),
        Ok(_) => eprintln!("towpath-guest: the guest's console: {}", console.display()),
        // The error names it, if there is one.
        Err(_) => {}
    }
    outcome
}

fn run_in(
    cache: &Cache,
    (directory, console): (&Path, &Path),
    init: &str,
    order: &GuestCommand<'_>,
) -> anyhow::Result<u8> {
    let stage = directory.join("stage");
    let command = fill(&stage, init, order)?;
    fs::write(stage.join("guest/command"), command)?;
    let own = directory.join("own.cpio");
    pack(&stage, &own)?;
    let alone = cache.lock()?;
    let (image, modules) = cache.kernel(order.kernel)?;
    // The kernel unpacks one archive after the other.
    let initial = directory.join("initial.cpio");
    let mut whole = File::create(&initial)?;
    for archive in [&own, &modules] {
        io::copy(&mut File::open(archive)?, &mut whole)?;
    }
    drop(alone);
    let out = directory.join(OUT);
    File::create(&out)?.set_len(OUT_BYTES)?;
    let mut machine = base_command(&order.processors, &image, &initial, console);
    let options = order.processors.kernel_options();
    let options = format!("console=ttyS0 panic=-1 {options} iomem=relaxed rdinit=/init quiet");
    machine.args(["-append", &options]);
    for number in 0..order.cards {
        let model = if number == 0 { order.first_card } else { FirstCard::E1000e }.model();
        add_card(&mut machine, number.into(), model, &format!("card{number}"), 1);
    }
    machine.args(["-device", "virtio-blk-pci,drive=out", "-drive"]);
    machine.arg(format!("id=out,if=none,format=raw,file={}", out.display()));
    machine.args(["-serial", "stdio"]).stdin(Stdio::null());
    if let Some(path) = order.output {
        machine.stdout(File::create(path)?);
    }
    // The guest's third serial line leads to the machine's monitor (docs/interop/qmp-spec.rst of QEMU). With
    // it, a script unplugs its cables.
    let monitor = directory.join("monitor");
    let monitor = monitor.display();
    machine.arg("-chardev").arg(format!("socket,id=monitor,path={monitor},server=on,wait=off"));
    machine.args(["-mon", "chardev=monitor,mode=control"]);
    machine.arg("-serial").arg(format!("unix:{monitor}"));
    let mut boots = 1;
    let ended = loop {
        let ended = wait(Running(machine.spawn().context(NO_SETPRIV)?), order.limit)?;
        let has_booted =
            fs::read(console).is_ok_and(|text| String::from_utf8_lossy(&text).contains(STARTS));
        let has_failed = ended.is_none_or(|status| !status.success());
        if has_booted || has_failed || boots == BOOTS {
            break ended;
        }
        boots += 1;
        eprintln!("towpath-guest: the guest's kernel crashed before the command; booting anew");
    };
    outcome(ended, directory, console, order)
}

/// Takes what a guest left when it ended; `None` if it did not end in time. Returns the exit status of the command.
fn outcome(
    ended: Option<ExitStatus>,
    directory: &Path,
    console: &Path,
    order: &GuestCommand<'_>,
) -> anyhow::Result<u8> {
    match ended {
        None => {
            let limit = order.limit.as_secs();
            eprintln!(
                "towpath-guest: the guest did not end within {limit} s; raise it with --limit"
            );
            return Ok(TOO_LONG);
        }
        Some(status) if status.code() == Some(NO_PROGRAM) => bail!(missing(QEMU)),
        Some(status) if !status.success() => bail!("QEMU ended with {status}; its output says why"),
        Some(_) => {}
    }
    let back = match order.back {
        Some(back) => back.to_owned(),
        None => directory.join("back"),
    };
    fs::create_dir_all(&back)?;
    run(Command::new("tar").arg("-xf").arg(directory.join(OUT)).arg("-C").arg(&back))
        .with_context(|| {
            format!("the guest did not run to its end; its console is in {}", console.display())
        })?;
    let status = fs::read_to_string(back.join("status")).with_context(|| {
        format!("the guest left no status; its console is in {}", console.display())
    })?;
    Ok(status.trim().parse()?)
}

/// Waits for a machine to end. Returns `None` after `limit`.
fn wait(mut machine: Running, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = machine.0.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Fills a directory with all that the guest has. Returns the text of the command.
fn fill(stage: &Path, init: &str, order: &GuestCommand<'_>) -> anyhow::Result<String> {
    for folder in ["bin", "guest", "etc", "proc", "sys", "dev", "root", "usr/lib", "var"] {
        fs::create_dir_all(stage.join(folder))?;
    }
    for (link, to) in [
        ("sbin", "bin"),
        ("lib", "usr/lib"),
        ("usr/bin", "../bin"),
        ("usr/sbin", "../bin"),
        ("var/run", "../run"),
    ] {
        symlink(to, stage.join(link))?;
    }
    fs::write(stage.join("init"), init)?;
    fs::set_permissions(stage.join("init"), fs::Permissions::from_mode(0o755))?;
    fs::write(stage.join("etc/passwd"), PASSWD)?;
    fs::write(stage.join("etc/group"), GROUP)?;
    fs::write(stage.join("guest/modules"), LOADED)?;
    let mut libraries = BTreeSet::new();
    for tool in TOOLS {
        let path = find(tool).with_context(|| missing(tool))?;
        fs::copy(&path, stage.join("bin").join(tool))?;
        libraries.extend(needs(&path)?);
    }
    let mut words = order.command.to_vec();
    let mut files = order.files.clone();
    if let Some(program) = words.first_mut()
        && Path::new(program).is_file()
    {
        files.push(PathBuf::from(&program));
        let name = Path::new(program).file_name().and_then(|name| name.to_str());
        *program = format!("/guest/{}", name.context("a program has a name")?);
    }
    for file in &files {
        let name = file.file_name().context("a file has a name")?;
        copy_for_guest(file, &stage.join("guest").join(name))
            .with_context(|| file.display().to_string())?;
        libraries.extend(needs(file)?);
    }
    for library in libraries {
        // /lib is a link to /usr/lib on the host and in the guest.
        let name = library.strip_prefix("/")?;
        let inside = name.strip_prefix("lib").map(|rest| Path::new("usr/lib").join(rest));
        let to = stage.join(inside.unwrap_or(name.to_owned()));
        fs::create_dir_all(to.parent().context("a library in no directory")?)?;
        fs::copy(&library, to).with_context(|| library.display().to_string())?;
    }
    ensure!(!words.is_empty(), "no command; give one after --");
    Ok(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ") + "\n")
}

/// Copies a file into the guest: a program without its debug information, which is most of it and takes
/// the emulated processor seconds to unpack.
fn copy_for_guest(file: &Path, to: &Path) -> anyhow::Result<()> {
    let mut magic = [0; 4];
    let is_program = File::open(file)?.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF";
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(to).arg(file);
    if !is_program || !strip.status().is_ok_and(|status| status.success()) {
        fs::copy(file, to)?;
    }
    Ok(())
}

/// Returns a word as the shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn find(tool: &str) -> Option<PathBuf> {
    PATHS.iter().map(|path| Path::new(path).join(tool)).find(|path| path.is_file())
}

/// Returns the shared libraries that a program needs; none for a script.
fn needs(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let ldd = find("ldd").context("there is no ldd")?;
    let listed = Command::new(ldd).arg(program).output().context("ldd")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let path = |line: &str| {
        let word = line.split_whitespace().find(|word| word.starts_with('/'))?;
        Some(PathBuf::from(word))
    };
    Ok(listed.lines().filter_map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_shell_as_they_are() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_program_needs_the_c_library() {
        let needed = needs(&find("sh").unwrap()).unwrap();
        assert!(needed.iter().any(|path| path.to_string_lossy().contains("libc")), "{needed:?}");
        assert!(needed.iter().any(|path| path.to_string_lossy().contains("ld-linux")));
    }
}
