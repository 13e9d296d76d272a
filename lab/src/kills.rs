//! Servers that are killed again and again under TCP: are connections lost, are bytes wrong, and for
//! how long does each connection stand still?
//!
//! `towpath serve` serves a TAP, and starts another server after each that is killed. The application
//! is this process, and the kernel is at the other end of its connections, half of which send to it.
//! Every sender writes a block in each period, so a connection on which nothing arrives for longer is
//! one that stands still.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use towpath_net::{Network, TcpListener};

use crate::Settings;
use crate::child::{Child, OwnSocket, Role};
use crate::programs::{Serve, own_program};
use crate::report::{Outcome, Row};

const TAP: &str = "tpkills0";
/// The TAP's address. The first application gets the next one.
const ADDRESS: &str = "10.94.0.1";
const PORT: u16 = 80;
const CONNECTIONS: usize = 50;
/// What a sender writes in each period.
const BLOCK_BYTES: usize = 4096;
const PERIOD: Duration = Duration::from_millis(5);
/// The least and the most time from one kill to the next. The moments are uniform in between.
const BETWEEN: [Duration; 2] = [Duration::from_millis(80), Duration::from_millis(160)];
/// The longest time for which a connection stands still after a kill, as the 99th percentile.
const PAUSE_MS: f64 = 50.0;
/// The time limit of a read: a connection that stands still for longer is lost.
const LOST: Duration = Duration::from_secs(20);

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let kills = match settings {
        Settings { quick: true, .. } => 20,
        Settings { full: true, .. } => 1000,
        Settings { .. } => 200,
    };
    let mut outcome = Outcome {
        how: format!(
            "towpath serve on a TAP; {CONNECTIONS} connections between the kernel and one \
             application, half of them in each direction; each sender writes {BLOCK_BYTES} bytes \
             every {} ms; a kill every {} to {} ms, at moments from a seed; windows with and without \
             a kill in turn; all wait as by default, nothing pinned",
            PERIOD.as_millis(),
            BETWEEN[0].as_millis(),
            BETWEEN[1].as_millis()
        ),
        ..Outcome::default()
    };
    let towpath = match own_program("towpath") {
        Ok(towpath) => towpath,
        Err(why) => {
            outcome.missing.push(why);
            return Ok(outcome);
        }
    };
    let run = run(&towpath, kills)?;
    let row = |name: &str, unit: &str, values: &[f64]| {
        Row::new(name, &[("connections", CONNECTIONS as f64)], unit, values)
    };
    outcome.rows.extend([
        row("connections lost", "connections", &[run.lost as f64]).at_most(0.0),
        row("kills that the application's session outlived", "of 1", &[run.resumed(kills)])
            .at_least(1.0),
        row(
            "longest pause of each connection after each kill, p99",
            "ms",
            &[at(&run.killed, 0.99)],
        )
        .at_most(PAUSE_MS),
    ]);
    outcome.context.extend([
        row("longest pause after each kill, p50", "ms", &[at(&run.killed, 0.5)]),
        row("longest pause after each kill, maximum", "ms", &[at(&run.killed, 1.0)]),
        row("longest pause in each window without a kill, p50", "ms", &[at(&run.quiet, 0.5)]),
        row("longest pause in each window without a kill, p99", "ms", &[at(&run.quiet, 0.99)]),
        row("bytes that arrived and were right", "MB", &[run.bytes as f64 / 1e6]),
    ]);
    for (phase, count) in &run.places {
        outcome.context.push(row(&format!("kills of the engine in {phase}"), "kills", &[*count]));
    }
    Ok(outcome)
}

/// Returns a quantile of sorted values.
fn at(sorted: &[f64], quantile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * quantile).round() as usize).copied().unwrap_or(f64::NAN)
}

/// What happened.
struct Run {
    lost: usize,
    resumptions: u64,
    bytes: u64,
    /// For each kill and connection, the longest pause until the next window, in milliseconds,
    /// sorted; and the same for windows without a kill.
    killed: Vec<f64>,
    quiet: Vec<f64>,
    /// How many kills met the engine in each phase of a poll iteration.
    places: BTreeMap<String, f64>,
}

impl Run {
    fn resumed(&self, kills: usize) -> f64 {
        self.resumptions as f64 / kills as f64
    }
}

/// The receiver of a connection, as the others see it.
#[derive(Default)]
struct Progress {
    bytes: AtomicU64,
    /// The longest pause in this window, in nanoseconds.
    longest_ns: AtomicU64,
}

/// Returns the byte at a place of a stream.
fn byte_at(stream: usize, place: u64) -> u8 {
    let word = (place / 8).wrapping_add(stream as u64 * 1_000_003);
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[(place % 8) as usize]
}

/// Writes a block in each period until it is over.
fn send(mut to: impl Write, stream: usize, over: &AtomicBool) -> std::io::Result<()> {
    let (mut place, mut next) = (0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        let block: Vec<u8> =
            (place..place + BLOCK_BYTES as u64).map(|place| byte_at(stream, place)).collect();
        to.write_all(&block)?;
        place += BLOCK_BYTES as u64;
        next += PERIOD;
        // After a pause, the sender does not make up for what it has not written.
        next = next.max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Reads and checks bytes until the other end closes the connection.
fn receive(mut from: impl Read, stream: usize, progress: &Progress) -> anyhow::Result<()> {
    let (mut buffer, mut place, mut last) = (vec![0; 1 << 16], 0, Instant::now());
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("reading"),
        };
        let now = Instant::now();
        let pause = now.duration_since(last).as_nanos() as u64;
        last = now;
        for byte in &buffer[..count] {
            ensure!(*byte == byte_at(stream, place), "stream {stream}: byte {place} is wrong");
            place += 1;
        }
        progress.longest_ns.fetch_max(pause, Ordering::Relaxed);
        progress.bytes.store(place, Ordering::Relaxed);
    }
}

/// The moments of the kills: numbers from 0 to 1, from a seed (splitmix64).
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64;
        BETWEEN[0] + (BETWEEN[1] - BETWEEN[0]).mul_f64(part)
    }
}

/// Starts everything, kills servers, and waits for the connections.
fn run(towpath: &Path, kills: usize) -> anyhow::Result<Run> {
    let files = OwnSocket::new()?;
    let _keeper = Child::start(&Role::Keep { directory: files.directory().to_owned() })?;
    let device = format!("tap:{TAP}");
    let network = format!("{ADDRESS}/24");
    let arguments = ["--device", &device, "--address", &network];
    let (serve, network) = Serve::start(towpath, (files.directory(), "kills"), &arguments)?;
    let own = network.addresses().into_iter().find(IpAddr::is_ipv4);
    let own = own.context("the application has no address")?;
    let listener = TcpListener::bind(&network, SocketAddr::new(own, PORT))?;
    let mut pairs = Vec::new();
    for _ in 0..CONNECTIONS {
        let kernel = std::net::TcpStream::connect(SocketAddr::new(own, PORT))?;
        let (application, _) = listener.accept()?;
        kernel.set_read_timeout(Some(LOST))?;
        application.set_read_timeout(Some(LOST))?;
        pairs.push((kernel, application));
    }
    let progress: Vec<Progress> = pairs.iter().map(|_| Progress::default()).collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for (number, ((kernel, application), progress)) in pairs.iter().zip(&progress).enumerate() {
            if number % 2 == 0 {
                senders.push(scope.spawn(move || {
                    send(kernel, number, over)
                        .and_then(|()| kernel.shutdown(std::net::Shutdown::Write))
                }));
                receivers.push(scope.spawn(move || receive(application, number, progress)));
            } else {
                senders.push(scope.spawn(move || {
                    send(application, number, over)
                        .and_then(|()| application.shutdown(std::net::Shutdown::Write))
                }));
                receivers.push(scope.spawn(move || receive(kernel, number, progress)));
            }
        }
        let windows = kill_servers(&serve, &progress, kills);
        over.store(true, Ordering::Relaxed);
        let failed = |_| anyhow::anyhow!("a thread of a connection failed");
        let mut lost = 0;
        for sender in senders {
            lost += usize::from(sender.join().map_err(failed)?.is_err());
        }
        for receiver in receivers {
            lost += usize::from(receiver.join().map_err(failed)?.is_err());
        }
        let [mut killed, mut quiet] = windows?;
        killed.sort_by(f64::total_cmp);
        quiet.sort_by(f64::total_cmp);
        let bytes = progress.iter().map(|one| one.bytes.load(Ordering::Relaxed)).sum();
        let (resumptions, places) = (resumptions(&network, &serve)?, places(&serve.log()?));
        Ok(Run { lost, resumptions, bytes, killed, quiet, places })
    })
}

/// Kills servers, with a quiet window before each kill. Returns the longest pauses of all
/// connections in the windows with and without a kill, in milliseconds.
fn kill_servers(
    serve: &Serve,
    progress: &[Progress],
    kills: usize,
) -> anyhow::Result<[Vec<f64>; 2]> {
    let mut moments = Moments(14);
    let [mut killed, mut quiet] = [const { Vec::new() }; 2];
    let take = |to: &mut Vec<f64>| {
        let longest = progress.iter().map(|one| one.longest_ns.swap(0, Ordering::Relaxed));
        to.extend(longest.map(|ns| ns as f64 / 1e6));
    };
    // Until every connection runs.
    thread::sleep(Duration::from_millis(500));
    let mut unused = Vec::new();
    for _ in 0..kills {
        take(&mut unused);
        thread::sleep(moments.next());
        take(&mut quiet);
        let before = serve.kill_server()?;
        thread::sleep(moments.next());
        // A pause that has not ended belongs to this kill, too.
        let until = Instant::now() + LOST;
        while serve.server().is_none_or(|now| now == before) {
            ensure!(Instant::now() < until, "no other server followed");
            thread::sleep(Duration::from_millis(1));
        }
        take(&mut killed);
    }
    Ok([killed, quiet])
}

/// Returns how often the application claimed its session.
fn resumptions(network: &Network, serve: &Serve) -> anyhow::Result<u64> {
    let report = towpath_client::report(&serve.socket)?;
    ensure!(report["sessions"].as_array().is_some_and(|all| all.len() == 1), "one session");
    if network.addresses().is_empty() {
        bail!("the application has lost its addresses");
    }
    Ok(serve.log()?.matches("claimed session=").count() as u64)
}

/// Counts the phases in which the keeper found the engine of each killed server, by its log.
fn places(log: &str) -> BTreeMap<String, f64> {
    let mut places = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("killed by signal 9")) {
        let place = line.split_once("(engine 0: ").and_then(|(_, rest)| rest.split_once(')'));
        let place = place.map_or("an unknown phase", |(place, _)| place);
        let phase = place.split([' ', ',']).next().unwrap_or(place);
        *places.entry(phase.to_owned()).or_insert(0.0) += 1.0;
    }
    places
}
