//! Smith and Traw, "Giving Applications Access to Gb/s Networking", section 3: throughput by the
//! size of PDUs at a constant total, in both directions; the time of a transfer, and the processor
//! time left to five processes that factor a number, for small, middling and large PDUs; the memory
//! bandwidth left; of section 2.4, the delay and the processor time of the clock; and, of section
//! 1.4, the clock against the model of its capacity.
//!
//! PDUs cross a device, a TAP, to a packet socket of the kernel. The kernel's UDP sockets across a
//! veth pair stand for the paper's `read()` and `write()`, with a system call per PDU and side;
//! this project's queues stand for its shared memory. Both segment PDUs to 1500 bytes. PDUs also
//! cross a simulated link of ATM cells.

mod carriers;
mod cells;
mod clock;
mod crossing;
mod delay;
mod engine;
mod looks;
mod memory;
mod others;
mod pdus;
mod table;

use std::cell::RefCell;

use towpath_testkit::pin;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::KernelWire;
use crate::machine::two_cores;
use crate::messages::{self, Amount};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Summary, in_turn, ratios};
use crate::techniques::Waits;
use cells::ETHERNET_MTU_BYTES;
use crossing::{Crossing, Direction};

pub(crate) use others::{Factor, Stride};

/// The paper's transfer: 8192 PDUs of 1 KiB to 128 of 64 KiB.
const TOTAL_BYTES: usize = 8 << 20;
/// The interface of the transfers in figure 3.
const TAP: &str = "tppen0";
/// What carries PDUs in figure 3.
const CARRIERS: [&str; 3] =
    ["Towpath over TAP, writing", "Towpath over TAP, reading", "read() and write()"];

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    // No thread is pinned yet, so these processes stay free.
    let free = others::Load::start(None)?;
    let wire = KernelWire::new("tppek", ETHERNET_MTU_BYTES)?;
    let mut outcome = Outcome {
        how: format!(
            "Throughput: the engine polls a TAP on core {}, the application and the packet socket at \
             the TAP's kernel side in one thread on core {}; the kernel's UDP sockets, across a veth \
             pair, in a thread for each side on the same two; an MTU of {ETHERNET_MTU_BYTES} bytes on both; \
             8 MB in each transfer. Table III and \
             memory, as in the paper, on one processor, core {}: engine, application and all \
             others; at full rate once more on two processors, the engine on core {}, the application on \
             core {}, the kernel's sockets in a thread on each, and all others free on \
             both; all sleep when idle",
            cores.0, cores.1, cores.1, cores.0, cores.1
        ),
        ..Outcome::default()
    };
    throughput(settings, cores, &wire, &mut outcome)?;
    pdus::measure(settings, cores, &mut outcome)?;
    cells::measure(settings, cores, &mut outcome)?;
    table::measure(settings, cores, &wire, &free, &mut outcome)?;
    drop(free);
    delay::measure(settings, cores, &mut outcome)?;
    clock::measure(settings, cores, &mut outcome)?;
    Ok(outcome)
}

/// Measures the paper's figure 3, in both directions, and its section 3.3.
fn throughput(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let sizes: Vec<usize> = (10..=16).step_by(if settings.quick { 3 } else { 1 }).collect();
    let process = Process::start(&Serving::tap(TAP).on(cores.0).polling(), None)?;
    pin(cores.1)?;
    let crossing = RefCell::new(Crossing::new(&process.socket(), TAP, Waits::Polls)?);
    let mut curves = [Vec::new(), Vec::new(), Vec::new()];
    for bytes in sizes.into_iter().map(|shift| 1usize << shift) {
        let bytes = bytes.min(crossing.borrow().max_pdu_bytes());
        let amount = Amount::Messages((TOTAL_BYTES / bytes) as u64);
        let across = |direction| -> anyhow::Result<f64> {
            process.resume()?;
            let moved = crossing.borrow_mut().run(direction, bytes, amount, None)?;
            process.pause()?;
            Ok(moved.gbit_s(bytes) * 1e3)
        };
        let values = in_turn(
            settings.pairs(),
            &mut [
                &mut || across(Direction::Writing),
                &mut || across(Direction::Reading),
                &mut || Ok(messages::udp(wire, cores, bytes, amount, None)?.gbit_s(bytes) * 1e3),
            ],
        )?;
        let parameters = [("pdu_bytes", bytes as f64), ("total_bytes", TOTAL_BYTES as f64)];
        let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
        let [writing, reading, kernel] = [&values[0], &values[1], &values[2]];
        for (way, ours) in [("writing", writing), ("reading", reading)] {
            let name = format!("over TAP, {way}: throughput, Towpath to read() and write()");
            outcome.rows.push(row(&name, "ratio", &ratios(ours, kernel)));
        }
        let name = "over TAP, reading to writing: throughput";
        outcome.rows.push(row(name, "ratio", &ratios(reading, writing)));
        for ((name, curve), values) in CARRIERS.iter().zip(&mut curves).zip(&values) {
            outcome.context.push(row(&format!("throughput, {name}"), "Mbit/s", values));
            curve.push([bytes as f64, Summary::of(values).median]);
        }
    }
    let figure = Figure::new(
        "throughput",
        "Throughput by PDU size, transfers of 8 MB",
        Axis::log("PDU", "B"),
        Axis::log("throughput", "Mbit/s"),
    );
    let series = CARRIERS.iter().zip(curves).map(|(name, curve)| Series::line(name, curve));
    outcome.figures.push(series.fold(figure, Figure::with));
    Ok(())
}
