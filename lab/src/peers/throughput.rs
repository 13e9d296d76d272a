//! Throughput: packets or messages per second, endpoint to endpoint and through the peers.

use std::collections::BTreeMap;

use super::bench::Bench;
use super::ours::{Observed, Ours};
use super::program::{Program, Project};
use super::testpmd::{HugePages, Memory, Testpmd, Wiring};
use super::{answers, hashed, rounds};
use crate::figure::{Axis, Figure, Series};
use crate::flow::HEADER_BYTES;
use crate::messages::{self, Amount};
use crate::report::Row;
use crate::statistics::{Pairs, Summary};
use crate::switch::ON_THE_WAY;

/// Sizes of packets, with the lower limits of the ratios to a memif switch and to the loop.
const SIZES: [(usize, f64, Option<f64>); 2] = [(64, 3.0, Some(0.65)), (1500, 1.7, None)];
/// Packets in flight.
const IN_FLIGHT: [u64; 3] = [64, ON_THE_WAY, 512];

/// Lines of the picture by size: all values of each thing, by its name.
#[derive(Default)]
struct Lines(Vec<(String, BTreeMap<usize, Vec<f64>>)>);

impl Lines {
    fn add(&mut self, name: &str, packet_bytes: usize, values: &[f64]) {
        let place = self.0.iter().position(|(line, _)| line == name).unwrap_or_else(|| {
            self.0.push((name.to_owned(), BTreeMap::new()));
            self.0.len() - 1
        });
        self.0[place].1.entry(packet_bytes).or_default().extend(values);
    }

    /// Returns each thing's medians by size.
    fn points(&self) -> Vec<(String, Vec<[f64; 2]>)> {
        let median =
            |(bytes, values): (&usize, &Vec<f64>)| [*bytes as f64, Summary::of(values).median];
        self.0
            .iter()
            .map(|(name, sizes)| (name.clone(), sizes.iter().map(median).collect()))
            .collect()
    }
}

/// Measures all sizes. Returns the pictures.
pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<Vec<Figure>> {
    let mut lines = Lines::default();
    let mut in_flight = Figure::new(
        "in-flight",
        "Packets per second, Towpath, by packets in flight",
        Axis::log("packets in flight", ""),
        Axis::linear("throughput", "Mpps"),
    );
    let dpdk = bench.find(Project::Dpdk);
    let mut aeron = bench.aeron();
    let huge_pages = HugePages::of_this_machine()?;
    if dpdk.is_some()
        && let Err(missing) = &huge_pages
    {
        bench.missing(missing.clone());
    }
    let huge_pages = huge_pages.ok();
    for (packet_bytes, switch_at_least, loop_at_least) in SIZES {
        let series = by_in_flight(bench, packet_bytes)?;
        in_flight = in_flight.with(series);
        let mut size = Size {
            ours: Ours::new(bench.cores, packet_bytes, ON_THE_WAY)?,
            bench: &mut *bench,
            lines: &mut lines,
            packet_bytes,
        };
        size.of_loop(loop_at_least)?;
        if let Some(words) = &dpdk {
            let kinds = Memory::all(huge_pages.as_ref());
            size.testpmd(words, Wiring::Switch, &kinds, Some(switch_at_least))?;
            size.testpmd(words, Wiring::Pair, &kinds, None)?;
        }
        size.kernel()?;
        // A program that did not answer once is not asked again.
        if let Some(mut program) = aeron.take()
            && size.aeron(&mut program)?
        {
            aeron = Some(program);
        }
        let checked = size.ours.finish()?;
        let parameters = [("packet_bytes", packet_bytes as f64)];
        let row = Row::new("Towpath, all delivered", &parameters, "packets", &[checked as f64]);
        bench.outcome.context.push(row);
    }
    Ok(vec![by_size(&lines.points()), in_flight])
}

/// Measures Towpath alone with several numbers of packets in flight.
fn by_in_flight(bench: &mut Bench, packet_bytes: usize) -> anyhow::Result<Series> {
    let (pairs, window) = (bench.settings.pairs(), bench.window);
    let mut points = Vec::new();
    for in_flight in IN_FLIGHT {
        let mut ours = Ours::new(bench.cores, packet_bytes, in_flight)?;
        ours.run(window)?;
        let windows = (0..pairs).map(|_| ours.observed(window));
        let windows = windows.collect::<anyhow::Result<Vec<Observed>>>()?;
        let parameters = [("packet_bytes", packet_bytes as f64), ("in_flight", in_flight as f64)];
        let mut add = |name: &str, unit: &str, of: fn(&Observed) -> f64| {
            let values: Vec<f64> = windows.iter().map(of).collect();
            bench.outcome.context.push(Row::new(name, &parameters, unit, &values));
            Summary::of(&values).median
        };
        let mpps = add("Towpath", "Mpps", |window| window.mpps);
        add("Towpath, engine: busy time", "share", |window| window.engine_busy);
        add("Towpath, engine: packets per poll iteration with work", "packets", |window| {
            window.packets_per_iteration
        });
        add("Towpath, generator and sink: busy time", "share", |window| window.client_busy);
        add("Towpath, generator and sink: packets per busy second", "Mpps", |window| {
            window.mpps / window.client_busy
        });
        points.push([in_flight as f64, mpps]);
        ours.finish()?;
    }
    Ok(Series::line(&format!("{packet_bytes} B"), points))
}

/// The comparisons of a size.
struct Size<'a> {
    bench: &'a mut Bench,
    ours: Ours,
    lines: &'a mut Lines,
    packet_bytes: usize,
}

impl Size<'_> {
    fn pairs(&mut self, base: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<Pairs> {
        let window = self.bench.window;
        rounds::pairs(self.bench.settings.pairs(), || self.ours.run(window), base)
    }

    /// Adds the rows of a peer, or records its failure. Returns whether there are figures.
    fn add(
        &mut self,
        peer: &str,
        (unit, limit): (&str, Option<f64>),
        pairs: anyhow::Result<Pairs>,
    ) -> anyhow::Result<bool> {
        let failed = |why| self.bench.missing(format!("{peer}, {} B: {why}", self.packet_bytes));
        let Some(pairs) = rounds::settled(pairs, failed)? else { return Ok(false) };
        let row = self.row(&format!("Towpath to {peer}"), "ratio", &pairs.ratios());
        self.bench.outcome.rows.push(Row { at_least: limit, ..row });
        self.beside(peer, unit, &pairs);
        Ok(true)
    }

    fn row(&self, name: &str, unit: &str, values: &[f64]) -> Row {
        Row::new(name, &[("packet_bytes", self.packet_bytes as f64)], unit, values)
    }

    /// Adds the absolute figures of both.
    fn beside(&mut self, peer: &str, unit: &str, pairs: &Pairs) {
        let ours = self.row(&format!("Towpath beside {peer}"), "Mpps", &pairs.ours);
        let base = self.row(peer, unit, &pairs.base);
        self.bench.outcome.context.extend([ours, base]);
        self.lines.add("Towpath", self.packet_bytes, &pairs.ours);
        self.lines.add(peer, self.packet_bytes, &pairs.base);
    }

    /// Measures the loop with each number of packets in flight. The fastest one is the peer; all
    /// are shown.
    fn of_loop(&mut self, at_least: Option<f64>) -> anyhow::Result<()> {
        let name = "a loop that validates, hashes and copies";
        let (cores, window, bytes) = (self.bench.cores, self.bench.window, self.packet_bytes);
        let mut best = None;
        for in_flight in hashed::IN_FLIGHT {
            let pairs = self.pairs(|| hashed::run(cores, bytes, window, in_flight));
            let named = format!("{name}, {in_flight} in flight");
            best = self.faster(best, &named, pairs)?;
        }
        self.add_best(name, at_least, best);
        Ok(())
    }

    /// Adds the figures of one kind of a peer, or records its failure. Returns the faster kind.
    fn faster(
        &mut self,
        best: Option<Pairs>,
        named: &str,
        pairs: anyhow::Result<Pairs>,
    ) -> anyhow::Result<Option<Pairs>> {
        let failed = |why| self.bench.missing(format!("{named}, {} B: {why}", self.packet_bytes));
        let Some(pairs) = rounds::settled(pairs, failed)? else { return Ok(best) };
        self.beside(named, "Mpps", &pairs);
        let median = |pairs: &Pairs| Summary::of(&pairs.base).median;
        Ok(match best {
            Some(best) if median(&best) >= median(&pairs) => Some(best),
            _ => Some(pairs),
        })
    }

    /// Adds the ratio to the fastest kind.
    fn add_best(&mut self, name: &str, at_least: Option<f64>, best: Option<Pairs>) {
        if let Some(best) = best {
            let row = self.row(&format!("Towpath to {name}"), "ratio", &best.ratios());
            self.bench.outcome.rows.push(Row { at_least, ..row });
        }
    }

    /// Measures testpmd with each kind of memory. The fastest one is the peer; all are shown.
    fn testpmd(
        &mut self,
        words: &[String],
        wiring: Wiring,
        kinds: &[Memory<'_>],
        at_least: Option<f64>,
    ) -> anyhow::Result<()> {
        let name = match wiring {
            Wiring::Switch => "memif switch",
            Wiring::Pair => "memif pair",
        };
        let window = self.bench.window;
        let mut best: Option<Pairs> = None;
        for kind in kinds {
            let named = format!("{name}, {}", kind.name());
            let started = Testpmd::start(
                &self.bench.files,
                words,
                (wiring, *kind),
                self.bench.cores,
                self.packet_bytes,
            );
            let mut testpmd = match started {
                Ok(testpmd) => testpmd,
                Err(error) => {
                    self.bench.missing(format!(
                        "DPDK testpmd, {named}, {} B: {error:#}",
                        self.packet_bytes
                    ));
                    continue;
                }
            };
            let pairs = self.pairs(|| testpmd.run(window));
            best = self.faster(best, &named, pairs)?;
        }
        self.add_best(name, at_least, best);
        Ok(())
    }

    fn kernel(&mut self) -> anyhow::Result<()> {
        let (cores, window, bytes) = (self.bench.cores, self.bench.window, self.packet_bytes);
        let rate = |moved: messages::Moved| moved.messages as f64 / moved.took.as_secs_f64() / 1e6;
        let payload = bytes - HEADER_BYTES;
        let wire = self.bench.wire.clone();
        let udp = || Ok(rate(messages::udp(&wire, cores, payload, Amount::Time(window), None)?));
        let pairs = self.pairs(udp);
        self.add("kernel UDP over veth", ("Mpps", None), pairs)?;
        let pairs = self.pairs(|| Ok(rate(messages::tcp(&wire, cores, bytes, window)?)));
        self.add("kernel TCP over veth", ("million writes/s", None), pairs)?;
        Ok(())
    }

    /// Measures Aeron; returns whether its program works.
    fn aeron(&mut self, aeron: &mut Program) -> anyhow::Result<bool> {
        let asked = format!("messages {} {}", self.bench.window.as_millis(), self.packet_bytes);
        let pairs = self.pairs(|| {
            aeron.say(&asked)?;
            answers::messages(&aeron.read_line()?)
        });
        self.add("Aeron IPC", ("million messages/s", None), pairs)
    }
}

/// Returns the picture of throughput by size, one line per thing that was measured.
fn by_size(lines: &[(String, Vec<[f64; 2]>)]) -> Figure {
    let figure = Figure::new(
        "throughput",
        "Packets per second, Towpath and its peers",
        Axis::linear("packet", "B"),
        Axis::log("throughput", "Mpps"),
    );
    lines
        .iter()
        .fold(figure, |figure, (name, points)| figure.with(Series::line(name, points.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_point_per_size() {
        let mut lines = Lines::default();
        lines.add("Towpath", 64, &[1.0, 3.0, 2.0]);
        lines.add("peer", 64, &[5.0]);
        lines.add("Towpath", 64, &[4.0]);
        lines.add("Towpath", 1500, &[7.0]);
        let lines = lines.points();
        assert_eq!(lines[0], ("Towpath".to_owned(), vec![[64.0, 2.5], [1500.0, 7.0]]));
        assert_eq!(lines[1], ("peer".to_owned(), vec![[64.0, 5.0]]));
    }
}
