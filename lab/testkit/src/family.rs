//! A process and all that it started.

use std::fs;
use std::io;

/// The most entries of `/proc` that are read: as many as Linux has process numbers.
const MAX_PROCESSES: usize = 1 << 22;

/// Returns a process and its living descendants. A process whose parent has ended is not among them.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn family(pid: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.take(MAX_PROCESSES) {
        let name = entry?.file_name();
        let Some(child) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that has ended meanwhile has no parent.
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let parent = crate::times::field(&status, "PPid:").and_then(|pid| pid.parse().ok());
        parents.extend(parent.map(|parent: u32| (child, parent)));
    }
    let mut all = vec![pid];
    let mut place = 0;
    while let Some(parent) = all.get(place).copied() {
        all.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| child));
        place += 1;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_and_its_child_belong_to_the_family() {
        let mut shell = Command::new("/bin/sh");
        // The shell stays, since a command follows.
        shell.args(["-c", "/bin/cat; :"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut shell = shell.spawn().unwrap();
        let has_child = || family(shell.id()).unwrap().len() == 2;
        assert!((0..5000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            has_child()
        }));
        let all = family(std::process::id()).unwrap();
        for one in family(shell.id()).unwrap() {
            assert!(all.contains(&one));
        }
        assert!(!family(shell.id()).unwrap().contains(&std::process::id()));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
