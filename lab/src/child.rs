//! The other processes of an experiment: this program again, in a role.
//!
//! A child writes one line when it is ready, and ends when its standard input does. So no child
//! outlives its experiment, however that ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The flag that gives a process its role, followed by one argument.
pub const ROLE_FLAG: &str = "--role";

/// The longest time that a child may take for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The work of a child. `roles.rs` lists all roles.
pub(crate) trait Role: Serialize + DeserializeOwned {
    /// The role's name in the argument of a child.
    const NAME: &'static str;

    /// Returns the directory that the child makes before its work and removes after it.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// Does the child's work. Returns when the parent is gone, or when the work is done.
    fn act(self) -> anyhow::Result<()>;
}

/// Returns the argument that gives a child its role.
pub(crate) fn argument<R: Role>(role: &R) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&BTreeMap::from([(R::NAME, role)]))?)
}

/// Adds the arguments to a command that give a child its role.
pub(crate) fn give<R: Role>(role: &R, command: &mut Command) -> anyhow::Result<()> {
    command.arg(ROLE_FLAG).arg(argument(role)?);
    Ok(())
}

/// Does a role's work, in its directory.
pub(crate) fn act<R: Role>(role: serde_json::Value) -> anyhow::Result<()> {
    let role: R = serde_json::from_value(role)?;
    let _directory = role.directory().map(Directory::make).transpose()?;
    role.act()
}

/// A running child. Dropping it ends it.
pub(crate) struct Child {
    process: std::process::Child,
    say: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child, and waits until it is ready.
    pub(crate) fn start<R: Role>(role: &R) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("the program's own file")?;
        let mut command = Command::new(program);
        give(role, &mut command)?;
        Child::start_command(command)
    }

    /// Starts a child by a command that the caller has prepared.
    pub(crate) fn start_command(command: Command) -> anyhow::Result<Child> {
        Ok(Child::start_heard(command)?.0)
    }

    /// Starts a child as [`Child::start_command`] does. Returns its first line, too.
    pub(crate) fn start_heard(mut command: Command) -> anyhow::Result<(Child, String)> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting another process of this program")?;
        let (Some(say), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("a process without its pipes");
        };
        let mut child = Child { process, say: Some(say), stdout: BufReader::new(stdout) };
        let said = child.read_line().context("the other process did not become ready")?;
        Ok((child, said))
    }

    /// Returns the child's next line.
    pub(crate) fn read_line(&mut self) -> anyhow::Result<String> {
        let until = Instant::now() + PATIENCE;
        let mut line = Vec::new();
        loop {
            if self.stdout.buffer().is_empty() {
                let left = until.saturating_duration_since(Instant::now());
                let mut polled = [PollFd::new(self.stdout.get_ref(), PollFlags::IN)];
                let timeout =
                    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                if poll(&mut polled, Some(&timeout))? == 0 {
                    bail!("no answer from the other process in {} s", PATIENCE.as_secs());
                }
            }
            let got = self.stdout.fill_buf()?;
            if got.is_empty() {
                bail!("the other process ended");
            }
            let end = got.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(got.len(), |at| at + 1);
            line.extend_from_slice(&got[..end.unwrap_or(used)]);
            self.stdout.consume(used);
            if end.is_some() {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if line.len() > 64 * 1024 {
                bail!("the other process sent more than 64 KiB in one line");
            }
        }
    }

    /// Returns the child's process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends the child a line.
    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let say = self.say.as_mut().context("a process whose input is closed")?;
        Ok(writeln!(say, "{line}")?)
    }

    /// Closes the child's input, and returns its last line.
    pub(crate) fn end(mut self) -> anyhow::Result<String> {
        self.say = None;
        self.read_line()
    }

    /// Sends the child a signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a process without a number")?, signal)?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.say = None;
        // A stopped child would not see that its input has ended.
        let _ = self.signal(Signal::CONT);
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            match self.process.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a child's line to its parent.
pub(crate) fn tell(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Waits until the parent closes the child's input.
pub(crate) fn wait_for_end() -> anyhow::Result<()> {
    std::io::copy(&mut std::io::stdin().lock().by_ref(), &mut std::io::sink())?;
    Ok(())
}

/// Returns whether the parent has closed the child's input, without waiting.
pub(crate) fn is_over() -> bool {
    let stdin = std::io::stdin();
    let mut polled = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// A path for the socket of a child that serves, in a directory that no other process uses. The
/// child makes the directory and removes it, because a parent may be ended at any moment.
pub(crate) struct OwnSocket(PathBuf);

impl OwnSocket {
    pub(crate) fn new() -> anyhow::Result<OwnSocket> {
        OwnSocket::below(&std::env::temp_dir())
    }

    /// Returns a path in a new directory below another one.
    pub(crate) fn below(base: &Path) -> anyhow::Result<OwnSocket> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("towpath-lab-{:016x}", u64::from_ne_bytes(random));
        Ok(OwnSocket(base.join(name)))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.join("device.sock")
    }
}

impl Drop for OwnSocket {
    /// Removes the directory where the child has not, because it had to be killed.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A directory, for as long as a child serves there.
struct Directory(PathBuf);

impl Directory {
    fn make(path: &Path) -> anyhow::Result<Directory> {
        std::fs::create_dir(path).with_context(|| path.display().to_string())?;
        Ok(Directory(path.to_owned()))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Keeps a directory for the files of other programs.
#[derive(Serialize, Deserialize)]
pub(crate) struct Keep {
    /// The directory.
    pub(crate) directory: PathBuf,
}

impl Role for Keep {
    const NAME: &'static str = "Keep";

    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }

    fn act(self) -> anyhow::Result<()> {
        tell("ready")?;
        wait_for_end()
    }
}
