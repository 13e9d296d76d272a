//! The time that the kernel spends on packets in softirqs, whichever thread they interrupt.
#![forbid(unsafe_code)]

use std::time::Duration;
use std::{fs, io};

/// Returns the time in softirqs of all cores so far, as the kernel samples it: by ticks.
///
/// # Errors
/// If `/proc` is not readable.
pub fn softirq_time() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let missing = || io::Error::other("/proc/stat lacks the time of softirqs");
    let ticks = softirq_ticks(&text).ok_or_else(missing)?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the seventh number of the line of all cores (proc(5)).
fn softirq_ticks(text: &str) -> Option<u64> {
    let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    all.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_all_cores_has_the_ticks() {
        let text = "cpu  85624 0 18563 3221006 3163 7 233 61 0 0\ncpu0 1 2 3 4 5 6 9 8 0 0\n";
        assert_eq!(softirq_ticks(text), Some(233));
        assert_eq!(softirq_ticks("cpu 1 2\n"), None);
        assert!(softirq_time().is_ok());
    }
}
