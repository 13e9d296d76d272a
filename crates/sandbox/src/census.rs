//! The resources of a process: descriptors, memory files, mappings, memory, threads. Two censuses,
//! before and after, show leaks.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};

/// The maximum number of descriptors, and of mappings, that a census reads.
const MAX_ENTRIES: usize = 1 << 20;

/// The resources of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// The number of descriptors of each kind: `socket`, `pipe`, `[eventfd]`, `[eventpoll]`,
    /// `memfd`, `namespace`, `file`, and devices by their path.
    pub descriptors: BTreeMap<String, usize>,
    /// The number of descriptors of memory files, by the files' names.
    pub memory_files: BTreeMap<String, usize>,
    /// The number of mapped regions.
    pub mappings: usize,
    /// Memory in use, in bytes, including shared memory.
    pub resident_bytes: u64,
    /// The part in memory files and other shared memory, in bytes.
    pub shared_bytes: u64,
    /// The private part, in bytes.
    pub private_bytes: u64,
    /// The number of threads.
    pub threads: usize,
}

impl Census {
    /// Counts the resources of a process, by its number.
    ///
    /// # Errors
    /// If there is no such process, or it belongs to another user.
    pub fn of(pid: u32) -> io::Result<Census> {
        let mut census = Census::default();
        let directory = format!("/proc/{pid}/fd");
        for entry in fs::read_dir(&directory)?.take(MAX_ENTRIES) {
            // A descriptor closed meanwhile does not count.
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let target = target.to_string_lossy();
            // A census of this process itself opens this directory.
            if target == directory {
                continue;
            }
            if let Some(name) = memory_file(&target) {
                *census.memory_files.entry(name.to_owned()).or_default() += 1;
            }
            *census.descriptors.entry(kind(&target).to_owned()).or_default() += 1;
        }
        let maps = BufReader::new(fs::File::open(format!("/proc/{pid}/maps"))?);
        for line in maps.split(b'\n').take(MAX_ENTRIES) {
            line?;
            census.mappings += 1;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        census.resident_bytes = bytes(&status, "VmRSS:");
        census.shared_bytes = bytes(&status, "RssShmem:");
        census.private_bytes = bytes(&status, "RssAnon:");
        census.threads = field(&status, "Threads:").and_then(|n| n.parse().ok()).unwrap_or(0);
        Ok(census)
    }

    /// Counts the resources of the calling process.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn of_self() -> io::Result<Census> {
        Census::of(std::process::id())
    }

    /// Returns the number of descriptors of all kinds.
    #[must_use]
    pub fn open(&self) -> usize {
        self.descriptors.values().sum()
    }

    /// Returns the resources that have grown since an earlier census, one line each. Excludes
    /// amounts of memory and mappings, since an allocator keeps some.
    #[must_use]
    pub fn leaked_since(&self, earlier: &Census) -> Vec<String> {
        let mut leaked = more(&self.descriptors, &earlier.descriptors, "descriptor");
        leaked.extend(more(&self.memory_files, &earlier.memory_files, "memory file"));
        if self.threads > earlier.threads {
            leaked.push(format!("threads: {} and now {}", earlier.threads, self.threads));
        }
        leaked
    }
}

fn more(
    now: &BTreeMap<String, usize>,
    before: &BTreeMap<String, usize>,
    what: &str,
) -> Vec<String> {
    let held = |name| before.get(name).copied().unwrap_or(0);
    now.iter()
        .filter(|&(name, &count)| count > held(name))
        .map(|(name, count)| format!("{what} {name}: {} and now {count}", held(name)))
        .collect()
}

/// Returns the name of a memory file, from `/memfd:name (deleted)`.
fn memory_file(target: &str) -> Option<&str> {
    let name = target.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name))
}

/// Returns the kind of a descriptor, from the target of its link in `/proc/<pid>/fd`.
fn kind(target: &str) -> &str {
    if memory_file(target).is_some() {
        return "memfd";
    }
    if target.starts_with("/dev/") {
        return target;
    }
    if target.starts_with('/') {
        return "file";
    }
    match target.split_once(':') {
        Some(("anon_inode", kind)) => kind,
        Some((kind @ ("socket" | "pipe"), _)) => kind,
        Some(_) => "namespace",
        None => "other",
    }
}

fn bytes(status: &str, key: &str) -> u64 {
    let kilobytes = field(status, key)
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    kilobytes.saturating_mul(1024)
}

/// Returns the value of a line of a `status` file.
fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_told_apart() {
        for (target, expected) in [
            ("/memfd:heap (deleted)", "memfd"),
            ("/memfd:a:b", "memfd"),
            ("/dev/net/tun", "/dev/net/tun"),
            ("/etc/hosts", "file"),
            ("/tmp/x (deleted)", "file"),
            ("socket:[1]", "socket"),
            ("pipe:[2]", "pipe"),
            ("anon_inode:[eventfd]", "[eventfd]"),
            ("anon_inode:bpf-map", "bpf-map"),
            ("net:[4026531840]", "namespace"),
            ("", "other"),
        ] {
            assert_eq!(kind(target), expected, "{target}");
        }
        assert_eq!(memory_file("/memfd:a (deleted)"), Some("a"));
        assert_eq!(bytes("VmRSS:\t  12 kB\n", "VmRSS:"), 12 * 1024);
        assert_eq!(bytes("VmRSS:\tx\n", "VmRSS:"), 0);
    }
}
