//! Riddoch and Pope, "A Low Overhead Application/Device-driver Interface for User-level
//! Networking", section 4: bandwidth by the size of messages; round trip by the number of idle
//! endpoints, with an idle server and a busy one; throughput by the number of connections, one
//! request each; the overhead of a message. Beside each, the kernel's sockets with `epoll`, and
//! with `select`, which the paper mentions.
//!
//! The paper's flow control is that of its message protocol: acknowledgements that also carry the
//! free buffer space. The bandwidth is measured with it and without; the kernel's TCP has its own.
//!
//! The paper's load is a closed loop: a client that gets no answer sends no new request. A second
//! measurement has an open loop, whose generator does not wait for answers.

mod idle;
mod load;
mod offered;
mod place;
mod requests;

use std::time::Duration;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::KernelWire;
use crate::machine::two_cores;
use crate::messages::{self, Amount, MTU_BYTES, Stream};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};
use crate::techniques::Waits;
use place::Place;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let wire = KernelWire::new("tpcam", MTU_BYTES as u32)?;
    let mut outcome = Outcome {
        how: format!(
            "Towpath: the engine polls on core {}; both sides of each exchange in one thread of \
             another process on core {}. Kernel: sockets across a veth pair between two network \
             namespaces, a thread for each side, on the same two cores. An MTU of {MTU_BYTES} bytes \
             on both",
            cores.0, cores.1
        ),
        ..Outcome::default()
    };
    let place = Place { settings, cores, wire: &wire };
    bandwidth(place, &mut outcome)?;
    idle::measure(place, &mut outcome)?;
    load::measure(place, &mut outcome)?;
    offered::measure(place, &mut outcome)?;
    Ok(outcome)
}

/// Measures the paper's figure 4.
fn bandwidth(place: Place<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let Place { settings, cores, wire } = place;
    let sizes: Vec<usize> = (4..=16).step_by(if settings.quick { 4 } else { 1 }).collect();
    let window = Duration::from_millis(if settings.quick { 30 } else { 150 });
    let process = Process::start(&Serving::memory(MTU_BYTES).on(cores.0).polling(), None)?;
    towpath_testkit::pin(cores.1)?;
    let stream = &std::cell::RefCell::new(Stream::new(&process.socket(), Waits::Polls)?);
    let acknowledged = &std::cell::RefCell::new(Stream::acknowledged(&process.socket())?);
    let mut curves = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for bytes in sizes.into_iter().map(|shift| 1usize << shift) {
        let parameters = [("message_bytes", bytes as f64)];
        let process = &process;
        let over = |stream: &std::cell::RefCell<Stream>| -> anyhow::Result<f64> {
            process.resume()?;
            let moved = stream.borrow_mut().run(bytes, Amount::Time(window), None)?;
            process.pause()?;
            Ok(moved.gbit_s(bytes))
        };
        let ours = || over(stream);
        let udp = || {
            let moved = messages::udp(wire, cores, bytes, Amount::Time(window), None)?;
            Ok(moved.gbit_s(bytes))
        };
        let tcp = || Ok(messages::tcp(wire, cores, bytes, window)?.gbit_s(bytes));
        let to_udp = Pairs::measure(settings.pairs(), ours, udp)?;
        let to_tcp = Pairs::measure(settings.pairs(), ours, tcp)?;
        let before = acknowledged.borrow().counts();
        let with = Pairs::measure(settings.pairs(), || over(acknowledged), ours)?;
        let row = |name, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
        outcome.rows.push(row("bandwidth, Towpath to UDP", "ratio", &to_udp.ratios()));
        outcome.rows.push(row("bandwidth, Towpath to TCP", "ratio", &to_tcp.ratios()));
        let name = "bandwidth, Towpath, with acknowledgements to without";
        outcome.rows.push(row(name, "ratio", &with.ratios()));
        let after = acknowledged.borrow().counts();
        let each = (after[0] - before[0]) as f64 / (after[1] - before[1]).max(1) as f64;
        outcome.context.push(row("packets per acknowledgement", "packets", &[each]));
        let all = [to_udp.ours, to_tcp.ours, with.base].concat();
        for (curve, (name, values)) in curves.iter_mut().zip([
            ("bandwidth, Towpath", &all),
            ("bandwidth, Towpath, with acknowledgements", &with.ours),
            ("bandwidth, UDP and epoll", &to_udp.base),
            ("bandwidth, TCP", &to_tcp.base),
        ]) {
            outcome.context.push(row(name, "Gbit/s", values));
            curve.push([bytes as f64, Summary::of(values).median]);
        }
    }
    let names = [
        "Towpath, endpoint to endpoint",
        "Towpath, with acknowledgements",
        "kernel UDP, epoll",
        "kernel TCP",
    ];
    outcome.figures.push(names.into_iter().zip(curves).fold(
        Figure::new(
            "bandwidth",
            "Bandwidth by message size",
            Axis::log("message", "B"),
            Axis::log("bandwidth", "Gbit/s"),
        ),
        |figure, (name, curve)| figure.with(Series::line(name, curve)),
    ));
    Ok(())
}
