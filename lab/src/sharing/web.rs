//! The example `web` on the shared address, beside the same source over the kernel's sockets, asked
//! by wrk from the far host.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::host::{Hosts, NEAR, Server};
use crate::process::XdpMode;
use crate::programs::{Running, own_program, program};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

/// The ports of the two programs.
const OURS: u16 = 8080;
const KERNEL: u16 = 8081;
/// The bytes of the file.
const FILE_BYTES: usize = 1024;
/// Connections at a time.
const CONNECTIONS: &str = "16";
/// The time limit of a start.
const STARTS: Duration = Duration::from_secs(10);

/// The programs.
pub(super) struct Programs {
    web: PathBuf,
    kernel: PathBuf,
    wrk: PathBuf,
}

impl Programs {
    /// Finds the programs; or returns the line of a report.
    pub(super) fn find() -> Result<Programs, String> {
        Ok(Programs {
            web: own_program("web")?,
            kernel: own_program("web-std")?,
            wrk: program("wrk", "wrk")?,
        })
    }
}

/// Measures a mode while its server runs.
pub(super) fn measure(
    hosts: &Hosts,
    server: &Server,
    programs: &Programs,
    (mode, pairs, seconds): (XdpMode, usize, u64),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let files = hosts.directory().join("files");
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("index.html"), vec![b'x'; FILE_BYTES])?;
    let serves = |program: &Path, port: u16| {
        Running::start(program, None, |command| {
            command.args([server.socket.as_path(), &files]).arg(port.to_string());
        })
    };
    let _ours = serves(&programs.web, OURS)?;
    let _kernel = serves(&programs.kernel, KERNEL)?;
    for port in [OURS, KERNEL] {
        answers(hosts, port)?;
    }
    for (name, header) in [("persistent", None), ("fresh", Some("Connection: close"))] {
        let ask = |port: u16| ask(hosts, &programs.wrk, port, header, seconds);
        let pairs = Pairs::measure(pairs, || ask(OURS), || ask(KERNEL))?;
        let row = |what: &str, unit: &str, values: &[f64]| {
            let name = format!("{}: web, {name} connections{what}", mode.name());
            Row::new(&name, &[("file_bytes", FILE_BYTES as f64)], unit, values)
        };
        outcome.rows.push(row(", application to the kernel", "ratio", &pairs.ratios()));
        outcome.context.extend([
            row(", application", "requests/s", &pairs.ours),
            row(", kernel", "requests/s", &pairs.base),
        ]);
    }
    Ok(())
}

/// Waits until a program accepts connections.
fn answers(hosts: &Hosts, port: u16) -> anyhow::Result<()> {
    let until = Instant::now() + STARTS;
    while hosts.there.run(|| TcpStream::connect((NEAR, port)))?.is_err() {
        ensure!(Instant::now() < until, "no program answers at port {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Runs wrk for some seconds. Returns requests per second.
fn ask(
    hosts: &Hosts,
    wrk: &Path,
    port: u16,
    header: Option<&str>,
    seconds: u64,
) -> anyhow::Result<f64> {
    let mut command = Command::new(wrk);
    command.args(["--threads", "1", "--connections", CONNECTIONS]);
    command.args(["--duration", &format!("{seconds}s")]);
    command.args(header.into_iter().flat_map(|header| ["--header", header]));
    command.arg(format!("http://{NEAR}:{port}/index.html"));
    hosts.there.contain(&mut command);
    let output = command.output().context("wrk")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk: {}", String::from_utf8_lossy(&output.stderr));
    requests_per_s(&said).with_context(|| format!("wrk: {said}"))
}

/// Reads wrk's rate; `None` if answers had other states than success.
fn requests_per_s(said: &str) -> Option<f64> {
    let of = |key: &str| said.lines().find_map(|line| line.trim().strip_prefix(key));
    if of("Non-2xx").is_some() {
        return None;
    }
    of("Requests/sec:")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_good_answers() {
        let said = "Running 1s test\n  100 requests in 1.00s, 1KB read\nRequests/sec:   4711.50\n";
        assert_eq!(requests_per_s(said), Some(4711.5));
        let bad = format!("{said}  Non-2xx or 3xx responses: 9\n");
        assert_eq!(requests_per_s(&bad), None);
        assert_eq!(requests_per_s(""), None);
    }
}
