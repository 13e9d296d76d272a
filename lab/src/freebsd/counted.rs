//! The instructions, locked instructions and fences per packet, counted by stepping through the
//! process: application and engine in one, from the sending call to the device's system call.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use towpath_client::Session;
use towpath_testkit::{StepWatch, Steps};

use super::handoff::Handoff;
use super::packets::{PACKET_BYTES, aim, options, send_batch};
use crate::Settings;
use crate::child::{Child, OwnSocket, Role, tell};
use crate::process::{Serving, start_server};
use crate::report::{Outcome, Row};

/// Batches of two sizes: the difference belongs to the packets, the common part to the batch. A
/// step takes some microseconds.
const BATCHES: [usize; 2] = [8, 40];
const QUICK_BATCHES: [usize; 2] = [2, 6];

/// Returns the packets of the two batches whose difference is stepped through.
pub(crate) fn batches(settings: Settings) -> [usize; 2] {
    if settings.quick { QUICK_BATCHES } else { BATCHES }
}
/// All threads sleep if no instruction executes for this long.
const QUIET: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of counts of each.
const COUNTS: usize = 5;

/// Serves a device and sends through it on command, in one process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Counted {
    /// The device and its settings.
    pub(crate) serving: Serving,
    /// The socket's path.
    pub(crate) socket: PathBuf,
}

impl Role for Counted {
    const NAME: &'static str = "Counted";

    fn directory(&self) -> Option<&Path> {
        self.socket.parent()
    }

    fn act(self) -> anyhow::Result<()> {
        counted(&self.serving, self.socket)
    }
}

/// Runs the process that the experiment steps through: sends as many packets as each line says.
fn counted(serving: &Serving, socket: PathBuf) -> anyhow::Result<()> {
    let name = serving.wire.tap()?;
    let (server, _far) = start_server(serving, socket.clone())?;
    let mut session = Session::attach(socket, &options())?;
    let (endpoint, packet) = aim(&mut session, name)?;
    tell("ready")?;
    for line in std::io::stdin().lock().lines() {
        let count = line?.trim().parse().context("how many packets")?;
        let sent = send_batch(&mut session, endpoint, &packet, count)?;
        ensure!(sent == count, "room for {sent} of {count} packets");
    }
    drop(session);
    Ok(server.stop()?)
}

pub(super) fn measure(
    settings: Settings,
    handoff: Option<Handoff>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let own = OwnSocket::new()?;
    let serving = Serving::tap("tpbsda");
    let socket = own.path();
    let mut child = Child::start(&Counted { serving, socket: socket.clone() })?;
    let ways: Vec<(&str, Option<(Handoff, u64)>)> = match handoff {
        Some(handoff) => vec![
            ("handed over directly", Some((handoff, handoff.direct))),
            ("through a queue", Some((handoff, handoff.queued))),
        ],
        None => vec![("handed over", None)],
    };
    let mut of_ways = Vec::new();
    for (name, way) in ways {
        if let Some((handoff, value)) = way {
            towpath_client::set(&socket, None, handoff.setting, value)?;
        }
        let watch = match StepWatch::start(child.pid()) {
            Ok(watch) => watch,
            Err(error) if error.unavailable().is_some() => {
                outcome.how += &format!("; nothing was counted: {}", first_line(&error));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let (sizes, rounds) = (batches(settings), if settings.quick { 1 } else { COUNTS });
        let mut each = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..=rounds {
            let mut batches = [Steps::default(); 2];
            for (steps, count) in batches.iter_mut().zip(sizes) {
                *steps = step_through(&watch, &mut child, count)?;
            }
            let [few, many] = batches;
            let packets = (sizes[1] - sizes[0]) as f64;
            let per =
                |value: fn(&Steps) -> u64| (value(&many) as f64 - value(&few) as f64) / packets;
            // The first round executes one-time work, so it does not count.
            if round > 0 {
                each[0].push(per(|steps| steps.instructions));
                each[1].push(per(|steps| steps.locked));
                each[2].push(per(|steps| steps.fences));
            }
        }
        for (values, what) in each.iter().zip(["instructions", "locked instructions", "fences"]) {
            let title = format!("a packet, {name}: {what}");
            outcome.context.push(row(&title, "executed", values));
        }
        of_ways.push(each);
    }
    if let [direct, queued] = &of_ways[..] {
        for (place, what) in ["instructions", "locked instructions"].into_iter().enumerate() {
            let less: Vec<f64> =
                queued[place].iter().zip(&direct[place]).map(|(q, d)| q - d).collect();
            let title = format!("a packet handed over directly, not through a queue: {what} less");
            outcome.rows.push(row(&title, "executed", &less));
        }
    }
    Ok(())
}

fn row(title: &str, unit: &str, values: &[f64]) -> Row {
    Row::new(title, &[("packet_bytes", PACKET_BYTES as f64)], unit, values)
}

fn first_line(error: &towpath_testkit::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Counts what a process executes for a batch, until all of its threads sleep again.
pub(crate) fn step_through(
    watch: &StepWatch,
    child: &mut Child,
    count: usize,
) -> anyhow::Result<Steps> {
    let busy = "the process that is stepped through does not go to sleep";
    let before = watch.settle(QUIET, PATIENCE).context(busy)?;
    child.say(&count.to_string())?;
    // The process has to wake up first.
    let began = std::time::Instant::now();
    while watch.steps() == before {
        ensure!(began.elapsed() < PATIENCE, "the process that is stepped through does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(watch.settle(QUIET, PATIENCE).context(busy)?.since(&before))
}
