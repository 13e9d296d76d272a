//! The services over Towpath beside the same services over sockets of the kernel, at one end of the same veth pair. Programs
//! that others wrote ask them from a second host of the kernel at the other end.
//!
//! ```text
//! cargo build --release -p towpath
//! cd services
//! cargo build --release --locked
//! target/release/compare [--check] [--quick|--smoke] [http|fresh|tls|quic|dns]...
//! ```
//!
//! It needs root, and for `http` and `fresh` wrk, for `tls` openssl, and for `dns` dnsperf. `TOWPATH` names the program
//! `towpath`; by default it is that of the project's release build.
//!
//! Each load is measured in turn, over Towpath and over the kernel (A B A B …), with new processes each time. While the kernel
//! is measured, no server and no filter is at the veth. The first pair does not count. A ratio is the median of those of
//! the pairs, with the lowest and the highest in parentheses; other figures are medians. Processor time is that of all
//! processes that take part, the client included, and of the kernel's packet threads (ksoftirqd); the time in software
//! interrupts is that of the whole machine. Both are per request: an answer of HTTP or DNS, a handshake of TLS, a stream of 1 MiB that QUIC echoes.
//! `--quick` takes shorter runs, and fewer of them; `--smoke` takes one pair, to see that it works. With `--check`, the program
//! fails if the median ratio of requests per second is below 0.95.

mod clients;
mod hosts;

use std::process::ExitCode;
use std::time::Duration;

use clients::Load;
use hosts::{Hosts, Measured, Side};
use towpath_services::Failure;

/// The least requests per second, to those over the kernel.
const AT_LEAST: f64 = 0.95;

/// What the command line asks for.
struct Task {
    loads: Vec<Load>,
    checks: bool,
    /// Pairs in all, and those at the start that do not count.
    pairs: usize,
    uncounted: usize,
    window: Duration,
}

impl Task {
    /// Reads the command line; `None` for a word that it does not know.
    fn of(words: impl Iterator<Item = String>) -> Option<Task> {
        let (loads, checks) = (Vec::new(), false);
        let mut task =
            Task { loads, checks, pairs: 12, uncounted: 1, window: Duration::from_secs(4) };
        for word in words {
            match word.as_str() {
                "--check" => task.checks = true,
                "--quick" => (task.pairs, task.window) = (4, Duration::from_secs(1)),
                "--smoke" => {
                    (task.pairs, task.uncounted, task.window) = (1, 0, Duration::from_secs(1));
                }
                name => task.loads.push(Load::of_name(name)?),
            }
        }
        if task.loads.is_empty() {
            task.loads.extend(Load::ALL);
        }
        Some(task)
    }
}

fn main() -> ExitCode {
    let Some(task) = Task::of(std::env::args().skip(1)) else {
        let names = Load::ALL.map(Load::name).join("|");
        eprintln!("usage: compare [--check] [--quick|--smoke] [{names}]...");
        return ExitCode::from(2);
    };
    match compare(&task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures all loads. Returns `false` if one misses the limit that the task checks.
fn compare(task: &Task) -> Result<bool, Failure> {
    towpath_testkit::enter()?;
    let hosts = Hosts::new()?;
    let mut is_met = true;
    for &load in &task.loads {
        let (mut ours, mut kernel) = (Vec::new(), Vec::new());
        for pair in 0..task.pairs {
            for (side, all) in [(Side::Towpath, &mut ours), (Side::Kernel, &mut kernel)] {
                let measured = hosts.measure(side, load, task.window)?;
                if pair >= task.uncounted {
                    all.push(measured);
                }
            }
        }
        println!("{}", load.about());
        let ratio = show("requests per second", &ours, &kernel, |one| one.rate);
        show("processor time per request, µs", &ours, &kernel, |one| one.cpu_us);
        show("software interrupts per request, µs", &ours, &kernel, |one| one.softirq_us);
        for (side, all) in [("Towpath", &ours), ("kernel", &kernel)] {
            let lost: u64 = all.iter().map(|one| one.lost).sum();
            if lost > 0 {
                println!("    over {side}: {lost} requests without an answer");
            }
        }
        let is_enough = ratio >= AT_LEAST;
        if task.checks && !is_enough {
            eprintln!("compare: {}: {ratio:.3} of the kernel's, below {AT_LEAST}", load.name());
            is_met = false;
        }
    }
    Ok(is_met)
}

/// Prints a figure of both sides, and the ratio of the pairs. Returns the median ratio.
fn show(
    what: &str,
    ours: &[Measured],
    kernel: &[Measured],
    figure: impl Fn(&Measured) -> f64,
) -> f64 {
    let of = |all: &[Measured]| all.iter().map(&figure).collect::<Vec<_>>();
    let (ours, kernel) = (of(ours), of(kernel));
    let mut ratios: Vec<f64> = ours.iter().zip(&kernel).map(|(ours, base)| ours / base).collect();
    let ratio = median(&mut ratios);
    let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
    let [ours, kernel] = [ours, kernel].map(|mut all| median(&mut all));
    println!(
        "    {what}: Towpath {ours:.1}, kernel {kernel:.1}, ratio {ratio:.3} ({low:.3} to {high:.3})"
    );
    ratio
}

/// Sorts the values, at least one, and returns the middle one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(line: &str) -> Option<Task> {
        Task::of(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_command_line_names_loads() {
        let all = task("").unwrap();
        assert_eq!((all.loads.len(), all.checks, all.pairs), (Load::ALL.len(), false, 12));
        let two = task("dns --check fresh --quick").unwrap();
        assert_eq!((two.loads, two.checks, two.pairs), (vec![Load::Dns, Load::Fresh], true, 4));
        assert!(task("ftp").is_none() && task("--help").is_none());
    }
}
