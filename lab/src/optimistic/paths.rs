//! The write path and the read path apart, after figure 2 of Tracey and Banerji: both under a mutex,
//! the write path optimistic, and both.
//!
//! A client sends a packet and reads the answer, while another thread handles the device's
//! interrupts. With a mutex, each of the two waits while the other one is inside of the driver, or of
//! the client's queue. With optimistic protection, an interrupt's work is left to the client inside,
//! and a packet that comes while the client reads is deferred. A stream to a second client keeps the
//! thread that handles interrupts busy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_embedded::{Config, Counts, Embedded, Protection, Reader, ReaderCounts};
use towpath_testkit::pin;

use crate::Settings;
use crate::race::FRAME_BYTES;
use crate::report::{Outcome, Row};
use crate::statistics::{in_turn, ratios};

/// Where a packet says which client reads it, and which packet it is.
const CLIENT_AT: usize = 14;
const NUMBER_AT: usize = 15;
const CLIENT: u8 = 0;
const STREAM: u8 = 1;
/// The part of the fastest round trips whose mean counts: the paper's 4000 of 5 x 2^10.
const COUNTED: f64 = 4000.0 / 5120.0;
const ROUND_TRIPS: usize = 5120;
const QUICK_ROUND_TRIPS: usize = 512;
/// A round trip that takes longer than this is an error: a lost packet or a lost wake-up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The paper's versions of the driver, cumulative.
const VERSIONS: [(&str, Protection, Protection); 3] = [
    ("both under a mutex", Protection::Mutex, Protection::Mutex),
    ("write path optimistic", Protection::Optimistic, Protection::Mutex),
    ("write and read path optimistic", Protection::Optimistic, Protection::Optimistic),
];

/// What a version did in a run.
struct Run {
    /// The mean of the fastest round trips, the fastest one, and that of which 1 of 1000 is slower,
    /// in nanoseconds.
    mean_ns: f64,
    lowest_ns: f64,
    slow_ns: f64,
    counts: Counts,
    reader: ReaderCounts,
}

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let round_trips = if settings.quick { QUICK_ROUND_TRIPS } else { ROUND_TRIPS };
    let runs = VERSIONS.map(|_| std::cell::RefCell::new(Vec::new()));
    let mut measured: Vec<_> = VERSIONS
        .iter()
        .zip(&runs)
        .map(|((_, write, read), runs)| {
            move || {
                let run = run(cores, (*write, *read), round_trips)?;
                let mean = run.mean_ns;
                runs.borrow_mut().push(run);
                Ok(mean)
            }
        })
        .collect();
    let mut things: Vec<_> =
        measured.iter_mut().map(|one| one as crate::statistics::Measured<'_>).collect();
    let means = in_turn(settings.pairs(), &mut things)?;
    drop(things);
    drop(measured);
    let runs = runs.map(std::cell::RefCell::into_inner);
    let lowest = |runs: &[Run]| runs.iter().map(|run| run.lowest_ns).collect::<Vec<_>>();
    let base = &runs[0][runs[0].len() - means[0].len()..];
    for (place, (name, ..)) in VERSIONS.iter().enumerate() {
        // The first run of each finds caches cold, and does not count.
        let of = &runs[place][runs[place].len() - means[place].len()..];
        if place > 0 {
            for (what, ours, base) in [
                ("average", means[place].clone(), means[0].clone()),
                ("lowest", lowest(of), lowest(base)),
            ] {
                let title = format!("round trip, {name}, to both under a mutex: {what}");
                outcome.rows.push(Row::new(&title, &[], "ratio", &ratios(&ours, &base)));
            }
        }
        context(name, of, outcome);
    }
    Ok(())
}

/// Adds the rows of a version.
fn context(name: &str, runs: &[Run], outcome: &mut Outcome) {
    let mut add = |what: &str, unit: &str, value: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(value).collect();
        outcome.context.push(Row::new(&format!("round trip, {name}: {what}"), &[], unit, &values));
    };
    let per = |value: u64, run: &Run| value as f64 / run.counts.taken as f64;
    add("average", "ns", &|run| run.mean_ns);
    add("lowest", "ns", &|run| run.lowest_ns);
    add("999 of 1000 are over within", "us", &|run| run.slow_ns / 1000.0);
    add("waits for the driver's mutex", "a packet", &|run| per(run.counts.contended, run));
    add("time blocked by the driver's mutex", "ns a packet", &|run| {
        per(run.counts.blocked_ns, run)
    });
    add("waits for the client's mutex", "a packet", &|run| per(run.reader.contended, run));
    add("packets left to the thread inside", "a packet", &|run| per(run.counts.left, run));
    add("interrupts left to the thread inside", "a packet", &|run| {
        per(run.counts.interrupts_left, run)
    });
    add("packets deferred while the client reads", "a packet", &|run| {
        per(run.reader.deferred, run)
    });
}

/// Measures round trips with a version.
fn run(
    cores: (usize, usize),
    (write, read): (Protection, Protection),
    round_trips: usize,
) -> anyhow::Result<Run> {
    let (near, far) = loopback::pair(&loopback::Config::default())?;
    let mut far = DeviceFarEnd::new(Box::new(far));
    let config = Config { write, read, ..Config::default() };
    let choose = |packet: &[u8]| packet.get(CLIENT_AT).map(|client| usize::from(*client));
    let (driver, readers) = Embedded::with_readers(Box::new(near), config, 2, choose)?;
    let [mut client, mut stream]: [Reader; 2] =
        readers.try_into().map_err(|_| anyhow::anyhow!("two readers"))?;
    let over = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        let handling = scope.spawn(|| {
            pin(cores.0)?;
            handle_interrupts(&driver, &mut far, &over);
            anyhow::Ok(())
        });
        let reading = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if stream.read(32, |_, _| ()) == Ok(0) {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        });
        let times = pin(cores.1)
            .map_err(anyhow::Error::from)
            .and_then(|()| send_and_read(&driver, &mut client, round_trips));
        over.store(true, Ordering::Relaxed);
        let failed = || anyhow::anyhow!("a thread failed");
        handling.join().map_err(|_| failed())??;
        reading.join().map_err(|_| failed())?;
        times
    })?;
    summary(times, &driver, client.counts())
}

fn summary(mut times: Vec<f64>, driver: &Embedded, reader: ReaderCounts) -> anyhow::Result<Run> {
    times.sort_unstable_by(f64::total_cmp);
    let counted = ((times.len() as f64 * COUNTED) as usize).max(1);
    let slow = times.len() - 1 - times.len() / 1000;
    let counts = driver.counts().context("a thread is still inside")?;
    ensure!(reader.dropped_full + reader.dropped_deferred == 0, "{reader:?}");
    Ok(Run {
        mean_ns: times[..counted].iter().sum::<f64>() / counted as f64,
        lowest_ns: times[0],
        slow_ns: times[slow],
        counts,
        reader,
    })
}

/// Sends each packet of the far end back, with one of the stream, and handles interrupts.
fn handle_interrupts(driver: &Embedded, far: &mut DeviceFarEnd, over: &AtomicBool) {
    let mut stream = [0; FRAME_BYTES];
    stream[CLIENT_AT] = STREAM;
    while !over.load(Ordering::Relaxed) {
        while let Some((frame, _)) = far.receive() {
            // What finds no room is lost, as on a wire; the client then fails.
            far.send(&stream, Meta::FULL);
            far.send(&frame, Meta::FULL);
        }
        driver.interrupt();
    }
}

/// Returns the nanoseconds of each round trip.
fn send_and_read(
    driver: &Embedded,
    client: &mut Reader,
    round_trips: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::with_capacity(round_trips);
    let mut packet = [0; FRAME_BYTES];
    packet[CLIENT_AT] = CLIENT;
    for number in 0..round_trips as u64 {
        packet[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
        let start = Instant::now();
        driver.send(&packet)?;
        let mut is_back = false;
        while !is_back {
            client.read(1, |answer, _| is_back = answer == packet)?;
            ensure!(is_back || start.elapsed() < PATIENCE, "packet {number} did not come back");
        }
        times.push(start.elapsed().as_nanos() as f64);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_brings_each_packet_back() {
        if towpath_testkit::cores().unwrap().len() < 2 {
            println!("SKIP each_version_brings_each_packet_back: one core; two threads are pinned");
            return;
        }
        let cores = crate::machine::two_cores().unwrap();
        for (name, write, read) in VERSIONS {
            let run = run(cores, (write, read), 200).unwrap();
            assert_eq!((run.counts.taken, run.reader.read), (200, 200), "{name}");
            assert!(run.lowest_ns > 0.0 && run.lowest_ns <= run.mean_ns);
            if write == Protection::Optimistic {
                assert_eq!(run.counts.contended, 0, "{name}");
            }
            if read == Protection::Optimistic {
                assert_eq!(run.reader.contended, 0, "{name}");
            } else {
                assert_eq!(run.reader.deferred, 0, "{name}");
            }
        }
    }
}
