//! Direct hand-off and a queue, in front of a device with a descriptor ring, by the cost of a kick.
//!
//! An engine alone, over the in-memory device: a kick is a write to a device register, which takes
//! a given time. With direct hand-off, the engine kicks once per poll iteration; a queue kicks once
//! per batch. The engine's processor time per packet is what differs.

use std::time::Duration;

use towpath_device_testing::loopback::{Config, Timing};
use towpath_engine::solo::{Solo, direct_and_queued};
use towpath_server::Values;
use towpath_testkit::pin;

use super::handoff::{IN_TWO_WAYS, TWO_WAYS};
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::report::{Outcome, Row};
use crate::statistics::{Summary, ratios};

/// Costs of a kick, in nanoseconds: none, a write that the bus posts, one that crosses a bus, a
/// system call, and one that leaves a virtual machine.
pub(super) const KICKS_NS: [u64; 5] = [0, 100, 400, 1600, 6400];
/// Direct hand-off is never slower: it saves the backlog, and kicks less often.
const AT_LEAST: f64 = 1.0;
const PACKETS: usize = 200_000;
const QUICK_PACKETS: usize = 10_000;

pub(super) fn measure(
    settings: Settings,
    core: usize,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let packets = if settings.quick { QUICK_PACKETS } else { PACKETS };
    let mut curves = [Vec::new(), Vec::new()];
    // The thread that measures is alone on its core.
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| -> anyhow::Result<()> {
            pin(core)?;
            for kick_ns in KICKS_NS {
                let medians = by_kick(settings, outcome, kick_ns, packets)?;
                for (curve, ns) in curves.iter_mut().zip(medians) {
                    curve.push([kick_ns.max(50) as f64, ns]);
                }
            }
            Ok(())
        });
        measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let figure = Figure::new(
        "kicks",
        "A packet to a ring by the cost of a kick (50: none)",
        Axis::log("kick", "ns"),
        Axis::log("packet", "ns"),
    );
    let series = TWO_WAYS.into_iter().zip(curves).map(|(name, curve)| Series::line(name, curve));
    outcome.figures.push(series.fold(figure, Figure::with));
    Ok(())
}

/// Measures both ways at one cost of a kick. Returns the medians of the nanoseconds per packet.
fn by_kick(
    settings: Settings,
    outcome: &mut Outcome,
    kick_ns: u64,
    packets: usize,
) -> anyhow::Result<[f64; 2]> {
    let timing = Timing { kick_time: Duration::from_nanos(kick_ns), ..Timing::default() };
    let device = Config { timing, tx_asynchronous: true, ..Config::default() };
    let mut solo = Solo::on(&device, &Values::default()).map_err(anyhow::Error::from_boxed)?;
    let mut run = || direct_and_queued(&mut solo, packets).map_err(anyhow::Error::from_boxed);
    // The first run warms the caches.
    run()?;
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..settings.pairs() {
        for (all, ns) in all.iter_mut().zip(run()?) {
            all.push(ns);
        }
    }
    let [direct, queued] = &all;
    let parameters = [("kick_ns", kick_ns as f64)];
    let title = format!("packets to a ring device, {IN_TWO_WAYS}");
    let row = Row::new(&title, &parameters, "ratio of packets/s", &ratios(queued, direct));
    outcome.rows.push(row.at_least(AT_LEAST));
    for (name, values) in TWO_WAYS.into_iter().zip(&all) {
        let title = format!("packets to a ring device, {name}");
        outcome.context.push(Row::new(&title, &parameters, "ns", values));
    }
    Ok([direct, queued].map(|values| Summary::of(values).median))
}
