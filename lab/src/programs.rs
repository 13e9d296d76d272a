//! Programs beside this one: those of this project, and those of the system.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use towpath_testkit::Namespace;

/// Returns a program of this project, which lies beside this one; or the line of a report.
pub(crate) fn own_program(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "there is no {name} beside this program; build it with: cargo build --release -p towpath -p \
         towpath-examples -p towpath-lab-web"
    ))
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
