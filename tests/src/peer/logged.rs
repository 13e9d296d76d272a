//! The log of a server: this counts its lines, keeps the warnings and the last lines, and writes none.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The most warnings that are kept.
const MOST_WARNINGS: usize = 10_000;
/// The last lines that are kept.
const LAST: usize = 200;

/// Counts the log lines of this process that are shown by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logged {
    lines: Arc<AtomicU64>,
    warnings: Arc<Mutex<Vec<String>>>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Logged {
    /// Counts from now on.
    pub(crate) fn start() -> Logged {
        let logged = Logged::default();
        tracing::subscriber::set_global_default(logged.clone()).expect("the only one");
        logged
    }

    /// Returns the number of lines so far.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// Returns the last line that has a text.
    pub(crate) fn last_with(&self, text: &str) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().rev().find(|line| line.contains(text)).cloned()
    }

    /// Returns the warnings so far that name a user, but for those of how many of the user's lines were left out.
    pub(crate) fn warnings_of(&self, uid: u64) -> Vec<String> {
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let (field, words) = (format!(" uid={uid} "), format!(" user {uid} "));
        let names = |one: &&String| {
            (one.contains(&field) || one.contains(&words)) && !one.contains("were left out")
        };
        warnings.iter().filter(names).cloned().collect()
    }
}

impl Subscriber for Logged {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.lines.fetch_add(1, Ordering::Relaxed);
        let mut line = Line(String::from(" "));
        event.record(&mut line);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.push_back(line.0.clone());
        if last.len() > LAST {
            last.pop_front();
        }
        drop(last);
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < MOST_WARNINGS {
            warnings.push(line.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A line of the log: ` NAME=VALUE ` for each field.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        use std::fmt::Write;
        let _ = write!(self.0, "{field}={value:?} ");
    }
}
