//! Round trips over AF_XDP on a veth pair: a bare socket, `embedded`, and an application behind a
//! server, beside the kernel's UDP sockets; awake and asleep.

mod asleep;
mod ends;
mod spinning;
mod wire;

use std::time::Duration;

use towpath_testkit::Namespace;

use crate::Settings;
use crate::kernel_wire::KernelWire;
use crate::latency::Latency;
use crate::machine::two_cores;
use crate::process::XdpMode;
use crate::report::{Outcome, Row};
use crate::statistics::{Measured, in_turn, ratios};
use crate::trip::{Cores, TRIP_BYTES};
pub(crate) use asleep::AnswerAsleep;
use asleep::Asleep;
use ends::Kind;
pub(crate) use spinning::AnswerSpinning;
use spinning::{Alone, Served};
use wire::Wire;

/// The upper limits of round trips, all sides spinning, to the bare socket's.
const EMBEDDED_AT_MOST: f64 = 1.3;
const SERVED_AT_MOST: f64 = 1.8;
/// The upper limit of round trips, all on one core and asleep, to those of kernel sockets.
const ASLEEP_AT_MOST: f64 = 1.3;

/// The quantiles of a report.
const QUANTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// What all comparisons share.
struct Bench {
    settings: Settings,
    cores: (usize, usize),
    window: Duration,
    there: Namespace,
    /// Veth pairs made so far.
    wires: u8,
    outcome: Outcome,
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    let _ = here.silence();
    let _ = there.silence();
    let mut bench = Bench {
        settings,
        cores,
        window: Duration::from_millis(if settings.quick { 30 } else { 400 }),
        there,
        wires: 0,
        outcome: Outcome { how: how(cores), ..Outcome::default() },
    };
    for mode in XdpMode::ALL {
        bench.spinning(mode)?;
    }
    bench.asleep()?;
    Ok(bench.outcome)
}

fn how((first, second): (usize, usize)) -> String {
    format!(
        "a packet of {TRIP_BYTES} bytes goes from one end of a veth pair to the other and back; each \
         thing has a pair of its own, and other processes are stopped meanwhile. Spin: bare and \
         embedded drive both ends, by two processes, which poll: the one that asks on core {second}, \
         the one that answers on core {first}; server: its engine polls on core {first}, and one \
         thread on core {second} is the application, and at the far end a bare socket that answers; \
         kernel UDP: two threads poll, the one that asks on core {second}. Sleep: at the far end, a \
         process blocks on a UDP socket and answers; the application that asks blocks, too, and so \
         does the engine; all on one core: core {second}; on two cores: what answers on core {first}, \
         all else on core {second}; unpinned: where the kernel puts them"
    )
}

/// The values of one thing: by quantile, of each round.
type Times = Vec<[f64; QUANTILES.len()]>;

/// Something that runs round trips for a window.
type Trips<'a> = Box<dyn FnMut(Duration) -> anyhow::Result<Latency> + 'a>;

impl Bench {
    fn wire(&mut self) -> anyhow::Result<Wire> {
        self.wires += 1;
        Wire::new(&self.there, self.wires)
    }

    /// Measures things in turn.
    fn in_turn(&self, things: &mut [Trips<'_>]) -> anyhow::Result<Vec<Times>> {
        let mut times: Vec<Times> = things.iter().map(|_| Vec::new()).collect();
        let window = self.window;
        let mut measured: Vec<_> = things
            .iter_mut()
            .zip(&mut times)
            .map(|(thing, times)| {
                move || -> anyhow::Result<f64> {
                    let latency = thing(window)?;
                    times.push(QUANTILES.map(|(_, quantile)| latency.quantile_us(quantile)));
                    Ok(0.0)
                }
            })
            .collect();
        let mut measured: Vec<Measured<'_>> = measured.iter_mut().map(|one| one as _).collect();
        in_turn(self.settings.pairs(), &mut measured)?;
        // The first round warms up.
        for times in &mut times {
            times.remove(0);
        }
        Ok(times)
    }

    /// Adds the rows of some things. `names`: of each. `ratios`: the number of one, that of its
    /// base line, and the limit of the medians' ratio.
    fn add(
        &mut self,
        how: &str,
        names: &[&str],
        times: &[Times],
        compared: &[(usize, usize, Option<f64>)],
    ) {
        let parameters = [("packet_bytes", TRIP_BYTES as f64)];
        for (number, (quantile, _)) in QUANTILES.iter().enumerate() {
            let values = |thing: usize| -> Vec<f64> {
                times[thing].iter().map(|times| times[number]).collect()
            };
            for (ours, base, limit) in compared {
                let name = format!("{how}: {} to {}, {quantile}", names[*ours], names[*base]);
                let ratios = ratios(&values(*ours), &values(*base));
                let row = Row::new(&name, &parameters, "ratio", &ratios);
                // The tail depends on the machine more than on the program.
                let at_most = limit.filter(|_| number == 0);
                self.outcome.rows.push(Row { at_most, ..row });
            }
            for (thing, name) in names.iter().enumerate() {
                let name = format!("{how}: {name}, {quantile}");
                self.outcome.context.push(Row::new(&name, &parameters, "us", &values(thing)));
            }
        }
    }

    /// Measures a mode with all sides polling.
    fn spinning(&mut self, mode: XdpMode) -> anyhow::Result<()> {
        let cores = self.cores;
        let mut bare = Alone::new(Kind::Bare, mode, cores, self.wire()?)?;
        let mut embedded = Alone::new(Kind::Embedded, mode, cores, self.wire()?)?;
        let mut served = Served::new(mode, cores, self.wire()?)?;
        let kernel = KernelWire::new(&format!("tpxdpk{}", self.wires), 1500)?;
        let times = self.in_turn(&mut [
            Box::new(|window| bare.run(window)),
            Box::new(|window| embedded.run(window)),
            Box::new(|window| served.run(window)),
            Box::new(|window| crate::peers::spinning_udp(&kernel, cores, window)),
        ])?;
        self.add(
            &format!("spin, {}", mode.name()),
            &["bare AF_XDP", "embedded", "server", "kernel UDP"],
            &times,
            &[(1, 0, Some(EMBEDDED_AT_MOST)), (2, 0, Some(SERVED_AT_MOST)), (2, 3, None)],
        );
        Ok(())
    }

    /// Measures both modes with all sides asleep.
    fn asleep(&mut self) -> anyhow::Result<()> {
        let (first, second) = (Some(self.cores.0), Some(self.cores.1));
        for (placement, asks, answers, limit) in [
            ("all on one core", second, second, Some(ASLEEP_AT_MOST)),
            ("on two cores", second, first, None),
            ("unpinned", None, None, None),
        ] {
            for mode in XdpMode::ALL {
                let cores = Cores { asks, answers };
                let mut kernel = Asleep::kernel(cores, self.wire()?)?;
                let mut embedded = Asleep::embedded(mode, cores, self.wire()?)?;
                let mut served = Asleep::served(mode, cores, self.wire()?)?;
                let times = self.in_turn(&mut [
                    Box::new(|window| kernel.run(window)),
                    Box::new(|window| embedded.run(window)),
                    Box::new(|window| served.run(window)),
                ])?;
                self.add(
                    &format!("sleep, {placement}, {}", mode.name()),
                    &["kernel UDP", "embedded", "server"],
                    &times,
                    &[(1, 0, limit), (2, 0, limit)],
                );
            }
        }
        Ok(())
    }
}
