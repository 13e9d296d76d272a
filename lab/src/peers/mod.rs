//! Towpath beside its peers: DPDK, Aeron, iceoryx2, the kernel's sockets, and a loop that only
//! validates, hashes and copies.
//!
//! Each peer is compared in pairs of its own (A B A B …), in one call. A peer that is not installed
//! or fails costs its own rows; the report names it with the reason.

mod afxdp;
mod answers;
mod bare_calls;
mod bench;
mod channels;
mod hashed;
mod ours;
mod program;
mod rounds;
mod sockets;
mod testpmd;
mod throughput;
mod trips;

use crate::Settings;
use crate::machine::two_cores;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::trip::{Cores, TRIP_BYTES};
use answers::Trips;
use bare_calls::{BareCalls, Doorbell};
use bench::{Bench, two};
use program::{Program, Project};
use rounds::{Quantiles, quantiles};
use sockets::Sockets;
use trips::{Asleep, Spinning};

pub(crate) use bare_calls::MakeCalls;
pub(crate) use channels::{SpinningChannel, beside_channels};
pub(crate) use sockets::{AnswerSocket, udp as spinning_udp};
pub(crate) use trips::Answer;

/// The upper limit of round trips, both sides spinning, to Aeron's.
const SPINNING_AT_MOST: f64 = 2.5;
/// The upper limits of round trips asleep, to sockets'.
const SHARED_CORE_AT_MOST: f64 = 1.3;
const ONE_CORE_AT_MOST: f64 = 2.0;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let outcome = Outcome { how: how(cores), ..Outcome::default() };
    let mut bench = Bench::new(settings, cores, outcome)?;
    let throughput = throughput::measure(&mut bench)?;
    bench.outcome.figures.extend(throughput);
    afxdp::measure(&mut bench)?;
    bench.spinning()?;
    bench.asleep()?;
    Ok(bench.outcome)
}

fn how((engine, ends): (usize, usize)) -> String {
    format!(
        "throughput: an engine, a loop, or a process of testpmd that receives or forwards spins on \
         core {engine}; generator and sink, or a process of testpmd that generates, spin on core \
         {ends}; AF_XDP on veth: a process of testpmd sends from core {ends}, where the kernel also \
         receives, and the engine, which polls, and the application, which sleeps, share core \
         {engine}, or a process of testpmd receives there; a UDP or TCP receiver sleeps on core {engine}, its sender runs on core {ends}. \
         Round trips, both spin: Towpath's applications are one thread on core {ends}, its engine \
         is on core {engine}; Aeron, iceoryx2 and UDP have a thread on each core. Round trips, both sleep: each application is a process, the sockets are \
         Unix datagram sockets in epoll. Other processes are stopped meanwhile"
    )
}

impl Bench {
    /// Measures round trips with both sides spinning.
    fn spinning(&mut self) -> anyhow::Result<()> {
        let (count, window, cores) = (self.settings.pairs(), self.window, self.cores);
        let mut ours = Spinning::new(cores)?;
        let asked = format!("trips {} {TRIP_BYTES}", window.as_millis());
        let asks = |program: &mut Program, line: &str| -> anyhow::Result<[f64; 2]> {
            program.say(line)?;
            let Trips { p50_us, p99_us, .. } = answers::trips(&program.read_line()?)?;
            Ok([p50_us, p99_us])
        };
        if let Some(mut aeron) = self.aeron() {
            let base = || asks(&mut aeron, &asked);
            let pairs = quantiles(count, || two(&ours.run(window)?), base);
            self.trips("spin", "Aeron IPC", pairs, [Some(SPINNING_AT_MOST), None])?;
        }
        let arguments = self.arguments("iceoryx2");
        if let Some(mut iceoryx2) = self.start(Project::Iceoryx2, &arguments) {
            let base = || asks(&mut iceoryx2, &asked);
            let pairs = quantiles(count, || two(&ours.run(window)?), base);
            self.trips("spin", "iceoryx2", pairs, [None; 2])?;
        }
        let base = || two(&sockets::udp(&self.wire, cores, window)?);
        let pairs = quantiles(count, || two(&ours.run(window)?), base);
        self.trips("spin", "kernel UDP over veth", pairs, [None; 2])
    }

    /// Measures round trips with both sides asleep.
    fn asleep(&mut self) -> anyhow::Result<()> {
        let (count, window) = (self.settings.pairs(), self.window);
        let (first, second) = (Some(self.cores.0), Some(self.cores.1));
        let limited = |limit| [Some(limit); 2];
        for (placement, engine, cores, limits) in [
            (
                "engine on the core of one application",
                first,
                Cores { asks: first, answers: second },
                limited(SHARED_CORE_AT_MOST),
            ),
            (
                "all on one core",
                first,
                Cores { asks: first, answers: first },
                limited(ONE_CORE_AT_MOST),
            ),
            ("unpinned", None, Cores { asks: None, answers: None }, [None; 2]),
        ] {
            let serving = Serving { engine_cpu: engine, ..Serving::memory(1500) };
            let mut ours = Asleep::new(Process::start(&serving, None)?, cores)?;
            let mut base = Sockets::new(cores)?;
            let pairs = quantiles(count, || two(&ours.run(window)?), || two(&base.run(window)?));
            self.trips(&format!("sleep, {placement}"), "epoll sockets", pairs, limits)?;
            drop((ours, base));
            for (calls, doorbell) in [
                ("the calls alone", Doorbell::Socket),
                ("the calls alone with eventfds", Doorbell::Eventfd),
            ] {
                self.calls_alone((placement, calls), engine, cores, doorbell)?;
            }
        }
        Ok(())
    }

    /// Measures how much of a round trip its system calls are.
    fn calls_alone(
        &mut self,
        (placement, calls): (&str, &str),
        engine: Option<usize>,
        cores: Cores,
        doorbell: Doorbell,
    ) -> anyhow::Result<()> {
        let mut alone = BareCalls::new(engine, cores, doorbell)?;
        let mut base = Sockets::new(cores)?;
        let window = self.window;
        let pairs = quantiles(
            self.settings.pairs(),
            || two(&alone.run(window)?),
            || two(&base.run(window)?),
        )?;
        for (quantile, pairs) in [("p50", pairs.p50), ("p99", pairs.p99)] {
            let name = format!(
                "round trip, both sleep, {placement}, {calls} to epoll sockets, {quantile}"
            );
            self.outcome.context.push(Row::new(&name, &[], "ratio", &pairs.ratios()));
        }
        Ok(())
    }

    /// Adds the rows of round trips, or records that the peer failed.
    fn trips(
        &mut self,
        waits: &str,
        peer: &str,
        pairs: anyhow::Result<Quantiles>,
        limits: [Option<f64>; 2],
    ) -> anyhow::Result<()> {
        let Some(pairs) = rounds::settled(pairs, |why| self.missing(format!("{peer}: {why}")))?
        else {
            return Ok(());
        };
        let parameters = [("packet_bytes", TRIP_BYTES as f64)];
        for ((quantile, pairs), limit) in
            [("p50", pairs.p50), ("p99", pairs.p99)].iter().zip(limits)
        {
            let name = format!("round trip, both {waits}, Towpath to {peer}, {quantile}");
            let row = Row::new(&name, &parameters, "ratio", &pairs.ratios());
            self.outcome.rows.push(Row { at_most: limit, ..row });
            for (side, values) in [("Towpath", &pairs.ours), (peer, &pairs.base)] {
                let name = match side {
                    "Towpath" => {
                        format!("round trip, both {waits}, Towpath beside {peer}, {quantile}")
                    }
                    peer => format!("round trip, both {waits}, {peer}, {quantile}"),
                };
                self.outcome.context.push(Row::new(&name, &parameters, "us", values));
            }
        }
        Ok(())
    }
}
