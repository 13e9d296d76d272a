//! wrk, which asks a web server for a file and counts the answers.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use towpath_testkit::{Namespace, Participants, ProcessTimes, process_cpu_time};

use crate::programs::{Running, STARTS};

/// Connections at a time, and whether each lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) connections: u32,
    /// `true` if each request has a connection of its own (`Connection: close`).
    pub(crate) fresh: bool,
}

impl Load {
    /// All loads, in the order of reports.
    pub(crate) const ALL: [Load; 5] = [
        Load { connections: 1, fresh: false },
        Load { connections: 16, fresh: false },
        Load { connections: 100, fresh: false },
        Load { connections: 16, fresh: true },
        Load { connections: 100, fresh: true },
    ];

    /// Returns the word of a report.
    pub(crate) fn kind(self) -> &'static str {
        if self.fresh { "fresh" } else { "persistent" }
    }
}

/// A web server that wrk asks.
pub(crate) struct Target<'a> {
    pub(crate) address: SocketAddr,
    /// The network namespace of wrk; this process's own if `None`.
    pub(crate) from: Option<&'a Namespace>,
    /// The processes that take part beside wrk, with their names in reports.
    pub(crate) processes: Vec<(&'static str, u32)>,
}

/// The result of one run of wrk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) requests_per_s: f64,
    /// The time on a core of all participants for a request, in microseconds.
    pub(crate) cpu_us: f64,
    /// Of each process of the target, and last of wrk, how often its threads went to sleep for a
    /// request, and were preempted; nothing for fresh connections, whose threads end with them.
    pub(crate) switches: Vec<[f64; 2]>,
    /// Errors of connections that wrk saw.
    pub(crate) errors: f64,
}

/// Runs wrk for a time.
pub(crate) fn ask(
    wrk: &Path,
    target: &Target<'_>,
    load: Load,
    window: Duration,
) -> anyhow::Result<Asked> {
    let mut pids: Vec<u32> = target.processes.iter().map(|(_, pid)| *pid).collect();
    let participants = Participants::new(&pids);
    let before = participants.cpu_time()?;
    let mut running = Running::start(wrk, target.from, |command| {
        command.args(["--threads", "1", "--connections", &load.connections.to_string()]);
        // It counts whole seconds. A signal ends it before.
        command.args(["--duration", &format!("{}s", window.as_secs() + 10)]);
        if load.fresh {
            command.args(["--header", "Connection: close"]);
        }
        command.arg(format!("http://{}/index.html", target.address));
        command.stdout(Stdio::piped());
    })?;
    let out = running.0.stdout.take().context("wrk without its output")?;
    let pid = running.0.id();
    let wrk_pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let wrk_pid = wrk_pid.context("a process without a number")?;
    await_handler(pid)?;
    pids.push(pid);
    let start = Instant::now();
    // The middle half, in which all connections stand.
    let mut counted = [None, None];
    for (counted, quarter) in counted.iter_mut().zip([1, 3]) {
        std::thread::sleep((quarter * window / 4).saturating_sub(start.elapsed()));
        if !load.fresh {
            *counted = Some((Instant::now(), switches(&pids)?));
        }
    }
    std::thread::sleep(window.saturating_sub(start.elapsed()));
    kill_process(wrk_pid, Signal::INT)?;
    let said = std::io::read_to_string(out)?;
    // Its account ends when it is waited for.
    waitid(WaitId::Pid(wrk_pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let cpu = participants.cpu_time()?.saturating_sub(before) + process_cpu_time(pid)?;
    let status = running.0.wait()?;
    ensure!(status.success(), "wrk failed: {status}: {said}");
    let (requests, requests_per_s, errors) =
        counts(&said).with_context(|| format!("wrk: {said}"))?;
    let switches = match counted {
        [Some((from, before)), Some((to, after))] => {
            let requests = requests_per_s * (to - from).as_secs_f64();
            let since = |place: usize, kind: usize| {
                after[place][kind].saturating_sub(before[place][kind]) as f64 / requests
            };
            (0..pids.len()).map(|place| [since(place, 0), since(place, 1)]).collect()
        }
        _ => Vec::new(),
    };
    let cpu_us = cpu.as_secs_f64() * 1e6 / requests;
    Ok(Asked { requests_per_s, cpu_us, switches, errors })
}

/// Returns how often living threads of each process went to sleep, and were preempted.
fn switches(pids: &[u32]) -> std::io::Result<Vec<[u64; 2]>> {
    let of = |&pid: &u32| {
        let times = ProcessTimes::of(pid)?;
        Ok([times.voluntary_switches(), times.involuntary_switches()])
    };
    pids.iter().map(of).collect()
}

/// Waits until wrk handles the signal that ends it: its threads run then.
fn await_handler(pid: u32) -> anyhow::Result<()> {
    let until = Instant::now() + STARTS;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("wrk")?;
        if handles_interrupt(&status) {
            return Ok(());
        }
        ensure!(!status.contains("\nState:\tZ"), "wrk ended at its start");
        ensure!(Instant::now() < until, "wrk does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns whether a process handles SIGINT, by the text of its status.
fn handles_interrupt(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::INT.as_raw() - 1)) != 0)
}

/// Reads wrk's requests, requests per second and errors; `None` if answers had other states than
/// success, or if there were none.
fn counts(said: &str) -> Option<(f64, f64, f64)> {
    let of = |key: &str| said.lines().find_map(|line| line.trim().strip_prefix(key));
    if of("Non-2xx").is_some() {
        return None;
    }
    let rate: f64 = of("Requests/sec:")?.trim().parse().ok()?;
    let total = said.lines().find(|line| line.contains(" requests in "))?;
    let requests: f64 = total.split_whitespace().next()?.parse().ok()?;
    // "connect 0, read 12, write 0, timeout 0"
    let errors = of("Socket errors:").map_or(Some(0.0), |line| {
        line.split(',').map(|part| part.split_whitespace().last()?.parse::<f64>().ok()).sum()
    })?;
    (requests > 0.0).then_some((requests, rate, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_those_of_good_answers() {
        let said = "Running 1s test\n  100 requests in 1.00s, 1KB read\nRequests/sec:   4711.50\n";
        assert_eq!(counts(said), Some((100.0, 4711.5, 0.0)));
        let errors = "  Socket errors: connect 1, read 20, write 0, timeout 300\n";
        assert_eq!(counts(&format!("{said}{errors}")), Some((100.0, 4711.5, 321.0)));
        let bad = format!("{said}  Non-2xx or 3xx responses: 9\n");
        assert_eq!(counts(&bad), None);
        assert_eq!(counts(&said.replace("100 requests", "0 requests")), None);
        assert_eq!(counts(""), None);
    }

    #[test]
    fn a_handler_is_seen_in_the_mask() {
        assert!(handles_interrupt("Name:\twrk\nSigIgn:\t0\nSigCgt:\t0000000000000002\n"));
        assert!(!handles_interrupt("SigIgn:\t2\nSigCgt:\t0000000000004001\n"));
        assert!(!handles_interrupt(""));
    }
}
