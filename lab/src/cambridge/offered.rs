//! Overload: how many messages an application completes by how many are offered, from a tenth of
//! its capacity to four times as much. Unlike the paper's closed loop, the generator does not wait
//! for answers. A delay begins when its message is due, not when the generator could send it.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session};
use towpath_testkit::pin;

use super::place::Place;
use super::requests::PATIENCE;
use crate::figure::{Axis, Figure, Series};
use crate::flow::{self, HEADER_BYTES};
use crate::kernel_wire::{KernelWire, receive, send_to};
use crate::latency::Latency;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Summary;

/// The application's work on each message.
const WORK: Duration = Duration::from_micros(5);
/// The interval in which the generator sends the messages that are due.
const TICK: Duration = Duration::from_micros(200);
/// Offered loads, as parts of the application's capacity.
const LOADS: [f64; 11] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0];
/// The limit at four times the load, as a part of the best goodput at any.
const AT_LEAST: f64 = 0.98;
const PACKET_BYTES: usize = HEADER_BYTES + 8;

/// Runs at a rate for a time.
type Runs<'a> = &'a mut dyn FnMut(f64, Duration) -> anyhow::Result<Run>;

/// A carrier of messages.
struct Carrier<'a> {
    name: &'static str,
    run: Runs<'a>,
    /// The highest load that it can have.
    most: &'static str,
    /// The limit at the highest load, as a part of the best goodput at any.
    at_least: Option<f64>,
}

/// The result of one run.
struct Run {
    /// Messages that were due, and those of them that the generator sent.
    offered: Offered,
    /// Messages that came to the application, in time or too late.
    arrived: u64,
    done: u64,
    /// Drops, by the counters of the component that dropped them.
    dropped: u64,
    took: Duration,
    delay: Latency,
}

/// The messages that a generator had to send, and those that it had room for.
#[derive(Clone, Copy, Debug, Default)]
struct Offered {
    due: u64,
    sent: u64,
}

/// The messages that an application got.
struct Got {
    arrived: u64,
    done: u64,
    delay: Latency,
}

impl Got {
    fn nothing() -> anyhow::Result<Got> {
        Ok(Got { arrived: 0, done: 0, delay: Latency::new()? })
    }
}

impl Run {
    fn goodput(&self) -> f64 {
        self.thousands_per_s(self.done)
    }

    fn thousands_per_s(&self, count: u64) -> f64 {
        count as f64 / self.took.as_secs_f64() / 1e3
    }
}

pub(super) fn measure(place: Place<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let Place { settings, cores, wire } = place;
    let window = Duration::from_millis(if settings.quick { 40 } else { 250 });
    let loads: Vec<f64> = if settings.quick { vec![0.5, 1.0, 2.0, 4.0] } else { LOADS.to_vec() };
    outcome.how += &format!(
        "; under offered load the application works {} us on each message, and the generator is on \
         core {}, on which the engine sleeps when idle",
        WORK.as_micros(),
        cores.0
    );
    let beside = Process::start(&Serving::memory(1500).on(cores.0), None)?;
    let together = Process::start(&Serving::memory(1500).on(cores.1), None)?;
    let mut beside = Ours::new(beside, cores)?;
    let mut together = Ours::new(together, cores)?;
    let mut figure = Figure::new(
        "offered-load",
        "Messages worked on by messages sent",
        Axis::linear("sent", "1000/s"),
        Axis::linear("worked on", "1000/s"),
    );
    let carriers = [
        Carrier {
            name: "Towpath",
            run: &mut |rate, window| beside.run(rate, window),
            most: "at four times the load",
            at_least: Some(AT_LEAST),
        },
        // The engine's work for each drop takes time of the application's core here. So the goodput
        // falls as the offered load grows; the row reports it without a limit.
        Carrier {
            name: "Towpath, engine on the application's core",
            run: &mut |rate, window| together.run(rate, window),
            most: "at four times the load",
            at_least: None,
        },
        // Its sender delivers in its own calls, and cannot send four times as much.
        Carrier {
            name: "kernel UDP, epoll",
            run: &mut |rate, window| kernel(wire, cores, rate, window),
            most: "at the most that its sender can send",
            at_least: None,
        },
    ];
    for carrier in carriers {
        carrier.measure(settings.pairs(), window, &loads, (&mut figure, outcome))?;
    }
    outcome.figures.push(figure);
    Ok(())
}

impl Carrier<'_> {
    /// Measures all loads in turn, and adds the rows and the curve.
    fn measure(
        self,
        rounds: usize,
        window: Duration,
        loads: &[f64],
        (figure, outcome): (&mut Figure, &mut Outcome),
    ) -> anyhow::Result<()> {
        let Carrier { name, run, most, at_least } = self;
        // The capacity: the goodput at twice the load that the work alone would allow.
        let full = 1.0 / WORK.as_secs_f64();
        run(0.5 * full, window)?;
        let capacity = run(2.0 * full, window)?.goodput() * 1e3;
        let mut goodputs = vec![Vec::new(); loads.len()];
        let mut all: Vec<Vec<Run>> = loads.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
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
        show(outcome, figure, name, loads, &goodputs, &all)?;
        let median = |values: &Vec<f64>| Summary::of(values).median;
        let best = (0..loads.len())
            .max_by(|a, b| median(&goodputs[*a]).total_cmp(&median(&goodputs[*b])))
            .context("no loads")?;
        let last = loads.len() - 1;
        let kept: Vec<f64> =
            goodputs[last].iter().zip(&goodputs[best]).map(|(last, best)| last / best).collect();
        let sent = |run: &Run| run.thousands_per_s(run.offered.sent) * 1e3 / capacity;
        let sent = Summary::of(&all[last].iter().map(sent).collect::<Vec<_>>()).median;
        let title = format!("{name}: done {most}, to the best at any");
        let row = Row::new(&title, &[("load_sent", hundredths(sent))], "ratio", &kept);
        outcome.rows.push(Row { at_least, ..row });
        Ok(())
    }
}

/// Rounds to two decimal places.
fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
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
        row("offered", "k/s", &per(&|run| run.thousands_per_s(run.offered.due)));
        let sent = per(&|run| run.thousands_per_s(run.offered.sent));
        row("sent", "k/s", &sent);
        row("done", "k/s", goodputs);
        let part = |count: &dyn Fn(&Run) -> u64| {
            per(&|run| count(run) as f64 / run.offered.due.max(1) as f64)
        };
        row("dropped", "of those offered", &part(&|run| run.dropped));
        let waited = part(&|run| run.arrived.saturating_sub(run.done));
        row("waited when the time was over", "of those offered", &waited);
        let unsent = part(&|run| run.offered.due.saturating_sub(run.offered.sent));
        row("not sent", "of those offered", &unsent);
        row("delay, p50", "us", &per(&|run| run.delay.quantile_us(0.5)));
        row("delay, p99", "us", &per(&|run| run.delay.quantile_us(0.99)));
        row("delay, p99.9", "us", &per(&|run| run.delay.quantile_us(0.999)));
        curve.push([Summary::of(&sent).median, Summary::of(goodputs).median]);
    }
    figure.series.push(Series::line(name, curve));
    Ok(())
}

/// A generator and an application, each a session.
struct Ours {
    generator: Session,
    application: Session,
    from: Endpoint,
    to: Endpoint,
    headers: [u8; HEADER_BYTES],
    cores: (usize, usize),
    process: Process,
}

impl Ours {
    fn new(process: Process, cores: (usize, usize)) -> anyhow::Result<Ours> {
        let options = |name: &str, slots| Options {
            name: name.into(),
            transmit_slots: slots,
            transmit_buffer_bytes: 256,
            receive_buffer_bytes: 256,
            ..Options::default()
        };
        let mut generator = Session::attach(process.socket(), &options("generator", 4096))?;
        let mut application = Session::attach(process.socket(), &options("application", 8))?;
        let flow = flow::between(&generator, &application, (1000, 2000))?;
        let from = generator.open(&Rule::new().udp(1000))?;
        let to = application.open(&Rule::new().udp(2000))?;
        let headers = flow::headers(&flow, PACKET_BYTES - HEADER_BYTES)?;
        Ok(Ours { generator, application, from, to, headers, cores, process })
    }

    fn run(&mut self, per_s: f64, window: Duration) -> anyhow::Result<Run> {
        self.process.resume()?;
        let run = self.run_resumed(per_s, window);
        self.process.pause()?;
        run
    }

    fn run_resumed(&mut self, per_s: f64, window: Duration) -> anyhow::Result<Run> {
        let dropped_before = self.dropped();
        let Ours { generator, application, from, headers, cores, .. } = self;
        let over = AtomicBool::new(false);
        let start = Instant::now();
        let (offered, mut got) = thread::scope(|scope| {
            let working = scope.spawn(|| -> anyhow::Result<Got> {
                pin(cores.1)?;
                let mut got = Got::nothing()?;
                loop {
                    let last = over.load(Ordering::Acquire);
                    let count = application.receiver().receive(QueuePair::FIRST, 32, |packet| {
                        let bytes = packet.contiguous().unwrap_or_default();
                        let payload = bytes.get(HEADER_BYTES..);
                        got.done += work(start, window, payload, &mut got.delay);
                    })?;
                    got.arrived += count as u64;
                    if count == 0 {
                        if last {
                            return Ok(got);
                        }
                        application.wait(Some(Duration::from_millis(2)))?;
                    }
                }
            });
            let offering = scope.spawn(|| {
                let offered = pin(cores.0).map_err(anyhow::Error::from).and_then(|()| {
                    offer(start, window, per_s, |due| {
                        let Some(due) = due else {
                            generator.sender().flush()?;
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
                        match generator.sender().send(*from, PACKET_BYTES, Meta::FULL, packet) {
                            Ok(()) => Ok(true),
                            Err(SendError::Full) => Ok(false),
                            Err(error) => Err(error.into()),
                        }
                    })
                });
                over.store(true, Ordering::Release);
                offered
            });
            let offered = offering.join().ok().context("the generator failed")?;
            let got = working.join().ok().context("the application failed")??;
            anyhow::Ok((offered?, got))
        })?;
        let dropped = self.settle(offered, &mut got, dropped_before)?;
        let Got { arrived, done, delay } = got;
        Ok(Run { offered, arrived, done, dropped, took: window, delay })
    }

    /// Takes the messages that are still in flight: they belong to this run, because they came too
    /// late. In the end each message sent has arrived, or was dropped and counted. Returns the
    /// number of those dropped.
    fn settle(
        &mut self,
        offered: Offered,
        got: &mut Got,
        dropped_before: u64,
    ) -> anyhow::Result<u64> {
        let until = Instant::now() + PATIENCE;
        loop {
            got.arrived +=
                self.application.receiver().receive(QueuePair::FIRST, 32, |_| {})? as u64;
            let dropped = self.dropped() - dropped_before;
            if got.arrived + dropped == offered.sent {
                return Ok(dropped);
            }
            ensure!(
                Instant::now() < until,
                "{} messages sent, {} arrived, {dropped} dropped",
                offered.sent,
                got.arrived
            );
        }
    }

    /// Returns the messages that the server dropped, by the application's counters.
    fn dropped(&self) -> u64 {
        let counters = self.application.counters(self.to).into_iter();
        counters.filter(|(name, _)| name.starts_with("rx_dropped_")).map(|(_, count)| count).sum()
    }
}

/// Works on a message; returns how many were done in time. A message after the window is taken and
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

/// Sends the messages that are due, at each tick until the window is over; `None` ends a tick. A
/// message that finds no room is tried again.
fn offer(
    start: Instant,
    window: Duration,
    per_s: f64,
    mut send: impl FnMut(Option<u64>) -> anyhow::Result<bool>,
) -> anyhow::Result<Offered> {
    let mut sent = 0_u64;
    loop {
        let now = start.elapsed();
        if now >= window {
            return Ok(Offered { due: (window.as_secs_f64() * per_s) as u64, sent });
        }
        let due = (now.as_secs_f64() * per_s) as u64;
        while sent < due && send(Some((sent as f64 / per_s * 1e9) as u64))? {
            sent += 1;
        }
        send(None)?;
        thread::sleep(TICK);
    }
}

/// Measures the same over kernel sockets.
fn kernel(
    wire: &KernelWire,
    cores: (usize, usize),
    per_s: f64,
    window: Duration,
) -> anyhow::Result<Run> {
    let far = wire.far_udp(0, 1)?.pop().context("no socket")?;
    let near = wire.near_udp(0)?;
    let to = far.local_addr()?;
    let over = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        let working = scope.spawn(|| -> anyhow::Result<_> {
            pin(cores.1)?;
            work_on_socket(&far, start, window, &over)
        });
        let offering = scope.spawn(|| {
            let offered = pin(cores.0).map_err(anyhow::Error::from).and_then(|()| {
                offer(start, window, per_s, |due| match due {
                    Some(due) => Ok(send_to(&near, &due.to_ne_bytes(), to)?),
                    None => Ok(true),
                })
            });
            over.store(true, Ordering::Release);
            offered
        });
        let offered = offering.join().ok().context("the generator failed")?;
        let got = working.join().ok().context("the application failed")??;
        let (offered, Got { arrived, done, delay }) = (offered?, got);
        // A veth pair delivers in the sender's call, so a missing message was dropped.
        let dropped = offered.sent.saturating_sub(arrived);
        Ok(Run { offered, arrived, done, dropped, took: window, delay })
    })
}

fn work_on_socket(
    socket: &UdpSocket,
    start: Instant,
    window: Duration,
    over: &AtomicBool,
) -> anyhow::Result<Got> {
    let (mut got, mut buffer) = (Got::nothing()?, [0; 64]);
    loop {
        let last = over.load(Ordering::Acquire);
        if let Some(len) = receive(socket, &mut buffer)? {
            got.arrived += 1;
            got.done += work(start, window, Some(&buffer[..len]), &mut got.delay);
        } else if last {
            return Ok(got);
        } else {
            let mut polled = [PollFd::new(socket, PollFlags::IN)];
            let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
        }
    }
}
