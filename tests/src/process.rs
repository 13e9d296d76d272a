//! Processes: started, sent lines, ended.
//!
//! Unsafe lives here for `kill` on a process that is known by its number.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::PATIENCE;

/// A program that any user may start, even from a directory that only root may enter.
#[derive(Debug)]
pub struct Program {
    path: &'static str,
    file: OnceLock<OwnedFd>,
}

impl Program {
    /// Names the program at a path.
    #[must_use]
    pub const fn at(path: &'static str) -> Program {
        Program { path, file: OnceLock::new() }
    }

    /// Returns a command that starts it.
    ///
    /// # Panics
    /// When the program does not exist.
    #[must_use]
    pub fn command(&self) -> Command {
        let file = self.file.get_or_init(|| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            rustix::fs::open(self.path, flags, Mode::empty()).expect("the program is there")
        });
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.arg0(self.path);
        command
    }

    /// Starts it with arguments.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(&self, arguments: &[&str]) -> Process {
        self.start_as(arguments, |_| ())
    }

    /// Starts it with arguments, after `change` has modified the command.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_as(&self, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Process {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let what = arguments.join(" ");
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("asked for"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Process { child, input, lines, what }
    }
}

/// A process that answers by lines. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    what: String,
}

impl Process {
    /// Returns its process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line of its output.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn line(&mut self) -> String {
        self.line_within(PATIENCE)
    }

    /// Returns the next line of its output, for which it may need longer than others.
    ///
    /// # Panics
    /// When none comes within the limit.
    pub fn line_within(&mut self, limit: Duration) -> String {
        match self.lines.recv_timeout(limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("{}: said nothing in {limit:?}", self.what),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{}: ended: {:?}", self.what, self.child.wait())
            }
        }
    }

    /// Asserts that a given line comes next.
    ///
    /// # Panics
    /// When another comes, or none.
    pub fn expect(&mut self, line: &str) {
        assert_eq!(self.line(), line, "{}", self.what);
    }

    /// Sends it a line.
    ///
    /// # Panics
    /// When it does not listen any more.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{line}").unwrap_or_else(|error| panic!("{}: {line}: {error}", self.what));
    }

    /// Sends it a line, and waits for its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.line()
    }

    /// Closes its input, upon which it ends. Returns all lines that it still prints.
    ///
    /// # Panics
    /// When it does not end in time, or not well.
    pub fn finish(mut self) -> Vec<String> {
        self.input = None;
        let mut last = Vec::new();
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => last.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{}: does not end: {last:?}", self.what),
            }
        }
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{}: {status}: {last:?}", self.what);
        last
    }

    /// Closes its input, and waits for its end, even if another process holds its output open.
    pub fn leave(&mut self) -> ExitStatus {
        self.input = None;
        self.wait()
    }

    /// Waits for its end by itself.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(Instant::now() < until, "{}: does not end", self.what);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Kills it, and waits for its end.
    ///
    /// # Panics
    /// When that fails.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("it is ours");
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When that fails.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call without pointers. The process is our child and was not waited for,
        // so its number is still its own.
        let outcome = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(outcome, 0, "{}: kill: {}", self.what, std::io::Error::last_os_error());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
