//! Hennrich, "User Level Device Driver am Beispiel von TCP": frames, wake-ups, polls of the device
//! and busy time in five seconds, sending and receiving, with and without each saving; the cost of
//! a frame, a wake-up and a poll, by least squares; the idle time against the number of switches;
//! the cost of each kind of switch by itself; the same table under TCP, with one notification per
//! packet, each saving alone, all, and Linux; and, beside Linux, the idle time at the same TCP
//! throughput both ways.
//!
//! Wake-ups stand for the paper's IPCs: both make a sleeping thread run. Polls of the device that
//! found nothing stand for its interrupts: calls of the driver beyond those that moved a frame.

mod account;
mod counted;
mod frames;
mod left;
mod setups;
mod switches;
mod table;
mod tcp;
mod way;

use std::time::Duration;

use anyhow::Context;
use towpath_client::{Kind, Setting, WaitStrategy};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::fit;
use crate::machine::two_cores;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};
use crate::techniques::{base, compared};
pub(crate) use left::CountIdle;

use frames::{Bench, Direction, Load, Sample};
use way::{RATE, Way};

/// The interface of this experiment.
const TAP: &str = "tpkar0";
/// Clocks that are compared with notifications.
const CLOCKS_HZ: [u64; 2] = [500, 4000];
/// Counts with a higher correlation than this cannot be told apart.
const TOLD_APART: f64 = 0.98;
/// Frames of a burst where one notification for all is compared with one for each.
const BURST: u32 = 16;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let window = Duration::from_millis(match settings {
        Settings { quick: true, .. } => 60,
        Settings { full: true, .. } => 5000,
        _ => 500,
    });
    let mut outcome = Outcome {
        how: format!(
            "frames of {} bytes over a TAP between an application and the kernel's UDP, at a rate \
             that all keep; all sleep when idle; engine on core {}, the application on core \
             {}; busy time, wake-ups and switches are of all threads of the application, the \
             server and the kernel's side, by the scheduler's own account; windows of {} ms, scaled \
             to the paper's 5 s; a thread of the idle class on each core measures the counted idle \
             time, in runs of its own",
            frames::FRAME_BYTES,
            cores.0,
            cores.1,
            window.as_millis()
        ),
        ..Outcome::default()
    };
    {
        let process = Process::start(&Serving::tap(TAP).on(cores.0), None)?;
        let mut bench = Bench::new(&process, TAP, cores)?;
        table(settings, &mut bench, window, &mut outcome)?;
        savings(settings, &mut bench, window, &mut outcome)?;
        bench.left = Some(left::Left::start(cores, settings)?);
        account::measure(settings, &mut bench, window, &mut outcome)?;
    }
    switches::measure(settings, cores, &mut outcome)?;
    table::measure(settings, window, &mut outcome)?;
    tcp::measure(settings, cores, window, &mut outcome)?;
    Ok(outcome)
}

/// Measures the paper's table, over rates and bursts; the fits; and idle time against switches.
fn table(
    settings: Settings,
    bench: &mut Bench<'_>,
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let rates: &[u32] =
        if settings.quick { &[5000, 10_000] } else { &[2500, 5000, 10_000, 20_000] };
    let bursts: &[u32] = if settings.quick { &[1, 4, 16] } else { &[1, 2, 4, 8, 16, 32] };
    let runs = if settings.quick { 2 } else { 5 };
    let mut figure = Figure::new(
        "idle-switches",
        &format!("Idle time by switches, {RATE} packets per second"),
        Axis::linear("context switches in 5 s", ""),
        Axis::linear("idle time of both cores", "%"),
    );
    let (mut all_counts, mut all_busy) = (Vec::new(), Vec::new());
    for direction in Direction::ALL {
        let (mut counts, mut busy, mut points) = (Vec::new(), Vec::new(), Vec::new());
        for &rate in rates {
            for &burst in bursts {
                let load = Load::bursts(direction, rate, burst);
                let samples = (0..runs)
                    .map(|_| bench.run(load, window))
                    .collect::<anyhow::Result<Vec<Sample>>>()?;
                let parameters =
                    [("packets_per_s", f64::from(rate)), ("packets_at_once", f64::from(burst))];
                show(outcome, direction.name(), &parameters, &samples);
                for sample in &samples {
                    counts.push(vec![sample.frames, sample.wake_ups, sample.polls]);
                    busy.push(sample.busy_s);
                    if rate == RATE {
                        points.push([sample.switches, 100.0 * sample.idle(2)]);
                    }
                }
            }
        }
        // A timer-driven engine polls the device without wake-ups by others. Else the costs of the
        // two could not be told apart.
        for hz in CLOCKS_HZ {
            let Some(way) = clocked(hz) else { continue };
            for _ in 0..runs {
                let load = Load::bursts(direction, RATE, 1);
                let sample = bench.run_so(&way, load, window)?;
                counts.push(vec![sample.frames, sample.wake_ups, sample.polls]);
                busy.push(sample.busy_s);
            }
        }
        cost(outcome, direction.name(), &counts, &busy);
        line(outcome, direction.name(), &points);
        figure.series.push(Series::dots(direction.name(), points));
        all_counts.extend(counts);
        all_busy.extend(busy);
    }
    cost(outcome, "both ways", &all_counts, &all_busy);
    outcome.figures.push(figure);
    Ok(())
}

/// Adds the paper's columns of one set-up.
fn show(outcome: &mut Outcome, what: &str, parameters: &[(&str, f64)], samples: &[Sample]) {
    let mut row = |column: &str, unit, value: &dyn Fn(&Sample) -> f64| {
        let values: Vec<f64> = samples.iter().map(value).collect();
        let name = format!("{what}, {column}");
        outcome.context.push(Row::new(&name, parameters, unit, &values));
    };
    row("packets", "in 5 s", &|sample| sample.frames);
    row("wake-ups", "in 5 s", &|sample| sample.wake_ups);
    row("empty polls of the device", "in 5 s", &|sample| sample.polls);
    row("busy", "s in 5 s", &|sample| sample.busy_s);
}

/// Computes the cost of each thing, and how much of the busy time these costs explain. If wake-ups
/// and polls of the device are correlated, their costs cannot be told apart, and are given as one.
fn cost(outcome: &mut Outcome, way: &str, counts: &[Vec<f64>], busy: &[f64]) {
    let column = |place: usize| counts.iter().map(|row| row[place]).collect::<Vec<_>>();
    let together = fit::correlation(&column(1), &column(2)).abs() > TOLD_APART;
    let (fit, things) = if together {
        let counts: Vec<Vec<f64>> = counts.iter().map(|row| row[..2].to_vec()).collect();
        let things = &["a packet", "a wake-up with its polls of the device"][..];
        (fit::least_squares(&counts, busy), things)
    } else {
        let things = &["a packet", "a wake-up", "an empty poll of the device"][..];
        (fit::least_squares(counts, busy), things)
    };
    for (place, thing) in things.iter().enumerate() {
        let us = fit.as_ref().map_or(f64::NAN, |fit| fit.costs[place] * 1e6);
        let name = format!("{way}: {thing} costs, by least squares");
        let row = Row::new(&name, &[], "us", &[us]);
        outcome.rows.push(Row { samples: busy.len(), ..row });
    }
    let explained = fit.map_or(f64::NAN, |fit| fit.explained);
    let name = format!("{way}: variation that these costs explain");
    let row = Row::new(&name, &[], "of 1", &[explained]);
    outcome.rows.push(Row { samples: busy.len(), ..row });
}

/// Computes how far idle time is a straight line of the switches.
fn line(outcome: &mut Outcome, way: &str, points: &[[f64; 2]]) {
    let (_, slope, explained) = fit::line(points).unwrap_or((f64::NAN, f64::NAN, f64::NAN));
    let parameters = [("packets_per_s", f64::from(RATE))];
    for (what, unit, value) in [
        ("idle time lost by a thousand switches in 5 s", "% of both cores", -slope * 1000.0),
        ("variation of idle time that a line through switches explains", "of 1", explained),
    ] {
        let row = Row::new(&format!("{way}: {what}"), &parameters, unit, &[value]);
        outcome.rows.push(Row { samples: points.len(), ..row });
    }
}

/// A way to save wake-ups, with and without it.
struct Saving {
    name: String,
    on: Way,
    off: Way,
    /// The directions in which it can make a difference.
    directions: &'static [Direction],
}

/// Returns all savings: each wait strategy against sleeping, and each way to send fewer
/// notifications.
fn all_savings() -> Vec<Saving> {
    let both = &Direction::ALL;
    let (sending, receiving) = (&[Direction::Sending], &[Direction::Receiving]);
    let saving = |name: &str, on: Way, off: Way, directions: &'static [Direction]| Saving {
        name: name.to_owned(),
        on,
        off,
        directions,
    };
    let plain = Way::plain;
    // Frames come in bursts with and without the saving, so timers and poll iterations are the
    // same. Only the notifying side, the application or the engine, notifies less often.
    let bursts = || Way::bursts(BURST);
    let one_ring = format!("one notification for {BURST} packets");
    let mut all = vec![
        saving(&one_ring, bursts(), Way { flushed: 1, ..bursts() }, sending),
        saving(&one_ring, bursts(), bursts().with(Setting::RxBatch, 1), receiving),
    ];
    for setting in [Setting::Wait, Setting::NotificationSuppression] {
        let spec = setting.spec();
        let Kind::Word(words) = spec.kind else { continue };
        for (value, against) in compared(words, base(setting)) {
            let (on, off) = (setting.show(value), setting.show(against));
            // A polling engine has no idle time, and saves nothing.
            if on == "poll" {
                continue;
            }
            all.push(saving(
                &format!("{}={on}, not {off}", spec.name),
                plain().with(setting, value),
                plain().with(setting, against),
                both,
            ));
        }
    }
    for hz in CLOCKS_HZ {
        if let Some(clocked) = clocked(hz) {
            all.push(saving(&format!("the engine's clock at {hz} Hz"), clocked, plain(), both));
        }
        let waiting = WaitStrategy::TimerDriven(hz as u32);
        let on = Way { waiting, ..plain() };
        all.push(saving(&format!("the application's clock at {hz} Hz"), on, plain(), receiving));
    }
    let on = Way { waiting: WaitStrategy::SpinThenBlock, ..plain() };
    all.push(saving("the application spins before it sleeps", on, plain(), receiving));
    all.push(saving(
        "a notification after 16 packets or 1 ms",
        plain().with(Setting::RxFrames, 16).with(Setting::RxUsecs, 1000),
        plain(),
        receiving,
    ));
    all
}

/// Returns a timer-driven engine of this many ticks per second.
fn clocked(hz: u64) -> Option<Way> {
    let clocked = Setting::Wait.parse("timer-driven").ok()?;
    Some(Way::plain().with(Setting::Wait, clocked).with(Setting::TickHz, hz))
}

fn savings(
    settings: Settings,
    bench: &mut Bench<'_>,
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for Saving { name, on, off, directions } in all_savings() {
        for &direction in directions {
            let bench = std::cell::RefCell::new(&mut *bench);
            let samples = std::cell::RefCell::new([Vec::new(), Vec::new()]);
            let run = |side: usize, way: &Way| {
                let Way { burst, flushed, .. } = *way;
                let load = Load { direction, rate: RATE, burst, flushed };
                let sample = bench
                    .borrow_mut()
                    .run_so(way, load, window)
                    .with_context(|| format!("{}, {name}: {way:?}", direction.name()))?;
                samples.borrow_mut()[side].push(sample);
                Ok(sample.busy_s)
            };
            let pairs = Pairs::measure(settings.pairs(), || run(0, &on), || run(1, &off))?;
            let parameters = [("packets_per_s", f64::from(RATE))];
            let title = format!("{}, busy, on to off: {name}", direction.name());
            outcome.rows.push(Row::new(&title, &parameters, "ratio", &pairs.ratios()));
            // The first of each is dropped: it warms the caches.
            let [with, without] = samples.into_inner().map(|side| side[1..].to_vec());
            let wake_ups = |side: &[Sample]| {
                Summary::of(&side.iter().map(|sample| sample.wake_ups).collect::<Vec<_>>()).median
            };
            let ratio = [wake_ups(&with) / wake_ups(&without)];
            let title = format!("{}, wake-ups, on to off: {name}", direction.name());
            let row = Row::new(&title, &parameters, "ratio", &ratio);
            outcome.context.push(Row { samples: with.len(), ..row });
            for (side, samples) in [("with", with), ("without", without)] {
                let title = format!("{}, {side} {name}", direction.name());
                show(outcome, &title, &parameters, &samples);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_saving_differs_from_its_baseline() {
        let all = all_savings();
        for (place, saving) in all.iter().enumerate() {
            assert_ne!(saving.on, saving.off, "{}", saving.name);
            let same = |other: &&Saving| {
                other.name == saving.name
                    && other.directions.iter().any(|one| saving.directions.contains(one))
            };
            assert_eq!(all[..place].iter().filter(same).count(), 0, "{}", saving.name);
            // A side that sends less often has fewer timers, which is not the compared saving.
            assert_eq!(saving.on.burst, saving.off.burst, "{}", saving.name);
        }
        let named = |part: &str| all.iter().filter(|saving| saving.name.contains(part)).count();
        assert!(
            named("wait=") >= 3
                && named("notification_suppression=on") == 1
                && named("clock at") == 4
        );
    }
}
