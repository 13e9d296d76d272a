//! Standard error of a server and of its keeper, whose log goes there.
//!
//! The reader of standard error may stand still: a pipe to a stopped program, a terminal that is paused. So no thread
//! but that of the log waits for it. Others leave lines in a queue of bounded length, and a line that finds no room
//! there is dropped and counted, as is a line that standard error refuses: a file on a full disk.
//!
//! A line goes out at once if standard error takes it without waiting: what waits is lost with a process that is killed.
//! The thread waits for room for the others. It starts after its process has given up its rights, since each thread has
//! its own rights (`serve/confine.rs`). To write without waiting, the process opens a pipe or terminal at standard error
//! once more, only for itself: other processes share the file that it got.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use towpath_keeper::drop_capabilities;

/// The most bytes of lines that wait for the reader of standard error.
const MOST_BYTES: usize = 256 << 10;
/// The longest time that the end of a process waits for that reader.
const END_WAIT: Duration = Duration::from_secs(1);
/// The bytes that go into a pipe in one piece (`PIPE_BUF`), and for which it has room when poll(2) says so.
const PIPE_BYTES: usize = 4096;

/// The lines that wait, of all threads.
static QUEUE: Queue = Queue { lines: Mutex::new(Lines::new()), waits: Condvar::new() };
/// The pipe or terminal at standard error, opened by this process itself, so that writes do not wait. `None` for other
/// files, such as regular ones and sockets.
static OWN: OnceLock<Option<File>> = OnceLock::new();

struct Queue {
    lines: Mutex<Lines>,
    /// Notified when a line has to wait.
    waits: Condvar,
}

/// A line of the log.
struct Line {
    text: Vec<u8>,
    /// The lines that are lost if this one is: for a report of dropped lines, those too.
    stands_for: u64,
}

/// What became of a part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Bytes(usize),
    /// Standard error has no room now.
    NoRoom,
    /// Standard error refuses the line with an error.
    Refused,
}

struct Lines {
    waiting: VecDeque<Line>,
    bytes: usize,
    /// Lines dropped since the last report of them.
    dropped: u64,
    is_on: bool,
}

impl Lines {
    const fn new() -> Lines {
        Lines { waiting: VecDeque::new(), bytes: 0, dropped: 0, is_on: false }
    }

    /// Adds a line, or counts it as dropped.
    fn add(&mut self, line: &[u8]) {
        if self.bytes + line.len() > MOST_BYTES {
            self.dropped += 1;
            return;
        }
        self.report_dropped();
        self.push(Line { text: line.to_vec(), stands_for: 1 });
    }

    fn push(&mut self, line: Line) {
        self.bytes += line.text.len();
        self.waiting.push_back(line);
    }

    /// Adds a line that says how many were dropped.
    fn report_dropped(&mut self) {
        if self.dropped == 0 {
            return;
        }
        let count = std::mem::take(&mut self.dropped);
        let text = format!(
            "towpath: {count} lines of the log were dropped here: standard error had no room\n"
        );
        self.push(Line { text: text.into_bytes(), stands_for: count });
    }

    /// Takes the oldest line.
    fn take(&mut self) -> Option<Line> {
        let line = self.waiting.pop_front()?;
        self.bytes -= line.text.len();
        Some(line)
    }

    /// Writes as much as standard error takes without waiting. Returns `true` if no line waits any more.
    ///
    /// After the last line, it reports those that were dropped. If standard error refuses lines, the report waits for
    /// the next one.
    fn write_now(&mut self, mut write_a_part: impl FnMut(&[u8]) -> Written) -> bool {
        let mut is_refused = false;
        loop {
            if self.waiting.is_empty() && !is_refused {
                self.report_dropped();
            }
            let Some(mut line) = self.take() else { return true };
            while !line.text.is_empty() {
                match write_a_part(&line.text) {
                    Written::Bytes(written) => drop(line.text.drain(..written)),
                    Written::NoRoom => {
                        self.bytes += line.text.len();
                        self.waiting.push_front(line);
                        return false;
                    }
                    Written::Refused => {
                        self.dropped += line.stands_for;
                        is_refused = true;
                        break;
                    }
                }
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls a function with the file to write to.
fn with_output<R>(function: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
    match OWN.get() {
        Some(Some(own)) => function(own.as_fd()),
        _ => function(io::stderr().as_fd()),
    }
}

/// Writes a part of a text to standard error without waiting, unless it is a pipe or terminal that this process could
/// not open itself, and that another process fills at that moment.
fn write_a_part(text: &[u8]) -> Written {
    let part = &text[..text.len().min(PIPE_BYTES)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let written = match with_output(|to| send(to, part, flags)) {
        Err(Errno::NOTSOCK) => wait_for_room(Some(Duration::ZERO))
            .and_then(|()| with_output(|to| rustix::io::write(to, part))),
        other => other,
    };
    match written {
        Ok(written) => Written::Bytes(written),
        Err(Errno::AGAIN | Errno::INTR) => Written::NoRoom,
        // A file on a full disk, or a pipe whose reader has gone.
        Err(_) => Written::Refused,
    }
}

/// Waits until standard error has room: `EAGAIN` if it has none in that time, if there is one.
fn wait_for_room(at_most: Option<Duration>) -> Result<(), Errno> {
    let time = at_most.map(Timespec::try_from).transpose().map_err(|_| Errno::INVAL)?;
    with_output(|to| {
        let mut room = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
        match poll(&mut room, time.as_ref()) {
            Ok(0) => Err(Errno::AGAIN),
            Ok(_) => Ok(()),
            Err(errno) => Err(errno),
        }
    })
}

/// Adds a line to the log, with its end of line, without waiting for standard error.
pub(crate) fn add(line: &[u8]) {
    let mut lines = QUEUE.lock();
    lines.add(line);
    // At once, if possible: the lines of a process that is killed are lost.
    if !lines.write_now(write_a_part) {
        QUEUE.waits.notify_one();
    }
}

/// Returns `true` if failures of this process belong into the queue.
pub(crate) fn is_on() -> bool {
    QUEUE.lock().is_on
}

/// Has failures of this process go through the queue, as those of a server and of its keeper.
pub(crate) fn turn_on() {
    OWN.get_or_init(open_own);
    QUEUE.lock().is_on = true;
}

/// Opens a pipe or terminal at standard error only for this process. Returns `None` for another file, and if this user
/// may not open it.
fn open_own() -> Option<File> {
    let path = "/proc/self/fd/2";
    let kind = std::fs::metadata(path).ok()?.file_type();
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_APPEND;
    let open = || File::options().write(true).custom_flags(flags).open(path).ok();
    (kind.is_fifo() || kind.is_char_device()).then(open).flatten()
}

/// Starts the log's thread. Call it when the process has given up its rights, once.
pub(crate) fn start_thread() {
    let thread = std::thread::Builder::new().name("towpath-log".to_owned()).spawn(write_waiting);
    if let Err(error) = thread {
        // Lines that wait go out with the next one.
        tracing::info!("no thread for the log: {error}");
    }
}

/// Writes the lines that wait, whenever standard error has room.
fn write_waiting() {
    drop_capabilities();
    loop {
        let mut lines = QUEUE.lock();
        while lines.write_now(write_a_part) {
            lines = QUEUE.waits.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        drop(lines);
        // After an interruption, it tries again.
        let _ = wait_for_room(None);
    }
}

/// Waits until the log's lines are written, or for a second. Call it at the end of the process.
pub(crate) fn finish() {
    finish_within(END_WAIT);
}

/// Waits until the log's lines are written, or for a time.
pub(crate) fn finish_within(time: Duration) {
    let until = Instant::now() + time;
    while !QUEUE.lock().write_now(write_a_part) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let _ = wait_for_room(Some(left));
    }
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
        let mut written = Vec::new();
        let all = |part: &[u8]| {
            written.extend_from_slice(part);
            Written::Bytes(part.len())
        };
        assert!(lines.write_now(all));
        let (before, report) = written.split_at(MOST_BYTES);
        assert!(before.iter().all(|byte| *byte == b'x'));
        assert_eq!(
            report,
            b"towpath: 3 lines of the log were dropped here: standard error had no room\n"
        );
        assert_eq!((lines.bytes, lines.dropped), (0, 0));
    }

    #[test]
    fn refused_lines_are_counted_until_standard_error_takes_lines_again() {
        let mut lines = Lines::new();
        for _ in 0..5 {
            lines.add(b"lost\n");
            let mut attempts = 0;
            let refuse = |_: &[u8]| {
                attempts += 1;
                Written::Refused
            };
            assert!(lines.write_now(refuse));
            // The report of those before, and the line.
            assert!(attempts <= 2, "{attempts}");
        }
        assert_eq!((lines.bytes, lines.dropped), (0, 5));
        // One byte at a time, with an interruption.
        let (mut written, mut calls) = (Vec::new(), 0);
        let mut slowly = |part: &[u8]| {
            calls += 1;
            if calls == 7 {
                return Written::NoRoom;
            }
            written.push(part[0]);
            Written::Bytes(1)
        };
        lines.add(b"next\n");
        assert!(!lines.write_now(&mut slowly));
        assert!(lines.write_now(&mut slowly));
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "towpath: 5 lines of the log were dropped here: standard error had no room\nnext\n"
        );
        assert_eq!((lines.bytes, lines.dropped), (0, 0));
    }
}
