//! Other users of the host during a measurement: pings, and an ssh session. None of their packets
//! and lines may be lost.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::host::{Hosts, NEAR};
use crate::latency::Latency;
use crate::programs::{Running, program};

/// The time between two pings, and two lines of the session.
const INTERVAL: Duration = Duration::from_millis(10);
/// The port of sshd.
const PORT: &str = "2222";
/// The time limit of a start.
const STARTS: Duration = Duration::from_secs(10);

/// Pings from the far host, every 10 ms.
pub(super) struct Pings(Running);

impl Pings {
    pub(super) fn start(hosts: &Hosts, ping: &Path) -> anyhow::Result<Pings> {
        let interval = INTERVAL.as_secs_f64().to_string();
        let running = Running::start(ping, Some(&hosts.there), |command| {
            command.args(["-q", "-i", &interval, &NEAR.to_string()]).stdout(Stdio::piped());
        })?;
        Ok(Pings(running))
    }

    /// Ends the pings. Returns how many were sent, and how many were lost.
    pub(super) fn finish(mut self) -> anyhow::Result<(u64, u64)> {
        // One more interval for the last answer.
        std::thread::sleep(10 * INTERVAL);
        let pid = i32::try_from(self.0.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process without a number")?, Signal::INT)?;
        let out = self.0.0.stdout.take().context("ping without its output")?;
        let said = std::io::read_to_string(out)?;
        let (sent, received) = counts(&said).with_context(|| format!("ping: {said}"))?;
        Ok((sent, sent.saturating_sub(received)))
    }
}

/// Reads ping's counts of packets: sent and received. It may end between the two of the last ping.
fn counts(said: &str) -> Option<(u64, u64)> {
    let line = said.lines().find(|line| line.contains("packets transmitted"))?;
    let mut numbers = line.split(", ").map(|part| part.split(' ').next()?.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The programs of a session.
pub(super) struct Ssh {
    sshd: PathBuf,
    ssh: PathBuf,
    keygen: PathBuf,
}

impl Ssh {
    /// Finds the programs; or returns the line of a report.
    pub(super) fn find() -> Result<Ssh, String> {
        Ok(Ssh {
            sshd: program("sshd", "openssh-server")?,
            ssh: program("ssh", "openssh-client")?,
            keygen: program("ssh-keygen", "openssh-client")?,
        })
    }
}

/// A session from the far host that sends a line every 10 ms, and gets each back.
pub(super) struct Session {
    over: Arc<AtomicBool>,
    lines: JoinHandle<anyhow::Result<(u64, Latency)>>,
    _sshd: Running,
    _separation: Separation,
}

/// The empty directory to which sshd changes. Debian's service makes it, too.
struct Separation(Option<&'static Path>);

impl Separation {
    fn make() -> anyhow::Result<Separation> {
        let path = Path::new("/run/sshd");
        match std::fs::create_dir(path) {
            Ok(()) => Ok(Separation(Some(path))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Separation(None)),
            Err(error) => Err(error).context("/run/sshd"),
        }
    }
}

impl Drop for Separation {
    fn drop(&mut self) {
        // Another sshd may use it by now.
        let _ = self.0.map(std::fs::remove_dir);
    }
}

impl Session {
    /// Starts sshd and logs in, with keys made for it.
    pub(super) fn start(hosts: &Hosts, programs: &Ssh) -> anyhow::Result<Session> {
        let key = hosts.directory().join("key");
        if !key.exists() {
            let mut keygen = Command::new(&programs.keygen);
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
            ensure!(keygen.status()?.success(), "ssh-keygen failed");
        }
        let separation = Separation::make()?;
        let public = key.with_extension("pub");
        let sshd = Running::start(&programs.sshd, None, |command| {
            command.args(["-D", "-f", "/dev/null", "-p", PORT, "-h"]).arg(&key);
            for option in [
                "PidFile=none".to_owned(),
                "StrictModes=no".to_owned(),
                "PermitRootLogin=yes".to_owned(),
                format!("ListenAddress={NEAR}"),
                format!("AuthorizedKeysFile={}", public.display()),
            ] {
                command.args(["-o", &option]);
            }
        })?;
        let until = Instant::now() + STARTS;
        let session = loop {
            match echo(hosts, &programs.ssh, &key) {
                Ok(session) => break session,
                Err(error) => ensure!(Instant::now() < until, "ssh: {error:#}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let over = Arc::new(AtomicBool::new(false));
        let stops = over.clone();
        let lines = std::thread::spawn(move || talk(session, &stops));
        Ok(Session { over, lines, _sshd: sshd, _separation: separation })
    }

    /// Ends the session. Returns the number of lines, and the times to their return.
    pub(super) fn finish(self) -> anyhow::Result<(u64, Latency)> {
        self.over.store(true, Ordering::Relaxed);
        self.lines.join().map_err(|_| anyhow::anyhow!("the session's thread failed"))?
    }
}

/// Logs in, and starts a program that returns each line. Fails unless it returns one.
fn echo(hosts: &Hosts, ssh: &Path, key: &Path) -> anyhow::Result<Talk> {
    let mut process = Running::start(ssh, Some(&hosts.there), |command| {
        command.args(["-F", "none", "-p", PORT, "-i"]).arg(key);
        for option in ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
        {
            command.args(["-o", option]);
        }
        command.arg(format!("root@{NEAR}")).arg("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    })?;
    let say = process.0.stdin.take().context("ssh without its input")?;
    let stdout = process.0.stdout.take().context("ssh without its output")?;
    let mut talk = Talk { say, stdout: BufReader::new(stdout), _process: process };
    talk.line(0)?;
    Ok(talk)
}

/// A session that returns each line.
struct Talk {
    say: std::process::ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
    _process: Running,
}

impl Talk {
    fn line(&mut self, number: u64) -> anyhow::Result<()> {
        writeln!(self.say, "line {number}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(line == format!("line {number}\n"), "line {number} came back as {line:?}");
        Ok(())
    }
}

fn talk(mut talk: Talk, over: &AtomicBool) -> anyhow::Result<(u64, Latency)> {
    let (mut number, mut times) = (0, Latency::new()?);
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let start = Instant::now();
        talk.line(number)?;
        times.record(start.elapsed());
        std::thread::sleep(INTERVAL);
    }
    Ok((number, times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_counted() {
        let said = "--- 192.0.2.1 ping statistics ---\n\
                    120 packets transmitted, 119 received, 0.8% packet loss, time 1190ms\n";
        assert_eq!(counts(said), Some((120, 119)));
        assert_eq!(counts("ping: unknown host\n"), None);
    }
}
