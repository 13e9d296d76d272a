//! Frames by a pattern, from the kernel's UDP to an application or to a socket; the cost to the
//! receiving side, and the delays.

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{Options, QueuePair, Rule, Session, Setting};
use towpath_netlink::Netlink;
use towpath_testkit::{Participants, Usage, pin, this_thread_usage};

use crate::kernel_wire::{FAR, KernelWire, raise_file_limit, receive};
use crate::latency::Latency;
use crate::process::{HOST, Process};

/// The first port.
const PORT: u16 = 2000;
/// Endpoints of the application, one per port.
pub(crate) const MANY: u16 = 1000;
/// The payload of a datagram: the time of its sending.
const STAMP_BYTES: usize = 8;
/// The wait for datagrams in flight.
const AFTER: Duration = Duration::from_millis(30);

/// The result of a run.
pub(crate) struct Run {
    pub(crate) offered: u64,
    pub(crate) received: u64,
    /// The time that the generator took.
    pub(crate) sending: Duration,
    /// Usage of the server and the application, or of the receiving thread.
    pub(crate) usage: Usage,
    pub(crate) took: Duration,
    pub(crate) delay: Latency,
}

impl Run {
    pub(crate) fn cpu_us_per_frame(&self) -> f64 {
        self.usage.cpu.as_secs_f64() * 1e6 / self.received.max(1) as f64
    }

    pub(crate) fn sleeps_per_frame(&self) -> f64 {
        self.usage.sleeps as f64 / self.received.max(1) as f64
    }

    /// Returns hundredths of a processor.
    pub(crate) fn cpu_percent(&self) -> f64 {
        100.0 * self.usage.cpu.as_secs_f64() / self.took.as_secs_f64()
    }

    /// Returns the delay within which 99 in 100 of the sent datagrams arrived. If too many were
    /// lost, returns the run's duration.
    pub(crate) fn p99_us(&self) -> f64 {
        let rank = 0.99 * self.offered as f64 / self.received.max(1) as f64;
        if rank > 1.0 { self.took.as_secs_f64() * 1e6 } else { self.delay.quantile_us(rank) }
    }

    pub(crate) fn sent_per_s(&self) -> f64 {
        self.offered as f64 / self.sending.as_secs_f64()
    }

    pub(crate) fn received_per_s(&self) -> f64 {
        self.received as f64 / self.sending.as_secs_f64()
    }

    pub(crate) fn lost(&self) -> f64 {
        1.0 - self.received as f64 / self.offered.max(1) as f64
    }
}

/// Datagrams per call at a rate that a core cannot send over veth one by one.
pub(crate) const TOGETHER: usize = 4;

/// Sends datagrams when they are due, through each connected socket in turn, and stays awake in
/// between. Each carries the time of its sending, so no delay includes a late or preempted
/// generator. `together` datagrams leave in one call, as frames of their own (`UDP_SEGMENT`), when
/// the first is due. Returns the time taken.
fn generate(times: &[u64], start: Instant, sockets: &[UdpSocket], together: usize) -> Duration {
    let mut payloads = [0; TOGETHER * STAMP_BYTES];
    for (due, socket) in times.chunks(together).zip(sockets.iter().cycle()) {
        let (due, payloads) = (due[0], &mut payloads[..due.len() * STAMP_BYTES]);
        let at = start + Duration::from_nanos(due);
        while Instant::now() < at {
            std::hint::spin_loop();
        }
        let sent = start.elapsed().as_nanos() as u64;
        // The interface drops datagrams that it has no room for, as a wire does; the receiver's
        // count shows that.
        for payload in payloads.chunks_mut(STAMP_BYTES) {
            payload.copy_from_slice(&sent.to_ne_bytes());
        }
        let _ = socket.send(payloads);
    }
    start.elapsed()
}

/// Makes the kernel segment each payload into datagrams.
fn cut(socket: &UdpSocket, together: usize) -> anyhow::Result<()> {
    let bytes = if together > 1 { STAMP_BYTES as i32 } else { 0 };
    Ok(setsockopt(socket, UdpGsoSegment, &bytes)?)
}

fn note(payload: &[u8], start: Instant, delay: &mut Latency) {
    if let Some(sent) = payload.first_chunk() {
        let sent = Duration::from_nanos(u64::from_ne_bytes(*sent));
        delay.record(start.elapsed().saturating_sub(sent));
    }
}

/// Runs a generator and a receiver on two cores. The receiver gets the number of datagrams so far,
/// and a flag for the end.
fn run(
    times: &[u64],
    cores: (usize, usize),
    (sockets, together): (&[UdpSocket], usize),
    receiver: impl FnOnce(Instant, &AtomicU64, &AtomicBool) -> anyhow::Result<(Usage, Latency)> + Send,
) -> anyhow::Result<Run> {
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (sending, (usage, delay), took) = thread::scope(|scope| {
        let start = Instant::now() + Duration::from_millis(2);
        let (received, over) = (&received, &over);
        let receiving = scope.spawn(move || {
            pin(cores.1)?;
            receiver(start, received, over)
        });
        let sending = scope.spawn(move || {
            let sent = pin(cores.0).map(|()| generate(times, start, sockets, together));
            let until = Instant::now() + AFTER;
            while received.load(Ordering::Acquire) < times.len() as u64 && Instant::now() < until {
                thread::sleep(Duration::from_micros(500));
            }
            over.store(true, Ordering::Release);
            sent
        });
        let sent = sending.join().ok().context("the generator failed")?;
        let received = receiving.join().ok().context("the receiver failed")??;
        anyhow::Ok((sent?, received, start.elapsed()))
    })?;
    let received = received.load(Ordering::Acquire);
    Ok(Run { offered: times.len() as u64, received, sending, usage, took, delay })
}

/// The load of an application.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    /// The times, in nanoseconds.
    pub(crate) times: &'a [u64],
    /// The number of endpoints, addressed in turn.
    pub(crate) endpoints: u16,
    /// Datagrams per call.
    pub(crate) together: usize,
    /// The application's work per datagram.
    pub(crate) work: Duration,
}

impl<'a> Load<'a> {
    pub(crate) fn new(times: &'a [u64]) -> Load<'a> {
        Load { times, endpoints: 1, together: 1, work: Duration::ZERO }
    }
}

/// An application at a server.
pub(crate) struct Ours<'a> {
    process: &'a Process,
    session: Session,
    /// Sockets, one per endpoint.
    kernel: Vec<UdpSocket>,
    server: Participants,
}

impl<'a> Ours<'a> {
    pub(crate) fn new(process: &'a Process, tap: &str) -> anyhow::Result<Ours<'a>> {
        let options = Options {
            name: "waiting".into(),
            receive_slots: 4096,
            receive_buffer_bytes: 256,
            endpoints: u32::from(MANY),
            ..Options::default()
        };
        let mut session = Session::attach(process.socket(), &options)?;
        let (ip, _) = session.info().ipv4.context("a session without an IPv4 address")?;
        for port in PORT..PORT + MANY {
            session.open(&Rule::new().udp(port))?;
        }
        // The application answers no ARP.
        Netlink::open()?.add_neighbour(tap, ip.into(), session.info().mac.octets())?;
        raise_file_limit();
        let to = |port| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((HOST, 0))?;
            socket.connect((ip, port))?;
            Ok(socket)
        };
        let kernel = (PORT..PORT + MANY).map(to).collect::<io::Result<_>>()?;
        let server = Participants::new(&[process.pid()]);
        Ok(Ours { process, session, kernel, server })
    }

    pub(crate) fn set(&self, setting: Setting, value: u64) -> anyhow::Result<()> {
        self.process.set(setting, value)
    }

    pub(crate) fn run(&mut self, load: &Load<'_>, cores: (usize, usize)) -> anyhow::Result<Run> {
        let Ours { session, kernel, server, .. } = self;
        let Load { times, endpoints, together, work } = *load;
        cut(&kernel[0], together)?;
        // Drops late datagrams of the previous run.
        while session.receiver().receive(QueuePair::FIRST, 4096, |_| ())? > 0 {}
        let before = server.moment()?;
        let mut run = run(
            times,
            cores,
            (&kernel[..usize::from(endpoints)], together),
            |start, received, over| {
                let mut delay = Latency::new()?;
                let before = this_thread_usage()?;
                while !over.load(Ordering::Acquire) {
                    session.wait(Some(Duration::from_millis(20)))?;
                    let got = session.receiver().receive(QueuePair::FIRST, 256, |packet| {
                        note(
                            packet.contiguous().unwrap_or_default().get(42..).unwrap_or_default(),
                            start,
                            &mut delay,
                        );
                        if !work.is_zero() {
                            let until = Instant::now() + work;
                            while Instant::now() < until {
                                std::hint::spin_loop();
                            }
                        }
                    })?;
                    received.fetch_add(got as u64, Ordering::Release);
                }
                Ok((this_thread_usage()?.since(&before), delay))
            },
        )?;
        let server = before.until(&server.moment()?);
        run.usage.cpu += server.cpu;
        run.usage.sleeps += server.sleeps;
        run.usage.preempted += server.preempted;
        Ok(run)
    }
}

/// Runs a socket whose thread sleeps until datagrams come, and takes them all.
pub(crate) fn kernel(
    wire: &KernelWire,
    (times, together): (&[u64], usize),
    cores: (usize, usize),
) -> anyhow::Result<Run> {
    let sender = wire.near_udp(0)?;
    let receiver = wire.far_udp(PORT, 1)?.pop().context("no socket")?;
    sender.connect((FAR, PORT))?;
    cut(&sender, together)?;
    run(times, cores, (&[sender], together), |start, received, over| {
        let mut delay = Latency::new()?;
        let before = this_thread_usage()?;
        let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let mut buffer = [0; 2048];
        while !over.load(Ordering::Acquire) {
            let _ = poll(&mut [PollFd::new(&receiver, PollFlags::IN)], Some(&timeout));
            while let Some(len) = receive(&receiver, &mut buffer)? {
                note(&buffer[..len], start, &mut delay);
                received.fetch_add(1, Ordering::Release);
            }
        }
        Ok((this_thread_usage()?.since(&before), delay))
    })
}
