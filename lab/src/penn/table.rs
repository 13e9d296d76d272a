//! The paper's table III: the time of a transfer, and the processor time that networking leaves to
//! others.
//!
//! The paper's machine had one shared processor. The experiment runs on one; and, since machines
//! have more now, at full rate once more with the network's threads on two and the computing
//! processes wherever the scheduler puts them. The pictures show the paper's figures beside.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use towpath_testkit::{Participants, pin};

use super::carriers::{Carriers, LINK_BITS_PER_S, PDUS};
use super::crossing::Crossing;
use super::others::Load;
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::KernelWire;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};
use crate::techniques::Waits;

/// The paper's transfer.
const TRANSFER_BYTES: f64 = 4.8e6;
/// The paper's transfers, in milliseconds, and the processor left, in hundredths.
const PAPERS_TRANSFERS_MS: [(&str, [f64; 3]); 2] = [
    ("the paper's, unloaded", [500.0, 340.0, 300.0]),
    ("the paper's, loaded", [5400.0, 750.0, 460.0]),
];
const PAPERS_LEFT: [f64; 3] = [50.0, 65.0, 70.0];
/// The interfaces: of all on one processor, and of the network on two.
const TAPS: [&str; 2] = ["tppen1", "tppen2"];
/// A smaller part of the processors is an accident of the clock or the scheduler: nothing is
/// divided by it.
const LEAST_LEFT: f64 = 0.01;

/// One run: the time of the paper's transfer at that rate, and the idle part of the processors.
#[derive(Clone, Copy, Debug)]
struct Sample {
    transfer_s: f64,
    left: f64,
}

/// The other load, and the network's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unloaded,
    Loaded,
    /// Two processors, for the network and for the computing processes.
    LoadedOnTwo,
}

impl State {
    const ALL: [State; 3] = [State::Unloaded, State::Loaded, State::LoadedOnTwo];

    fn name(self) -> &'static str {
        match self {
            State::Unloaded => "unloaded",
            State::Loaded => "loaded",
            State::LoadedOnTwo => "loaded, on two processors",
        }
    }

    fn taker(self) -> &'static str {
        match self {
            State::Unloaded => "the idle task",
            State::Loaded => "five others",
            State::LoadedOnTwo => "five others on two processors",
        }
    }

    fn processors(self) -> u32 {
        if self == State::LoadedOnTwo { 2 } else { 1 }
    }
}

/// The conditions of one run: the carrier, the load, and the participants whose time is read.
struct Place<'a, 'b> {
    carriers: &'a RefCell<Carriers<'b>>,
    load: &'a Load,
    /// The kernel's, and ours.
    participants: [Participants; 2],
}

impl Place<'_, '_> {
    fn run(
        &self,
        ours: bool,
        state: State,
        pdu_bytes: usize,
        window: Duration,
        rate: Option<f64>,
    ) -> anyhow::Result<Sample> {
        let loaded = state != State::Unloaded;
        let participants = &self.participants[usize::from(ours)];
        self.load.go(loaded)?;
        let start = Instant::now();
        let (before, others) = (participants.cpu_time()?, self.load.cpu_time()?);
        let moved = self.carriers.borrow_mut().carry(ours, pdu_bytes, window, rate)?;
        let cpu = participants.cpu_time()? - before;
        let others = self.load.cpu_time()? - others;
        let all = start.elapsed() * state.processors();
        self.load.go(false)?;
        let bytes = (moved.messages as f64 * pdu_bytes as f64).max(1.0);
        let transfer_s = TRANSFER_BYTES / bytes * moved.took.as_secs_f64();
        let left = if loaded { others } else { all.saturating_sub(cpu) };
        Ok(Sample { transfer_s, left: left.as_secs_f64() / all.as_secs_f64() })
    }

    /// Measures all PDU sizes. Returns the median of each size, for us and for the kernel: of the
    /// transfer's time, or at a given rate of the processor time left.
    fn curves(
        &self,
        state: State,
        rate: Option<f64>,
        window: Duration,
        outcome: &mut Outcome,
    ) -> anyhow::Result<[Vec<[f64; 2]>; 2]> {
        let mut curves = [Vec::new(), Vec::new()];
        for pdu_bytes in PDUS {
            let samples = RefCell::new([Vec::new(), Vec::new()]);
            let run = |ours: bool| {
                let sample = self.run(ours, state, pdu_bytes, window, rate)?;
                samples.borrow_mut()[usize::from(ours)].push(sample);
                Ok(sample.transfer_s)
            };
            let pairs = Pairs::measure(5, || run(true), || run(false))?;
            let [kernel, ours] = samples.into_inner();
            let (kernel, ours) = (&kernel[1..], &ours[1..]);
            show(outcome, (pdu_bytes, rate, state), &pairs.ratios(), ours, kernel);
            for (curve, samples) in curves.iter_mut().zip([ours, kernel]) {
                let value = |sample: &Sample| match rate {
                    None => sample.transfer_s * 1e3,
                    Some(_) => sample.left * 100.0,
                };
                let values: Vec<f64> = samples.iter().map(value).collect();
                curve.push([pdu_bytes as f64, Summary::of(&values).median]);
            }
        }
        Ok(curves)
    }
}

/// Measures the table. `free`: computing processes that were never pinned to a core.
pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    free: &Load,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let cpu = cores.1;
    pin(cpu)?;
    // Two and a half seconds of each, in five parts.
    let window = Duration::from_millis(if settings.quick { 40 } else { 500 });
    let one = Process::start(&Serving::tap(TAPS[0]).on(cpu), None)?;
    let two = Process::start(&Serving::tap(TAPS[1]).on(cores.0), None)?;
    let carriers = |process, tap, cores| -> anyhow::Result<RefCell<Carriers<'_>>> {
        let crossing = Crossing::new(&Process::socket(process), tap, Waits::Blocks)?;
        Ok(RefCell::new(Carriers { process, crossing, wire, cores }))
    };
    let alone = carriers(&one, TAPS[0], None)?;
    let spread = carriers(&two, TAPS[1], Some(cores))?;
    let load = Load::start(Some(cpu))?;
    let own = std::process::id();
    let participants =
        |process: &Process| [Participants::new(&[own]), Participants::new(&[own, process.pid()])];
    let here = Place { carriers: &alone, load: &load, participants: participants(&one) };
    let everywhere = Place { carriers: &spread, load: free, participants: participants(&two) };
    let mut transfers = Figure::new(
        "transfer",
        "Time of a transfer of 4.8 MB by PDU size, at full rate",
        Axis::log("PDU", "B"),
        Axis::log("transfer", "ms"),
    );
    let mut left = Figure::new(
        "left",
        "Processor left at 135 Mbit/s by PDU size",
        Axis::log("PDU", "B"),
        Axis::linear("left", "%"),
    );
    for rate in [None, Some(LINK_BITS_PER_S)] {
        for state in State::ALL {
            if rate.is_some() && state == State::LoadedOnTwo {
                continue;
            }
            let place = if state == State::LoadedOnTwo { &everywhere } else { &here };
            let curves = place.curves(state, rate, window, outcome)?;
            let figure = if rate.is_none() { &mut transfers } else { &mut left };
            for (who, curve) in ["Towpath", "kernel"].into_iter().zip(curves) {
                let name = match rate {
                    None => format!("{who}, {}", state.name()),
                    Some(_) => format!("{who}, to {}", state.taker()),
                };
                figure.series.push(Series::line(&name, curve));
            }
        }
    }
    for (name, times) in PAPERS_TRANSFERS_MS {
        transfers.series.push(Series::dots(name, of_papers(times)));
    }
    left.series.push(Series::dots("the paper's, to five others", of_papers(PAPERS_LEFT)));
    outcome.figures.extend([transfers, left]);
    drop(load);
    super::memory::measure(settings, cpu, &alone, outcome)
}

/// Returns points for the paper's PDUs.
fn of_papers(values: [f64; 3]) -> Vec<[f64; 2]> {
    PDUS.iter().zip(values).map(|(pdu_bytes, value)| [*pdu_bytes as f64, value]).collect()
}

fn show(
    outcome: &mut Outcome,
    (pdu_bytes, rate, state): (usize, Option<f64>, State),
    transfers: &[f64],
    ours: &[Sample],
    kernel: &[Sample],
) {
    let mut parameters = vec![("pdu_bytes", pdu_bytes as f64)];
    parameters.extend(rate.map(|rate| ("mbit_per_s", rate / 1e6)));
    let row = |name: String, unit, values: &[f64]| Row::new(&name, &parameters, unit, values);
    let name = format!("transfer time, {}, Towpath to read() and write()", state.name());
    outcome.rows.push(row(name, "ratio", transfers));
    let taker = state.taker();
    // At full rate, alone, either uses all of the processor; small PDUs do so at any rate.
    if let Some(ratios) = left_ratios(ours, kernel)
        && (state != State::Unloaded || rate.is_some())
    {
        let name = format!("processor left to {taker}, Towpath to read() and write()");
        outcome.rows.push(row(name, "ratio", &ratios));
    }
    for (who, samples) in [("Towpath", ours), ("read() and write()", kernel)] {
        let times: Vec<f64> = samples.iter().map(|sample| sample.transfer_s * 1e3).collect();
        let name = format!("{who}, transfer of 4.8 MB, {}", state.name());
        outcome.context.push(row(name, "ms", &times));
        let left: Vec<f64> = samples.iter().map(|sample| sample.left * 100.0).collect();
        let name = format!("{who}, processor left to {taker}");
        outcome.context.push(row(name, "%", &left));
    }
}

/// Returns the ratio of the processor time left beside Towpath to that left beside the kernel's
/// sockets, pair by pair, if all of both are at least [`LEAST_LEFT`].
fn left_ratios(ours: &[Sample], kernel: &[Sample]) -> Option<Vec<f64>> {
    let enough = |side: &[Sample]| side.iter().all(|sample| sample.left >= LEAST_LEFT);
    let ratios = || ours.iter().zip(kernel).map(|(a, b)| a.left / b.left).collect();
    (enough(ours) && enough(kernel)).then(ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_of_almost_no_idle_time_are_not_computed() {
        let all = |left: &[f64]| -> Vec<Sample> {
            left.iter().map(|&left| Sample { transfer_s: 1.0, left }).collect()
        };
        assert_eq!(left_ratios(&all(&[0.5, 0.6]), &all(&[0.25, 0.6])), Some(vec![2.0, 1.0]));
        assert_eq!(left_ratios(&all(&[0.5, 0.001_58]), &all(&[0.5, 0.5])), None);
        assert_eq!(left_ratios(&all(&[0.5, 0.5]), &all(&[0.5, 0.0])), None);
    }
}
