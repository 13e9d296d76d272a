//! The guest: its files, its plan, and what it leaves.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::styles::Style;
use super::trial::{Amount, Load, Plan, Receiver, Shape, Testpmd, Trial, Way};
use crate::Settings;
use crate::card_log::{self, Accesses, EVENTS};
use crate::child::{Child, Keep, OwnSocket, argument};
use towpath_guest::{Counted, card_mac};

/// The least time between two interrupts, for all drivers, in microseconds: the least of QEMU's
/// model.
pub(super) const RX_USECS: u32 = 128;
/// The cards, in the guest's order: one for each way, then the sender's.
const KERNEL: (&str, usize) = ("eth0", 0);
const TESTPMD: (&str, usize) = ("0000:00:02.0", 1);
const LINKED: &str = "0000:00:03.0";
const OLDER: [(Style, &str); 4] = [
    (Style::Message, "0000:00:06.0"),
    (Style::Batched, "0000:00:07.0"),
    (Style::Rings, "0000:00:08.0"),
    (Style::Moves, "0000:00:09.0"),
];
const SENDER: &str = "0000:00:0a.0";
const CARDS: u8 = 10;
/// Where the guest finds the servers, and leaves the trials.
const SOCKET: &str = "/run/towpath/block.sock";
const SOCKET_AUTO: &str = "/run/towpath/auto.sock";
const OUT: &str = "/out/trials";
const MISSING: &str = "/out/missing";
const MOST_ROUNDS: usize = 5;
/// The script of the guest.
const SCRIPT: &str = include_str!("../../guest/compare.sh");

/// Where Debian has DPDK's drivers, and the ones that testpmd needs for the card.
const DRIVERS: &str = "/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0";
const NEEDED: [&str; 2] = ["librte_mempool_ring.so.23", "librte_net_e1000.so.23"];
const STDBUF: &str = "/usr/libexec/coreutils/libstdbuf.so";

/// The files of testpmd on this host.
#[derive(Clone, Debug)]
pub(super) struct Files(Vec<PathBuf>);

/// Finds testpmd and its drivers, or returns the line of a report.
pub(super) fn testpmd() -> Result<Files, String> {
    let drivers = NEEDED.iter().map(|name| Path::new(DRIVERS).join(name));
    let others = ["/usr/bin/dpdk-testpmd", STDBUF].map(PathBuf::from);
    let files: Vec<PathBuf> = others.into_iter().chain(drivers).collect();
    match files.iter().find(|path| !path.is_file()) {
        Some(missing) => Err(format!(
            "DPDK testpmd: there is no {}; install it with: lab/peers/install dpdk",
            missing.display()
        )),
        None => Ok(Files(files)),
    }
}

/// What a guest has left: each trial with its accesses of registers, and why testpmd did not run.
pub(super) struct Left {
    pub(super) trials: Vec<(Trial, Accesses)>,
    pub(super) missing: Option<String>,
}

/// Runs all trials in a guest.
pub(super) fn run(settings: Settings, testpmd: Option<Files>) -> anyhow::Result<Left> {
    let directory = OwnSocket::new()?;
    let directory = directory.directory();
    // It makes the directory, and removes it however this process ends: QEMU's log has 100 MB.
    let _keeper = Child::start(&Keep { directory: directory.to_owned() })?;
    let (plan, script) = (directory.join("plan"), directory.join("compare.sh"));
    let role = self::plan(settings, testpmd.is_some());
    fs::write(&plan, argument(&role)?)?;
    fs::write(&script, SCRIPT)?;
    let mut files = vec![plan, script];
    files.extend(testpmd.into_iter().flat_map(|Files(files)| files));
    let (log, output) = (directory.join("log"), directory.join("said"));
    let command = ["bash", "/guest/compare.sh", &RX_USECS.to_string()].map(str::to_owned);
    let counted = Counted {
        command: &command,
        cards: CARDS,
        files,
        events: &EVENTS,
        log: &log,
        back: directory,
        output: &output,
    };
    let status = counted.run()?;
    if status != 0 {
        let said = fs::read_to_string(&output).unwrap_or_default();
        bail!("the guest's command failed with status {status}; it said:\n{said}");
    }
    let accesses = card_log::trials(BufReader::new(File::open(&log)?))?;
    let trials = fs::read_to_string(directory.join("trials")).context("the guest's trials")?;
    let trials: Vec<Trial> = trials.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let missing = fs::read_to_string(directory.join("missing")).ok();
    Ok(Left { trials: pair(&trials, &accesses)?, missing })
}

/// Returns each trial with its place in the log, without the first round of each shape.
fn pair(trials: &[Trial], accesses: &[Accesses]) -> anyhow::Result<Vec<(Trial, Accesses)>> {
    ensure!(
        trials.len() == accesses.len(),
        "{} trials, and {} in QEMU's log",
        trials.len(),
        accesses.len()
    );
    let pairs = trials.iter().copied().zip(accesses.iter().copied());
    Ok(pairs.filter(|(trial, _)| trial.round > 0).collect())
}

fn plan(settings: Settings, has_testpmd: bool) -> Plan {
    let served = |socket: &str| Receiver::Served { socket: socket.into() };
    let (interface, number) = KERNEL;
    let testpmd = Testpmd {
        card: TESTPMD.0.into(),
        drivers: NEEDED.iter().map(|name| Path::new("/guest").join(name)).collect(),
        mac: card_mac(TESTPMD.1),
    };
    Plan {
        sender: SENDER.into(),
        testpmd: has_testpmd.then_some(testpmd),
        receivers: [
            (Way::Kernel, Receiver::Kernel { interface: interface.into(), mac: card_mac(number) }),
            (Way::Linked, Receiver::Linked { address: LINKED.into(), rx_usecs: RX_USECS }),
            (Way::Served, served(SOCKET)),
            (Way::ServedAuto, served(SOCKET_AUTO)),
        ]
        .into_iter()
        .chain(OLDER.map(|(style, address)| {
            let address = address.to_owned();
            (Way::Older(style), Receiver::Older { style, address, rx_usecs: RX_USECS })
        }))
        .collect(),
        shapes: shapes(settings),
        amount: if settings.quick {
            Amount { bursts: 2, paced: 150 }
        } else {
            Amount { bursts: 8, paced: 500 }
        },
        // Counts of instructions hardly differ from round to round.
        rounds: if settings.quick { 1 } else { settings.pairs().min(MOST_ROUNDS) },
        out: OUT.into(),
        missing: MISSING.into(),
    }
}

fn shapes(settings: Settings) -> Vec<Shape> {
    let (sizes, paces): (&[usize], &[u32]) =
        if settings.quick { (&[64], &[10_000]) } else { (&[64, 1500], &[10_000, 1_000]) };
    let paced = paces.iter().map(|rate| Load::PerSecond(*rate));
    let loads: Vec<Load> = [Load::Saturated].into_iter().chain(paced).collect();
    let mut shapes = Vec::new();
    for is_back in [false, true] {
        for bytes in sizes {
            shapes.extend(loads.iter().map(|load| Shape { is_back, bytes: *bytes, load: *load }));
        }
    }
    shapes
}
