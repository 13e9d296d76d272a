//! The log of a server: this counts its lines, keeps the last ones and writes none.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The lines that are kept.
const KEPT: usize = 200;

/// The log lines of this process that are shown by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logged(Arc<Lines>);

#[derive(Debug, Default)]
struct Lines {
    count: AtomicU64,
    last: Mutex<VecDeque<String>>,
}

/// The fields of a line.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
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
        self.0.count.load(Ordering::Relaxed)
    }

    /// Returns the last line that has a text.
    pub(crate) fn last_with(&self, text: &str) -> Option<String> {
        let last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().rev().find(|line| line.contains(text)).cloned()
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
        self.0.count.fetch_add(1, Ordering::Relaxed);
        let mut text = Text(String::new());
        event.record(&mut text);
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.push_back(text.0);
        if last.len() > KEPT {
            last.pop_front();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
