//! TCP at the same throughput both ways: an application's stack behind a server and a TAP, and the
//! kernel's own across a veth pair; and the idle time of the processor.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_net::Network;
use towpath_protocol::settings::Setting;
use towpath_testkit::{Participants, Usage};

use super::counted::{Counted, counted};
use super::left::{Left, missing};
use super::way::WINDOW_S;
use crate::Settings;
use crate::kernel_wire::{KernelWire, read};
use crate::process::{HOST, Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

/// Megabits per second, the paper's and more, with the lower limit of the idle time to Linux's by
/// the scheduler's account.
const RATES: [(u32, f64); 3] = [(83, 0.97), (400, 0.95), (2000, 0.85)];
/// Bytes of one write.
const WRITE_BYTES: usize = 8192;
const PATIENCE: Duration = Duration::from_secs(10);
const TAP: &str = "tpkar1";

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    // Nothing is pinned: idle time is that of both cores.
    let wire = KernelWire::new("tpkarv", 1500)?;
    let process = Process::start(&Serving::tap(TAP), None)?;
    process.set(Setting::Wait, Setting::Wait.spec().default)?;
    let network = Network::attach(process.socket())?;
    let with_server = Participants::new(&[std::process::id(), process.pid()]);
    let alone = Participants::new(&[std::process::id()]);
    outcome.how += &format!(
        "; TCP in writes of {WRITE_BYTES} bytes, paced, engine and application wait as by default, \
         nothing pinned, both ends of a connection counted: the kernel is one of them on both sides"
    );
    let rates = if settings.quick { &RATES[1..2] } else { &RATES[..] };
    let left = RefCell::new(None);
    let run = |participants: &Participants, pace, ends: Ends<'_>| {
        run(participants, left.borrow_mut().as_mut(), pace, ends)
    };
    for way in [By::Account, By::Count] {
        if way == By::Count {
            *left.borrow_mut() = Some(Left::start(cores, settings)?);
        }
        for &(mbit_s, least) in rates {
            let pace = Pace { mbit_s, window };
            let kernel = || run(&alone, pace, Ends::of_kernel(&wire)?);
            let sending = || run(&with_server, pace, Ends::sending(&network)?);
            let receiving = || run(&with_server, pace, Ends::receiving(&network)?);
            way.compare(settings, (mbit_s, "sending", least), sending, kernel, outcome)?;
            way.compare(settings, (mbit_s, "receiving", least), receiving, kernel, outcome)?;
        }
    }
    Ok(())
}

/// The source of the idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The time that the scheduler's account of participants leaves.
    Account,
    /// The count of a thread on each core.
    Count,
}

impl By {
    fn idle(self, sample: &Sample) -> f64 {
        match self {
            By::Account => sample.idle(),
            By::Count => sample.left.unwrap_or(f64::NAN),
        }
    }

    fn compare(
        self,
        settings: Settings,
        (mbit_s, way, least): (u32, &str, f64),
        ours: impl Fn() -> anyhow::Result<Sample>,
        kernel: impl Fn() -> anyhow::Result<Sample>,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let samples = RefCell::new([Vec::new(), Vec::new()]);
        let idle = |side: usize, sample: Sample| {
            samples.borrow_mut()[side].push(sample);
            self.idle(&sample)
        };
        let pairs =
            Pairs::measure(settings.pairs(), || Ok(idle(0, ours()?)), || Ok(idle(1, kernel()?)))?;
        let parameters = [("mbit_per_s", f64::from(mbit_s))];
        let counted = if self == By::Count { " counted" } else { "" };
        let name = format!("TCP {way}, idle time{counted}, Towpath to Linux");
        let row = Row::new(&name, &parameters, "ratio", &pairs.ratios());
        outcome.rows.push(match self {
            By::Account => row.at_least(least),
            By::Count => row,
        });
        let samples = samples.into_inner();
        // The first of each is dropped: it warms the caches.
        let busy = samples[0].iter().zip(&samples[1]).skip(1);
        let ratios: Vec<f64> = busy.map(|(ours, linux)| ours.busy_s() / linux.busy_s()).collect();
        let name = format!("TCP {way}, busy time{counted}, Towpath to Linux");
        outcome.rows.push(Row::new(&name, &parameters, "ratio", &ratios));
        for (who, samples) in ["Towpath", "Linux"].into_iter().zip(samples) {
            let mut row = |what: &str, unit, value: &dyn Fn(&Sample) -> f64| {
                let values: Vec<f64> = samples.iter().skip(1).map(value).collect();
                let name = format!("TCP {way}, {who}{counted}, {what}");
                outcome.context.push(Row::new(&name, &parameters, unit, &values));
            };
            row("idle", "% of both cores", &|sample| 100.0 * self.idle(sample));
            if self == By::Count {
                let name = "interrupts, the kernel's threads and others";
                row(name, "% of both cores", &|sample| {
                    100.0 * missing(self.idle(sample), sample.busy_s())
                });
            }
            row("busy", "s in 5 s", &|sample| sample.busy_s());
            row("switches", "in 5 s", &|sample| sample.switches());
            row("throughput", "Mbit/s", &|sample| sample.mbit_s());
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) mbit_s: u32,
    pub(super) window: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    usage: Usage,
    bytes: u64,
    took: Duration,
    /// The idle part of both cores, where the experiment counts it.
    left: Option<f64>,
}

impl Sample {
    /// Returns the number by which counts become those of the paper's window.
    pub(super) fn scale(&self) -> f64 {
        WINDOW_S / self.took.as_secs_f64()
    }

    pub(super) fn busy_s(&self) -> f64 {
        self.usage.cpu.as_secs_f64() * self.scale()
    }

    pub(super) fn idle(&self) -> f64 {
        1.0 - self.busy_s() / (2.0 * WINDOW_S)
    }

    pub(super) fn switches(&self) -> f64 {
        self.usage.switches() as f64 * self.scale()
    }

    pub(super) fn mbit_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.took.as_secs_f64() / 1e6
    }
}

/// A stream with a time limit for its waits.
trait Patient {
    fn be_patient(&self) -> std::io::Result<()>;
}

impl Patient for std::net::TcpStream {
    fn be_patient(&self) -> std::io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))
    }
}

impl Patient for towpath_net::TcpStream {
    fn be_patient(&self) -> std::io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))
    }
}

/// Both ends of a connection.
pub(super) struct Ends<'a> {
    near: Box<dyn Write + Send + 'a>,
    far: Box<dyn Read + Send + 'a>,
}

impl<'a> Ends<'a> {
    /// Connects an application to the kernel.
    pub(super) fn sending(network: &'a Network) -> anyhow::Result<Ends<'a>> {
        let listener = std::net::TcpListener::bind((HOST, 0))?;
        let near = towpath_net::TcpStream::connect(network, listener.local_addr()?)?;
        Ends::of(near, listener.accept()?.0)
    }

    /// Connects the kernel to an application.
    pub(super) fn receiving(network: &'a Network) -> anyhow::Result<Ends<'a>> {
        let ours = network.addresses().into_iter().find(std::net::IpAddr::is_ipv4);
        let ours = ours.context("the host got no IPv4 address")?;
        let listener = towpath_net::TcpListener::bind(network, SocketAddr::new(ours, 0))?;
        let at = listener.local_addr()?;
        let near = thread::spawn(move || std::net::TcpStream::connect(at));
        let far = listener.accept()?.0;
        let near = near.join().map_err(|_| anyhow::anyhow!("connecting failed"))??;
        Ends::of(near, far)
    }

    /// Connects two stacks of the kernel's.
    pub(super) fn of_kernel(wire: &KernelWire) -> anyhow::Result<Ends<'a>> {
        let (near, far) = wire.tcp()?;
        Ends::of(near, far)
    }

    fn of(
        near: impl Write + Patient + Send + 'a,
        far: impl Read + Patient + Send + 'a,
    ) -> anyhow::Result<Ends<'a>> {
        near.be_patient()?;
        far.be_patient()?;
        Ok(Ends { near: Box::new(near), far: Box::new(far) })
    }
}

/// Sends at a pace; all bytes must arrive.
pub(super) fn run(
    participants: &Participants,
    left: Option<&mut Left>,
    pace: Pace,
    Ends { mut near, mut far }: Ends<'_>,
) -> anyhow::Result<Sample> {
    let sending = move || {
        let (data, start) = (vec![7; WRITE_BYTES], Instant::now());
        let mut sent = 0;
        while start.elapsed() < pace.window {
            near.write_all(&data).context("sending")?;
            sent += WRITE_BYTES as u64;
            let due = Duration::from_nanos(sent * 8000 / u64::from(pace.mbit_s));
            if let Some(left) = due.checked_sub(start.elapsed()) {
                thread::sleep(left);
            }
        }
        // The drop closes the connection, so the reader sees its end.
        drop(near);
        Ok(sent)
    };
    let receiving = || {
        let (mut buffer, mut bytes) = (vec![0; 128 * 1024], 0);
        loop {
            match read(&mut far, &mut buffer).context("receiving")? {
                0 => return Ok(bytes),
                len => bytes += len as u64,
            }
        }
    };
    let Counted { moved, took, usage, left } =
        counted(participants, left, vec![Box::new(sending), Box::new(receiving)])?;
    ensure!(moved[0] == moved[1], "{} bytes sent, {} received", moved[0], moved[1]);
    Ok(Sample { usage, bytes: moved[1], took, left })
}
