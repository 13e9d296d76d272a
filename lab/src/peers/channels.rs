//! Channels beside the peers that applications of one host use to send messages to each other.

use std::time::Duration;

use super::bench::{Bench, two};
use super::program::{Program, Project};
use super::testpmd::{HugePages, Memory, Testpmd, Wiring};
use super::{answers, rounds};
use crate::Settings;
use crate::latency::Latency;
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};

/// The sizes of messages, with the lower limit of the ratio to each peer.
const SIZES: [(usize, Option<f64>); 2] = [(64, Some(3.0)), (1500, None)];
/// The upper limit of the median round trip, both sides spinning, to Aeron's.
const TRIP_AT_MOST: f64 = 1.0;
const TRIP_BYTES: usize = 64;

/// Two applications with a channel, each in a thread that spins on a core of its own.
pub(crate) trait SpinningChannel {
    /// Sends messages for a time. Returns millions of messages received per second.
    fn messages(&mut self, bytes: usize, window: Duration) -> anyhow::Result<f64>;

    /// Times round trips of a message.
    fn trips(&mut self, bytes: usize, window: Duration) -> anyhow::Result<Latency>;
}

/// Compares a channel with each peer that is installed. Adds the rows to the outcome.
pub(crate) fn beside_channels(
    settings: Settings,
    cores: (usize, usize),
    outcome: Outcome,
    channel: &mut dyn SpinningChannel,
) -> anyhow::Result<Outcome> {
    let mut bench = Bench::new(settings, cores, outcome)?;
    let dpdk = bench.find(Project::Dpdk);
    let huge_pages = HugePages::of_this_machine()?;
    if let (Some(_), Err(missing)) = (&dpdk, &huge_pages) {
        bench.missing(missing.clone());
    }
    let huge_pages = huge_pages.ok();
    for (bytes, limit) in SIZES {
        let Some(words) = &dpdk else { continue };
        memif(&mut bench, channel, words, huge_pages.as_ref(), (bytes, limit))?;
    }
    if let Some(mut aeron) = bench.aeron() {
        for (bytes, limit) in SIZES {
            aeron_messages(&mut bench, channel, &mut aeron, (bytes, limit))?;
        }
        aeron_trips(&mut bench, channel, &mut aeron)?;
    }
    Ok(bench.outcome)
}

fn row(name: &str, bytes: usize, unit: &str, values: &[f64]) -> Row {
    Row::new(name, &[("message_bytes", bytes as f64)], unit, values)
}

/// Measures two processes of testpmd with each kind of memory. The fastest is the peer; all are
/// shown.
fn memif(
    bench: &mut Bench,
    channel: &mut dyn SpinningChannel,
    words: &[String],
    huge_pages: Option<&HugePages>,
    (bytes, at_least): (usize, Option<f64>),
) -> anyhow::Result<()> {
    let (count, window) = (bench.settings.pairs(), bench.window);
    let mut best: Option<Pairs> = None;
    for kind in Memory::all(huge_pages) {
        let name = format!("memif pair, {}", kind.name());
        let started = Testpmd::start(&bench.files, words, (Wiring::Pair, kind), bench.cores, bytes);
        let failed = |why| format!("DPDK testpmd, {name}, {bytes} B: {why}");
        let mut testpmd = match started {
            Ok(testpmd) => testpmd,
            Err(error) => {
                bench.missing(failed(format!("{error:#}")));
                continue;
            }
        };
        let pairs =
            rounds::pairs(count, || channel.messages(bytes, window), || testpmd.run(window));
        let Some(pairs) = rounds::settled(pairs, |why| bench.missing(failed(why)))? else {
            continue;
        };
        beside(bench, &name, bytes, &pairs);
        let median = |pairs: &Pairs| Summary::of(&pairs.base).median;
        if best.as_ref().is_none_or(|best| median(best) < median(&pairs)) {
            best = Some(pairs);
        }
    }
    if let Some(best) = best {
        let row = row("messages, channel to memif pair", bytes, "ratio", &best.ratios());
        bench.outcome.rows.push(Row { at_least, ..row });
    }
    Ok(())
}

fn aeron_messages(
    bench: &mut Bench,
    channel: &mut dyn SpinningChannel,
    aeron: &mut Program,
    (bytes, at_least): (usize, Option<f64>),
) -> anyhow::Result<()> {
    let (count, window) = (bench.settings.pairs(), bench.window);
    let asked = format!("messages {} {bytes}", window.as_millis());
    let base = || {
        aeron.say(&asked)?;
        answers::messages(&aeron.read_line()?)
    };
    let pairs = rounds::pairs(count, || channel.messages(bytes, window), base);
    let failed = |why| bench.missing(format!("Aeron, {bytes} B: {why}"));
    let Some(pairs) = rounds::settled(pairs, failed)? else { return Ok(()) };
    beside(bench, "Aeron IPC", bytes, &pairs);
    let row = row("messages, channel to Aeron IPC", bytes, "ratio", &pairs.ratios());
    bench.outcome.rows.push(Row { at_least, ..row });
    Ok(())
}

fn aeron_trips(
    bench: &mut Bench,
    channel: &mut dyn SpinningChannel,
    aeron: &mut Program,
) -> anyhow::Result<()> {
    let window = bench.window;
    let asked = format!("trips {} {TRIP_BYTES}", window.as_millis());
    let base = || {
        aeron.say(&asked)?;
        let trips = answers::trips(&aeron.read_line()?)?;
        Ok([trips.p50_us, trips.p99_us])
    };
    let ours = || two(&channel.trips(TRIP_BYTES, window)?);
    let pairs = rounds::quantiles(bench.settings.pairs(), ours, base);
    let failed = |why| bench.missing(format!("Aeron: {why}"));
    let Some(pairs) = rounds::settled(pairs, failed)? else { return Ok(()) };
    let limits = [("p50", &pairs.p50, Some(TRIP_AT_MOST)), ("p99", &pairs.p99, None)];
    for (quantile, pairs, at_most) in limits {
        let name = format!("round trip, both spin, channel to Aeron IPC, {quantile}");
        let ratio = row(&name, TRIP_BYTES, "ratio", &pairs.ratios());
        bench.outcome.rows.push(Row { at_most, ..ratio });
        for (side, values) in [("channel", &pairs.ours), ("Aeron IPC", &pairs.base)] {
            let name = format!("round trip, both spin, {side}, {quantile}");
            bench.outcome.context.push(row(&name, TRIP_BYTES, "us", values));
        }
    }
    Ok(())
}

/// Adds the absolute figures of both.
fn beside(bench: &mut Bench, peer: &str, bytes: usize, pairs: &Pairs) {
    let ours = row(&format!("messages, channel beside {peer}"), bytes, "million/s", &pairs.ours);
    let base = row(&format!("messages, {peer}"), bytes, "million/s", &pairs.base);
    bench.outcome.context.extend([ours, base]);
}
