//! The machine's cores, and pinning to one.
#![forbid(unsafe_code)]

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A CPU (a hardware thread), as the kernel numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Core {
    /// Its number, for [`pin`].
    pub cpu: usize,
    /// The kernel's number of the core, or the CPU's number without one. CPUs of the same core and
    /// package are hyperthreads, which share its units.
    pub core: usize,
    /// The socket.
    pub package: usize,
}

/// Returns the CPUs that the calling thread may run on.
///
/// # Errors
/// None on Linux.
pub fn cores() -> io::Result<Vec<Core>> {
    let allowed = sched_getaffinity(None)?;
    let number = |cpu: usize, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}");
        fs::read_to_string(path).ok()?.trim().parse::<usize>().ok()
    };
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .map(|cpu| Core {
            cpu,
            core: number(cpu, "core_id").unwrap_or(cpu),
            package: number(cpu, "physical_package_id").unwrap_or(0),
        })
        .collect())
}

/// Pins the calling thread, and threads that it starts, to one CPU.
///
/// # Errors
/// `EINVAL` if there is no such CPU, or it is not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        let all = cores().unwrap();
        assert!(!all.is_empty());
        for core in all {
            std::thread::spawn(move || {
                pin(core.cpu).unwrap();
                assert_eq!(rustix::thread::sched_getcpu(), core.cpu);
                assert_eq!(cores().unwrap(), [core]);
            })
            .join()
            .unwrap();
        }
        assert!(pin(CpuSet::MAX_CPU).is_err());
        assert!(pin(CpuSet::MAX_CPU - 1).is_err());
    }
}
