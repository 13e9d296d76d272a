//! Measures the cost of one notification to its sender, while the receiver sleeps on another core.
//!
//! A session's doorbell is a socket, because an application can hold a pipe's mutex for ever. A
//! server of several users calls a worker by an eventfd instead, and the worker sends to the
//! doorbell. The experiment compares both with a pipe. It times only the sender's system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::SendFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::Settings;
use crate::machine::two_cores;
use crate::report::{Outcome, Row};
use crate::statistics::in_turn;

/// The most that a notification may cost above one by a pipe, in microseconds.
const AT_MOST_MORE: f64 = 0.5;
/// The time that the sender gives the receiver to fall asleep.
const REST: Duration = Duration::from_micros(60);

type Send = fn(BorrowedFd<'_>) -> rustix::io::Result<usize>;

fn write_byte(descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    rustix::io::write(descriptor, &[1])
}

fn write_count(descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    rustix::io::write(descriptor, &1_u64.to_ne_bytes())
}

fn send_byte(descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    rustix::net::send(descriptor, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let count = if settings.quick { 500 } else { 5000 };
    let mut outcome = Outcome {
        how: format!(
            "a thread on core {} notifies a thread on core {} that sleeps in epoll; the median of {count} \
             system calls of the sender, {} us apart",
            cores.0,
            cores.1,
            REST.as_micros()
        ),
        ..Outcome::default()
    };
    let mut pipe = || {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        cost(cores, count, &ours, &theirs, write_byte)
    };
    let mut socket = || {
        let (ours, theirs) = towpath_protocol::doorbell::pair()?;
        cost(cores, count, &ours, &theirs, send_byte)
    };
    let mut worker = || {
        let ours = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        cost(cores, count, &ours, &ours, write_count)
    };
    let values = in_turn(settings.pairs(), &mut [&mut pipe, &mut socket, &mut worker])?;
    let [pipe, socket, worker] = &values[..] else { anyhow::bail!("three costs are expected") };
    let more = |than: &[f64]| -> Vec<f64> { than.iter().zip(pipe).map(|(a, b)| a - b).collect() };
    outcome.rows.push(
        Row::new("doorbell, more than a pipe", &[], "us", &more(socket)).at_most(AT_MOST_MORE),
    );
    outcome.rows.push(
        Row::new("call of a worker, more than a pipe", &[], "us", &more(worker))
            .at_most(AT_MOST_MORE),
    );
    for (name, values) in [("pipe", pipe), ("doorbell", socket), ("call of a worker", worker)] {
        outcome.context.push(Row::new(name, &[], "us", values));
    }
    Ok(outcome)
}

/// Returns the median cost of one notification, in microseconds.
fn cost(
    cores: (usize, usize),
    count: u64,
    ours: &OwnedFd,
    theirs: &OwnedFd,
    send: Send,
) -> anyhow::Result<f64> {
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut times = std::thread::scope(|scope| -> anyhow::Result<Vec<u64>> {
        let receiver = scope.spawn(|| receive(cores.1, theirs, &received, &over));
        let times = notify(cores.0, count, ours.as_fd(), send, &received);
        over.store(true, Ordering::Release);
        // This wakes the receiver, unless it has already returned: the result does not matter.
        let _ = send(ours.as_fd());
        receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
        times
    })?;
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64 / 1e3)
}

fn notify(
    core: usize,
    count: u64,
    ours: BorrowedFd<'_>,
    send: Send,
    received: &AtomicU64,
) -> anyhow::Result<Vec<u64>> {
    towpath_testkit::pin(core)?;
    let mut times = Vec::with_capacity(count as usize);
    for sent in 0..count {
        let since = Instant::now();
        while received.load(Ordering::Acquire) < sent || since.elapsed() < REST {
            anyhow::ensure!(since.elapsed() < Duration::from_secs(5), "a notification was lost");
            std::hint::spin_loop();
        }
        let start = Instant::now();
        send(ours).context("notify")?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

fn receive(
    core: usize,
    theirs: &OwnedFd,
    received: &AtomicU64,
    over: &AtomicBool,
) -> anyhow::Result<()> {
    towpath_testkit::pin(core)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, theirs, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let mut events = Vec::with_capacity(1);
    while !over.load(Ordering::Acquire) {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        rustix::io::read(theirs, &mut [0; 64])?;
        received.fetch_add(1, Ordering::Release);
    }
    Ok(())
}
