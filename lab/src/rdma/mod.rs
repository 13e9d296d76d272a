//! RDMA between two hosts, each a Towpath server on one end of a veth pair, by RoCEv2: beside one flow
//! of the kernel's TCP over the same kind of pair, with TSO, GSO and GRO off.

mod cost;
mod hosts;
mod wire;

use std::cell::RefCell;
use std::time::Duration;

use towpath_testkit::Namespace;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::process::XdpMode;
use crate::report::{Outcome, Row};
use crate::statistics::{Summary, in_turn, ratios};
use cost::Moved;
use hosts::{Direction, Hosts, MOST_BYTES, Packets, TRIP_BYTES};
use wire::Wire;

/// The bytes of a request, and of a write into a TCP socket.
const BLOCK_BYTES: usize = 64 << 10;
/// The interface's MTU, and that of the path: the most bytes of payload of an RDMA packet. The former
/// has room for 80 bytes of headers, as soft-RoCE counts.
const LARGE: Mtu = Mtu { interface: 4176, path: 4096 };
const SMALL: Mtu = Mtu { interface: 1500, path: 1024 };
/// The lower limit of the throughput of writes to that of TCP, with large packets.
const WRITE_AT_LEAST: f64 = 0.8;

/// The MTU of the interface and the path.
#[derive(Clone, Copy, Debug)]
struct Mtu {
    interface: u32,
    path: u32,
}

impl Mtu {
    fn parameters(self) -> [(&'static str, f64); 2] {
        [("mtu_bytes", f64::from(self.interface)), ("path_mtu_bytes", f64::from(self.path))]
    }
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    let _ = here.silence();
    let _ = there.silence();
    let mut bench = Bench {
        settings,
        window: Duration::from_millis(if settings.quick { 100 } else { 500 }),
        there,
        wires: 0,
        outcome: Outcome { how: HOW.into(), ..Outcome::default() },
        curves: Vec::new(),
    };
    for mtu in [LARGE, SMALL] {
        for mode in XdpMode::ALL {
            bench.one(mtu, mode)?;
        }
    }
    Ok(bench.finish())
}

const HOW: &str = "\
    two servers, each on one end of a veth pair by AF_XDP, and an application of each, one of which \
    requests; TCP: the kernel's, one flow in writes of 64 KiB, on a pair of its own, or where the row says \
    so on the servers' pair, with their filters attached; TSO, GSO and GRO off on both pairs; up to 16 \
    requests under way, of 64 KiB where the row has no number; an MTU of 4176, because a path MTU of 4096 \
    needs 80 bytes of headers; engines have wait=block unless the row names another strategy; the server's \
    default is spin-then-block; applications sleep when idle; nothing pinned; processor time: that of both \
    servers, or of both ends of TCP, per path MTU of payload";

/// One of those that are compared in each round: our writes or reads, by the engines' wait strategy, or TCP.
#[derive(Clone, Copy, Debug)]
enum Contender {
    Block,
    SpinThenBlock,
    Auto,
    /// On a pair without servers.
    Tcp,
    TcpOnTheSamePair,
}

impl Contender {
    /// All in the order in which a round runs them, with the ends of the names of their rows.
    const ALL: [(Contender, &str); 5] = [
        (Contender::Block, ""),
        (Contender::SpinThenBlock, ", wait=spin-then-block"),
        (Contender::Auto, ", wait=auto"),
        (Contender::Tcp, ", beside it TCP"),
        (Contender::TcpOnTheSamePair, ", beside it TCP on the same pair"),
    ];
}

/// What all comparisons share.
struct Bench {
    settings: Settings,
    window: Duration,
    there: Namespace,
    /// Veth pairs made so far.
    wires: u8,
    outcome: Outcome,
    /// The bandwidth of writes by their length, with a name for each curve.
    curves: Vec<(String, Vec<[f64; 2]>)>,
}

impl Bench {
    fn wire(&mut self, mtu: Mtu) -> anyhow::Result<Wire> {
        self.wires += 1;
        Wire::new(&self.there, self.wires, mtu.interface)
    }

    /// Measures an MTU in a mode.
    fn one(&mut self, mtu: Mtu, mode: XdpMode) -> anyhow::Result<()> {
        let (served, untouched) = (self.wire(mtu)?, self.wire(mtu)?);
        let mut hosts = Hosts::start(&served, mode)?;
        served.without_large_packets()?;
        self.beside_tcp(mtu, mode, &mut hosts, [&served, &untouched])?;
        hosts.set_wait("block")?;
        self.trips(mtu, mode, &mut hosts)?;
        self.sizes(mtu, mode, &mut hosts)
    }

    /// Compares writes and reads with TCP over the servers' pair and over one of its own.
    fn beside_tcp(
        &mut self,
        mtu: Mtu,
        mode: XdpMode,
        hosts: &mut Hosts,
        [served, untouched]: [&Wire; 2],
    ) -> anyhow::Result<()> {
        let (window, path) = (self.window, mtu.path);
        let is_short = self.settings.quick || mtu.path != LARGE.path;
        let count = self.settings.pairs() * if is_short { 1 } else { 3 };
        let (servers, own) = (hosts.pids(), [std::process::id()]);
        for (direction, word) in Direction::ALL {
            let (mut packets, hosts) = (Vec::new(), RefCell::new(&mut *hosts));
            let run = |wait| {
                let mut hosts = hosts.borrow_mut();
                hosts.set_wait(wait)?;
                Moved::by(&servers, path, || hosts.run(direction, BLOCK_BYTES, window))
            };
            let tcp = |wire: &Wire| {
                hosts.borrow().set_wait("block")?;
                Moved::by(&own, path, || wire.tcp(BLOCK_BYTES, window))
            };
            let values = in_turn(
                count,
                // In the order of `Contender::ALL`.
                &mut [
                    &mut || {
                        let before = hosts.borrow().packets()?;
                        let moved = run("block")?;
                        packets.push(hosts.borrow().packets()?.since(before));
                        Ok(moved)
                    },
                    &mut || run("spin-then-block"),
                    &mut || run("auto"),
                    &mut || tcp(untouched),
                    &mut || tcp(served),
                ],
            )?;
            // The first round warms up.
            self.report(
                mtu,
                &format!("{}: {word}", mode.name()),
                direction,
                &values,
                &packets[1..],
            );
        }
        Ok(())
    }

    /// Adds the rows of one direction. `values`: for each of [`Contender::ALL`], those of each round.
    fn report(
        &mut self,
        mtu: Mtu,
        name: &str,
        direction: Direction,
        values: &[Vec<Moved>],
        packets: &[Packets],
    ) {
        let parameters = mtu.parameters();
        let row = |what: &str, unit: &str, values: &[f64]| {
            Row::new(&format!("{name}{what}"), &parameters, unit, values)
        };
        let of = |one: Contender, what: fn(&Moved) -> f64| -> Vec<f64> {
            values[one as usize].iter().map(what).collect()
        };
        let rate = |one| of(one, |moved| moved.gbps);
        let is_limited = direction == Direction::Write && mtu.path == LARGE.path;
        let at_least = is_limited.then_some(WRITE_AT_LEAST);
        for (what, ours, theirs, at_least) in [
            (" to TCP", Contender::Block, Contender::Tcp, at_least),
            (" to TCP on the same pair", Contender::Block, Contender::TcpOnTheSamePair, at_least),
            (", wait=spin-then-block, to TCP", Contender::SpinThenBlock, Contender::Tcp, at_least),
            (", wait=auto, to TCP", Contender::Auto, Contender::Tcp, None),
        ] {
            let row = row(what, "ratio", &ratios(&rate(ours), &rate(theirs)));
            self.outcome.rows.push(Row { at_least, ..row });
        }
        for (one, what) in Contender::ALL {
            let cost = of(one, |moved| moved.us_per_packet);
            let interrupts = of(one, |moved| moved.softirq_us_per_packet);
            self.outcome.context.extend([
                row(what, "Gbit/s", &rate(one)),
                row(&format!("{what}: processor time"), "us", &cost),
                row(&format!("{what}: soft interrupts, most of it within that"), "us", &interrupts),
            ]);
        }
        let count = |what: fn(&Packets) -> u64| -> Vec<f64> {
            packets.iter().map(|packets| what(packets) as f64).collect()
        };
        self.outcome.context.extend([
            row(": packets sent", "packets", &count(|packets| packets.sent)),
            row(": packets sent again", "packets", &count(|packets| packets.again)),
        ]);
    }

    /// Measures the round trip of a small write, until it is complete.
    fn trips(&mut self, mtu: Mtu, mode: XdpMode, hosts: &mut Hosts) -> anyhow::Result<()> {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..self.settings.pairs() {
            let latency = hosts.trips(self.window / 4)?;
            for (times, quantile) in times.iter_mut().zip([0.5, 0.99]) {
                times.push(latency.quantile_us(quantile));
            }
        }
        let mut parameters = mtu.parameters().to_vec();
        parameters.push(("request_bytes", TRIP_BYTES as f64));
        for (times, quantile) in times.iter().zip(["p50", "p99"]) {
            let name = format!("{}: WRITE until it is complete, {quantile}", mode.name());
            self.outcome.context.push(Row::new(&name, &parameters, "us", times));
        }
        Ok(())
    }

    /// Measures the bandwidth of writes by their length.
    fn sizes(&mut self, mtu: Mtu, mode: XdpMode, hosts: &mut Hosts) -> anyhow::Result<()> {
        let window = self.window / 4;
        let mut curve = Vec::new();
        for shift in (6..=MOST_BYTES.ilog2()).step_by(if self.settings.quick { 7 } else { 2 }) {
            let bytes = 1 << shift;
            let run = |_| hosts.run(Direction::Write, bytes, window);
            let values =
                (0..self.settings.pairs()).map(run).collect::<anyhow::Result<Vec<f64>>>()?;
            let mut parameters = mtu.parameters().to_vec();
            parameters.push(("request_bytes", bytes as f64));
            let name = format!("{}: WRITE by length", mode.name());
            self.outcome.context.push(Row::new(&name, &parameters, "Gbit/s", &values));
            curve.push([bytes as f64, Summary::of(&values).median]);
        }
        self.curves.push((format!("{}, path MTU {}", mode.name(), mtu.path), curve));
        Ok(())
    }

    fn finish(mut self) -> Outcome {
        let (length, rate) = (Axis::log("request", "B"), Axis::log("bandwidth", "Gbit/s"));
        let figure = Figure::new("sizes", "Bandwidth of WRITE by length", length, rate);
        let add =
            |figure: Figure, (name, curve): (String, _)| figure.with(Series::line(&name, curve));
        let figure = self.curves.into_iter().fold(figure, add);
        self.outcome.figures.push(figure);
        self.outcome
    }
}
