//! Direct hand-off and a queue between threads of one program, over one device with a descriptor
//! ring, by the cost of a kick.
//!
//! Three ways: the optimistic section of `towpath-embedded`, which places a packet directly in the
//! ring; one mutex around the same driver, as Watson's patch has it; and a queue and a driver with
//! a mutex each, as before his patch.

use std::time::Duration;

use anyhow::{Context, ensure};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback::{self, Timing};
use towpath_embedded::{Config, Counts, Embedded, Protection, SendError};

use super::kicks::KICKS_NS;
use super::locks::TwoLocks;
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::race::{FRAME_BYTES, race};
use crate::report::{Outcome, Row};
use crate::statistics::{Summary, in_turn, ratios};

/// A thread that hands its packet over directly saves the queue, and waits for no other thread.
const AT_LEAST: f64 = 1.0;
/// The highest cost of a kick for which one thread's row has the limit, in nanoseconds. The kicks
/// of one thread cost the same in all ways, and hide a gain of less than a hundredth.
const LIMITED_KICK_NS: u64 = 1600;
/// Packets of a run, all threads together. The ring holds all, since no core is left to empty it
/// during a run.
const PACKETS: u64 = 16_384;
const LEAST_PACKETS: u64 = 512;
/// The time that the kicks of a run may take.
const KICKS_TIME: Duration = Duration::from_millis(10);
const WAYS: [&str; 3] = ["directly", "directly, under a mutex", "through a queue, two mutexes"];

/// Returns the number of pairs: many short runs, so that other load disturbs a few of them and not
/// the median.
fn pairs(settings: Settings) -> usize {
    settings.pairs() * 3
}

/// One of the three ways, with the far end of its device.
struct Way<T> {
    near: T,
    far: DeviceFarEnd,
    sent: u64,
}

impl<T: Sync> Way<T> {
    fn new(
        timing: Timing,
        start: impl FnOnce(Box<loopback::LoopbackDevice>) -> anyhow::Result<T>,
    ) -> anyhow::Result<Way<T>> {
        let config = loopback::Config {
            // The shortest MTU makes the rings small enough for the caches.
            mtu: 68,
            offloads: false,
            ring_packets: PACKETS as usize,
            tx_descriptors: PACKETS as usize,
            tx_asynchronous: true,
            timing,
            ..loopback::Config::default()
        };
        let (near, far) = loopback::pair(&config)?;
        let far = DeviceFarEnd::new(Box::new(far));
        Ok(Way { near: start(Box::new(near))?, far, sent: 0 })
    }

    /// Makes threads send, and receives all packets after that. Returns the nanoseconds per packet.
    fn run(
        &mut self,
        case: &Case,
        send: impl Fn(&T, &[u8]) -> Result<(), SendError> + Sync,
    ) -> anyhow::Result<f64> {
        let (near, packets) = (&self.near, case.packets / case.threads as u64);
        let took = race(case.cores, case.threads, packets, |_, packet| send(near, packet))?;
        let sent = packets * case.threads as u64;
        let mut received = 0;
        while let Some((frame, _)) = self.far.receive() {
            ensure!(frame.len() == FRAME_BYTES, "a packet of {} bytes", frame.len());
            received += 1;
        }
        ensure!(received == sent, "{received} of {sent} packets arrived");
        self.sent += sent;
        Ok(took)
    }
}

/// One comparison of the ways.
struct Case {
    cores: (usize, usize),
    threads: usize,
    kick_ns: u64,
    packets: u64,
    pairs: usize,
}

/// What the ways counted, per packet.
struct PerPacket {
    /// Entries into the section, packets left for another thread.
    entered: f64,
    left: f64,
    one: Contention,
    two: Contention,
    /// Of the two mutexes, waits for the driver's.
    waited_for_driver: f64,
}

/// The locks of a way per packet.
struct Contention {
    locked: f64,
    /// Locks for which a thread waited, and how long, in nanoseconds.
    waited: f64,
    waited_ns: f64,
}

impl Case {
    fn new(settings: Settings, cores: (usize, usize), threads: usize, kick_ns: u64) -> Case {
        let most = KICKS_TIME.as_nanos() as u64 / kick_ns.max(1);
        let packets = most.clamp(LEAST_PACKETS, PACKETS);
        Case { cores, threads, kick_ns, packets, pairs: pairs(settings) }
    }

    /// Returns the nanoseconds per packet of each way, and what they counted.
    fn measure(&self) -> anyhow::Result<(Vec<Vec<f64>>, PerPacket)> {
        let kick_time = Duration::from_nanos(self.kick_ns);
        let timing = Timing { kick_time, ..Timing::default() };
        let mut section = Way::new(timing, |device| Ok(Embedded::new(device, Config::default())?))?;
        let locked = Config { write: Protection::Mutex, ..Config::default() };
        let mut one = Way::new(timing, |device| Ok(Embedded::new(device, locked)?))?;
        let mut two = Way::new(timing, |device| TwoLocks::new(device))?;
        let values = in_turn(
            self.pairs,
            &mut [
                &mut || section.run(self, Embedded::send),
                &mut || one.run(self, Embedded::send),
                &mut || two.run(self, TwoLocks::send),
            ],
        )?;
        let counts = settled(&section)?;
        let of_one = settled(&one)?;
        let of_two = two.near.settle(two.sent)?;
        let sent = section.sent;
        let per = |count: u64| count as f64 / sent as f64;
        let counted = PerPacket {
            entered: per(counts.entered),
            left: per(counts.left),
            one: Contention {
                locked: per(of_one.entered),
                waited: per(of_one.contended),
                waited_ns: per(of_one.blocked_ns),
            },
            two: Contention {
                locked: per(of_two.locked),
                waited: per(of_two.waited + of_two.waited_for_queue),
                waited_ns: per(of_two.waited_ns),
            },
            waited_for_driver: per(of_two.waited),
        };
        Ok((values, counted))
    }
}

/// Returns the counts of a driver that took all packets.
fn settled(way: &Way<Embedded>) -> anyhow::Result<Counts> {
    let counts = way.near.counts().context("a thread is still inside")?;
    let sent = way.sent;
    ensure!(counts.taken == sent && counts.direct + counts.left == sent, "{counts:?}");
    Ok(counts)
}

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for threads in [1, 2] {
        let mut curves = [Vec::new(), Vec::new(), Vec::new()];
        for kick_ns in KICKS_NS {
            let (values, counted) = Case::new(settings, cores, threads, kick_ns).measure()?;
            rows(threads, kick_ns, &values, &counted, outcome);
            for (curve, values) in curves.iter_mut().zip(&values) {
                curve.push([kick_ns.max(50) as f64, Summary::of(values).median]);
            }
        }
        let figure = Figure::new(
            &format!("threads-{threads}"),
            &format!("A packet of {threads} thread(s) to a ring by the cost of a kick (50: none)"),
            Axis::log("kick", "ns"),
            Axis::log("packet", "ns"),
        );
        let series = WAYS.into_iter().zip(curves).map(|(name, curve)| Series::line(name, curve));
        outcome.figures.push(series.fold(figure, Figure::with));
    }
    Ok(())
}

fn rows(
    threads: usize,
    kick_ns: u64,
    values: &[Vec<f64>],
    counted: &PerPacket,
    outcome: &mut Outcome,
) {
    let parameters = [("threads", threads as f64), ("kick_ns", kick_ns as f64)];
    let row = |name: &str, unit, values: &[f64]| {
        Row::new(&format!("threads of one program, {name}"), &parameters, unit, values)
    };
    let [direct, mutex, queued] = values else { return };
    let title = "handed over directly, to through a queue with two mutexes";
    let ratio = row(title, "ratio of packets/s", &ratios(queued, direct));
    let is_limited = threads > 1 || kick_ns <= LIMITED_KICK_NS;
    outcome.rows.push(if is_limited { ratio.at_least(AT_LEAST) } else { ratio });
    let title = "directly under a mutex, to through a queue with two mutexes";
    outcome.rows.push(row(title, "ratio of packets/s", &ratios(queued, mutex)));
    for (name, values) in WAYS.into_iter().zip(values) {
        outcome.context.push(row(name, "ns", values));
    }
    for (name, value) in [
        ("directly: times inside", counted.entered),
        ("directly: left for another thread", counted.left),
        ("through a queue: locks", counted.two.locked),
        ("through a queue: waits for the driver's mutex", counted.waited_for_driver),
        ("through a queue: waits for either mutex", counted.two.waited),
        ("directly, under a mutex: locks", counted.one.locked),
        ("directly, under a mutex: waits for the mutex", counted.one.waited),
    ] {
        outcome.context.push(row(name, "a packet", &[value]));
    }
    // A thread that finds another one inside of the section waits for nothing.
    for (name, value) in [
        ("through a queue: time blocked", counted.two.waited_ns),
        ("directly, under a mutex: time blocked", counted.one.waited_ns),
    ] {
        outcome.context.push(row(name, "ns a packet", &[value]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_send_every_packet_and_locks_are_counted() {
        if towpath_testkit::cores().unwrap().len() < 2 {
            println!("SKIP all_ways_send_every_packet: one core; two threads are pinned to two");
            return;
        }
        let cores = crate::machine::two_cores().unwrap();
        for threads in [1, 2] {
            let case = Case { cores, threads, kick_ns: 0, packets: 2_000, pairs: 1 };
            let (values, counted) = case.measure().unwrap();
            assert_eq!(values.len(), WAYS.len());
            // Three locks: to insert, of the driver, and to remove, where no packets are removed
            // together.
            assert!(counted.two.locked >= 2.0, "{}", counted.two.locked);
            assert!((1.0..1.1).contains(&counted.one.locked), "{}", counted.one.locked);
            for one in [&counted.one, &counted.two] {
                assert_eq!(one.waited == 0.0, one.waited_ns == 0.0, "each wait takes time");
            }
            if threads == 1 {
                assert_eq!((counted.left, counted.one.waited, counted.two.waited), (0.0, 0.0, 0.0));
                assert!((3.0..3.01).contains(&counted.two.locked), "{}", counted.two.locked);
                assert!((1.0..1.01).contains(&counted.entered), "{}", counted.entered);
            }
        }
    }
}
