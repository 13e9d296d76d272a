//! Empty UDP packets, as many as go.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{Endpoint, Meta, Options, Rule, SendError, Session};
use towpath_packet::build::Flow;
use towpath_rig::{Participants, pin};

use super::Handoff;
use crate::Settings;
use crate::echo::mac_of;
use crate::kernel_wire::{KernelWire, send_to};
use crate::report::{Outcome, Row};
use crate::station::{HOST, Serving, Station, Wire};
use crate::statistics::Pairs;
use crate::techniques::Waits;

/// Ethernet, IPv4 and UDP, and nothing else: the kernel pads it.
pub(super) const PACKET_BYTES: usize = 42;
const PORT: u16 = 9;
/// Packets made known at once.
const BATCH: usize = 32;
const PATIENCE: Duration = Duration::from_secs(5);
/// A device that stands still for 300 us after every fiftieth frame or so.
const SLOW: &str = "tx.stall=0.02,tx.stall_us=300,seed=7";

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    handoff: Option<Handoff>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 60 } else { 400 });
    let slow = Wire::FaultyTap { name: "tpbsd5".into(), faults: SLOW.into() };
    let two = |name: &str| Serving::tap(name).on(cores.0).polling();
    for (what, serving, waits) in [
        ("two cores", two("tpbsd3"), Waits::Polls),
        ("one core", Serving::tap("tpbsd4").on(cores.1), Waits::Blocks),
        ("slow device", Serving { wire: slow, ..two("tpbsd5").clone() }, Waits::Blocks),
    ] {
        let (Wire::Tap { name: tap, .. } | Wire::FaultyTap { name: tap, .. }) = &serving.wire
        else {
            anyhow::bail!("packets are sent over a TAP alone");
        };
        let station = Station::start(&serving, None)?;
        pin(cores.1)?;
        let sender = std::cell::RefCell::new(Sender::new(&station, tap, waits)?);
        let ours = || sender.borrow_mut().run(window);
        let parameters = [("packet_bytes", PACKET_BYTES as f64)];
        let row = |name: String, unit, values: &[f64]| Row::new(&name, &parameters, unit, values);
        let mut add = |name: &str, of: [&str; 2], pairs: &Pairs, cpu: &Pairs| {
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
        if let Some(Handoff { setting, direct, queued }) = handoff {
            let (rates, cpu) = both(
                settings.pairs(),
                || {
                    station.set(setting, direct)?;
                    ours()
                },
                || {
                    station.set(setting, queued)?;
                    ours()
                },
            )?;
            add(
                "handed over directly, to through a queue",
                ["directly", "through a queue"],
                &rates,
                &cpu,
            );
            station.set(setting, setting.spec().default)?;
        }
        let base = || kernel(wire, window);
        let (rates, cpu) = both(
            settings.pairs(),
            || {
                station.resume()?;
                let run = ours();
                station.pause()?;
                run
            },
            base,
        )?;
        add("Towpath to the kernel's sockets", ["Towpath", "kernel"], &rates, &cpu);
        station.resume()?;
    }
    Ok(())
}

/// Packets a second, in thousands, and time on a core for each, in microseconds.
type Run = (f64, f64);

/// Two measured in turn, by both figures.
fn both(
    count: usize,
    ours: impl Fn() -> anyhow::Result<Run>,
    base: impl Fn() -> anyhow::Result<Run>,
) -> anyhow::Result<(Pairs, Pairs)> {
    let cpu = std::cell::RefCell::new(Pairs::default());
    let rates = Pairs::measure(
        count,
        || {
            let (rate, each) = ours()?;
            cpu.borrow_mut().ours.push(each);
            Ok(rate)
        },
        || {
            let (rate, each) = base()?;
            cpu.borrow_mut().base.push(each);
            Ok(rate)
        },
    )?;
    let mut cpu = cpu.into_inner();
    // The first pair finds everything cold, and does not count.
    cpu.ours.remove(0);
    cpu.base.remove(0);
    Ok((rates, cpu))
}

/// An application that sends.
pub(super) struct Sender {
    session: Session,
    endpoint: Endpoint,
    packet: [u8; PACKET_BYTES],
    /// Takes what is sent, and is not read: so that the kernel has somebody to drop it for.
    _sink: UdpSocket,
    participants: Participants,
    waits: Waits,
}

impl Sender {
    fn new(station: &Station, tap: &str, waits: Waits) -> anyhow::Result<Sender> {
        let sink = UdpSocket::bind((HOST, PORT))?;
        let mut session = Session::attach(station.socket(), &options())?;
        let (endpoint, packet) = aim(&mut session, tap)?;
        let participants = Participants::new(&[std::process::id(), station.pid()]);
        Ok(Sender { session, endpoint, packet, _sink: sink, participants, waits })
    }

    fn run(&mut self, window: Duration) -> anyhow::Result<Run> {
        let before = self.participants.cpu_time()?;
        let (start, mut sent) = (Instant::now(), 0_u64);
        let mut last = start;
        while start.elapsed() < window {
            let got = send_batch(&mut self.session, self.endpoint, &self.packet, BATCH)?;
            sent += got as u64;
            if got > 0 {
                last = Instant::now();
                continue;
            }
            ensure!(last.elapsed() < PATIENCE, "nothing more is sent");
            if self.waits == Waits::Blocks {
                self.session.want_room(0)?;
                self.session.wait(Some(Duration::from_millis(100)))?;
            }
        }
        while self.session.unsent(0)? > 0 {
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

/// Sends up to so many; answers how many there was room for.
pub(super) fn send_batch(
    session: &mut Session,
    endpoint: Endpoint,
    packet: &[u8; PACKET_BYTES],
    count: usize,
) -> anyhow::Result<usize> {
    let mut sent = 0;
    while sent < count {
        let outcome = session.send(endpoint, PACKET_BYTES, Meta::FINISHED, |parts| {
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
    session.flush()?;
    Ok(sent)
}

/// The same with a socket.
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
