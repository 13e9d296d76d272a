//! Several engine threads: the server's processor time per packet with two lanes, beside that with
//! one, on an interface with four hardware queues.
//!
//! The interface is one end of a veth pair. At the other end, in a namespace of its own, the
//! kernel's UDP sockets send the numbered datagrams of many flows to an application at this end,
//! which sends each one back. The server runs in a process of its own.
//!
//! A sleep costs as much as several packets, and two engines that block sleep more often than one,
//! each after fewer packets. So the limit holds for engines that take packets at ticks, which shows
//! what the lanes themselves cost. Engines that block are measured, too.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{Endpoint, Options, QueuePair, Rule, SendError, Session, Setting};
use towpath_netlink::Veth;
use towpath_testkit::{Namespace, process_cpu_time};

use crate::Settings;
use crate::process::{Process, Serving, Wire, XdpMode};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

const INTERFACE: &str = "tplanes1";
const FAR_INTERFACE: &str = "tplanes2";
const QUEUES: u32 = 4;
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const APPLICATION: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);
const PORT: u16 = 7;

/// Flows, and the datagrams of each that are in flight.
const FLOWS: usize = 32;
const WINDOW: u32 = 16;
/// After this time without an answer, a datagram counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// The wait strategy of engines that take packets at ticks.
const TICKS: &str = "timer-driven";
const TICK_HZ: u64 = 500;
/// The upper limit of the processor time per packet with two lanes, to one.
const TWO_LANES_AT_MOST: f64 = 1.1;

/// What one run measured.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// The server's processor time per packet, in nanoseconds.
    ns: f64,
    /// The engines' sleeps, and the drivers' system calls, per thousand packets.
    sleeps: f64,
    calls: f64,
    /// Packets per second, in millions.
    mpps: f64,
    /// The share of received packets that the least busy lane had, in percent.
    least_percent: f64,
    /// Datagrams that came after a later one of their flow, and lost ones.
    overtaken: u64,
    lost: u64,
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let there = wire()?;
    let window = Duration::from_millis(if settings.quick { 400 } else { 1000 });
    let mut outcome = Outcome {
        how: format!(
            "{FLOWS} flows of UDP datagrams from kernel sockets, {WINDOW} of each in flight, over a \
             veth pair with {QUEUES} hardware queues to an application, which sends each one back; \
             server in a process of its own, engines with wait=timer-driven (tick_hz={TICK_HZ}) and \
             wait=block, the application blocks, nothing pinned; processor time of the whole server, \
             packets in both directions"
        ),
        ..Outcome::default()
    };
    for mode in XdpMode::ALL {
        for wait in [TICKS, "block"] {
            let (mut two, mut one) = (Vec::new(), Vec::new());
            let pairs = Pairs::measure(
                settings.pairs(),
                || run((mode, wait), 2, window, &there, &mut two),
                || run((mode, wait), 1, window, &there, &mut one),
            )?;
            add((mode, wait), &pairs, &one[1..], &two[1..], &mut outcome);
        }
    }
    Ok(outcome)
}

fn add(
    (mode, wait): (XdpMode, &str),
    pairs: &Pairs,
    one: &[Run],
    two: &[Run],
    outcome: &mut Outcome,
) {
    let row = |name: &str, unit: &str, values: &[f64]| {
        Row::new(&format!("{}, {wait}: {name}", mode.name()), &[], unit, values)
    };
    let of = |runs: &[Run], value: fn(&Run) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    let both = || one.iter().chain(two);
    let overtaken: Vec<f64> = both().map(|run| run.overtaken as f64).collect();
    let lost: Vec<f64> = both().map(|run| run.lost as f64).collect();
    let ratio = row("processor time per packet, two lanes to one", "ratio", &pairs.ratios());
    outcome.rows.extend([
        if wait == TICKS { ratio.at_most(TWO_LANES_AT_MOST) } else { ratio },
        row("datagrams that overtook one of their flow", "datagrams", &[overtaken.iter().sum()])
            .at_most(0.0),
    ]);
    outcome.context.extend([
        row("processor time per packet, one lane", "ns", &pairs.base),
        row("processor time per packet, two lanes", "ns", &pairs.ours),
        row("sleeps per 1000 packets, one lane", "sleeps", &of(one, |run| run.sleeps)),
        row("sleeps per 1000 packets, two lanes", "sleeps", &of(two, |run| run.sleeps)),
        row(
            "system calls of the driver per 1000 packets, one lane",
            "calls",
            &of(one, |run| run.calls),
        ),
        row(
            "system calls of the driver per 1000 packets, two lanes",
            "calls",
            &of(two, |run| run.calls),
        ),
        row("packets, one lane", "Mpps", &of(one, |run| run.mpps)),
        row("packets, two lanes", "Mpps", &of(two, |run| run.mpps)),
        row("packets of the lane with fewer", "%", &of(two, |run| run.least_percent)),
        row("datagrams lost", "datagrams", &[lost.iter().sum()]),
    ]);
}

/// Makes the veth pair, and returns the namespace of its far end.
fn wire() -> anyhow::Result<Namespace> {
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    let _ = here.silence();
    let _ = there.silence();
    let mut netlink = here.netlink()?;
    netlink.create_veth(&Veth {
        peer_place: Some(there.place()),
        queues: Some(QUEUES),
        ..Veth::new(INTERFACE, FAR_INTERFACE)
    })?;
    let ends = [(here.netlink()?, INTERFACE, NEAR), (there.netlink()?, FAR_INTERFACE, FAR)];
    for (mut netlink, name, address) in ends {
        netlink.add_address(name, format!("{address}/24").parse()?)?;
        netlink.set_up(name)?;
    }
    Ok(there)
}

/// Runs a server with so many lanes for a window. Returns its processor time per packet, and adds
/// the run to `runs`.
fn run(
    (mode, wait): (XdpMode, &str),
    lanes: usize,
    window: Duration,
    there: &Namespace,
    runs: &mut Vec<Run>,
) -> anyhow::Result<f64> {
    let device = Wire::Xdp { name: INTERFACE.into(), mode, own: NEAR, lease: APPLICATION };
    let server = Process::start(&Serving { wire: device, lanes, ..Serving::tap("") }, None)?;
    server.set(Setting::TickHz, TICK_HZ)?;
    server.set(Setting::Wait, Setting::Wait.parse(wait)?)?;
    let options = Options { name: "echo".into(), receive_slots: 1024, ..Options::default() };
    let mut session = Session::attach(server.socket(), &options)?;
    let endpoint = session.open(&Rule::new())?;
    there.netlink()?.add_neighbour(
        FAR_INTERFACE,
        APPLICATION.into(),
        session.info().mac.octets(),
    )?;
    let stop = AtomicBool::new(false);
    let run = thread::scope(|scope| {
        let echo = scope.spawn(|| echo(&mut session, endpoint, &stop));
        let asking = scope.spawn(|| there.run(|| ask(&server, window)));
        let run = asking.join();
        stop.store(true, Ordering::Relaxed);
        let echoed = echo.join();
        let failed = || anyhow::anyhow!("a thread failed");
        echoed.map_err(|_| failed())??;
        let mut run = run.map_err(|_| failed())???;
        run.least_percent = least_percent(&server)?;
        anyhow::Ok(run)
    })?;
    ensure!(run.ns.is_finite() && run.ns > 0.0, "no packet came back with {lanes} lanes");
    runs.push(run);
    Ok(run.ns)
}

/// Returns the share of received packets that the least busy lane had, in percent.
fn least_percent(server: &Process) -> anyhow::Result<f64> {
    let report = towpath_client::report(server.socket())?;
    let count = |lane: &serde_json::Value| lane["rx_packets"].as_f64();
    let lanes = report["device"]["lanes"].as_array().cloned().unwrap_or_default();
    let counts: Vec<f64> = lanes.iter().filter_map(count).collect();
    let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(if counts.is_empty() { 100.0 } else { least / counts.iter().sum::<f64>() * 100.0 })
}

/// Sends every packet back to its sender.
fn echo(session: &mut Session, endpoint: Endpoint, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut packets = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if !session.wait(Some(Duration::from_millis(20)))? {
            continue;
        }
        session.receiver().receive(QueuePair::FIRST, 64, |packet| {
            let Some(bytes) = packet.contiguous() else { return };
            let mut bytes = bytes.to_vec();
            // IPv4 and UDP: the checksums of the reversed packet are the same.
            if bytes.len() > 42 && bytes[12..14] == [8, 0] {
                reverse(&mut bytes);
                packets.push(bytes);
            }
        })?;
        for packet in packets.drain(..) {
            while let Err(error) = session.sender().send_bytes(endpoint, &packet) {
                ensure!(error == SendError::Full, "{error}");
                session.sender().flush()?;
                session.sender().want_room(QueuePair::FIRST)?;
                session.wait(Some(Duration::from_secs(1)))?;
            }
        }
        session.sender().flush()?;
    }
    Ok(())
}

/// Exchanges the addresses and the ports of a packet.
fn reverse(packet: &mut [u8]) {
    for (first, second, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        let (front, back) = packet.split_at_mut(second);
        front[first..first + len].swap_with_slice(&mut back[..len]);
    }
}

/// A flow of numbered datagrams.
struct Flow {
    socket: UdpSocket,
    sent: u32,
    /// The number of the first datagram that is still waited for.
    waits_from: u32,
    /// One more than the highest number that came back.
    seen: u32,
    answered: u32,
    overtaken: u64,
}

impl Flow {
    fn open() -> anyhow::Result<Flow> {
        let socket = UdpSocket::bind((FAR, 0))?;
        socket.connect((APPLICATION, PORT))?;
        socket.set_nonblocking(true)?;
        Ok(Flow { socket, sent: 0, waits_from: 0, seen: 0, answered: 0, overtaken: 0 })
    }

    /// Takes all answers, and sends as many datagrams. Returns the number of answers.
    fn turn(&mut self) -> u64 {
        let (mut got, mut buffer) = (0, [0; 64]);
        while let Ok(len) = self.socket.recv(&mut buffer) {
            let number =
                buffer[..len].first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
            got += 1;
            self.answered += 1;
            self.overtaken += u64::from(number < self.seen);
            self.seen = self.seen.max(number.saturating_add(1));
            self.waits_from = self.waits_from.max(self.seen);
        }
        while self.sent.saturating_sub(self.waits_from) < WINDOW {
            let mut datagram = [0; 32];
            datagram[..4].copy_from_slice(&self.sent.to_le_bytes());
            if self.socket.send(&datagram).is_err() {
                break;
            }
            self.sent += 1;
        }
        got
    }

    /// Returns how many datagrams did not come back, but for those that are still waited for.
    fn lost(&self) -> u64 {
        u64::from(self.sent.min(self.waits_from).saturating_sub(self.answered))
    }

    /// Gives up the datagrams in flight.
    fn give_up(&mut self) {
        self.waits_from = self.sent;
    }
}

/// Sends for a window, after a while in which all threads come to work.
fn ask(server: &Process, window: Duration) -> anyhow::Result<Run> {
    let mut flows = (0..FLOWS).map(|_| Flow::open()).collect::<anyhow::Result<Vec<_>>>()?;
    exchange(&mut flows, window / 4)?;
    let counters = server.counters()?;
    let before = process_cpu_time(server.pid())?;
    let (packets, took) = exchange(&mut flows, window)?;
    let used = process_cpu_time(server.pid())?.saturating_sub(before);
    let after = server.counters()?;
    let count = |name: &str| (after[name] - counters[name]) as f64;
    // Each datagram goes to the application and back.
    let packets = (packets * 2) as f64;
    Ok(Run {
        ns: used.as_nanos() as f64 / packets,
        sleeps: count("sleeps") / packets * 1e3,
        calls: count("driver_calls") / packets * 1e3,
        mpps: packets / took.as_secs_f64() / 1e6,
        least_percent: 0.0,
        overtaken: flows.iter().map(|flow| flow.overtaken).sum(),
        lost: flows.iter().map(Flow::lost).sum(),
    })
}

/// Exchanges datagrams for a time. Returns the number of answers, and the time that passed.
fn exchange(flows: &mut [Flow], time: Duration) -> anyhow::Result<(u64, Duration)> {
    let start = Instant::now();
    let mut packets = 0;
    while start.elapsed() < time {
        let got: u64 = flows.iter_mut().map(Flow::turn).sum();
        packets += got;
        if got > 0 {
            continue;
        }
        let mut polled: Vec<PollFd<'_>> =
            flows.iter().map(|flow| PollFd::new(&flow.socket, PollFlags::IN)).collect();
        let (tv_sec, tv_nsec) = (LOST_AFTER.as_secs() as i64, i64::from(LOST_AFTER.subsec_nanos()));
        let timeout = Timespec { tv_sec, tv_nsec };
        if poll(&mut polled, Some(&timeout)).context("waiting for answers")? == 0 {
            flows.iter_mut().for_each(Flow::give_up);
        }
    }
    Ok((packets, start.elapsed()))
}
