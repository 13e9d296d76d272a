//! More than can be served: what an application gets done of what is offered, from a tenth of what
//! it can do to four times as much. Unlike the paper's closed loop, who offers does not wait for
//! answers; delays are counted from when a message was due, not from when it could be sent.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{Endpoint, Meta, Options, Rule, SendError, Session};
use towpath_packet::build::Flow;
use towpath_rig::pin;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::{KernelWire, receive, send_to};
use crate::latency::Latency;
use crate::report::{Outcome, Row};
use crate::station::{Serving, Station};
use crate::statistics::Summary;

/// What the application does for each message.
const WORK: Duration = Duration::from_micros(5);
/// How often the generator sends what is due.
const TICK: Duration = Duration::from_micros(200);
/// Offered loads, as parts of what the application can do.
const LOADS: [f64; 11] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0];
/// What is left at four times the load, of the best at any.
const AT_LEAST: f64 = 0.98;
const HEADER_BYTES: usize = 42;
const PACKET_BYTES: usize = HEADER_BYTES + 8;

/// Who carries messages: its name, and a run at a rate for a time.
type Carrier<'a> = (&'a str, &'a mut dyn FnMut(f64, Duration) -> anyhow::Result<Run>);

/// What one run came to.
struct Run {
    offered: u64,
    done: u64,
    took: Duration,
    delay: Latency,
}

impl Run {
    fn goodput(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64() / 1e3
    }
}

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 40 } else { 250 });
    let loads: Vec<f64> = if settings.quick { vec![0.5, 1.0, 2.0, 4.0] } else { LOADS.to_vec() };
    outcome.how += &format!(
        "; under offered load the application works {} us on each message, and the generator is on \
         core {}, on which the engine sleeps when idle",
        WORK.as_micros(),
        cores.0
    );
    let beside = Station::start(&Serving::memory(1500).on(cores.0), None)?;
    let together = Station::start(&Serving::memory(1500).on(cores.1), None)?;
    let mut beside = Ours::new(&beside, cores)?.with(beside);
    let mut together = Ours::new(&together, cores)?.with(together);
    let mut figure = Figure::new(
        "offered-load",
        "Messages worked on by messages offered",
        Axis::linear("offered", "1000/s"),
        Axis::linear("worked on", "1000/s"),
    );
    let mut runs: [Carrier<'_>; 3] = [
        ("Towpath", &mut |rate, window| beside.run(rate, window)),
        ("Towpath, engine on the application's core", &mut |rate, window| {
            together.run(rate, window)
        }),
        ("kernel UDP, epoll", &mut |rate, window| kernel(wire, cores, rate, window)),
    ];
    for (place, (name, run)) in runs.iter_mut().enumerate() {
        // What it can do: ten times as much is offered, and some of it is taken.
        let full = 10.0 / WORK.as_secs_f64();
        run(full / 20.0, window)?;
        let capacity = run(full / 5.0, window)?.goodput() * 1e3;
        let mut goodputs = vec![Vec::new(); loads.len()];
        let mut all: Vec<Vec<Run>> = loads.iter().map(|_| Vec::new()).collect();
        for round in 0..settings.pairs() {
            let mut order: Vec<_> = (0..loads.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for load in order {
                let one = run(loads[load] * capacity, window)?;
                goodputs[load].push(one.goodput());
                all[load].push(one);
            }
        }
        show(outcome, &mut figure, name, &loads, &goodputs, &all)?;
        let median = |values: &Vec<f64>| Summary::of(values).median;
        let best = (0..loads.len())
            .max_by(|a, b| median(&goodputs[*a]).total_cmp(&median(&goodputs[*b])))
            .context("no loads")?;
        let last = loads.len() - 1;
        let kept: Vec<f64> =
            goodputs[last].iter().zip(&goodputs[best]).map(|(last, best)| last / best).collect();
        let title = format!("{name}: done at four times the load, to the best at any");
        let row = Row::new(&title, &[], "ratio", &kept);
        // The engine's part of the work has no core of its own in the others.
        outcome.rows.push(if place == 0 { row.at_least(AT_LEAST) } else { row });
    }
    outcome.figures.push(figure);
    Ok(())
}

fn show(
    outcome: &mut Outcome,
    figure: &mut Figure,
    name: &str,
    loads: &[f64],
    goodputs: &[Vec<f64>],
    all: &[Vec<Run>],
) -> anyhow::Result<()> {
    let mut curve = Vec::new();
    for ((load, goodputs), runs) in loads.iter().zip(goodputs).zip(all) {
        let parameters = [("load", *load)];
        let mut row = |what: &str, unit, values: &[f64]| {
            outcome.context.push(Row::new(&format!("{name}, {what}"), &parameters, unit, values));
        };
        let per = |value: &dyn Fn(&Run) -> f64| runs.iter().map(value).collect::<Vec<_>>();
        let offered = per(&|run| run.offered as f64 / run.took.as_secs_f64() / 1e3);
        row("offered", "k/s", &offered);
        row("done", "k/s", goodputs);
        let dropped = per(&|run| 1.0 - run.done as f64 / run.offered.max(1) as f64);
        row("dropped", "of those offered", &dropped);
        row("delay, p50", "us", &per(&|run| run.delay.quantile_us(0.5)));
        row("delay, p99", "us", &per(&|run| run.delay.quantile_us(0.99)));
        row("delay, p99.9", "us", &per(&|run| run.delay.quantile_us(0.999)));
        curve.push([Summary::of(&offered).median, Summary::of(goodputs).median]);
    }
    figure.series.push(Series::line(name, curve));
    Ok(())
}

/// A generator and an application, each a session.
struct Ours {
    generator: Session,
    application: Session,
    from: Endpoint,
    headers: [u8; HEADER_BYTES],
    cores: (usize, usize),
    station: Option<Station>,
}

impl Ours {
    fn new(station: &Station, cores: (usize, usize)) -> anyhow::Result<Ours> {
        let options = |name: &str, slots| Options {
            name: name.into(),
            transmit_slots: slots,
            transmit_frame_bytes: 256,
            receive_frame_bytes: 256,
            ..Options::default()
        };
        let mut generator = Session::attach(station.socket(), &options("generator", 4096))?;
        let mut application = Session::attach(station.socket(), &options("application", 8))?;
        let address = |session: &Session| {
            session.info().ipv4.map(|(ip, _)| ip).context("a session without an IPv4 address")
        };
        let flow = Flow::v4()
            .macs(generator.info().mac, application.info().mac)
            .addresses(address(&generator)?, address(&application)?)
            .ports(1000, 2000);
        let from = generator.open(&Rule::new().udp(1000))?;
        application.open(&Rule::new().udp(2000))?;
        let mut frame = flow.udp(&[0; 8]);
        frame[40..42].fill(0);
        let headers = *frame.first_chunk().context("a frame without headers")?;
        Ok(Ours { generator, application, from, headers, cores, station: None })
    }

    /// Keeps the server for as long as its sessions.
    fn with(self, station: Station) -> Ours {
        Ours { station: Some(station), ..self }
    }

    fn run(&mut self, per_s: f64, window: Duration) -> anyhow::Result<Run> {
        let Ours { generator, application, from, headers, cores, station } = self;
        if let Some(station) = station {
            station.resume()?;
        }
        let over = AtomicBool::new(false);
        let offered = AtomicU64::new(0);
        let start = Instant::now();
        let run = thread::scope(|scope| {
            let working = scope.spawn(|| -> anyhow::Result<_> {
                pin(cores.1)?;
                let (mut done, mut delay) = (0, Latency::new()?);
                loop {
                    let last = over.load(Ordering::Acquire);
                    let got = application.receive(0, 32, |packet| {
                        let bytes = packet.contiguous().unwrap_or_default();
                        done += work(start, window, bytes.get(HEADER_BYTES..), &mut delay);
                    })?;
                    if got == 0 {
                        if last {
                            return Ok((done, delay));
                        }
                        application.wait(Some(Duration::from_millis(2)))?;
                    }
                }
            });
            let offering = scope.spawn(|| -> anyhow::Result<()> {
                let sent = pin(cores.0).map_err(anyhow::Error::from).and_then(|()| {
                    offer(start, window, per_s, &offered, |due| {
                        let Some(due) = due else {
                            generator.flush()?;
                            return Ok(true);
                        };
                        let packet = |parts: &mut [&mut [u8]]| {
                            if let [part] = parts
                                && let Some((start, rest)) = part.split_at_mut_checked(HEADER_BYTES)
                            {
                                start.copy_from_slice(headers);
                                rest[..8].copy_from_slice(&due.to_ne_bytes());
                            }
                        };
                        match generator.send(*from, PACKET_BYTES, Meta::FINISHED, packet) {
                            Ok(()) => Ok(true),
                            Err(SendError::Full) => Ok(false),
                            Err(error) => Err(error.into()),
                        }
                    })
                });
                over.store(true, Ordering::Release);
                sent
            });
            let sent = offering.join().ok().context("the generator failed")?;
            let (done, delay) = working.join().ok().context("the application failed")??;
            sent?;
            anyhow::Ok(Run { offered: offered.load(Ordering::Acquire), done, took: window, delay })
        });
        if let Some(station) = station {
            station.pause()?;
        }
        run
    }
}

/// Works on a message; answers how many were done in time. What comes after the window is taken and
/// not worked on: it was offered, and came too late.
fn work(start: Instant, window: Duration, payload: Option<&[u8]>, delay: &mut Latency) -> u64 {
    let began = start.elapsed();
    if began >= window {
        return 0;
    }
    let mut now = began;
    while now - began < WORK {
        std::hint::spin_loop();
        now = start.elapsed();
    }
    let due = payload.and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_ne_bytes(*bytes));
    delay.record(now.saturating_sub(Duration::from_nanos(due.unwrap_or(0))));
    1
}

/// Sends what is due, each tick, until the window is over; `None` ends a tick. What finds no room
/// is tried again.
fn offer(
    start: Instant,
    window: Duration,
    per_s: f64,
    offered: &AtomicU64,
    mut send: impl FnMut(Option<u64>) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut sent = 0_u64;
    loop {
        let now = start.elapsed();
        if now >= window {
            offered.store((window.as_secs_f64() * per_s) as u64, Ordering::Release);
            return Ok(());
        }
        let due = (now.as_secs_f64() * per_s) as u64;
        while sent < due && send(Some((sent as f64 / per_s * 1e9) as u64))? {
            sent += 1;
        }
        send(None)?;
        thread::sleep(TICK);
    }
}

/// The same over kernel sockets.
fn kernel(
    wire: &KernelWire,
    cores: (usize, usize),
    per_s: f64,
    window: Duration,
) -> anyhow::Result<Run> {
    let far = wire.far_udp(0, 1)?.pop().context("no socket")?;
    let near = wire.near_udp(0)?;
    let to = far.local_addr()?;
    let (over, offered) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        let working = scope.spawn(|| -> anyhow::Result<_> {
            pin(cores.1)?;
            work_on_socket(&far, start, window, &over)
        });
        let offering = scope.spawn(|| {
            let sent = pin(cores.0).map_err(anyhow::Error::from).and_then(|()| {
                offer(start, window, per_s, &offered, |due| match due {
                    Some(due) => Ok(send_to(&near, &due.to_ne_bytes(), to)?),
                    None => Ok(true),
                })
            });
            over.store(true, Ordering::Release);
            sent
        });
        let sent = offering.join().ok().context("the generator failed")?;
        let (done, delay) = working.join().ok().context("the application failed")??;
        sent?;
        Ok(Run { offered: offered.load(Ordering::Acquire), done, took: window, delay })
    })
}

fn work_on_socket(
    socket: &UdpSocket,
    start: Instant,
    window: Duration,
    over: &AtomicBool,
) -> anyhow::Result<(u64, Latency)> {
    let (mut done, mut delay, mut buffer) = (0, Latency::new()?, [0; 64]);
    loop {
        let last = over.load(Ordering::Acquire);
        if let Some(len) = receive(socket, &mut buffer)? {
            done += work(start, window, Some(&buffer[..len]), &mut delay);
        } else if last {
            return Ok((done, delay));
        } else {
            let mut heard = [PollFd::new(socket, PollFlags::IN)];
            let _ = poll(&mut heard, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
        }
    }
}
