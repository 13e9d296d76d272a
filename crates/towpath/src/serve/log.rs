//! The log of a server and of its keeper.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use super::settings::Level;
use crate::standard_error;

/// Starts the log on standard error. `RUST_LOG` overrides the level.
pub(super) fn start_log(level: Level) {
    let level = match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    standard_error::turn_on();
    let outcome = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Writer)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // The server goes on without its log.
        .log_internal_errors(false)
        .try_init();
    // Only a second start in one process could fail.
    debug_assert!(outcome.is_ok());
}

/// Leaves lines of the log in the queue.
#[derive(Debug)]
struct Writer;

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        standard_error::add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
