//! Support for tests of the whole system: servers and applications as processes of their own, a
//! server's holdings, frames whose every byte is checked, a session's memory as a hostile
//! application sees it, and the wire behind a TAP.
//!
//! The processes run the program `towpath-tests-peer`, whose first argument selects a role. Tests
//! send lines to their standard input, and they answer by lines.

pub mod far;
pub mod frames;
pub mod memory;
pub mod process;
pub mod random;
pub mod raw;
pub mod served;
pub mod wire;

use std::time::{Duration, Instant};

/// The time within which an expected event must happen, or the test fails. It only ends a test that hangs: threads
/// that spin may take both processors from others for long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
///
/// # Panics
/// When it does not hold within [`PATIENCE`].
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
