//! Files of 1 KB over HTTP, a connection for each.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_net::Network;
use towpath_rig::pin;

use super::Handoff;
use crate::Settings;
use crate::kernel_wire::KernelWire;
use crate::report::{Outcome, Row};
use crate::station::{Serving, Station};
use crate::statistics::Pairs;

const FILE_BYTES: usize = 1024;
/// Clients that ask at the same time.
const CLIENTS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /file HTTP/1.0\r\n\r\n";

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    handoff: Option<Handoff>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 60 } else { 400 });
    for (what, tap, engine_cpu) in
        [("two cores", "tpbsd7", None), ("one core", "tpbsd8", Some(cores.1))]
    {
        let mut serving = Serving::tap(tap);
        serving.engine_cpu = engine_cpu;
        let station = Station::start(&serving, None)?;
        // Threads stay where those are that start them: on one core, all of them.
        let (rates, pairs) = thread::scope(|scope| {
            let measuring = scope.spawn(|| -> anyhow::Result<_> {
                match engine_cpu {
                    Some(cpu) => pin(cpu)?,
                    None => free(cores)?,
                }
                let network = Network::attach(station.socket())?;
                let ip = network.addresses().into_iter().find(std::net::IpAddr::is_ipv4);
                let ip = ip.context("the host got no IPv4 address")?;
                let ours = || served(&network, SocketAddr::new(ip, 0), window);
                let rates = handoff
                    .map(|Handoff { setting, direct, queued }| {
                        let with = |value| {
                            station.set(setting, value)?;
                            ours()
                        };
                        let pairs =
                            Pairs::measure(settings.pairs(), || with(direct), || with(queued))?;
                        station.set(setting, setting.spec().default)?;
                        anyhow::Ok(pairs)
                    })
                    .transpose()?;
                let pairs = Pairs::measure(settings.pairs(), ours, || kernel(wire, window))?;
                Ok((rates, pairs))
            });
            measuring.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))?
        })?;
        let parameters = [("file_bytes", FILE_BYTES as f64)];
        let row = |name: &str, unit, values: &[f64]| {
            Row::new(&format!("files over HTTP, {what}, {name}"), &parameters, unit, values)
        };
        if let Some(rates) = rates {
            let name = "handed over directly, to through a queue";
            outcome.rows.push(row(name, "ratio of files/s", &rates.ratios()));
            outcome.context.push(row("directly", "k/s", &rates.ours));
            outcome.context.push(row("through a queue", "k/s", &rates.base));
        }
        let name = "Towpath to the kernel";
        outcome.rows.push(row(name, "ratio of files/s", &pairs.ratios()));
        outcome.context.push(row("Towpath", "k/s", &pairs.ours));
        outcome.context.push(row("kernel", "k/s", &pairs.base));
    }
    Ok(())
}

/// Lets the calling thread run on both cores.
fn free(cores: (usize, usize)) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cores.0);
    set.set(cores.1);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn served(network: &Network, at: SocketAddr, window: Duration) -> anyhow::Result<f64> {
    let listener = towpath_net::TcpListener::bind(network, at)?;
    listener.set_nonblocking(false)?;
    let at = listener.local_addr()?;
    run(
        window,
        || {
            let stream = listener.accept()?.0;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        },
        || Ok(std::net::TcpStream::connect(at)?),
    )
}

fn kernel(wire: &KernelWire, window: Duration) -> anyhow::Result<f64> {
    let listener = wire.far_listener()?;
    let at = listener.local_addr()?;
    run(
        window,
        || {
            let stream = listener.accept()?.0;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        },
        || Ok(std::net::TcpStream::connect(at)?),
    )
}

/// Thousands of files a second.
fn run<S: Read + Write>(
    window: Duration,
    accept: impl Fn() -> anyhow::Result<S> + Sync,
    connect: impl Fn() -> anyhow::Result<std::net::TcpStream> + Sync,
) -> anyhow::Result<f64> {
    let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let (over, served, connect, accept) = (&over, &served, &connect, &accept);
    thread::scope(|scope| {
        let serving = scope.spawn(move || -> anyhow::Result<()> {
            let mut answer =
                format!("HTTP/1.0 200 OK\r\nContent-Length: {FILE_BYTES}\r\n\r\n").into_bytes();
            answer.resize(answer.len() + FILE_BYTES, b'x');
            // The one who ends it comes as a client, after the others.
            while !over.load(Ordering::Acquire) {
                let mut stream = accept()?;
                let mut request = [0; 512];
                if stream.read(&mut request).context("the request")? > 0 {
                    stream.write_all(&answer).context("the file")?;
                }
            }
            Ok(())
        });
        let start = Instant::now();
        let asking: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(move || -> anyhow::Result<()> {
                    let mut file = Vec::with_capacity(2 * FILE_BYTES);
                    while start.elapsed() < window {
                        let mut stream = connect()?;
                        stream.set_read_timeout(Some(PATIENCE))?;
                        stream.write_all(REQUEST)?;
                        file.clear();
                        stream.read_to_end(&mut file).context("the answer")?;
                        ensure!(file.len() > FILE_BYTES, "{} bytes of an answer", file.len());
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let mut outcome: anyhow::Result<()> = Ok(());
        for client in asking {
            let one = client.join().map_err(|_| anyhow::anyhow!("a client failed")).and_then(|o| o);
            outcome = outcome.and(one);
        }
        let took = start.elapsed().as_secs_f64();
        over.store(true, Ordering::Release);
        // The server waits for somebody; each who comes lets it look whether it is over.
        for _ in 0..8 {
            if serving.is_finished() {
                break;
            }
            if let Ok(mut stream) = connect() {
                stream.set_read_timeout(Some(Duration::from_millis(500)))?;
                let _ = stream.write_all(REQUEST);
                let _ = stream.read(&mut [0; 16]);
            }
        }
        serving.join().map_err(|_| anyhow::anyhow!("the server failed"))?.and(outcome)?;
        Ok(served.load(Ordering::Relaxed) as f64 / took / 1e3)
    })
}
