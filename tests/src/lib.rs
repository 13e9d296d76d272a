//! What tests of the whole system share: servers and applications as processes of their own, what
//! a server holds, frames whose every byte is checked, a session's memory as a hostile application
//! sees it, and the wire behind a TAP.
//!
//! The processes are those of the program `towpath-tests-peer`, whose first argument says what one
//! is; they are spoken to by lines on their standard input and answer by lines.

pub mod far;
pub mod frames;
pub mod memory;
pub mod process;
pub mod random;
pub mod raw;
pub mod served;
pub mod wire;

use std::time::{Duration, Instant};

/// How long anything that is to happen may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something is so.
///
/// # Panics
/// When it is not so within [`PATIENCE`].
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
