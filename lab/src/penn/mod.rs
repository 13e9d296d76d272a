//! Smith and Traw, "Giving Applications Access to Gb/s Networking", section 3: throughput by the
//! size of PDUs at a constant total; the time of a transfer, and the processor time left to five
//! processes that factor a number, for small, middling and large PDUs; the memory bandwidth left;
//! and, of section 1.4, the clock against the model of its capacity.
//!
//! The kernel's sockets stand for the paper's `read()` and `write()`, with a system call per PDU
//! and side; this project's queues stand for its shared memory.

mod clock;
mod engine;
mod looks;
mod memory;
mod others;
mod pdus;
mod table;

use towpath_testkit::pin;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::KernelWire;
use crate::machine::two_cores;
use crate::messages::{self, Amount, MTU_BYTES, Stream};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};
use crate::techniques::Waits;

pub(crate) use others::{factor, stride};

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    // No thread is pinned yet, so these processes stay free.
    let free = others::Load::start(None)?;
    let wire = KernelWire::new("tppen", MTU_BYTES as u32)?;
    let mut outcome = Outcome {
        how: format!(
            "Throughput: the engine polls on core {}, generator and sink in one thread on core {}; \
             the kernel's sockets in a thread for each side on the same two. Table III and \
             memory, as in the paper, on one processor, core {}: engine, application and all \
             others; once more on two processors, the engine on core {}, the application on \
             core {}, the kernel's sockets in a thread on each, and all others free on \
             both; all sleep when idle",
            cores.0, cores.1, cores.1, cores.0, cores.1
        ),
        ..Outcome::default()
    };
    throughput(settings, cores, &wire, &mut outcome)?;
    pdus::measure(settings, cores, &mut outcome)?;
    table::measure(settings, cores, &wire, &free, &mut outcome)?;
    drop(free);
    clock::measure(settings, cores, &mut outcome)?;
    Ok(outcome)
}

/// Measures the paper's figure 3, and its section 3.3.
fn throughput(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    // Eight times the paper's 8 MB: at today's rates that would be too short.
    let total = if settings.quick { 8 << 20 } else { 64 << 20 };
    let sizes: Vec<usize> = (10..=16).step_by(if settings.quick { 3 } else { 1 }).collect();
    let process = Process::start(&Serving::memory(MTU_BYTES).on(cores.0).polling(), None)?;
    pin(cores.1)?;
    let stream = std::cell::RefCell::new(Stream::new(&process.socket(), Waits::Polls)?);
    let mut curves = [Vec::new(), Vec::new()];
    for bytes in sizes.into_iter().map(|shift| 1usize << shift) {
        let amount = Amount::Messages((total / bytes) as u64);
        let pairs = Pairs::measure(
            settings.pairs(),
            || {
                process.resume()?;
                let moved = stream.borrow_mut().run(bytes, amount, None)?;
                process.pause()?;
                Ok(moved.gbit_s(bytes) * 1e3)
            },
            || Ok(messages::udp(wire, cores, bytes, amount, None)?.gbit_s(bytes) * 1e3),
        )?;
        let parameters = [("pdu_bytes", bytes as f64), ("total_bytes", total as f64)];
        let row = |name, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
        let name = "throughput, shared memory to read() and write()";
        outcome.rows.push(row(name, "ratio", &pairs.ratios()));
        outcome.context.push(row("throughput, shared memory", "Mbit/s", &pairs.ours));
        outcome.context.push(row("throughput, read() and write()", "Mbit/s", &pairs.base));
        for (curve, values) in curves.iter_mut().zip([&pairs.ours, &pairs.base]) {
            curve.push([bytes as f64, Summary::of(values).median]);
        }
    }
    let [ours, kernel] = curves;
    outcome.figures.push(
        Figure::new(
            "throughput",
            "Throughput by PDU size",
            Axis::log("PDU", "B"),
            Axis::log("throughput", "Mbit/s"),
        )
        .with(Series::line("Towpath: shared memory", ours))
        .with(Series::line("kernel: read() and write()", kernel)),
    );
    Ok(())
}
