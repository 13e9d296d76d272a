//! The child processes as their parent sees them.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use rustix::thread::CapabilitySet;
use towpath_sandbox::{Executable, Namespace, User};

use super::host::Statement;
use super::parts::{Part, QUESTION, Said, Script};

/// The time in which a child must answer, or end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a child starts.
pub(super) struct Start<'a> {
    pub(super) user: User,
    /// The only capabilities of the child, which it gives up when it is ready.
    pub(super) capabilities: CapabilitySet,
    /// The child's standard input.
    pub(super) input: Option<OwnedFd>,
    /// The child's network namespace; this process's if `None`.
    pub(super) namespace: Option<&'a Namespace>,
}

/// A child process. Dropping it kills the process if it has not ended, and waits for it.
pub(super) struct Player {
    name: String,
    child: Child,
    stream: Option<BufReader<UnixStream>>,
    ended: bool,
}

impl Player {
    /// Starts a child, and waits until the child is ready.
    pub(super) fn start(
        program: &Executable,
        part: Part,
        script: &Script,
        Start { user, capabilities, input, namespace }: Start<'_>,
    ) -> anyhow::Result<Player> {
        let (ours, theirs) = UnixStream::pair().context("a socket pair")?;
        ours.set_read_timeout(Some(PATIENCE))?;
        ours.set_write_timeout(Some(PATIENCE))?;
        let mut command = program.command();
        let value = part.to_possible_value();
        command.args(["demo", "--part", value.as_ref().map_or("", |value| value.get_name())]);
        command.arg("--socket").arg(&script.socket).arg("--name").arg(&script.name);
        if let Some(ipv4) = script.ipv4 {
            command.arg("--ipv4").arg(ipv4.to_string());
        }
        if script.attach {
            command.arg("--attach");
        }
        for user in &script.users {
            command.arg("--users").arg(user.to_string());
        }
        command
            .stdin(input.map_or_else(Stdio::null, Stdio::from))
            .stdout(OwnedFd::from(theirs))
            // The terminal's interrupt is for the demonstration, whose end ends the children.
            .process_group(0);
        if let Some(namespace) = namespace {
            namespace.contain(&mut command);
        }
        user.confine_but(&mut command, capabilities);
        let name = script.name.clone();
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        // With the command's copies open, this side would not notice that the child ended.
        drop(command);
        let mut player = Player { name, child, stream: Some(BufReader::new(ours)), ended: false };
        match player.receive()? {
            Said::Ready => Ok(player),
            other => bail!("{} sent {other:?} instead of Ready", player.name),
        }
    }

    /// Returns its process number.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn receive(&mut self) -> anyhow::Result<Said> {
        let stream = self.stream.as_mut().context("the child was told to end")?;
        let mut line = String::new();
        let count = stream
            .read_line(&mut line)
            .with_context(|| format!("{} does not answer", self.name))?;
        if count == 0 {
            let ended = self.child.wait()?;
            self.ended = true;
            bail!("{} ended: {ended}", self.name);
        }
        match serde_json::from_str(&line).with_context(|| format!("{} sent {line}", self.name))? {
            Said::Failed(why) => bail!("{}: {why}", self.name),
            said => Ok(said),
        }
    }

    /// Asks an application for its counters.
    pub(super) fn statement(&mut self) -> anyhow::Result<Statement> {
        let stream = self.stream.as_mut().context("the child was told to end")?;
        stream.get_mut().write_all(QUESTION.as_bytes())?;
        match self.receive()? {
            Said::Statement(statement) => Ok(statement),
            other => bail!("{} answered {other:?}", self.name),
        }
    }

    /// Kills the child, as a crash would.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.ended = true;
        Ok(())
    }

    /// Asks the child to end, and waits for its end.
    ///
    /// # Errors
    /// If the child fails, or does not end.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.stream = None;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                ensure!(status.success(), "{} ended with {status}", self.name);
                return Ok(());
            }
            ensure!(Instant::now() < until, "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The directory of the server's socket. It belongs to the server's user and is open to the users
/// that may look for the socket. Dropping this removes it, unless the server did.
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub(super) fn make(server: User, shared: bool) -> anyhow::Result<Directory> {
        let places = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
        let place = places
            .iter()
            .find(|place| place.is_dir() && (!shared || open_to_all(place)))
            .context("no directory for the server's socket; set TMPDIR to one")?;
        let path = place.join(format!("towpath-demo-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| path.display().to_string())?;
        let directory = Directory { path };
        if shared {
            std::fs::set_permissions(&directory.path, PermissionsExt::from_mode(0o711))?;
            chown(&directory.path, Some(server.uid), Some(server.gid))?;
        }
        Ok(directory)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path.join("tap.sock")
    }

    /// Returns `true` if the directory still exists.
    pub(super) fn is_there(&self) -> bool {
        self.path.exists()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Returns `true` if every user may pass through a directory, and create and remove files of its
/// own in it.
fn open_to_all(place: &Path) -> bool {
    let mode = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.mode());
    let Ok(place) = place.canonicalize() else { return false };
    mode(&place) & 0o002 != 0 && place.ancestors().all(|path| mode(path) & 0o001 != 0)
}
