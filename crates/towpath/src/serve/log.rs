//! The log of a server and of its keeper, on standard error.
//!
//! The reader of standard error may stand still: a pipe to a stopped program, a terminal that is paused. So no thread
//! but that of the log waits for it. Others leave lines in a queue of bounded length, and a line that finds no room
//! there is dropped and counted.
//!
//! The thread starts after its process has given up its rights, since each thread has rights of its own
//! (`confine.rs`). Before that, lines go out at once as far as standard error takes them without waiting.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing_subscriber::EnvFilter;

use super::settings::Level;

/// The most bytes of lines that wait for the reader of standard error.
const MOST_BYTES: usize = 256 << 10;
/// The longest time that the end of a process waits for that reader.
const END_WAIT: Duration = Duration::from_secs(1);

/// The bytes for which a pipe has room when poll(2) says so (`PIPE_BUF`).
const PIPE_BYTES: usize = 4096;

/// The lines that wait, of all threads.
static QUEUE: Queue = Queue { lines: Mutex::new(Lines::new()), changed: Condvar::new() };

struct Queue {
    lines: Mutex<Lines>,
    /// Notified when a line comes, and when all have gone.
    changed: Condvar,
}

struct Lines {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines dropped since the last report of them.
    dropped: u64,
    is_on: bool,
    has_thread: bool,
    /// `true` while the log's thread writes lines that it has taken.
    is_writing: bool,
}

impl Lines {
    const fn new() -> Lines {
        Lines {
            waiting: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            is_on: false,
            has_thread: false,
            is_writing: false,
        }
    }

    /// Adds a line, or counts it as dropped.
    fn add(&mut self, line: &[u8]) {
        if self.bytes + line.len() > MOST_BYTES {
            self.dropped += 1;
            return;
        }
        self.report_dropped();
        self.bytes += line.len();
        self.waiting.push_back(line.to_vec());
    }

    /// Adds a line that says how many were dropped.
    fn report_dropped(&mut self) {
        if self.dropped == 0 {
            return;
        }
        let count = std::mem::take(&mut self.dropped);
        let line = format!(
            "towpath: {count} lines of the log were dropped here: nothing read standard error\n"
        );
        self.bytes += line.len();
        self.waiting.push_back(line.into_bytes());
    }

    /// Takes all lines.
    fn take(&mut self) -> Vec<u8> {
        self.report_dropped();
        self.bytes = 0;
        self.waiting.drain(..).flatten().collect()
    }

    /// Writes as much as standard error takes without waiting.
    fn write_now(&mut self) {
        self.report_dropped();
        while let Some(mut line) = self.waiting.pop_front() {
            let written = write_without_waiting(&line);
            self.bytes -= written;
            if written < line.len() {
                line.drain(..written);
                self.waiting.push_front(line);
            }
            if written == 0 {
                return;
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a part of a text to standard error without waiting. Returns its length; all of it if standard error takes
/// none any more. The write waits only if another process fills the pipe behind the poll.
fn write_without_waiting(text: &[u8]) -> usize {
    let error = io::stderr();
    let mut room = [PollFd::from_borrowed_fd(error.as_fd(), PollFlags::OUT)];
    // A pipe that has room has it for this many bytes (pipe(7)).
    let part = &text[..text.len().min(PIPE_BYTES)];
    let written = match poll(&mut room, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) => Err(Errno::AGAIN),
        Ok(_) => rustix::io::write(&error, part),
        Err(errno) => Err(errno),
    };
    match written {
        Ok(written) => written,
        Err(Errno::AGAIN | Errno::INTR) => 0,
        // Nothing reads it any more.
        Err(_) => text.len(),
    }
}

/// Leaves lines of the log in the queue.
#[derive(Debug)]
struct Writer;

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds a line to the log, with its end of line, without waiting for standard error.
pub(crate) fn add(line: &[u8]) {
    let mut lines = QUEUE.lock();
    lines.add(line);
    if lines.has_thread {
        QUEUE.changed.notify_all();
    } else {
        lines.write_now();
    }
}

/// Returns `true` if this process has a log.
pub(crate) fn is_on() -> bool {
    QUEUE.lock().is_on
}

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
    let outcome = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Writer)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // The server goes on without its log.
        .log_internal_errors(false)
        .try_init();
    QUEUE.lock().is_on = true;
    // Only a second start in one process could fail.
    debug_assert!(outcome.is_ok());
}

/// Starts the log's thread. Call it when the process has given up its rights, once.
pub(super) fn start_thread() {
    let thread = std::thread::Builder::new().name("towpath-log".to_owned());
    // Without the thread, lines go out at once as far as standard error takes them.
    QUEUE.lock().has_thread = thread.spawn(write_lines).is_ok();
}

/// Writes lines as they come.
fn write_lines() {
    let mut lines = QUEUE.lock();
    loop {
        if lines.waiting.is_empty() && lines.dropped == 0 {
            lines = QUEUE.changed.wait(lines).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let text = lines.take();
        lines.is_writing = true;
        drop(lines);
        // If nothing reads it any more, the text is lost.
        let _ = io::stderr().write_all(&text);
        lines = QUEUE.lock();
        lines.is_writing = false;
        QUEUE.changed.notify_all();
    }
}

/// Waits until the log's lines are written, or for a second. Call it at the end of the process.
pub(crate) fn finish() {
    let until = Instant::now() + END_WAIT;
    let mut lines = QUEUE.lock();
    while lines.has_thread && (lines.is_writing || !lines.waiting.is_empty()) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let waited = QUEUE.changed.wait_timeout(lines, left);
        lines = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    lines.write_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_room_are_counted() {
        let mut lines = Lines::new();
        let line = [b'x'; 1024];
        for _ in 0..MOST_BYTES / line.len() + 3 {
            lines.add(&line);
        }
        assert_eq!((lines.bytes, lines.dropped), (MOST_BYTES, 3));
        let text = lines.take();
        assert!(text.ends_with(
            b"towpath: 3 lines of the log were dropped here: nothing read standard error\n"
        ));
        assert_eq!((lines.bytes, lines.dropped), (0, 0));
        lines.add(b"next\n");
        assert_eq!(lines.take(), b"next\n");
    }
}
