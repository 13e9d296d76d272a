//! Measures two costs that decide the wait strategy: waking a sleeping thread on another core, and
//! passing a cache line to a running thread.
//!
//! Both measurements have a time limit: on a busy machine the figures are worse, but not late.
#![forbid(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

use towpath_sandbox::{Core, cores, pin};
use towpath_waiting::Costs;
use towpath_waiting::wake_ups::round_trips;

use super::finding::{Finding, Standing};

/// The most round trips.
const WAKE_UPS: usize = 1000;

/// Round trips of the cache line per sample, and the number of samples.
const LINE_TRIPS: u64 = 200;
const LINE_SAMPLES: usize = 100;

/// The time limit of each measurement.
const TIME_LIMIT: Duration = Duration::from_millis(150);

/// A median and a 99th percentile.
struct Spread {
    median: Duration,
    p99: Duration,
    samples: usize,
}

impl Spread {
    fn of(mut samples: Vec<Duration>) -> Option<Spread> {
        samples.sort_unstable();
        let at = |per_cent: usize| {
            samples
                .get((samples.len() * per_cent / 100).min(samples.len().checked_sub(1)?))
                .copied()
        };
        Some(Spread { median: at(50)?, p99: at(99)?, samples: samples.len() })
    }
}

pub(super) fn look() -> Vec<Finding> {
    let list = cores().unwrap_or_default();
    let Some((here, there)) = two_cores(&list) else {
        return vec![
            Finding::new(
                "wake-up",
                Standing::Limited,
                "not measured: one CPU",
                "each exchange between server and application switches threads",
            )
            .remedy("a machine, container or affinity with two CPUs"),
        ];
    };
    vec![wake_up(here, there), cache_line(here, there), waiting()]
}

/// Returns C and α of Smith and Traw, "Giving Applications Access to Gb/s Networking", and their
/// consequences.
fn waiting() -> Finding {
    let Ok(costs) = Costs::measure() else { return not_measured("waiting") };
    let Ok([frame, ..]) = towpath_engine::solo::packet_costs() else {
        return not_measured("waiting");
    };
    let ns = |ns: u64| micros(Duration::from_nanos(ns));
    let found = format!(
        "C, processor time per wake-up: {} by a notification, {} by a timer, whose delay is {}; \
         \u{3b1}, processor time per packet: {frame:.0} ns",
        ns(costs.wake_up_cpu),
        ns(costs.tick_cpu),
        ns(costs.tick_late),
    );
    let notified = 1e9 / (costs.wake_up_cpu as f64 + frame);
    let slept = 1_000_000_000 / costs.least_sleep();
    let means = format!(
        "a processor carries {notified:.0} packets per second if each packet wakes it, and {:.0} \
         with 1000 ticks per second; wait=timer-driven sleeps between ticks up to {slept} Hz, and \
         spins above; with a latency bound below {}, wait=auto does not sleep",
        (1e9 - 1000.0 * costs.tick_cpu as f64).max(0.0) / frame,
        ns(costs.wake_up),
    );
    Finding::new("waiting", Standing::Ok, found, means)
}

/// Returns two CPUs, of two cores if there are two.
fn two_cores(list: &[Core]) -> Option<(usize, usize)> {
    let first = list.first()?;
    let other = list.iter().find(|core| (core.package, core.core) != (first.package, first.core));
    let other = other.or(list.get(1))?;
    Some((first.cpu, other.cpu))
}

fn wake_up(here: usize, there: usize) -> Finding {
    let across = wake_up_round_trip(here, there).ok().and_then(Spread::of);
    let on_one = wake_up_round_trip(here, here).ok().and_then(Spread::of);
    let (Some(across), Some(on_one)) = (across, on_one) else {
        return not_measured("wake-up");
    };
    // A round trip is two wake-ups.
    let cost = across.median / 2;
    Finding::new(
        "wake-up",
        Standing::Ok,
        format!(
            "{} from CPU {here} to CPU {there} (99th percentile {}), {} on one CPU; {} round trips",
            micros(cost),
            micros(across.p99 / 2),
            micros(on_one.median / 2),
            across.samples,
        ),
        format!("about {} per sleep with wait=block; wait=poll does not sleep", micros(cost)),
    )
}

fn cache_line(here: usize, there: usize) -> Finding {
    let Some(trip) = cache_line_round_trip(here, there).ok().and_then(Spread::of) else {
        return not_measured("cache line");
    };
    let found = format!(
        "{} ns from CPU {here} to CPU {there} and back (99th percentile {} ns); {} samples",
        trip.median.as_nanos(),
        trip.p99.as_nanos(),
        trip.samples,
    );
    // A preempted thread costs milliseconds; a line from another socket 500 ns.
    if trip.median > Duration::from_micros(2) {
        let means = "other work takes the CPUs from spinning threads: wait=block is better here";
        return Finding::new("cache line", Standing::Limited, found, means)
            .remedy("CPUs without other work, or a container without a CPU quota");
    }
    let means = "the cost of handing a batch to a side that is awake";
    Finding::new("cache line", Standing::Ok, found, means)
}

fn not_measured(name: &'static str) -> Finding {
    Finding::new(
        name,
        Standing::Limited,
        "not measured: threads cannot be started or placed",
        "choose the wait strategy yourself: towpath serve --wait",
    )
    .remedy("allow sched_setaffinity and eventfd to this process")
}

fn micros(time: Duration) -> String {
    format!("{:.1} us", time.as_secs_f64() * 1e6)
}

/// Measures round trips between two threads that sleep until the other notifies them.
fn wake_up_round_trip(here: usize, there: usize) -> io::Result<Vec<Duration>> {
    Ok(round_trips(Some([here, there]), WAKE_UPS, TIME_LIMIT)?.times)
}

/// A word in a cache line of its own. Processors fetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// The value that ends the measurement.
const OVER: u64 = u64::MAX;

/// Measures round trips of a word that one thread writes and the other answers, both awake.
fn cache_line_round_trip(here: usize, there: usize) -> io::Result<Vec<Duration>> {
    let (call, answer) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let limit = Instant::now() + TIME_LIMIT;
    // The thread waits for a preempted partner at most as long as the measurement may take.
    let until = |line: &Line, value: u64| -> bool {
        for turn in 1_u64.. {
            let seen = line.0.load(Acquire);
            if seen == value {
                return true;
            }
            if seen == OVER || (turn % 4096 == 0 && Instant::now() > limit) {
                break;
            }
            std::hint::spin_loop();
        }
        false
    };
    std::thread::scope(|scope| {
        let partner = std::thread::Builder::new().spawn_scoped(scope, || {
            pin(there)?;
            for value in 1.. {
                if !until(&call, value) {
                    break;
                }
                answer.0.store(value, Release);
            }
            answer.0.store(OVER, Release);
            Ok(())
        })?;
        let caller = std::thread::Builder::new().spawn_scoped(scope, || {
            let pinned = pin(here);
            let mut samples = Vec::with_capacity(LINE_SAMPLES);
            let mut value = 0;
            'samples: while pinned.is_ok() && samples.len() < LINE_SAMPLES {
                let start = Instant::now();
                for _ in 0..LINE_TRIPS {
                    value += 1;
                    call.0.store(value, Release);
                    if !until(&answer, value) {
                        break 'samples;
                    }
                }
                samples.push(start.elapsed() / LINE_TRIPS as u32);
            }
            call.0.store(OVER, Release);
            pinned.map(|()| samples)
        })?;
        let samples = joined(caller.join())?;
        joined(partner.join())?;
        Ok(samples)
    })
}

fn joined<T>(result: std::thread::Result<io::Result<T>>) -> io::Result<T> {
    result.unwrap_or_else(|_| Err(io::Error::other("a measuring thread ended early")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_end_in_time_and_measure_something() {
        let list = cores().unwrap();
        let here = list[0].cpu;
        let there = two_cores(&list).map_or(here, |(_, there)| there);
        let start = Instant::now();
        let spread = Spread::of(wake_up_round_trip(here, there).unwrap()).unwrap();
        assert!(spread.median > Duration::ZERO && spread.p99 >= spread.median);
        // On one CPU the line never comes in time; on two it may.
        let lines = cache_line_round_trip(here, there).unwrap();
        assert!(lines.len() <= LINE_SAMPLES);
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn waiting_costs_are_reported_as_numbers() {
        let row = waiting();
        assert_eq!(row.name, "waiting");
        // The figures depend on the machine; none of them is zero or absurdly large.
        let numbers = |text: &str| {
            let parts = text.split(|c: char| !c.is_ascii_digit() && c != '.');
            parts.filter_map(|part| part.parse::<f64>().ok()).collect::<Vec<_>>()
        };
        let (found, means) = (numbers(&row.found), numbers(&row.means));
        assert!(found.len() == 4 && found.iter().all(|one| *one > 0.0), "{}", row.found);
        let [notified, ticked, 1000.0, slept, latency] = means[..] else { panic!("{}", row.means) };
        // A packet with a wake-up also costs that wake-up; the shortest sleep is 10 to 100 us.
        assert!(0.0 < notified && notified < ticked, "{}", row.means);
        assert!((10_000.0..=100_000.0).contains(&slept) && latency > 0.0, "{}", row.means);
    }

    #[test]
    fn two_cores_are_better_than_two_threads_of_one() {
        let core = |cpu, core| Core { cpu, core, package: 0 };
        assert_eq!(two_cores(&[core(0, 0), core(1, 0), core(2, 1)]), Some((0, 2)));
        assert_eq!(two_cores(&[core(0, 0), core(1, 0)]), Some((0, 1)));
        assert_eq!(two_cores(&[core(3, 0)]), None);
        assert_eq!(two_cores(&[]), None);
        assert!(Spread::of(Vec::new()).is_none());
        let spread = Spread::of((1..=100).map(Duration::from_nanos).collect()).unwrap();
        assert_eq!((spread.median.as_nanos(), spread.p99.as_nanos()), (51, 100));
    }
}
