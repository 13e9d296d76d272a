//! Progress: one changing line on a terminal, a line every few seconds elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::traffic::Progress;

/// The time between two changes of the line on a terminal.
const TICK: Duration = Duration::from_millis(100);
/// The time between two lines elsewhere.
const SPARSE: Duration = Duration::from_secs(2);

/// Shows progress on standard error.
pub(super) struct Shown {
    terminal: bool,
    start: Instant,
    next: Instant,
    round_trips: u64,
    pings: u64,
}

impl Shown {
    pub(super) fn new(round_trips: u64, pings: u64) -> Shown {
        let now = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        let next = if terminal { now } else { now + SPARSE };
        Shown { terminal, start: now, next, round_trips, pings }
    }

    /// Shows the progress if it is time.
    pub(super) fn show(&mut self, progress: &Progress) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + if self.terminal { TICK } else { SPARSE };
        let text = format!(
            "{:4.1} s  HTTP {} MiB  UDP {}/{}  ping {}/{}",
            self.start.elapsed().as_secs_f64(),
            progress.bytes.load(Ordering::Relaxed) >> 20,
            progress.round_trips.load(Ordering::Relaxed),
            self.round_trips,
            progress.pings.load(Ordering::Relaxed),
            self.pings,
        );
        let mut out = std::io::stderr().lock();
        // The demonstration goes on without a reader of its progress.
        let _ = if self.terminal { write!(out, "\r\x1b[K{text}") } else { writeln!(out, "{text}") };
        let _ = out.flush();
    }

    /// Removes the line from a terminal.
    pub(super) fn clear(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
