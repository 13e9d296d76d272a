//! Programs beside this one: those of this project, and those of the system.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use towpath_net::Network;
use towpath_testkit::Namespace;

/// The time limit of a start.
pub(crate) const STARTS: Duration = Duration::from_secs(10);

/// Returns a program of this project, which lies beside this one; or the line of a report.
pub(crate) fn own_program(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("there is no {name} beside this program; build it with: lab/build"))
}

/// Returns the path of a program of the system; or the line of a report.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian has daemons outside of the usual path.
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = places.map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| format!("there is no {name}; install it with: apt-get install {package}"))
}

/// A process that ends with this value, and with this program.
pub(crate) struct Running(pub(crate) std::process::Child);

impl Running {
    /// Starts a program with its arguments. `inside`: its network namespace. Its output is
    /// discarded, unless the caller sets it.
    pub(crate) fn start(
        program: &Path,
        inside: Option<&Namespace>,
        prepare: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Running> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        prepare(&mut command);
        if let Some(namespace) = inside {
            namespace.contain(&mut command);
        }
        Ok(Running(command.spawn().with_context(|| program.display().to_string())?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + Duration::from_secs(3);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the process IDs of a process's children.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Returns the process ID of a process's first child: of a keeper, its server.
pub(crate) fn first_child(parent: u32) -> Option<u32> {
    children(parent).first().copied()
}

/// Kills a process, and waits for its end.
pub(crate) fn end_with_signal(pid: u32) -> anyhow::Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).context("its number")?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::KILL)?;
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None)?;
    Ok(())
}

/// A server, `towpath serve`.
pub(crate) struct Serve {
    pub(crate) socket: PathBuf,
    log: PathBuf,
    /// The keeper, which starts the server.
    process: Running,
}

impl Serve {
    /// Starts a server with its arguments and a first application's network. Its socket has this
    /// name in a directory, where its log is, too.
    pub(crate) fn start(
        towpath: &Path,
        (directory, name): (&Path, &str),
        arguments: &[&str],
    ) -> anyhow::Result<(Serve, Network)> {
        let (socket, log) = (directory.join(format!("{name}.sock")), directory.join("log"));
        let errors = std::fs::File::create(&log)?;
        let mut process = Running::start(towpath, None, |command| {
            command.arg("serve").args(arguments).arg("--socket").arg(&socket).stderr(errors);
        })?;
        let until = Instant::now() + STARTS;
        loop {
            match Network::attach(&socket) {
                Ok(network) => return Ok((Serve { socket, log, process }, network)),
                Err(error) => {
                    let ended = process.0.try_wait()?.is_some();
                    if ended || Instant::now() > until {
                        let said = std::fs::read_to_string(&log).unwrap_or_default();
                        bail!("towpath serve: {error}: {}", said.lines().last().unwrap_or(""));
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Returns the keeper's process ID.
    pub(crate) fn keeper(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns the server's process ID; `None` between two servers.
    pub(crate) fn server(&self) -> Option<u32> {
        first_child(self.process.0.id())
    }

    /// Returns the server's process ID.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.server().context("towpath serve has no server")
    }

    /// Kills the server, and waits for its end. Returns its process ID.
    pub(crate) fn kill_server(&self) -> anyhow::Result<u32> {
        let server = self.pid()?;
        end_with_signal(server)?;
        Ok(server)
    }

    /// Returns the log.
    pub(crate) fn log(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }
}
