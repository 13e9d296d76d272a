//! Packets from outside: one application behind the Towpath server, beside DPDK's testpmd, both
//! over AF_XDP at one end of a veth pair.
//!
//! The sender at the other end is the same program for both, testpmd, as one AF_XDP socket sends.
//! The kernel receives within the sender's system call, on the sender's core: it copies each packet
//! into the receiver's memory, and runs the receiver's XDP program. So processor time is that of
//! all threads of the receiver, and of all softirqs.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{Options, QueuePair, Rule, Session, WaitStrategy};
use towpath_testkit::{
    End, Namespace, connect, process_cpu_time, softirq_time, this_thread_cpu_time,
};

use super::bench::Bench;
use super::program::{Files, Program, Project};
use super::rounds;
use super::testpmd::{Memory, arguments, received, stats};
use crate::process::{Process, Serving, Wire, XdpMode};
use crate::report::Row;
use crate::statistics::{Measured, Summary, in_turn, ratios};
use crate::trip::{PATIENCE, in_thread};

/// The limits of Towpath's ratios to the better kind of testpmd.
const PACKETS_AT_LEAST: f64 = 0.95;
const TIME_AT_MOST: f64 = 1.2;
/// The bytes of a packet.
const PACKET_BYTES: usize = 64;
/// The addresses of the two ends, and the application's. All are of a network for tests (RFC 2544).
const SENDS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const OWN: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);
const RECEIVES: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The UDP port of both ends.
const PORT: u16 = 9;
/// Packets that the application takes from its queue at once.
const BATCH: usize = 64;
/// The time to fill queues and caches after a pause.
const SETTLE: Duration = Duration::from_millis(20);
/// The kernel samples the time of softirqs by ticks of up to 10 ms, so short windows tell nothing.
const SHORTEST: Duration = Duration::from_millis(100);

/// How testpmd receives: with its default, busy polling by system calls, or without.
const KINDS: [(&str, &str); 2] = [("testpmd", ""), ("testpmd, busy_budget=0", ",busy_budget=0")];

/// What a window of a receiver gave.
#[derive(Clone, Copy, Debug)]
struct Window {
    mpps: f64,
    /// Processor time per packet, in nanoseconds.
    time_ns: f64,
}

impl Window {
    fn of(packets: u64, took: Duration, time: Duration) -> anyhow::Result<Window> {
        ensure!(packets > 0, "no packet arrived in {took:?}");
        Ok(Window {
            mpps: packets as f64 / took.as_secs_f64() / 1e6,
            time_ns: time.as_nanos() as f64 / packets as f64,
        })
    }
}

/// A veth pair from a sender to a receiver in a namespace of its own, and the sender.
struct Sender {
    program: Program,
}

impl Sender {
    /// Starts testpmd, which sends UDP packets to an Ethernet address, and is stopped when this
    /// returns.
    fn start(
        files: &Files,
        words: &[String],
        (name, interface): (&str, &str),
        cpu: usize,
        to: [u8; 6],
    ) -> anyhow::Result<Sender> {
        let mac = to.map(|byte| format!("{byte:02x}")).join(":");
        let forwards = [
            "--forward-mode=txonly".to_owned(),
            format!("--txpkts={PACKET_BYTES}"),
            format!("--eth-peer=0,{mac}"),
            format!("--tx-ip={SENDS},{RECEIVES}"),
            format!("--tx-udp={PORT},{PORT}"),
        ];
        let device = [format!("net_af_xdp0,iface={interface}")];
        let name = format!("{name}-sends");
        let arguments = arguments(&name, Memory::PLAIN, cpu, &device, &forwards);
        let mut program = Program::start(files, &name, &[words, &arguments].concat(), None)?;
        program.say("start")?;
        // The answer comes when testpmd sends.
        stats(&mut program, 1)?;
        program.pause()?;
        Ok(Sender { program })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.program.kill();
    }
}

/// Makes a veth pair to a new namespace. Returns that and the Ethernet address there.
fn wire(near: &str, far: &str) -> anyhow::Result<(Namespace, [u8; 6])> {
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    let _ = here.silence();
    let _ = there.silence();
    connect(
        &End { namespace: &here, name: near, addresses: &[] },
        &End { namespace: &there, name: far, addresses: &[format!("{OWN}/24").parse()?] },
        None,
    )?;
    let mac = there.netlink()?.link(far)?.mac.context("a veth without an Ethernet address")?;
    Ok((there, mac))
}

/// Towpath: an engine that polls, and an application that sleeps, on one core.
struct Towpath {
    sender: Sender,
    session: Session,
    server: Process,
    cpu: usize,
    _far: Namespace,
}

impl Towpath {
    /// Server and sender are stopped when this returns.
    fn start(bench: &Bench, words: &[String], mode: XdpMode) -> anyhow::Result<Towpath> {
        let name = mode.name();
        let [near, far] = ["s", "r"].map(|end| format!("tpx{end}{name}"));
        let (namespace, _) = wire(&near, &far)?;
        let serving = Serving {
            wire: Wire::Xdp { name: far, mode, own: OWN, lease: RECEIVES },
            ..Serving::tap("").on(bench.cores.0).polling()
        };
        let server = Process::start(&serving, Some(&namespace))?;
        let options = Options {
            name: "receives".into(),
            receive_slots: 1024,
            wait_strategy: WaitStrategy::Block,
            ..Options::default()
        };
        let mut session = Session::attach(server.socket(), &options)?;
        session.open(&Rule::new().udp(PORT))?;
        let mac = session.info().mac;
        let process = (&*format!("xdp-{name}"), &*near);
        let sender = Sender::start(&bench.files, words, process, bench.cores.1, mac.octets())?;
        server.pause()?;
        Ok(Towpath { sender, session, server, cpu: bench.cores.0, _far: namespace })
    }

    fn run(&mut self, window: Duration) -> anyhow::Result<Window> {
        self.server.resume()?;
        self.sender.program.resume()?;
        let Towpath { session, server, cpu, .. } = self;
        let measured = in_thread(Some(*cpu), || {
            receive(session, SETTLE)?;
            let time = || -> anyhow::Result<Duration> {
                Ok(process_cpu_time(server.pid())? + this_thread_cpu_time()? + softirq_time()?)
            };
            let before = time()?;
            let (packets, took) = receive(session, window)?;
            Window::of(packets, took, time()?.saturating_sub(before))
        });
        self.sender.program.pause()?;
        self.server.pause()?;
        measured
    }
}

/// Receives for a time. Returns the number of packets, and the time.
fn receive(session: &mut Session, window: Duration) -> anyhow::Result<(u64, Duration)> {
    let (start, mut packets) = (Instant::now(), 0);
    loop {
        let took = start.elapsed();
        if took >= window {
            return Ok((packets, took));
        }
        ensure!(session.wait(Some(PATIENCE))?, "no packet arrived in {PATIENCE:?}");
        let mut sum = 0_u64;
        while session.receiver().receive(QueuePair::FIRST, BATCH, |packet| {
            let bytes = packet.contiguous().unwrap_or_default();
            packets += u64::from(bytes.len() == PACKET_BYTES);
            sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        })? > 0
        {}
        std::hint::black_box(sum);
    }
}

/// testpmd as the receiver.
struct Pmd {
    sender: Sender,
    receiver: Program,
    _far: Namespace,
}

impl Pmd {
    /// Both processes are stopped when this returns. `option`: of the driver.
    fn start(bench: &Bench, words: &[String], number: usize, option: &str) -> anyhow::Result<Pmd> {
        let [near, far] = ["s", "r"].map(|end| format!("tpx{end}pmd{number}"));
        let (namespace, mac) = wire(&near, &far)?;
        let name = format!("xdp-receives-{number}");
        let device = [format!("net_af_xdp0,iface={far}{option}")];
        let forwards = ["--forward-mode=rxonly".to_owned()];
        let arguments = arguments(&name, Memory::PLAIN, bench.cores.0, &device, &forwards);
        let words_of = [words, &arguments].concat();
        let mut receiver = Program::start(&bench.files, &name, &words_of, Some(&namespace))?;
        receiver.say("start")?;
        let process = (&*format!("xdp-{number}"), &*near);
        let sender = Sender::start(&bench.files, words, process, bench.cores.1, mac)?;
        receiver.pause()?;
        Ok(Pmd { sender, receiver, _far: namespace })
    }

    fn run(&mut self, window: Duration) -> anyhow::Result<Window> {
        self.receiver.resume()?;
        self.sender.program.resume()?;
        let measured = self.measure(window);
        self.sender.program.pause()?;
        self.receiver.pause()?;
        measured
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<Window> {
        std::thread::sleep(SETTLE);
        let pid = self.receiver.pid();
        let time = || anyhow::Ok(process_cpu_time(pid)? + softirq_time()?);
        let before = received(&stats(&mut self.receiver, 1)?);
        let (start, started) = (Instant::now(), time()?);
        std::thread::sleep(window);
        let packets = received(&stats(&mut self.receiver, 1)?).saturating_sub(before);
        Window::of(packets, start.elapsed(), time()?.saturating_sub(started))
    }
}

impl Drop for Pmd {
    fn drop(&mut self) {
        self.receiver.kill();
    }
}

/// The values of one receiver: packets and processor time, of each round.
#[derive(Clone, Default)]
struct Windows {
    mpps: Vec<f64>,
    time_ns: Vec<f64>,
}

/// Measures both modes beside both kinds of testpmd. The faster kind is the peer.
pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(words) = bench.find(Project::Dpdk) else { return Ok(()) };
    let mut kinds = Vec::new();
    for (number, (name, option)) in KINDS.into_iter().enumerate() {
        match Pmd::start(bench, &words, number, option) {
            Ok(pmd) => kinds.push((name, pmd)),
            Err(error) => bench.missing(format!("DPDK, AF_XDP, {name}: {error:#}")),
        }
    }
    if kinds.is_empty() {
        return Ok(());
    }
    for mode in XdpMode::ALL {
        let mut ours = Towpath::start(bench, &words, mode)?;
        let windows = in_rounds(bench, &mut ours, &mut kinds);
        let failed = |why| bench.missing(format!("DPDK, AF_XDP, {}: {why}", mode.name()));
        let Some(windows) = rounds::settled(windows, failed)? else { continue };
        let [ours, bases @ ..] = windows.as_slice() else { continue };
        context(bench, &format!("{}: Towpath", mode.name()), ours);
        let bases: Vec<_> = kinds.iter().map(|(name, _)| *name).zip(bases).collect();
        for (name, base) in &bases {
            context(bench, &format!("beside {}: {name}", mode.name()), base);
        }
        let median = |windows: &Windows| Summary::of(&windows.mpps).median;
        let faster =
            |(_, a): &(_, &Windows), (_, b): &(_, &Windows)| median(a).total_cmp(&median(b));
        if let Some((name, base)) = bases.into_iter().max_by(faster) {
            headline(bench, (mode, name), ours, base);
        }
    }
    Ok(())
}

/// Measures Towpath and all kinds of testpmd in turn. Returns the windows of each, Towpath first.
fn in_rounds(
    bench: &Bench,
    ours: &mut Towpath,
    kinds: &mut [(&str, Pmd)],
) -> anyhow::Result<Vec<Windows>> {
    let window = bench.window.max(SHORTEST);
    let mut times = vec![Vec::new(); 1 + kinds.len()];
    let (first, rest) = times.split_first_mut().context("no receiver")?;
    let note = |times: &mut Vec<f64>, got: anyhow::Result<Window>| {
        let Window { mpps, time_ns } = got?;
        times.push(time_ns);
        anyhow::Ok(mpps)
    };
    let mut own = || note(first, ours.run(window));
    let pmds = kinds.iter_mut().zip(rest);
    let mut pmds: Vec<_> = pmds
        .map(|((_, pmd), times)| move || rounds::of_peer(note(times, pmd.run(window))))
        .collect();
    let mut things: Vec<Measured<'_>> = vec![&mut own];
    things.extend(pmds.iter_mut().map(|one| one as Measured<'_>));
    let packets = in_turn(bench.settings.pairs(), &mut things)?;
    // As of the packets, the first round does not count.
    let windows = packets.into_iter().zip(times);
    Ok(windows.map(|(mpps, times)| Windows { mpps, time_ns: times[1..].to_vec() }).collect())
}

fn row(name: &str, unit: &str, values: &[f64]) -> Row {
    Row::new(name, &[("packet_bytes", PACKET_BYTES as f64)], unit, values)
}

fn context(bench: &mut Bench, name: &str, windows: &Windows) {
    bench.outcome.context.extend([
        row(&format!("AF_XDP, {name}"), "Mpps", &windows.mpps),
        row(&format!("AF_XDP, {name}: processor time"), "ns", &windows.time_ns),
    ]);
}

/// Adds the ratios to the better kind. testpmd receives in native mode, so the limits are those of
/// that mode.
fn headline(bench: &mut Bench, (mode, kind): (XdpMode, &str), ours: &Windows, base: &Windows) {
    let name = format!("AF_XDP, {}: Towpath to {kind}", mode.name());
    let ratio = |what: &str, ours: &[f64], base: &[f64]| {
        row(&format!("{name}: {what}"), "ratio", &ratios(ours, base))
    };
    let mut packets = ratio("packets/s", &ours.mpps, &base.mpps);
    let mut time = ratio("processor time per packet", &ours.time_ns, &base.time_ns);
    if mode == XdpMode::Native {
        (packets, time) = (packets.at_least(PACKETS_AT_LEAST), time.at_most(TIME_AT_MOST));
    }
    bench.outcome.rows.extend([packets, time]);
}
