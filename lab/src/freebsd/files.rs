//! Files of 1 KB over HTTP, one connection each.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_net::Network;
use towpath_testkit::{Participants, pin};

use super::handoff::{Handoff, IN_TWO_WAYS, Refused, Run, TWO_WAYS, both, slow};
use crate::Settings;
use crate::kernel_wire::KernelWire;
use crate::process::{Process, Serving, Wire};
use crate::report::{Outcome, Row};

const FILE_BYTES: usize = 1024;
/// Clients that request files at the same time.
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
    let asleep = |tap: &str| Serving::tap(tap);
    for (what, serving) in [
        ("two cores", asleep("tpbsd7")),
        ("one core", asleep("tpbsd8").on(cores.1)),
        ("slow device", slow("tpbsd9", asleep(""))),
    ] {
        let is_slow = matches!(serving.wire, Wire::SlowTap { .. });
        let process = Process::start(&serving, None)?;
        // A thread inherits the cores of the thread that starts it: on one core, all of them share
        // it.
        let (ways, pairs, refused) = thread::scope(|scope| {
            let measuring = scope.spawn(|| -> anyhow::Result<_> {
                match serving.engine_cpu {
                    Some(cpu) => pin(cpu)?,
                    None => free(cores)?,
                }
                let network = Network::attach(process.socket())?;
                let ip = network.addresses().into_iter().find(std::net::IpAddr::is_ipv4);
                let ip = ip.context("the host got no IPv4 address")?;
                let refused = Refused::default();
                let all = Participants::new(&[std::process::id(), process.pid()]);
                let ours = || served(&network, SocketAddr::new(ip, 0), &all, window);
                let ways = handoff
                    .map(|handoff| {
                        let way =
                            |way| handoff.run(&process, way, is_slow.then_some(&refused), ours);
                        let ways =
                            both(settings.pairs(), || way(handoff.direct), || way(handoff.queued))?;
                        process.set(handoff.setting, handoff.setting.spec().default)?;
                        anyhow::Ok(ways)
                    })
                    .transpose()?;
                // A kernel socket has no slow device here, so there is no comparison.
                let own = Participants::new(&[std::process::id()]);
                let pairs = (!is_slow)
                    .then(|| both(settings.pairs(), ours, || kernel(wire, &own, window)))
                    .transpose()?;
                Ok((ways, pairs, refused))
            });
            measuring.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))?
        })?;
        let parameters = [("file_bytes", FILE_BYTES as f64)];
        let title = format!("files over HTTP, {what}");
        for (name, of, measured) in
            [(IN_TWO_WAYS, TWO_WAYS, ways), ("Towpath to the kernel", ["Towpath", "kernel"], pairs)]
        {
            let Some((rates, cpu)) = measured else { continue };
            for (unit, each, pairs) in
                [("ratio of files/s", "k/s", rates), ("ratio of CPU/file", "us of CPU", cpu)]
            {
                let row = |name: &str, unit, values: &[f64]| {
                    Row::new(&format!("{title}, {name}"), &parameters, unit, values)
                };
                outcome.rows.push(row(name, unit, &pairs.ratios()));
                outcome.context.push(row(of[0], each, &pairs.ours));
                outcome.context.push(row(of[1], each, &pairs.base));
            }
        }
        refused.rows(&title, &parameters, outcome);
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

/// A connection that a server accepts.
trait Served: Read + Write {
    fn set_patience(&self) -> std::io::Result<()>;
}

impl Served for TcpStream {
    fn set_patience(&self) -> std::io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))
    }
}

impl Served for towpath_net::TcpStream {
    fn set_patience(&self) -> std::io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))
    }
}

fn served(
    network: &Network,
    at: SocketAddr,
    all: &Participants,
    window: Duration,
) -> anyhow::Result<Run> {
    let listener = towpath_net::TcpListener::bind(network, at)?;
    listener.set_nonblocking(false)?;
    run(window, all, listener.local_addr()?, || Ok(listener.accept()?.0))
}

fn kernel(wire: &KernelWire, all: &Participants, window: Duration) -> anyhow::Result<Run> {
    let listener = wire.far_listener()?;
    run(window, all, listener.local_addr()?, || Ok(listener.accept()?.0))
}

/// Returns the files per second, in thousands, and the processor time of all participants per file.
fn run<S: Served>(
    window: Duration,
    all: &Participants,
    at: SocketAddr,
    accept: impl Fn() -> anyhow::Result<S> + Sync,
) -> anyhow::Result<Run> {
    let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let (over, served, accept) = (&over, &served, &accept);
    let connect = || TcpStream::connect(at);
    let before = all.cpu_time()?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || -> anyhow::Result<()> {
            let mut answer =
                format!("HTTP/1.0 200 OK\r\nContent-Length: {FILE_BYTES}\r\n\r\n").into_bytes();
            answer.resize(answer.len() + FILE_BYTES, b'x');
            loop {
                let mut stream = accept().context("the server's next client")?;
                // The connection that ends the server comes after the clients' connections, and may
                // be closed already. So the server does not read from it.
                if over.load(Ordering::Acquire) {
                    return Ok(());
                }
                stream.set_patience()?;
                let mut request = [0; 512];
                if stream.read(&mut request).context("the request")? > 0 {
                    stream.write_all(&answer).context("the file")?;
                }
            }
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
        let cpu = all.cpu_time()? - before;
        over.store(true, Ordering::Release);
        // The server blocks in accept. Each new connection makes it check whether the run is over.
        let until = Instant::now() + PATIENCE;
        while !serving.is_finished() && Instant::now() < until {
            let visitor = connect();
            let patience = Instant::now() + Duration::from_millis(500);
            while !serving.is_finished() && Instant::now() < patience {
                thread::sleep(Duration::from_micros(200));
            }
            drop(visitor);
        }
        serving.join().map_err(|_| anyhow::anyhow!("the server failed"))?.and(outcome)?;
        let served = served.load(Ordering::Relaxed);
        Ok((served as f64 / took / 1e3, cpu.as_secs_f64() * 1e6 / served.max(1) as f64))
    })
}
