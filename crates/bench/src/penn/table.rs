//! The paper's table III and section 3.1.2: what networking leaves to others, on one processor.

use std::time::{Duration, Instant};

use towpath_rig::{Participants, pin};

use super::others::{Load, Striding};
use crate::Settings;
use crate::kernel_wire::KernelWire;
use crate::messages::{self, Amount, MTU_BYTES, Moved, Stream};
use crate::report::{Outcome, Row};
use crate::station::{Serving, Station};
use crate::statistics::Pairs;
use crate::techniques::Waits;

/// The paper's PDUs.
const PDUS: [usize; 3] = [48, 4800, 48_000];
/// The paper's transfer.
const TRANSFER_BYTES: f64 = 4.8e6;
/// What the paper's link carried.
const LINK_BITS_PER_S: f64 = 135e6;

/// One run: how long the paper's transfer takes at that rate, and what is left of the processor.
#[derive(Clone, Copy, Debug)]
struct Sample {
    transfer_s: f64,
    left: f64,
}

/// Who carries PDUs.
struct Carriers<'a> {
    station: &'a Station,
    stream: Stream,
    wire: &'a KernelWire,
}

impl Carriers<'_> {
    fn carry(
        &mut self,
        ours: bool,
        pdu_bytes: usize,
        window: Duration,
        rate: Option<f64>,
    ) -> anyhow::Result<Moved> {
        if !ours {
            return messages::udp_alone(self.wire, pdu_bytes, Amount::Time(window), rate);
        }
        self.station.resume()?;
        let moved = self.stream.run(pdu_bytes, Amount::Time(window), rate);
        self.station.pause()?;
        moved
    }
}

pub(super) fn measure(
    settings: Settings,
    cpu: usize,
    wire: &KernelWire,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    pin(cpu)?;
    // Ten seconds of each, in five parts.
    let window = Duration::from_millis(if settings.quick { 40 } else { 2000 });
    let station = Station::start(&Serving::memory(MTU_BYTES).on(cpu), None)?;
    let stream = Stream::new(&station.socket(), Waits::Blocks)?;
    let carriers = std::cell::RefCell::new(Carriers { station: &station, stream, wire });
    let load = Load::start(cpu)?;
    let participants = [
        Participants::new(&[std::process::id()]),
        Participants::new(&[std::process::id(), station.pid()]),
    ];
    for rate in [None, Some(LINK_BITS_PER_S)] {
        for pdu_bytes in PDUS {
            for loaded in [false, true] {
                let samples = std::cell::RefCell::new([Vec::new(), Vec::new()]);
                let run = |ours: bool| {
                    load.go(loaded)?;
                    let start = Instant::now();
                    let (before, others) =
                        (participants[usize::from(ours)].cpu_time()?, load.cpu_time()?);
                    let moved = carriers.borrow_mut().carry(ours, pdu_bytes, window, rate)?;
                    let cpu = participants[usize::from(ours)].cpu_time()? - before;
                    let others = load.cpu_time()? - others;
                    let all = start.elapsed();
                    load.go(false)?;
                    let bytes = (moved.messages as f64 * pdu_bytes as f64).max(1.0);
                    let transfer_s = TRANSFER_BYTES / bytes * moved.took.as_secs_f64();
                    let left = if loaded { others } else { all.saturating_sub(cpu) };
                    let sample =
                        Sample { transfer_s, left: left.as_secs_f64() / all.as_secs_f64() };
                    samples.borrow_mut()[usize::from(ours)].push(sample);
                    Ok(sample.transfer_s)
                };
                let pairs = Pairs::measure(5, || run(true), || run(false))?;
                let [kernel, ours] = samples.into_inner();
                show(outcome, (pdu_bytes, rate, loaded), &pairs.ratios(), &ours[1..], &kernel[1..]);
            }
        }
    }
    drop(load);
    memory(settings, cpu, &carriers, outcome)
}

fn show(
    outcome: &mut Outcome,
    (pdu_bytes, rate, loaded): (usize, Option<f64>, bool),
    transfers: &[f64],
    ours: &[Sample],
    kernel: &[Sample],
) {
    let mut parameters = vec![("pdu_bytes", pdu_bytes as f64)];
    parameters.extend(rate.map(|rate| ("mbit_per_s", rate / 1e6)));
    let state = if loaded { "loaded" } else { "unloaded" };
    let row = |name: String, unit, values: &[f64]| Row::new(&name, &parameters, unit, values);
    let name = format!("transfer time, {state}, Towpath to read() and write()");
    outcome.rows.push(row(name, "ratio", transfers));
    let whose = if loaded { "five others" } else { "nobody" };
    // At full rate, alone, either takes all that there is.
    if loaded || rate.is_some() {
        let left: Vec<f64> = ours.iter().zip(kernel).map(|(a, b)| a.left / b.left).collect();
        let name = format!("processor left to {whose}, Towpath to read() and write()");
        outcome.rows.push(row(name, "ratio", &left));
    }
    for (who, samples) in [("Towpath", ours), ("read() and write()", kernel)] {
        let times: Vec<f64> = samples.iter().map(|sample| sample.transfer_s * 1e3).collect();
        let name = format!("{who}, transfer of 4.8 MB, {state}");
        outcome.context.push(row(name, "ms", &times));
        let left: Vec<f64> = samples.iter().map(|sample| sample.left * 100.0).collect();
        let name = format!("{who}, processor left to {whose}");
        outcome.context.push(row(name, "%", &left));
    }
}

/// Memory that another process can read meanwhile, on the same processor, as in the paper.
fn memory(
    settings: Settings,
    cpu: usize,
    carriers: &std::cell::RefCell<Carriers<'_>>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 40 } else { 1000 });
    let striding = std::cell::RefCell::new(Striding::start(cpu)?);
    for pdu_bytes in [PDUS[0], PDUS[2]] {
        for (who, ours) in [("Towpath", true), ("read() and write()", false)] {
            let with = || {
                striding.borrow_mut().beside(window, || {
                    carriers.borrow_mut().carry(ours, pdu_bytes, window, None).map(drop)
                })
            };
            let alone = || {
                striding.borrow_mut().beside(window, || {
                    // This thread, too, is on that processor.
                    std::thread::sleep(window);
                    Ok(())
                })
            };
            let pairs = Pairs::measure(settings.pairs(), with, alone)?;
            let parameters = [("pdu_bytes", pdu_bytes as f64)];
            let row =
                |name: String, unit, values: &[f64]| Row::new(&name, &parameters, unit, values);
            let name = format!("memory bandwidth left beside {who}, to all of it");
            outcome.rows.push(row(name, "ratio", &pairs.ratios()));
            let name = format!("memory bandwidth beside {who}");
            outcome.context.push(row(name, "GB/s", &pairs.ours));
            outcome.context.push(row("memory bandwidth alone".into(), "GB/s", &pairs.base));
        }
    }
    Ok(())
}
