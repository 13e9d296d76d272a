//! Conformance runs of the in-memory pair, one at a time.

use std::sync::{Mutex, PoisonError};

use towpath_device_testing::conformance::{self, Pair};

/// Each run has two threads that hardly sleep. Several at a time, on fewer processors, would take
/// many times as long as one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(crate) fn run(name: &str, make: impl Fn() -> Pair) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    conformance::run(name, 1, make);
}
