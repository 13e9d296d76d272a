//! Progress on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Reports progress on standard error.
pub(super) struct Progress {
    what: String,
    goal: u64,
    shown: Instant,
    live: bool,
}

impl Progress {
    pub(super) fn new(what: &str, goal: u64) -> Progress {
        let live = std::io::stderr().is_terminal();
        Progress { what: what.to_owned(), goal, shown: Instant::now(), live }
    }

    pub(super) fn at(&mut self, count: u64) {
        if self.live && self.shown.elapsed() >= Duration::from_secs(1) {
            self.shown = Instant::now();
            let percent = count.min(self.goal) * 100 / self.goal.max(1);
            eprint!("\r{}: {percent} % of {}", self.what, self.goal);
            let _ = std::io::stderr().flush();
        }
    }

    pub(super) fn done(&self, count: u64, took: Duration) {
        let clear = if self.live { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{}: {count} in {:.1} s, none lost", self.what, took.as_secs_f64());
    }
}
