//! The place and time of a measurement.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The properties of a machine that affect figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's release.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Cores that this program may use.
    pub cores: usize,
    /// These CPUs: `cpu:core.package`, with a space between.
    #[serde(default)]
    pub core_map: String,
    /// The hypervisor; `None` on bare metal.
    pub hypervisor: Option<String>,
    /// Memory, in bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// Describes this machine.
    ///
    /// # Errors
    /// If `/proc` is not readable.
    pub fn this() -> anyhow::Result<Machine> {
        let cpus = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let cpu = field(&cpus, "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
        let detail = |name| field(&cpus, name).unwrap_or_else(|| "?".into());
        let memory = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let memory_kib = field(&memory, "MemTotal")
            .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0);
        let cores = towpath_sandbox::cores()?;
        let map: Vec<_> = cores
            .iter()
            .map(|core| format!("{}:{}.{}", core.cpu, core.core, core.package))
            .collect();
        Ok(Machine {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpu: format!("{cpu} (family {}, model {})", detail("cpu family"), detail("model\t")),
            cores: cores.len(),
            core_map: map.join(" "),
            hypervisor: towpath_sandbox::probe::hypervisor(),
            memory_bytes: memory_kib * 1024,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under = self.hypervisor.as_deref().unwrap_or("no hypervisor");
        write!(f, "{}, {} cores, {under}, Linux {}", self.cpu, self.cores, self.kernel)
    }
}

/// Returns two cores to pin threads to: the engine's, and the other one's.
///
/// # Errors
/// If there is only one: then the scheduler would be measured.
pub fn two_cores() -> anyhow::Result<(usize, usize)> {
    match towpath_sandbox::cores()?.as_slice() {
        [first, second, ..] => Ok((first.cpu, second.cpu)),
        _ => anyhow::bail!("two cores are needed; this program may use only one"),
    }
}

/// Formats a time as in RFC 3339, in UTC, to the second.
#[must_use]
pub fn date(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March end with the leap day, and 400 of them are 146 097 days.
    let since = days + 719_468;
    let (era, of_era) = (since / 146_097, since % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::this().unwrap();
        assert_eq!(machine.core_map.split(' ').count(), machine.cores);
        assert!(machine.cores > 0 && !machine.cpu.is_empty() && machine.memory_bytes > 0);
    }
}
