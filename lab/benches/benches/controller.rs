//! Microbenchmarks of the controller of the wait strategy `auto`, for quick work on one function
//! of it.
//!
//! The engine asks the controller after each poll iteration. Time is an argument, so nothing
//! sleeps here.
//!
//! | benchmark | an iteration |
//! |---|---|
//! | `controller/look` | a decision after a poll that found 32 packets and left more |
//! | `controller/sleep` | a decision after a poll that took all work, and the end of that sleep |
//!
//! ```text
//! cargo bench --manifest-path lab/Cargo.toml -p towpath-benches --bench controller
//! ```
//!
//! The results are no figures of the documents: `towpath-lab` measures the cost of waiting, with
//! the clock and the scheduler.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use towpath_waiting::{Bounds, Controller, Costs, Found, Next, Step};

/// The time between two polls of a side with work, and between two packets for a sleeping side, in
/// nanoseconds.
const POLL: u64 = 10_000;
const IDLE: u64 = 1_000_000;

/// Returns a controller, and a time at which it has run for a second.
fn controller() -> (Controller, u64) {
    let bounds = Bounds { latency: 200_000, cpu_percent: 100, packets: 1024 };
    (Controller::new(bounds, Costs::USUAL), 1_000_000_000)
}

fn poll(criterion: &mut Criterion) {
    let (mut controller, mut now) = controller();
    criterion.bench_function("controller/look", |bencher| {
        bencher.iter(|| {
            now += POLL;
            let next = controller.after(now, black_box(Found::received(32)), false);
            assert_eq!(next, Next::Take(Step::Poll));
        });
    });
}

fn sleep(criterion: &mut Criterion) {
    let (mut controller, mut now) = controller();
    criterion.bench_function("controller/sleep", |bencher| {
        bencher.iter(|| {
            let next = controller.after(now, black_box(Found::received(1)), true);
            now = match black_box(next) {
                Next::Take(Step::Poll | Step::Block) => now + IDLE,
                Next::Take(Step::Spin { until } | Step::SleepUntil { until })
                | Next::Throttle { until } => until,
            };
            controller.woke(now);
        });
    });
}

criterion_group! {
    name = benches;
    config = towpath_benches::short();
    targets = poll, sleep
}
criterion_main!(benches);
