//! The thread that carries frames between the two sides of the wire.
//!
//! It notes when it gets a frame, and hands the frame over when the frame is due. It sleeps until
//! shortly before the next frame is due, and spins from there on.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::frame::Frame;
use super::path::{Conditions, Counts, Path};
use super::port::{Doorbell, Port};
use crate::latency::Latency;

/// Frames that the wire takes from one source before it looks at the others.
const BATCH: usize = 32;
/// The time before a frame is due from which on the wire does not sleep, in nanoseconds: a sleep
/// may be this much too long.
const SPIN_NS: u64 = 20_000;
/// The longest time awake, after which the wire naps even if frames are due: a real-time thread
/// that never sleeps is stopped for much longer (the kernel's fair server gives ordinary threads 50
/// ms of each second), and ordinary threads on its core carry the data.
const LONGEST_AWAKE: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(20);
/// The longest sleep, after which the wire checks whether it is over.
const LONGEST_SLEEP_NS: u64 = 5_000_000;
/// One side of the wire: the kernel behind a TAP, and perhaps a network of this process.
pub(super) struct Side<'a> {
    pub(super) tap: BorrowedFd<'a>,
    pub(super) port: Option<Arc<Port>>,
}

/// Ends the wire's thread, also when the work beside it panics.
pub(super) struct StopOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the wire did.
pub(super) struct WireReport {
    /// Of the frames from the first side, and of those from the second.
    pub(super) counts: [Counts; 2],
    /// How long after its time each frame was handed over.
    pub(super) late: Latency,
}

/// The wire's thread.
pub(super) struct WireThread<'a> {
    sides: [Side<'a>; 2],
    /// From the first side, and from the second.
    paths: [Path; 2],
    /// Frames for the ports of the two sides that are due.
    for_ports: [VecDeque<Frame>; 2],
    doorbell: Arc<Doorbell>,
    spare: Vec<Frame>,
    taken: Vec<Frame>,
    start: Instant,
    /// The end of the last sleep.
    awake_since: Instant,
    late: Latency,
}

impl<'a> WireThread<'a> {
    /// Makes a wire with the same conditions in both directions. `doorbell` is that of the ports.
    pub(super) fn new(
        sides: [Side<'a>; 2],
        conditions: Conditions,
        seed: u64,
        doorbell: Arc<Doorbell>,
    ) -> anyhow::Result<WireThread<'a>> {
        Ok(WireThread {
            sides,
            // The two directions have unrelated sequences from one seed.
            paths: [Path::new(conditions, seed), Path::new(conditions, !seed)],
            for_ports: [VecDeque::with_capacity(BATCH), VecDeque::with_capacity(BATCH)],
            doorbell,
            spare: Vec::with_capacity(1024),
            taken: Vec::with_capacity(BATCH),
            start: Instant::now(),
            awake_since: Instant::now(),
            late: Latency::new()?,
        })
    }

    /// Carries frames until it is over. Those that the kernel sent before are discarded.
    pub(super) fn run(mut self, over: &AtomicBool) -> anyhow::Result<WireReport> {
        // Without the right to this, the wire is as punctual as the scheduler lets it be.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let _ = towpath_testkit::run_before_others();
        let mut frame = Frame::new();
        for side in &self.sides {
            while rustix::io::read(side.tap, frame.memory()).is_ok() {}
        }
        while !over.load(Ordering::Relaxed) {
            let mut worked = false;
            for side in 0..2 {
                worked |= self.collect(side)?;
                worked |= self.deliver(side);
            }
            if !worked {
                self.pause()?;
            }
            if self.awake_since.elapsed() > LONGEST_AWAKE {
                std::thread::sleep(NAP);
                self.awake_since = Instant::now();
            }
        }
        let counts = [self.paths[0].counts, self.paths[1].counts];
        Ok(WireReport { counts, late: self.late })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Takes frames that a side has sent. Returns `true` if there were any.
    fn collect(&mut self, side: usize) -> anyhow::Result<bool> {
        let mut worked = false;
        for _ in 0..BATCH {
            let mut frame = self.spare.pop().unwrap_or_else(Frame::new);
            match rustix::io::read(self.sides[side].tap, frame.memory()) {
                Ok(bytes) if frame.filled(bytes) => {
                    let now = self.now();
                    self.paths[side].admit(frame, now, &mut self.spare);
                    worked = true;
                }
                Ok(bytes) => anyhow::bail!(
                    "the wire's TAP sent a frame of {bytes} bytes with its header, beyond its MTU"
                ),
                Err(Errno::AGAIN) => {
                    self.spare.push(frame);
                    break;
                }
                Err(Errno::INTR) => self.spare.push(frame),
                Err(error) => return Err(error).context("reading the wire's TAP"),
            }
        }
        if let Some(port) = &self.sides[side].port {
            port.take(&mut self.taken, BATCH, &mut self.spare);
            let now = self.now();
            for frame in self.taken.drain(..) {
                self.paths[side].admit(frame, now, &mut self.spare);
                worked = true;
            }
        }
        Ok(worked)
    }

    /// Hands over the frames from a side that are due. Returns `true` if there were any.
    fn deliver(&mut self, from: usize) -> bool {
        let mut worked = false;
        for _ in 0..BATCH {
            let now = self.now();
            let Some((due, frame)) = self.paths[from].take(now) else { break };
            self.late.record(Duration::from_nanos(now - due));
            self.hand_over(from, frame);
            worked = true;
        }
        if let Some(port) = &self.sides[1 - from].port {
            let refused = port.give(&mut self.for_ports[1 - from], &mut self.spare);
            self.paths[from].counts.refused += refused;
            worked |= !self.for_ports[1 - from].is_empty();
        }
        worked
    }

    /// Hands a frame to those at the other side that it is for.
    fn hand_over(&mut self, from: usize, mut frame: Frame) {
        let to = &self.sides[1 - from];
        let destination = frame.destination();
        let is_group = destination[0] & 1 != 0;
        let port = to.port.as_ref().filter(|port| is_group || port.mac == destination);
        if is_group || port.is_none() {
            let refused = rustix::io::write(to.tap, frame.for_tap()).is_err();
            self.paths[from].counts.refused += u64::from(refused);
        }
        match port {
            Some(_) => self.for_ports[1 - from].push_back(frame),
            None => self.spare.push(frame),
        }
    }

    /// Waits until shortly before a frame is due, or until a side sends one.
    fn pause(&mut self) -> anyhow::Result<()> {
        let next = self.paths.iter().filter_map(Path::next_due).min();
        let left = next.map_or(u64::MAX, |next| next.saturating_sub(self.now()));
        if left <= SPIN_NS {
            std::hint::spin_loop();
            return Ok(());
        }
        let ports = self.sides.iter().filter_map(|side| side.port.as_ref());
        let mut sleeps = true;
        for port in ports.clone() {
            sleeps &= port.wire_sleeps();
        }
        if sleeps {
            let sleep = (left - SPIN_NS).min(LONGEST_SLEEP_NS);
            let timeout = Timespec { tv_sec: 0, tv_nsec: sleep as i64 };
            let mut sources = [
                PollFd::from_borrowed_fd(self.sides[0].tap, PollFlags::IN),
                PollFd::from_borrowed_fd(self.sides[1].tap, PollFlags::IN),
                PollFd::new(self.doorbell.fd(), PollFlags::IN),
            ];
            match poll(&mut sources, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for the wire's frames"),
            }
            self.doorbell.quiet();
            self.awake_since = Instant::now();
        }
        ports.for_each(|port| port.wire_awake());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::thread;

    use towpath_device::virtio::HEADER_BYTES;
    use towpath_net::Link;

    use super::super::port::PortLink;
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A TAP's end, and the far end at which the kernel would be.
    fn tap() -> (UnixDatagram, UnixDatagram) {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    fn frame(to: [u8; 6], mark: u8) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + 60];
        bytes[HEADER_BYTES..HEADER_BYTES + 6].copy_from_slice(&to);
        bytes[HEADER_BYTES + 59] = mark;
        bytes
    }

    /// Returns the marks of the frames that the link has got.
    fn received(link: &mut PortLink) -> Vec<u8> {
        let mut marks = Vec::new();
        link.prepare().unwrap();
        link.receive(100, &mut |data, _| marks.extend(data.last())).unwrap();
        marks
    }

    #[test]
    fn frames_reach_those_that_they_are_for_and_no_sooner_than_due() {
        let ((first, from), (second, to)) = (tap(), tap());
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (port, mut link) = Port::new(MAC, doorbell.clone()).unwrap();
        let sides = [
            Side { tap: first.as_fd(), port: None },
            Side { tap: second.as_fd(), port: Some(port) },
        ];
        let delay = Duration::from_millis(3);
        let conditions = Conditions { delay, ..Conditions::NONE };
        let wire_thread = WireThread::new(sides, conditions, 1, doorbell).unwrap();
        let over = AtomicBool::new(false);
        let start = Instant::now();
        thread::scope(|scope| {
            let end = StopOnDrop(&over);
            let wire = scope.spawn(|| wire_thread.run(&over));
            let mut buffer = [0; 200];
            // The wire discards what comes before it runs.
            while to.recv(&mut buffer).is_err() {
                from.send(&frame([2, 0, 0, 0, 0, 1], 1)).unwrap();
                thread::sleep(Duration::from_millis(5));
                assert!(start.elapsed() < PATIENCE);
            }
            let sent = Instant::now();
            from.send(&frame(MAC, 2)).unwrap();
            from.send(&frame([0xff; 6], 3)).unwrap();
            let (mut by_link, mut by_kernel) = (Vec::new(), Vec::new());
            while !by_link.contains(&3) || !by_kernel.contains(&3) {
                by_link.extend(received(&mut link));
                if let Ok(len) = to.recv(&mut buffer) {
                    assert_eq!(len, HEADER_BYTES + 60);
                    by_kernel.push(buffer[len - 1]);
                }
                assert!(start.elapsed() < PATIENCE);
            }
            assert!(sent.elapsed() >= delay);
            assert_eq!(by_link, [2, 3]);
            by_kernel.retain(|mark| *mark != 1);
            assert_eq!(by_kernel, [3]);

            assert!(link.transmit(60, towpath_net::Meta::FULL, &mut |frame| frame.fill(4)));
            link.flush().unwrap();
            while from.recv(&mut buffer).is_err() {
                assert!(start.elapsed() < PATIENCE);
                thread::yield_now();
            }
            assert_eq!(buffer[HEADER_BYTES..HEADER_BYTES + 60], [4; 60]);
            drop(end);
            let carried = wire.join().unwrap().unwrap();
            assert_eq!((carried.counts[0].refused, carried.counts[1].entered), (0, 1));
        });
    }
}
