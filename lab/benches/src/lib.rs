//! Shared parts of the microbenchmarks of `benches/`. They are a package of their own so that a
//! build of the tests does not compile Criterion.
#![forbid(unsafe_code)]

use std::time::Duration;

use criterion::Criterion;

/// Returns a configuration with which the benchmarks of one program together take under a minute.
#[must_use]
pub fn short() -> Criterion {
    let criterion = Criterion::default();
    criterion.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}
