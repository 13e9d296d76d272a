//! The reason for copying bytes: the cost of giving them to another owner by a copy, and by a
//! change of the pages' owner (section 3.5 of the paper), by their number. The round trips with
//! such buffers are in [`groups`](super::groups).

use std::time::{Duration, Instant};

use towpath_testkit::{Move, Pages};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};

/// From a cache line to the largest packet, each twice the last.
const SIZES: std::ops::RangeInclusive<u32> = 6..=16;

pub(super) fn measure(settings: Settings, outcome: &mut Outcome) -> anyhow::Result<()> {
    let window = Duration::from_micros(if settings.quick { 1000 } else { 10_000 });
    let mut pages = Pages::new(1 << SIZES.end())?;
    let mut curves = Move::ALL.map(|_| Vec::new());
    for shift in SIZES {
        let bytes = 1usize << shift;
        let parameters = [("bytes", bytes as f64)];
        for (place, how) in Move::ALL.into_iter().enumerate().skip(1) {
            let pages = std::cell::RefCell::new(&mut pages);
            let pairs = Pairs::measure(
                settings.pairs(),
                || once(&mut pages.borrow_mut(), how, bytes, window),
                || once(&mut pages.borrow_mut(), Move::Copy, bytes, window),
            )?;
            let name = format!("{} to copying", name(how));
            outcome.context.push(Row::new(&name, &parameters, "ratio", &pairs.ratios()));
            curves[place].push([bytes as f64, Summary::of(&pairs.ours).median]);
            if place == 1 {
                curves[0].push([bytes as f64, Summary::of(&pairs.base).median]);
                let row = Row::new(self::name(Move::Copy), &parameters, "ns", &pairs.base);
                outcome.context.push(row);
            }
            outcome.context.push(Row::new(self::name(how), &parameters, "ns", &pairs.ours));
        }
    }
    let figure = Figure::new(
        "copy-remap",
        "Giving bytes to another owner",
        Axis::log("bytes given", "B"),
        Axis::log("time", "ns"),
    );
    outcome.figures.push(
        Move::ALL
            .into_iter()
            .zip(curves)
            .fold(figure, |figure, (how, curve)| figure.with(Series::line(name(how), curve))),
    );
    Ok(())
}

fn name(how: Move) -> &'static str {
    match how {
        Move::Copy => "copying (memcpy)",
        Move::Protect => "changing protection (two mprotect)",
        Move::Remap => "mapping elsewhere (mremap)",
    }
}

/// Returns the nanoseconds of one move.
fn once(pages: &mut Pages, how: Move, bytes: usize, window: Duration) -> anyhow::Result<f64> {
    let (start, mut moves, mut sum) = (Instant::now(), 0_u32, 0_u64);
    loop {
        for _ in 0..8 {
            sum = sum.wrapping_add(pages.give(how, bytes)?);
        }
        moves += 8;
        let took = start.elapsed();
        if took >= window {
            std::hint::black_box(sum);
            return Ok(took.as_nanos() as f64 / f64::from(moves));
        }
    }
}
