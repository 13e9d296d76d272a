//! Empty UDP packets, as fast as possible.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session};
use towpath_packet::build::Flow;
use towpath_testkit::{Participants, pin};

use super::handoff::{Handoff, IN_TWO_WAYS, Refused, Run, TWO_WAYS, both, slow};
use crate::Settings;
use crate::echo::mac_of;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::{KernelWire, send_to};
use crate::process::{HOST, Process, Serving, Wire};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary, in_turn, ratios};
use crate::techniques::Waits;

/// Ethernet, IPv4 and UDP headers without a payload; the kernel pads the frame.
pub(super) const PACKET_BYTES: usize = 42;
const PORT: u16 = 9;
/// Packets per flush.
const BATCH: usize = 32;
const PATIENCE: Duration = Duration::from_secs(5);
/// Packets per flush, where the experiment varies them.
const BATCHES: [usize; 4] = [1, 4, 16, 64];

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    handoff: Option<Handoff>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 60 } else { 400 });
    let asleep = |name: &str, cpu| Serving::tap(name).on(cpu);
    for (what, serving, waits) in [
        ("two cores", asleep("tpbsd3", cores.0).polling(), Waits::Polls),
        ("one core", asleep("tpbsd4", cores.1), Waits::Blocks),
        ("slow device", slow("tpbsd5", asleep("", cores.0)), Waits::Blocks),
    ] {
        let is_slow = matches!(serving.wire, Wire::SlowTap { .. });
        let process = Process::start(&serving, None)?;
        pin(cores.1)?;
        let sender = std::cell::RefCell::new(Sender::new(&process, serving.wire.tap()?, waits)?);
        let ours = || sender.borrow_mut().run(window, BATCH);
        let parameters = [("packet_bytes", PACKET_BYTES as f64)];
        let row = |name: String, unit, values: &[f64]| Row::new(&name, &parameters, unit, values);
        let add = |outcome: &mut Outcome, name: &str, of: [&str; 2], pairs: &Pairs, cpu: &Pairs| {
            let title = format!("empty UDP packets, {what}, {name}");
            outcome.rows.push(row(title.clone(), "ratio of packets/s", &pairs.ratios()));
            outcome.rows.push(row(title, "ratio of CPU/packet", &cpu.ratios()));
            for (who, (rate, cpu)) in
                of.into_iter().zip([(&pairs.ours, &cpu.ours), (&pairs.base, &cpu.base)])
            {
                let title = format!("empty UDP packets, {what}, {who}");
                outcome.context.push(row(title.clone(), "k/s", rate));
                outcome.context.push(row(title, "us of CPU", cpu));
            }
        };
        if let Some(handoff) = handoff {
            let refused = Refused::default();
            let way = |way| handoff.run(&process, way, is_slow.then_some(&refused), ours);
            let (rates, cpu) =
                both(settings.pairs(), || way(handoff.direct), || way(handoff.queued))?;
            add(outcome, IN_TWO_WAYS, TWO_WAYS, &rates, &cpu);
            process.set(handoff.setting, handoff.setting.spec().default)?;
            refused.rows(&format!("empty UDP packets, {what}"), &parameters, outcome);
        }
        // A kernel socket has no slow device here, so there is no comparison.
        if is_slow {
            continue;
        }
        let (rates, cpu) = both(
            settings.pairs(),
            || {
                process.resume()?;
                let run = ours();
                process.pause()?;
                run
            },
            || kernel(wire, window),
        )?;
        add(outcome, "Towpath to the kernel's sockets", ["Towpath", "kernel"], &rates, &cpu);
        process.resume()?;
    }
    by_batch(settings, cores, wire, handoff, window, outcome)
}

/// Measures packets per second by the packets per flush: few, where direct handoff can gain, and
/// many, where a batch can.
fn by_batch(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    handoff: Option<Handoff>,
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let Some(handoff) = handoff else { return Ok(()) };
    let serving = Serving::tap("tpbsd6").on(cores.0).polling();
    let process = Process::start(&serving, None)?;
    pin(cores.1)?;
    let sender = std::cell::RefCell::new(Sender::new(&process, serving.wire.tap()?, Waits::Polls)?);
    let mut curves = [Vec::new(), Vec::new(), Vec::new()];
    for batch in BATCHES {
        let way = |way| {
            process.resume()?;
            process.set(handoff.setting, way)?;
            let (rate, _) = sender.borrow_mut().run(window / 2, batch)?;
            process.pause()?;
            anyhow::Ok(rate)
        };
        let values = in_turn(
            settings.pairs(),
            &mut [&mut || way(handoff.direct), &mut || way(handoff.queued), &mut || {
                Ok(kernel(wire, window / 2)?.0)
            }],
        )?;
        let parameters = [("packets_at_once", batch as f64)];
        let row = |name: &str, unit, values: &[f64]| {
            Row::new(&format!("empty UDP packets, {name}"), &parameters, unit, values)
        };
        let direct = ratios(&values[0], &values[1]);
        outcome.rows.push(row(IN_TWO_WAYS, "ratio of packets/s", &direct));
        let names = [TWO_WAYS[0], TWO_WAYS[1], "kernel"];
        for ((name, values), curve) in names.into_iter().zip(&values).zip(&mut curves) {
            outcome.context.push(row(name, "k/s", values));
            curve.push([batch as f64, Summary::of(values).median]);
        }
    }
    process.resume()?;
    let figure = Figure::new(
        "packets",
        "Empty UDP packets by how many are made known at once",
        Axis::log("packets at once", ""),
        Axis::linear("packets", "1000/s"),
    );
    let names = ["handed over directly", "through a queue", "kernel's sockets, one call each"];
    let series = names.into_iter().zip(curves).map(|(name, curve)| Series::line(name, curve));
    outcome.figures.push(series.fold(figure, Figure::with));
    Ok(())
}

/// An application that sends.
pub(super) struct Sender {
    session: Session,
    endpoint: Endpoint,
    packet: [u8; PACKET_BYTES],
    /// Receives the packets and is never read, so that the kernel drops them at a socket.
    _sink: UdpSocket,
    participants: Participants,
    waits: Waits,
}

impl Sender {
    fn new(process: &Process, tap: &str, waits: Waits) -> anyhow::Result<Sender> {
        let sink = UdpSocket::bind((HOST, PORT))?;
        let mut session = Session::attach(process.socket(), &options())?;
        let (endpoint, packet) = aim(&mut session, tap)?;
        let participants = Participants::new(&[std::process::id(), process.pid()]);
        Ok(Sender { session, endpoint, packet, _sink: sink, participants, waits })
    }

    fn run(&mut self, window: Duration, batch: usize) -> anyhow::Result<Run> {
        let before = self.participants.cpu_time()?;
        let (start, mut sent) = (Instant::now(), 0_u64);
        let mut last = start;
        while start.elapsed() < window {
            let got = send_batch(&mut self.session, self.endpoint, &self.packet, batch)?;
            sent += got as u64;
            if got > 0 {
                last = Instant::now();
                continue;
            }
            ensure!(last.elapsed() < PATIENCE, "nothing more is sent");
            if self.waits == Waits::Blocks {
                self.session.sender().want_room(QueuePair::FIRST)?;
                self.session.wait(Some(Duration::from_millis(100)))?;
            }
        }
        while self.session.sender().unsent(QueuePair::FIRST)? > 0 {
            ensure!(last.elapsed() < PATIENCE, "packets are not sent");
            thread::sleep(Duration::from_micros(50));
        }
        let took = start.elapsed().as_secs_f64();
        let cpu = self.participants.cpu_time()? - before;
        Ok((sent as f64 / took / 1e3, cpu.as_secs_f64() * 1e6 / sent.max(1) as f64))
    }
}

pub(super) fn options() -> Options {
    Options { name: "sender".into(), transmit_slots: 1024, ..Options::default() }
}

/// Opens an endpoint, and makes an empty UDP packet to the kernel's side.
pub(super) fn aim(
    session: &mut Session,
    tap: &str,
) -> anyhow::Result<(Endpoint, [u8; PACKET_BYTES])> {
    let (ip, _) = session.info().ipv4.context("a session without an IPv4 address")?;
    let endpoint = session.open(&Rule::new().udp(PORT))?;
    let flow =
        Flow::v4().macs(session.info().mac, mac_of(tap)?).addresses(ip, HOST).ports(PORT, PORT);
    let frame = flow.udp(&[]);
    Ok((endpoint, *frame.first_chunk().context("a frame without headers")?))
}

/// Sends at most `count` packets; returns the number that there was room for.
pub(super) fn send_batch(
    session: &mut Session,
    endpoint: Endpoint,
    packet: &[u8; PACKET_BYTES],
    count: usize,
) -> anyhow::Result<usize> {
    let mut sent = 0;
    while sent < count {
        let outcome = session.sender().send(endpoint, PACKET_BYTES, Meta::FULL, |parts| {
            if let [part] = parts {
                part.copy_from_slice(packet);
            }
        });
        match outcome {
            Ok(()) => sent += 1,
            Err(SendError::Full) => break,
            Err(error) => return Err(error.into()),
        }
    }
    session.sender().flush()?;
    Ok(sent)
}

/// Sends the same packets by a kernel socket.
fn kernel(wire: &KernelWire, window: Duration) -> anyhow::Result<Run> {
    let sink = wire.far_udp(0, 1)?.pop().context("no socket")?;
    let socket = wire.near_udp(0)?;
    let to = sink.local_addr()?;
    let participants = Participants::new(&[std::process::id()]);
    let before = participants.cpu_time()?;
    let (start, mut sent) = (Instant::now(), 0_u64);
    while start.elapsed() < window {
        for _ in 0..BATCH {
            sent += u64::from(send_to(&socket, &[], to)?);
        }
    }
    let took = start.elapsed().as_secs_f64();
    let cpu = participants.cpu_time()? - before;
    Ok((sent as f64 / took / 1e3, cpu.as_secs_f64() * 1e6 / sent.max(1) as f64))
}
