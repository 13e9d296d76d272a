//! One virtual machine: its devices, its start and its end.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::fetch::{Cache, Kernel, missing, pack};
use crate::outcome::Outcome;
use crate::place::Place;
use crate::script::Script;

/// Network cards: model, the machine's name for it, and the hub that it shares with its peer.
const CARDS: [(&str, &str, u8); 4] = [
    ("e1000e", "intel0", 1),
    ("e1000e", "intel1", 1),
    ("virtio-net-pci", "virtio0", 2),
    ("virtio-net-pci", "virtio1", 2),
];

/// The program that is the machine.
pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// The status of setpriv if it does not find the program that it is to start.
pub(crate) const NO_PROGRAM: i32 = 127;
pub(crate) const NO_SETPRIV: &str = "setpriv is missing; apt-get install util-linux";

/// The first process of the guest is systemd, which starts the script.
const KERNEL_OPTIONS: &str = "console=ttyS0 panic=-1 intel_iommu=on \
    rdinit=/usr/lib/systemd/systemd systemd.unit=guest.target systemd.firstboot=off";

const TARGET: &str = "[Unit]\nRequires=basic.target guest.service\nAfter=basic.target\n";

const SERVICE: &str = "[Unit]\nAfter=basic.target systemd-udev-settle.service\n\
    Wants=systemd-udev-settle.service\n\
    [Service]\nType=simple\nExecStart=/bin/bash /guest/library.sh\nStandardInput=null\n\
    StandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS1\n";

/// A machine that is ready to start.
#[derive(Debug)]
pub(crate) struct Machine {
    title: String,
    image: PathBuf,
    /// What the guest's memory holds at its start, in `place`.
    initial: PathBuf,
    console: PathBuf,
    _place: Place,
}

impl Machine {
    /// Puts together what the guest's memory holds: the root file system, the kernel's modules, and
    /// below `/guest` the script, its library and `files`.
    pub(crate) fn prepare(
        cache: &Cache,
        kernel: Kernel,
        library: &Path,
        script: &Script,
        files: &[PathBuf],
    ) -> anyhow::Result<Machine> {
        let title = format!("{}, kernel of {}", script.name, kernel.name());
        let place = Place::new(cache.directory())?;
        let stage = place.path().join("stage");
        let guest = stage.join("guest");
        fs::create_dir_all(&guest)?;
        fs::copy(library.join("library.sh"), guest.join("library.sh"))?;
        fs::copy(&script.path, guest.join("script.sh"))?;
        for file in files {
            let name = file.file_name().context("a file has a name")?;
            let name = if file.extension().is_some() { "towpath.deb".as_ref() } else { name };
            fs::copy(file, guest.join(name)).with_context(|| file.display().to_string())?;
        }
        let systemd = stage.join("etc/systemd");
        fs::create_dir_all(systemd.join("system"))?;
        fs::write(systemd.join("system/guest.target"), TARGET)?;
        fs::write(systemd.join("system/guest.service"), SERVICE)?;
        fs::create_dir_all(systemd.join("network"))?;
        for (number, (_, name, _)) in CARDS.iter().enumerate() {
            let link =
                format!("[Match]\nPermanentMACAddress={}\n[Link]\nName={name}\n", mac(number));
            fs::write(systemd.join(format!("network/10-{name}.link")), link)?;
        }
        for folder in ["guest", "etc", "etc/systemd", "etc/systemd/system", "etc/systemd/network"] {
            fs::set_permissions(stage.join(folder), fs::Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(&stage, fs::Permissions::from_mode(0o755))?;
        let own = place.path().join("own.cpio");
        pack(&stage, &own)?;
        let _alone = cache.lock()?;
        let root = cache.root()?;
        let (image, modules) = cache.kernel(kernel)?;
        // The kernel unpacks one archive after the other.
        let initial = place.path().join("initial.cpio");
        let mut whole = File::create(&initial)?;
        for archive in [&root, &modules, &own] {
            io::copy(&mut File::open(archive)?, &mut whole)?;
        }
        let console = format!("{}-{}-{}.console", script.name, kernel.name(), place.name());
        let console = cache.directory().join(console);
        Ok(Machine { title, image, initial, console, _place: place })
    }

    /// Runs the machine until it switches itself off, at most for `limit`. Prints what the script
    /// reports.
    pub(crate) fn run(&self, limit: Duration) -> anyhow::Result<Outcome> {
        println!("{}:", self.title);
        let started = Instant::now();
        let mut child = Running(self.command().spawn().context(NO_SETPRIV)?);
        let output = child.0.stdout.take().context("QEMU has an output")?;
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                if send.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let mut outcome = Outcome::new(&self.title);
        let mut broken = None;
        loop {
            match lines.recv_timeout(limit.saturating_sub(started.elapsed())) {
                Ok(line) => {
                    println!("  {line}");
                    outcome.take(&line);
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    broken = Some(format!("ended after the limit of {} s", limit.as_secs()));
                    break;
                }
            }
        }
        if broken.is_none() {
            let status = child.0.wait()?;
            broken = match status.code() {
                Some(0) => None,
                Some(NO_PROGRAM) => Some(missing(QEMU)),
                _ => Some(format!("QEMU: {status}")),
            };
        }
        drop(child);
        outcome.end(started.elapsed().as_secs(), broken);
        if outcome.passed() {
            let _ = fs::remove_file(&self.console);
        } else {
            println!("  the guest's console and journal: {}", self.console.display());
        }
        Ok(outcome)
    }

    /// Returns the command that starts the machine. The kernel ends it with this process.
    fn command(&self) -> Command {
        let mut command = base_command(&Processors::Two, &self.image, &self.initial, &self.console);
        for (number, (model, name, hub)) in CARDS.iter().enumerate() {
            add_card(&mut command, number, model, name, *hub);
        }
        command.args(["-append", KERNEL_OPTIONS]);
        command.args(["-chardev", "stdio,id=report,signal=off", "-serial", "chardev:report"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// How a machine executes instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Processors {
    /// Two processors, each in a thread of its own.
    #[default]
    Two,
    /// One processor whose clock counts instructions: each takes a nanosecond, and a sleep takes no time of
    /// the host. QEMU writes the named events into a file.
    Counted {
        /// Names of QEMU's trace events to log.
        events: Vec<String>,
        /// The file for QEMU's log.
        log: PathBuf,
    },
}

impl Processors {
    /// Returns options of the kernel.
    pub(crate) fn kernel_options(&self) -> &'static str {
        match self {
            Processors::Two => "intel_iommu=on",
            // The kernel's own drivers work without an address space of their own, as fast as they can.
            Processors::Counted { .. } => "intel_iommu=on iommu=pt",
        }
    }

    fn add(&self, command: &mut Command) {
        match self {
            Processors::Two => {
                command.args(["-accel", "tcg,thread=multi", "-smp", "2"]);
                command.args(["-device", "intel-iommu,intremap=on"]);
            }
            Processors::Counted { events, log } => {
                command.args(["-accel", "tcg", "-smp", "1", "-icount", "shift=0,sleep=off"]);
                // DPDK maps memory at addresses of more than 39 bits.
                command.args(["-device", "intel-iommu,intremap=on,aw-bits=48"]);
                for event in events {
                    command.args(["-trace", event]);
                }
                command.arg("-D").arg(log);
            }
        }
    }
}

/// Returns the command of a machine without cards, which starts a kernel from memory.
pub(crate) fn base_command(
    processors: &Processors,
    image: &Path,
    initial: &Path,
    console: &Path,
) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", QEMU]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.args(["-machine", "q35,kernel-irqchip=split", "-cpu", "max", "-m", "1536"]);
    processors.add(&mut command);
    command.arg("-kernel").arg(image).arg("-initrd").arg(initial);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command
}

/// Adds a network card to a hub.
pub(crate) fn add_card(command: &mut Command, number: usize, model: &str, name: &str, hub: u8) {
    command.arg("-netdev").arg(format!("hubport,id={name},hubid={hub}"));
    command.arg("-device").arg(format!("{model},netdev={name},mac={}", mac(number)));
}

fn mac(number: usize) -> String {
    card_mac(number).map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the Ethernet address of a card. It does not end with 00:01 as that of all IPv4 hosts does
/// (01:00:5e:00:00:01): the table by which the card receives packets to groups has 12 bits of an address, and
/// QEMU's model also looks addresses of hosts up there.
pub(crate) fn card_mac(number: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, 0x10 + number as u8]
}

/// The machine's process, which ends with this value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // A machine that has switched itself off is what this asks for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
