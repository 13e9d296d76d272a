//! A server that is upgraded again and again under datagrams in both directions: is any lost, repeated
//! or out of order, and for how long does none arrive?
//!
//! `towpath serve` serves a TAP. This process is the application, and has a socket of the kernel at the
//! other end. Both send numbered datagrams at a steady rate. An upgrade starts the same program anew,
//! as another version of it would start.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{Options, Session};
use towpath_net::{Network, SessionLink, UdpSocket};

use crate::Settings;
use crate::child::{Child, Keep, OwnSocket};
use crate::programs::{Serve, own_program};
use crate::report::{Outcome, Row};

const TAP: &str = "tpupgrade0";
/// The TAP's address. The first application gets the next one.
const ADDRESS: &str = "10.95.0.1";
const PORT: u16 = 5000;
/// Datagrams per second in each direction, and their size.
const RATE: u32 = 100_000;
const BYTES: usize = 64;
/// A sender sends this many at a time.
const BURST: u32 = 50;
/// The time between two upgrades, and before the first one.
const BETWEEN: Duration = Duration::from_millis(300);
/// The kernel socket's receive buffer: a pause of 0.1 s at twice the rate.
const KERNEL_BUFFER_BYTES: usize = 64 << 20;
/// The application's receive buffers: what arrives in 80 ms.
const RECEIVE_SLOTS: u32 = 8192;
/// The last datagram of a flow.
const LAST: u64 = u64::MAX;
/// The longest time without a datagram, after which the flow is over.
const OVER: Duration = Duration::from_secs(2);

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let upgrades = match settings {
        Settings { quick: true, .. } => 5,
        Settings { full: true, .. } => 200,
        Settings { .. } => 40,
    };
    let mut outcome = Outcome {
        how: format!(
            "towpath serve on a TAP; one application and the kernel send each other numbered datagrams \
             of {BYTES} bytes, {RATE} a second in each direction; {RECEIVE_SLOTS} receive buffers; an upgrade every {} ms; before, as \
             long without upgrades; all wait as by default, nothing pinned",
            BETWEEN.as_millis()
        ),
        ..Outcome::default()
    };
    let Some(towpath) = outcome.needs(own_program("towpath")) else { return Ok(outcome) };
    let row = |name: String, unit: &str, value: f64| {
        Row::new(&name, &[("upgrades", upgrades as f64)], unit, &[value])
    };
    let [quiet, upgraded] = [0, upgrades].map(|count| run(&towpath, upgrades, count));
    let upgraded = upgraded?;
    for (name, count) in upgraded.dropped {
        let name = format!("datagrams dropped, kernel to application, {name}");
        outcome.context.push(row(name, "datagrams", count as f64));
    }
    for (name, flow) in upgraded.named() {
        let count = |what: &str, value: u64| {
            row(format!("datagrams {what}, {name}"), "datagrams", value as f64).at_most(0.0)
        };
        outcome.rows.extend([
            count("lost", flow.lost),
            count("repeated", flow.repeated),
            count("out of order", flow.reordered),
        ]);
        outcome.context.extend([
            row(format!("datagrams received, {name}"), "datagrams", flow.received as f64),
            row(format!("longest time without a datagram, {name}"), "ms", flow.longest_ms),
        ]);
    }
    for (name, flow) in quiet?.named() {
        outcome.context.extend([
            row(format!("without upgrades: datagrams lost, {name}"), "datagrams", flow.lost as f64),
            row(format!("without upgrades: longest time, {name}"), "ms", flow.longest_ms),
        ]);
    }
    Ok(outcome)
}

/// What a receiver found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    received: u64,
    lost: u64,
    repeated: u64,
    reordered: u64,
    longest_ms: f64,
}

/// The flows of both directions.
struct Flows {
    to_kernel: Found,
    to_application: Found,
    /// Where packets to the application were dropped.
    dropped: [(&'static str, u64); 3],
}

impl Flows {
    fn named(self) -> [(&'static str, Found); 2] {
        [("application to kernel", self.to_kernel), ("kernel to application", self.to_application)]
    }
}

/// Sends numbered datagrams at the rate until it is over, and then the last one several times. Returns
/// how many.
fn send(
    over: &AtomicBool,
    mut send: impl FnMut(&[u8]) -> std::io::Result<usize>,
) -> anyhow::Result<u64> {
    let mut datagram = [0; BYTES];
    let (mut number, period) = (0u64, Duration::from_secs(1) * BURST / RATE);
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            datagram[..8].copy_from_slice(&number.to_le_bytes());
            send(&datagram)?;
            number += 1;
        }
        // A sender that a full queue held up does not make up for it.
        next = (next + period).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    datagram[..8].copy_from_slice(&LAST.to_le_bytes());
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(10));
        send(&datagram)?;
    }
    Ok(number)
}

/// Receives until the last datagram, or until none comes any more. `sent`: how many there were.
fn receive(
    sent: &AtomicU64,
    mut receive: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
) -> anyhow::Result<Found> {
    let (mut found, mut seen) = (Found::default(), Vec::<bool>::new());
    let (mut expected, mut last) = (0u64, Instant::now());
    let mut buffer = [0; BYTES];
    loop {
        match receive(&mut buffer) {
            Ok(count) => ensure!(count == BYTES, "a datagram of {count} bytes"),
            // The last one was lost, too.
            Err(_) if last.elapsed() >= OVER => break,
            Err(error) => return Err(error).context("receiving"),
        }
        let number = buffer.first_chunk().map_or(LAST, |eight| u64::from_le_bytes(*eight));
        if number == LAST {
            break;
        }
        let now = Instant::now();
        found.longest_ms = found.longest_ms.max(now.duration_since(last).as_secs_f64() * 1e3);
        last = now;
        let at = usize::try_from(number)?;
        ensure!(number < sent.load(Ordering::Relaxed) + 10_000_000, "datagram {number} is none");
        if seen.len() <= at {
            seen.resize(at + 1, false);
        }
        if std::mem::replace(&mut seen[at], true) {
            found.repeated += 1;
            continue;
        }
        found.received += 1;
        found.reordered += u64::from(number < expected);
        expected = expected.max(number + 1);
    }
    Ok(found)
}

/// Starts everything, and upgrades the server `count` times in the time for `upgrades`.
fn run(towpath: &Path, upgrades: usize, count: usize) -> anyhow::Result<Flows> {
    let files = OwnSocket::new()?;
    let _keeper = Child::start(&Keep { directory: files.directory().to_owned() })?;
    let device = format!("tap:{TAP}");
    let network = format!("{ADDRESS}/24");
    let arguments = ["--device", &device, "--address", &network];
    let (serve, first) = Serve::start(towpath, (files.directory(), "upgrades"), &arguments)?;
    // Another one, with buffers for what arrives during a pause.
    drop(first);
    let options = Options { receive_slots: RECEIVE_SLOTS, ..SessionLink::options("upgrades") };
    let network = Network::builder().over(Session::attach(&serve.socket, &options)?)?;
    let (application, kernel) = sockets(&network)?;
    let to_application = application.local_addr()?;
    let to_kernel: SocketAddr = (ADDRESS.parse::<IpAddr>()?, PORT).into();
    let over = AtomicBool::new(false);
    let sent = [const { AtomicU64::new(0) }; 2];
    let failed = |_| anyhow::anyhow!("a thread of a flow failed");
    thread::scope(|scope| {
        let (over, sent, application, kernel) = (&over, &sent, &application, &kernel);
        let receivers = [
            scope.spawn(move || receive(&sent[0], |bytes| kernel.recv(bytes))),
            scope.spawn(move || {
                receive(&sent[1], |bytes| application.recv_from(bytes).map(|(count, _)| count))
            }),
        ];
        let senders = [
            scope.spawn(move || send(over, |bytes| application.send_to(bytes, to_kernel))),
            scope.spawn(move || send(over, |bytes| kernel.send_to(bytes, to_application))),
        ];
        let outcome = upgrade(towpath, &serve, upgrades, count);
        over.store(true, Ordering::Relaxed);
        let mut counts = [0; 2];
        for (count, sender) in counts.iter_mut().zip(senders) {
            *count = sender.join().map_err(failed)??;
        }
        let [to_kernel, to_application] = receivers.map(|one| one.join().map_err(failed));
        let (mut to_kernel, mut to_application) = (to_kernel??, to_application??);
        outcome?;
        to_kernel.lost = counts[0] - to_kernel.received;
        to_application.lost = counts[1] - to_application.received;
        let dropped = dropped(&serve, application)?;
        Ok(Flows { to_kernel, to_application, dropped })
    })
}

/// Returns the application's socket and the kernel's, which know each other's link addresses.
fn sockets(network: &Network) -> anyhow::Result<(UdpSocket, std::net::UdpSocket)> {
    let own = network.addresses().into_iter().find(IpAddr::is_ipv4);
    let own = own.context("the application has no address")?;
    let application = UdpSocket::bind(network, SocketAddr::new(own, PORT))?;
    let kernel = std::net::UdpSocket::bind((ADDRESS, PORT))?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&kernel, KERNEL_BUFFER_BYTES).or_else(
        |_| rustix::net::sockopt::set_socket_recv_buffer_size(&kernel, KERNEL_BUFFER_BYTES),
    )?;
    kernel.set_read_timeout(Some(OVER))?;
    application.set_read_timeout(Some(OVER))?;
    kernel.send_to(&[0; BYTES], application.local_addr()?)?;
    let (_, from) = application.recv_from(&mut [0; BYTES])?;
    application.send_to(&[0; BYTES], from)?;
    kernel.recv(&mut [0; BYTES])?;
    Ok((application, kernel))
}

/// Returns where packets to the application were dropped.
fn dropped(serve: &Serve, application: &UdpSocket) -> anyhow::Result<[(&'static str, u64); 3]> {
    // A process in a network namespace of its own sees another one's /sys.
    let link = Command::new("ip").args(["-s", "-j", "link", "show", TAP]).output()?;
    let link: serde_json::Value = serde_json::from_slice(&link.stdout).context("ip -s link")?;
    let by_tap = link[0]["stats64"]["tx"]["dropped"].as_u64().context("ip -s link")?;
    let report = towpath_client::report(&serve.socket)?;
    let endpoints = report["sessions"][0]["endpoints"].as_array().cloned().unwrap_or_default();
    let counter =
        |endpoint: &serde_json::Value| endpoint["counters"]["rx_dropped_no_buffers"].as_u64();
    let by_session = endpoints.iter().filter_map(counter).sum();
    Ok([
        ("by the TAP's queue", by_tap),
        ("by the session without buffers", by_session),
        ("by the application's socket", application.dropped()?),
    ])
}

/// Upgrades the server `count` times, in the time for `upgrades`.
fn upgrade(towpath: &Path, serve: &Serve, upgrades: usize, count: usize) -> anyhow::Result<()> {
    for number in 0..upgrades {
        thread::sleep(BETWEEN);
        if number < count {
            let output = Command::new(towpath).arg("upgrade").arg(&serve.socket).output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.success(), "towpath upgrade: {said}");
        }
    }
    thread::sleep(BETWEEN);
    Ok(())
}
